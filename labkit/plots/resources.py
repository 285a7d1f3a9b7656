"""Figures of the triton_resources lab. In: the frame of `labkit.analyze.resource_tables.cell_table`. Out: plotly."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from labkit.plots.style import bars, ceiling, figure, measured, predicted, quoted

REPORT_TARGET = "sm_70"


def registers(frame: pd.DataFrame, *, source: str) -> go.Figure:
    """Registers per thread by elements per thread: oldest and newest full target, predicted, and the V100 report.

    Args:
        frame: with target, cell, elements, hints, registers, predicted_registers, v100_registers.
        source: hardware, run and date, for the caption.
    """
    frame = frame.query("hints").dropna(subset=["registers"])
    targets = frame["target"].tolist()
    sizes = {name: targets.count(name) for name in dict.fromkeys(targets)}
    full = [name for name, size in sizes.items() if size == max(sizes.values())]
    full = list(dict.fromkeys((full[0], *full[-2:])))  # the oldest and the two newest
    fig = figure(
        "Registers follow the elements a thread holds, until they no longer fit", x="row elements per thread",
        y="registers per thread", log_x=True, height=440,
        caption=f"Compiled without a GPU; a thread can have 255 at most. Fewer elements: more warps a row. {source}.",
        alt="Line chart of registers against elements per thread: targets lie close together and rise to 255.",
    )  # fmt: skip
    for index, target in enumerate(full):
        part = frame.query("target == @target").sort_values(["elements", "hidden"])
        trace = measured(part["elements"].tolist(), part["registers"].tolist(), name=target, index=index)
        fig.add_trace(trace.update(mode="markers"))  # one share of a row comes from several row lengths
    first = frame.query("target == @full[0]").sort_values(["elements", "hidden"])
    plan = first.drop_duplicates("elements")
    fig.add_trace(predicted(plan["elements"].tolist(), plan["predicted_registers"].tolist()))
    report = first.dropna(subset=["v100_registers"])
    if len(report):
        fig.add_trace(quoted(report["elements"].tolist(), report["v100_registers"].tolist(),
                             name="V100 report (quoted)", index=4))  # fmt: skip
    ticks = sorted(frame["elements"].unique().tolist())
    fig.update_xaxes(tickvals=ticks, ticktext=[str(tick) for tick in ticks])
    return ceiling(fig, 255, label="most a thread can have")


def bounds(frame: pd.DataFrame, *, source: str) -> go.Figure:
    """Occupancy bound by plain division and with the allocation's units, on the report's target or the first there is.

    Args:
        frame: with target, cell, hints, occupancy_pct, naive_occupancy_pct.
        source: hardware, run and date, for the caption.
    """
    frame = frame.query("hints").dropna(subset=["occupancy_pct"])
    targets = frame["target"].tolist()
    target = REPORT_TARGET if REPORT_TARGET in targets else targets[0]
    part = frame.query("target == @target")
    loose = len(part.query("naive_occupancy_pct > occupancy_pct + 1e-9"))
    title = f"Plain division overstates {loose} of {len(part)} bounds on {target}"
    fig = figure(
        title, x="row length / warps", y="occupancy bound (%)", height=420,
        caption=f"With units: registers go to whole warps in 256s, inside four sub-partitions. {source}.",
        alt="Bars of two occupancy bounds for each kernel: plain division, and with the units of allocation.",
    )  # fmt: skip
    cells = part["cell"].tolist()
    fig.add_trace(bars(cells, part["naive_occupancy_pct"].tolist(), name="plain division", index=1))
    fig.add_trace(bars(cells, part["occupancy_pct"].tolist(), name="with units", index=0))
    fig.update_xaxes(type="category")
    return fig


def times(frame: pd.DataFrame, *, source: str) -> go.Figure:
    """Rate by theoretical occupancy, one line a row length; the warps are on hover.

    Args:
        frame: with cell, hidden, num_warps, occupancy_pct, gb_per_s and its _p10, _p90, _n.
        source: hardware, run and date, for the caption.
    """
    frame = frame.dropna(subset=["gb_per_s"])
    fig = figure(
        "More occupancy is not more speed", x="theoretical occupancy (%)", y="minimum bytes / time (GB/s)", height=440,
        caption=f"Median and p10 to p90; each point is another num_warps. {source}.",
        alt="Markers of the rate against theoretical occupancy for two row lengths: nearly flat over a wide range.",
    )  # fmt: skip
    for index, (hidden, part) in enumerate(frame.groupby("hidden")):
        part = part.sort_values(["occupancy_pct", "num_warps"])
        low, middle, high = (part[f"gb_per_s{end}"].tolist() for end in ("_p10", "", "_p90"))
        trace = measured(part["occupancy_pct"].tolist(), middle, name=f"hidden {hidden}", low=low, high=high,
                         index=index)  # fmt: skip
        warps = [f"{warps} warps" for warps in part["num_warps"]]
        fig.add_trace(trace.update(text=warps, mode="markers", hovertemplate="%{text}: %{x:.4g} %, %{y:.4g} GB/s"))
    fig.update_yaxes(rangemode="tozero")
    return fig


def dial(results: Mapping[str, Any], *, source: str) -> go.Figure:
    """Rate of one machine code at fewer and fewer resident blocks, by the bytes of input that they have in flight.

    Args:
        results: a record's results with dial_gb_per_s and dial_in_flight_kib by cell and blocks.
        source: hardware, run and date, for the caption.
    """
    fig = figure(
        "The same code: more blocks help until the memory is busy", x="rows in flight on an SM (KiB)",
        y="minimum bytes / time (GB/s)", log_x=True, height=440,
        caption=f"Unused shared memory keeps blocks out. Median and p10 to p90. {source}.",
        alt="Line chart of the rate against the bytes in flight per SM: it rises steeply, then is flat.",
    )  # fmt: skip
    ticks: set[float] = set()
    # Two settings make no curve; a record's JSON is in alphabetical order, where 16384 comes before 4096.
    found = {cell: rates for cell, rates in results["dial_gb_per_s"].items() if len(rates) > 2}
    found = found or dict(results["dial_gb_per_s"])
    for index, cell in enumerate(sorted(found, key=lambda name: [int(part[1:]) for part in name.split("/")])):
        rates, blocks = found[cell], sorted(found[cell], key=int)
        at = [results["dial_in_flight_kib"][cell][b] for b in blocks]
        ticks |= set(at)
        trace = measured(at, [rates[b]["value"] for b in blocks], name=cell, low=[rates[b]["p10"] for b in blocks],
                         high=[rates[b]["p90"] for b in blocks], index=index)  # fmt: skip
        fig.add_trace(trace.update(text=[f"{b} blocks" for b in blocks],
                                   hovertemplate="%{text}: %{x:.4g} KiB, %{y:.4g} GB/s"))  # fmt: skip
    shown = sorted(ticks)
    fig.update_xaxes(tickvals=shown, ticktext=[f"{tick:g}" for tick in shown])
    fig.update_yaxes(rangemode="tozero")
    return fig

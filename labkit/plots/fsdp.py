"""Figures of the FSDP lab: the schedule of a step, counts, step time, memory, a step's timeline.

In: plain values of a record, by case. Out: plotly figures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from labkit.calc.fsdp import in_order
from labkit.plots import ddp
from labkit.plots.style import COLORS, bars, figure, measured, predicted

GIB = 2**30
LEGEND_MARGIN = 84
"""Pixels above the drawing, so that the legend does not run into the title."""


def schedule(calls: Mapping[str, Sequence[Sequence[Any]]], *, caption: str = "") -> go.Figure:
    """When each collective of a step is asked for, on the clock that all machines share: matrix products done.

    Args:
        calls: case -> [phase, collective, bytes, matrix products before it], as predicted.
        caption: hardware, record id and date.
    """
    cases = in_order(cases=calls)
    fig = figure("Prefetching moves a gather to the other side of one block's computation, no more",
                 x="matrix products of the step done when the call is made", y="case", caption=caption,
                 height=150 + 46 * len(cases),
                 alt="; ".join(f"{case}: {len(calls[case])} calls" for case in cases))
    for i, (kind, name) in enumerate((("all_gather", "all-gather"), ("reduce_scatter", "reduce-scatter"))):
        points = [(before, case, phase, size) for case in cases for phase, what, size, before in calls[case]
                  if what == kind]
        fig.add_trace(go.Scatter(
            x=[point[0] for point in points], y=[point[1] for point in points], mode="markers", name=name,
            customdata=[[point[2], point[3] / 2**20] for point in points],
            marker={"color": COLORS[i], "symbol": ("line-ns-open", "triangle-down-open")[i], "size": 12 - 3 * i,
                    "line": {"width": 2}},
            hovertemplate="%{y}, %{customdata[0]}: %{customdata[1]:.2f} MiB after %{x} products"))
    fig.update_layout(margin_t=LEGEND_MARGIN)
    fig.update_yaxes(type="category", categoryorder="array", categoryarray=cases[::-1])
    return fig


def collectives(prediction: Mapping[str, Any], results: Mapping[str, Any], *, caption: str = "") -> go.Figure:
    """Gathers and scatters of one step: from the wrap tree, and counted.

    Args:
        prediction: values of the prediction: collectives.
        results: results of the run, the same name.
        caption: hardware, record id and date.
    """
    expected, seen = prediction["collectives"], results["collectives"]
    cases = in_order(cases=expected)
    num_equal = sum(expected[case] == seen.get(case) for case in cases)
    fig = figure(f"{num_equal} of {len(cases)} cases came out as predicted", x="case", y="calls per step",
                 caption=caption, height=440, alt="; ".join(
                     f"{case}: {seen.get(case, {}).get('ag')} gathers and {seen.get(case, {}).get('rs')} scatters"
                     for case in cases))
    for i, (kind, name) in enumerate((("ag", "all-gathers"), ("rs", "reduce-scatters"))):
        dash = {"symbol": "line-ew", "size": 30, "line": {"width": 3, "color": COLORS[i]}}
        line = predicted(cases, [expected[case][kind] for case in cases], name=f"{name}, predicted", index=i)
        fig.add_trace(line.update(mode="markers", marker=dash))  # cases are categories: no line between them
        found = [seen.get(case, {}).get(kind) for case in cases]
        fig.add_trace(measured(cases, found, name=f"{name}, counted", index=i).update(mode="markers"))
    fig.update_layout(margin_t=LEGEND_MARGIN + 20)
    fig.update_xaxes(type="category", tickangle=-35)
    fig.update_yaxes(rangemode="tozero")
    return fig


def step_time(results: Mapping[str, Any], *, name: str, caption: str = "") -> go.Figure:
    """Step time by case with p10 and p90.

    Args:
        results: results of the run: step_time_ms.
        name: hardware, for the legend.
        caption: hardware, record id and date.
    """
    times = results["step_time_ms"]
    cases = in_order(cases=times)
    fig = figure(_ranking({case: times[case] for case in cases if case != "alone"}), x="case", y="step time (ms)",
                 caption=caption, height=440, alt="; ".join(f"{case}: {times[case]['value']:.1f} ms" for case in cases))
    points = measured(cases, [times[case]["value"] for case in cases], name=name,
                      low=[times[case]["p10"] for case in cases], high=[times[case]["p90"] for case in cases],
                      num_samples=[times[case]["n"] for case in cases])
    fig.add_trace(points.update(mode="markers"))
    fig.update_xaxes(type="category", tickangle=-35)
    fig.update_yaxes(rangemode="tozero")
    return fig


def _ranking(times: Mapping[str, Mapping[str, Any]]) -> str:
    """What can be said about the cases: the best one stands out only if its range is below all others'."""
    if len(times) < 2 or min(time["n"] for time in times.values()) < 20:
        return "Too few samples to rank the cases"
    best = min(times, key=lambda case: times[case]["value"])
    if all(times[best]["p90"] < time["p10"] for case, time in times.items() if case != best):
        return f"{best} is fastest"
    return f"{best} has the lowest median, but its range overlaps with others"


def memory(results: Mapping[str, Any], prediction: Mapping[str, Any], *, caption: str = "") -> go.Figure:
    """Peaks of the allocator by case, over the predicted floor.

    Args:
        results: results of the run: allocated_peak_gib, active_peak_gib, reserved_peak_gib.
        prediction: values of the prediction: memory_floor_bytes.
        caption: hardware, record id and date.
    """
    cases = in_order(cases=results["allocated_peak_gib"])
    floors = {case: size / GIB for case, size in prediction["memory_floor_bytes"].items()}
    fig = figure("Wrapping only the root keeps the whole model and its gradients; reserved memory is another matter",
                 x="case", y="peak (GiB)", caption=caption, height=460, alt="; ".join(
                     f"{case}: {results['allocated_peak_gib'][case]:.2f} GiB allocated" for case in cases))
    for i, peak in enumerate(("allocated", "active", "reserved")):
        found = [results[f"{peak}_peak_gib"][case] for case in cases]
        fig.add_trace(bars(cases, found, name=f"{peak}", index=i))
    known = [case for case in cases if case in floors]
    dash = {"symbol": "line-ew", "size": 30, "line": {"width": 3, "color": COLORS[3]}}
    line = predicted(known, [floors[case] for case in known], name="floor: shards, moments, gathered units", index=3)
    fig.add_trace(line.update(mode="markers", marker=dash))
    fig.update_layout(barmode="group", margin_t=LEGEND_MARGIN + 20)
    fig.update_xaxes(type="category", tickangle=-35)
    return fig


def timeline(cases: Mapping[str, Mapping[str, Any]], *, caption: str = "") -> go.Figure:
    """Compute and communication of one recorded step of rank 0, by case.

    Args:
        cases: case -> rank -> what `labkit.analyze.ddp_rank_files.timeline` gives.
        caption: hardware, record id and date.
    """
    shown = {case: {"0": ranks["0"]} for case, ranks in cases.items() if "0" in ranks}
    order = in_order(cases=shown)
    fig = ddp.timeline({case: shown[case] for case in order}, shown=order, caption=caption)
    fig.update_layout(title_text="What is gathered while nothing computes is exposed", meta={
        "alt": "For each case on rank 0: when compute runs, when communication runs beside it, when it runs alone.",
        "caption": caption})
    fig.update_yaxes(title_text="case, rank")
    return fig

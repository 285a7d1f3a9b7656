"""Figures of the product lab. In: results of a record, the frame of gemm_tables.points_table. Out: plotly figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from labkit.plots.style import bars, ceiling, figure, measured, predicted


def all_figures(
    results: Mapping[str, Any], frame: pd.DataFrame, *, shapes: Sequence[str], source: str
) -> dict[str, go.Figure]:
    """Every figure that the record has data for.

    Args:
        results: of the record.
        frame: of `points_table`.
        shapes: `name KxN` of the record.
        source: hardware, run and date, for the captions.
    """
    found = {f"time {text.split()[0]}": time(frame, shape=text, source=source) for text in shapes}
    found |= {"rate": rate(frame, results, source=source), "knees": knees(results, source=source),
              "residuals": residuals(frame, source=source)}  # fmt: skip
    if results["steps"]:
        found["steps"] = steps(results["steps"], source=source)
    if any(results["grouped_ms"].values()):
        found["grouped"] = grouped(results, source=source)
    return found


def time(frame: pd.DataFrame, *, shape: str, source: str) -> go.Figure:
    """Time of one call against rows, measured and predicted, for one weight shape.

    Args:
        frame: of `points_table`.
        shape: `name KxN`.
        source: for the caption.
    """
    name, size = shape.split()
    part = frame.loc[frame["case"].str.startswith(f"{name} ")]
    fig = figure(
        f"{name}: flat while the weight is read, then in proportion to the rows", x="rows M", y="time of a call (us)",
        log_x=True, log_y=True, height=440,
        caption=f"Weight {size} (K x N) not in cache; median, p10 to p90. Dashed: floor plus the slower of transfer "
                f"and arithmetic, by ceilings measured before. {source}.",
        alt="Line chart on logarithmic axes: times stay level for few rows and then rise in proportion to the rows.",
    )  # fmt: skip
    for index, kind in enumerate(dict.fromkeys(part["kind"])):
        seen = part.loc[part["kind"] == kind]
        fig.add_trace(measured(seen["rows"].tolist(), seen["p50_us"].tolist(), name=str(kind), index=index,
                               low=seen["p10_us"].tolist(), high=seen["p90_us"].tolist(),
                               num_samples=seen["n"].tolist()))
        known = seen.dropna(subset=["predicted_us"])
        fig.add_trace(predicted(known["rows"].tolist(), known["predicted_us"].tolist(), name=f"{kind}, predicted",
                                index=index))
    return fig


def rate(frame: pd.DataFrame, results: Mapping[str, Any], *, source: str) -> go.Figure:
    """Roofline: FLOP/s against intensity, all cases, under the roofs of this run.

    Args:
        frame: of `points_table`.
        results: of the record.
        source: for the caption.
    """
    fig = figure(
        "Under the roofs of the same run: memory on the left, arithmetic on the right",
        x="intensity (FLOP per byte of the three arrays)", y="rate (TFLOP/s)", log_x=True, log_y=True, height=460,
        caption=f"Roofs: the better of copy and read, and a square product of each kind. {source}.",
        alt="Roofline chart: points follow the slanted memory roof and bend towards the level of their product.",
    )  # fmt: skip
    memory = max(results["copy_gb_per_s"]["value"], results["read_gb_per_s"]["value"]) / 1e3
    low, high = frame["intensity_flop_per_byte"].min(), frame["intensity_flop_per_byte"].max()
    for index, (kind, seen) in enumerate(frame.groupby("kind", sort=False)):
        ordered = seen.sort_values("intensity_flop_per_byte")
        fig.add_trace(go.Scatter(
            measured(ordered["intensity_flop_per_byte"].tolist(), ordered["tflop_per_s"].tolist(), name=str(kind),
                     index=index), mode="markers"))
        peak = results["gemm_tflop_per_s"].get(kind, {}).get("value")
        if peak:
            xs = [low, max(low, peak / memory), max(high, peak / memory)]
            fig.add_trace(predicted(xs, [min(peak, memory * x) for x in xs], name=f"{kind}, roofs", index=index))
    return fig


def knees(results: Mapping[str, Any], *, source: str) -> go.Figure:
    """M* by each set of ceilings and the measured knee, by case.

    Args:
        results: of the record.
        source: for the caption.
    """
    cases = list(results["knee"])
    names = {"datasheet": "M*, data sheet", "profile": "M*, card measured before", "this_run": "M*, this run"}
    fig = figure(
        "The rows it takes: from limits to the measured knee", x="product", y="rows M", height=440,
        caption=f"Knee: where the fitted level and slope meet; no bar: they do not. {source}.",
        alt="Bars by product: the rows that three sets of ceilings predict and the measured knee.",
    )  # fmt: skip
    for index, (key, name) in enumerate(names.items()):
        values = [results["mstar_rows"][case].get(key) for case in cases]
        if any(value is not None for value in values):
            fig.add_trace(bars(cases, values, name=name, index=index))  # type: ignore[arg-type]
    fig.add_trace(bars(cases, [results["knee_rows"][case] for case in cases], name="knee, single calls", index=3))
    if any(results["knee_in_graph_rows"].values()):
        found = [results["knee_in_graph_rows"].get(case) for case in cases]
        fig.add_trace(bars(cases, found, name="knee, back to back", index=4))  # type: ignore[arg-type]
    fig.update_xaxes(type="category")
    fig.update_yaxes(rangemode="tozero")
    return fig


def residuals(frame: pd.DataFrame, *, source: str) -> go.Figure:
    """Measured over predicted time against rows, one series a case (at most five).

    Args:
        frame: of `points_table`.
        source: for the caption.
    """
    fig = figure(
        "What floor, bytes and FLOP leave unexplained", x="rows M", y="measured / predicted - 1 (%)", log_x=True,
        height=440, caption=f"Predicted by the ceilings of the same run. {source}.",
        alt="Line chart of the prediction's residual against rows.",
    )  # fmt: skip
    for index, (case, seen) in enumerate(frame.dropna(subset=["own_residual_pct"]).groupby("case", sort=False)):
        fig.add_trace(measured(seen["rows"].tolist(), seen["own_residual_pct"].tolist(), name=str(case), index=index))
    return ceiling(fig, 0.0, label="as predicted")


def steps(found: Sequence[Mapping[str, Any]], *, source: str) -> go.Figure:
    """Time of M + 1 rows over the time of M.

    Args:
        found: results["steps"].
        source: for the caption.
    """
    frame = pd.DataFrame(found)
    fig = figure(
        "One more row is free, until it starts another tile or another wave", x="rows M", y="time(M + 1) / time(M)",
        height=440, caption=f"Median over processes of the ratio of medians. {source}.",
        alt="Line chart of the cost of one more row: near one, with jumps where another wave of tiles starts.",
    )  # fmt: skip
    for index, (case, seen) in enumerate(frame.groupby("case", sort=False)):
        fig.add_trace(measured(seen["rows"].tolist(), seen["ratio"].tolist(), name=str(case), index=index))
    return ceiling(fig, 1.0, label="free")


def grouped(results: Mapping[str, Any], *, source: str) -> go.Figure:
    """Loop of products over one grouped product, by mean rows of an expert.

    Args:
        results: of the record.
        source: for the caption.
    """
    fig = figure(
        "One grouped call against a loop over the experts", x="mean rows of an expert", y="time of the loop / grouped",
        log_x=True, height=420, caption=f"Same experts, same rows, same results. {source}.",
        alt="Line chart of the time of a loop over experts relative to one grouped product, against rows.",
    )  # fmt: skip
    for index, (case, seen) in enumerate(results["loop_over_grouped"].items()):
        if seen:
            rows = sorted(map(int, seen))
            fig.add_trace(measured(rows, [seen[str(m)] for m in rows], name=case, index=index))
    return ceiling(fig, 1.0, label="equal")

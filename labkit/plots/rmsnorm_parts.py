"""Figures of the RMSNorm lab's backward pass and two-pass kernels.

In: frames of `labkit.analyze.rmsnorm_part_tables`. Out: plotly figures.
"""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go

from labkit.plots.style import ceiling, figure, measured, predicted

PROVIDERS = {"copy_fraction": "ours", "compile_copy_fraction": "torch.compile", "liger_copy_fraction": "Liger",
             "native_copy_fraction": "F.rms_norm"}  # fmt: skip
TITLES = {
    "backward": "the backward pass", "wide_forward": "two passes forward", "wide_backward": "two passes backward",
}  # fmt: skip


def share_of_copy(frame: pd.DataFrame, *, part: str, source: str, goal: float | None = None) -> go.Figure:
    """Bandwidth over that of a copy, by shape and implementation, smallest first.

    Args:
        frame: with shape, min_mb, copy_fraction and its _p10, _p90 and _n, and the fractions of the others.
        part: `backward`, `wide_forward` or `wide_backward`.
        source: hardware, run and date, for the caption.
        goal: fraction to draw as a line.
    """
    frame = frame.sort_values("min_mb", kind="stable")
    low, high = 100 * frame.copy_fraction.min(), 100 * frame.copy_fraction.max()
    fig = figure(
        f"Of a copy's bandwidth {TITLES[part]} reach {low:.0f} to {high:.0f} %" if part != "backward"
        else f"The backward pass reaches {low:.0f} to {high:.0f} % of a copy's bandwidth",
        x="rows x hidden (fp16 unless said), by bytes moved", y="bandwidth of least bytes / copy (%)", height=440,
        caption=f"Least bytes over time, over the bandwidth of copy_ in the same round; bars p10 to p90. {source}.",
        alt="Line chart of the share of a copy's bandwidth by shape: ours, torch.compile, Liger and F.rms_norm.",
    )  # fmt: skip
    for index, (key, name) in enumerate(PROVIDERS.items()):
        rows = frame.dropna(subset=[key]) if key in frame else frame.iloc[:0]
        if not len(rows):
            continue
        more = {}
        if key == "copy_fraction":
            more = {"low": (100 * rows.copy_fraction_p10).tolist(), "high": (100 * rows.copy_fraction_p90).tolist(),
                    "num_samples": rows.copy_fraction_n.tolist()}  # fmt: skip
        fig.add_trace(measured(rows["shape"].tolist(), (100 * rows[key]).tolist(), name=name, index=index, **more))
    fig.update_xaxes(type="category", categoryorder="array", categoryarray=frame["shape"].tolist(), tickangle=-45)
    fig.update_yaxes(rangemode="tozero")
    return ceiling(fig, 100 * goal, label="goal") if goal else fig


def part_times(frame: pd.DataFrame, *, part: str, source: str) -> go.Figure:
    """Predicted and measured time by shape.

    Args:
        frame: with shape, min_mb, ours_ms and predicted_ms.
        part: as for `share_of_copy`.
        source: hardware, run and date, for the caption.
    """
    frame = frame.sort_values("min_mb", kind="stable")
    worst = frame.residual_pct.abs().max()
    told = "" if worst != worst else f": within {worst:.0f} % of the prediction"
    fig = figure(
        f"{TITLES[part][0].upper()}{TITLES[part][1:]}{told}", x="rows x hidden, by bytes moved", y="time (ms)",
        height=420, caption=f"Predicted: launch floors plus bytes over the copy measured before. {source}.",
        alt="Measured times by shape beside the dashed prediction; both grow with the bytes moved.",
    )  # fmt: skip
    shapes = frame["shape"].tolist()
    if frame.predicted_ms.notna().all():
        fig.add_trace(predicted(shapes, frame.predicted_ms.tolist()))
    fig.add_trace(measured(shapes, frame.ours_ms.tolist(), name="measured"))
    fig.update_xaxes(type="category", categoryorder="array", categoryarray=shapes, tickangle=-45)
    fig.update_yaxes(rangemode="tozero")
    return fig


def gradient_errors(frame: pd.DataFrame, *, source: str) -> go.Figure:
    """Largest error of dx and dweight over its bound, by row length: 1 would be the last allowed value.

    Args:
        frame: of `gradient_table`.
        source: hardware, run and date, for the caption.
    """
    fig = figure(
        "Gradients, too, stay below a bound that follows from the formats", x="row length", y="largest error / bound",
        height=400, caption=f"The largest of fp16, bf16 and fp32, through autograd. {source}.",
        alt="Markers of the largest error over its bound by row length, for dx and dweight; all are below one.",
    )  # fmt: skip
    for index, name in enumerate(("dx", "dweight")):
        fig.add_trace(measured(frame.hidden.map(str).tolist(), frame[f"{name}_bound_used"].tolist(), name=name,
                               index=index))  # fmt: skip
    fig.update_xaxes(type="category")
    fig.update_yaxes(range=[0, 1.15])
    return ceiling(fig, 1.0, label="float64 bound")

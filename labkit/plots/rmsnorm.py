"""Figures of the RMSNorm lab. In: the frame of `labkit.analyze.rmsnorm_tables.shape_table`. Out: plotly figures."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
import plotly.graph_objects as go

from labkit.plots.style import bars, ceiling, figure, measured, quoted


def bandwidth(frame: pd.DataFrame, *, source: str, datasheet_gb_per_s: float | None = None) -> go.Figure:
    """Minimum bytes over GPU time by shape, smallest first: fast kernel, copy, torch.compile and F.rms_norm.

    Args:
        frame: with fast_gb_per_s, copy_gb_per_s, compile_gb_per_s, native_gb_per_s, each with _p10, _p90 and _n.
        source: hardware, run and date, for the caption.
        datasheet_gb_per_s: memory bandwidth to draw as a ceiling, GB/s.
    """
    frame = frame.sort_values("min_mb", kind="stable")
    on_grid = frame["shape"].map(lambda text: int(text.split()[0].split("x")[1]) % 8 == 0)
    large = frame[(frame.min_mb >= 256) & on_grid]
    title = "Bandwidth grows with the bytes moved, up to that of a copy"
    if len(large):
        title = f"From 256 MB on, aligned rows run at {100 * large.copy_fraction.min():.0f} % of a copy or more"
    fig = figure(
        title, x="rows x hidden (fp16 unless said), by bytes moved", y="minimum bytes / time (GB/s)", height=460,
        caption=f"Median and p10 to p90 of single calls after an L2 flush. {source}.",
        alt="Line chart of bandwidth by shape: the fast kernel follows the copy, F.rms_norm stays far below.",
    )  # fmt: skip
    names = {"copy": "copy_", "fast": "fast kernel", "compile": "torch.compile", "native": "F.rms_norm"}
    for index, (key, name) in enumerate(names.items()):
        part = frame.dropna(subset=[f"{key}_gb_per_s"])
        column = {kind: part[f"{key}_gb_per_s{kind}"].tolist() for kind in ("", "_p10", "_p90", "_n")}
        fig.add_trace(measured(part["shape"].tolist(), column[""], name=name, low=column["_p10"], high=column["_p90"],
                               num_samples=column["_n"], index=index))  # fmt: skip
    fig.update_xaxes(type="category", categoryorder="array", categoryarray=frame["shape"].tolist(), tickangle=-45)
    fig.update_yaxes(rangemode="tozero")
    return ceiling(fig, datasheet_gb_per_s, label="memory, datasheet") if datasheet_gb_per_s else fig


def speedups(frame: pd.DataFrame, *, source: str) -> go.Figure:
    """Speed-up of the report's kernel over F.rms_norm, timed as the report did, beside the report's own.

    Args:
        frame: with speedup_native, speedup_native_gpu and v100_speedup_native; shapes the report lacks are left out.
        source: hardware, run and date, for the caption.
    """
    frame = frame.dropna(subset=["v100_speedup_native"])
    shapes = frame["shape"].tolist()
    fig = figure(
        "A loop of small calls measures the host: the gain there can turn around",
        x="rows x hidden, fp16", y="time of F.rms_norm / ours", height=420,
        caption=f"Loop: as the report timed. GPU alone: fast kernel, after an L2 flush. {source}.",
        alt="Bars of the speed-up over F.rms_norm by shape: in a loop, on the GPU alone, and in the V100 report.",
    )  # fmt: skip
    fig.add_trace(bars(shapes, frame["speedup_native"].tolist(), name="in a loop", index=0))
    fig.add_trace(bars(shapes, frame["speedup_native_gpu"].tolist(), name="GPU alone", index=2))
    fig.add_trace(quoted(shapes, frame["v100_speedup_native"].tolist(), name="V100 report (quoted)"))
    fig.update_xaxes(type="category")
    fig.update_yaxes(rangemode="tozero")
    return ceiling(fig, 1.0, label="as fast as F.rms_norm")


def residuals(
    frame: pd.DataFrame, residual_pct: Mapping[str, Mapping[str, float]], *, source: str
) -> go.Figure:
    """Measured over predicted time of the fast kernel, by ceiling; shapes in the order of the bytes moved.

    Args:
        frame: with shape and min_mb.
        residual_pct: ceiling name -> shape -> percent.
        source: hardware, run and date, for the caption.
    """
    ordered = frame.sort_values("min_mb", kind="stable")["shape"].tolist()
    names = {"datasheet": "datasheet bandwidth", "profile": "copy measured before", "same_run": "copy of this run"}
    fig = figure(
        "Floor plus bytes over bandwidth: good for large shapes, too optimistic for small ones",
        x="rows x hidden, by bytes moved", y="measured / predicted - 1 (%)", height=460,
        caption=f"Zero is a perfect prediction. {source}.",
        alt="Markers of the prediction's residual by shape: far above zero for small shapes, near zero for large ones.",
    )  # fmt: skip
    for index, (key, name) in enumerate(names.items()):
        if key in residual_pct:
            shapes = [shape for shape in ordered if shape in residual_pct[key]]
            found = [residual_pct[key][shape] for shape in shapes]
            fig.add_trace(measured(shapes, found, name=name, index=index))
    fig.update_xaxes(type="category", tickangle=-45)
    return ceiling(fig, 0.0, label="as predicted")


def errors(frame: pd.DataFrame, *, source: str) -> go.Figure:
    """Largest error over its bound, by shape: 1 would be the last allowed value.

    Args:
        frame: with report_bound_used and fast_bound_used; native_bound_used and liger_bound_used are drawn if there.
        source: hardware, run and date, for the caption.
    """
    names = {"report": "report's kernel", "fast": "fast kernel", "native": "F.rms_norm", "liger": "Liger"}
    used = {name: frame[f"{key}_bound_used"].tolist() for key, name in names.items() if f"{key}_bound_used" in frame}
    highest = max(value for values in used.values() for value in values if value == value)
    title = "Both kernels come close to the bound and stay below it"
    if highest > 1:
        title = "One rounding to the output stays below the bound, rounding twice goes past it"
    fig = figure(
        title, x="rows x hidden", y="largest error / bound", height=420,
        caption=f"Bound: one rounding to the output's dtype, plus FP32 sums. {source}.",
        alt="Markers of the largest error over its bound by shape; those of both kernels are below one.",
    )  # fmt: skip
    for index, (name, values) in enumerate(used.items()):
        fig.add_trace(measured(frame["shape"].tolist(), values, name=name, index=index))
    fig.update_xaxes(type="category", tickangle=-45)
    fig.update_yaxes(range=[0, 1.15 * max(1.0, highest)])
    return ceiling(fig, 1.0, label="float64 bound")

"""Figures of the hardware counter lab. In: results, predictions and the frame of its tables. Out: plotly figures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from labkit.plots.style import bars, ceiling, figure, measured, predicted

LRU_OPS = {"copy": "copy", "copy_evict_first": "copy, reads leave first", "report": "report's kernel",
           "fast": "fast kernel"}  # fmt: skip


def gpu_figures(
    results: Mapping[str, Any], prediction: Mapping[str, Any], frame: pd.DataFrame, *, source: str
) -> dict[str, go.Figure]:
    """Every figure that these results allow: traffic, retained, passes, bandwidth, occupancy, stalls.

    Args:
        results: of a GPU record.
        prediction: its predicted values.
        frame: from `hw_counters_tables.kernel_table`.
        source: hardware, run and date, for the captions.
    """
    found = {
        "traffic": traffic(frame, source=source),
        "retained": retained(frame, prediction, source=source),
        "passes": passes(frame, prediction, source=source),
        "bandwidth": bandwidth(frame, source=source, datasheet_gb_per_s=results.get("datasheet_gb_per_s")),
        "occupancy": occupancy(frame, source=source),
    }
    return {**found, "stalls": stalls(results, source=source)} if results.get("stalls") else found


def _rows(frame: pd.DataFrame, chosen: pd.Series) -> pd.DataFrame:
    return frame.loc[chosen]


def traffic(frame: pd.DataFrame, *, source: str) -> go.Figure:
    """Bytes that memory saw over the least bytes, cold, read and written apart.

    Args:
        frame: with workload, op, min_mb, dram_read_mb, dram_write_mb.
        source: for the caption.
    """
    frame = _rows(frame, frame.op.isin(list(LRU_OPS)) & frame.dram_read_mb.notna()).sort_values("min_mb", kind="stable")
    names = frame["workload"].tolist()
    fig = figure(
        "Memory sees every byte that is read, and not every byte that is written", x="kernel, by bytes", height=460,
        y="counted bytes / least bytes", caption=f"Caches emptied before each call. {source}.",
        alt="Bars by kernel: reads from memory are near one half of the least bytes, writes are below it.",
    )  # fmt: skip
    fig.add_trace(bars(names, (frame.dram_read_mb / frame.min_mb).tolist(), name="read from memory", index=0))
    fig.add_trace(bars(names, (frame.dram_write_mb / frame.min_mb).tolist(), name="written to memory", index=1))
    fig.update_layout(barmode="stack")
    fig.update_xaxes(type="category", tickangle=-45)
    return ceiling(fig, 1.0, label="read once, written once")


def retained(frame: pd.DataFrame, prediction: Mapping[str, Any], *, source: str) -> go.Figure:
    """Written bytes that memory had not seen when the kernel ended, by bytes written, with both predictions.

    Args:
        frame: with op, workload, min_mb, retained_mb.
        prediction: with retained_write_bytes and l2_bytes.
        source: for the caption.
    """
    fig = figure(
        "What was written last is still in L2 when the kernel ends", x="bytes written (MB)",
        y="written but not yet in memory (MB)", log_x=True, height=440,
        caption=f"Caches emptied before each call. Dashed: the least recently used line leaves. {source}.",
        alt="Lines of the bytes left in the cache over the bytes written: all of them at first, then a constant.",
    )  # fmt: skip
    for index, (op, label) in enumerate(LRU_OPS.items()):
        part = _rows(frame, (frame.op == op) & frame.retained_mb.notna()).sort_values("min_mb")
        if op == "report":
            part = _rows(part, part.workload.str.startswith("report w4 "))
        part = part.drop_duplicates("min_mb")
        if not len(part):
            continue
        written = (part.min_mb / 2).round(3).tolist()
        fig.add_trace(measured(written, part.retained_mb.tolist(), name=label, index=index))
        if op in ("copy", "copy_evict_first"):
            one = [prediction["retained_one_cache_bytes"][name] / 1e6 for name in part.workload]
            fig.add_trace(predicted(written, one, name=f"{label}: if L2 were one cache", index=index))
        if op == "copy":
            halves = [prediction["retained_write_bytes"][name] / 1e6 for name in part.workload]
            fig.add_trace(predicted(written, halves, name="all: two halves", index=4))
    fig.update_yaxes(rangemode="tozero")
    return ceiling(fig, prediction["l2_bytes"] / 1e6, label="L2 cache, whole")


def passes(frame: pd.DataFrame, prediction: Mapping[str, Any], *, source: str) -> go.Figure:
    """How often memory delivered a tensor that one launch copies several times, by bytes of a pass.

    Args:
        frame: with op, workload, passes, passes_seen.
        prediction: with dram_read_bytes.
        source: for the caption.
    """
    part = _rows(frame, (frame.op == "copy_again") & frame.passes_seen.notna())
    rows = [text.removeprefix("copy again ") for text in part.workload]
    fig = figure(
        "What fits in L2 is read from memory once", x="tensor (rows x hidden, fp16)", y="times read from memory",
        caption=f"One launch copies the tensor {part.passes.max()} times, loads pass by L1. {source}.",
        alt="Small tensors are read once, large ones in every pass; the step shows how much the cache really holds.",
    )  # fmt: skip
    fig.add_trace(measured(rows, part.passes_seen.tolist(), name="counted", index=0))
    sizes = [2 * int(text.split("x")[0]) * int(text.split("x")[1]) for text in rows]
    wanted = [prediction["dram_read_bytes"][name] / size for name, size in zip(part.workload, sizes)]
    fig.add_trace(predicted(rows, wanted, name="two halves, reads kept in both", index=4))
    fig.update_xaxes(type="category")
    fig.update_yaxes(range=[0, float(part.passes.max()) + 0.5])
    return fig


def bandwidth(frame: pd.DataFrame, *, source: str, datasheet_gb_per_s: float | None) -> go.Figure:
    """Least bytes over the unprofiled time, and counted bytes over the tool's time, by kernel.

    Args:
        frame: with workload, op, min_mb, effective_gb_per_s, dram_gb_per_s.
        source: for the caption.
        datasheet_gb_per_s: ceiling to draw, or None.
    """
    both = frame.effective_gb_per_s.notna() & frame.dram_gb_per_s.notna()
    frame = _rows(frame, (frame.op != "gemm") & both).sort_values("min_mb", kind="stable")
    names = frame["workload"].tolist()
    fig = figure(
        "Bytes of the work over time, and bytes that memory saw over time, differ", x="kernel, by bytes", y="GB/s",
        height=460, caption=f"Single calls after the caches were emptied. {source}.",
        alt="Two markers a kernel. Counted is below least for streams, and above it where F.rms_norm reads twice.",
    )  # fmt: skip
    fig.add_trace(measured(names, frame.effective_gb_per_s.tolist(), name="least bytes / time", index=0))
    fig.add_trace(measured(names, frame.dram_gb_per_s.tolist(), name="counted bytes / time under ncu", index=1))
    fig.update_traces(mode="markers")
    fig.update_xaxes(type="category", tickangle=-45)
    fig.update_yaxes(rangemode="tozero")
    return ceiling(fig, datasheet_gb_per_s, label="memory, datasheet") if datasheet_gb_per_s else fig


def occupancy(frame: pd.DataFrame, *, source: str) -> go.Figure:
    """Achieved and theoretical occupancy of the report's kernel by warps a program.

    Args:
        frame: with workload, op, achieved_pct, theoretical_pct.
        source: for the caption.
    """
    part = _rows(frame, (frame.op == "report") & frame.achieved_pct.notna())
    named = [text.removeprefix("report w").split(" ") for text in part.workload]
    part = part.assign(warps=[int(warps) for warps, _ in named], shape=[shape for _, shape in named])
    shapes = [shape for shape in dict.fromkeys(part["shape"]) if (part["shape"] == shape).sum() > 1]
    fig = figure(
        "Achieved occupancy follows the theoretical one from below", x="warps a program", y="occupancy (%)", height=440,
        caption=f"Report's RMSNorm kernel. {source}.",
        alt="Lines of achieved and theoretical occupancy over the number of warps, for two row lengths.",
    )  # fmt: skip
    for index, shape in enumerate(sorted(shapes, key=lambda text: int(text.split("x")[1]))):
        rows = _rows(part, part["shape"] == shape).sort_values("warps")
        warps = rows.warps.astype(str).tolist()
        fig.add_trace(measured(warps, rows.achieved_pct.tolist(), name=f"{shape}: achieved", index=index))
        fig.add_trace(predicted(warps, rows.theoretical_pct.tolist(), name=f"{shape}: theoretical", index=index))
    fig.update_xaxes(type="category")
    fig.update_yaxes(range=[0, 105])
    return fig


def stalls(results: Mapping[str, Any], *, source: str, top: int = 4) -> go.Figure:
    """Why warps waited, as shares of the cycles of an instruction; the reasons that are largest anywhere.

    Args:
        results: with stalls {workload: {reason: warps}}.
        source: for the caption.
        top: reasons shown; the others are one bar.
    """
    found = {name: reasons for name, reasons in results["stalls"].items()
             if name.startswith(("copy 8192", "report w", "fast 8192", "native 8192", "gemm"))}  # fmt: skip
    found = found or dict(results["stalls"])
    total: dict[str, float] = {}
    for reasons in found.values():
        whole = sum(reasons.values()) or 1.0
        for reason, value in reasons.items():
            total[reason] = total.get(reason, 0.0) + value / whole
    shown = sorted(total, key=lambda reason: -total[reason])[:top]
    fig = figure(
        "Most warps wait for memory", x="kernel", y="share of an instruction's cycles (%)", height=480,
        caption=f"Reasons by Nsight Compute's names; long_scoreboard is a load from L2 or memory. {source}.",
        alt="Stacked bars of stall reasons by kernel; waiting for loads is the largest part for RMSNorm.",
    )  # fmt: skip
    share = {name: {reason: 100 * value / sum(reasons.values()) for reason, value in reasons.items()}
             for name, reasons in found.items()}  # fmt: skip
    for index, reason in enumerate(shown):
        fig.add_trace(bars(list(found), [share[name].get(reason, 0.0) for name in found], name=reason, index=index))
    rest = [100 - sum(share[name].get(reason, 0.0) for reason in shown) for name in found]
    fig.add_trace(bars(list(found), rest, name="all others", index=4))
    fig.update_layout(barmode="stack")
    fig.update_xaxes(type="category", tickangle=-45)
    return fig


def faults(frame: pd.DataFrame, *, source: str) -> go.Figure:
    """Page faults of the first write, counted and predicted, by size.

    Args:
        frame: from `hw_counters_tables.host_table`.
        source: for the caption.
    """
    sizes = frame["size"].tolist()
    fig = figure(
        "One fault a page at the first write, none at the second", x="size of the mapping", y="page faults", log_y=True,
        caption=f"Largest difference of all rounds. {source}.",
        alt="Counted page faults lie on the predicted line for every size.",
    )  # fmt: skip
    fig.add_trace(measured(sizes, frame.getrusage_faults.tolist(), name="counted, first write", index=0))
    fig.add_trace(predicted(sizes, frame.predicted_faults.tolist(), name="bytes / page size", index=1))
    fig.update_xaxes(type="category")
    return fig

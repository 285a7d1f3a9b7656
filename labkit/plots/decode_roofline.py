"""Figures of the decode lab. In: frames of labkit.analyze.decode_tables. Out: plotly figures."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go

from labkit.plots.style import bars, figure, measured, predicted

PARTS = {"attention_weights": "attention weights", "dense_mlp": "dense MLP", "shared_experts": "experts",
         "routed_experts": "experts", "head": "output layer", "kv_cache": "KV cache"}
"""Five kinds: as many as can be told apart. Shared experts and the router stand with the routed ones."""


def step_time(points: pd.DataFrame, *, source: str) -> go.Figure:
    """ITL against the batch, one series a server, with the floor of its bytes.

    Args:
        points: of `points_table`.
        source: hardware, run and date, for the caption.
    """
    fig = figure(
        "A decode step costs its bytes, and what the host adds", x="sequences in the batch",
        y="time between tokens (ms)", log_x=True, log_y=True, height=460,
        caption=f"Median, p10 to p90, over the steps in which the whole batch decodes. Dashed: bytes over measured "
                f"bandwidth, alike for both modes of a model. {source}.",
        alt="Line chart on logarithmic axes: time between tokens grows with the batch, slowly for a dense model, fast "
            "for one with experts; each lies above its dashed floor.",
    )
    part = points.loc[(points["kind"] == "ITL") & points["p50_ms"].notna()]
    drawn: set[str] = set()
    for index, ((model, mode), rows) in enumerate(part.groupby(["model", "mode"], sort=False)):
        rows = rows.sort_values("size")
        x = rows["size"].tolist()
        fig.add_trace(measured(x, rows["p50_ms"].tolist(), name=f"{model}, {mode}", index=index,
                               low=rows["p10_ms"].tolist(), high=rows["p90_ms"].tolist(),
                               num_samples=rows["n"].tolist()))
        if str(model) not in drawn:
            fig.add_trace(predicted(x, rows["floor_ms"].tolist(), name=f"{model}, floor", index=index))
            drawn.add(str(model))
    fig.update_xaxes(tickvals=sorted(set(part["size"])), ticktext=[str(size) for size in sorted(set(part["size"]))])
    return fig


def against_bytes(points: pd.DataFrame, *, bytes_per_s: float, source: str) -> go.Figure:
    """ITL of every server and batch against the bytes of its step, with the line of the measured bandwidth.

    Args:
        points: of `points_table`.
        bytes_per_s: of the prediction.
        source: for the caption.
    """
    fig = figure(
        "A step against its bytes: what lies above the line is no memory traffic",
        x="bytes of the step (GB, predicted)", y="time between tokens (ms)", log_x=True, log_y=True, height=440,
        caption=f"One point a server and batch. Dashed: bytes over {bytes_per_s / 1e9:,.0f} GB/s. {source}.",
        alt="Scatter chart on logarithmic axes: points of all models lie above one line of bytes over bandwidth.",
    )
    part = points.loc[(points["kind"] == "ITL") & points["p50_ms"].notna()]
    for index, ((model, mode), rows) in enumerate(part.groupby(["model", "mode"], sort=False)):
        rows = rows.sort_values("gigabytes")
        fig.add_trace(measured(rows["gigabytes"].tolist(), rows["p50_ms"].tolist(), name=f"{model}, {mode}",
                               index=index, low=rows["p10_ms"].tolist(), high=rows["p90_ms"].tolist()))
    if len(part):
        ends = [float(part["gigabytes"].min()), float(part["gigabytes"].max())]
        fig.add_trace(predicted(ends, [1e12 * x / bytes_per_s for x in ends], name="bytes over bandwidth"))
    return fig.update_xaxes(dtick="D2")


def where_it_goes(parts: pd.DataFrame, *, batch: int, source: str) -> go.Figure:
    """Parts of the predicted floor, stacked, one bar a model.

    Args:
        parts: of `parts_table`.
        batch: sequences.
        source: for the caption.
    """
    fig = figure(
        "What a decode step waits for", x="model", y="predicted time (ms)", height=440,
        caption=f"Floor of a step at batch {batch}, part by part. {source}.",
        alt="Stacked bars: weights of the MLP or of the experts are the largest part, the KV cache a small one.",
    )
    here = parts.loc[parts["batch"] == batch].drop_duplicates(["model", "part"])
    models = list(dict.fromkeys(here["model"]))
    by_kind = here.assign(kind=here["part"].map(PARTS)).groupby(["kind", "model"])["ms"].sum()
    for index, kind in enumerate(dict.fromkeys(PARTS.values())):
        heights = [float(by_kind.get((kind, model), 0.0)) for model in models]
        if any(heights):
            fig.add_trace(bars(models, heights, name=kind, index=index))
    return fig.update_layout(barmode="stack")


def prompt_time(points: pd.DataFrame, *, source: str) -> go.Figure:
    """TTFT of a single prompt against its length, one series a server, with the prediction.

    Args:
        points: of `points_table`.
        source: for the caption.
    """
    fig = figure(
        "A prompt against its arithmetic", x="tokens of the prompt",
        y="time to first token (ms)", log_x=True, log_y=True, height=440,
        caption=f"Median, p10 to p90, prompts one at a time. Dashed: predicted. {source}.",
        alt="Line chart on logarithmic axes: time to first token against the prompt's length, measured and predicted.",
    )
    part = points.loc[(points["kind"] == "TTFT") & points["p50_ms"].notna()]
    for index, ((model, mode), rows) in enumerate(part.groupby(["model", "mode"], sort=False)):
        rows = rows.sort_values("size")
        x = rows["size"].tolist()
        fig.add_trace(measured(x, rows["p50_ms"].tolist(), name=f"{model}, {mode}", index=index,
                               low=rows["p10_ms"].tolist(), high=rows["p90_ms"].tolist(),
                               num_samples=rows["n"].tolist()))
        fig.add_trace(predicted(x, rows["predicted_ms"].tolist(), name=f"{model}, {mode}, predicted", index=index))
    fig.update_xaxes(tickvals=sorted(set(part["size"])), ticktext=[str(size) for size in sorted(set(part["size"]))])
    return fig

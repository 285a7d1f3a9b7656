"""Figures of the launch lab. In: frames of labkit.analyze.launch_tables. Out: plotly figures."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go

from labkit.plots.style import ceiling, figure, measured, predicted

LABELS = {"eager": "one by one", "paired": "two steps an operator", "graph": "CUDA graph", "kernel": "one kernel",
          "compiled": "torch.compile"}  # fmt: skip


def by_length(frame: pd.DataFrame, *, size: int, source: str) -> go.Figure:
    """Time of a chain against its length, one size, measured and predicted.

    Args:
        frame: of `chains_table`.
        size: elements.
        source: hardware, run and date, for the caption.
    """
    fig = figure(
        "Launches add up; a fused chain pays once", x="steps of the chain", y="time of a chain (us)",
        log_x=True, log_y=True, height=460,
        caption=f"{size:,} FP32 elements. Median, p10 to p90. Dashed: predicted from assumed costs. {source}.",
        alt="Line chart on logarithmic axes: separate operators take longer with every step, a fused chain hardly.",
    )  # fmt: skip
    for index, name in enumerate(dict.fromkeys(frame["variant"])):
        part = frame.loc[(frame["variant"] == name) & (frame["size"] == size)]
        if not len(part):
            continue
        fig.add_trace(measured(part["length"].tolist(), part["p50_us"].tolist(), name=LABELS[name], index=index,
                               low=part["p10_us"].tolist(), high=part["p90_us"].tolist(),
                               num_samples=part["n"].tolist()))  # fmt: skip
        if name in ("eager", "graph", "kernel"):
            fig.add_trace(predicted(part["length"].tolist(), part["predicted_us"].tolist(),
                                    name=f"{LABELS[name]}, predicted", index=index))  # fmt: skip
    return fig


def by_size(fits: pd.DataFrame, *, source: str) -> go.Figure:
    """Cost of one more step against the size of the tensor.

    Args:
        fits: of `fit_table`.
        source: for the caption.
    """
    fig = figure(
        "Small tensors pay the launch, large ones hide it", x="FP32 elements", y="one more step (us)",
        log_x=True, log_y=True, height=440, caption=f"Slope of a line through all lengths of the chain. {source}.",
        alt="Line chart on logarithmic axes: the cost of a step is level for small tensors, then grows with the size.",
    )  # fmt: skip
    positive = fits.loc[fits["step_us"] > 0]
    for index, name in enumerate(dict.fromkeys(positive["variant"])):
        part = positive.loc[positive["variant"] == name]
        fig.add_trace(measured(part["size"].tolist(), part["step_us"].tolist(), name=LABELS[name], index=index))
    return fig


def gain(frame: pd.DataFrame, *, source: str) -> go.Figure:
    """Time of the eager chain over the others, longest chain, against the size.

    Args:
        frame: of `chains_table`.
        source: for the caption.
    """
    longest = frame["length"].max()
    fig = figure(
        "What graph and fusion gain, and where a graph stops to gain", x="FP32 elements",
        y="time one by one / time", log_x=True, log_y=True, height=420,
        caption=f"Chains of {longest} steps. {source}.",
        alt="Line chart of the gain over separate operators against the size of the tensor.",
    )  # fmt: skip
    part = frame.loc[(frame["length"] == longest) & (frame["variant"] != "eager")]
    for index, name in enumerate(dict.fromkeys(part["variant"]), start=1):
        seen = part.loc[part["variant"] == name]
        fig.add_trace(measured(seen["size"].tolist(), seen["eager_over_this"].tolist(), name=LABELS[name], index=index))
    return ceiling(fig, 1.0, label="no gain")

"""Picture of question 9: rows per expert copy over the expert-parallel size, with the ceiling that replicas impose."""

from __future__ import annotations

import plotly.graph_objects as go

from labkit.calc.moe import rows_per_instance
from labkit.plots.style import GREY, figure, predicted

EXPERTS, TOP_K = 256, 8
RANKS = [8, 16, 32, 64, 128, 192, 256, 320, 512, 666, 1024]
TARGET = 333


def rows_over_ranks() -> go.Figure:
    """Mean rows of an expert copy for three local batches; past one expert a rank, more ranks bring no more rows."""
    fig = figure(
        "More ranks bring more rows only while a rank still holds a whole expert of its own",
        x="expert-parallel ranks", y="mean rows per expert copy", log_x=True, log_y=True, height=400,
    )  # fmt: skip
    for index, local in enumerate((16, 42, 128)):
        rows = [rows_per_instance(num_ranks=p, local_tokens=local, top_k=TOP_K, num_experts=EXPERTS) for p in RANKS]
        fig.add_trace(predicted(RANKS, rows, name=f"{local} local tokens", index=index))
    # style.ceiling puts its label at the height itself, which a logarithmic axis reads as an exponent
    fig.add_trace(go.Scatter(
        x=[RANKS[0], RANKS[-1]], y=[TARGET, TARGET], mode="lines", name=f"target of {TARGET} rows",
        line={"color": GREY, "width": 1.2},
    ))  # fmt: skip
    fig.update_xaxes(tickvals=[8, 32, 128, 256, 1024], ticktext=["8", "32", "128", "256", "1024"])
    fig.update_yaxes(tickvals=[1, 4, 16, 64, 256, 1024], ticktext=["1", "4", "16", "64", "256", "1024"])
    return fig

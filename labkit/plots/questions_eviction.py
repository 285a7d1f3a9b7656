"""Picture of question 5: which of two policies keeps the prefix of a session that waits for a tool."""

from __future__ import annotations

import plotly.graph_objects as go

from labkit.calc.eviction import paused_session_hits
from labkit.plots.style import figure, predicted

OTHERS = list(range(13))
TURNS = 11


def paused_session() -> go.Figure:
    """Share of a paused session's returns that find its prefix, over the one-off blocks that pass by meanwhile."""
    fig = figure(
        "LRU forgets a paused session as soon as enough strangers pass; value per byte does not",
        x="blocks used once between two turns", y="returns that hit (%)", height=360,
    )  # fmt: skip
    for index, (policy, name) in enumerate((("lru", "LRU"), ("value", "value per byte"))):
        hits = [paused_session_hits(policy, other_blocks=count, num_turns=TURNS) for count in OTHERS]
        fig.add_trace(predicted(OTHERS, [100 * hit / (TURNS - 1) for hit in hits], name=name, index=index))
    fig.update_yaxes(range=[-4, 108])
    return fig

"""Pictures of question 6: how data flows when prefill and decode are apart, and when a turn should not travel."""

from __future__ import annotations

import plotly.graph_objects as go

from labkit.calc.pd_routing import break_even_miss_tokens
from labkit.plots.diagram import arrow, box, canvas, label
from labkit.plots.style import figure, predicted

NODES = {
    "link_bytes_per_s": 50e9, "prefill_tokens_per_s": 20000.0, "decode_tokens_per_s": 10000.0,
    "interference_s_per_token": 5e-5,
}  # fmt: skip
"""The setting of the question's worked example."""
MODELS = {"80-layer GQA": 327680, "61-layer MLA": 70272}


def data_flow() -> go.Figure:
    """The ways of a later turn: stay on the decode node that holds the prefix, or travel to a prefill node and back."""
    fig = canvas(
        "The prefix sits on D: either the work comes to it, or it travels", width=10, height=7.4,
        alt="A router sends a turn either to decode node D, which holds the prefix in its KV cache and prefills the "
        "missing tokens beside its running batch, or to prefill node P, which then needs the prefix from D or from a "
        "shared store and sends the new KV back to D, where decoding goes on.",
    )  # fmt: skip
    box(fig, 2.8, 6.2, 4.4, 1, "router: hit,<br>miss, queues")
    arrow(fig, 4.2, 6.15, 2.2, 5.05, index=1)
    label(fig, 1.6, 5.75, "travel")
    arrow(fig, 5.8, 6.15, 7.8, 5.05, index=2)
    label(fig, 8.2, 5.75, "stay")
    box(fig, 0, 3.2, 3.7, 1.8, "<b>prefill P</b><br>missing<br>tokens", index=1)
    box(fig, 6.3, 3.2, 3.7, 1.8, "<b>decode D</b><br>prefix,<br>batch", index=2)
    arrow(fig, 6.25, 4.6, 3.75, 4.6, "prefix", index=1, shift=0.25)
    arrow(fig, 3.75, 3.6, 6.25, 3.6, "new KV", index=1, shift=-0.27)
    box(fig, 0.6, 0.6, 8.8, 1.1, "shared KV store<br>(host memory, disk)", dashed=True)
    arrow(fig, 1.9, 1.75, 1.9, 3.15)
    label(fig, 2.1, 2.45, "prefix", anchor="left", size=11)
    arrow(fig, 8.1, 3.15, 8.1, 1.75)
    label(fig, 7.9, 2.45, "paused", anchor="right", size=11)
    return fig


def break_even() -> go.Figure:
    """Missing tokens above which travelling wins, over the cached prefix, for two cache sizes per token."""
    hits = [1000 * i for i in range(0, 205, 5)]
    fig = figure(
        "The longer the cached prefix, the more missing tokens it takes to make a turn travel",
        x="tokens cached on D (thousands)", y="break-even of missing tokens", height=360,
    )  # fmt: skip
    for index, (name, size) in enumerate(MODELS.items()):
        found = [break_even_miss_tokens(hit_tokens=hit, kv_bytes_per_token=size, **NODES) for hit in hits]
        fig.add_trace(predicted([hit / 1000 for hit in hits], [x or 0.0 for x in found], name=name, index=index))
    fig.update_yaxes(rangemode="tozero")
    return fig

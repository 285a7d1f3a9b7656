"""Pictures of question 7: what moves in three ways of attending to a sharded history, and how many bytes that is."""

from __future__ import annotations

import plotly.graph_objects as go

from labkit.calc.context_parallel import crossover_query_tokens, received_bytes
from labkit.plots.diagram import arrow, box, canvas, label
from labkit.plots.style import COLORS, GREY, figure, predicted

RANKS, HISTORY = 8, 131072
QUERIES = [2**i for i in range(8, 17)]
SHAPES = {
    "GQA": {"kv_width": 2048, "q_width": 8192, "o_width": 8192},
    "MLA": {"kv_width": 576, "q_width": 128 * 192, "o_width": 128 * 128},
}
HEADS = {"GQA": 64, "MLA": 128}


def three_schemes() -> go.Figure:
    """Four ranks with sharded KV: gather KV, gather Q and merge, or pass KV around a ring."""
    fig = canvas(
        "KV comes to Q, or Q comes to KV, or KV passes by", width=10, height=10.2,
        alt="Three rows of four ranks, each with a shard of keys and values. Gather KV: each rank also holds a copy of "
        "all KV for a while. Gather Q: each rank holds all queries, then partial outputs are merged. Ring: shards "
        "of KV go from rank to rank in three transfers while each rank computes.",
    )  # fmt: skip
    rows = (
        (7.6, "<b>all-gather KV</b>: p shards alive", "all KV", 0),
        (4.3, "<b>all-gather Q</b>: partial outputs merge", "all Q", 1),
        (0.65, "<b>ring</b>: p − 1 transfers, 2 shards alive", "next KV", 2),
    )
    for y, text, extra, index in rows:
        label(fig, 0, y + 2.35, text, anchor="left")
        for r in range(4):
            x = 2.55 * r
            box(fig, x, y + 1.1, 2.1, 0.95, f"rank {r}<br>Q{r}, KV{r}", index=index)
            box(fig, x, y, 2.1, 0.75, extra, dashed=True, index=index)
    for r in range(3):
        arrow(fig, 2.55 * r + 2.12, 1.03, 2.55 * (r + 1) - 0.02, 1.03, index=2)
    for r in range(4):
        arrow(fig, 2.55 * r + 1.05, 4.27, 5 + 0.5 * (r - 1.5), 3.82, index=1)
    arrow(fig, 8.7, 0.25, 1.05, 0.25, index=2)
    label(fig, 5, 3.6, "(O, LSE) → owner of the query", size=11)
    return fig


def bytes_over_queries() -> go.Figure:
    """Bytes that a rank receives for one layer over the query tokens of the chunk, for a history of 128K tokens."""
    fig = figure(
        "Gathering Q wins for short chunks, and MLA's small latent moves the crossing far to the left",
        x="query tokens of all ranks", y="received per rank and layer (MiB)", log_x=True, log_y=True, height=420,
    )  # fmt: skip
    for place, (name, widths) in enumerate(SHAPES.items()):
        kv = received_bytes("gather_kv", num_ranks=RANKS, history_tokens=HISTORY, kv_width=widths["kv_width"])
        flat = [kv["bytes"] / 2**20] * len(QUERIES)
        q = [
            received_bytes(
                "gather_q", num_ranks=RANKS, query_tokens=tokens, q_width=widths["q_width"], o_width=widths["o_width"],
                num_heads=HEADS[name],
            )["bytes"] / 2**20
            for tokens in QUERIES
        ]  # fmt: skip
        fig.add_trace(predicted(QUERIES, flat, name=f"{name}: KV or ring", index=2 * place))
        fig.add_trace(predicted(QUERIES, q, name=f"{name}: Q and merge", index=2 * place + 1))
        crossing = crossover_query_tokens(history_tokens=HISTORY, **widths)
        fig.add_trace(go.Scatter(
            x=[crossing], y=[kv["bytes"] / 2**20], mode="markers", showlegend=False, name=f"crossing, {name}",
            marker={"color": COLORS[2 * place], "size": 11, "symbol": "diamond", "line": {"color": GREY, "width": 1}},
            hovertemplate="%{x:.0f} query tokens",
        ))  # fmt: skip
    fig.update_yaxes(dtick=1)
    fig.update_xaxes(tickvals=QUERIES[::2], ticktext=[f"{n // 1024}K" if n >= 1024 else str(n) for n in QUERIES[::2]])
    return fig

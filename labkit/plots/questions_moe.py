"""Drawings of the mixture-of-experts questions. In: nothing. Out: plotly figures computed from labkit.calc."""

from __future__ import annotations

import plotly.graph_objects as go

from labkit.calc.moe_all_to_all import bytes_per_rank, distinct_ranks, group_bytes
from labkit.plots.style import bars, figure

MIB = 2**20
SHAPE = {"local_tokens": 16, "top_k": 8, "hidden": 7168, "num_ranks": 32}
NUM_EXPERTS = 256


def byte_counts() -> go.Figure:
    """One dispatch and combine of one layer, counted in five ways, MiB of the whole group."""
    both = group_bytes(**SHAPE)
    ranks, top_k = SHAPE["num_ranks"], SHAPE["top_k"]
    reached = distinct_ranks(num_experts=NUM_EXPERTS, num_ranks=ranks, top_k=top_k)
    counts = {
        "FP8 dispatch, scales": group_bytes(**SHAPE, dispatch_bytes=1, scale_group=128)["total"],
        "one copy per rank": both["total"] * reached / top_k,
        "remote sends": both["total"],
        "local pairs too": 2 * ranks * bytes_per_rank(**SHAPE, remote_only=False),
        "sent plus received": both["sent_and_received"],
    }
    fig = figure("The same exchange has five sizes", x="MiB of the group", y="counted as",
                 height=330)  # fmt: skip
    sizes = [size / MIB for size in counts.values()]
    bar = bars(list(counts), sizes, name="MiB")
    bar.update(
        x=sizes, y=list(counts), orientation="h", hovertemplate="%{y}: %{x:.1f} MiB",
        text=[f"{size:.1f}" for size in sizes], textposition="outside", cliponaxis=False,
    )
    return fig.add_trace(bar).update_layout(showlegend=False).update_xaxes(range=[0, 1.35 * max(sizes)])

"""Picture of question 4: what expanding a latent history takes, whole and in segments."""

from __future__ import annotations

import plotly.graph_objects as go

from labkit.calc.kv_cache import kv_bytes_per_token
from labkit.calc.mla import peak_expanded_bytes
from labkit.plots.style import bars, figure

HISTORY, HEADS = 131072, 128


def expansion_peak() -> go.Figure:
    """Bytes of one layer, 128 heads: the cached latent, its whole expansion, and tiles (segments) of it."""
    cached = HISTORY * kv_bytes_per_token(num_layers=1, kv_lora_rank=512, qk_rope_head_dim=64)
    sizes = {"cache": cached}
    for name, segment, rope in (
        ("whole<br>+ RoPE", None, 64), ("whole", None, 0), ("32K<br>tiles", 32768, 0),
        ("16K<br>tiles", 16384, 0), ("8K<br>tiles", 8192, 0),
    ):  # fmt: skip
        sizes[name] = peak_expanded_bytes(
            history_tokens=HISTORY, num_heads=HEADS, segment_tokens=segment, broadcast_rope_dim=rope
        )
    fig = figure(
        "A small cache can have a huge transient, and only shorter segments of history shrink it",
        x="what is alive at a time, one layer", y="memory (GiB)", height=360,
    )  # fmt: skip
    fig.add_trace(bars(list(sizes), [size / 2**30 for size in sizes.values()], name="peak", index=0))
    fig.update_layout(showlegend=False)
    return fig

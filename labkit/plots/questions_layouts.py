"""Drawings of the question on attention layouts. In: nothing. Out: plotly figures computed from labkit.calc."""

from __future__ import annotations

import plotly.graph_objects as go

from labkit.calc.attention import decode_token, mla_decode_token
from labkit.calc.roofline import ridge_flop_per_byte
from labkit.hardware import load_profile
from labkit.plots.style import COLORS, MARKERS, ceiling, figure

HEADS = 128
LATENT = {"num_heads": HEADS, "kv_lora_rank": 512, "qk_rope_head_dim": 64}


def cache_against_intensity() -> go.Figure:
    """KV bytes of a token and layer against ideal decode intensity: MHA, GQA, MQA, and MLA three ways."""
    shared = {
        name: decode_token(num_heads=HEADS, num_kv_heads=heads, head_dim=192, v_head_dim=128)
        for name, heads in (("MHA", HEADS), ("GQA, 8 groups", 8), ("MQA", 1))
    }
    latent = {
        "MLA": mla_decode_token(**LATENT),
        "MLA, 2 queries a read": mla_decode_token(**LATENT, num_queries=2),
        "MLA, latent read twice": mla_decode_token(**LATENT, num_reads=2),
    }
    fig = figure(
        "MLA buys intensity, not the smallest cache", x="KV bytes per token and layer", y="decode intensity (FLOP/B)",
        log_x=True, log_y=True, height=420,
    )
    for index, (name, points, sides) in enumerate(
        (("shared heads", shared, ["middle left", "middle right", "bottom center"]), ("latent", latent, "middle right"))
    ):
        fig.add_trace(
            go.Scatter(
                x=[point["bytes"] for point in points.values()], text=list(points), textposition=sides, name=name,
                y=[point["intensity_flop_per_byte"] for point in points.values()], mode="lines+markers+text",
                line={"color": COLORS[index], "width": 1.2, "dash": "dash"}, cliponaxis=False,
                marker={"color": COLORS[index], "symbol": MARKERS[index], "size": 10},
                hovertemplate="%{text}: %{x} B, %{y:.3g} FLOP/B",
            )
        )
    chip = load_profile("h100_sxm")
    peak = float(chip.value("peak_bf16_dense_flop_per_s") or 0)
    rate = float(chip.value("memory_bandwidth_bytes_per_s") or 0)
    ridge = ridge_flop_per_byte(peak_flop_per_s=peak, bytes_per_s=rate)
    ceiling(fig, ridge, label="H100 BF16 ridge")
    fig.update_xaxes(range=[2.6, 5.1]).update_yaxes(range=[-0.3, 3.0])
    fig.update_layout(showlegend=False)
    fig.update_annotations(x=1, xanchor="right")
    return fig

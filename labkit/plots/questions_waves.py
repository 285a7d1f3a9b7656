"""Drawings of the question on hardware adaptation. In: nothing. Out: plotly figures computed from labkit.calc."""

from __future__ import annotations

import plotly.graph_objects as go

from labkit.calc.gemm import wave_efficiency
from labkit.hardware import load_profile
from labkit.plots.style import GREY, figure, predicted

SHOWN_BLOCKS = 216
"""Two full waves of an A100."""
MOST_BLOCKS = 420


def wave_efficiency_by_blocks() -> go.Figure:
    """Share of the machine that a grid keeps busy, by its number of equal blocks, on two devices."""
    fig = figure("Two full waves on one device are a wave and a rest on another", x="blocks of the grid",
                 y="busy share of the SMs")  # fmt: skip
    for index, (profile, name) in enumerate((("a100_sxm_80gb", "A100"), ("h100_sxm", "H100"))):
        num_sms = int(load_profile(profile).value("num_sms") or 0)
        edges = (n * num_sms + step for n in range(1, 5) for step in (0, 1))
        blocks = sorted({*range(20, MOST_BLOCKS + 1, 4), *(edge for edge in edges if edge <= MOST_BLOCKS)})
        share = [wave_efficiency(num_tiles=n, num_sms=num_sms) for n in blocks]
        fig.add_trace(predicted(blocks, share, name=f"{name}, {num_sms} SMs", index=index))
    fig.add_vline(x=SHOWN_BLOCKS, line={"color": GREY, "width": 1.2, "dash": "dot"})
    fig.add_annotation(
        x=SHOWN_BLOCKS, y=0.08, yref="paper", text=f"{SHOWN_BLOCKS} blocks", showarrow=False, xanchor="left"
    )
    return fig.update_yaxes(range=[0, 1.05])

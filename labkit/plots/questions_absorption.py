"""Drawings of the question on FP32 absorption. In: nothing. Out: plotly figures from labkit.calc."""

from __future__ import annotations

import plotly.graph_objects as go

from labkit.calc.floating_point import neighbours, product, round_to, ulp
from labkit.plots.style import COLORS, GREY, figure

TARGET = 9.9e9


def number_line() -> go.Figure:
    """FP32 numbers around 9.9e9, the two results, and the half step on each side that is absorbed."""
    step = ulp(value=TARGET)
    around = neighbours(value=TARGET)
    ticks = [around["below"] - step, around["below"], around["above"], around["above"] + step]
    fig = figure(
        "Two neighbours, two programs, nothing between them", x="value minus 9,900,000,000", y="FP32", height=260
    )
    for index, (value, name) in enumerate(
        ((product(x=9.9, y=1e9), "9.9f * 1e9f"), (round_to(value=TARGET), "9.9e9f"))
    ):
        at = value - TARGET
        fig.add_shape(
            type="rect", x0=at - step / 2, x1=at + step / 2, y0=-0.25, y1=0.25, fillcolor=COLORS[index], opacity=0.18,
            line={"width": 0},
        )
        fig.add_trace(
            go.Scatter(
                x=[at], y=[0], mode="markers+text", text=[name], textposition="top center", name=name,
                marker={"color": COLORS[index], "size": 12}, hovertemplate=f"{value:,.0f}",
            )
        )
    others = [tick - TARGET for tick in (ticks[0], ticks[-1])]
    fig.add_trace(
        go.Scatter(x=others, y=[0, 0], mode="markers", name="other FP32 numbers", marker={"color": GREY, "size": 9})
    )
    fig.add_trace(
        go.Scatter(
            x=[0], y=[0], mode="markers+text", text=["9,900,000,000"], textposition="bottom center", name="decimal",
            marker={"color": GREY, "symbol": "x-thin", "size": 12, "line": {"width": 2, "color": GREY}},
        )
    )
    fig.update_yaxes(visible=False, range=[-0.6, 0.6]).update_xaxes(tickvals=[tick - TARGET for tick in ticks])
    return fig.update_layout(showlegend=False)

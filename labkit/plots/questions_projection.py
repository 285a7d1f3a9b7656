"""Drawing of the question on projections. In: nothing. Out: a plotly figure from labkit.calc."""

from __future__ import annotations

import plotly.graph_objects as go

from labkit.calc.projection import project_point
from labkit.plots.style import COLORS, GREY, figure

A, B = [1.0, 1.0], [4.0, 5.0]
POINTS = ([5.0, 2.0], [6.0, 6.2])


def line_and_segment() -> go.Figure:
    """Two points, their feet on the line through A and B, and the nearest points of the segment."""
    fig = figure("Line: the foot. Segment: the foot, or an end", x="x", y="y", height=420)
    start, end = ([a + t * (b - a) for a, b in zip(A, B)] for t in (-0.2, 1.5))
    fig.add_trace(go.Scatter(
        x=[start[0], end[0]], y=[start[1], end[1]], mode="lines", name="line", line={"color": GREY, "dash": "dash"}))
    fig.add_trace(go.Scatter(
        x=[A[0], B[0]], y=[A[1], B[1]], mode="lines+markers+text", name="segment", text=["A", "B"],
        textposition="top left", line={"color": COLORS[0], "width": 4}))
    for index, point in enumerate(POINTS):
        foot, near = (project_point(a=A, b=B, c=point, segment=s)["point"] for s in (False, True))
        for target, name, dash in ((foot, "foot on the line", "solid"), (near, "nearest on the segment", "dot")):
            if target == foot and name.startswith("nearest"):
                continue
            fig.add_trace(go.Scatter(
                x=[point[0], target[0]], y=[point[1], target[1]], mode="lines+markers", name=name,
                line={"color": COLORS[1 + index], "dash": dash}, showlegend=index == 1))
        fig.add_annotation(x=point[0], y=point[1], text=f"C{index + 1}", showarrow=False, xshift=16,
                           font={"color": GREY, "size": 13})
    fig.update_yaxes(scaleanchor="x", scaleratio=1)
    return fig

"""Drawings of the question on four servers. In: nothing. Out: plotly figures; widths come from labkit.calc.summa."""

from __future__ import annotations

import plotly.graph_objects as go

from labkit.calc.summa import microsteps, panel_width
from labkit.plots.style import COLORS, GREY, figure

GAP = 1.15
GRID = 2
STEP = 1
"""Which panel is shown, counted from 0; panel 1 of width N/4 belongs to the first column of A and first row of B."""


def panel_step() -> go.Figure:
    """One microstep of SUMMA: A's panel travels along rows, B's along columns, every block of C is updated."""
    width = panel_width()
    title = f"Panel {STEP + 1} of {microsteps(panel_width=width)}: one strip of A, one of B, all of C"
    fig = figure(title, x="columns", y="rows", height=280)
    for index, name in enumerate(("A", "B", "C += A B")):
        _matrix(fig, index * GAP, name, filled=index == 2)
    left, top = STEP * width, 1 - (STEP + 1) * width
    _panel(fig, left, 0, left + width, 1, index=0)
    _panel(fig, GAP, top, GAP + 1, top + width, index=1)
    for row in range(GRID):
        y = (row + 0.28) / GRID
        _arrow(fig, (left + width, y), (0.9, y), index=0)
    for column in range(GRID):
        x = GAP + (column + 0.28) / GRID
        _arrow(fig, (x, top), (x, 0.1), index=1)
    fig.update_xaxes(visible=False, range=[-0.05, 2 * GAP + 1.05], fixedrange=True)
    fig.update_yaxes(visible=False, range=[-0.05, 1.15], fixedrange=True, scaleanchor="x")
    return fig.update_layout(margin={"l": 4, "r": 4, "t": 24, "b": 4}, showlegend=False)


def _matrix(fig: go.Figure, x: float, name: str, *, filled: bool) -> None:
    """Four blocks named after their servers, row by row from the top."""
    for row in range(GRID):
        for column in range(GRID):
            x0, y1 = x + column / GRID, 1 - row / GRID
            fig.add_shape(
                type="rect", x0=x0, x1=x0 + 1 / GRID, y0=y1 - 1 / GRID, y1=y1, line={"color": GREY, "width": 1.2},
                fillcolor=COLORS[2] if filled else None, opacity=0.3 if filled else 1, layer="below",
            )
            fig.add_annotation(x=x0 + 0.25, y=y1 - 0.25, text=f"P{row}{column}", showarrow=False, font={"size": 12})
    fig.add_annotation(x=x + 0.5, y=1, text=name, showarrow=False, yanchor="bottom", font={"size": 13})


def _panel(fig: go.Figure, x0: float, y0: float, x1: float, y1: float, *, index: int) -> None:
    """The strip that is broadcast in this step."""
    color = COLORS[index]
    fig.add_shape(
        type="rect", x0=x0, x1=x1, y0=y0, y1=y1, line={"color": color, "width": 2}, fillcolor=color, opacity=0.35
    )


def _arrow(fig: go.Figure, tail: tuple[float, float], head: tuple[float, float], *, index: int) -> None:
    """From the owner of a panel to the server that lacks it."""
    fig.add_annotation(
        x=head[0], y=head[1], ax=tail[0], ay=tail[1], xref="x", yref="y", axref="x", ayref="y", showarrow=True,
        arrowhead=2, arrowsize=1, arrowwidth=2, arrowcolor=COLORS[index], text="",
    )

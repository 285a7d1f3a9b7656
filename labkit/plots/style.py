"""The one look of every figure: a plotly template and builders for the kinds of series a page shows.

A series says how its numbers came to be, and not by colour alone:

    measured    solid line, filled marker, p10-p90 bars
    predicted   dashed line, no marker
    quoted      open marker, dotted line (somebody else's figure, e.g. the 8x V100 report)
    ceiling     thin grey line with its label and source on it

Backgrounds are transparent and all colours keep 3:1 contrast on white and on near-black, so that a figure is readable
in JupyterLab and in the book, light or dark. Title, caption and alternative text travel in `layout.meta`: the book
prints them as text around the drawing, where they wrap on a phone.

    fig = figure("25 MiB buckets are fastest", x="bucket cap", y="step time (ms)", caption="...")
    fig.add_trace(measured([1, 4], [57.1, 56.0], name="h200-x2", low=[...], high=[...]))
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

from labkit.units import format_bytes

COLORS = ("#2b72b7", "#cb5a0a", "#1d9d68", "#a352f0", "#c25f8a")
"""Told apart by colour-blind readers (simulated for three kinds, see tests/test_book_style.py); at most five series."""
MARKERS = ("circle", "square", "diamond", "triangle-up", "x")
OPEN_MARKERS = tuple(f"{name}-open" for name in MARKERS)
PATTERNS = ("", "/", "x", ".", "-")
"""Bar fills, so that bars too are told apart without colour."""
GREY = "#767676"
GRID = "rgba(128,128,128,0.28)"
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"

_AXIS = {
    "gridcolor": GRID, "zerolinecolor": GRID, "linecolor": GREY, "showline": True, "ticks": "outside",
    "tickcolor": GREY, "automargin": True, "title": {"standoff": 8},
}
PATTERN = {"fgcolor": "rgba(255,255,255,0.8)", "size": 7, "fillmode": "overlay"}
"""White lines over the bar's own colour; without `overlay` the bar itself would be transparent."""
TEMPLATE = go.layout.Template(
    data={"bar": [{"marker": {"pattern": PATTERN}}]},
    layout={
        "colorway": COLORS,
        "font": {"family": FONT, "size": 13, "color": GREY},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "title": {"x": 0, "xanchor": "left", "xref": "paper", "font": {"size": 15}},
        "margin": {"l": 56, "r": 16, "t": 48, "b": 48},
        "legend": {"orientation": "h", "x": 0, "xanchor": "left", "y": 1.02, "yanchor": "bottom"},
        "hoverlabel": {"font": {"family": FONT}},
        "bargap": 0.25,
        "xaxis": _AXIS,
        "yaxis": _AXIS,
    }
)


def figure(
    title: str,
    *,
    x: str,
    y: str,
    caption: str = "",
    alt: str = "",
    log_x: bool = False,
    log_y: bool = False,
    height: int = 380,
) -> go.Figure:
    """An empty figure with the template, axis labels and texts.

    Args:
        title: the finding, in one sentence.
        x: label of the horizontal axis, quantity and unit.
        y: label of the vertical axis, quantity and unit.
        caption: hardware, record id and date; printed under the figure in the book.
        alt: what a reader who cannot see the figure should know; the title when left out.
        log_x: logarithmic horizontal axis.
        log_y: logarithmic vertical axis.
        height: pixels.

    Raises: ValueError when the title or an axis label is empty.
    """
    for name, text in (("title", title), ("x", x), ("y", y)):
        if not text.strip():
            raise ValueError(f"{name}={text!r}: expected a text, every figure has a title and labelled axes")
    fig = go.Figure()
    fig.update_layout(
        template=TEMPLATE,
        title_text=title,
        height=height,
        xaxis={"title": {"text": x}, "type": "log" if log_x else None},
        # 1, 2, 5: on a short axis plotly would write every digit, one on the other.
        yaxis={"title": {"text": y}, "type": "log" if log_y else None, "dtick": "D2" if log_y else None},
        meta={"alt": alt or title, "caption": caption},
    )
    return fig


def measured(
    x: Sequence[Any],
    y: Sequence[float],
    *,
    name: str,
    low: Sequence[float] | None = None,
    high: Sequence[float] | None = None,
    num_samples: Sequence[int] | None = None,
    index: int = 0,
) -> go.Scatter:
    """A measured series: solid line, filled markers, bars from `low` to `high` (p10 and p90, same unit as y).

    Args:
        x: positions, [n].
        y: medians, [n].
        name: legend text, usually the hardware tag.
        low: p10 of each point, [n]; give both `low` and `high` or neither.
        high: p90 of each point, [n].
        num_samples: samples behind each point, [n]; shown on hover.
        index: which colour and marker of the five.

    Raises: ValueError when the lengths differ or only one of low and high is given.
    """
    if (low is None) != (high is None):
        raise ValueError("low, high: expected both or neither")
    for label, values in (("y", y), ("low", low), ("high", high), ("num_samples", num_samples)):
        if values is not None and len(values) != len(x):
            raise ValueError(f"{label}: {len(values)} values, expected {len(x)} as in x")
    errors = None
    if low is not None and high is not None:
        errors = {"type": "data", "symmetric": False, "thickness": 1.4, "width": 5,
                  "array": [h - v for h, v in zip(high, y)], "arrayminus": [v - w for w, v in zip(low, y)]}
    color = COLORS[index % len(COLORS)]
    hover = "%{y:.4g}" if num_samples is None else "%{y:.4g} (n = %{customdata})"
    return go.Scatter(
        x=list(x), y=list(y), name=name, mode="lines+markers", error_y=errors, customdata=num_samples,
        line={"color": color, "width": 2},
        marker={"color": color, "symbol": MARKERS[index % len(MARKERS)], "size": 9},
        hovertemplate=f"%{{x}}: {hover}",
    )


def predicted(x: Sequence[Any], y: Sequence[float], *, name: str = "predicted", index: int = 0) -> go.Scatter:
    """A predicted series in the colour of the measured series it belongs to: dashed line, no markers."""
    return go.Scatter(
        x=list(x), y=list(y), name=name, mode="lines",
        line={"color": COLORS[index % len(COLORS)], "width": 2, "dash": "dash"},
        hovertemplate="%{x}: %{y:.4g}",
    )


def quoted(x: Sequence[Any], y: Sequence[float], *, name: str, index: int = 1) -> go.Scatter:
    """Figures printed by somebody else: open markers on a dotted line, never drawn like a measurement of ours."""
    color = COLORS[index % len(COLORS)]
    return go.Scatter(
        x=list(x), y=list(y), name=name, mode="lines+markers",
        line={"color": color, "width": 1.5, "dash": "dot"},
        marker={"color": color, "symbol": OPEN_MARKERS[index % len(OPEN_MARKERS)], "size": 10, "line": {"width": 2}},
        hovertemplate="%{x}: %{y:.4g}",
    )


def bars(x: Sequence[Any], y: Sequence[float], *, name: str, index: int = 0) -> go.Bar:
    """Bars from zero with a fill pattern of their own; `index` picks colour and pattern."""
    pattern = {**PATTERN, "shape": PATTERNS[index % len(PATTERNS)]}
    return go.Bar(
        x=list(x), y=list(y), name=name, marker={"color": COLORS[index % len(COLORS)], "pattern": pattern},
        hovertemplate="%{x}: %{y:.4g}",
    )


def ceiling(fig: go.Figure, y: float, *, label: str, position: str = "top left") -> go.Figure:
    """Draw a limit across `fig` at height `y` (unit of the y axis); `label` names it and its source.

    Args:
        fig: the figure; its y axis is linear or logarithmic already.
        y: where; above 0 on a logarithmic axis.
        label: what the limit is, and where it comes from.
        position: where along and beside the line the label stands, clear of the points: "top left", "bottom right", ...

    Returns: `fig`.
    """
    fig.add_hline(
        y=y, line={"color": GREY, "width": 1.2}, annotation={"text": label, "font": {"size": 11, "color": GREY}},
        annotation_position=position,
    )
    layout: Any = fig.layout
    if layout.yaxis.type == "log":  # plotly places a label of a logarithmic axis by the exponent
        layout.annotations[-1].y = math.log10(y)
    return fig


def size_axis(fig: go.Figure, sizes_bytes: Sequence[float], *, title: str = "size") -> go.Figure:
    """Log2 axis for byte sizes with a tick at each size, in KiB, MiB or GiB. Returns `fig`.

    Raises: ValueError when a size is not positive.
    """
    ticks = sorted(set(sizes_bytes))
    if not ticks or ticks[0] <= 0:
        raise ValueError(f"sizes_bytes={list(sizes_bytes)!r}: expected positive byte counts")
    text = [format_bytes(tick).replace(".00 ", " ") for tick in ticks]
    fig.update_xaxes(type="log", dtick=None, tickvals=ticks, ticktext=text, title_text=title)
    return fig

"""Boxes and arrows as a plotly figure: pictures of data flow in the look of the charts.

Text is grey, which the book's script turns into the page's text colour; fills are thin tints, so that both a light and
a dark page shine through. Coordinates are free units, x to the right and y upwards; keep a picture narrower than about
12 units with short words, then it is readable on a phone.

    fig = canvas("Two boxes", width=6, height=2, alt="...")
    box(fig, 0, 0, 2, 1, "prefill", index=0)
    arrow(fig, 2, 0.5, 4, 0.5, "KV")
"""

from __future__ import annotations

import plotly.graph_objects as go

from labkit.plots.style import COLORS, GREY, TEMPLATE


def canvas(
    title: str, *, width: float, height: float, alt: str, caption: str = "", pixels_per_unit: float = 48
) -> go.Figure:
    """An empty drawing without axes.

    Args:
        title: the finding, in one sentence.
        width: largest x, units, > 0.
        height: largest y, units, > 0.
        alt: what a reader who cannot see the drawing should know.
        caption: text under it.
        pixels_per_unit: height of one unit on the page, pixels, > 0.

    Raises: ValueError when a size is not positive or a text is missing.
    """
    for name, value in (("width", width), ("height", height), ("pixels_per_unit", pixels_per_unit)):
        if value <= 0:
            raise ValueError(f"{name}={value!r}: expected more than 0")
    for name, text in (("title", title), ("alt", alt)):
        if not text.strip():
            raise ValueError(f"{name}={text!r}: expected a text")
    fig = go.Figure()
    hidden = {"visible": False, "fixedrange": True}
    fig.update_layout(
        template=TEMPLATE, title_text=title, height=round(height * pixels_per_unit) + 40, showlegend=False,
        xaxis={**hidden, "range": [-0.15, width + 0.15]}, yaxis={**hidden, "range": [-0.15, height + 0.15]},
        margin={"l": 4, "r": 4, "t": 28, "b": 8}, meta={"alt": alt, "caption": caption},
    )  # fmt: skip
    return fig


def box(
    fig: go.Figure, x: float, y: float, width: float, height: float, text: str = "", *, index: int | None = None,
    dashed: bool = False, size: int = 12,
) -> None:
    """A box with its lower left corner at (x, y).

    Args:
        fig: from `canvas`.
        x: left edge, units.
        y: lower edge, units.
        width: units.
        height: units.
        text: inside, `<br>` breaks a line.
        index: colour of the five; None: grey.
        dashed: border of something that is not there yet, or no longer.
        size: of the text, pixels.
    """
    color = GREY if index is None else COLORS[index % len(COLORS)]
    fig.add_shape(
        type="rect", x0=x, y0=y, x1=x + width, y1=y + height, layer="below",
        line={"color": color, "width": 1.6, "dash": "dash" if dashed else "solid"},
        fillcolor=_tint(color, 0.04 if dashed else 0.16),
    )  # fmt: skip
    if text:
        label(fig, x + width / 2, y + height / 2, text, size=size)


def label(fig: go.Figure, x: float, y: float, text: str, *, size: int = 12, anchor: str = "center") -> None:
    """Text at (x, y); `anchor` is left, center or right."""
    fig.add_annotation(
        x=x, y=y, text=text, showarrow=False, xanchor=anchor, align=anchor, font={"size": size, "color": GREY}
    )


def arrow(
    fig: go.Figure, x0: float, y0: float, x1: float, y1: float, text: str = "", *, index: int | None = None,
    shift: float = 0.22, size: int = 11,
) -> None:
    """An arrow from (x0, y0) to (x1, y1).

    Args:
        fig: from `canvas`.
        x0: start, units.
        y0: start, units.
        x1: tip, units.
        y1: tip, units.
        text: beside its middle.
        index: colour of the five; None: grey.
        shift: how far above its middle the text stands, units; below when negative.
        size: of the text, pixels.
    """
    color = GREY if index is None else COLORS[index % len(COLORS)]
    fig.add_annotation(
        x=x1, y=y1, ax=x0, ay=y0, xref="x", yref="y", axref="x", ayref="y", text="", showarrow=True,
        arrowhead=2, arrowsize=1.1, arrowwidth=1.8, arrowcolor=color,
    )  # fmt: skip
    if text:
        label(fig, (x0 + x1) / 2, (y0 + y1) / 2 + shift, text, size=size)


def _tint(color: str, strength: float) -> str:
    red, green, blue = (int(color[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},{strength})"

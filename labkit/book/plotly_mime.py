"""Draws plotly outputs in the page: the figure's JSON, its title, caption and alternative text as HTML around it.

`book/assets/plotly-lazy.js` draws it when it comes near the screen. Title, caption and alternative text come from the
figure itself (`labkit.plots.style.figure`); a figure without alternative text is a warning, so it fails the build.
"""

from __future__ import annotations

import json
from html import escape
from typing import Any

from docutils import nodes
from sphinx.util import logging

logger = logging.getLogger(__name__)
PLOTLY = "application/vnd.plotly.v1+json"
MARK = "lk-plotly"
"""Class of the element that the script draws into; pages that hold it get the script."""


class PlotlyMime:
    """MyST-NB mime renderer, found through the entry point `myst_nb.mime_renderers`."""

    mime_priority_overrides = (("*", PLOTLY, 5),)

    @staticmethod
    def handle_mime(renderer: Any, data: Any, inline: bool) -> list[nodes.Node] | None:
        """Nodes of one plotly output; None (MyST-NB goes on) for anything else."""
        if inline or data.mime_type != PLOTLY:
            return None
        fig = data.content if isinstance(data.content, dict) else json.loads(data.content)
        if not figure_texts(fig)["alt"]:
            logger.warning("a plotly figure has no title and no alternative text", type="labkit", subtype="figure")
        return [nodes.raw(text=figure_html(fig), format="html", classes=["output"])]


def figure_texts(fig: dict[str, Any]) -> dict[str, str]:
    """Title, alternative text and caption of a figure's JSON; "" where it has none."""
    layout = fig.get("layout") or {}
    title = layout.get("title") or {}
    title = title if isinstance(title, str) else title.get("text") or ""
    meta = layout.get("meta")
    meta = meta if isinstance(meta, dict) else {}
    return {"title": title, "alt": meta.get("alt") or title, "caption": meta.get("caption") or ""}


def figure_html(fig: dict[str, Any]) -> str:
    """HTML of a figure: its texts, and a data block for the script."""
    texts = figure_texts(fig)
    layout = {key: value for key, value in (fig.get("layout") or {}).items() if key != "title"}
    data = json.dumps({"data": fig.get("data", []), "layout": layout}, separators=(",", ":"), ensure_ascii=False)
    data = data.replace("<", "\\u003c")  # "<" stands in strings only; so no text can close the script
    title = f'<p class="lk-plot-title">{escape(texts["title"])}</p>' if texts["title"] else ""
    caption = f"<figcaption>{escape(texts['caption'])}</figcaption>" if texts["caption"] else ""
    return (
        f'<figure class="lk-plot">{title}'
        f'<div class="{MARK}" role="img" aria-label="{escape(texts["alt"])}" style="min-height:{_height(layout)}px">'
        f'<script type="application/json">{data}</script>'
        f"<noscript>Drawing this figure needs JavaScript; its numbers are in the table on this page.</noscript>"
        f"</div>{caption}</figure>"
    )


def _height(layout: dict[str, Any]) -> int:
    height = layout.get("height")
    return int(height) if isinstance(height, int | float) and height > 0 else 400

"""Nothing from outside: no style sheet or script comes from another host; scripts load only on pages that use them."""

from __future__ import annotations

from typing import Any

from docutils import nodes

from labkit.book.plotly_mime import MARK

TABLE_CLASSES = {"lk-sortable", "lk-cards"}


def add_scripts(app: Any, pagename: str, templatename: str, context: dict[str, Any], doctree: Any) -> None:
    """The figure script on pages with figures, the table script on pages with tables that it changes."""
    if doctree is None:
        return
    if any(f'class="{MARK}"' in node.astext() for node in doctree.findall(nodes.raw)):
        app.add_js_file("plotly-lazy.js", loading_method="defer")
    frames = any('class="dataframe"' in node.astext() for node in doctree.findall(nodes.raw))
    if frames or any(TABLE_CLASSES & set(node["classes"]) for node in doctree.findall(nodes.table)):
        app.add_js_file("tables.js", loading_method="defer")


def drop_outside_assets(app: Any, pagename: str, templatename: str, context: dict[str, Any], doctree: Any) -> None:
    """Take out what other extensions load from a content network, and thebe, which cannot work without one."""

    def keep(asset: Any) -> bool:
        name = str(getattr(asset, "filename", asset) or "")
        body = (getattr(asset, "attributes", None) or {}).get("body") or ""
        return not name.startswith(("http:", "https:", "//")) and "thebe" not in name and "THEBE" not in body

    for kind in ("css_files", "script_files"):
        context[kind] = [asset for asset in context.get(kind, []) if keep(asset)]


def setup(app: Any) -> None:
    """Connect both; the second runs after every other extension."""
    app.connect("html-page-context", add_scripts)
    app.connect("html-page-context", drop_outside_assets, priority=900)

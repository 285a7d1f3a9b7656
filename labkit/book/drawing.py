"""The directive {drawing}: a figure that a function of labkit.plots computes while the page is built.

    ```{drawing} questions_roofline:mstar_curve
    :alt: what a reader who cannot see it should know
    :caption: printed under it
    ```

The function takes no arguments and returns a plotly figure made with `labkit.plots.style`. Its numbers come from
`labkit.calc`, so the picture is as current as the roles beside it.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import json
import pkgutil
import re
from collections.abc import Callable
from typing import Any, ClassVar

from docutils import nodes
from docutils.parsers.rst import directives as options
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

from labkit.book.plotly_mime import figure_html, figure_texts
from labkit.book.values import LookupProblem

logger = logging.getLogger(__name__)
_NAME = re.compile(r"(?P<topic>[a-z]\w*):(?P<function>[a-z]\w*)")


def drawing_function(name: str) -> Callable[[], Any]:
    """The function that `topic:function` names.

    Raises: LookupProblem, one line, when there is no such module of labkit.plots, no such public function in it, or
        the function needs arguments.
    """
    match = _NAME.fullmatch(name)
    if match is None:
        raise LookupProblem(f"{name!r}: expected topic:function, for example questions_roofline:mstar_curve")
    import labkit.plots as package

    topic, wanted = match["topic"], match["function"]
    topics = sorted(info.name for info in pkgutil.iter_modules(package.__path__) if not info.name.startswith("_"))
    if topic not in topics:
        raise LookupProblem(_unknown("module of labkit.plots", topic, topics))
    module = importlib.import_module(f"{package.__name__}.{topic}")
    own = {
        key: value
        for key, value in vars(module).items()
        if inspect.isfunction(value) and not key.startswith("_") and value.__module__ == module.__name__
    }
    if wanted not in own:
        raise LookupProblem(_unknown(f"function of labkit.plots.{topic}", wanted, sorted(own)))
    needed = [p.name for p in inspect.signature(own[wanted]).parameters.values() if p.default is p.empty]
    if needed:
        raise LookupProblem(f"{name} needs arguments ({', '.join(needed)}); a drawing's function takes none")
    return own[wanted]


def drawing_html(name: str, *, alt: str = "", caption: str = "") -> str:
    """HTML of the drawing, for `plotly-lazy.js`.

    Args:
        name: `topic:function`, as `drawing_function`.
        alt: alternative text; the figure's own when empty.
        caption: text under the drawing; the figure's own when empty.

    Raises: LookupProblem, one line; also when the function fails or the drawing has no alternative text.
    """
    try:
        fig = json.loads(drawing_function(name)().to_json())
    except LookupProblem:
        raise
    except Exception as error:  # whatever a plot function raises: the page names it, the build goes on to the next
        raise LookupProblem(f"{name} failed: {type(error).__name__}: {error}") from error
    meta = fig.setdefault("layout", {}).get("meta")
    meta = dict(meta) if isinstance(meta, dict) else {}
    fig["layout"]["meta"] = {**meta, **({"alt": alt} if alt else {}), **({"caption": caption} if caption else {})}
    if not figure_texts(fig)["alt"]:
        raise LookupProblem(f"{name} has no title and no alternative text")
    return figure_html(fig)


def _unknown(kind: str, got: str, known: list[str]) -> str:
    close = difflib.get_close_matches(got, known, n=1)
    return f"unknown {kind} {got!r}" + (f"; did you mean {close[0]!r}?" if close else "")


class Drawing(SphinxDirective):
    """`{drawing} topic:function`; a problem is a warning that names it."""

    has_content = False
    required_arguments = 1
    option_spec: ClassVar = {"alt": options.unchanged_required, "caption": options.unchanged}

    def run(self) -> list[nodes.Node]:
        """The drawing, or nothing beside a warning."""
        try:
            texts = {key: self.options.get(key, "") for key in ("alt", "caption")}
            html = drawing_html(self.arguments[0], **texts)
        except LookupProblem as problem:
            logger.warning(
                "{drawing} %s: %s", self.arguments[0], problem, location=self.get_location(),
                type="labkit", subtype="directive",
            )  # fmt: skip
            return []
        return [nodes.raw("", html, format="html")]

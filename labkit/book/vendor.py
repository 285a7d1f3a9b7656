"""Copies MathJax and plotly.js from installed packages into the built site; neither is committed.

plotly.js comes with the plotly package, so the script always fits the figures. MathJax comes with a package that only
carries its files (django-static-mathjax); `tex-svg.js` is one self-contained file that asks for nothing else.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from sphinx.errors import ExtensionError


def vendored_files() -> dict[str, Path]:
    """Name in `_static/vendor` -> file in the environment.

    Raises: ExtensionError naming the package that is missing.
    """
    return {
        "tex-svg.js": _package_file("mathjax", "static/mathjax/es5/tex-svg.js", package="django-static-mathjax"),
        "plotly.min.js": _package_file("plotly", "package_data/plotly.min.js", package="plotly"),
    }


def _package_file(module: str, inner: str, *, package: str) -> Path:
    spec = importlib.util.find_spec(module)
    for folder in (spec.submodule_search_locations or []) if spec else []:
        if (Path(folder) / inner).is_file():
            return Path(folder) / inner
    raise ExtensionError(f"labkit.book: {inner} not found; install {package}")


def copy_vendored(app: Any) -> None:
    """Put the files into the output before pages are written; unchanged files are left alone."""
    if app.builder.format != "html":
        return
    target = Path(app.outdir) / "_static" / "vendor"
    target.mkdir(parents=True, exist_ok=True)
    for name, source in vendored_files().items():
        copy = target / name
        if not copy.is_file() or copy.stat().st_size != source.stat().st_size:
            copy.write_bytes(source.read_bytes())


def setup(app: Any) -> None:
    """Connect the copy."""
    app.connect("builder-inited", copy_vendored)

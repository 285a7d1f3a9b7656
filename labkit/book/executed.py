"""Hands MyST-NB the executed copy of a notebook in place of the output-free source.

The copy lies at `<labkit_executed_dir>/<docname>.ipynb`, written by the batch runner. A copy that is missing, failed or
was made from another version of the notebook is a warning, so `-W` fails the build: a page never shows old results.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sphinx.util import logging

logger = logging.getLogger(__name__)
INJECTED = "injected-parameters"
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
WIDGET_NOTE = "A control that needs a running kernel: open this notebook in JupyterLab to use it."


def use_executed_copy(app: Any, docname: str, source: list[str]) -> None:
    """Sphinx `source-read` hook."""
    path = Path(app.env.doc2path(docname))
    if path.suffix != ".ipynb" or not app.config.labkit_executed_dir:
        return
    copy = Path(app.srcdir, app.config.labkit_executed_dir, f"{docname}.ipynb")
    app.env.note_dependency(str(copy))
    if not copy.is_file():
        _warn(docname, f"no executed copy {app.config.labkit_executed_dir}/{docname}.ipynb; run `labkit batch` first")
        return
    try:
        executed = json.loads(copy.read_text(encoding="utf-8"))
        problem = copy_problem(json.loads(source[0]), executed)
    except (ValueError, KeyError, TypeError) as error:
        problem, executed = f"not a notebook ({type(error).__name__}: {error})", None
    if problem:
        _warn(docname, f"executed copy: {problem}")
    if executed is not None:
        source[0] = json.dumps(for_page(executed))


def copy_problem(source: dict[str, Any], executed: dict[str, Any]) -> str | None:
    """Why an executed copy may not stand for its source notebook, in one line; None if it may."""
    ours = [_text(cell) for cell in source["cells"]]
    theirs = [_text(cell) for cell in executed["cells"] if INJECTED not in _tags(cell) and not _is_papermill_note(cell)]
    if ours != theirs:
        return "made from another version of this notebook; run `labkit batch` again"
    for number, cell in enumerate(executed["cells"], start=1):
        for output in cell.get("outputs", []):
            if output["output_type"] == "error":
                return f"cell {number} failed with {output.get('ename')}: {str(output.get('evalue')).splitlines()[:1]}"
        if cell["cell_type"] == "code" and _text(cell).strip() and cell.get("execution_count") is None:
            return f"cell {number} was never run"
    return None


def for_page(notebook: dict[str, Any]) -> dict[str, Any]:
    """The notebook as the page shows it: no runner's metadata, injected parameters folded, widgets said in words."""
    cells = [cell for cell in notebook["cells"] if not _is_papermill_note(cell)]
    for cell in cells:
        metadata = cell.setdefault("metadata", {})
        if INJECTED in _tags(cell):
            metadata["tags"] = [*_tags(cell), "hide-input"]
        for name in ("papermill", "execution"):
            metadata.pop(name, None)
        for output in cell.get("outputs", []):
            if WIDGET_VIEW in output.get("data", {}):
                output["data"] = {"text/markdown": f"*{WIDGET_NOTE}*"}
    metadata = {key: value for key, value in notebook["metadata"].items() if key not in ("papermill", "widgets")}
    return {**notebook, "cells": cells, "metadata": metadata}


def _text(cell: dict[str, Any]) -> str:
    return "".join(cell["source"])


def _tags(cell: dict[str, Any]) -> list[str]:
    return cell.get("metadata", {}).get("tags", [])


def _is_papermill_note(cell: dict[str, Any]) -> bool:
    return any(tag.startswith("papermill-error") for tag in _tags(cell))


def _warn(docname: str, message: str) -> None:
    logger.warning(message, location=docname, type="labkit", subtype="executed")


def setup(app: Any) -> None:
    """Connect the hook."""
    app.connect("source-read", use_executed_copy)

"""Generated content about runs and builds: the list of records, and the status page."""

from __future__ import annotations

import importlib.metadata
import json
from pathlib import Path
from typing import Any

from docutils import nodes

from labkit.book import sources
from labkit.book.lookup import run_anchor
from labkit.book.tables import Row, code, make_table, paragraph, pill
from labkit.book.values import show_value
from labkit.units import format_bytes, format_seconds

PACKAGES = (
    "labkit", "torch", "triton", "numpy", "pandas", "plotly", "papermill", "ipykernel", "jupyter-book", "sphinx",
    "myst-nb", "sphinx-book-theme", "django-static-mathjax",
)


def run_list(*, local: bool) -> list[nodes.Node]:
    """A table of complete records, newest first: the committed ones, or those made on this machine."""
    entries = [entry for entry in reversed(sources.all_entries()) if entry.is_local == local]
    if not entries:
        return [paragraph("None yet." if local else "None are committed yet.")]
    rows = []
    for entry in entries:
        record = entry.record
        passed = sum(oracle.passed for oracle in record.oracles)
        commit = str(record.environment.get("git", {}).get("commit") or "unknown")[:8]
        rows.append(Row(
            [
                [nodes.paragraph("", "", code(record.experiment)), nodes.paragraph("", "", code(record.run_id))],
                record.hardware_tag, record.preset, record.created_utc[:16].replace("T", " "),
                [pill(record.status, "good" if record.status == "ok" else "bad")], f"{passed} of {len(record.oracles)}",
                code(commit),
            ],
            anchor=run_anchor(record.experiment, record.run_id),
        ))
    headers = ["experiment, run", "hardware", "preset", "started (UTC)", "status", "oracles passed", "commit"]
    return [make_table(headers, rows, sortable=True, cards=True)]


def notebook_times(app: Any) -> list[nodes.Node]:
    """When and how long each notebook of the book ran, from the files beside its executed copy."""
    rows = []
    for docname in sorted(name for name in app.env.found_docs if name.startswith("notebooks/")):
        stamp = _read_json(Path(app.srcdir, app.config.labkit_executed_dir, f"{docname}.json"))
        wall_s, status = stamp.get("wall_s"), stamp.get("status", "unknown")
        rows.append(Row([
            code(docname.removeprefix("notebooks/")), stamp.get("preset") or "unknown",
            format_seconds(wall_s) if isinstance(wall_s, int | float) else "unknown",
            str(stamp.get("finished_utc") or "unknown")[:16].replace("T", " "),
            pill(status, "good" if status == "ok" else "bad"), code(stamp.get("run_id") or "none"),
        ]))
    if not rows:
        return [paragraph("This book holds no notebook.")]
    return [make_table(["notebook", "preset", "took", "finished (UTC)", "status", "run"], rows)]


def build_machine() -> list[nodes.Node]:
    """What kind of machine built the book, and the versions it used."""
    from labkit.machine import detect

    machine = detect()
    memory = machine.cpu.memory_bytes
    facts = [
        ("class", machine.tag),
        ("cores used", show_value(machine.cpu.num_cores_usable)),
        ("memory", format_bytes(memory) if memory else "unknown"),
        ("GPUs", ", ".join(gpu.name for gpu in machine.gpus) or "none"),
        ("system", machine.system or "unknown"),
        ("Python", machine.python_version or "unknown"),
    ]
    facts += [(name, _version(name)) for name in PACKAGES]
    return [make_table(["what", "value"], [Row([name, value]) for name, value in facts])]


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}

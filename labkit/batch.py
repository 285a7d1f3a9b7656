"""Run the labs' notebooks with papermill and build the book from the executed copies.

`notebooks/NN_slug.ipynb` (source, no outputs) -> `build/executed/notebooks/NN_slug.ipynb`, beside a small JSON with the
preset, the time it took and a hash of what it was made from. The book reads the executed copies; see labkit.book.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from labkit.paths import BUILD, EXECUTED, NOTEBOOKS, ROOT, runs_root
from labkit.presets import UsageError, available_presets, build_params, choose_preset, unknown_name
from labkit.records import RecordError, RunRecord, load_record, utc_now, write_json

CELL_TIMEOUT_S = 1800
HTML = BUILD / "_build" / "html"


def notebook_of(slug: str) -> Path:
    """The source notebook `notebooks/NN_<slug>.ipynb` of a lab; raises UsageError if there is none."""
    found = sorted(NOTEBOOKS.glob(f"[0-9][0-9]_{slug}.ipynb"))
    if not found:
        raise UsageError(f"{slug} has no notebook notebooks/NN_{slug}.ipynb")
    return found[0]


def executed_copy(notebook: Path) -> Path:
    """Where the executed copy of a source notebook goes."""
    return EXECUTED / "notebooks" / notebook.name


def run_all(
    slugs: Sequence[str], *, preset: str, missing: bool, quiet: bool, log: Callable[[str], None]
) -> list[dict[str, Any]]:
    """Run the notebooks of `slugs` in page order; one failing lab does not stop the next.

    A lab that lacks what it needs here (its `missing` says so) is not run: its notebook replays the newest committed
    record, so that the page is whole, and the reason is told.

    Returns: one dict a lab: slug, preset, status (`ok`, `failed`, `kept`, `not run here`), wall_s, run_id, oracles,
        claims, reason.
    Raises: UsageError for an unknown preset or a notebook without the parameters that a batch sets.
    """
    notebooks = sorted((notebook_of(slug) for slug in slugs), key=lambda path: path.name)
    plan = [(path.name[3:-6], path) for path in notebooks]
    chosen = {slug: _resolve(slug, preset) for slug, _ in plan}
    results = []
    for number, (slug, notebook) in enumerate(plan, start=1):
        log(f"[{number}/{len(plan)}] {slug}, preset {chosen[slug]}")
        if missing and _is_current(notebook, chosen[slug]):
            results.append({**_read_stamp(notebook), "status": "kept"})
        else:
            why = _missing(slug, chosen[slug])
            results.append(_run_one(slug, notebook, preset=chosen[slug], missing=why, quiet=quiet, log=log))
        results[-1] |= _ledger_counts(slug)
        log(f"[{number}/{len(plan)}] {slug} {results[-1]['status']} after {results[-1]['wall_s']:.0f} s")
    return results


def _resolve(slug: str, preset: str) -> str:
    from labkit import machine

    if preset == "auto":
        return choose_preset(slug, num_gpus=machine.detect().num_gpus)
    if preset not in available_presets(slug):
        raise unknown_name(f"preset of {slug}", preset, [*available_presets(slug), "auto"])
    return preset


def _missing(slug: str, preset: str) -> str | None:
    """What a lab lacks on this machine at this preset, in its own words; None when it can run."""
    module = importlib.import_module(f"labkit.experiments.{slug}")
    params = build_params(module.Params, slug, preset, {})
    return module.missing(params.device) if hasattr(module, "missing") else None


def _run_one(
    slug: str, notebook: Path, *, preset: str, missing: str | None, quiet: bool, log: Callable[[str], None]
) -> dict[str, Any]:
    import papermill
    from papermill.exceptions import PapermillExecutionError

    # A replay takes the preset of the record it finds.
    parameters = {"mode": "replay", "preset": "auto"} if missing else {"mode": "live", "preset": preset}
    unknown = parameters.keys() - papermill.inspect_notebook(str(notebook)).keys()
    if unknown:
        raise UsageError(f"{notebook.name}: its parameters cell lacks {', '.join(sorted(unknown))}")
    before = set(runs_root().glob(f"{slug}/*"))
    target = executed_copy(notebook)
    target.parent.mkdir(parents=True, exist_ok=True)
    started, status, reason = time.perf_counter(), "ok", None
    # The mime type alone: the page draws it with the book's own plotly.js, and the file stays small.
    os.environ["PLOTLY_RENDERER"] = "plotly_mimetype"
    stream = None if quiet else _LineLog(log, prefix=f"  {slug}: ")
    try:
        papermill.execute_notebook(
            str(notebook), str(target), parameters=parameters, kernel_name="python3", cwd=str(NOTEBOOKS),
            progress_bar=False, log_output=False, stdout_file=stream, stderr_file=stream,
            execution_timeout=CELL_TIMEOUT_S,
        )
    except PapermillExecutionError as error:
        status, reason = "failed", f"cell {error.exec_count}: {error.ename}: {str(error.evalue).splitlines()[0]}"
    except Exception as error:  # a dead kernel or a timeout: nbclient's own errors
        status, reason = "failed", f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
    if missing:
        reason = f"not run here: {missing}" + (f"; and no record to show ({reason})" if reason else "")
        status = "not run here"
    if reason:
        log(f"  {slug}: {reason}")
    made = sorted(set(runs_root().glob(f"{slug}/*")) - before, key=lambda path: path.name)
    record = _record_or_none(made[-1]) if made else None
    result = {
        "slug": slug, "preset": preset, "status": status, "reason": reason,
        "wall_s": round(time.perf_counter() - started, 2), "finished_utc": utc_now(),
        "run_id": record.run_id if record else None,
        "oracles": f"{sum(o.passed for o in record.oracles)}/{len(record.oracles)}" if record else None,
    }
    made_from = _inputs_sha256(notebook) if status == "ok" else None
    write_json(target.with_suffix(".json"), {**result, "inputs_sha256": made_from})
    return result


class _LineLog:
    """A stream for papermill that passes each complete line on, so progress shows as it happens."""

    def __init__(self, log: Callable[[str], None], *, prefix: str) -> None:
        self.log, self.prefix, self.rest = log, prefix, ""

    def write(self, text: str) -> None:
        *lines, self.rest = (self.rest + text).split("\n")
        for line in lines:
            if line.strip():
                self.log(self.prefix + line.rstrip()[:160])

    def flush(self) -> None:
        """Nothing is buffered but an unfinished line."""


def _record_or_none(run_dir: Path) -> RunRecord | None:
    try:
        return load_record(run_dir)
    except RecordError:
        return None


def _inputs_sha256(notebook: Path) -> str:
    """Hash of a notebook, the library and the committed data: what an executed copy was made from."""
    files = [notebook, *ROOT.glob("labkit/**/*.py"), *ROOT.glob("labkit/**/*.yaml"), *ROOT.glob("data/**/*")]
    digest = hashlib.sha256()
    for path in sorted(path for path in files if path.is_file()):
        digest.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def _read_stamp(notebook: Path) -> dict[str, Any]:
    try:
        return json.loads(executed_copy(notebook).with_suffix(".json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


def _is_current(notebook: Path, preset: str) -> bool:
    stamp = _read_stamp(notebook)
    if stamp.get("status") != "ok" or stamp.get("preset") != preset or not executed_copy(notebook).is_file():
        return False
    return stamp.get("inputs_sha256") == _inputs_sha256(notebook)


def _ledger_counts(slug: str) -> dict[str, str]:
    """How many of a lab's checked claims hold: `verified 21, differs 0, not run 14`."""
    from labkit import claims

    rows = claims.verify(lab=slug)
    count = lambda *names: sum(row.status in names for row in rows)  # noqa: E731
    text = f"{count('verified')} verified, {count('reproduced_elsewhere')} elsewhere, {count('differs')} differ"
    return {"claims": f"{text}, {count('not_run')} not run"}


def text(results: Sequence[dict[str, Any]]) -> str:
    """The one-screen result table."""
    columns = ("slug", "preset", "status", "wall_s", "oracles", "claims", "run_id")
    rows = [["-" if result.get(c) is None else str(result[c]) for c in columns] for result in results]
    cells = [list(columns), *rows]
    widths = [max(len(line[i]) for line in cells) for i in range(len(columns))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in cells]
    lines += [f"{result['slug']}: {result['reason']}" for result in results if result.get("reason")]
    return "\n".join(lines)


def build_book(*, log: Callable[[str], None]) -> Path:
    """Build the book with warnings as errors; returns the page to open.

    Raises: RecordError (exit 1) with the first warnings when the build fails.
    """
    log("building the book")
    BUILD.mkdir(exist_ok=True)
    started = time.perf_counter()
    # jupyter_book has no __main__, and its script may not be on the path.
    argv = [sys.executable, "-c", "from jupyter_book.cli.main import main; main()", "build", str(ROOT), "--path-output",
            str(BUILD), "--all", "-W", "-n", "--keep-going"]
    with open(BUILD / "book.log", "w", encoding="utf-8") as stream:
        failed = subprocess.run(argv, cwd=ROOT, stdout=stream, stderr=subprocess.STDOUT).returncode != 0
    if failed:
        lines = (BUILD / "book.log").read_text(encoding="utf-8").splitlines()
        warnings = [line for line in lines if "WARNING" in line or "ERROR" in line or "Error" in line] or lines[-5:]
        raise RecordError("the book did not build (build/book.log):\n  " + "\n  ".join(warnings[:12]))
    log(f"book built in {time.perf_counter() - started:.0f} s")
    return HTML / "index.html"

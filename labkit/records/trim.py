"""A small copy of a run to commit: the record and its small artifacts, with proof of what was left out."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from labkit.paths import RECORDS
from labkit.records.files import write_atomic
from labkit.records.redact import private_line
from labkit.records.rules import RECORD_NAME
from labkit.records.schema import RecordError
from labkit.records.store import artifact_problems, load_record

MAX_KEPT_BYTES = 200_000


def trim_record(
    run_dir: Path, dest_root: Path = RECORDS, *, keep: Sequence[str] | None = None, max_bytes: int = MAX_KEPT_BYTES
) -> Path:
    """Copy a published run to `dest_root/<experiment>/<run_id>/`; it appears there whole or not at all.

    An artifact that is not copied stays in the record with its size, its SHA-256 and `"kept": false`.

    Args:
        run_dir: a complete, unchanged run.
        dest_root: folder of committed records.
        keep: artifacts to copy; if not given, all that are small and hold no path or host name of this machine.
        max_bytes: largest artifact that may be copied.

    Returns: the new run directory.

    Raises: RecordError if the run is incomplete or changed, the copy exists, or a file named in `keep` is unknown, too
        large, or holds a path or the host name of this machine; the message gives the line.
    """
    record = load_record(run_dir)
    if problems := artifact_problems(record, run_dir):
        raise RecordError(f"{run_dir}: {problems[0]}")
    known = {artifact["path"] for artifact in record.artifacts}
    if unknown := sorted(set(keep or ()) - known):
        raise RecordError(f"keep={unknown[0]!r}: expected one of {', '.join(sorted(known)) or 'no artifacts'}")
    artifacts = []
    for artifact in record.artifacts:
        why = _why_not_kept(run_dir, artifact["path"], artifact["bytes"], max_bytes=max_bytes)
        if why and keep is not None and artifact["path"] in keep:
            raise RecordError(f"keep={artifact['path']!r}: {why}")
        wanted = why is None and (keep is None or artifact["path"] in keep)
        artifacts.append({**artifact, "kept": wanted})
    text = replace(record, artifacts=artifacts).to_json()
    if (line := private_line(text, run_dir=run_dir)) is not None:
        raise RecordError(f"{run_dir / RECORD_NAME}: line {line} holds a path or the host name of this machine")
    final = dest_root / record.experiment / record.run_id
    if final.exists():
        raise RecordError(f"{final} exists; a committed record is never changed")
    final.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".trim-", dir=final.parent) as scratch:
        copy = Path(scratch) / record.run_id
        copy.mkdir()
        for artifact in artifacts:
            if artifact["kept"]:
                target = copy / artifact["path"]
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(run_dir / artifact["path"], target)
        write_atomic(copy / RECORD_NAME, text)
        os.rename(copy, final)
    return final


def _why_not_kept(run_dir: Path, name: str, size_bytes: int, *, max_bytes: int) -> str | None:
    if not (run_dir / name).is_file():
        return "it is not in this run directory"
    if size_bytes > max_bytes:
        return f"{size_bytes} bytes, expected at most {max_bytes}"
    text = (run_dir / name).read_bytes().decode("utf-8", "replace")
    if (line := private_line(text, run_dir=run_dir)) is not None:
        return f"line {line} holds a path or the host name of this machine"
    return None

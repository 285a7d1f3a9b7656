"""Run directories: opened, published once, loaded, checked, listed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from labkit.paths import RECORDS, runs_root
from labkit.records.files import sha256_file, sync, write_atomic, write_json
from labkit.records.redact import public_value
from labkit.records.rules import RECORD_NAME, RUN_ID, json_problems, path_problem, record_problems
from labkit.records.schema import RecordError, RunRecord, parse_record


def open_run_dir(experiment: str, run_id: str, *, params: Mapping[str, Any], root: Path | None = None) -> Path:
    """Make a new run directory and write `params.json` into it; an existing run is never overwritten.

    Args:
        experiment: slug.
        run_id: usually from `new_run_id`; letters, digits, '.', '_' and '-'.
        params: plain JSON values.
        root: folder of the experiments; `runs_root()` if not given.

    Raises: RecordError when a name is malformed, a parameter is not plain JSON, the directory exists, or the folder
        cannot be written (then no half-made directory stays behind).
    """
    for name, value in (("experiment", experiment), ("run_id", run_id)):
        if not RUN_ID.fullmatch(value):
            raise RecordError(f"{name}={value!r}: expected letters, digits, '.', '_' and '-' only")
    if problems := json_problems(dict(params), "params"):
        raise RecordError(problems[0])
    run_dir = (root or runs_root()) / experiment / run_id
    try:
        run_dir.parent.mkdir(parents=True, exist_ok=True)
        run_dir.mkdir()
    except FileExistsError:
        # Also when a file stands in the place of one of the folders.
        why = "exists; a run is never overwritten" if run_dir.exists() else "cannot be made: a file is in the way"
        raise RecordError(f"run_id={run_id!r}: {run_dir} {why}") from None
    except OSError as error:
        raise RecordError(f"cannot write the run directory {run_dir}: {error.strerror}") from None
    try:
        write_json(run_dir / "params.json", dict(params))
    except OSError as error:
        run_dir.rmdir()
        raise RecordError(f"cannot write the run directory {run_dir}: {error.strerror}") from None
    return run_dir


def describe_artifacts(run_dir: Path, names: Sequence[str]) -> list[dict[str, Any]]:
    """[{path, bytes, sha256}] of files in a run directory, paths relative to it, sorted.

    Raises: RecordError for a path that leaves the run directory, or a file that is not there.
    """
    entries = []
    for name in sorted(names):
        path = _inside(run_dir, name)
        if not path.is_file():
            raise RecordError(f"{run_dir}: artifact {name}: no such file")
        entries.append({"path": name, "bytes": path.stat().st_size, "sha256": sha256_file(path)})
    return entries


def publish(record: RunRecord, run_dir: Path) -> Path:
    """Write `record.json` last, after every artifact is on the disk; paths of this machine are replaced in it.

    Returns: the path of `record.json`.

    Raises: RecordError, and the run stays incomplete, if it is published already, a rule of the schema is broken, an
        artifact is missing or has changed, or the disk does not take it.
    """
    if (run_dir / RECORD_NAME).exists():
        raise RecordError(f"{run_dir / RECORD_NAME} exists; a published record is never changed")
    record = replace(
        record, argv=public_value(record.argv, run_dir=run_dir),
        failure=public_value(record.failure, run_dir=run_dir), notes=public_value(record.notes, run_dir=run_dir),
        environment=public_value(record.environment, run_dir=run_dir))
    problems = record_problems(asdict(record)) or artifact_problems(record, run_dir)
    if problems:
        raise RecordError(f"{run_dir}: not published: {problems[0]}")
    try:
        for artifact in record.artifacts:
            if artifact.get("kept", True):
                sync(run_dir / artifact["path"])
        write_atomic(run_dir / RECORD_NAME, record.to_json())
    except OSError as error:
        raise RecordError(f"{run_dir}: not published: cannot write {RECORD_NAME}: {error.strerror}") from None
    return run_dir / RECORD_NAME


def artifact_problems(record: RunRecord, run_dir: Path) -> list[str]:
    """One line for each artifact that is missing, has another length or another SHA-256.

    An artifact that the record says is not kept may be absent; if it is there, it must be the recorded one.
    """
    problems = []
    for artifact in record.artifacts:
        name = artifact["path"]
        try:
            path = _inside(run_dir, name)
        except RecordError as error:
            problems.append(str(error))
            continue
        if not path.is_file():
            problems += [f"{name}: missing"] if artifact.get("kept", True) else []
        elif path.stat().st_size != artifact["bytes"]:
            problems.append(f"{name}: {path.stat().st_size} bytes, recorded {artifact['bytes']}")
        elif sha256_file(path) != artifact["sha256"]:
            problems.append(f"{name}: content changed (SHA-256 differs)")
    return problems


def load_record(run_dir: Path) -> RunRecord:
    """Read a published record; raises RecordError if it is absent (incomplete run), changed, or breaks the schema."""
    path = run_dir / RECORD_NAME
    try:
        # Bytes, not text mode: that would turn a changed line ending back into a newline before it is hashed.
        return parse_record(path.read_bytes().decode())
    except (FileNotFoundError, NotADirectoryError):
        raise RecordError(f"{run_dir}: incomplete, it has no {RECORD_NAME}") from None
    except OSError as error:
        raise RecordError(f"{path}: cannot be read: {error.strerror}") from None
    except RecordError as error:
        raise RecordError(f"{path}: {error}") from None
    except UnicodeDecodeError as error:
        raise RecordError(f"{path}: not a record: {error}") from None


def check_run(run_dir: Path) -> list[str]:
    """Everything wrong with a run directory, one line each; an empty list means complete and unchanged."""
    try:
        record = load_record(run_dir)
    except RecordError as error:
        return [str(error).removeprefix(f"{run_dir}: ").removeprefix(f"{run_dir}/")]
    problems = artifact_problems(record, run_dir)
    folder = (run_dir.absolute().parent.name, run_dir.absolute().name)
    if folder != (record.experiment, record.run_id):
        problems.append(f"the record is of {record.experiment}/{record.run_id}, the folder is {'/'.join(folder)}")
    return problems


def run_status(run_dir: Path) -> str:
    """`ok` or `failed` as recorded, `incomplete` without a record, `unreadable` if the record cannot be trusted."""
    if not (run_dir / RECORD_NAME).exists():
        return "incomplete"
    try:
        return load_record(run_dir).status
    except RecordError:
        return "unreadable"


def list_runs(experiment: str | None = None, *, roots: Sequence[Path] | None = None) -> list[Path]:
    """Run directories, oldest first by run id: the local ones (`runs/`) and the committed ones (`data/runs/`)."""
    found: list[Path] = []
    for root in roots if roots is not None else (runs_root(), RECORDS):
        found += [path for path in root.glob(f"{experiment or '*'}/*") if path.is_dir() and path.name[0] != "."]
    return sorted(found, key=lambda path: path.name)


def _inside(run_dir: Path, name: str) -> Path:
    """The path of an artifact; a link that leads out of the run directory is refused like '..'."""
    if (why := path_problem(name)) is not None:
        raise RecordError(f"artifact {name!r}: {why}")
    path = run_dir / name
    if not path.resolve().is_relative_to(run_dir.resolve()):
        raise RecordError(f"artifact {name!r}: it leads out of the run directory")
    return path

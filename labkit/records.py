"""Run records: what a run was asked, what it measured, and proof that nothing was changed since.

A run directory is complete when, and only when, it holds `record.json`. That file is written last, atomically, after
every artifact it names is on disk with its SHA-256. A kill at any moment leaves a complete record or a directory
without one. The schema is in `book/records.md`.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from labkit.paths import RECORDS, runs_root

SCHEMA_VERSION = 1
RECORD_NAME = "record.json"


class RecordError(ValueError):
    """A record or run directory that cannot be used; the message is one line and names the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Oracle:
    """One correctness check of a run, made outside the timed region."""

    name: str
    passed: bool
    expected: Any
    seen: Any
    tolerance: float | None = None
    """Allowed |seen - expected|; None means equality."""
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """One run, as published. Times are UTC ISO 8601, durations seconds, sizes bytes; unknown is None, never NaN."""

    experiment: str
    run_id: str
    preset: str
    status: str
    """`ok`, or `failed` when a process or an oracle failed."""
    created_utc: str
    finished_utc: str
    params: dict[str, Any]
    evidence: str = "measured"
    """`measured` on real hardware, or `simulated`."""
    argv: list[list[str]] = field(default_factory=list)
    environment: dict[str, Any] = field(default_factory=dict)
    """git, software, hardware and the allow-listed environment: see labkit.provenance.collect."""
    prediction: dict[str, Any] = field(default_factory=dict)
    """{"created_utc": ..., "values": {...}}, written before the run starts."""
    results: dict[str, Any] = field(default_factory=dict)
    """Name -> plain JSON value, or a quantity made by `quantity`."""
    samples: dict[str, Any] = field(default_factory=dict)
    """Name -> {"unit": ..., "values": [[process 0 ...], [process 1 ...]]}: every sample, not only means."""
    oracles: list[Oracle] = field(default_factory=list)
    failure: dict[str, Any] | None = None
    artifacts: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    schema_version: int = SCHEMA_VERSION

    def to_json(self) -> str:
        """Strict JSON: a NaN or infinity is refused, so a page can never show one."""
        return json.dumps(asdict(self), indent=1, sort_keys=True, allow_nan=False, ensure_ascii=False) + "\n"

    @property
    def hardware_tag(self) -> str:
        """Short hardware name used in run ids and pages, e.g. `h200-x2` or `cpu-2c`."""
        return self.environment.get("hardware", {}).get("tag", "unknown")


def utc_now() -> str:
    """Now, as UTC ISO 8601 with milliseconds."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def params_hash(params: Mapping[str, Any]) -> str:
    """First 8 hex digits of the SHA-256 of the parameters' canonical JSON."""
    text = json.dumps(params, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def new_run_id(params: Mapping[str, Any], *, hardware_tag: str) -> str:
    """`<utc date>T<time>Z_<hardware>_<hash of params>`; the hardware tag never contains `_`."""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}_{hardware_tag.replace('_', '-')}_{params_hash(params)}"


def open_run_dir(experiment: str, run_id: str, *, params: Mapping[str, Any], root: Path | None = None) -> Path:
    """Make a new run directory and write `params.json` into it; an existing run is never overwritten.

    Raises: RecordError when the id is malformed, the directory exists or the folder cannot be written.
    """
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", run_id):
        raise RecordError(f"run_id={run_id!r}: expected letters, digits, '.', '_' and '-' only")
    run_dir = (root or runs_root()) / experiment / run_id
    try:
        run_dir.parent.mkdir(parents=True, exist_ok=True)
        run_dir.mkdir()
        write_json(run_dir / "params.json", dict(params))
    except FileExistsError:
        raise RecordError(f"run_id={run_id!r}: {run_dir} exists; a run is never overwritten") from None
    except OSError as error:
        raise RecordError(f"cannot write the run directory {run_dir}: {error.strerror}") from None
    return run_dir


def write_json(path: Path, value: Any) -> None:
    """Write strict JSON atomically: temporary file in the same folder, fsync, rename, fsync of the folder."""
    write_atomic(path, json.dumps(value, indent=1, sort_keys=True, allow_nan=False, ensure_ascii=False) + "\n")


def write_atomic(path: Path, text: str) -> None:
    """Replace `path` by `text`, or leave it as it was: a reader never sees half a file."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def sha256_file(path: Path) -> str:
    """SHA-256 of a file's content, as hex."""
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def describe_artifacts(run_dir: Path, names: Sequence[str]) -> list[dict[str, Any]]:
    """[{path, bytes, sha256}] of files in a run directory, paths relative to it."""
    return [
        {"path": name, "bytes": (run_dir / name).stat().st_size, "sha256": sha256_file(run_dir / name)}
        for name in sorted(names)
    ]


def publish(record: RunRecord, run_dir: Path) -> Path:
    """Write `record.json` last; raises RecordError if it exists or a named artifact is missing or has changed."""
    if (run_dir / RECORD_NAME).exists():
        raise RecordError(f"{run_dir / RECORD_NAME} exists; a published record is never changed")
    problems = artifact_problems(record, run_dir)
    if problems:
        raise RecordError(f"{run_dir}: not published: {problems[0]}")
    write_atomic(run_dir / RECORD_NAME, record.to_json())
    return run_dir / RECORD_NAME


def artifact_problems(record: RunRecord, run_dir: Path) -> list[str]:
    """One line for each artifact that is missing, has another length or another SHA-256."""
    problems = []
    for artifact in record.artifacts:
        path = run_dir / artifact["path"]
        if not path.is_file():
            problems.append(f"{artifact['path']}: missing")
        elif path.stat().st_size != artifact["bytes"]:
            problems.append(f"{artifact['path']}: {path.stat().st_size} bytes, recorded {artifact['bytes']}")
        elif sha256_file(path) != artifact["sha256"]:
            problems.append(f"{artifact['path']}: content changed (SHA-256 differs)")
    return problems


def load_record(run_dir: Path) -> RunRecord:
    """Read a published record; raises RecordError if it is absent (incomplete run), malformed or of another schema."""
    path = run_dir / RECORD_NAME
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RecordError(f"{run_dir}: incomplete, it has no {RECORD_NAME}") from None
    except (OSError, ValueError) as error:
        raise RecordError(f"{path}: not a record: {error}") from None
    if not isinstance(raw, dict) or raw.get("schema_version") != SCHEMA_VERSION:
        version = raw.get("schema_version") if isinstance(raw, dict) else None
        raise RecordError(f"{path}: schema_version {version!r}, expected {SCHEMA_VERSION}")
    try:
        oracles = [Oracle(**oracle) for oracle in raw.pop("oracles", [])]
        return RunRecord(**raw, oracles=oracles)
    except TypeError as error:
        raise RecordError(f"{path}: {str(error).replace('RunRecord.__init__() ', '')}") from None


def list_runs(experiment: str | None = None, *, roots: Sequence[Path] | None = None) -> list[Path]:
    """Run directories, oldest first by run id: the local ones (`runs/`) and the committed ones (`data/runs/`)."""
    found: list[Path] = []
    for root in roots if roots is not None else (runs_root(), RECORDS):
        found += [path for path in root.glob(f"{experiment or '*'}/*") if path.is_dir()]
    return sorted(found, key=lambda path: path.name)


def quantity(values: Sequence[float], unit: str, *, num_processes: int | None = None) -> dict[str, Any]:
    """Median with p10 and p90 (nearest rank) of a sample, as stored in `results`.

    >>> quantity([3.0, 1.0, 2.0], "ms")
    {'value': 2.0, 'unit': 'ms', 'n': 3, 'p10': 1.0, 'p90': 3.0, 'num_processes': None}
    """
    if not values:
        raise ValueError("values=[]: expected at least one sample")
    ordered = sorted(values)
    rank = lambda q: ordered[max(0, -(-len(ordered) * q // 100) - 1)]  # noqa: E731
    return {"value": median(ordered), "unit": unit, "n": len(ordered), "p10": rank(10), "p90": rank(90),
            "num_processes": num_processes}

"""What a record holds and the rules it keeps. `book/records.md` says the same for readers."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from statistics import median
from typing import Any

from labkit.records.rules import json_problems, record_problems

SCHEMA_VERSION = 1
_OWN_HASH = re.compile(r'^ "record_sha256": "([0-9a-f]{64}|)",$', re.MULTILINE)


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
    """[{path, bytes, sha256}], paths relative to the run directory; `"kept": false` where the file is not committed."""
    notes: list[str] = field(default_factory=list)
    schema_version: int = SCHEMA_VERSION

    def to_json(self) -> str:
        """The text of `record.json`, with its own SHA-256 in `record_sha256`.

        Raises: RecordError for a value that is not plain JSON, NaN and infinity included, so no page can show one.
        """
        raw = {**asdict(self), "record_sha256": ""}
        if problems := json_problems(raw):
            raise RecordError(problems[0])
        text = json.dumps(raw, indent=1, sort_keys=True, allow_nan=False, ensure_ascii=False) + "\n"
        return _OWN_HASH.sub(f' "record_sha256": "{_digest(text)}",', text, count=1)

    @property
    def hardware_tag(self) -> str:
        """Short hardware name used in run ids and pages, e.g. `h200-x2` or `cpu-2c`."""
        return self.environment.get("hardware", {}).get("tag", "unknown")


def parse_record(text: str) -> RunRecord:
    """A record from the text of `record.json`; raises RecordError if a single byte was changed or a rule is broken."""
    try:
        raw = json.loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        raise RecordError("nested too deeply") from None
    except ValueError as error:
        raise RecordError(f"not a record: {error}") from None
    version = raw.get("schema_version") if isinstance(raw, dict) else None
    if version != SCHEMA_VERSION or isinstance(version, bool):
        raise RecordError(f"schema_version {version!r}, expected {SCHEMA_VERSION}")
    found = _OWN_HASH.search(text)
    if found is None or raw.pop("record_sha256", None) != found.group(1):
        raise RecordError("record_sha256 is missing")
    if _digest(_OWN_HASH.sub(' "record_sha256": "",', text, count=1)) != found.group(1):
        raise RecordError("content changed since it was published (record_sha256 differs)")
    if problems := record_problems(raw):
        raise RecordError(problems[0])
    return RunRecord(**{**raw, "oracles": [Oracle(**oracle) for oracle in raw["oracles"]]})


def quantity(values: Sequence[float], unit: str, *, num_processes: int | None = None) -> dict[str, Any]:
    """Median with p10 and p90 (nearest rank) of a sample, as stored in `results`.

    Args:
        values: every sample, in `unit`; at least one, all finite.
        unit: e.g. "ms" or "tokens/s".
        num_processes: fresh processes that the samples come from.

    >>> quantity([3.0, 1.0, 2.0], "ms")
    {'value': 2.0, 'unit': 'ms', 'n': 3, 'p10': 1.0, 'p90': 3.0, 'num_processes': None}
    """
    if not values:
        raise ValueError("values=[]: expected at least one sample")
    if not all(math.isfinite(value) for value in values):
        raise ValueError("values: expected finite numbers only")
    ordered = sorted(values)
    rank = lambda q: ordered[max(0, -(-len(ordered) * q // 100) - 1)]  # noqa: E731
    return {"value": median(ordered), "unit": unit, "n": len(ordered), "p10": rank(10), "p90": rank(90),
            "num_processes": num_processes}


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


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a number; unknown is null")

"""The shape cache: settings that won a tuning are kept, so that the next process does not tune.

One small JSON file for each key, in $LABKIT_CACHE_DIR/rmsnorm or ~/.cache/labkit/rmsnorm. A key holds all that could
change the winner: GPU, dtype, row length, row count (by powers of two), direction, the kernels' source and Triton's
version. So a changed kernel or compiler never meets an old entry; nothing has to be deleted.

A file appears whole or not at all (written beside, then renamed), and two processes that tune at the same time leave
one of two good entries. A file that is cut off, of another key or of another form counts as no entry.
Standard library only.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, Generic, Protocol, TypeVar

KERNEL_FILES = ("rmsnorm_kernels.py", "rmsnorm_grad_kernels.py", "rmsnorm_wide_kernels.py")
SLACK = 0.01
"""A candidate must beat the first one by more than this share; a smaller gain is noise."""


class _Setting(Protocol):
    def label(self) -> str: ...

    def to_dict(self) -> dict[str, Any]: ...


Setting = TypeVar("Setting", bound=_Setting)


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """What a tuned setting is for."""

    gpu: str
    """Name as the driver gives it."""
    dtype: str
    hidden: int
    rows_bucket: int
    """See `rows_bucket`."""
    direction: str
    """`forward` or `backward`."""
    source: str
    """See `source_hash`."""
    triton: str
    """Version of the compiler."""

    def file_name(self) -> str:
        """Readable start, then a hash of everything."""
        text = json.dumps(asdict(self), sort_keys=True)
        return f"{self.direction}-{self.dtype}-{self.hidden}-{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"


@dataclass(frozen=True, slots=True)
class Tuned(Generic[Setting]):
    """A setting and how it was found."""

    config: Setting
    was_tuned: bool
    """False: it was in the cache."""
    num_timings: int
    """Calls of the timer; 0 when it was in the cache."""
    ms: dict[str, float]
    """Median by label, as measured when it was tuned."""


def rows_bucket(rows: int) -> int:
    """The power of two that `rows` rounds up to, as an exponent.

    >>> [rows_bucket(n) for n in (1, 2, 3, 4096, 4097)]
    [0, 1, 2, 12, 13]
    """
    return (rows - 1).bit_length()


def source_hash(folder: Path | None = None) -> str:
    """Hash of the kernels' source files."""
    folder = folder or Path(__file__).parent
    return hashlib.sha256(b"\0".join((folder / name).read_bytes() for name in KERNEL_FILES)).hexdigest()[:16]


def cache_folder() -> Path:
    """Where entries are kept; it need not exist."""
    return Path(os.environ.get("LABKIT_CACHE_DIR") or Path.home() / ".cache" / "labkit") / "rmsnorm"


def read_entry(key: Key) -> dict[str, Any] | None:
    """The entry of a key: {"key", "config", "ms"}; None if there is none, or none that can be used."""
    try:
        entry = json.loads((cache_folder() / key.file_name()).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    good = isinstance(entry, dict) and entry.get("key") == asdict(key) and isinstance(entry.get("config"), dict)
    return entry if good else None


def write_entry(key: Key, *, config: dict[str, Any], ms: dict[str, float]) -> bool:
    """Keep an entry. False if the folder cannot be written: the next process then tunes again."""
    path = cache_folder() / key.file_name()
    text = json.dumps({"key": asdict(key), "config": config, "ms": ms}, indent=1, allow_nan=False)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".tmp", delete=False, encoding="utf-8") as file:
            file.write(text)
        os.replace(file.name, path)
    except OSError:
        return False
    return True


def tuned(
    key: Key, candidates: Sequence[Setting], time_all: Callable[[Sequence[Setting]], Sequence[Sequence[float]]], *,
    from_dict: Callable[..., Setting],
) -> Tuned[Setting]:  # fmt: skip
    """The setting for a key: from the cache, or the fastest candidate, which is then kept.

    Args:
        key: what it is for.
        candidates: settings to try, the default first: another one must beat it by more than SLACK.
        time_all: times all candidates against each other; returns one list of samples in ms for each, empty for a
            candidate that does not run.
        from_dict: makes a setting from its fields; an entry that it refuses counts as no entry.

    Raises: ValueError when there is no candidate, or the default does not run.
    """
    if not candidates:
        raise ValueError("candidates=(): expected at least the default")
    entry = read_entry(key)
    if entry is not None:
        try:
            return Tuned(from_dict(**entry["config"]), False, 0, entry.get("ms") or {})
        except (TypeError, ValueError):
            pass
    samples = time_all(candidates)
    ms = {config.label(): median(values) for config, values in zip(candidates, samples) if values}
    first = candidates[0].label()
    if first not in ms:
        raise ValueError(f"candidates: the default, {first!r}, does not run")
    best = min(candidates, key=lambda config: ms.get(config.label(), float("inf")))
    if ms[best.label()] > (1 - SLACK) * ms[first]:
        best = candidates[0]
    write_entry(key, config=best.to_dict(), ms=ms)
    return Tuned(best, True, sum(len(values) for values in samples), ms)

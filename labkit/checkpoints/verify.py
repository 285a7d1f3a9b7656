"""Judging a checkpoint from the outside: is it whole, is every byte as it was written, does it fit the job?

Statuses of a checkpoint:

- `good`: committed, and length and hash of every file are those of the manifest.
- `incomplete`: no commit mark. The save did not finish, or something else wrote the directory.
- `damaged`: committed, and something has changed since: a file, or the manifest itself.
- `unfit`: good, but not for this job (another world size).
- `unverified`: committed, but this machine cannot compute the manifest's hash.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from labkit.checkpoints.hashing import HashUnavailable, hash_file, new_hash
from labkit.checkpoints.manifest import (
    MANIFEST_NAME,
    MAX_MANIFEST_BYTES,
    CheckpointError,
    FileEntry,
    Manifest,
    ManifestError,
    parse_manifest,
)
from labkit.checkpoints.save import TEMPORARY

_STEP = re.compile(r"(\d+)(?!.*\d)")
_OWN_NAME = re.compile(r"^step_\d{8}$")
"""Only a name that `step_dir` gave promises a step; others may hold any number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing that is wrong, or odd."""

    kind: str
    """commit_mark, manifest, missing, length, content, unreadable, world_size, step, hash; warning: extra, leftover."""
    message: str
    path: str | None = None
    rank: int | None = None
    expected: Any = None
    seen: Any = None


@dataclass(slots=True, kw_only=True)
class Report:
    """What is known about one checkpoint directory."""

    directory: Path
    status: str
    manifest: Manifest | None = None
    problems: list[Problem] = field(default_factory=list)
    warnings: list[Problem] = field(default_factory=list)

    @property
    def is_good(self) -> bool:
        """True if it may be loaded."""
        return self.status == "good"

    @property
    def step(self) -> int | None:
        """The manifest's step, or the last number in the directory's name."""
        if self.manifest is not None:
            return self.manifest.step
        return step_of(self.directory)

    def line(self) -> str:
        """One line for people."""
        return f"{self.directory.name}: {self.status}" + (f", {self.problems[0].message}" if self.problems else "")


def step_of(directory: Path) -> int | None:
    """The last number in a directory's name, as in step_00000003, iter_500 or checkpoint-500.

    >>> step_of(Path("step_00000003")), step_of(Path("latest"))
    (3, None)
    """
    found = _STEP.search(directory.name)
    return int(found.group(1)) if found and len(found.group(1)) < 19 else None


def verify(directory: Path, *, world_size: int | None = None) -> Report:
    """Judge one checkpoint directory; never raises for what is in it.

    Args:
        directory: of the checkpoint.
        world_size: ranks of the job that wants to load it; None accepts any.
    """
    report = Report(directory=directory, status="good")
    path = directory / MANIFEST_NAME
    try:
        with open(path, "rb") as stream:
            data = stream.read(MAX_MANIFEST_BYTES + 1)
        if len(data) > MAX_MANIFEST_BYTES:
            raise ManifestError(f"more than {MAX_MANIFEST_BYTES} bytes")
        report.manifest = manifest = parse_manifest(data)
    except (FileNotFoundError, NotADirectoryError):
        return _no_manifest(report)
    except ManifestError as error:
        return _settle(report, Problem(kind="manifest", path=MANIFEST_NAME, message=f"{MANIFEST_NAME}: {error}"))
    except OSError as error:
        why = error.strerror or str(error)
        return _settle(report, Problem(kind="manifest", path=MANIFEST_NAME,
                                       message=f"{MANIFEST_NAME}: cannot be read ({why})"))
    try:
        new_hash(manifest.algorithm)
    except HashUnavailable as error:
        return _settle(report, Problem(kind="hash", message=str(error)))
    for entry in manifest.files:
        problem = _file_problem(directory, entry, manifest.algorithm)
        if problem is not None:
            report.problems.append(problem)
    named = step_of(directory) if _OWN_NAME.match(directory.name) else None
    if named is not None and named != manifest.step:
        report.problems.append(Problem(
            kind="step", expected=named, seen=manifest.step,
            message=f"{MANIFEST_NAME} is of step {manifest.step}, the directory is {directory.name}"))
    if world_size is not None and world_size != manifest.world_size:
        report.problems.append(Problem(
            kind="world_size", expected=manifest.world_size, seen=world_size,
            message=f"saved by {manifest.world_size} ranks, asked for {world_size}: refused"))
    report.warnings = _strangers(directory, manifest)
    return _settle(report)


def require_good(directory: Path, *, world_size: int | None = None) -> Manifest:
    """The manifest of a checkpoint that may be loaded; raises CheckpointError with the first problem otherwise."""
    report = verify(directory, world_size=world_size)
    if not report.is_good or report.manifest is None:
        raise CheckpointError(report.line())
    return report.manifest


def list_checkpoints(root: Path) -> list[Path]:
    """Directories below `root` whose name holds a number, the newest step first."""
    found = [(step_of(path), path) for path in root.iterdir() if path.is_dir() and path.name[0] != "."]
    return [path for step, path in sorted(found, key=lambda pair: (pair[0] or 0, pair[1].name), reverse=True)
            if step is not None]


def newest_good(root: Path, *, world_size: int | None = None) -> tuple[Report | None, list[Report]]:
    """The newest checkpoint that may be loaded, and the newer ones that may not, newest first.

    Args:
        root: folder of a job's checkpoints.
        world_size: ranks of the job.
    """
    rejected = []
    for directory in list_checkpoints(root) if root.is_dir() else []:
        report = verify(directory, world_size=world_size)
        if report.is_good:
            return report, rejected
        rejected.append(report)
    return None, rejected


def _file_problem(directory: Path, entry: FileEntry, algorithm: str) -> Problem | None:
    who = "" if entry.rank is None else f" of rank {entry.rank}"
    place: dict[str, Any] = {"path": entry.path, "rank": entry.rank}
    path = directory / entry.path
    try:
        if not path.is_file():
            kind = "commit_mark" if entry.role == "commit_mark" else "missing"
            mark = ", the commit mark of its writer" if kind == "commit_mark" else ""
            return Problem(kind=kind, message=f"{entry.path}{who}: missing{mark}", **place)
        size = path.stat().st_size
        if size != entry.bytes:
            return Problem(kind="length", expected=entry.bytes, seen=size, **place,
                           message=f"{entry.path}{who}: {size} bytes, the manifest says {entry.bytes}")
        digest, _ = hash_file(path, algorithm)
        if digest != entry.digest:
            return Problem(kind="content", expected=entry.digest, seen=digest, **place,
                           message=f"{entry.path}{who}: content changed ({algorithm} differs)")
    except OSError as error:
        return Problem(kind="unreadable", message=f"{entry.path}{who}: {error.strerror or error}", **place)
    return None


def _no_manifest(report: Report) -> Report:
    """Incomplete; say what is there instead."""
    names = sorted(_names(report.directory))
    shards = [name for name in names if name.endswith(".distcp")]
    if not report.directory.is_dir():
        why = "no such directory"
    elif ".metadata" in names:
        why = (f"no commit mark ({MANIFEST_NAME}): a torch distributed checkpoint of {len(shards)} files, whose "
               "content nothing vouches for")
    elif shards:
        unfinished = " (.metadata.tmp: its save did not finish)" if ".metadata.tmp" in names else ""
        why = f"no commit mark: {len(shards)} files of a torch distributed checkpoint without .metadata{unfinished}"
    else:
        why = f"no commit mark ({MANIFEST_NAME}): the save did not finish"
    report.warnings = [_leftover(name) for name in names if TEMPORARY.match(Path(name).name)]
    return _settle(report, Problem(kind="commit_mark", message=why))


def _strangers(directory: Path, manifest: Manifest) -> list[Problem]:
    """Files that the manifest does not name: harmless to a load by manifest, but somebody should know."""
    known = {MANIFEST_NAME, *(entry.path for entry in manifest.files)}
    found = []
    for name in sorted(_names(directory) - known):
        if TEMPORARY.match(Path(name).name):
            found.append(_leftover(name))
        else:
            found.append(Problem(kind="extra", path=name, message=f"{name}: not in the manifest, of another save?"))
    return found


def _leftover(name: str) -> Problem:
    return Problem(kind="leftover", path=name, message=f"{name}: temporary file of a save that did not finish")


def _names(directory: Path) -> set[str]:
    """Relative names of all files, as text that any encoder takes."""
    found = set()
    for folder, _, files in os.walk(directory):
        for file in files:
            name = os.path.relpath(os.path.join(folder, file), directory).replace(os.sep, "/")
            found.add(name.encode("utf-8", "surrogateescape").decode("utf-8", "replace"))
    return found


def _settle(report: Report, problem: Problem | None = None) -> Report:
    """Decide the status from the problems."""
    if problem is not None:
        report.problems.append(problem)
    kinds = {found.kind for found in report.problems}
    report.status = next(_statuses(kinds), "good")
    return report


def _statuses(kinds: set[str]) -> Iterator[str]:
    """Worst first: what is missing its commit mark was never a checkpoint, so its other problems do not matter."""
    if "commit_mark" in kinds:
        yield "incomplete"
    if kinds - {"commit_mark", "world_size", "hash"}:
        yield "damaged"
    if "hash" in kinds:
        yield "unverified"
    if "world_size" in kinds:
        yield "unfit"

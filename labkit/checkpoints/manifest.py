"""The manifest of a checkpoint: which files it has, how long they are, what their content hashes to.

It is the commit mark. It is written last, atomically, so a directory with a manifest was complete once and a directory
without one never was. The text of a manifest is exactly what `Manifest.to_json` writes, its own SHA-256 included: a
reader refuses any other text, so a changed manifest is found like any other changed file.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from labkit.records import rules

MANIFEST_NAME = "manifest.json"
FORMAT = "labkit-checkpoint"
VERSION = 1
MAX_MANIFEST_BYTES = 64 * 2**20
_FIELDS = {"format", "version", "step", "world_size", "hash", "files", "meta", "manifest_sha256"}
_FILE_FIELDS = {"path", "bytes", "digest", "rank", "role"}


class CheckpointError(ValueError):
    """A checkpoint that cannot be saved or used; the message is one line and names the file or the rank."""


class ManifestError(CheckpointError):
    """A manifest that cannot be trusted; one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEntry:
    """One file of a checkpoint."""

    path: str
    """Relative to the checkpoint, with forward slashes."""
    bytes: int
    digest: str
    rank: int | None
    """The rank that wrote it; None if that is not known."""
    role: str = "data"
    """`data`, or `commit_mark`: the file by which its own writer says that it has finished (DCP's .metadata)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """Everything a reader needs to decide whether a checkpoint is whole and fits its job."""

    step: int
    world_size: int
    algorithm: str
    files: tuple[FileEntry, ...]
    meta: Mapping[str, Any] = field(default_factory=dict)
    """Whatever the job wants to keep; plain JSON."""

    def to_json(self) -> str:
        """The text of the manifest, with its own hash.

        Raises: CheckpointError when it would break its own rules.
        """
        raw = {
            "format": FORMAT, "version": VERSION, "step": self.step, "world_size": self.world_size,
            "hash": self.algorithm, "meta": dict(self.meta),
            "files": [{"path": f.path, "bytes": f.bytes, "digest": f.digest, "rank": f.rank, "role": f.role}
                      for f in self.files],
        }
        if problem := _problem({**raw, "manifest_sha256": ""}):
            raise CheckpointError(f"manifest: {problem}")
        return _text({**raw, "manifest_sha256": hashlib.sha256(_text(raw).encode()).hexdigest()})


def parse_manifest(data: bytes) -> Manifest:
    """A manifest from the bytes of its file.

    Raises: ManifestError, one line, for anything but what `Manifest.to_json` wrote.
    """
    try:
        text = data.decode("utf-8")
        raw = json.loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        raise ManifestError("not a manifest: nested too deeply") from None
    except ValueError as error:
        raise ManifestError(f"not a manifest: {str(error).splitlines()[0]}") from None
    if not isinstance(raw, dict) or raw.get("format") != FORMAT:
        raise ManifestError(f"not a manifest: expected a JSON object whose format is {FORMAT!r}")
    if raw.get("version") != VERSION or isinstance(raw.get("version"), bool):
        raise ManifestError(f"version {raw.get('version')!r}, expected {VERSION}")
    if problem := _problem(raw):
        raise ManifestError(problem)
    found = Manifest(
        step=raw["step"], world_size=raw["world_size"], algorithm=raw["hash"], meta=raw["meta"],
        files=tuple(FileEntry(**entry) for entry in raw["files"]))
    if found.to_json() != text:
        raise ManifestError("content changed since it was written (manifest_sha256 differs)")
    return found


def path_problem(name: Any) -> str | None:
    """Why a name is not a file inside the checkpoint; None if it is.

    >>> path_problem("rank00000.pt"), path_problem("../secret")
    (None, "expected a relative path without '..'")
    """
    return rules.path_problem(name, folder="checkpoint", reserved=MANIFEST_NAME)


def _problem(raw: Mapping[str, Any]) -> str | None:
    """The first rule that a manifest breaks, or None."""
    if odd := sorted(map(str, _FIELDS ^ raw.keys())):
        return f"{odd[0]}: missing or unknown field"
    for name, least in (("step", 0), ("world_size", 1)):
        if not _is_count(raw[name], least):
            return f"{name}={raw[name]!r}: expected an integer, {least} or more"
    if not isinstance(raw["hash"], str) or not isinstance(raw["meta"], dict):
        return "hash and meta: expected text and an object"
    if not isinstance(raw["files"], list) or not raw["files"]:
        return "files: expected a list of at least one file"
    names = set()
    for i, entry in enumerate(raw["files"]):
        if not isinstance(entry, dict) or entry.keys() != _FILE_FIELDS:
            return f"files[{i}]: expected {', '.join(sorted(_FILE_FIELDS))}"
        if why := path_problem(entry["path"]):
            return f"files[{i}].path={entry['path']!r}: {why}"
        if entry["path"] in names:
            return f"files[{i}].path={entry['path']!r}: named twice"
        names.add(entry["path"])
        if not _is_count(entry["bytes"], 0):
            return f"files[{i}].bytes={entry['bytes']!r}: expected a count"
        if not isinstance(entry["digest"], str) or not isinstance(entry["role"], str):
            return f"files[{i}]: expected text for digest and role"
        rank = entry["rank"]
        if rank is not None and not (_is_count(rank, 0) and rank < raw["world_size"]):
            return f"files[{i}].rank={rank!r}: expected a rank below world_size={raw['world_size']}"
    return None


def _is_count(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value < 2**63


def _text(raw: Mapping[str, Any]) -> str:
    return json.dumps(raw, indent=1, sort_keys=True, allow_nan=False) + "\n"


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a number")

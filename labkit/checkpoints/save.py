"""Writing a checkpoint so that it is whole or plainly unfinished, whatever happens in between.

    begin(directory)                                    rank 0, then everybody waits for it
    entry = write_file(directory, "rank00000.pt", ...)  every rank: temporary file, hash, fsync, os.replace
    commit(directory, entries_of_all_ranks, ...)        rank 0, after all have reported: manifest last

`seal` puts a manifest on a directory that another program wrote, e.g. torch's distributed checkpoint. Nothing here
knows torch or talks to other processes; the caller collects the entries.

`at` is called before and after every step of a writer, with the step's name and the file's. Tests stop a writer there.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, cast

from labkit.checkpoints.hashing import HashingStream, hash_file, new_hash
from labkit.checkpoints.manifest import MANIFEST_NAME, CheckpointError, FileEntry, Manifest

At = Callable[[str, str], None]
"""(step of the writer, file name); steps: create, write, sync, replace, replaced."""
BUFFER_BYTES = 2**20
TEMPORARY = re.compile(r"^\.(.+)\.\d+\.tmp$")
_DCP_RANK = re.compile(r"^__(\d+)_\d+\.distcp$")


def step_dir(root: Path, step: int) -> Path:
    """The directory of one step below the root of a job's checkpoints."""
    return root / f"step_{step:08d}"


def begin(directory: Path) -> None:
    """Make an empty directory to save into; what an unfinished save left there goes.

    Raises: CheckpointError if it holds a manifest: a committed checkpoint is never changed.
    """
    if (directory / MANIFEST_NAME).exists():
        raise CheckpointError(f"{directory.name}: is committed, expected a directory without {MANIFEST_NAME}")
    directory.mkdir(parents=True, exist_ok=True)
    for path in directory.iterdir():
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def write_file(
    directory: Path, name: str, write: Callable[[Any], Any], *, rank: int | None, algorithm: str,
    durable: bool = True, at: At | None = None, timing: dict[str, float] | None = None,
) -> FileEntry:
    """Write one file under a temporary name, hash it on the way, and give it its name when all of it is on the disk.

    Args:
        directory: of the checkpoint; exists.
        name: of the file.
        write: called with a stream that has `write`.
        rank: the rank that writes.
        algorithm: one of `labkit.checkpoints.hashing.ALGORITHMS`.
        durable: fsync before the file gets its name; without it a power cut (not a killed process) can lose content.
        at: called around every step.
        timing: seconds in the hash are added to its `hash_s`.

    Returns: what the manifest will say about the file.
    Raises: whatever `write` raises, OSError from the disk; the temporary file is gone then.
    """
    step = at or (lambda what, file: None)
    temporary = directory / f".{name}.{os.getpid()}.tmp"
    try:
        step("create", name)
        with open(temporary, "wb", buffering=0) as file:
            hashed = HashingStream(file, algorithm, before_write=lambda: step("write", name))
            try:
                # Small pieces are collected, large ones pass through without a copy.
                stream = io.BufferedWriter(hashed, BUFFER_BYTES)
                write(stream)
                stream.flush()
            finally:
                hashed.close()
            step("sync", name)
            if durable:
                os.fsync(file.fileno())
        step("replace", name)
        os.replace(temporary, directory / name)
        step("replaced", name)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    if timing is not None:
        timing["hash_s"] = timing.get("hash_s", 0.0) + hashed.hash_s
    return FileEntry(path=name, bytes=hashed.num_bytes, digest=hashed.digest(), rank=rank)


def commit(
    directory: Path, entries: Iterable[FileEntry], *, step: int, world_size: int, algorithm: str,
    meta: Mapping[str, Any] | None = None, durable: bool = True, at: At | None = None,
) -> Manifest:
    """Publish the manifest, if every rank has written and every file is there with its full length.

    Args:
        directory: of the checkpoint.
        entries: of all ranks, as `write_file` returned them.
        step: training step that the state belongs to.
        world_size: ranks of the job; each of them must have written a file.
        algorithm: the hash of the entries.
        meta: plain JSON to keep.
        durable: fsync manifest and directory; when this returns, the checkpoint survives a power cut.
        at: as `write_file`.

    Raises: CheckpointError naming the rank or file that is missing; there is no manifest then.
    """
    files = tuple(sorted(entries, key=lambda entry: entry.path))
    if silent := sorted(set(range(world_size)) - {entry.rank for entry in files}):
        raise CheckpointError(f"{directory.name}: not committed, no file from rank {_listed(silent)} of {world_size}")
    for entry in files:
        path = directory / entry.path
        if not path.is_file():
            raise CheckpointError(f"{directory.name}: not committed, {entry.path} of rank {entry.rank} is not there")
        if path.stat().st_size != entry.bytes:
            raise CheckpointError(f"{directory.name}: not committed, {entry.path} of rank {entry.rank} has "
                                  f"{path.stat().st_size} bytes, expected {entry.bytes}")
    manifest = Manifest(step=step, world_size=world_size, algorithm=algorithm, files=files, meta=meta or {})
    _publish(directory, manifest, durable=durable, at=at)
    return manifest


def seal(
    directory: Path, *, step: int, world_size: int, algorithm: str, meta: Mapping[str, Any] | None = None,
    durable: bool = True, digests: Mapping[str, FileEntry] | None = None,
) -> Manifest:
    """Put a manifest on a directory that another program has finished writing, by reading it back.

    Knows torch's distributed checkpoint: the rank is in the name `__<rank>_<n>.distcp`, and `.metadata` is its commit
    mark, without which there is nothing to seal.

    Args:
        directory: of the checkpoint.
        step: training step.
        world_size: ranks of the job.
        algorithm: hash to use.
        meta: plain JSON to keep.
        durable: fsync manifest and directory.
        digests: entries that other processes have computed already, by path.

    Raises: CheckpointError if there is nothing to seal; OSError if a file cannot be read.
    """
    paths = sorted(path for path in directory.rglob("*") if path.is_file() and not TEMPORARY.match(path.name))
    names = [path.relative_to(directory).as_posix() for path in paths]
    if MANIFEST_NAME in names:
        raise CheckpointError(f"{directory.name}: is sealed already")
    if not names:
        raise CheckpointError(f"{directory.name}: no files, nothing to seal")
    if any(_DCP_RANK.match(name) for name in names) and ".metadata" not in names:
        raise CheckpointError(f"{directory.name}: no .metadata, the save has not finished")
    known = digests or {}
    entries = tuple(known.get(name) or entry_of(directory, name, algorithm) for name in names)
    manifest = Manifest(step=step, world_size=world_size, algorithm=algorithm, files=entries, meta=meta or {})
    _publish(directory, manifest, durable=durable, at=None)
    return manifest


def entry_of(directory: Path, name: str, algorithm: str) -> FileEntry:
    """What a manifest says about a file that is already there; its rank is read from DCP's names."""
    digest, num_bytes = hash_file(directory / name, algorithm)
    found = _DCP_RANK.match(name)
    return FileEntry(path=name, bytes=num_bytes, digest=digest, rank=int(found.group(1)) if found else None,
                     role="commit_mark" if name == ".metadata" else "data")


def _publish(directory: Path, manifest: Manifest, *, durable: bool, at: At | None) -> None:
    text = manifest.to_json().encode()
    new_hash(manifest.algorithm)  # a manifest that nobody here could check is not written
    write_file(directory, MANIFEST_NAME, lambda stream: cast(BinaryIO, stream).write(text), rank=None,
               algorithm="sha256", durable=durable, at=at)
    if durable:
        handle = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(handle)  # one for all names of this directory
        finally:
            os.close(handle)


def _listed(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks[:8])) + (", ..." if len(ranks) > 8 else "")

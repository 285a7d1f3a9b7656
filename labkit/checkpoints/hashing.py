"""Content hashes of checkpoint files: computed while a file is written, or by reading it back.

SHA-256 also stands against somebody who changes a file on purpose. XXH3 does not, but it finds accidents (a flipped
bit, a cut or swapped file) as surely, at the speed of memory. The manifest names the one that was used.
"""

from __future__ import annotations

import hashlib
import io
import time
from collections.abc import Callable
from io import FileIO
from pathlib import Path
from typing import Any

try:
    import xxhash
except ImportError:  # an optional extra: labkit[fast]
    xxhash = None  # type: ignore[assignment]

ALGORITHMS = ("sha256", "blake2b", "xxh3_128")
CHUNK_BYTES = 4 * 2**20


class HashUnavailable(ValueError):
    """A hash that is unknown, or that this machine cannot compute; one line."""


def available_algorithms() -> list[str]:
    """Hashes that can be computed here, the strongest first."""
    return [name for name in ALGORITHMS if name != "xxh3_128" or xxhash is not None]


def fast_algorithm() -> str:
    """XXH3 where `xxhash` is installed, else SHA-256, which beats BLAKE2 on processors with SHA instructions."""
    return "xxh3_128" if xxhash is not None else "sha256"


def new_hash(algorithm: str) -> Any:
    """A fresh hash object with `update` and `hexdigest`.

    Raises: HashUnavailable naming the algorithm and what there is.
    """
    if algorithm not in ALGORITHMS:
        raise HashUnavailable(f"hash {algorithm!r}: expected one of {', '.join(ALGORITHMS)}")
    if algorithm == "sha256":
        return hashlib.sha256()
    if algorithm == "blake2b":
        return hashlib.blake2b(digest_size=32)
    if xxhash is None:
        raise HashUnavailable("hash 'xxh3_128': the package xxhash is not installed here")
    return xxhash.xxh3_128()


def hash_bytes(data: bytes, algorithm: str) -> str:
    """Hex digest of `data`."""
    state = new_hash(algorithm)
    state.update(data)
    return state.hexdigest()


def hash_file(path: Path, algorithm: str) -> tuple[str, int]:
    """(hex digest, length in bytes) of a file's content.

    Raises: HashUnavailable; OSError if it cannot be read.
    """
    state, num_bytes = new_hash(algorithm), 0
    with open(path, "rb", buffering=0) as stream:
        while chunk := stream.read(CHUNK_BYTES):
            state.update(chunk)
            num_bytes += len(chunk)
    return state.hexdigest(), num_bytes


class HashingStream(io.RawIOBase):
    """An unbuffered binary stream that hashes what it hands on, so that nothing has to be read back.

    `before_write` is called before every write to the file: a place to stop a writer on purpose.
    """

    def __init__(self, stream: FileIO, algorithm: str, before_write: Callable[[], None] | None = None) -> None:
        self._stream = stream
        self._hash = new_hash(algorithm)
        self._before_write = before_write
        self.num_bytes = 0
        self.hash_s = 0.0
        """Seconds spent in the hash."""

    def writable(self) -> bool:
        """True: this is what a BufferedWriter asks first."""
        return True

    def write(self, data: Any, /) -> int:
        """Write what the file takes of a bytes-like object, which may be a part; returns the number of bytes."""
        view = memoryview(data).cast("B")
        if self._before_write is not None:
            self._before_write()
        num_written = self._stream.write(view) or 0
        started = time.perf_counter()
        self._hash.update(view[:num_written])
        self.hash_s += time.perf_counter() - started
        self.num_bytes += num_written
        return num_written

    def digest(self) -> str:
        """Hex digest of everything written so far."""
        return self._hash.hexdigest()

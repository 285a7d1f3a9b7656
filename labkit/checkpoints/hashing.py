"""Content hashes of checkpoint files: computed while a file is written, or by reading it back.

SHA-256 also stands against somebody who changes a file on purpose. XXH3 does not, but it finds accidents (a flipped
bit, a cut or swapped file) as surely, at the speed of memory. The manifest names the one that was used.
"""

from __future__ import annotations

import hashlib
import io
import threading
import time
from collections.abc import Callable
from io import FileIO
from pathlib import Path
from queue import SimpleQueue
from typing import Any

try:
    import xxhash
except ImportError:  # an optional extra: labkit[fast]
    xxhash = None  # type: ignore[assignment]

ALGORITHMS = ("sha256", "blake2b", "xxh3_128")
CHUNK_BYTES = 4 * 2**20
OVERLAP_BYTES = 2 * 2**20


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

    Large pieces are hashed in a second thread while the first one writes them: both let go of the interpreter's lock.
    `before_write` is called before every write: a place to stop a writer on purpose.
    """

    def __init__(self, stream: FileIO, algorithm: str, before_write: Callable[[], None] | None = None) -> None:
        self._stream = stream
        self._hash = new_hash(algorithm)
        self._before_write = before_write
        self.num_bytes = 0
        self.hash_s = 0.0
        """Seconds spent in the hash; those of large pieces overlap the writing."""
        self._todo: SimpleQueue[memoryview | None] = SimpleQueue()
        self._done: SimpleQueue[BaseException | None] = SimpleQueue()
        self._helper: threading.Thread | None = None  # a small file needs none

    def writable(self) -> bool:
        """True: this is what a BufferedWriter asks first."""
        return True

    def write(self, data: Any, /) -> int:
        """Write all of a bytes-like object; returns the number of bytes. Raises OSError, e.g. for a full disk."""
        view = memoryview(data).cast("B")
        if self._before_write is not None:
            self._before_write()
        if len(view) < OVERLAP_BYTES:
            self._update(view)
            self._write_all(view)
        else:
            if self._helper is None:
                self._helper = threading.Thread(target=self._work, name="checkpoint-hash", daemon=True)
                self._helper.start()
            self._todo.put(view)
            try:
                self._write_all(view)
            finally:
                error = self._done.get()  # the caller may reuse its memory as soon as this returns
            if error is not None:
                raise error
        self.num_bytes += len(view)
        return len(view)

    def _work(self) -> None:
        while (view := self._todo.get()) is not None:
            try:
                self._update(view)
                self._done.put(None)
            except BaseException as error:  # handed to the writer
                self._done.put(error)
            view = None  # the caller's memory is not held while there is nothing to do

    def _update(self, view: memoryview) -> None:
        started = time.perf_counter()
        self._hash.update(view)
        self.hash_s += time.perf_counter() - started

    def _write_all(self, view: memoryview) -> None:
        while view:  # one call takes at most 2 GiB, and a nearly full disk takes a part
            view = view[self._stream.write(view) or 0:]

    def close(self) -> None:
        """End the helper thread; the file below stays open."""
        if self._helper is not None:
            self._todo.put(None)
            self._helper.join()
            self._helper = None
        super().close()

    def digest(self) -> str:
        """Hex digest of everything written so far."""
        return self._hash.hexdigest()

"""Files that are whole or absent: atomic writes and hashes."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any


def write_json(path: Path, value: Any) -> None:
    """Write strict JSON (no NaN) atomically; raises ValueError for a value that is not JSON, OSError from the disk."""
    write_atomic(path, json.dumps(value, indent=1, sort_keys=True, allow_nan=False, ensure_ascii=False) + "\n")


def write_atomic(path: Path, text: str) -> None:
    """Replace `path` by `text` (UTF-8), or leave it as it was: a reader never sees half a file.

    Temporary file in the same folder, fsync, rename, fsync of the folder. Raises OSError, e.g. for a full disk; then
    `path` is as before and the temporary file is gone.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as stream:
            stream.write(text.encode())
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    sync(path.parent)


def sync(path: Path) -> None:
    """Force a file or folder to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sha256_file(path: Path) -> str:
    """SHA-256 of a file's content, as hex."""
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()

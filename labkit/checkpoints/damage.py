"""Breaking a committed checkpoint on purpose, one kind of accident at a time.

Each function changes the directory and returns the names of the files it touched. A reader has to notice all of them.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

from labkit.checkpoints.manifest import MANIFEST_NAME, parse_manifest

PAGE_BYTES = 4096


def flip_byte(directory: Path, previous: Path, rng: random.Random) -> list[str]:
    """One bit of one data file is inverted: bad memory, a bad cable, a bad disk."""
    return _flip(directory, rng.choice(_filled(directory)), rng)


def flip_manifest_byte(directory: Path, previous: Path, rng: random.Random) -> list[str]:
    """One bit of the manifest is inverted."""
    return _flip(directory, MANIFEST_NAME, rng)


def cut(directory: Path, previous: Path, rng: random.Random) -> list[str]:
    """A data file loses its end."""
    name = rng.choice(_filled(directory))
    os.truncate(directory / name, rng.randrange((directory / name).stat().st_size))
    return [name]


def cut_manifest(directory: Path, previous: Path, rng: random.Random) -> list[str]:
    """The manifest loses its end."""
    os.truncate(directory / MANIFEST_NAME, rng.randrange((directory / MANIFEST_NAME).stat().st_size))
    return [MANIFEST_NAME]


def append(directory: Path, previous: Path, rng: random.Random) -> list[str]:
    """A data file grows."""
    name = rng.choice(_data(directory))
    with open(directory / name, "ab") as stream:
        stream.write(rng.randbytes(rng.randint(1, 64)))
    return [name]


def lose_page(directory: Path, previous: Path, rng: random.Random) -> list[str]:
    """A page reads as zeros, at full length: what a power cut leaves of a file that was never synced."""
    name = rng.choice([name for name in _filled(directory) if any((directory / name).read_bytes())])
    content = bytearray((directory / name).read_bytes())
    pages = [i for i in range(0, len(content), PAGE_BYTES) if any(content[i:i + PAGE_BYTES])]
    start = rng.choice(pages)
    end = min(start + PAGE_BYTES, len(content))
    content[start:end] = bytes(end - start)
    (directory / name).write_bytes(content)
    return [name]


def drop(directory: Path, previous: Path, rng: random.Random) -> list[str]:
    """A data file is gone."""
    name = rng.choice(_data(directory))
    (directory / name).unlink()
    return [name]


def drop_manifest(directory: Path, previous: Path, rng: random.Random) -> list[str]:
    """The commit mark is gone."""
    (directory / MANIFEST_NAME).unlink()
    return [MANIFEST_NAME]


def swap(directory: Path, previous: Path, rng: random.Random) -> list[str]:
    """Two files of different content change places."""
    names = _data(directory)
    contents = {name: (directory / name).read_bytes() for name in names}
    pairs = [(a, b) for a in names for b in names if a < b and contents[a] != contents[b]]
    if not pairs:
        return flip_byte(directory, previous, rng)
    first, second = rng.choice(pairs)
    (directory / first).write_bytes(contents[second])
    (directory / second).write_bytes(contents[first])
    return [first, second]


def stale(directory: Path, previous: Path, rng: random.Random) -> list[str]:
    """A file is the one of the save before: its own write was lost."""
    names = [name for name in _data(directory) if (previous / name).is_file()
             and (previous / name).read_bytes() != (directory / name).read_bytes()]
    if not names:
        return flip_byte(directory, previous, rng)
    name = rng.choice(names)
    (directory / name).write_bytes((previous / name).read_bytes())
    return [name]


def stale_manifest(directory: Path, previous: Path, rng: random.Random) -> list[str]:
    """The files are new and the manifest is the old one: what overwriting in place leaves after a kill."""
    (directory / MANIFEST_NAME).write_bytes((previous / MANIFEST_NAME).read_bytes())
    return [MANIFEST_NAME]


DAMAGE: dict[str, Callable[[Path, Path, random.Random], list[str]]] = {
    function.__name__: function for function in (
        flip_byte, flip_manifest_byte, cut, cut_manifest, append, lose_page, drop, drop_manifest, swap, stale,
        stale_manifest)
}
"""Name -> function(directory, directory of the save before, random generator)."""


def _data(directory: Path) -> list[str]:
    return [entry.path for entry in parse_manifest((directory / MANIFEST_NAME).read_bytes()).files]


def _filled(directory: Path) -> list[str]:
    """Data files that are not empty."""
    return [name for name in _data(directory) if (directory / name).stat().st_size]


def _flip(directory: Path, name: str, rng: random.Random) -> list[str]:
    content = bytearray((directory / name).read_bytes())
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    (directory / name).write_bytes(content)
    return [name]

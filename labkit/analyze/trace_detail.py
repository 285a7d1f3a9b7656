"""What a trace says about a collective beyond its time: which one, how large, in which process group."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from labkit.analyze.trace_decode import plain
from labkit.analyze.trace_names import canonical_collective, dtype_bytes
from labkit.analyze.trace_table import whole_number


@dataclass(frozen=True, slots=True)
class CommDetail:
    """One collective as the file describes it."""

    collective: str
    """Canonical name."""
    size_bytes: int | None
    """Message size; None if unknown. From NCCL's arguments: the larger of what goes in and what comes out, as
    nccl-tests counts it. On a CPU (recorded with shapes): the bytes that go in."""
    group: str
    """Process group, as far as the file names it."""
    uneven_splits: bool = False
    """An all-to-all whose splits differ: the size counts data that stays on the rank."""


def kernel_detail(args: Any) -> CommDetail:
    """From the arguments that torch attaches to an NCCL kernel."""
    elements = [n for n in (whole_number(args.in_nelems), whole_number(args.out_nelems)) if n is not None and n >= 0]
    element_bytes = dtype_bytes(args.dtype)
    splits = [_numbers(args.in_split), _numbers(args.out_split)]
    size = max(elements) * element_bytes if elements and element_bytes else None
    return CommDetail(
        collective=canonical_collective(str(args.collective)),
        size_bytes=size if size is not None and size < 2**62 else None,
        group="" if args.group is None else f"{args.group} {args.group_ranks or ''}".strip(),
        uneven_splits=any(len(set(split)) > 1 for split in splits),
    )


def cpu_detail(collective: str, args: Any) -> CommDetail:
    """From the shapes of a CPU collective's inputs, recorded only with `record_shapes=True`."""
    dims, types = (plain(args.dims), plain(args.types)) if args is not None else (None, None)
    size: int | None = None
    if isinstance(dims, list) and isinstance(types, list) and dims and len(dims) == len(types):
        known = [n for n in map(_tensor_bytes, dims, types) if n is not None]
        size = sum(known) if known else None
    return CommDetail(collective=collective, size_bytes=size if size is not None and size < 2**62 else None, group="")


def _numbers(value: Any) -> list[int]:
    """A list of integers that may be written as text, e.g. "[3, 5]"."""
    if isinstance(value, str):
        return [int(text) for text in re.findall(r"-?\d{1,18}", value)]
    if isinstance(value, list):
        return [number for number in map(whole_number, value) if number is not None]
    return []


def _tensor_bytes(shape: Any, dtype: Any) -> int | None:
    size = dtype_bytes(dtype)
    if not isinstance(shape, list) or size is None:
        return None
    for length in map(whole_number, shape):
        if length is None or length < 0:
            return None
        size *= length
    return size

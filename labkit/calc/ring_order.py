"""In which order a ring all-reduce adds up the ranks, element by element, and what a new bucket layout changes.

Floating-point addition commutes but is not associative: a + b is b + a, but (a + b) + c is not a + (b + c). A ring
starts each chunk of a message at another rank. So where a gradient lies in its bucket decides in which order it is
summed.

In: parameters as [name, shape], buckets as lists of names. Out: lists of spans, counts.

    python -m labkit calc ring_order num_reordered parameters='[["w",[6]],["b",[2]]]' first='[["w","b"]]' \
        second='[["b","w"]]' world_size=4
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from labkit.calc._require import require_int

GLOO_SEGMENT_BYTES = 2**20


def gloo_chunk_bytes(*, total_bytes: int, world_size: int, element_bytes: int = 4) -> int:
    """Bytes of a message that start at one rank in gloo's ring all-reduce; the last chunks may be shorter or empty.

    Args:
        total_bytes: of the message, > 0, a multiple of `element_bytes`.
        world_size: ranks n, >= 2.
        element_bytes: of one element.

    Returns: bytes; a multiple of `element_bytes`.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: gloo's default segments of at most 1 MiB; at least two segments a chunk, the same number for each rank.
    Source: seen in torch 2.13: bits of sums of known vectors; gloo's ring divides a message into segments of equal
        length, an older gloo/allreduce.cc into segments of 1 MiB.

    >>> gloo_chunk_bytes(total_bytes=16789504, world_size=4)
    4197380
    """
    require_int("total_bytes", total_bytes, least=1)
    require_int("world_size", world_size, least=2)
    require_int("element_bytes", element_bytes, least=1)
    if total_bytes % element_bytes:
        raise ValueError(f"total_bytes={total_bytes!r}: expected a multiple of element_bytes={element_bytes}")
    num_segments = max(-(-total_bytes // GLOO_SEGMENT_BYTES), 2 * world_size)
    per_chunk = -(-num_segments // world_size)
    segment = -(-total_bytes // (per_chunk * world_size))
    return per_chunk * (-(-segment // element_bytes) * element_bytes)


def ring_ranks(*, chunk: int, world_size: int) -> list[int]:
    """Ranks in the order in which a ring adds them up for one chunk.

    Args:
        chunk: number of the chunk, 0 to n - 1; it ends at the rank of this number.
        world_size: ranks n, >= 2.

    Returns: n ranks; the sum is ((g[r0] + g[r1]) + g[r2]) + ...
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: every rank sends to the one below it, as gloo does. The reverse ring gives another order.
    Source: gloo/allreduce.cc: rank r receives from r + 1 and ends up with chunk r.

    >>> ring_ranks(chunk=0, world_size=4)
    [3, 2, 1, 0]
    """
    require_int("world_size", world_size, least=2)
    if require_int("chunk", chunk) >= world_size:
        raise ValueError(f"chunk={chunk!r}: expected below world_size={world_size}")
    return [(chunk - 1 - i) % world_size for i in range(world_size)]


def sum_spans(
    *, parameters: Sequence[Sequence[Any]], buckets: Sequence[Sequence[str]], world_size: int
) -> list[dict[str, Any]]:
    """Where each piece of each parameter is summed: spans of elements that lie in one chunk of one bucket.

    Args:
        parameters: [name, shape], float32.
        buckets: names of each bucket in the order in which they lie in it; every parameter once.
        world_size: ranks n, >= 2.

    Returns: [{"name", "start", "stop", "chunk"}]: elements start to stop of the flattened parameter.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: as `gloo_chunk_bytes`; parameters lie in a bucket without gaps.
    Source: `gloo_chunk_bytes`; torch/csrc/distributed/c10d/reducer.cpp, bucket views.

    >>> sum_spans(parameters=[["w", [6]], ["b", [2]]], buckets=[["w", "b"]], world_size=2)[1:]
    [{'name': 'w', 'start': 4, 'stop': 6, 'chunk': 1}, {'name': 'b', 'start': 0, 'stop': 2, 'chunk': 1}]
    """
    counts = {name: _num_elements(shape) for name, shape, *_ in parameters}
    listed = [name for bucket in buckets for name in bucket]
    if sorted(listed) != sorted(counts):
        raise ValueError(f"buckets: hold {sorted(listed)}, expected every parameter once: {sorted(counts)}")
    spans = []
    for bucket in buckets:
        total = sum(counts[name] for name in bucket)
        chunk_length = gloo_chunk_bytes(total_bytes=4 * total, world_size=world_size) // 4
        offset = 0
        for name in bucket:
            start = 0
            while start < counts[name]:
                chunk = (offset + start) // chunk_length
                stop = min(counts[name], (chunk + 1) * chunk_length - offset)
                spans.append({"name": name, "start": start, "stop": stop, "chunk": chunk})
                start = stop
            offset += counts[name]
    return spans


def num_reordered(
    *, parameters: Sequence[Sequence[Any]], first: Sequence[Sequence[str]], second: Sequence[Sequence[str]],
    world_size: int,
) -> int:
    """Elements that two bucket layouts sum in different orders.

    Args:
        parameters: [name, shape], float32.
        first: buckets of one layout, as `sum_spans`.
        second: buckets of the other.
        world_size: ranks n, >= 2.

    Returns: elements; 0 for two ranks, where both orders are the same sum. An upper bound of the gradient elements that
        can differ: most sums round alike in either order.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: as `sum_spans`.
    Source: `sum_spans`.

    >>> num_reordered(parameters=[["w", [6]], ["b", [2]]], first=[["w", "b"]], second=[["b", "w"]], world_size=4)
    8
    """
    require_int("world_size", world_size, least=2)
    if world_size == 2:
        return 0
    layouts = [sum_spans(parameters=parameters, buckets=buckets, world_size=world_size) for buckets in (first, second)]
    changed = 0
    for name, *_ in parameters:
        ours, theirs = ([span for span in layout if span["name"] == name] for layout in layouts)
        changed += sum(
            max(0, min(a["stop"], b["stop"]) - max(a["start"], b["start"]))
            for a in ours for b in theirs if a["chunk"] != b["chunk"])
    return changed


def _num_elements(shape: Sequence[int]) -> int:
    count = 1
    for length in shape:
        count *= require_int("parameters: shape", length)
    return count

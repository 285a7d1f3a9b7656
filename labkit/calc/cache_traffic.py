"""What a cache keeps of a kernel's traffic: bytes that a memory counter sees, and bytes still in the cache at the end.

In: bytes read and written, cache size. Out: bytes, fractions, faults.

    python -m labkit calc cache_traffic retained_write_bytes read_bytes=134e6 write_bytes=134e6 l2_bytes=62914560
"""

from __future__ import annotations

from labkit.calc._require import require_int, require_number


def retained_write_bytes(
    *, read_bytes: float, write_bytes: float, l2_bytes: float, read_copies: float = 1.0
) -> float:
    """Written bytes that still wait in the last-level cache when a streaming kernel ends.

    The cache then holds the last lines that were touched. Reads and writes arrive mixed, so the written share of what
    is held is the written share of the room that was taken.

    Args:
        read_bytes: read once by the kernel, >= 0.
        write_bytes: written once, >= 0.
        l2_bytes: capacity of the cache, > 0.
        read_copies: lines that a line read takes: 1 in one cache; 1.5 in a cache of two halves, where half of the reads
            cross and are kept in both; 0 for loads whose lines are the first to leave.

    Returns: bytes, between 0 and the smaller of `write_bytes` and `l2_bytes`.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: write-back cache, whole lines, least recently used is evicted, a cold start, each byte touched once.
    Source: steady state of an LRU cache under a mixed stream; min(W, C W / (k R + W)).

    >>> retained_write_bytes(read_bytes=134217728, write_bytes=134217728, l2_bytes=62914560) / 2**20
    30.0
    >>> retained_write_bytes(read_bytes=134217728, write_bytes=134217728, l2_bytes=62914560, read_copies=1.5) / 2**20
    24.0
    >>> retained_write_bytes(read_bytes=8 * 2**20, write_bytes=8 * 2**20, l2_bytes=62914560) / 2**20
    8.0
    """
    require_number("read_bytes", read_bytes, least=0)
    require_number("write_bytes", write_bytes, least=0)
    require_number("l2_bytes", l2_bytes, above=0)
    taken = require_number("read_copies", read_copies, least=0) * read_bytes + write_bytes
    return min(write_bytes, l2_bytes * write_bytes / taken) if taken else 0.0


def fits_cache(*, read_bytes: float, write_bytes: float, l2_bytes: float, read_copies: float = 1.0) -> bool:
    """Whether everything that a kernel touches stays in the cache.

    Args:
        read_bytes: as `retained_write_bytes`.
        write_bytes: as `retained_write_bytes`.
        l2_bytes: as `retained_write_bytes`.
        read_copies: as `retained_write_bytes`.

    Returns: True if copies of what is read, and what is written, take no more room than there is.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: as `retained_write_bytes`.
    Source: k R + W <= C.

    >>> [fits_cache(read_bytes=28.0, write_bytes=28.0, l2_bytes=60.0, read_copies=k) for k in (1.0, 1.5)]
    [True, False]
    """
    require_number("read_bytes", read_bytes, least=0)
    require_number("write_bytes", write_bytes, least=0)
    require_number("read_copies", read_copies, least=0)
    return read_copies * read_bytes + write_bytes <= require_number("l2_bytes", l2_bytes, above=0)


def counted_write_bytes(
    *, read_bytes: float, write_bytes: float, l2_bytes: float, read_copies: float = 1.0, passes: int = 1
) -> float:
    """Bytes that a memory counter sees written while a kernel runs.

    Args:
        read_bytes: as `retained_write_bytes`.
        write_bytes: as `retained_write_bytes`.
        l2_bytes: as `retained_write_bytes`.
        read_copies: as `retained_write_bytes`.
        passes: times that the kernel goes over the same data, >= 1.

    Returns: bytes: nothing for data that fits, else all that is written but what is left at the end.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: as `retained_write_bytes`.
    Source: P W minus what is retained; conservation of dirty bytes.

    >>> counted_write_bytes(read_bytes=128.0, write_bytes=128.0, l2_bytes=64.0)
    96.0
    >>> counted_write_bytes(read_bytes=8.0, write_bytes=8.0, l2_bytes=64.0, passes=4)
    0.0
    """
    sizes = {"read_bytes": read_bytes, "write_bytes": write_bytes, "l2_bytes": l2_bytes, "read_copies": read_copies}
    kept = retained_write_bytes(**sizes)
    return 0.0 if fits_cache(**sizes) else require_int("passes", passes, least=1) * write_bytes - kept


def counted_read_bytes(
    *, read_bytes: float, write_bytes: float, l2_bytes: float, read_copies: float = 1.0, passes: int = 1
) -> float:
    """Bytes that a memory counter sees read while a kernel runs, after a cold start.

    Args:
        read_bytes: as `retained_write_bytes`.
        write_bytes: as `retained_write_bytes`.
        l2_bytes: as `retained_write_bytes`.
        read_copies: as `retained_write_bytes`.
        passes: times that the kernel goes over the same data, >= 1.

    Returns: bytes: every byte once if all of it fits the cache, else once in each pass.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: as `retained_write_bytes`; whole lines are written, not read first.
    Source: cold misses; a stream longer than an LRU cache never finds what it left. Report section 7.3 counts one pass.

    >>> [counted_read_bytes(read_bytes=n, write_bytes=n, l2_bytes=60.0, passes=4) for n in (8.0, 80.0)]
    [8.0, 320.0]
    """
    sizes = {"read_bytes": read_bytes, "write_bytes": write_bytes, "l2_bytes": l2_bytes, "read_copies": read_copies}
    return read_bytes if fits_cache(**sizes) else require_int("passes", passes, least=1) * read_bytes


def stream_hit_share(*, read_bytes: float, write_bytes: float) -> float:
    """Share of a cold streaming kernel's accesses that hit the last-level cache: every write does, no read does.

    Args:
        read_bytes: read once, >= 0.
        write_bytes: written once, >= 0, not both 0.

    Returns: a fraction between 0 and 1.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: whole lines are written (no fetch before a write), every sector read once.
    Source: writes / accesses, by sectors.

    >>> stream_hit_share(read_bytes=100.0, write_bytes=100.0)
    0.5
    """
    require_number("read_bytes", read_bytes, least=0)
    total = read_bytes + require_number("write_bytes", write_bytes, least=0)
    if not total:
        raise ValueError("read_bytes=0, write_bytes=0: expected some traffic")
    return write_bytes / total


def first_touch_faults(*, num_bytes: int, page_bytes: int = 4096) -> int:
    """Page faults of writing to fresh anonymous memory for the first time.

    Args:
        num_bytes: of the mapping, >= 0.
        page_bytes: page size, >= 1.

    Returns: faults: one a page. Touching the memory again costs none.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: pages of one size (huge pages off for this mapping), nothing swapped out.
    Source: demand paging; getrusage(2), ru_minflt.

    >>> first_touch_faults(num_bytes=64 * 2**20)
    16384
    """
    return -(-require_int("num_bytes", num_bytes) // require_int("page_bytes", page_bytes, least=1))

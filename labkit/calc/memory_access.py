"""What a warp's access pattern costs, and how large the special memories are.

In: word strides, patterns, sizes. Out: conflicts, sectors, requests, bytes.

    python -m labkit calc memory_access bank_conflict_ways stride_words=32
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from labkit.calc._require import require_choice, require_int, require_number

LANES = 32
BANKS = 32
SECTOR_BYTES = 32


def bank_conflict_ways(*, stride_words: int, num_banks: int = BANKS) -> int:
    """Times that a warp's shared-memory access is replayed when lane i reads word i x stride.

    Args:
        stride_words: distance of neighbouring lanes in 4-byte words, >= 0; 0: all lanes read one word.
        num_banks: >= 1.

    Returns: the largest number of different words in one bank; 1 is free of conflicts.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: 32 lanes, 4-byte accesses; lanes that read the same word share one access.
    Source: gcd(stride, 32) for 32 banks of 4 bytes, CUDA C++ Programming Guide; interview question 18.

    >>> [bank_conflict_ways(stride_words=s) for s in (1, 2, 8, 32, 33)]
    [1, 2, 8, 32, 1]
    """
    stride = require_int("stride_words", stride_words, least=0)
    return _ways({lane * stride for lane in range(LANES)}, require_int("num_banks", num_banks, least=1))


def tile_conflict_ways(*, access: str, layout: str, line: int = 5) -> int:
    """Bank conflicts of a warp that reads one row or column of a 32 x 32 tile of words in shared memory.

    Args:
        access: "row" or "column".
        layout: "plain" (row pitch 32), "padded" (row pitch 33) or "swizzled" (column XOR row).
        line: which row or column, 0 to 31.

    Returns: ways; 1 is free of conflicts.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: as `bank_conflict_ways`.
    Source: bank(r, c) = (c XOR r) mod 32; extra interview question 36.

    >>> [tile_conflict_ways(access="column", layout=name) for name in ("plain", "padded", "swizzled")]
    [32, 1, 1]
    """
    require_choice("access", access, ("row", "column"))
    require_choice("layout", layout, ("plain", "padded", "swizzled"))
    if require_int("line", line, least=0) >= LANES:
        raise ValueError(f"line={line!r}: expected at most {LANES - 1}")
    cells = [(line, i) if access == "row" else (i, line) for i in range(LANES)]
    pitch = LANES + (layout == "padded")
    return _ways({row * pitch + (column ^ row if layout == "swizzled" else column) for row, column in cells}, BANKS)


def num_sectors(*, stride_words: int, bytes_per_word: int = 4) -> int:
    """32-byte sectors that a warp touches in global memory when lane i reads word i x stride.

    Args:
        stride_words: distance of neighbouring lanes in words, >= 0.
        bytes_per_word: 1, 2, 4, 8 or 16.

    Returns: sectors, 1 to 32 (more where a word is cut by a sector's edge: not with these sizes).
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: the first word starts a sector; 32 lanes.
    Source: number of different floor(address / 32); interview question 18.

    >>> [num_sectors(stride_words=s) for s in (1, 2, 4, 8)]
    [4, 8, 16, 32]
    """
    if bytes_per_word not in (1, 2, 4, 8, 16):
        raise ValueError(f"bytes_per_word={bytes_per_word!r}: expected 1, 2, 4, 8 or 16")
    stride = require_int("stride_words", stride_words, least=0)
    return len({lane * stride * bytes_per_word // SECTOR_BYTES for lane in range(LANES)})


def constant_requests(*, addresses: Sequence[int]) -> int:
    """Requests that one warp's read of constant memory is served in: one for each different address.

    Args:
        addresses: word address of each lane, 1 to 32 of them, >= 0.

    Returns: requests.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: all hit in the constant cache.
    Source: CUDA C++ Programming Guide, "Constant Memory"; interview question 20.

    >>> [constant_requests(addresses=[i % n for i in range(32)]) for n in (1, 2, 32)]
    [1, 2, 32]
    """
    if isinstance(addresses, str) or not 1 <= len(addresses) <= LANES:
        raise ValueError(f"addresses={addresses!r}: expected a list of 1 to {LANES}")
    return len({require_int("addresses", address, least=0) for address in addresses})


def constant_window(*, window_bytes: int = 65536, bytes_per_element: int = 4, other_bytes: int = 0) -> dict[str, Any]:
    """What the constant window holds.

    Args:
        window_bytes: size of the window, >= 1.
        bytes_per_element: >= 1.
        other_bytes: an object to compare with, >= 0.

    Returns: {"elements": that fit, "other_over_window": ratio}.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: nothing else is in the window.
    Source: 64 KiB, CUDA C++ Programming Guide; interview question 20.

    >>> constant_window(other_bytes=7168 * 2048 * 2)
    {'elements': 16384, 'other_over_window': 448.0}
    """
    window = require_int("window_bytes", window_bytes, least=1)
    fit = window // require_int("bytes_per_element", bytes_per_element, least=1)
    return {"elements": fit, "other_over_window": require_int("other_bytes", other_bytes, least=0) / window}


def local_memory_bytes(*, bytes_per_thread: int, num_sms: int, threads_per_sm: int = 2048) -> int:
    """Device memory that spilled (thread-local) data takes when every thread slot is used.

    Args:
        bytes_per_thread: >= 0.
        num_sms: >= 1.
        threads_per_sm: >= 1.

    Returns: bytes.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: backing store for every resident thread.
    Source: product; interview question 18.

    >>> local_memory_bytes(bytes_per_thread=512, num_sms=132) // 2**20
    132
    """
    slots = require_int("num_sms", num_sms, least=1) * require_int("threads_per_sm", threads_per_sm, least=1)
    return require_int("bytes_per_thread", bytes_per_thread, least=0) * slots


def tensor_memory_bytes(*, lanes: int = 128, columns: int = 512, bytes_per_cell: int = 4) -> int:
    """Size of an SM's tensor memory.

    Args:
        lanes: rows, >= 1.
        columns: >= 1.
        bytes_per_cell: >= 1.

    Returns: bytes.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: compute capability 10.0.
    Source: PTX ISA, "Tensor Memory"; interview question 18.

    >>> tensor_memory_bytes() // 1024
    256
    """
    cells = require_int("lanes", lanes, least=1) * require_int("columns", columns, least=1)
    return cells * require_int("bytes_per_cell", bytes_per_cell, least=1)


def shared_block_exposure(*, request_bytes: int, block_bytes: int = 2 * 2**20) -> dict[str, int]:
    """Neighbouring bytes that sharing a sub-allocation can expose, and the size that exposes none.

    Args:
        request_bytes: wanted allocation, >= 1.
        block_bytes: what the driver hands out and IPC shares as a whole, >= 1.

    Returns: {"exposed_bytes": of other allocations at most, "rounded_bytes": the request rounded up to blocks}.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: the rest of the last block may belong to anyone.
    Source: CUDA C++ Programming Guide, interprocess communication; interview question 19.

    >>> shared_block_exposure(request_bytes=300 * 1024)
    {'exposed_bytes': 1789952, 'rounded_bytes': 2097152}
    """
    request = require_int("request_bytes", request_bytes, least=1)
    block = require_int("block_bytes", block_bytes, least=1)
    rounded = -(-request // block) * block
    return {"exposed_bytes": rounded - request, "rounded_bytes": rounded}


def fragmentation_share(*, free_bytes: Sequence[float]) -> float:
    """Share of the free memory that one large request cannot use.

    Args:
        free_bytes: sizes of the holes, at least one, > 0.

    Returns: a fraction in [0, 1).
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: holes cannot be moved together.
    Source: 1 - largest free / total free; extra interview question 48.

    >>> fragmentation_share(free_bytes=[2] * 10)
    0.9
    """
    if not len(free_bytes):
        raise ValueError("free_bytes=[]: expected at least one hole")
    holes = [require_number("free_bytes", hole, above=0) for hole in free_bytes]
    return 1 - max(holes) / sum(holes)


def _ways(words: set[int], num_banks: int) -> int:
    """Different words in the fullest bank; a word read by several lanes is fetched once."""
    return max(Counter(word % num_banks for word in words).values())

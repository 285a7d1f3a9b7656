"""A kernel that keeps a whole row in registers: how many it needs at least, when it must spill, what is in flight.

In: row length, warps of a block, bytes per element, blocks per SM. Out: registers, bytes, seconds.

    python -m labkit calc row_registers row_registers_per_thread hidden=8192 num_warps=1
"""

from __future__ import annotations

from labkit.calc._require import require_int, require_number
from labkit.calc.occupancy import LIMITS, MAX_REGISTERS_PER_THREAD, WARP
from labkit.calc.rmsnorm import block_size

REGISTER_BYTES = 4
REGISTER_STEP = 8
"""Registers per thread are given in steps of 8: 256 for a warp of 32 threads."""


def row_registers_per_thread(*, hidden: int, num_warps: int, bytes_per_element: int = 2) -> int:
    """Registers that one thread's share of a row fills, packed: the least a kernel needs that reads the row once.

    Args:
        hidden: length of a row, >= 1; padded to a power of two.
        num_warps: warps of the block that holds the row, >= 1.
        bytes_per_element: 2 for fp16 and bf16.

    Returns: registers of 4 bytes. Addresses, sums, the weight come on top.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: one row a block, held on chip between the reduction and the store, not in shared memory.
    Source: block x bytes / (32 threads x warps x 4 bytes).

    >>> [row_registers_per_thread(hidden=8192, num_warps=w) for w in (1, 2, 4, 8)]
    [128, 64, 32, 16]
    """
    threads = WARP * require_int("num_warps", num_warps, least=1)
    share = block_size(hidden=hidden) * require_int("bytes_per_element", bytes_per_element, least=1)
    return -(-share // (threads * REGISTER_BYTES))


def register_cap(*, num_warps: int, compute_capability: str | float = "9.0") -> int:
    """Most registers per thread with which one block of this many warps can be launched.

    Args:
        num_warps: warps of the block, 1 to 32.
        compute_capability: as `labkit.calc.occupancy.occupancy`.

    Returns: registers per thread, at most 255. A compiler that is told the block size stays at or below it.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: shared memory does not forbid the block.
    Source: `labkit.calc.occupancy`: 256 registers a warp at a time, in each of four sub-partitions.

    >>> [register_cap(num_warps=w) for w in (1, 4, 8, 16, 32)]
    [255, 255, 255, 128, 64]
    """
    if require_int("num_warps", num_warps, least=1) > 32:
        raise ValueError(f"num_warps={num_warps}: expected at most 32")
    if str(compute_capability) not in LIMITS:
        raise ValueError(f"compute_capability={compute_capability!r}: expected one of {', '.join(LIMITS)}")
    sm = LIMITS[str(compute_capability)]
    parts = sm["sub_partitions"]
    warps_in_fullest = -(-num_warps // parts)
    per_warp = sm["registers_per_sm"] // parts // warps_in_fullest // sm["register_unit"] * sm["register_unit"]
    return min(MAX_REGISTERS_PER_THREAD, per_warp // WARP)


def must_spill(
    *, hidden: int, num_warps: int, bytes_per_element: int = 2, compute_capability: str | float = "9.0"
) -> bool:
    """Whether the row alone, packed, fills every register a thread can have: then part of it lives in local memory.

    Args:
        hidden: length of a row, >= 1.
        num_warps: warps of the block, 1 to 32.
        bytes_per_element: 2 for fp16 and bf16.
        compute_capability: as `register_cap`.

    Returns: True if no compiler can avoid it. False promises nothing: live addresses and the weight need room too.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: as `row_registers_per_thread`.
    Source: `row_registers_per_thread` >= `register_cap`.

    >>> must_spill(hidden=8192, num_warps=1), must_spill(hidden=16384, num_warps=1)
    (False, True)
    """
    needed = row_registers_per_thread(hidden=hidden, num_warps=num_warps, bytes_per_element=bytes_per_element)
    return needed >= register_cap(num_warps=num_warps, compute_capability=compute_capability)


def register_estimate(
    *, hidden: int, num_warps: int, slope: float = 1.25, intercept: float = 12, cap: int = MAX_REGISTERS_PER_THREAD
) -> dict[str, int]:
    """Registers and stack of the report's kernel by a straight line through the counts that the report printed.

    Args:
        hidden: length of a row, >= 1.
        num_warps: warps of the block, >= 1.
        slope: registers per element of a thread; 1.25 fits the report's fp16 counts.
        intercept: registers that do not depend on the row, as fitted.
        cap: most registers a thread may have; what is above it goes to the stack.

    Returns: {"registers", "stack_bytes"} per thread.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: the compiler of the report. A guess for any other: that is what the lab measures.
    Source: 12 + 1.25 x elements, through 32, 52 and 172 registers at 16, 32 and 128 elements; report section 14.2.

    >>> [register_estimate(hidden=8192, num_warps=w)["registers"] for w in (1, 2, 4, 8)]
    [255, 172, 92, 52]
    """
    elements = block_size(hidden=hidden) / (WARP * require_int("num_warps", num_warps, least=1))
    wanted = round(require_number("intercept", intercept, least=0) + require_number("slope", slope, above=0) * elements)
    return {"registers": min(wanted, cap), "stack_bytes": REGISTER_BYTES * max(0, wanted - cap)}


def spill_traffic_bytes(*, rows: int, num_warps: int, spill_store_bytes: int, spill_load_bytes: int) -> int:
    """Bytes that spills move to and from local memory in one call, all threads together.

    Args:
        rows: rows, one block each, >= 1.
        num_warps: warps of a block, >= 1.
        spill_store_bytes: per thread, as `ptxas -v` counts them, >= 0.
        spill_load_bytes: per thread, >= 0.

    Returns: bytes. They reach DRAM only as far as the caches do not hold them.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: each spill instruction runs once (no loop), as in a one-row kernel.
    Source: rows x threads x (stores + loads).

    >>> spill_traffic_bytes(rows=8192, num_warps=1, spill_store_bytes=384, spill_load_bytes=384)
    201326592
    """
    per_thread = require_int("spill_store_bytes", spill_store_bytes, least=0)
    per_thread += require_int("spill_load_bytes", spill_load_bytes, least=0)
    return require_int("rows", rows, least=1) * WARP * require_int("num_warps", num_warps, least=1) * per_thread


def rows_in_flight_bytes(*, hidden: int, blocks_per_sm: int, bytes_per_element: int = 2) -> int:
    """Bytes of input that an SM has requested when every resident block has just loaded its row.

    Args:
        hidden: length of a row, >= 1.
        blocks_per_sm: resident blocks, >= 0.
        bytes_per_element: 2 for fp16 and bf16.

    Returns: bytes; they do not depend on the warps that share a row.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: one row a block, all its loads issued before the first result is used.
    Source: blocks x row.

    >>> [rows_in_flight_bytes(hidden=4096, blocks_per_sm=b) for b in (12, 8, 9, 8)]
    [98304, 65536, 73728, 65536]
    """
    row = require_int("hidden", hidden, least=1) * require_int("bytes_per_element", bytes_per_element, least=1)
    return row * require_int("blocks_per_sm", blocks_per_sm, least=0)


def latency_bound_time_s(
    *, num_bytes: float, bytes_per_s: float, blocks: int, blocks_per_sm: int, num_sms: int, block_s: float
) -> float:
    """Time of a grid of equal blocks: the memory's time or the blocks' own, whichever is longer.

    Args:
        num_bytes: least traffic, >= 0.
        bytes_per_s: ceiling of the memory, bytes/s, > 0.
        blocks: blocks of the grid, >= 1.
        blocks_per_sm: resident blocks, >= 1.
        num_sms: SMs, >= 1.
        block_s: time of one block when it does not queue for the memory, seconds, > 0.

    Returns: seconds, without the launch floor.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: blocks follow each other without a gap, as many waves as blocks over places (not rounded up).
    Source: Little's law: the two are equal where blocks in flight x bytes / latency is the bandwidth.

    >>> round(1e6 * latency_bound_time_s(num_bytes=134e6, bytes_per_s=4.3e12, blocks=8192, blocks_per_sm=1,
    ...                                  num_sms=132, block_s=1.5e-6), 1)
    93.1
    """
    places = require_int("blocks_per_sm", blocks_per_sm, least=1) * require_int("num_sms", num_sms, least=1)
    by_memory = require_number("num_bytes", num_bytes, least=0) / require_number("bytes_per_s", bytes_per_s, above=0)
    return max(by_memory, require_int("blocks", blocks, least=1) / places * require_number("block_s", block_s, above=0))


def knee_blocks_per_sm(*, hidden: int, bytes_per_s: float, num_sms: int, block_s: float,
                       bytes_per_element: int = 2) -> float:  # fmt: skip
    """Resident blocks per SM from which more occupancy brings nothing: the memory is busy.

    Args:
        hidden: length of a row, >= 1.
        bytes_per_s: ceiling of the memory, bytes/s, > 0.
        num_sms: SMs, >= 1.
        block_s: time of one block when it does not queue for the memory, seconds, > 0.
        bytes_per_element: 2 for fp16 and bf16; a row is read once and written once.

    Returns: blocks, not rounded.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: as `latency_bound_time_s`; the weight stays in cache.
    Source: bandwidth x time of a block / (SMs x bytes of a block).

    >>> round(knee_blocks_per_sm(hidden=4096, bytes_per_s=4.3e12, num_sms=132, block_s=1.5e-6), 1)
    3.0
    """
    moved = 2 * require_int("hidden", hidden, least=1) * require_int("bytes_per_element", bytes_per_element, least=1)
    rate = require_number("bytes_per_s", bytes_per_s, above=0) / require_int("num_sms", num_sms, least=1)
    return rate * require_number("block_s", block_s, above=0) / moved

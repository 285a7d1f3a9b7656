"""Occupancy by doing it: blocks placed on an SM one by one, warps into its sub-partitions, until one finds no room.

A second way to what `labkit.calc.occupancy` gets by division; a run compares the two for every kernel it compiles.

    python -m labkit calc occupancy_by_placing allocate_blocks registers_per_thread=99 threads_per_block=64
"""

from __future__ import annotations

from typing import Any

from labkit.calc._require import require_int
from labkit.calc.occupancy import LIMITS, WARP


def allocate_blocks(
    *, registers_per_thread: int, threads_per_block: int, shared_bytes_per_block: int = 0,
    compute_capability: str | float = "9.0",
) -> dict[str, Any]:
    """Resident blocks by doing it: blocks are placed on an SM one by one, warps into sub-partitions, until one fails.

    A second way to `labkit.calc.occupancy.occupancy`, which divides; no line of it is used here.

    Args:
        registers_per_thread: 0 to 255.
        threads_per_block: 1 to 1024.
        shared_bytes_per_block: static plus dynamic, bytes, >= 0.
        compute_capability: key of `labkit.calc.occupancy.LIMITS`.

    Returns: {"blocks_per_sm", "stopped_by": what the next block did not find room in: `registers`, `shared_memory`,
        `warps` or `blocks`}.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: as `occupancy`, with shared memory beyond 48 KiB opted in.
    Source: the hardware's units: 256 registers, four sub-partitions, shared memory plus the driver's reserve.

    >>> allocate_blocks(registers_per_thread=99, threads_per_block=64, compute_capability="7.0")
    {'blocks_per_sm': 8, 'stopped_by': 'registers'}
    """
    require_int("registers_per_thread", registers_per_thread, least=0)
    require_int("threads_per_block", threads_per_block, least=1)
    require_int("shared_bytes_per_block", shared_bytes_per_block, least=0)
    if str(compute_capability) not in LIMITS:
        raise ValueError(f"compute_capability={compute_capability!r}: expected one of {', '.join(LIMITS)}")
    sm = LIMITS[str(compute_capability)]
    free = [sm["registers_per_sm"] // sm["sub_partitions"]] * sm["sub_partitions"]
    shared_left, warps_left = sm["shared_memory_per_sm_bytes"], sm["max_warps_per_sm"]
    share, step = shared_bytes_per_block + sm["reserved_shared_memory_bytes"], sm["shared_memory_unit_bytes"]
    while share % step:
        share += 1
    most = sm["shared_memory_per_block_bytes"] + sm["reserved_shared_memory_bytes"]
    bundle = registers_per_thread * WARP
    while bundle % sm["register_unit"]:
        bundle += 1
    for blocks in range(sm["max_blocks_per_sm"]):
        if share > shared_left or share > most:
            return {"blocks_per_sm": blocks, "stopped_by": "shared_memory"}
        shared_left -= share
        for _ in range(0, threads_per_block, WARP):
            if not warps_left:
                return {"blocks_per_sm": blocks, "stopped_by": "warps"}
            warps_left -= 1
            free.sort()
            if free[-1] < bundle:
                return {"blocks_per_sm": blocks, "stopped_by": "registers"}
            free[-1] -= bundle
    return {"blocks_per_sm": sm["max_blocks_per_sm"], "stopped_by": "blocks"}

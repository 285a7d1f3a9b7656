"""Theoretical occupancy of an NVIDIA kernel: resident blocks and warps per SM, and what limits them.

In: registers per thread, threads per block, shared memory per block, compute capability (or a dict of limits).
Out: blocks, warps, fraction, limiting resources. The rule is that of `cudaOccupancyMaxActiveBlocksPerMultiprocessor`.

    python -m labkit calc occupancy occupancy compute_capability=7.0 registers_per_thread=99 threads_per_block=64
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from labkit.calc._require import require_int

KIB = 1024
WARP = 32
MAX_THREADS_PER_BLOCK = 1024
MAX_REGISTERS_PER_THREAD = 255
STATIC_SHARED_BYTES = 48 * KIB
"""Shared memory a block may have without the kernel opting in to more."""


def _limits(warps: int, blocks: int, shared_kib: int, block_kib: int, *, unit: int, reserved: int) -> dict[str, int]:
    return {
        "registers_per_sm": 65536, "registers_per_block": 65536, "register_unit": 256, "sub_partitions": 4,
        "max_warps_per_sm": warps, "max_blocks_per_sm": blocks, "shared_memory_per_sm_bytes": shared_kib * KIB,
        "shared_memory_per_block_bytes": block_kib * KIB, "shared_memory_unit_bytes": unit,
        "reserved_shared_memory_bytes": reserved,
    }


LIMITS: dict[str, dict[str, int]] = {
    "7.0": _limits(64, 32, 96, 96, unit=256, reserved=0),
    "7.5": _limits(32, 16, 64, 64, unit=256, reserved=0),
    "8.0": _limits(64, 32, 164, 163, unit=128, reserved=KIB),
    "8.6": _limits(48, 16, 100, 99, unit=128, reserved=KIB),
    "8.9": _limits(48, 24, 100, 99, unit=128, reserved=KIB),
    "9.0": _limits(64, 32, 228, 227, unit=128, reserved=KIB),
    "10.0": _limits(64, 32, 228, 227, unit=128, reserved=KIB),
    "12.0": _limits(48, 24, 100, 99, unit=128, reserved=KIB),
}
"""Per compute capability: CUDA C++ Programming Guide 13.0 ("Technical Specifications per Compute Capability") for the
limits, cuda_occupancy.h for the allocation units. Since 8.0 the driver keeps 1 KiB of shared memory per block."""


def occupancy(
    *, registers_per_thread: int, threads_per_block: int, shared_bytes_per_block: int = 0,
    compute_capability: str | float = "9.0", opt_in: bool = True, limits: Mapping[str, int] | None = None,
) -> dict[str, Any]:
    """Resident blocks and warps of a kernel on one SM, with the hardware's allocation granularity.

    Registers are given to whole warps in units of 256, inside each of four sub-partitions; shared memory is rounded up
    to a unit and since Ampere a reserve per block is added.

    Args:
        registers_per_thread: as ptxas or cuobjdump report it, 0 to 255.
        threads_per_block: 1 to 1024.
        shared_bytes_per_block: static plus dynamic, without the driver's reserve, bytes, >= 0.
        compute_capability: "7.0", "7.5", "8.0", "8.6", "8.9", "9.0", "10.0" or "12.0".
        opt_in: the kernel asked for more than 48 KiB where it needs it, as Triton does.
        limits: other limits, with the keys of `LIMITS`; given, the compute capability is not looked at.

    Returns: {"blocks_per_sm", "warps_per_sm", "occupancy" (fraction of the SM's warps), "limited_by" (those of
        "registers", "shared_memory", "warps", "blocks" that bind), "limits" (blocks that each would allow; None where
        the kernel does not use the resource)}. 0 blocks: the kernel cannot be launched.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: largest shared-memory carveout, no clusters. An upper bound: achieved occupancy is a measurement.
    Source: the rule described by cuda_occupancy.h (CUDA 13); erratum E01 of the report.

    >>> occupancy(registers_per_thread=99, threads_per_block=64, compute_capability="7.0")["occupancy"]
    0.25
    >>> occupancy(registers_per_thread=32, threads_per_block=256, compute_capability="9.0")["limited_by"]
    ['registers', 'warps']
    """
    sm = _find_limits(compute_capability, limits)
    warps = _check_kernel(registers_per_thread, threads_per_block, shared_bytes_per_block)
    allowed = {
        "registers": _blocks_by_registers(sm, registers_per_thread, warps),
        "shared_memory": _blocks_by_shared_memory(sm, shared_bytes_per_block, opt_in),
        "warps": sm["max_warps_per_sm"] // warps,
        "blocks": sm["max_blocks_per_sm"],
    }
    return _result(allowed, warps, sm["max_warps_per_sm"])


def naive_occupancy(
    *, registers_per_thread: int, threads_per_block: int, shared_bytes_per_block: int = 0,
    compute_capability: str | float = "9.0", limits: Mapping[str, int] | None = None,
) -> dict[str, Any]:
    """The back-of-envelope bound: each total divided by what a block asks for, no granularity.

    It is never below `occupancy`, and often above it; the report printed this one.

    Args:
        registers_per_thread: 0 to 255.
        threads_per_block: 1 to 1024.
        shared_bytes_per_block: static plus dynamic, bytes, >= 0.
        compute_capability: as `occupancy`.
        limits: as `occupancy`.

    Returns: as `occupancy`.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: allocation in single registers and bytes, no reserve.
    Source: report section 14.2, min of four quotients.

    >>> naive_occupancy(registers_per_thread=99, threads_per_block=64, compute_capability="7.0")["occupancy"]
    0.3125
    """
    sm = _find_limits(compute_capability, limits)
    warps = _check_kernel(registers_per_thread, threads_per_block, shared_bytes_per_block)
    registers, shared = registers_per_thread * warps * WARP, shared_bytes_per_block
    allowed = {
        "registers": sm["registers_per_sm"] // registers if registers else None,
        "shared_memory": sm["shared_memory_per_sm_bytes"] // shared if shared else None,
        "warps": sm["max_warps_per_sm"] // warps,
        "blocks": sm["max_blocks_per_sm"],
    }
    return _result(allowed, warps, sm["max_warps_per_sm"])


def max_registers_for_blocks(
    *, blocks_per_sm: int, threads_per_block: int, compute_capability: str | float = "9.0"
) -> int | None:
    """Most registers per thread with which this many blocks still fit on an SM.

    Args:
        blocks_per_sm: wanted resident blocks, >= 1.
        threads_per_block: 1 to 1024.
        compute_capability: as `occupancy`.

    Returns: registers per thread, 255 at most; None if the warp or block limit forbids that many blocks.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: shared memory does not limit.
    Source: `occupancy`, searched downwards.

    >>> max_registers_for_blocks(blocks_per_sm=2, threads_per_block=256), max_registers_for_blocks(
    ...     blocks_per_sm=5, threads_per_block=64, compute_capability="8.9")
    (128, 168)
    """
    require_int("blocks_per_sm", blocks_per_sm, least=1)
    for registers in range(MAX_REGISTERS_PER_THREAD, 0, -1):
        found = occupancy(
            registers_per_thread=registers, threads_per_block=threads_per_block, compute_capability=compute_capability
        )
        if found["blocks_per_sm"] >= blocks_per_sm:
            return registers
    return None


def _blocks_by_registers(sm: Mapping[str, int], registers_per_thread: int, warps: int) -> int | None:
    if not registers_per_thread:
        return None
    per_warp = _round_up(registers_per_thread * WARP, sm["register_unit"])
    # The launch check counts as if every sub-partition held as many warps as the fullest one.
    if per_warp * _round_up(warps, sm["sub_partitions"]) > sm["registers_per_block"]:
        return 0
    warps_per_partition = sm["registers_per_sm"] // sm["sub_partitions"] // per_warp
    return warps_per_partition * sm["sub_partitions"] // warps


def _blocks_by_shared_memory(sm: Mapping[str, int], shared_bytes: int, opt_in: bool) -> int | None:
    reserved = sm["reserved_shared_memory_bytes"]
    allocated = _round_up(shared_bytes + reserved, sm["shared_memory_unit_bytes"])
    per_block = sm["shared_memory_per_block_bytes"] if opt_in else STATIC_SHARED_BYTES
    if allocated > per_block + reserved:
        return 0
    return sm["shared_memory_per_sm_bytes"] // allocated if allocated else None


def _result(allowed: dict[str, int | None], warps: int, max_warps: int) -> dict[str, Any]:
    blocks = min(limit for limit in allowed.values() if limit is not None)
    return {
        "blocks_per_sm": blocks, "warps_per_sm": blocks * warps, "occupancy": blocks * warps / max_warps,
        "limited_by": [name for name, limit in allowed.items() if limit == blocks], "limits": allowed,
    }


def _find_limits(compute_capability: str | float, limits: Mapping[str, int] | None) -> Mapping[str, int]:
    if limits is not None:
        missing = set(LIMITS["9.0"]) ^ set(limits)
        if missing:
            raise ValueError(f"limits: missing or unknown {', '.join(sorted(missing))}")
        for name, value in limits.items():
            require_int(f"limits[{name!r}]", value, least=0)
        return limits
    # A command line reads 10.0 as a number; its text is the same.
    if str(compute_capability) not in LIMITS:
        raise ValueError(f"compute_capability={compute_capability!r}: expected one of {', '.join(LIMITS)}")
    return LIMITS[str(compute_capability)]


def _check_kernel(registers_per_thread: int, threads_per_block: int, shared_bytes_per_block: int) -> int:
    """Warps of a block, after checking the arguments."""
    if require_int("registers_per_thread", registers_per_thread, least=0) > MAX_REGISTERS_PER_THREAD:
        raise ValueError(f"registers_per_thread={registers_per_thread}: expected at most {MAX_REGISTERS_PER_THREAD}")
    if require_int("threads_per_block", threads_per_block, least=1) > MAX_THREADS_PER_BLOCK:
        raise ValueError(f"threads_per_block={threads_per_block}: expected at most {MAX_THREADS_PER_BLOCK}")
    require_int("shared_bytes_per_block", shared_bytes_per_block, least=0)
    return -(-threads_per_block // WARP)


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit

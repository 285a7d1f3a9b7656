"""Occupancy: the report's cells, readings of real tools, and an allocator that places warps one by one."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit.calc import occupancy as occ
from labkit.hardware import list_profiles, load_profile

REPORT = {  # (hidden, warps): registers per thread, printed bound, bound with granularity (erratum E01), in %
    (4096, 1): (168, 18.75, 18.75), (4096, 2): (99, 31.25, 25.0), (4096, 4): (52, 56.25, 56.25),
    (4096, 8): (32, 100.0, 100.0), (8192, 1): (255, 12.5, 12.5), (8192, 2): (172, 15.625, 12.5),
    (8192, 4): (99, 31.25, 25.0), (8192, 8): (54, 50.0, 50.0),
}
capabilities = st.sampled_from(list(occ.LIMITS))


@pytest.mark.parametrize(("shape", "cells"), REPORT.items(), ids=str)
def test_report_cells(shape, cells):
    """Report section 14.2 and erratum E01, on a V100."""
    registers, printed, exact = cells
    kernel = {"registers_per_thread": registers, "threads_per_block": 32 * shape[1], "compute_capability": "7.0"}
    assert 100 * occ.naive_occupancy(**kernel)["occupancy"] == printed
    assert 100 * occ.occupancy(**kernel)["occupancy"] == exact


def place_warps(sm, registers, threads, shared):
    """Slow version: give blocks to the SM one by one, warps to the emptiest sub-partition, until something is full."""
    warps = -(-threads // 32)
    unit = sm["register_unit"]
    per_warp = -(-32 * registers // unit) * unit
    share = -(-(shared + sm["reserved_shared_memory_bytes"]) // sm["shared_memory_unit_bytes"])
    share *= sm["shared_memory_unit_bytes"]
    if share > sm["shared_memory_per_block_bytes"] + sm["reserved_shared_memory_bytes"]:
        return 0
    parts = [sm["registers_per_sm"] // sm["sub_partitions"]] * sm["sub_partitions"]
    fullest = -(-warps // sm["sub_partitions"])
    if per_warp * fullest > parts[0]:
        return 0
    blocks = used_shared = used_warps = 0
    while blocks < sm["max_blocks_per_sm"]:
        used_shared, used_warps = used_shared + share, used_warps + warps
        if used_shared > sm["shared_memory_per_sm_bytes"] or used_warps > sm["max_warps_per_sm"]:
            break
        for _ in range(warps):
            emptiest = parts.index(max(parts))
            if parts[emptiest] < per_warp:
                return blocks
            parts[emptiest] -= per_warp
        blocks += 1
    return blocks


@given(cc=capabilities, registers=st.integers(0, 255), threads=st.integers(1, 1024), shared=st.integers(0, 233_472))
@settings(max_examples=400, deadline=None)
def test_matches_placing_warps(cc, registers, threads, shared):
    found = occ.occupancy(
        registers_per_thread=registers, threads_per_block=threads, shared_bytes_per_block=shared, compute_capability=cc)
    assert found["blocks_per_sm"] == place_warps(occ.LIMITS[cc], registers, threads, shared)


@given(cc=capabilities, registers=st.integers(1, 254), threads=st.integers(1, 1024), shared=st.integers(0, 60_000))
def test_properties(cc, registers, threads, shared):
    """Never above the naive bound or 100 %, never better with more registers or more shared memory."""
    def blocks(function, r, s):
        return function(
            registers_per_thread=r, threads_per_block=threads, shared_bytes_per_block=s, compute_capability=cc)

    exact = blocks(occ.occupancy, registers, shared)
    assert exact["blocks_per_sm"] <= blocks(occ.naive_occupancy, registers, shared)["blocks_per_sm"]
    assert 0 <= exact["occupancy"] <= 1
    assert blocks(occ.occupancy, registers + 1, shared)["blocks_per_sm"] <= exact["blocks_per_sm"]
    assert blocks(occ.occupancy, registers, shared + 1)["blocks_per_sm"] <= exact["blocks_per_sm"]
    assert exact["limited_by"] and all(exact["limits"][n] == exact["blocks_per_sm"] for n in exact["limited_by"])


def test_readings_of_real_tools():
    """Published readings on Ada, where plain division gives other numbers.

    Nsight Compute: 20 blocks by registers for 48 registers and 64 threads. CUDA driver: a kernel with 16,888 bytes of
    shared memory and 64 threads fits 4 times at 200 registers, 5 times at 168.
    """
    ada = {"threads_per_block": 64, "compute_capability": "8.9"}
    assert occ.occupancy(registers_per_thread=48, **ada)["limits"]["registers"] == 20
    assert occ.naive_occupancy(registers_per_thread=48, **ada)["limits"]["registers"] == 21
    shared = {**ada, "shared_bytes_per_block": 16888}
    assert [occ.occupancy(registers_per_thread=r, **shared)["blocks_per_sm"] for r in (200, 168)] == [4, 5]
    assert [occ.naive_occupancy(registers_per_thread=r, **shared)["blocks_per_sm"] for r in (200, 168)] == [5, 6]
    assert occ.max_registers_for_blocks(blocks_per_sm=5, **ada) == 168


def test_interview_numbers():
    """Question 15: 2 blocks of 256 threads at 128 registers, 1 at 136; 38 KiB fits 5 blocks in 228 KiB, not 6."""
    hopper = {"threads_per_block": 256, "compute_capability": "9.0"}
    two = occ.occupancy(registers_per_thread=128, shared_bytes_per_block=64 * 1024, **hopper)
    assert (two["blocks_per_sm"], two["limited_by"]) == (2, ["registers"])
    assert occ.occupancy(registers_per_thread=136, **hopper)["blocks_per_sm"] == 1
    shared = {"registers_per_thread": 16, "threads_per_block": 32, "shared_bytes_per_block": 38 * 1024}
    assert occ.occupancy(**shared)["blocks_per_sm"] == 5
    assert occ.naive_occupancy(**shared)["blocks_per_sm"] == 6


def test_a_kernel_that_cannot_start():
    """1,024 threads at 65 registers ask for more than an SM has; 100 KiB needs the opt-in."""
    assert occ.occupancy(registers_per_thread=65, threads_per_block=1024)["blocks_per_sm"] == 0
    assert occ.occupancy(registers_per_thread=64, threads_per_block=1024)["blocks_per_sm"] == 1
    big = {"registers_per_thread": 32, "threads_per_block": 128, "shared_bytes_per_block": 100 * 1024}
    assert occ.occupancy(**big)["blocks_per_sm"] == 2
    assert occ.occupancy(**big, opt_in=False)["blocks_per_sm"] == 0


@pytest.mark.parametrize("name", [n for n in list_profiles() if load_profile(n).compute_capability in occ.LIMITS])
def test_limits_agree_with_the_hardware_profiles(name):
    """Two tables of the same facts: here for the formula, in data/hardware for the pages."""
    profile = load_profile(name)
    limits = occ.LIMITS[profile.compute_capability]
    assert limits["registers_per_sm"] == profile.value("registers_per_sm")
    for field in ("max_warps_per_sm", "max_blocks_per_sm", "shared_memory_per_sm_bytes"):
        assert limits[field] == profile.value(field)
    assert limits["shared_memory_per_block_bytes"] == profile.value("shared_memory_per_block_bytes")


def test_own_limits_replace_the_table():
    half = {**occ.LIMITS["9.0"], "registers_per_sm": 32768, "registers_per_block": 32768}
    kernel = {"registers_per_thread": 64, "threads_per_block": 256}
    assert occ.occupancy(**kernel)["blocks_per_sm"] == 4
    assert occ.occupancy(**kernel, limits=half)["blocks_per_sm"] == 2
    assert occ.occupancy(**kernel, limits=half, compute_capability="no such thing")["blocks_per_sm"] == 2


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        ({"registers_per_thread": 256, "threads_per_block": 32}, "registers_per_thread=256"),
        ({"registers_per_thread": -1, "threads_per_block": 32}, "registers_per_thread=-1"),
        ({"registers_per_thread": 1, "threads_per_block": 1025}, "threads_per_block=1025"),
        ({"registers_per_thread": 1, "threads_per_block": 0}, "threads_per_block=0"),
        ({"registers_per_thread": 1, "threads_per_block": 1, "shared_bytes_per_block": -1}, "shared_bytes_per_block"),
        ({"registers_per_thread": 1, "threads_per_block": 1, "compute_capability": "6.0"}, "compute_capability='6.0'"),
        ({"registers_per_thread": 1, "threads_per_block": 1, "limits": {"warps": 1}}, "limits"),
    ],
)
def test_bad_input_names_the_argument(kernel, message):
    with pytest.raises(ValueError, match=message):
        occ.occupancy(**kernel)

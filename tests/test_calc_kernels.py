"""Kernel transformations: printed figures and slow versions."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.calc import gemm, kernels


def test_printed_figures():
    """Interview questions 2 and 14, extra question 24."""
    assert kernels.fusion_saved_bytes(num_elements=2**26) == 256 * 2**20
    assert kernels.splits_to_fill(num_blocks=8, num_sms=132) == 17
    found = kernels.split_k(m=256, n=256, k=16384, tile_m=128, tile_n=128, num_sms=132)
    assert (found["num_tiles"], found["splits"]) == (4, 33)
    assert (found["partial_bytes"], found["operand_bytes"]) == (17301504, 16777216)
    assert [kernels.num_atomics(num_values=2**20, threads_per_block=t) for t in (1, 1024)] == [1048576, 1024]
    assert kernels.stream_time_s(num_kernels=500, kernel_s=3e-6, launch_s=5e-6) == pytest.approx(2.5e-3)
    assert kernels.graph_time_s(num_kernels=600, kernel_s=2.5e-6, graph_launch_s=10e-6) == pytest.approx(1.51e-3)
    assert kernels.padding_waste_share(batch=33, captured=[64, 1, 32]) == pytest.approx(0.484375)


def test_printed_bytes_in_flight():
    """Interview question 14: 14.9 KiB needed on an SM; 4 warps with 8 loads supply as much as 32 with one."""
    needed = kernels.bytes_in_flight_needed(bytes_per_s=3.35e12, latency_s=600e-9, num_sms=132)
    assert needed / 1024 == pytest.approx(14.9, abs=0.05)
    assert kernels.bytes_in_flight(num_warps=4, loads_per_lane=8) == kernels.bytes_in_flight(num_warps=32) == 16384


def test_accumulating_reads_the_result_too():
    """Interview question 14: 42.7 and 32.0 FLOP/B for a 128 cube; tiles of 64, 128, 256 x 128 at k = 4096."""
    cube = [gemm.gemm_intensity_flop_per_byte(m=128, n=128, k=128, reads_c=r) for r in (False, True)]
    assert cube == pytest.approx([42.7, 32.0], abs=0.05)
    tiles = [gemm.gemm_intensity_flop_per_byte(m=m, n=n, k=4096) for m, n in ((64, 64), (128, 128), (256, 128))]
    assert tiles == pytest.approx([31.8, 63.0, 83.6], abs=0.05)


def test_limits_of_the_intensity():
    """Interview question 1: K = N must exceed 590.7; 512 x 512 stays below 256 FLOP/B."""
    ridge = 989.5 / 3.35
    assert gemm.least_square_side(ridge_flop_per_byte=ridge) == pytest.approx(590.7, abs=0.05)
    assert gemm.intensity_limit_flop_per_byte(n=512, k=512) == 256
    side = gemm.least_square_side(ridge_flop_per_byte=300)
    assert gemm.intensity_limit_flop_per_byte(n=int(side), k=int(side)) == 300


def test_tiles_and_waves_together():
    """Extra question 34: 100.0 and 88.9 %."""
    found = [gemm.tiled_efficiency(m=4096, n=n, tile_m=128, tile_n=128, num_sms=132) for n in (4224, 4225)]
    assert [100 * x for x in found] == pytest.approx([100.0, 88.9], abs=0.05)


@given(n=st.integers(1, 4000), k=st.integers(1, 4000), m=st.integers(1, 10**6))
def test_no_number_of_rows_passes_the_limit(n, k, m):
    limit = gemm.intensity_limit_flop_per_byte(n=n, k=k)
    assert gemm.gemm_intensity_flop_per_byte(m=m, n=n, k=k) < limit
    assert gemm.gemm_intensity_flop_per_byte(m=10**12, n=n, k=k) == pytest.approx(limit, rel=1e-6)


@given(blocks=st.integers(1, 500), sms=st.integers(1, 200), per_sm=st.integers(1, 8))
def test_splits_fill_and_one_fewer_does_not(blocks, sms, per_sm):
    splits = kernels.splits_to_fill(num_blocks=blocks, num_sms=sms, blocks_per_sm=per_sm)
    assert splits * blocks >= sms * per_sm
    assert splits == 1 or (splits - 1) * blocks < sms * per_sm


@given(kernel=st.floats(0, 1e-3), launch=st.floats(0, 1e-3), count=st.integers(0, 1000))
def test_a_graph_is_never_slower_by_the_model(kernel, launch, count):
    graph = kernels.graph_time_s(num_kernels=count, kernel_s=kernel)
    assert graph <= kernels.stream_time_s(num_kernels=count, kernel_s=kernel, launch_s=launch)


@given(values=st.integers(0, 10**5), block=st.integers(1, 1024))
def test_atomics_by_counting_blocks(values, block):
    assert kernels.num_atomics(num_values=values, threads_per_block=block) == len(range(0, values, block))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: kernels.fusion_saved_bytes(num_elements=-1), "num_elements=-1"),
        (lambda: kernels.splits_to_fill(num_blocks=0, num_sms=1), "num_blocks=0"),
        (lambda: kernels.split_k(m=1, n=1, k=0, tile_m=1, tile_n=1, num_sms=1), "k=0"),
        (lambda: kernels.num_atomics(num_values=1, threads_per_block=0), "threads_per_block=0"),
        (lambda: kernels.stream_time_s(num_kernels=1, kernel_s=-1, launch_s=0), "kernel_s=-1"),
        (lambda: kernels.padding_waste_share(batch=9, captured=[1, 8]), "at least batch=9"),
        (lambda: kernels.bytes_in_flight(num_warps=1, bytes_per_load=32), "bytes_per_load=32"),
        (lambda: kernels.bytes_in_flight_needed(bytes_per_s=0, latency_s=1), "bytes_per_s=0"),
        (lambda: gemm.least_square_side(ridge_flop_per_byte=0), "ridge_flop_per_byte=0"),
    ],
)
def test_bad_input_names_the_argument(call, message):
    with pytest.raises(ValueError, match=message):
        call()

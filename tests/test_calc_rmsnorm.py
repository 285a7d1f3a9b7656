"""RMSNorm: the report's table, bytes counted element by element, and the two-parameter model."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.calc import rmsnorm


@pytest.mark.parametrize(
    ("rows", "hidden", "expected"),
    [(1024, 768, 3147264), (1024, 4096, 16785408), (1024, 8192, 33570816), (8192, 768, 25167360),
     (8192, 4096, 134225920), (8192, 8192, 268451840)],
)
def test_report_bytes(rows, hidden, expected):
    """Report section 7.3, recomputed in the claims file."""
    assert rmsnorm.min_bytes(rows=rows, hidden=hidden) == expected


@pytest.mark.parametrize(
    ("rows", "hidden", "ms", "gb_per_s"),
    [(1024, 768, 0.0500, 62.9453), (8192, 4096, 0.1685, 796.593), (8192, 8192, 0.3333, 805.436)],
)
def test_report_bandwidth(rows, hidden, ms, gb_per_s):
    found = rmsnorm.min_bytes_bytes_per_s(rows=rows, hidden=hidden, time_s=ms / 1e3) / 1e9
    assert found == pytest.approx(gb_per_s, abs=5e-4)


few = st.integers(1, 4)


@given(rows=st.integers(1, 20), hidden=st.integers(1, 20), a=few, b=few, w=few)
def test_bytes_element_by_element(rows, hidden, a, b, w):
    """Slow version: touch every element once."""
    moved = sum(a + b for _ in range(rows) for _ in range(hidden)) + sum(w for _ in range(hidden))
    found = rmsnorm.min_bytes(rows=rows, hidden=hidden, bytes_in=a, bytes_out=b, bytes_weight=w)
    assert found == moved


def test_report_blocks_and_masks():
    """Report section 7.2: 768 -> 1,024 with 25 % of the lanes masked; powers of two waste none."""
    assert [rmsnorm.block_size(hidden=h) for h in (768, 4096, 8192)] == [1024, 4096, 8192]
    assert [rmsnorm.masked_share(hidden=h) for h in (768, 4096)] == [0.25, 0.0]


@given(hidden=st.integers(1, 100_000))
def test_block_is_the_next_power_of_two(hidden):
    block = 1
    while block < hidden:
        block *= 2
    assert rmsnorm.block_size(hidden=hidden) == block
    assert 0 <= rmsnorm.masked_share(hidden=hidden) < 0.5


def test_report_elements_per_thread():
    """Report section 14.2: 128/64/32/16 at hidden 4,096."""
    assert [rmsnorm.elements_per_thread(hidden=4096, num_warps=w) for w in (1, 2, 4, 8)] == [128, 64, 32, 16]


def test_prediction_by_hand():
    # 4 GB at 4 TB/s is 1 ms; plus 5 us.
    found = rmsnorm.predicted_time_s(num_bytes=4e9, bytes_per_s=4e12, launch_floor_s=5e-6)
    assert found == pytest.approx(1.005e-3)
    assert rmsnorm.predicted_time_s(num_bytes=0, bytes_per_s=1, launch_floor_s=2.0) == 2.0


@given(
    bandwidth=st.floats(1e9, 1e13), floor=st.floats(1e-7, 1e-3), share=st.floats(0.01, 0.99),
)
def test_bytes_for_bandwidth_inverts_the_model(bandwidth, floor, share):
    """Identity: a call of that size reaches exactly that share of the ceiling."""
    size = rmsnorm.bytes_for_bandwidth(bytes_per_s=bandwidth, launch_floor_s=floor, share=share)
    time = rmsnorm.predicted_time_s(num_bytes=size, bytes_per_s=bandwidth, launch_floor_s=floor)
    assert size / time / bandwidth == pytest.approx(share)


@given(rows=st.integers(1, 20), hidden=st.integers(1, 20), size=few)
def test_backward_bytes_element_by_element(rows, hidden, size):
    """Slow version: x and dy read, dx written; a statistic of 4 bytes a row; weight read and dweight written once."""
    moved = sum(4 + sum(size + size + size for _ in range(hidden)) for _ in range(rows))
    moved += sum(size + size for _ in range(hidden))
    assert rmsnorm.backward_min_bytes(rows=rows, hidden=hidden, bytes_per_element=size) == moved


def test_partial_sums_by_hand():
    """132 programs, 8,192 columns: 4 bytes written and read again, 8.65 MB."""
    assert rmsnorm.partial_sum_bytes(programs=132, hidden=8192) == 132 * 8192 * 4 * 2 == 8650752


@given(rows=st.integers(1, 20), hidden=st.integers(1, 20), size=few)
def test_two_passes_read_the_inputs_once_more(rows, hidden, size):
    for way, least, inputs in (
        ("forward", rmsnorm.min_bytes(rows=rows, hidden=hidden, bytes_in=size), 1),
        ("backward", rmsnorm.backward_min_bytes(rows=rows, hidden=hidden, bytes_per_element=size), 2),
    ):
        again = sum(size for _ in range(inputs) for _ in range(rows) for _ in range(hidden))
        found = rmsnorm.two_pass_bytes(rows=rows, hidden=hidden, direction=way, bytes_per_element=size)
        assert found == least + again


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: rmsnorm.backward_min_bytes(rows=0, hidden=1), "rows=0"),
        (lambda: rmsnorm.backward_min_bytes(rows=1, hidden=1, bytes_per_element=0), "bytes_per_element=0"),
        (lambda: rmsnorm.partial_sum_bytes(programs=0, hidden=1), "programs=0"),
        (lambda: rmsnorm.two_pass_bytes(rows=1, hidden=1, direction="both"), "direction='both'"),
        (lambda: rmsnorm.two_pass_bytes(rows=1, hidden=0, direction="forward"), "hidden=0"),
        (lambda: rmsnorm.min_bytes(rows=0, hidden=1), "rows=0"),
        (lambda: rmsnorm.min_bytes(rows=1, hidden=1, bytes_out=0), "bytes_out=0"),
        (lambda: rmsnorm.min_bytes_bytes_per_s(rows=1, hidden=1, time_s=0), "time_s=0"),
        (lambda: rmsnorm.predicted_time_s(num_bytes=1, bytes_per_s=0), "bytes_per_s=0"),
        (lambda: rmsnorm.bytes_for_bandwidth(bytes_per_s=1, launch_floor_s=1, share=1), "share=1"),
        (lambda: rmsnorm.block_size(hidden=0), "hidden=0"),
        (lambda: rmsnorm.elements_per_thread(hidden=1, num_warps=0), "num_warps=0"),
    ],
)
def test_bad_input_names_the_argument(call, message):
    with pytest.raises(ValueError, match=message):
        call()

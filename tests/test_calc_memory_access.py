"""Access patterns: printed counts, the gcd rule, warps walked lane by lane."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.calc import memory_access as ma


def test_printed_counts():
    """Interview questions 18, 19 and 20, extra questions 36 and 48."""
    assert [ma.bank_conflict_ways(stride_words=s) for s in (1, 2, 8, 32, 33)] == [1, 2, 8, 32, 1]
    assert [ma.num_sectors(stride_words=s) for s in (1, 2, 4, 8)] == [4, 8, 16, 32]
    assert ma.local_memory_bytes(bytes_per_thread=512, num_sms=132) == 132 * 2**20
    assert ma.tensor_memory_bytes() == 256 * 1024
    assert [ma.constant_requests(addresses=[i % n for i in range(32)]) for n in (1, 2, 32)] == [1, 2, 32]
    assert ma.constant_window(other_bytes=7168 * 2048 * 2) == {"elements": 16384, "other_over_window": 448}
    exposed = ma.shared_block_exposure(request_bytes=300 * 1024)
    assert exposed == {"exposed_bytes": 1748 * 1024, "rounded_bytes": 2048 * 1024}
    assert ma.fragmentation_share(free_bytes=[2.0] * 10) == pytest.approx(0.9)


@pytest.mark.parametrize(
    ("access", "layout", "ways"),
    [("column", "plain", 32), ("column", "padded", 1), ("column", "swizzled", 1), ("row", "swizzled", 1),
     ("row", "plain", 1), ("row", "padded", 1)],
)
def test_tile_layouts(access, layout, ways):
    assert {ma.tile_conflict_ways(access=access, layout=layout, line=i) for i in range(32)} == {ways}


@given(stride=st.integers(1, 10**6))
def test_conflicts_are_the_common_divisor(stride):
    assert ma.bank_conflict_ways(stride_words=stride) == math.gcd(stride, 32)


@given(stride=st.integers(0, 64), size=st.sampled_from([1, 2, 4, 8, 16]))
def test_sectors_lane_by_lane(stride, size):
    touched = {byte // 32 for lane in range(32) for byte in range(lane * stride * size, lane * stride * size + size)}
    assert ma.num_sectors(stride_words=stride, bytes_per_word=size) == len(touched)


def test_one_word_for_all_lanes_is_a_broadcast():
    assert ma.bank_conflict_ways(stride_words=0) == 1


@given(request=st.integers(1, 10**7), block=st.integers(1, 10**7))
def test_rounding_up_leaves_less_than_a_block(request, block):
    found = ma.shared_block_exposure(request_bytes=request, block_bytes=block)
    assert found["rounded_bytes"] % block == 0 and 0 <= found["exposed_bytes"] < block


@given(holes=st.lists(st.floats(1, 1e9), min_size=1, max_size=20))
def test_fragmentation_limits(holes):
    share = ma.fragmentation_share(free_bytes=holes)
    assert -1e-9 <= share <= 1 - 1 / len(holes) + 1e-9


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ma.bank_conflict_ways(stride_words=-1), "stride_words=-1"),
        (lambda: ma.tile_conflict_ways(access="diagonal", layout="plain"), "access='diagonal'"),
        (lambda: ma.tile_conflict_ways(access="row", layout="plain", line=32), "line=32"),
        (lambda: ma.num_sectors(stride_words=1, bytes_per_word=3), "bytes_per_word=3"),
        (lambda: ma.constant_requests(addresses=[0] * 33), "expected a list of 1 to 32"),
        (lambda: ma.constant_window(window_bytes=0), "window_bytes=0"),
        (lambda: ma.local_memory_bytes(bytes_per_thread=1, num_sms=0), "num_sms=0"),
        (lambda: ma.tensor_memory_bytes(lanes=0), "lanes=0"),
        (lambda: ma.shared_block_exposure(request_bytes=0), "request_bytes=0"),
        (lambda: ma.fragmentation_share(free_bytes=[]), "at least one hole"),
    ],
)
def test_bad_input_names_the_argument(call, message):
    with pytest.raises(ValueError, match=message):
        call()

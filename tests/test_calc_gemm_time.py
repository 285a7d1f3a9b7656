"""Times of products: hand numbers, a count element by element, the ideal curve's own knee."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.calc import gemm, gemm_time

sizes = st.integers(1, 4000)
LINES = {"flat_intercept_s": 10.0, "flat_slope_s": 0.0, "steep_intercept_s": 2.0, "steep_slope_s": 0.5}


def test_time_by_hand():
    """Weights of 7168 x 4096 bf16: 58.7 MB; at 4 TB/s 14.68 us and 2 us floor. At 4096 rows arithmetic decides."""
    rates = {"flop_per_s": 8e14, "bytes_per_s": 4e12, "launch_floor_s": 2e-6}
    one = gemm_time.predicted_time_s(m=1, n=4096, k=7168, **rates)
    assert one == pytest.approx(2e-6 + (58720256 + 14336 + 8192) / 4e12)
    many = gemm_time.predicted_time_s(m=4096, n=4096, k=7168, **rates)
    assert many == pytest.approx(2e-6 + 2 * 4096 * 4096 * 7168 / 8e14)


@given(m=sizes, rate=st.floats(1e9, 1e15), bandwidth=st.floats(1e9, 1e13))
def test_both_roofs_meet_at_critical_rows(m, rate, bandwidth):
    """Left of M* the transfer, right of it the arithmetic is the time."""
    star = gemm.critical_rows(n=2048, k=4096, ridge_flop_per_byte=rate / bandwidth)
    time = gemm_time.predicted_time_s(m=m, n=2048, k=4096, flop_per_s=rate, bytes_per_s=bandwidth)
    transfer = gemm.gemm_bytes(m=m, n=2048, k=4096) / bandwidth
    is_memory = star is None or m < star
    assert time == pytest.approx(transfer if is_memory else gemm.gemm_flop(m=m, n=2048, k=4096) / rate)


@given(rows=st.lists(st.integers(0, 4), min_size=1, max_size=5), n=st.integers(1, 4), k=st.integers(1, 4))
def test_grouped_work_counted_element_by_element(rows, n, k):
    """Every multiply-add and every element of every array that is touched, one by one."""
    flop, touched = 0, set()
    for expert, count in enumerate(rows):
        for i in range(count):
            for j in range(n):
                touched.add(("c", expert, i, j))
                for x in range(k):
                    flop += 2
                    touched |= {("a", expert, i, x), ("b", expert, x, j)}
    found = gemm_time.grouped_work(rows=rows, n=n, k=k)
    assert found == {"flop": flop, "bytes": 2 * len(touched), "groups": sum(count > 0 for count in rows)}


@given(total=st.integers(0, 500), groups=st.integers(1, 9), share=st.floats(0, 1))
def test_skewed_rows_keep_the_total(total, groups, share):
    rows = gemm_time.skewed_rows(total=total, groups=groups, hot_share=share)
    assert sum(rows) == total and len(rows) == groups and min(rows) >= 0
    assert groups == 1 or rows[0] == int(total * share)
    assert groups < 3 or max(rows[1:]) - min(rows[1:]) <= 1


@given(a=st.floats(-5, 5), b=st.floats(-5, 5), x=st.lists(st.integers(0, 50), min_size=2, max_size=8, unique=True))
def test_fit_finds_the_line_that_made_the_points(a, b, x):
    found = gemm_time.fit_line(x=x, y=[a + b * v for v in x])
    assert (found["intercept"], found["slope"]) == (pytest.approx(a, abs=1e-6), pytest.approx(b, abs=1e-6))


def test_fit_of_scattered_points_by_hand():
    """(0,0) (1,2) (2,1): mean (1,1), slope (0*... -1*-1 + 1*0) / 2 = 0.5."""
    assert gemm_time.fit_line(x=[0, 1, 2], y=[0, 2, 1]) == {"intercept": 0.5, "slope": 0.5}


def test_knee_by_hand_and_where_there_is_none():
    assert gemm_time.knee_rows(**LINES) == 16
    assert gemm_time.knee_rows(**{**LINES, "flat_slope_s": 0.1}) == pytest.approx(20)
    assert gemm_time.knee_rows(**{**LINES, "steep_slope_s": 0.0}) is None
    assert gemm_time.knee_rows(**{**LINES, "steep_intercept_s": 11.0}) is None


def test_waves_by_hand():
    """N = 4096 makes 16 columns of 256-wide tiles: 8 rows of tiles are 128 of 132 SMs, the ninth starts a wave."""
    full = gemm_time.tile_waves(m=1024, n=4096, tile_m=128, tile_n=256, num_sms=132)
    more = gemm_time.tile_waves(m=1025, n=4096, tile_m=128, tile_n=256, num_sms=132)
    assert (full["tiles"], full["waves"], more["tiles"], more["waves"]) == (128, 1, 144, 2)
    assert more["elements"] == 2 * full["elements"] == 2 * 128 * 256


@given(m=sizes, n=sizes, tile_m=st.sampled_from([16, 64, 128]), num_sms=st.integers(1, 200))
def test_waves_agree_with_dealing_out_tiles(m, n, tile_m, num_sms):
    """Deal the tiles to the SMs one by one; the busiest has as many as there are waves."""
    found = gemm_time.tile_waves(m=m, n=n, tile_m=tile_m, tile_n=128, num_sms=num_sms)
    dealt = [0] * num_sms
    for tile in range(found["tiles"]):
        dealt[tile % num_sms] += 1
    assert max(dealt) == found["waves"] and found["elements"] == max(dealt) * tile_m * 128
    assert found["tiles"] * tile_m * 128 >= m * n


def test_wave_steps_are_where_one_row_more_adds_a_wave():
    found = gemm_time.wave_steps(n=7168, tile_m=128, tile_n=256, num_sms=132, largest_m=1536)
    waves = [gemm_time.tile_waves(m=m, n=7168, tile_m=128, tile_n=256, num_sms=132)["waves"] for m in range(1, 1538)]
    assert found == [m for m, (a, b) in enumerate(pairwise(waves), start=1) if b > a] == [512, 1152]


@pytest.mark.parametrize(("call", "name"), [
    (lambda: gemm_time.predicted_time_s(m=0, n=1, k=1, flop_per_s=1.0, bytes_per_s=1.0), "m"),
    (lambda: gemm_time.predicted_time_s(m=1, n=1, k=1, flop_per_s=0.0, bytes_per_s=1.0), "flop_per_s"),
    (lambda: gemm_time.grouped_work(rows=[-1], n=1, k=1), "rows"),
    (lambda: gemm_time.skewed_rows(total=1, groups=2, hot_share=1.5), "hot_share"),
    (lambda: gemm_time.fit_line(x=[1, 1], y=[1, 2]), "x="),
    (lambda: gemm_time.tile_waves(m=1, n=1, tile_m=1, tile_n=1, num_sms=0), "num_sms"),
])  # fmt: skip
def test_bad_input_names_the_argument(call, name):
    with pytest.raises(ValueError, match=name):
        call()

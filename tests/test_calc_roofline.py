"""Roofline: printed figures, the two limits, and the point where they meet."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.calc import roofline

positive = st.floats(1e-3, 1e15)


def test_printed_ridges():
    """Interview questions 1 and 15: H100 SXM, A100 80 GB, a round example."""
    ridge = lambda flop, byte: roofline.ridge_flop_per_byte(peak_flop_per_s=flop, bytes_per_s=byte)  # noqa: E731
    assert ridge(989.5e12, 3.35e12) == pytest.approx(295.3731343, abs=5e-8)
    assert ridge(312e12, 2.039e12) == pytest.approx(153.0161844, abs=5e-8)
    assert ridge(1000e12, 3e12) == pytest.approx(333.3333333, abs=5e-8)


def test_the_same_kernel_meets_another_roof_on_another_device():
    """Interview question 15: 200 FLOP/B is compute-bound on one part and memory-bound on the other."""
    roof = lambda flop, byte: roofline.limiting_roof(  # noqa: E731
        num_flop=200e9, num_bytes=1e9, peak_flop_per_s=flop, bytes_per_s=byte)
    assert (roof(312e12, 2.039e12), roof(989.5e12, 3.35e12)) == ("compute", "memory")


def test_hand_kernel():
    # 6 FLOP on 3 bytes: 2 FLOP/B; 10 bytes/s allow 20 FLOP/s of 100; 6 FLOP need 0.06 s, 3 bytes need 0.3 s.
    intensity = roofline.intensity_flop_per_byte(num_flop=6, num_bytes=3)
    assert intensity == 2
    rate = roofline.attainable_flop_per_s(intensity_flop_per_byte=intensity, peak_flop_per_s=100, bytes_per_s=10)
    assert rate == 20
    assert roofline.time_floor_s(num_flop=6, num_bytes=3, peak_flop_per_s=100, bytes_per_s=10) == 0.3
    assert roofline.time_floor_s(num_flop=60, num_bytes=3, peak_flop_per_s=100, bytes_per_s=10) == 0.6


@given(flop=positive, byte=positive, peak=positive, bandwidth=positive)
def test_rate_times_floor_is_the_work(flop, byte, peak, bandwidth):
    """Identity: running at the attainable rate for the least time does exactly the work."""
    rate = roofline.attainable_flop_per_s(
        intensity_flop_per_byte=flop / byte, peak_flop_per_s=peak, bytes_per_s=bandwidth)
    floor = roofline.time_floor_s(num_flop=flop, num_bytes=byte, peak_flop_per_s=peak, bytes_per_s=bandwidth)
    assert rate * floor == pytest.approx(flop, rel=1e-9)
    assert rate <= peak


@given(a=positive, b=positive, peak=positive, bandwidth=positive)
def test_the_roof_never_falls(a, b, peak, bandwidth):
    rate = lambda x: roofline.attainable_flop_per_s(  # noqa: E731
        intensity_flop_per_byte=x, peak_flop_per_s=peak, bytes_per_s=bandwidth)
    low, high = sorted((a, b))
    assert rate(low) <= rate(high)
    ridge = roofline.ridge_flop_per_byte(peak_flop_per_s=peak, bytes_per_s=bandwidth)
    assert rate(ridge) == pytest.approx(peak)
    assert rate(ridge / 2) == pytest.approx(peak / 2)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: roofline.ridge_flop_per_byte(peak_flop_per_s=0, bytes_per_s=1), "peak_flop_per_s=0"),
        (lambda: roofline.ridge_flop_per_byte(peak_flop_per_s=1, bytes_per_s=float("inf")), "bytes_per_s=inf"),
        (lambda: roofline.intensity_flop_per_byte(num_flop=1, num_bytes=0), "num_bytes=0"),
        (lambda: roofline.time_floor_s(num_flop=-1, num_bytes=1, peak_flop_per_s=1, bytes_per_s=1), "num_flop=-1"),
        (lambda: roofline.ridge_flop_per_byte(peak_flop_per_s="9e14", bytes_per_s=1), "peak_flop_per_s='9e14'"),
        (lambda: roofline.ridge_flop_per_byte(peak_flop_per_s=True, bytes_per_s=1), "peak_flop_per_s=True"),
    ],
)
def test_bad_input_names_the_argument(call, message):
    with pytest.raises(ValueError, match=message):
        call()

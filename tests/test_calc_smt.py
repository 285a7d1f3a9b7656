"""Two threads on a core: printed bounds, coin flips, limits."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.calc import smt

share = st.floats(0.01, 1)


def test_printed_figures():
    """Interview question 21."""
    assert [smt.speedup_bound(utilisation=u) for u in (0.5, 0.9)] == pytest.approx([2, 1.11], abs=0.005)
    assert [smt.speedup_random_stalls(utilisation=u) for u in (0.5, 0.9)] == pytest.approx([1.5, 1.1])
    assert smt.pair_times(speedup=1.5) == pytest.approx({"each": 1.33, "pair_over_serial": 0.67}, abs=0.005)
    assert smt.throughput_from_rates(rate_share=0.45) == pytest.approx(0.9)
    rate = [smt.miss_bandwidth_bytes_per_s(num_threads=n, misses_in_flight=10, latency_s=80e-9, limit_bytes_per_s=c)
            for n, c in ((1, None), (2, None), (2, 12e9))]
    assert [x / 1e9 for x in rate] == pytest.approx([8, 16, 12])


@pytest.mark.parametrize("utilisation", [0.3, 0.5, 0.9])
def test_coin_flips_agree(utilisation):
    """200,000 flips have a standard error below 1 / (2 x 0.3 x 447) = 0.004; 0.02 is five of them."""
    found = smt.simulated_speedup(utilisation=utilisation, num_cycles=200_000)
    assert found == pytest.approx(smt.speedup_random_stalls(utilisation=utilisation), abs=0.02)


@given(u=share, n=st.integers(1, 8))
def test_random_stalls_never_beat_the_bound(u, n):
    bound = smt.speedup_bound(utilisation=u, num_threads=n)
    assert 1 - 1e-9 <= smt.speedup_random_stalls(utilisation=u, num_threads=n) <= bound * (1 + 1e-9) <= n * (1 + 1e-9)


@given(u=share)
def test_two_threads_are_two_minus_u(u):
    assert smt.speedup_random_stalls(utilisation=u) == pytest.approx(2 - u)
    assert smt.speedup_bound(utilisation=1) == smt.speedup_random_stalls(utilisation=1) == 1


@given(speedup=st.floats(0.1, 2))
def test_pair_times_multiply_back(speedup):
    found = smt.pair_times(speedup=speedup)
    assert found["each"] >= 1 and found["each"] == pytest.approx(2 * found["pair_over_serial"])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: smt.speedup_bound(utilisation=0), "utilisation=0: expected a fraction between 0 and 1, 0 excluded"),
        (lambda: smt.speedup_random_stalls(utilisation=1.2), "utilisation=1.2"),
        (lambda: smt.simulated_speedup(utilisation=0.5, num_cycles=10**7), "num_cycles=10000000"),
        (lambda: smt.pair_times(speedup=2.5), "speedup=2.5"),
        (lambda: smt.throughput_from_rates(rate_share=-0.1), "rate_share=-0.1"),
        (lambda: smt.miss_bandwidth_bytes_per_s(num_threads=1, misses_in_flight=1, latency_s=0), "latency_s=0"),
    ],
)
def test_bad_input_names_the_argument(call, message):
    with pytest.raises(ValueError, match=message):
        call()

"""Queueing: printed waits, Erlang C from its factorials, limits."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.calc import queueing

rho = st.floats(0.01, 0.99)


def erlang_c_wait(load, servers):
    """Slow version: the textbook sums."""
    tail = load**servers / math.factorial(servers) / (1 - load / servers)
    waits = tail / (sum(load**k / math.factorial(k) for k in range(servers)) + tail)
    return waits / (servers - load)


def test_printed_waits():
    """Interview questions 6 and 10, extra question 29."""
    pools = [queueing.pool_wait(utilisation=0.7, num_servers=c) for c in (2, 1)]
    assert pools == pytest.approx([0.96, 2.33], abs=0.005)
    assert [queueing.pool_wait(utilisation=r) for r in (0.6, 0.8, 0.9)] == pytest.approx([1.5, 4.0, 9.0])
    waits = [queueing.variable_service_wait(utilisation=0.7, squared_variation=c) for c in (0, 1, 5)]
    assert waits == pytest.approx([1.167, 2.333, 7.0], abs=5e-4)


def test_printed_sizing():
    """Extra questions 25, 28, 50, 57."""
    stay = queueing.residence_s(ttft_s=0.5, output_tokens=500, tpot_s=0.03)
    assert (stay, queueing.requests_in_system(requests_per_s=5, residence_s=stay)) == (15.5, 77.5)
    rate = queueing.cache_limited_requests_per_s(
        cache_bytes=60e9, kv_bytes_per_token=327680, resident_tokens=4096, residence_s=stay)
    assert rate == pytest.approx(2.884, abs=5e-4)
    assert queueing.longest_over_mean(num_samples=32) == pytest.approx(4.058, abs=5e-4)
    room = queueing.growth_headroom(growth_per_min=0.1, detect_s=30, warm_s=150)
    assert room == pytest.approx({"headroom_share": 0.3, "most_utilisation": 0.7692}, abs=5e-5)
    assert queueing.hedged(slow_share=0.01) == pytest.approx(
        {"extra_load_share": 0.05, "slow_before": 0.01, "slow_after": 1e-4})


@given(utilisation=rho, servers=st.integers(1, 20))
def test_erlang_c(utilisation, servers):
    found = queueing.pool_wait(utilisation=utilisation, num_servers=servers)
    assert found == pytest.approx(erlang_c_wait(utilisation * servers, servers), rel=1e-9)


@given(utilisation=rho, servers=st.integers(1, 500))
def test_pooling_and_load(utilisation, servers):
    """A pool of twice the size at the same load waits less; more load waits more; many servers do not overflow."""
    one = queueing.pool_wait(utilisation=utilisation, num_servers=servers)
    assert queueing.pool_wait(utilisation=utilisation, num_servers=2 * servers) <= one
    assert queueing.pool_wait(utilisation=utilisation / 2, num_servers=servers) <= one


@given(utilisation=rho, spread=st.floats(0, 50))
def test_exponential_service_is_the_simple_queue(utilisation, spread):
    simple = queueing.pool_wait(utilisation=utilisation)
    assert queueing.variable_service_wait(utilisation=utilisation, squared_variation=1) == pytest.approx(simple)
    assert queueing.variable_service_wait(utilisation=utilisation, squared_variation=spread) >= simple / 2


@given(n=st.integers(1, 3000))
def test_harmonic_numbers_grow_like_the_logarithm(n):
    """Euler: ln n + 0.5772 < H_n < ln n + 0.5772 + 1 / (2 n)."""
    excess = queueing.longest_over_mean(num_samples=n) - math.log(n) - 0.5772156649
    assert -1e-9 < excess < 1 / (2 * n) + 1e-9


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: queueing.pool_wait(utilisation=1), "utilisation=1: expected a fraction between 0 and 1, 1 excluded"),
        (lambda: queueing.pool_wait(utilisation=0.5, num_servers=0), "num_servers=0"),
        (lambda: queueing.variable_service_wait(utilisation=0.5, squared_variation=-1), "squared_variation=-1"),
        (lambda: queueing.requests_in_system(requests_per_s=-1, residence_s=1), "requests_per_s=-1"),
        (lambda: queueing.residence_s(ttft_s=1, output_tokens=-1, tpot_s=1), "output_tokens=-1"),
        (lambda: queueing.cache_limited_requests_per_s(
            cache_bytes=1, kv_bytes_per_token=1, resident_tokens=1, residence_s=0), "residence_s=0"),
        (lambda: queueing.hedged(slow_share=2), "slow_share=2"),
        (lambda: queueing.hedged(slow_share=0.1, hedge_percentile=101), "hedge_percentile=101"),
        (lambda: queueing.longest_over_mean(num_samples=0), "num_samples=0"),
        (lambda: queueing.growth_headroom(growth_per_min=-1, detect_s=1, warm_s=1), "growth_per_min=-1"),
    ],
)
def test_bad_input_names_the_argument(call, message):
    with pytest.raises(ValueError, match=message):
        call()

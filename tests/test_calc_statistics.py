"""Percentiles: counted by definition; sample floors by exact fractions and by throwing coins."""

import random
from fractions import Fraction
from math import comb

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.calc import statistics

samples = st.lists(st.integers(-1000, 1000), min_size=1, max_size=60)


@given(values=samples, percent=st.integers(1, 100))
def test_nearest_rank_by_definition(values, percent):
    """Slow version: the smallest sample that at least percent % of the samples do not exceed, in exact fractions."""
    reached = [v for v in values if Fraction(sum(w <= v for w in values), len(values)) >= Fraction(percent, 100)]
    assert statistics.nearest_rank(values=values, percent=percent) == min(reached)


@given(values=samples, low=st.integers(1, 100), high=st.integers(1, 100))
def test_percentiles_do_not_cross(values, low, high):
    low, high = sorted((low, high))
    found = [statistics.nearest_rank(values=values, percent=p) for p in (low, high, 100)]
    assert found == sorted(found)
    assert found[-1] == max(values)


def exact_floor(percent, allowed_over):
    """Slow version: the first n, counted up, in exact fractions."""
    over, n = 1 - Fraction(percent, 100), allowed_over + 1
    while sum(comb(n, k) * over**k * (1 - over) ** (n - k) for k in range(allowed_over + 1)) > Fraction(1, 100):
        n += 1
    return n


@pytest.mark.parametrize(("percent", "allowed"), [(60, 0), (75, 1), (90, 0), (90, 1), (95, 2), (99, 0)])
def test_floor_matches_exact_fractions(percent, allowed):
    assert statistics.min_samples(percent=percent, allowed_over=allowed) == exact_floor(percent, allowed)


def test_published_floors():
    """MLPerf's early stopping: 459 with no sample over, 662 and 64 with one."""
    assert statistics.min_samples(percent=99, allowed_over=0) == 459
    assert [statistics.min_samples(percent=p) for p in (90, 99)] == [64, 662]


def test_floor_by_throwing_coins():
    """If 1 % of requests are over the limit, 662 samples show at most one of them in about 1 % of trials.

    20,000 trials: the standard error is 0.07 %, so 0.5 to 1.5 % is 7 errors wide; a false alarm is about 1e-12.
    """
    coin = random.Random(0)
    trials = 20_000
    missed = 0
    for _ in range(trials):
        seen, position = 0, 0
        while seen < 2:  # jump from one over-the-limit sample to the next
            position += int(coin.expovariate(1) / -_log1p(-0.01)) + 1
            if position > 662:
                break
            seen += 1
        missed += seen < 2
    assert 0.005 < missed / trials < 0.015


def _log1p(x):
    from math import log1p

    return log1p(x)


def test_tail_is_refused_one_sample_short():
    assert statistics.tail_percentile(values=range(662), percent=99) == 655
    assert statistics.tail_percentile(values=range(64), percent=90) == 57
    with pytest.raises(ValueError, match="661 samples, expected at least 662 to claim p99"):
        statistics.tail_percentile(values=range(661), percent=99)
    with pytest.raises(ValueError, match="63 samples, expected at least 64 to claim p90"):
        statistics.tail_percentile(values=range(63), percent=90)


@given(percent=st.floats(1, 99.5), confidence=st.floats(0.5, 0.999))
def test_more_confidence_needs_more_samples(percent, confidence):
    base = statistics.min_samples(percent=percent, confidence=confidence)
    assert statistics.min_samples(percent=percent, confidence=(1 + confidence) / 2) >= base
    assert statistics.min_samples(percent=percent, confidence=confidence, allowed_over=2) > base


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: statistics.nearest_rank(values=[], percent=50), "values"),
        (lambda: statistics.nearest_rank(values=[1, float("nan")], percent=50), "values=nan"),
        (lambda: statistics.nearest_rank(values=[1], percent=0), "percent=0"),
        (lambda: statistics.nearest_rank(values=[1], percent=101), "percent=101"),
        (lambda: statistics.min_samples(percent=100), "percent=100"),
        (lambda: statistics.min_samples(percent=99, confidence=1), "confidence=1"),
        (lambda: statistics.min_samples(percent=99, allowed_over=-1), "allowed_over=-1"),
        (lambda: statistics.tail_percentile(values=range(10000), percent=50), "percent=50"),
    ],
)
def test_bad_input_names_the_argument(call, message):
    with pytest.raises(ValueError, match=message):
        call()

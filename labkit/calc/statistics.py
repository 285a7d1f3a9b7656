"""Percentiles that say when they may be quoted: nearest rank, and a floor on the number of samples.

In: samples, percent. Out: one of the samples, or a refusal.

    python -m labkit calc statistics min_samples percent=99
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from labkit.calc._require import require_int, require_number


def nearest_rank(*, values: Sequence[float], percent: float) -> float:
    """Percentile by nearest rank: the smallest sample that at least `percent` % of the samples do not exceed.

    Args:
        values: samples, at least one, finite, in any order.
        percent: 0 < percent <= 100.

    Returns: one of the samples (numpy's default interpolates between two).
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: nothing; see `tail_percentile` for when it may be quoted.
    Source: rank = ceil(percent / 100 x n).

    >>> nearest_rank(values=[40, 10, 30, 20], percent=50), nearest_rank(values=[40, 10, 30, 20], percent=51)
    (20, 30)
    """
    if not len(values):
        raise ValueError("values=[]: expected at least one sample")
    for value in values:
        require_number("values", value)
    _require_percent(percent)
    # The product, not the quotient, is exact for whole percents: 0.07 * 100 would be rounded up to rank 8.
    return sorted(values)[math.ceil(percent * len(values) / 100) - 1]


def min_samples(*, percent: float, allowed_over: int = 1, confidence: float = 0.99) -> int:
    """Fewest samples from which a tail percentile may be claimed.

    If the true percentile were worse than claimed, more than 1 - p of all requests would be over it. The floor is the
    smallest n for which that would have shown: seeing at most `allowed_over` of n over the limit then has a
    probability of at most 1 - confidence.

    Args:
        percent: 0 < percent < 100, e.g. 99.
        allowed_over: samples over the limit that are tolerated, >= 0; 1 so that one outlier does not decide.
        confidence: 0 < confidence < 1.

    Returns: samples.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: independent samples; a warm-up or a shared stall breaks that.
    Source: binomial test as in MLPerf LoadGen's early stopping.

    >>> min_samples(percent=99), min_samples(percent=90), min_samples(percent=99, allowed_over=0)
    (662, 64, 459)
    """
    if _require_percent(percent) == 100:
        raise ValueError("percent=100: expected less than 100; no number of samples shows a maximum")
    require_int("allowed_over", allowed_over, least=0)
    if not 0 < require_number("confidence", confidence, above=0) < 1:
        raise ValueError(f"confidence={confidence!r}: expected a fraction between 0 and 1, both excluded")
    over = 1 - percent / 100

    def chance(n: int) -> float:
        return math.fsum(
            math.comb(n, k) * over**k * (1 - over) ** (n - k) for k in range(min(allowed_over, n) + 1)
        )

    low, high = allowed_over, allowed_over + 1
    while chance(high) > 1 - confidence:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if chance(middle) > 1 - confidence else (low, middle)
    return high


def tail_percentile(*, values: Sequence[float], percent: float) -> float:
    """Percentile of a latency tail, refused when there are too few samples to claim it.

    Args:
        values: samples, finite, in any order; 64 or more for p90, 662 or more for p99.
        percent: 50 < percent < 100.

    Returns: one of the samples.
    Raises: ValueError saying how many samples there are and how many are needed.
    Assumes: as `min_samples` with its defaults.
    Source: `min_samples`, `nearest_rank`.

    >>> tail_percentile(values=list(range(100)), percent=90)
    89
    """
    if not _require_percent(percent) > 50:
        raise ValueError(f"percent={percent!r}: expected a tail, above 50; use nearest_rank")
    needed = min_samples(percent=percent)
    if len(values) < needed:
        raise ValueError(f"values: {len(values)} samples, expected at least {needed} to claim p{percent:g}")
    return nearest_rank(values=values, percent=percent)


def _require_percent(percent: float) -> float:
    if require_number("percent", percent, above=0) > 100:
        raise ValueError(f"percent={percent!r}: expected at most 100")
    return percent

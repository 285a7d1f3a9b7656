"""Failures and stragglers: when to save a checkpoint, how often a job stops, how often a step is slow.

In: checkpoint time, mean time between failures, counts, samples. Out: seconds, shares, scores.

    python -m labkit calc reliability checkpoint_interval checkpoint_s=60 mtbf_s=10800 restart_s=600
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from labkit.calc._require import require_fraction, require_int, require_number, require_numbers


def checkpoint_interval(*, checkpoint_s: float, mtbf_s: float, restart_s: float = 0.0) -> dict[str, float]:
    """Interval between checkpoints that loses the least time, and what is still lost.

    Args:
        checkpoint_s: delta, time that saving stops the job, seconds, > 0.
        mtbf_s: M, mean time between failures of the whole job, seconds, > 0.
        restart_s: R, from a failure until the job computes again, seconds, >= 0.

    Returns: {"interval_s", "waste_share": as `waste_share` at this interval}.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: failures at random, interval much shorter than M; loses its meaning where delta nears M / 2.
    Source: Young 1974, Daly 2006, tau = sqrt(2 delta M); extra interview question 38.

    >>> {k: round(v, 4) for k, v in checkpoint_interval(checkpoint_s=60, mtbf_s=10800, restart_s=600).items()}
    {'interval_s': 1138.42, 'waste_share': 0.161}
    """
    save, mtbf = require_number("checkpoint_s", checkpoint_s, above=0), require_number("mtbf_s", mtbf_s, above=0)
    interval = math.sqrt(2 * save * mtbf)
    share = waste_share(interval_s=interval, checkpoint_s=save, mtbf_s=mtbf, restart_s=restart_s)
    return {"interval_s": interval, "waste_share": share}


def waste_share(*, interval_s: float, checkpoint_s: float, mtbf_s: float, restart_s: float = 0.0) -> float:
    """Share of the time that a job spends on saving, on work done twice and on restarts.

    Args:
        interval_s: tau, compute time between checkpoints, seconds, > 0.
        checkpoint_s: delta, seconds, >= 0.
        mtbf_s: M, seconds, > 0.
        restart_s: R, seconds, >= 0.

    Returns: a fraction; above 1 the model no longer holds.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: first order: half an interval is lost at a failure, no failure during restart.
    Source: delta / tau + (tau / 2 + R) / M; extra interview question 38.

    >>> waste_share(interval_s=100, checkpoint_s=1, mtbf_s=10000, restart_s=50)
    0.02
    """
    tau, mtbf = require_number("interval_s", interval_s, above=0), require_number("mtbf_s", mtbf_s, above=0)
    lost = tau / 2 + require_number("restart_s", restart_s, least=0)
    return require_number("checkpoint_s", checkpoint_s, least=0) / tau + lost / mtbf


def job_mtbf_s(*, component_mtbf_s: float, num_components: int) -> float:
    """Mean time between failures of a job that stops when any component fails.

    Args:
        component_mtbf_s: of one component, seconds, > 0.
        num_components: >= 1.

    Returns: seconds.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: independent failures at a constant rate.
    Source: M / N; extra interview question 39.

    >>> job_mtbf_s(component_mtbf_s=1000.0, num_components=8)
    125.0
    """
    return require_number("component_mtbf_s", component_mtbf_s, above=0) / require_int(
        "num_components", num_components, least=1
    )


def mtbf_from_incidents(
    *, duration_s: float, num_incidents: int, num_components: int, other_components: int
) -> dict[str, float]:
    """Failure rate of a long run, brought to another number of components.

    Args:
        duration_s: observed time, seconds, > 0.
        num_incidents: interruptions, >= 1.
        num_components: of the observed job, >= 1.
        other_components: of the job asked about, >= 1.

    Returns: {"job_s", "component_s", "other_job_s"}: mean times between failures, seconds.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: as `job_mtbf_s`; the relative standard error is 1 / sqrt(incidents).
    Source: T / n; extra interview question 39 (54 days, 419 interruptions, 16384 GPUs, as reported for Llama 3).

    >>> found = mtbf_from_incidents(
    ...     duration_s=54 * 86400, num_incidents=419, num_components=16384, other_components=100000)
    >>> round(found["job_s"] / 3600, 2), round(found["other_job_s"] / 60, 1)
    (3.09, 30.4)
    """
    job = require_number("duration_s", duration_s, above=0) / require_int("num_incidents", num_incidents, least=1)
    component = job * require_int("num_components", num_components, least=1)
    other = job_mtbf_s(component_mtbf_s=component, num_components=other_components)
    return {"job_s": job, "component_s": component, "other_job_s": other}


def any_slow_chance(*, slow_chance: float, num_ranks: int) -> float:
    """Chance that at least one of many ranks is slow in a step, which makes the step slow.

    Args:
        slow_chance: of one rank in one step, 0 to 1.
        num_ranks: >= 0.

    Returns: probability.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: independent ranks.
    Source: 1 - (1 - p)^N; extra interview question 42.

    >>> round(100 * any_slow_chance(slow_chance=0.001, num_ranks=4096), 1)
    98.3
    """
    chance, ranks = require_fraction("slow_chance", slow_chance), require_int("num_ranks", num_ranks, least=0)
    if not ranks:
        return 0.0
    return 1.0 if chance == 1 else -math.expm1(ranks * math.log1p(-chance))


def robust_scores(*, values: Sequence[float]) -> list[float]:
    """How far each value lies from the middle, in deviations that outliers do not inflate.

    Args:
        values: at least 3 finite numbers whose median absolute deviation is above 0.

    Returns: (x - median) / (1.4826 MAD) for each; like standard scores for normal data.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: fewer than half of the values are outliers.
    Source: extra interview question 41.

    >>> [round(score, 2) for score in robust_scores(values=[99, 100, 101, 110])]
    [-1.01, -0.34, 0.34, 6.41]
    """
    found = require_numbers("values", values, least_count=3)
    middle = statistics.median(found)
    spread = statistics.median(abs(x - middle) for x in found)
    if not spread:
        raise ValueError("values: median absolute deviation 0: expected numbers that differ")
    return [(x - middle) / (1.4826 * spread) for x in found]

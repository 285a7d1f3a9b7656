"""Checkpoints without the first-order approximation: goodput under failures at random, exact and played.

In: interval, time to save, mean time between failures, restart. Out: fractions, seconds.

    python -m labkit calc checkpointing goodput interval_s=1138 checkpoint_s=60 mtbf_s=10800 restart_s=600
"""

from __future__ import annotations

import math
import random

from labkit.calc._require import require_int, require_number


def goodput(*, interval_s: float, checkpoint_s: float, mtbf_s: float, restart_s: float = 0.0) -> float:
    """Share of the wall-clock time that ends up in saved work.

    Args:
        interval_s: tau, compute time between checkpoints, seconds, > 0.
        checkpoint_s: delta, time that saving stops the job, seconds, >= 0.
        mtbf_s: M, mean time between failures of the whole job, seconds, > 0.
        restart_s: R, from a failure until the job computes again, seconds, >= 0.

    Returns: a fraction, above 0 and below 1; 0 where it is too small for a double.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: exponential times between failures, which also strike while saving and restarting; a failure loses
        everything since the last complete checkpoint.
    Source: tau / (M e^(R/M) (e^((tau + delta)/M) - 1)); Daly, 2006, the complete cost function.

    >>> round(goodput(interval_s=1138.42, checkpoint_s=60, mtbf_s=10800, restart_s=600), 4)
    0.8497
    """
    tau, mtbf = require_number("interval_s", interval_s, above=0), require_number("mtbf_s", mtbf_s, above=0)
    save = require_number("checkpoint_s", checkpoint_s, least=0)
    restart = require_number("restart_s", restart_s, least=0)
    try:
        return tau / (mtbf * math.exp(restart / mtbf) * math.expm1((tau + save) / mtbf))
    except OverflowError:
        return 0.0


def best_interval_s(*, checkpoint_s: float, mtbf_s: float) -> float:
    """Interval with the highest `goodput`; the restart time does not change it.

    Args:
        checkpoint_s: delta, seconds, > 0.
        mtbf_s: M, seconds, > 0.

    Returns: seconds, always below M.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: as `goodput`.
    Source: root of (1 - tau/M) e^((tau + delta)/M) = 1, bisected; Daly, 2006.

    >>> round(best_interval_s(checkpoint_s=60, mtbf_s=10800))
    1099
    """
    save, mtbf = require_number("checkpoint_s", checkpoint_s, above=0), require_number("mtbf_s", mtbf_s, above=0)
    low, high = 0.0, 1.0
    for _ in range(200):
        middle = (low + high) / 2
        # In logarithms, because the exponential overflows where saving takes longer than M.
        is_short = middle < 1 and math.log1p(-middle) + middle + save / mtbf > 0
        low, high = (middle, high) if is_short else (low, middle)
    return low * mtbf


def simulated_goodput(
    *, interval_s: float, checkpoint_s: float, mtbf_s: float, restart_s: float = 0.0, num_intervals: int = 2000,
    seed: int = 0,
) -> float:
    """`goodput` by playing a job through random failures.

    Args:
        interval_s: as `goodput`, like the next three.
        checkpoint_s: delta.
        mtbf_s: M.
        restart_s: R.
        num_intervals: saved intervals until the job is done, 1 to 100000.
        seed: of the failures.

    Returns: a fraction.
    Raises: ValueError naming the argument, the value got, what was expected; also when nearly no attempt succeeds.
    Assumes: as `goodput`.
    Source: simulation; the oracle of the closed form.

    >>> simulated_goodput(interval_s=90, checkpoint_s=10, mtbf_s=1e12)
    0.9
    """
    tau, mtbf = require_number("interval_s", interval_s, above=0), require_number("mtbf_s", mtbf_s, above=0)
    save = require_number("checkpoint_s", checkpoint_s, least=0)
    restart = require_number("restart_s", restart_s, least=0)
    intervals = require_int("num_intervals", num_intervals, least=1)
    if intervals > 100_000 or (tau + save + restart) / mtbf > 5:
        raise ValueError(
            f"num_intervals={intervals}, interval_s={tau}: expected at most 100000 intervals of at most 5 mtbf_s"
        )
    draw = random.Random(seed)
    wall, is_down = 0.0, False
    for _ in range(intervals):
        is_saved = False
        while not is_saved:
            needed = (restart if is_down else 0.0) + tau + save
            alive = draw.expovariate(1 / mtbf)
            is_saved = alive >= needed
            # The next failure is as far away as ever: an exponential clock has no memory.
            wall += needed if is_saved else alive
            is_down = not is_saved
    return intervals * tau / wall

"""Two threads on one core: bounds of the gain, what each job sees, and when sharing loses.

In: utilisation of the busiest resource, rates, misses. Out: speed-ups, times, bytes/s.

    python -m labkit calc smt speedup_bound utilisation=0.9
"""

from __future__ import annotations

import random

from labkit.calc._require import require_fraction, require_int, require_number


def speedup_bound(*, utilisation: float, num_threads: int = 2) -> float:
    """Most that several equal threads on one core can gain in throughput.

    Args:
        utilisation: u, share of the time that one thread keeps the busiest shared resource busy, above 0 to 1.
        num_threads: hardware threads, >= 1.

    Returns: ratio to one thread alone, min(n, 1 / u).
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: the other resources do not slow down; caches not shared to anyone's harm.
    Source: the busiest resource cannot be over 100 % busy; interview question 21.

    >>> speedup_bound(utilisation=0.5), round(speedup_bound(utilisation=0.9), 2)
    (2.0, 1.11)
    """
    busy = require_fraction("utilisation", utilisation, zero=False)
    return min(float(require_int("num_threads", num_threads, least=1)), 1 / busy)


def speedup_random_stalls(*, utilisation: float, num_threads: int = 2) -> float:
    """Gain when each thread is ready in a cycle by chance and one may issue.

    Args:
        utilisation: u, chance that a thread is ready, above 0 to 1.
        num_threads: hardware threads, >= 1.

    Returns: ratio to one thread alone; 2 - u for two.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: independent stalls, one issue slot, no memory of a lost cycle.
    Source: (1 - (1 - u)^n) / u; interview question 21.

    >>> [round(speedup_random_stalls(utilisation=u), 6) for u in (0.5, 0.9)]
    [1.5, 1.1]
    """
    busy = require_fraction("utilisation", utilisation, zero=False)
    return (1 - (1 - busy) ** require_int("num_threads", num_threads, least=1)) / busy


def simulated_speedup(*, utilisation: float, num_cycles: int = 100_000, seed: int = 1) -> float:
    """The same gain by coin flips, cycle by cycle.

    Args:
        utilisation: u, above 0 to 1.
        num_cycles: 1 to a million.
        seed: of the random numbers.

    Returns: ratio to one thread's expected rate; the standard error is below 1 / (2 u sqrt(cycles)).
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: as `speedup_random_stalls`, two threads.
    Source: Monte Carlo; interview question 21.

    >>> abs(simulated_speedup(utilisation=0.5) - 1.5) < 0.02
    True
    """
    busy = require_fraction("utilisation", utilisation, zero=False)
    if require_int("num_cycles", num_cycles, least=1) > 10**6:
        raise ValueError(f"num_cycles={num_cycles!r}: expected at most 1000000")
    draw = random.Random(seed)
    issued = sum((draw.random() < busy) | (draw.random() < busy) for _ in range(num_cycles))
    return issued / num_cycles / busy


def pair_times(*, speedup: float) -> dict[str, float]:
    """Two equal jobs together on one core, in units of one job alone.

    Args:
        speedup: gain in throughput of the pair, above 0 to 2.

    Returns: {"each": time of a job beside the other, "pair_over_serial": both done, against one after the other}.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: both run alike from start to end.
    Source: 2 / speed-up and 1 / speed-up; interview question 21.

    >>> {name: round(value, 2) for name, value in pair_times(speedup=1.5).items()}
    {'each': 1.33, 'pair_over_serial': 0.67}
    """
    if require_number("speedup", speedup, above=0) > 2:
        raise ValueError(f"speedup={speedup!r}: expected at most 2 for two threads")
    return {"each": 2 / speedup, "pair_over_serial": 1 / speedup}


def throughput_from_rates(*, rate_share: float, num_threads: int = 2) -> float:
    """Gain when sharing makes every thread run at a share of its speed alone.

    Args:
        rate_share: speed of each thread beside the others over its speed alone, 0 to 1.
        num_threads: hardware threads, >= 1.

    Returns: ratio; below 1 the jobs had better run one after the other.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: equal threads.
    Source: n x rate; interview question 21.

    >>> throughput_from_rates(rate_share=0.45)
    0.9
    """
    return require_int("num_threads", num_threads, least=1) * require_fraction("rate_share", rate_share)


def miss_bandwidth_bytes_per_s(
    *, num_threads: int, misses_in_flight: int, latency_s: float, line_bytes: int = 64,
    limit_bytes_per_s: float | None = None,
) -> float:
    """Memory bandwidth that threads draw with a number of outstanding misses each.

    Args:
        num_threads: >= 0.
        misses_in_flight: of one thread, >= 0.
        latency_s: of a miss, seconds, > 0.
        line_bytes: >= 1.
        limit_bytes_per_s: of the core or memory, > 0; None: none.

    Returns: bytes per second.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: latency does not grow with load.
    Source: Little's law; interview question 21.

    >>> [round(miss_bandwidth_bytes_per_s(num_threads=n, misses_in_flight=10, latency_s=80e-9) / 1e9) for n in (1, 2)]
    [8, 16]
    """
    lines = require_int("num_threads", num_threads) * require_int("misses_in_flight", misses_in_flight)
    rate = lines * require_int("line_bytes", line_bytes, least=1) / require_number("latency_s", latency_s, above=0)
    if limit_bytes_per_s is None:
        return rate
    return min(rate, require_number("limit_bytes_per_s", limit_bytes_per_s, above=0))

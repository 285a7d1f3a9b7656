"""Waiting: one server, a pool, variable service, residence, duplicates, and the slowest of many.

In: utilisation, servers, variation, rates. Out: waits in service times, counts, probabilities.

    python -m labkit calc queueing pool_wait utilisation=0.7 num_servers=2
"""

from __future__ import annotations

import math

from labkit.calc._require import require_fraction, require_int, require_number


def pool_wait(*, utilisation: float, num_servers: int = 1) -> float:
    """Mean wait before service of equal servers behind one queue.

    Args:
        utilisation: rho, load of each server, 0 to 1, 1 excluded.
        num_servers: c, 1 to 10000.

    Returns: mean service times; rho / (1 - rho) for one server.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: Poisson arrivals, exponential service, first come first served.
    Source: Erlang C, M/M/c; interview questions 6 and 10.

    >>> round(pool_wait(utilisation=0.7, num_servers=2), 2), round(pool_wait(utilisation=0.7), 2)
    (0.96, 2.33)
    """
    rho = require_fraction("utilisation", utilisation, one=False)
    if require_int("num_servers", num_servers, least=1) > 10_000:
        raise ValueError(f"num_servers={num_servers!r}: expected at most 10000")
    load, blocked = rho * num_servers, 1.0
    for i in range(1, num_servers + 1):  # Erlang B by recursion: stable where factorials are not
        blocked = load * blocked / (i + load * blocked)
    waits = blocked / (1 - rho * (1 - blocked))
    return waits / (num_servers * (1 - rho))


def variable_service_wait(*, utilisation: float, squared_variation: float) -> float:
    """Mean wait of one server with any distribution of service times.

    Args:
        utilisation: rho, 0 to 1, 1 excluded.
        squared_variation: variance over squared mean of the service time, >= 0; 0: constant, 1: exponential.

    Returns: mean service times.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: Poisson arrivals, first come first served.
    Source: Pollaczek-Khinchine, rho / (1 - rho) (1 + C^2) / 2; extra interview question 29.

    >>> [round(variable_service_wait(utilisation=0.7, squared_variation=c), 2) for c in (0, 1, 5)]
    [1.17, 2.33, 7.0]
    """
    spread = require_number("squared_variation", squared_variation, least=0)
    return pool_wait(utilisation=utilisation) * (1 + spread) / 2


def requests_in_system(*, requests_per_s: float, residence_s: float) -> float:
    """Requests that are inside at a time.

    Args:
        requests_per_s: arrival rate, >= 0.
        residence_s: mean time from arrival to end, seconds, >= 0.

    Returns: requests.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: a steady state.
    Source: Little's law, N = lambda W; extra interview question 28.

    >>> requests_in_system(requests_per_s=5, residence_s=15.5)
    77.5
    """
    rate = require_number("requests_per_s", requests_per_s, least=0)
    return rate * require_number("residence_s", residence_s, least=0)


def residence_s(*, ttft_s: float, output_tokens: int, tpot_s: float) -> float:
    """Time that a generation is in the system.

    Args:
        ttft_s: until the first token, seconds, >= 0.
        output_tokens: counted after the first, >= 0.
        tpot_s: of each of those, seconds, >= 0.

    Returns: seconds.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: constant time per token.
    Source: TTFT + n TPOT; extra interview question 28.

    >>> residence_s(ttft_s=0.5, output_tokens=500, tpot_s=0.03)
    15.5
    """
    steps = require_int("output_tokens", output_tokens, least=0) * require_number("tpot_s", tpot_s, least=0)
    return require_number("ttft_s", ttft_s, least=0) + steps


def cache_limited_requests_per_s(
    *, cache_bytes: float, kv_bytes_per_token: float, resident_tokens: float, residence_s: float
) -> float:
    """Largest arrival rate that the KV cache can hold.

    Args:
        cache_bytes: >= 0.
        kv_bytes_per_token: all layers, > 0.
        resident_tokens: mean tokens of a request while it is inside, > 0.
        residence_s: mean time inside, seconds, > 0.

    Returns: requests per second.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: a steady state, mean lengths (a skewed batch needs more).
    Source: M / (kappa L W); extra interview question 28.

    >>> round(cache_limited_requests_per_s(
    ...     cache_bytes=60e9, kv_bytes_per_token=327680, resident_tokens=4096, residence_s=15.5), 2)
    2.88
    """
    size = require_number("kv_bytes_per_token", kv_bytes_per_token, above=0)
    size *= require_number("resident_tokens", resident_tokens, above=0)
    held = require_number("cache_bytes", cache_bytes, least=0) / size
    return held / require_number("residence_s", residence_s, above=0)


def hedged(*, slow_share: float, hedge_percentile: float = 95) -> dict[str, float]:
    """Sending a request a second time when it has not answered by a percentile of its latency.

    Args:
        slow_share: chance that a replica is slow, 0 to 1.
        hedge_percentile: when the duplicate is sent, 0 to 100.

    Returns: {"extra_load_share", "slow_before", "slow_after": both copies slow}.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: slowness of the two replicas is independent; the duplicate itself costs no one else time.
    Source: 1 - percentile, p and p^2; Dean and Barroso, "The tail at scale", 2013; extra interview question 57.

    >>> {name: round(value, 6) for name, value in hedged(slow_share=0.01).items()}
    {'extra_load_share': 0.05, 'slow_before': 0.01, 'slow_after': 0.0001}
    """
    slow = require_fraction("slow_share", slow_share)
    if not 0 <= require_number("hedge_percentile", hedge_percentile, least=0) <= 100:
        raise ValueError(f"hedge_percentile={hedge_percentile!r}: expected at most 100")
    return {"extra_load_share": (100 - hedge_percentile) / 100, "slow_before": slow, "slow_after": slow**2}


def longest_over_mean(*, num_samples: int) -> float:
    """Longest of several exponential lengths over their mean: what a batch loses that waits for its last member.

    Args:
        num_samples: B, 1 to 10 million.

    Returns: the harmonic number H_B; a batch then idles 1 - 1 / H_B of its slots.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: independent exponential lengths.
    Source: E[max] = H_B E[L]; extra interview questions 25 and 52.

    >>> round(longest_over_mean(num_samples=32), 3)
    4.058
    """
    if require_int("num_samples", num_samples, least=1) > 10**7:
        raise ValueError(f"num_samples={num_samples!r}: expected at most 10000000")
    return math.fsum(1 / i for i in range(1, num_samples + 1))


def growth_headroom(*, growth_per_min: float, detect_s: float, warm_s: float) -> dict[str, float]:
    """Spare capacity needed until an autoscaler's new replica serves.

    Args:
        growth_per_min: growth of the load in a minute, as a fraction, >= 0.
        detect_s: until the scaler reacts, seconds, >= 0.
        warm_s: until the replica serves, seconds, >= 0.

    Returns: {"headroom_share", "most_utilisation": 1 / (1 + headroom)}.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: linear growth.
    Source: g (T_detect + T_warm); extra interview question 50.

    >>> {name: round(x, 4) for name, x in growth_headroom(growth_per_min=0.1, detect_s=30, warm_s=150).items()}
    {'headroom_share': 0.3, 'most_utilisation': 0.7692}
    """
    wait = require_number("detect_s", detect_s, least=0) + require_number("warm_s", warm_s, least=0)
    spare = require_number("growth_per_min", growth_per_min, least=0) * wait / 60
    return {"headroom_share": spare, "most_utilisation": 1 / (1 + spare)}

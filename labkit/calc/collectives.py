"""Collectives: bandwidths as nccl-tests defines them, bytes on the wire, alpha-beta time.

In: size S (for all_gather and reduce_scatter n times the shard of one rank, as nccl-tests counts it), time, ranks.
Out: bytes/s, bytes, steps, seconds.

    python -m labkit calc collectives busbw_bytes_per_s all_reduce size_bytes=268435456 time_s=9e-4 world_size=2
"""

from __future__ import annotations

import math
from typing import Any

from labkit.calc._require import require_choice, require_int, require_number

COLLECTIVES = (
    "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "gather", "scatter", "send_recv",
)


def algbw_bytes_per_s(*, size_bytes: float, time_s: float) -> float:
    """Algorithm bandwidth: size over time, whatever travels on the wire.

    Args:
        size_bytes: S, >= 0.
        time_s: one call, slowest rank, > 0.

    Returns: bytes per second.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: nothing about the algorithm.
    Source: NVIDIA nccl-tests doc/PERFORMANCE.md, "Algorithm bandwidth".

    >>> algbw_bytes_per_s(size_bytes=8, time_s=2.0)
    4.0
    """
    return require_number("size_bytes", size_bytes, least=0) / require_number("time_s", time_s, above=0)


def busbw_factor(collective: str, *, world_size: int) -> float:
    """What algorithm bandwidth is multiplied with to be comparable with the speed of a link.

    Args:
        collective: one of all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, reduce, gather, scatter,
            send_recv.
        world_size: n >= 2.

    Returns: 2(n-1)/n for all_reduce; (n-1)/n for all_gather, reduce_scatter, all_to_all, gather, scatter; else 1.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: every rank has equal links in both directions.
    Source: NVIDIA nccl-tests doc/PERFORMANCE.md, "Bus bandwidth", and the programs of gather and scatter.

    >>> busbw_factor("all_reduce", world_size=8), busbw_factor("all_reduce", world_size=2)
    (1.75, 1.0)
    """
    require_choice("collective", collective, COLLECTIVES)
    n = require_int("world_size", world_size, least=2)
    if collective == "all_reduce":
        return 2 * (n - 1) / n
    return 1.0 if collective in ("broadcast", "reduce", "send_recv") else (n - 1) / n


def busbw_bytes_per_s(collective: str, *, size_bytes: float, time_s: float, world_size: int) -> float:
    """Bus bandwidth of one collective, comparable with the link's peak and between numbers of ranks.

    Args:
        collective: as `busbw_factor`.
        size_bytes: S, the total array (all_gather, reduce_scatter: n x shard), >= 0.
        time_s: one call, slowest rank, > 0.
        world_size: n >= 2.

    Returns: bytes per second (divide by 1e9 for GB/s, not GiB/s).
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: as `busbw_factor`; latency is inside the time, so small messages look slow.
    Source: NVIDIA nccl-tests doc/PERFORMANCE.md, "Bus bandwidth".

    >>> busbw_bytes_per_s("all_reduce", size_bytes=8, time_s=1.0, world_size=4)
    12.0
    """
    return algbw_bytes_per_s(size_bytes=size_bytes, time_s=time_s) * busbw_factor(collective, world_size=world_size)


def ring_bytes_per_rank(collective: str, *, size_bytes: float, world_size: int) -> float:
    """Bytes that each rank sends when the collective runs as a ring.

    Args:
        collective: all_reduce, all_gather, reduce_scatter or all_to_all (direct exchange).
        size_bytes: S, the total array (all_gather, reduce_scatter: n x shard), >= 0.
        world_size: n >= 1.

    Returns: bytes sent by a rank; it receives as many.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: S divides evenly; protocol headers and flags (NCCL's LL sends twice the data) not counted.
    Source: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms", JPDC 69(2), 2009.

    >>> ring_bytes_per_rank("all_reduce", size_bytes=800, world_size=8)
    1400.0
    """
    require_choice("collective", collective, ("all_reduce", "all_gather", "reduce_scatter", "all_to_all"))
    require_number("size_bytes", size_bytes, least=0)
    n = require_int("world_size", world_size, least=1)
    passes = 2 if collective == "all_reduce" else 1
    return passes * (n - 1) / n * size_bytes


def tree_all_reduce_bytes(*, size_bytes: float, world_size: int) -> dict[str, Any]:
    """Bytes sent in an all-reduce over one binary tree: reduce to the root, broadcast back.

    Args:
        size_bytes: S, >= 0.
        world_size: n >= 1.

    Returns: {"total": all ranks together, "most": the busiest rank's (an inner node sends up once and down twice)}.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: one tree; NCCL runs two complementary ones, each on half of S, so that no rank is an inner node of both.
    Source: Sanders, Speck and Traeff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan", 2009.

    >>> tree_all_reduce_bytes(size_bytes=100, world_size=8)
    {'total': 1400.0, 'most': 300.0}
    """
    require_number("size_bytes", size_bytes, least=0)
    n = require_int("world_size", world_size, least=1)
    # Node i of a complete binary tree (root 1) has children 2i and 2i + 1 where they exist.
    most = max((i > 1) + (2 * i <= n) + (2 * i + 1 <= n) for i in range(1, min(n, 4) + 1))
    return {"total": 2.0 * (n - 1) * size_bytes, "most": float(most * size_bytes)}


def num_steps(algorithm: str, *, world_size: int) -> int:
    """Latency-bound steps of an all-reduce, one after the other.

    Args:
        algorithm: "ring" or "tree".
        world_size: n >= 1.

    Returns: steps: 2(n-1) for a ring, 2 ceil(log2 n) for a tree.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: every hop costs the same; a tree inside a node may be a chain.
    Source: as `ring_bytes_per_rank` and `tree_all_reduce_bytes`.

    >>> num_steps("ring", world_size=8), num_steps("tree", world_size=8)
    (14, 6)
    """
    require_choice("algorithm", algorithm, ("ring", "tree"))
    n = require_int("world_size", world_size, least=1)
    return 2 * (n - 1) if algorithm == "ring" else 2 * math.ceil(math.log2(n))


def all_reduce_time_s(
    *, size_bytes: float, world_size: int, alpha_s: float, bytes_per_s: float, algorithm: str = "ring"
) -> float:
    """Alpha-beta time of one all-reduce.

    Args:
        size_bytes: S, >= 0.
        world_size: n >= 1.
        alpha_s: latency of one step, seconds, >= 0.
        bytes_per_s: bandwidth of one rank's link in one direction, bytes/s, > 0.
        algorithm: "ring" or "tree" (pipelined, two trees: every byte passes a link twice).

    Returns: seconds.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: no contention, no protocol overhead, reduction is free, launch latency not included.
    Source: Hockney's model; steps as `num_steps`; bytes as `ring_bytes_per_rank`, 2 S for a pipelined tree.

    >>> round(all_reduce_time_s(size_bytes=8e9, world_size=4, alpha_s=1e-6, bytes_per_s=1e9), 6)
    12.000006
    """
    require_number("alpha_s", alpha_s, least=0)
    require_number("bytes_per_s", bytes_per_s, above=0)
    steps = num_steps(algorithm, world_size=world_size)
    sent = ring_bytes_per_rank("all_reduce", size_bytes=size_bytes, world_size=world_size)
    if algorithm == "tree":
        sent = 2 * size_bytes if world_size > 1 else 0.0
    return steps * alpha_s + sent / bytes_per_s


def alpha_beta_fit(*, sizes_bytes: list[float], times_s: list[float]) -> dict[str, float]:
    """Latency and bandwidth from measured sizes and times, by least squares on t = alpha + S / B.

    Args:
        sizes_bytes: at least two different sizes.
        times_s: one time for each size, seconds, > 0.

    Returns: {"alpha_s", "bytes_per_s"}.
    Raises: ValueError naming the argument, the value got, what was expected; also when time does not grow with size.
    Assumes: one regime; fit small and large messages apart. Unweighted, so the largest messages dominate.
    Source: ordinary least squares; extra interview question 55.

    >>> alpha_beta_fit(sizes_bytes=[0, 100, 200], times_s=[1.0, 2.0, 3.0])
    {'alpha_s': 1.0, 'bytes_per_s': 100.0}
    """
    if len(sizes_bytes) != len(times_s):
        raise ValueError(f"times_s: {len(times_s)} values: expected {len(sizes_bytes)}, one for each of sizes_bytes")
    for size, time in zip(sizes_bytes, times_s):
        require_number("sizes_bytes", size, least=0)
        require_number("times_s", time, above=0)
    if len(set(sizes_bytes)) < 2:
        raise ValueError(f"sizes_bytes={sizes_bytes!r}: expected at least two different sizes")
    mean_x, mean_t = math.fsum(sizes_bytes) / len(sizes_bytes), math.fsum(times_s) / len(times_s)
    spread = math.fsum((x - mean_x) ** 2 for x in sizes_bytes)
    slope = math.fsum((x - mean_x) * (t - mean_t) for x, t in zip(sizes_bytes, times_s)) / spread
    if slope <= 0:
        raise ValueError(f"times_s: slope {slope!r}: expected times that grow with size; use larger sizes")
    return {"alpha_s": mean_t - slope * mean_x, "bytes_per_s": 1 / slope}

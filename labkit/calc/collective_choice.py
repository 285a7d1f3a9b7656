"""Choosing and ordering collectives: ring or tree, NCCL's protocols, groups of a mesh, orders that deadlock.

In: ranks, latency, bandwidth, orders of calls. Out: bytes, shares, counts, findings.

    python -m labkit calc collective_choice ring_tree_crossover_bytes world_size=64 alpha_s=5e-6 bytes_per_s=50e9
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from labkit.calc._require import require_choice, require_int, require_number

PROTOCOL_EFFICIENCY = {"LL": 4 / 8, "LL128": 120 / 128, "Simple": 1.0}


def ring_tree_crossover_bytes(*, world_size: int, alpha_s: float, bytes_per_s: float) -> float:
    """Message size above which a ring all-reduce is faster than a pipelined tree.

    Args:
        world_size: n >= 2.
        alpha_s: latency of one step, seconds, >= 0.
        bytes_per_s: of a rank's link in one direction, > 0.

    Returns: bytes; 0 where the ring always wins (2 ranks: as many steps, fewer bytes).
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: as `collectives.all_reduce_time_s`, with 2 log2 n tree steps, not rounded up.
    Source: n B alpha (2 (n - 1) - 2 log2 n) / 2; extra interview question 7.

    >>> round(ring_tree_crossover_bytes(world_size=64, alpha_s=5e-6, bytes_per_s=50e9) / 1e6, 3)
    912.0
    """
    n = require_int("world_size", world_size, least=2)
    steps_saved = 2 * (n - 1) - 2 * math.log2(n)
    rate = require_number("bytes_per_s", bytes_per_s, above=0) * require_number("alpha_s", alpha_s, least=0)
    return n * rate * steps_saved / 2


def protocol_efficiency(protocol: str) -> float:
    """Share of the bytes on the wire that are data.

    Args:
        protocol: LL, LL128 or Simple.

    Returns: a fraction.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: flags only; Simple pays for a fence in time instead.
    Source: LL: 4 of 8 bytes, LL128: 120 of 128; NCCL, src/include/device.h; extra interview question 9.

    >>> [protocol_efficiency(p) for p in ("LL", "LL128", "Simple")]
    [0.5, 0.9375, 1.0]
    """
    require_choice("protocol", protocol, tuple(PROTOCOL_EFFICIENCY))
    return PROTOCOL_EFFICIENCY[protocol]


def protocol_crossover_bytes(
    *, fast_start: str, full_rate: str, fast_latency_s: float, full_latency_s: float, bytes_per_s: float
) -> float:
    """Message size at which a protocol with a slow start and full rate overtakes one with a fast start.

    Args:
        fast_start: LL or LL128.
        full_rate: a protocol with a higher efficiency.
        fast_latency_s: base latency of the first, seconds, >= 0.
        full_latency_s: base latency of the second, seconds, at least fast_latency_s.
        bytes_per_s: of the link, > 0.

    Returns: bytes.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: time = latency + bytes / (efficiency x rate).
    Source: difference of latencies x rate / (1 / eta_1 - 1 / eta_2); extra interview question 9.

    >>> round(protocol_crossover_bytes(fast_start="LL", full_rate="Simple", fast_latency_s=2e-6,
    ...                                full_latency_s=10e-6, bytes_per_s=50e9))
    400000
    """
    slow, fast = protocol_efficiency(fast_start), protocol_efficiency(full_rate)
    if fast <= slow:
        raise ValueError(f"full_rate={full_rate!r}: expected a higher efficiency than {fast_start}")
    early = require_number("fast_latency_s", fast_latency_s, least=0)
    late = require_number("full_latency_s", full_latency_s, least=early)
    return (late - early) * require_number("bytes_per_s", bytes_per_s, above=0) / (1 / slow - 1 / fast)


def num_mesh_groups(*, degrees: Sequence[int]) -> int:
    """Process groups of a mesh with one axis for each degree; every rank takes part in creating every one.

    Args:
        degrees: ranks along each axis, >= 1, at least one.

    Returns: groups: for each axis the world size over its degree.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: one group for each line along an axis; axes of degree 1 counted too.
    Source: sum of W / d; extra interview question 11.

    >>> num_mesh_groups(degrees=[8, 4, 16])
    224
    """
    if not len(degrees):
        raise ValueError("degrees=[]: expected at least one axis")
    found = [require_int("degrees", degree, least=1) for degree in degrees]
    world = math.prod(found)
    return sum(world // degree for degree in found)


def call_order(*, calls: Sequence[Sequence[Any]], members: dict[str, Sequence[int]] | None = None) -> dict[str, Any]:
    """Play blocking collectives in each rank's order: do all finish, and if not, who waits for whom.

    Args:
        calls: for each rank the calls in order: a group's name, or [group, operation, size]; equal calls match.
        members: ranks of each group; None: the ranks that ever call it.

    Returns: {"deadlock", "completed": calls done by each rank, "waiting": {rank: call} of those that hang}.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: a collective returns only when all members are in the same call.
    Source: matching by order within a communicator; extra interview questions 10 and 43.

    >>> call_order(calls=[["A", "B"], ["B", "A"]])["deadlock"], call_order(calls=[["A", "B"], ["A", "B"]])["deadlock"]
    (True, False)
    """
    todo = [[_call(rank, call) for call in own] for rank, own in enumerate(calls)]
    groups: dict[str, set[int]] = {}
    for rank, own in enumerate(todo):
        for call in own:
            groups.setdefault(call[0], set()).add(rank)
    for name, ranks in (members or {}).items():
        groups[name] = {require_int(f"members[{name}]", rank, least=0) for rank in ranks}
        if max(groups[name], default=0) >= len(todo):
            raise ValueError(f"members[{name}]={list(ranks)!r}: expected ranks below {len(todo)}")
    at = [0] * len(todo)

    def head(rank: int) -> tuple[Any, ...] | None:
        return todo[rank][at[rank]] if at[rank] < len(todo[rank]) else None

    moved = True
    while moved:
        moved = False
        for rank in range(len(todo)):
            call = head(rank)
            if call and rank in groups[call[0]] and all(head(other) == call for other in groups[call[0]]):
                for other in groups[call[0]]:
                    at[other] += 1
                moved = True
    waiting = {str(rank): list(call) for rank in range(len(todo)) if (call := head(rank))}
    return {"deadlock": bool(waiting), "completed": at, "waiting": waiting}


def first_mismatch(*, logs: Sequence[Sequence[Any]]) -> dict[str, Any] | None:
    """Where the ranks' logs of one group first differ: the flight-recorder question.

    Args:
        logs: for each rank its calls in order, e.g. [operation, size].

    Returns: {"index": of the call, "ranks": those that disagree with most ranks or have no such call}; None: equal.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: the majority is right; in a tie the lowest rank's side is.
    Source: first difference by sequence number; extra interview question 43.

    >>> first_mismatch(logs=[[["ar", 10], ["ag", 5]], [["ar", 10], ["ag", 5]], [["ar", 10]]])
    {'index': 1, 'ranks': [2]}
    """
    if len(logs) < 2:
        raise ValueError(f"logs: {len(logs)} ranks: expected at least two")
    for i in range(max(len(log) for log in logs)):
        seen = [repr(log[i]) if i < len(log) else None for log in logs]
        if len(set(seen)) > 1:
            usual = max(seen, key=lambda call: (seen.count(call), -seen.index(call)))
            return {"index": i, "ranks": [rank for rank, call in enumerate(seen) if call != usual]}
    return None


def _call(rank: int, call: Any) -> tuple[Any, ...]:
    parts = (call,) if isinstance(call, str) else tuple(call)
    if not parts or not isinstance(parts[0], str):
        raise ValueError(f"calls[{rank}]: {call!r}: expected a group's name or [group, operation, size]")
    return parts

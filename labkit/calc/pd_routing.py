"""Prefill-decode disaggregation: where a turn should run, and when moving a live session pays.

In: cached and missing tokens, KV bytes per token, rates, queues. Out: seconds of each way, the best one.

    python -m labkit calc pd_routing
"""

from __future__ import annotations

from typing import Any

from labkit.calc._require import require_int, require_number
from labkit.calc.transfer import transfer_time_s


def routes(
    *, hit_tokens: int, miss_tokens: int, kv_bytes_per_token: float, link_bytes_per_s: float,
    prefill_tokens_per_s: float, decode_tokens_per_s: float, interference_s_per_token: float = 0.0,
    prefill_queue_s: float = 0.0, decode_queue_s: float = 0.0,
) -> dict[str, Any]:
    """Three ways to prefill the next turn of a session whose prefix is cached on a decode node.

    Stay: the decode node prefills the missing tokens itself and disturbs its batch. Move: the prefix travels to a
    prefill node, the new KV comes back. Recompute: the prefill node computes prefix and suffix, the new KV comes back.

    Args:
        hit_tokens: prefix cached on the decode node, >= 0.
        miss_tokens: tokens without KV, >= 0.
        kv_bytes_per_token: all layers, > 0.
        link_bytes_per_s: between the nodes, one direction, > 0.
        prefill_tokens_per_s: of the prefill node, > 0.
        decode_tokens_per_s: prefill rate of the decode node, > 0.
        interference_s_per_token: delay that prefilling one token causes its batch, seconds, >= 0.
        prefill_queue_s: wait at the prefill node, seconds, >= 0.
        decode_queue_s: wait at the decode node, seconds, >= 0; every way ends there.

    Returns: {"stay_s", "move_s", "recompute_s", "best": "stay", "move" or "recompute" (the first of equals)}.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: constant rates (a longer prefix slows prefill), no overlap of transfer and compute, an idle link.
    Source: Q_P + T_load + T_prefill + T_return + Q_D against Q_D + T_prefill,D + interference; interview question 6.

    >>> node = dict(kv_bytes_per_token=327680, link_bytes_per_s=50e9, prefill_tokens_per_s=20000,
    ...             decode_tokens_per_s=10000, interference_s_per_token=5e-5)
    >>> [routes(hit_tokens=h, miss_tokens=m, **node)["best"] for h, m in ((100000, 200), (0, 20000))]
    ['stay', 'move']
    """
    hit, miss = require_int("hit_tokens", hit_tokens, least=0), require_int("miss_tokens", miss_tokens, least=0)
    size = require_number("kv_bytes_per_token", kv_bytes_per_token, above=0)
    fast = require_number("prefill_tokens_per_s", prefill_tokens_per_s, above=0)
    slow = require_number("decode_tokens_per_s", decode_tokens_per_s, above=0)
    disturbed = miss * require_number("interference_s_per_token", interference_s_per_token, least=0)
    at_prefill = require_number("prefill_queue_s", prefill_queue_s, least=0)
    at_decode = require_number("decode_queue_s", decode_queue_s, least=0)
    load = transfer_time_s(num_bytes=hit * size, bytes_per_s=link_bytes_per_s)
    back = transfer_time_s(num_bytes=miss * size, bytes_per_s=link_bytes_per_s)
    times = {
        "stay": at_decode + miss / slow + disturbed,
        "move": at_prefill + load + miss / fast + back + at_decode,
        "recompute": at_prefill + (hit + miss) / fast + back + at_decode,
    }
    return {**{f"{name}_s": time for name, time in times.items()}, "best": min(times, key=lambda name: times[name])}


def break_even_miss_tokens(
    *, hit_tokens: int, kv_bytes_per_token: float, link_bytes_per_s: float, prefill_tokens_per_s: float,
    decode_tokens_per_s: float, interference_s_per_token: float = 0.0, prefill_queue_s: float = 0.0,
) -> float | None:
    """Missing tokens from which moving the prefix to a prefill node is faster than staying.

    Args:
        hit_tokens: prefix cached on the decode node, >= 0.
        kv_bytes_per_token: all layers, > 0.
        link_bytes_per_s: between the nodes, one direction, > 0.
        prefill_tokens_per_s: of the prefill node, > 0.
        decode_tokens_per_s: prefill rate of the decode node, > 0.
        interference_s_per_token: as `routes`.
        prefill_queue_s: as `routes`.

    Returns: tokens, not rounded; None if staying always wins.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: as `routes`.
    Source: `routes`, stay = move, solved for the missing tokens.

    >>> break_even_miss_tokens(hit_tokens=1000, kv_bytes_per_token=1e6, link_bytes_per_s=1e9,
    ...                        prefill_tokens_per_s=1000, decode_tokens_per_s=250)
    500.0
    """
    size = require_number("kv_bytes_per_token", kv_bytes_per_token, above=0)
    fast = require_number("prefill_tokens_per_s", prefill_tokens_per_s, above=0)
    slow = require_number("decode_tokens_per_s", decode_tokens_per_s, above=0)
    disturbed = require_number("interference_s_per_token", interference_s_per_token, least=0)
    moved = require_int("hit_tokens", hit_tokens, least=0) * size
    fixed = require_number("prefill_queue_s", prefill_queue_s, least=0) + transfer_time_s(
        num_bytes=moved, bytes_per_s=link_bytes_per_s
    )
    gain_per_token = 1 / slow + disturbed - 1 / fast - size / link_bytes_per_s
    return fixed / gain_per_token if gain_per_token > 0 else None


def migration(
    *, num_tokens: int, kv_bytes_per_token: float, link_bytes_per_s: float, step_s: float, target_queue_s: float = 0.0,
    restart_s: float = 0.0, margin_s: float = 0.0,
) -> dict[str, float]:
    """Cost of moving a live session, in seconds and in decode steps.

    Args:
        num_tokens: context of the session, >= 0.
        kv_bytes_per_token: all layers, > 0.
        link_bytes_per_s: between the nodes, one direction, > 0.
        step_s: time of one decode step, seconds, > 0.
        target_queue_s: wait at the target, seconds, >= 0.
        restart_s: until the target runs at speed, seconds, >= 0.
        margin_s: hysteresis against moving back and forth, seconds, >= 0.

    Returns: {"bytes", "cost_s": what the saved time must exceed, "steps": cost in decode steps}.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: the session waits meanwhile; no copy-ahead.
    Source: bytes / BW + Q + T_cold + eps; interview questions 6 and 8.

    >>> found = migration(num_tokens=100000, kv_bytes_per_token=327680, link_bytes_per_s=50e9, step_s=0.03)
    >>> round(found["cost_s"], 2), round(found["steps"])
    (0.66, 22)
    """
    moved = require_int("num_tokens", num_tokens) * require_number("kv_bytes_per_token", kv_bytes_per_token, above=0)
    cost = transfer_time_s(num_bytes=moved, bytes_per_s=link_bytes_per_s)
    for name, value in (("target_queue_s", target_queue_s), ("restart_s", restart_s), ("margin_s", margin_s)):
        cost += require_number(name, value, least=0)
    return {"bytes": moved, "cost_s": cost, "steps": cost / require_number("step_s", step_s, above=0)}


def restore_times(
    *, num_tokens: int, kv_bytes_per_token: float, prefill_tokens_per_s: float, link_bytes_per_s: float
) -> dict[str, float]:
    """Bringing a preempted context back: computed again, or loaded from a slower tier.

    Args:
        num_tokens: context of the session, >= 0.
        kv_bytes_per_token: all layers, > 0.
        prefill_tokens_per_s: > 0.
        link_bytes_per_s: of the host or storage link, > 0.

    Returns: {"recompute_s", "reload_s"}.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: constant prefill rate, an idle link.
    Source: S / r_P against S kappa / BW; interview question 8.

    >>> restore_times(num_tokens=100000, kv_bytes_per_token=327680, prefill_tokens_per_s=10000, link_bytes_per_s=64e9)
    {'recompute_s': 10.0, 'reload_s': 0.512}
    """
    tokens = require_int("num_tokens", num_tokens, least=0)
    size = require_number("kv_bytes_per_token", kv_bytes_per_token, above=0)
    return {
        "recompute_s": tokens / require_number("prefill_tokens_per_s", prefill_tokens_per_s, above=0),
        "reload_s": transfer_time_s(num_bytes=tokens * size, bytes_per_s=link_bytes_per_s),
    }

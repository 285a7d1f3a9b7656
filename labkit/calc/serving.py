"""Serving capacity: decode batch, rates of prefill and decode replicas, their ratio, and batching by iteration.

In: batch, step time, lengths, rates, utilisation. Out: tokens/s, requests/s, replicas, iterations.

    python -m labkit calc serving batching_iterations lengths=[256,16,16,16] num_slots=2
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import Any

from labkit.calc._require import require_fraction, require_int, require_number


def pd_plan(
    *, batch: int, step_s: float, output_tokens: float, prefill_tokens_per_s: float, miss_tokens: float,
    decode_utilisation: float = 0.7, prefill_utilisation: float = 0.7, num_decode: int = 1,
) -> dict[str, Any]:
    """Rates of a decode and a prefill replica, and how many prefill replicas a number of decode replicas needs.

    Args:
        batch: sequences of one decode step, >= 1.
        step_s: time of a step, seconds, > 0; the mean for capacity, P99 to be safe twice.
        output_tokens: mean decode steps of a request, > 0 (one less than its tokens: prefill makes the first).
        prefill_tokens_per_s: missed tokens that a prefill replica computes, > 0.
        miss_tokens: mean tokens of a request without cached KV, > 0.
        decode_utilisation: planned load of a decode replica, above 0 to 1.
        prefill_utilisation: planned load of a prefill replica, above 0 to 1.
        num_decode: decode replicas, >= 1.

    Returns: {"decode_tokens_per_s", "decode_requests_per_s", "decode_requests_per_s_safe", "prefill_requests_per_s",
        "prefill_requests_per_s_safe", "decode_per_prefill", "prefill_exact", "prefill_replicas",
        "prefill_load": utilisation that the rounded number of replicas then has}.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: decode replicas run at their planned load; arrivals and lengths are means.
    Source: mu_D = TPS / E[L_o], mu_P = TPS_P / E[L_miss], N_P = ceil(N_D rho mu_D / (rho mu_P)); interview question 10.

    >>> plan = pd_plan(batch=64, step_s=0.045, output_tokens=400, prefill_tokens_per_s=50000, miss_tokens=2000,
    ...                num_decode=8)
    >>> round(plan["decode_per_prefill"], 2), round(plan["prefill_exact"], 2), plan["prefill_replicas"]
    (7.03, 1.14, 2)
    """
    tokens = require_int("batch", batch, least=1) / require_number("step_s", step_s, above=0)
    decode = tokens / require_number("output_tokens", output_tokens, above=0)
    prefill = require_number("prefill_tokens_per_s", prefill_tokens_per_s, above=0)
    prefill /= require_number("miss_tokens", miss_tokens, above=0)
    decode_safe = decode * require_fraction("decode_utilisation", decode_utilisation, zero=False)
    prefill_safe = prefill * require_fraction("prefill_utilisation", prefill_utilisation, zero=False)
    demand = require_int("num_decode", num_decode, least=1) * decode_safe
    # A hair below the integer: 7 replicas that need exactly 1.0 must not become 2 by rounding.
    replicas = math.ceil(demand / prefill_safe * (1 - 1e-12))
    return {
        "decode_tokens_per_s": tokens, "decode_requests_per_s": decode, "decode_requests_per_s_safe": decode_safe,
        "prefill_requests_per_s": prefill, "prefill_requests_per_s_safe": prefill_safe,
        "decode_per_prefill": prefill_safe / decode_safe, "prefill_exact": demand / prefill_safe,
        "prefill_replicas": replicas, "prefill_load": demand / (replicas * prefill),
    }


def prefill_load_share(*, prefill_exact: float, num_prefill: int, planned: float = 0.7) -> float:
    """Utilisation of a chosen number of prefill replicas.

    Args:
        prefill_exact: replicas needed at the planned load, not rounded, > 0.
        num_prefill: replicas there are, >= 1.
        planned: load at which `prefill_exact` was computed, above 0 to 1.

    Returns: fraction of their capacity; above 1 they cannot keep up.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: as `pd_plan`.
    Source: rho x exact / chosen; interview question 10, erratum E08.

    >>> [round(100 * prefill_load_share(prefill_exact=1.1378, num_prefill=n), 1) for n in (1, 2)]
    [79.6, 39.8]
    """
    need = require_number("prefill_exact", prefill_exact, above=0) * require_fraction("planned", planned, zero=False)
    return need / require_int("num_prefill", num_prefill, least=1)


def kv_link_bytes_per_s(*, requests_per_s: float, transferred_tokens: float, kv_bytes_per_token: float) -> float:
    """Rate at which a prefill replica emits KV.

    Args:
        requests_per_s: >= 0.
        transferred_tokens: mean tokens of a request whose KV travels, >= 0.
        kv_bytes_per_token: all layers, > 0.

    Returns: bytes per second.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: a mean; bursts need more.
    Source: lambda E[L] kappa; interview question 10.

    >>> kv_link_bytes_per_s(requests_per_s=17.5, transferred_tokens=2000, kv_bytes_per_token=70272) / 1e9
    2.45952
    """
    rate = require_number("requests_per_s", requests_per_s, least=0)
    rate *= require_number("transferred_tokens", transferred_tokens, least=0)
    return rate * require_number("kv_bytes_per_token", kv_bytes_per_token, above=0)


def batch_fits(*, lengths: Sequence[Sequence[int]], pool_tokens: int, block_tokens: int = 1) -> dict[str, Any]:
    """Whether the sequences of a batch fit into the cache, each rounded up to whole blocks.

    Args:
        lengths: [number of sequences, tokens of each] pairs, >= 0.
        pool_tokens: capacity of the cache, >= 0.
        block_tokens: tokens of a block, >= 1.

    Returns: {"tokens": held, "fits"}.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: nothing shared.
    Source: sum of ceil(L / c) c; interview question 10.

    >>> [batch_fits(lengths=x, pool_tokens=300000)["fits"] for x in ([[64, 4096]], [[8, 32768], [56, 1024]])]
    [True, False]
    """
    block, held = require_int("block_tokens", block_tokens, least=1), 0
    for i, pair in enumerate(lengths):
        if isinstance(pair, str) or len(pair) != 2:
            raise ValueError(f"lengths[{i}]={pair!r}: expected [number of sequences, tokens of each]")
        count, tokens = (require_int(f"lengths[{i}]", x, least=0) for x in pair)
        held += count * -(-tokens // block) * block
    return {"tokens": held, "fits": held <= require_int("pool_tokens", pool_tokens, least=0)}


def largest_batch(
    *, tpot_s: float, fixed_s: float, per_sequence_s: float, pool_tokens: int, tokens_per_sequence: int,
    gap_s: float = 0.0,
) -> dict[str, Any]:
    """Largest decode batch under a time per output token and a cache, with a step time linear in the batch.

    Args:
        tpot_s: limit for one output token, seconds, > 0.
        fixed_s: step time without sequences (weights), seconds, >= 0.
        per_sequence_s: step time that each sequence adds (its KV), seconds, > 0.
        pool_tokens: capacity of the cache, >= 0.
        tokens_per_sequence: tokens to plan for each, >= 1.
        gap_s: between steps, seconds, >= 0.

    Returns: {"batch", "by_time", "by_memory", "limited_by": "time" or "memory", "tokens_per_s"}.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: measured step times are used as means or P99 alike; no shared prefix.
    Source: t(B) + gap <= TPOT and sum of tokens <= pool; interview question 10.

    >>> found = largest_batch(
    ...     tpot_s=0.05, fixed_s=0.01, per_sequence_s=0.0005, pool_tokens=300000, tokens_per_sequence=4096)
    >>> found["batch"], found["by_time"], found["limited_by"]
    (73, 80, 'memory')
    """
    fixed = require_number("fixed_s", fixed_s, least=0)
    left = require_number("tpot_s", tpot_s, above=0) - fixed - require_number("gap_s", gap_s, least=0)
    each = require_number("per_sequence_s", per_sequence_s, above=0)
    by_time = max(0, math.floor(left / each * (1 + 1e-12)))
    tokens = require_int("tokens_per_sequence", tokens_per_sequence, least=1)
    by_memory = require_int("pool_tokens", pool_tokens, least=0) // tokens
    batch = min(by_time, by_memory)
    return {
        "batch": batch, "by_time": by_time, "by_memory": by_memory,
        "limited_by": "time" if by_time <= by_memory else "memory",
        "tokens_per_s": batch / (fixed + gap_s + batch * each) if batch else 0.0,
    }


def chunk_plan(*, tpot_s: float, decode_s: float, prefill_tokens_per_s: float, prompt_tokens: int) -> dict[str, float]:
    """Prefill chunk that fits beside a decode step, and the time to first token it gives.

    Args:
        tpot_s: limit for one output token, seconds, > 0.
        decode_s: time of the decode step alone, seconds, 0 to tpot_s.
        prefill_tokens_per_s: > 0.
        prompt_tokens: missing tokens of the prompt, >= 1.

    Returns: {"chunk_tokens", "ttft_s"}.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: times of chunk and decode add up; every step is filled to the limit.
    Source: c = (TPOT - t) r, TTFT = ceil(L / c) TPOT; extra interview question 26.

    >>> {k: round(v, 6) for k, v in chunk_plan(
    ...     tpot_s=0.05, decode_s=0.02, prefill_tokens_per_s=30000, prompt_tokens=32768).items()}
    {'chunk_tokens': 900.0, 'ttft_s': 1.85}
    """
    limit, busy = require_number("tpot_s", tpot_s, above=0), require_number("decode_s", decode_s, least=0)
    if busy >= limit:
        raise ValueError(f"decode_s={decode_s!r}: expected less than tpot_s={tpot_s}")
    chunk = (limit - busy) * require_number("prefill_tokens_per_s", prefill_tokens_per_s, above=0)
    steps = math.ceil(require_int("prompt_tokens", prompt_tokens, least=1) / chunk)
    return {"chunk_tokens": chunk, "ttft_s": steps * limit}


def batching_iterations(*, lengths: Sequence[int], num_slots: int) -> dict[str, int]:
    """Decode iterations until all requests are done: whole batches, or a free slot filled at once.

    Args:
        lengths: output tokens of each request in order of arrival, >= 1.
        num_slots: sequences that run at a time, >= 1.

    Returns: {"whole_batches", "continuous"}.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: all requests wait at the start; an iteration costs the same however full it is.
    Source: simulation; Yu et al., "Orca", OSDI 2022; interview question 8.

    >>> batching_iterations(lengths=[256, 16, 16, 16] * 4, num_slots=4)
    {'whole_batches': 1024, 'continuous': 352}
    """
    todo = [require_int(f"lengths[{i}]", x, least=1) for i, x in enumerate(lengths)]
    slots = require_int("num_slots", num_slots, least=1)
    whole = sum(max(todo[i : i + slots]) for i in range(0, len(todo), slots))
    waiting, running, now = deque(todo), [], 0
    while waiting or running:
        while waiting and len(running) < slots:
            running.append(now + waiting.popleft())
        now = min(running)
        running = [end for end in running if end > now]
    return {"whole_batches": whole, "continuous": now}


def kv_read_work(*, num_requests: int, context_tokens: int, remaining_tokens: int) -> int:
    """Cached tokens that the rest of some generations will read: their load, where a request count says nothing.

    Args:
        num_requests: >= 0.
        context_tokens: of each now, >= 0.
        remaining_tokens: of each, >= 0.

    Returns: token reads.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: the context does not grow on the way (a lower bound).
    Source: n L_ctx L_rem; interview question 8.

    >>> heavy = kv_read_work(num_requests=2, context_tokens=100000, remaining_tokens=10000)
    >>> heavy / kv_read_work(num_requests=10, context_tokens=2000, remaining_tokens=20)
    5000.0
    """
    reads = require_int("num_requests", num_requests, least=0) * require_int("context_tokens", context_tokens, least=0)
    return reads * require_int("remaining_tokens", remaining_tokens, least=0)


def work_ratio(*, heavy: Sequence[int], light: Sequence[int]) -> float:
    """Ratio of two groups of generations by `kv_read_work`.

    Args:
        heavy: [requests, context tokens, remaining tokens], >= 0.
        light: likewise, each >= 1.

    Returns: ratio.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: as `kv_read_work`.
    Source: `kv_read_work`; interview question 8.

    >>> work_ratio(heavy=[2, 100000, 10000], light=[10, 2000, 20])
    5000.0
    """
    work = []
    for name, group, least in (("heavy", heavy, 0), ("light", light, 1)):
        if isinstance(group, str) or len(group) != 3:
            raise ValueError(f"{name}={group!r}: expected [requests, context tokens, remaining tokens]")
        count, context, remaining = (require_int(name, x, least=least) for x in group)
        work.append(kv_read_work(num_requests=count, context_tokens=context, remaining_tokens=remaining))
    return work[0] / work[1]


def long_job_slots(*, num_ticks: int, age_every: int | None) -> int:
    """Slots that a long job gets under shortest-remaining-first when a short job arrives at every tick.

    Args:
        num_ticks: one slot each, >= 0.
        age_every: wait in ticks after which the long job is served once, >= 1; None: never.

    Returns: slots.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: short jobs take one slot, the long one never ends.
    Source: floor(ticks / age); interview question 8.

    >>> long_job_slots(num_ticks=100, age_every=None), long_job_slots(num_ticks=100, age_every=10)
    (0, 10)
    """
    ticks = require_int("num_ticks", num_ticks, least=0)
    return 0 if age_every is None else ticks // require_int("age_every", age_every, least=1)

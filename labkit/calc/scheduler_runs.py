"""Loads run through the model of an engine's scheduler: what will be counted, and how many requests fit.

python -c "from labkit.calc.scheduler_runs import simulate"
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from labkit.calc._require import require_int
from labkit.calc.scheduler import Job, Scheduler, SchedulerConfig


def simulate(
    jobs: Sequence[Job], config: SchedulerConfig, *, concurrency: int | None = None,
    arrivals: Sequence[int] | None = None, scheduler: Scheduler | None = None,
) -> dict[str, Any]:
    """Run requests to their end.

    Args:
        jobs: in order of arrival.
        config: of the engine.
        concurrency: requests in flight at most: when one ends, the next is there for the following step. None: all of
            them are there before the first step, unless `arrivals` says otherwise.
        arrivals: steps that have been made when each job arrives, rising: 0 is there for the first step. An idle
            engine makes no steps: the next job then arrives at once.
        scheduler: an engine with a past, such as a warm cache; a fresh one if not given.

    Returns: num_steps, preemptions, recomputed_tokens (prompt and output tokens computed again), query_tokens and
        hit_tokens (also `by_label`), peak_kv_usage (0 to 1), peak_running, peak_waiting, evictions, first_steps and
        end_steps (step of each request's first and last token, in order of arrival). Counts are of this call alone.
        Step by step: the scheduler's `trace` and `preempted`.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: vLLM's V1 rules as in the module's text, without asynchronous scheduling and speculative tokens. In a
        closed loop a real client's next request can come a step later than here.
    Source: vllm/v1/core/sched/scheduler.py and block_pool.py, versions 0.19 to 0.32, read and then run against.

    >>> config = SchedulerConfig(num_blocks=10, block_size=4, max_num_seqs=4, max_num_batched_tokens=64)
    >>> jobs = [Job(prompt_ids=tuple(range(9)), output_tokens=2)] * 2
    >>> simulate(jobs, config)["hit_tokens"]
    8
    """
    if concurrency is not None:
        require_int("concurrency", concurrency, least=1)
    if arrivals is not None:
        if concurrency is not None:
            raise ValueError("arrivals: expected none with a concurrency: it is what decides when they come")
        if len(arrivals) != len(jobs) or any(b < a for a, b in pairwise([0, *arrivals])):
            raise ValueError(f"arrivals={list(arrivals)!r}: expected {len(jobs)} rising numbers of steps from 0 on")
    engine = scheduler or Scheduler(config)
    if not engine.is_idle:
        raise ValueError("scheduler: expected one without requests")
    first_done, steps = len(engine.done), engine.num_steps
    preemptions, evictions = engine.num_preemptions, engine.pool.num_evictions
    engine.peak_usage, engine.peak_running, engine.peak_waiting = 0.0, 0, 0
    pending = list(zip(jobs, arrivals or [0] * len(jobs)))
    in_flight = 0
    while pending or not engine.is_idle:
        now = engine.num_steps - steps if not engine.is_idle else max(engine.num_steps - steps, pending[0][1])
        while pending and pending[0][1] <= now and (concurrency is None or in_flight < concurrency):
            engine.add(pending.pop(0)[0])
            in_flight += 1
        in_flight -= len(engine.step())
    ran = sorted(engine.done[first_done:], key=lambda sequence: sequence.number)
    labels: dict[str, dict[str, int]] = {}
    for sequence in ran:
        counts = labels.setdefault(sequence.job.label, {"query_tokens": 0, "hit_tokens": 0, "num_requests": 0})
        counts["num_requests"] += 1
        if config.enable_prefix_caching:
            counts["query_tokens"] += len(sequence.job.prompt_ids)
            counts["hit_tokens"] += sequence.hit_tokens
    return {
        "num_steps": engine.num_steps - steps, "preemptions": engine.num_preemptions - preemptions,
        "recomputed_tokens": sum(sequence.recomputed_tokens for sequence in ran),
        "query_tokens": sum(counts["query_tokens"] for counts in labels.values()),
        "hit_tokens": sum(counts["hit_tokens"] for counts in labels.values()), "by_label": labels,
        "peak_kv_usage": engine.peak_usage, "peak_running": engine.peak_running, "peak_waiting": engine.peak_waiting,
        "evictions": engine.pool.num_evictions - evictions,
        "first_steps": [(sequence.first_step or 0) - steps for sequence in ran],
        "end_steps": [(sequence.end_step or 0) - steps for sequence in ran],
    }


def largest_concurrency(
    *, prompt_tokens: int, output_tokens: int, config: SchedulerConfig, num_requests: int | None = None,
    waves: int = 4,
) -> int:
    """Most requests of one shape that can be in flight without a preemption.

    Args:
        prompt_tokens: of each request; all different, so nothing is shared.
        output_tokens: of each request.
        config: of the engine.
        num_requests: sent in all; if not given, `waves` times the concurrency that is tried.
        waves: >= 1.

    Returns: the largest such number up to `max_num_seqs`; 0 when even one does not fit.
    Raises: ValueError naming the argument.
    Assumes: preemptions grow with concurrency, which holds for equal requests; found by search on `simulate`.
    Source: `simulate`; no closed form, since requests that ended make room for others at other times.

    >>> config = SchedulerConfig(num_blocks=1170, block_size=16, max_num_seqs=32, max_num_batched_tokens=2048)
    >>> largest_concurrency(prompt_tokens=1024, output_tokens=512, config=config, num_requests=16)
    12
    """
    require_int("prompt_tokens", prompt_tokens, least=1)
    require_int("output_tokens", output_tokens, least=1)
    require_int("waves", waves, least=1)
    if -(-(prompt_tokens + output_tokens - 1) // config.block_size) > config.num_blocks - 1:
        return 0

    def is_quiet(concurrency: int) -> bool:
        count = num_requests or waves * concurrency
        jobs = [Job(prompt_ids=tuple(range(i * prompt_tokens, (i + 1) * prompt_tokens)), output_tokens=output_tokens)
                for i in range(count)]
        return simulate(jobs, config, concurrency=concurrency)["preemptions"] == 0

    # Whole requests that fit are quiet whatever their order, and the answer is seldom far above.
    each = -(-(prompt_tokens + output_tokens - 1) // config.block_size)
    high, reach = config.max_num_seqs, 1
    low = min(high, (config.num_blocks - 1) // each)
    while low + reach <= high:
        if is_quiet(low + reach):
            low, reach = low + reach, 2 * reach
        else:
            high = low + reach - 1
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if is_quiet(middle) else (low, middle - 1)
    return low

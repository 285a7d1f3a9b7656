"""What rounds of equal requests come to on a cache of a given size, before they run: counts exactly, times assumed.

In: an engine's settings and a load. Out: preemptions, recomputed tokens, steps, the highest use of the cache, and from
two unit costs of a step: throughput, TTFT, TPOT, E2EL. The counts need no unit cost and hold on any machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from labkit.calc._require import require_int, require_number
from labkit.calc.scheduler import Job, Scheduler, SchedulerConfig, Step
from labkit.calc.scheduler_runs import simulate


def equal_jobs(*, num_requests: int, prompt_tokens: int, output_tokens: int) -> list[Job]:
    """Requests of one shape that share no prefix.

    Args:
        num_requests: how many, >= 1.
        prompt_tokens: of each, >= 1.
        output_tokens: of each, >= 1.

    Returns: jobs in order of arrival.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: nothing else is in the engine.
    Source: the load of report section 14.1: random token ids.

    >>> [len(job.prompt_ids) for job in equal_jobs(num_requests=2, prompt_tokens=3, output_tokens=1)]
    [3, 3]
    """
    require_int("prompt_tokens", prompt_tokens, least=1)
    require_int("output_tokens", output_tokens, least=1)
    return [Job(prompt_ids=(number,) * prompt_tokens, output_tokens=output_tokens)
            for number in range(require_int("num_requests", num_requests, least=1))]


def step_seconds(
    trace: Sequence[Step], *, step_ms: float, token_us: float, request_us: float = 0.0,
) -> list[float]:
    """Time of each step: a fixed part, one for each request that decodes, one for every other token.

    Args:
        trace: steps of the model.
        step_ms: of any step, ms, >= 0.
        token_us: of each prompt token, or token computed again, us, >= 0.
        request_us: of each request that decodes, us, >= 0.

    Returns: seconds, one number a step.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: a token costs the same however long its context is.
    Source: a linear model; the lab reads the costs off its own log as well.

    >>> step = Step(context_requests=1, context_tokens=100, generation_requests=2, generation_tokens=2, running=3,
    ...             waiting=0, usage=0.5)
    >>> step_seconds([step], step_ms=5, token_us=50)
    [0.01]
    """
    fixed, each = require_number("step_ms", step_ms, least=0) / 1e3, require_number("token_us", token_us, least=0) / 1e6
    one = require_number("request_us", request_us, least=0) / 1e6
    return [fixed + one * step.generation_requests
            + each * (step.context_tokens + step.generation_tokens - step.generation_requests) for step in trace]


def round_prediction(
    config: SchedulerConfig, *, concurrency: int, num_requests: int, prompt_tokens: int, output_tokens: int,
    step_ms: float, token_us: float, request_us: float = 0.0, arrivals: Sequence[int] | None = None,
) -> dict[str, Any]:
    """One round: counts from the scheduler's rules, times from the unit costs.

    Args:
        config: of the engine; without prefix caching, or nothing is shared anyway.
        concurrency: requests in flight at most, >= 1; as many are released into the first step.
        num_requests: sent in all, >= 1.
        prompt_tokens: of each.
        output_tokens: of each.
        step_ms: as `step_seconds`.
        token_us: as `step_seconds`.
        request_us: as `step_seconds`.
        arrivals: steps that have been made when each request arrives or is first served, if they are known; those
            beyond `concurrency` then do not wait for an end.

    Returns: preemptions, preempted_at (step of each), recomputed_tokens, num_steps, peak_kv_pct, peak_running,
        mean_running (over steps), first_steps; wall_s, tokens_per_s (prompt and output), ttft_s, tpot_s and e2el_s
        (means over requests, from the release; those that wait for a place: from the end of the one they follow).
    Raises: ValueError naming the argument.
    Assumes: as `simulate` and `step_seconds`.
    Source: `simulate`; definitions of the glossary.

    >>> config = SchedulerConfig(num_blocks=1170, block_size=16, max_num_seqs=32, max_num_batched_tokens=2048,
    ...                          enable_prefix_caching=False)
    >>> seen = round_prediction(config, concurrency=16, num_requests=16, prompt_tokens=1024, output_tokens=512,
    ...                         step_ms=1, token_us=0)
    >>> seen["preemptions"], seen["num_steps"], round(seen["peak_kv_pct"], 1)
    (4, 889, 100.0)
    """
    engine = Scheduler(config)
    jobs = equal_jobs(num_requests=num_requests, prompt_tokens=prompt_tokens, output_tokens=output_tokens)
    seen = simulate(jobs, config, scheduler=engine, arrivals=arrivals,
                    concurrency=concurrency if arrivals is None else None)
    costs = step_seconds(engine.trace, step_ms=step_ms, token_us=token_us, request_us=request_us)
    at = [0.0, *accumulate(costs)]
    first, last = [at[step] for step in seen["first_steps"]], [at[step] for step in seen["end_steps"]]
    later = [at[step] for step in arrivals] if arrivals is not None else [0.0] * concurrency + sorted(last)
    began = [0.0 if number < concurrency else later[number] for number in range(num_requests)]
    mean = lambda values: sum(values) / num_requests  # noqa: E731
    return {
        "preemptions": seen["preemptions"], "preempted_at": [step for step, _, _ in engine.preempted],
        "recomputed_tokens": seen["recomputed_tokens"], "num_steps": seen["num_steps"],
        "peak_kv_pct": 100 * seen["peak_kv_usage"], "peak_running": seen["peak_running"],
        "mean_running": sum(step.running for step in engine.trace) / len(engine.trace),
        "first_steps": seen["first_steps"], "wall_s": at[-1],
        "tokens_per_s": num_requests * (prompt_tokens + output_tokens) / at[-1] if at[-1] else None,
        "ttft_s": mean([a - b for a, b in zip(first, began)]),
        "tpot_s": mean([(b - a) / (output_tokens - 1) for a, b in zip(first, last)]) if output_tokens > 1 else None,
        "e2el_s": mean([a - b for a, b in zip(last, began)]),
    }


def round_counts(
    *, num_blocks: int, concurrency: int, block_tokens: int = 16, num_requests: int = 16, prompt_tokens: int = 1024,
    output_tokens: int = 512, max_num_seqs: int = 32, max_num_batched_tokens: int = 2048,
) -> dict[str, Any]:
    """The counts of `round_prediction` from plain numbers.

    Args:
        num_blocks: of the cache, the one that is never given out included, >= 2.
        concurrency: requests in flight at most, >= 1.
        block_tokens: of a block, >= 1.
        num_requests: sent in all, >= 1.
        prompt_tokens: of each, >= 1.
        output_tokens: of each, >= 1.
        max_num_seqs: requests that run at a time at most, >= 1.
        max_num_batched_tokens: of a step, >= 1.

    Returns: preemptions, recomputed_tokens, num_steps, peak_kv_pct, peak_running, mean_running.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: as `simulate`; prefix caching off.
    Source: `round_prediction`; report section 14.1.

    >>> round_counts(num_blocks=4681, concurrency=16)["num_steps"]
    520
    """
    config = SchedulerConfig(num_blocks=num_blocks, block_size=block_tokens, max_num_seqs=max_num_seqs,
                             max_num_batched_tokens=max_num_batched_tokens, enable_prefix_caching=False)
    seen = round_prediction(
        config, concurrency=require_int("concurrency", concurrency, least=1), num_requests=num_requests,
        prompt_tokens=prompt_tokens, output_tokens=output_tokens, step_ms=1, token_us=0)
    return {name: seen[name] for name in ("preemptions", "recomputed_tokens", "num_steps", "peak_kv_pct",
                                          "peak_running", "mean_running")}


def preemptions_by_gap(
    config: SchedulerConfig, *, num_requests: int, prompt_tokens: int, output_tokens: int, gaps: Sequence[int],
) -> dict[str, int]:
    """Preemptions when the requests come a fixed number of steps apart.

    Args:
        config: of the engine.
        num_requests: sent in all, >= 1.
        prompt_tokens: of each.
        output_tokens: of each.
        gaps: steps from one arrival to the next, >= 0.

    Returns: gap as text -> preemptions.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: as `simulate`.
    Source: `simulate`; erratum E19 of the report.

    >>> config = SchedulerConfig(num_blocks=1170, block_size=16, max_num_seqs=32, max_num_batched_tokens=2048,
    ...                          enable_prefix_caching=False)
    >>> preemptions_by_gap(config, num_requests=16, prompt_tokens=1024, output_tokens=512, gaps=[0, 40])
    {'0': 4, '40': 0}
    """
    jobs = equal_jobs(num_requests=num_requests, prompt_tokens=prompt_tokens, output_tokens=output_tokens)
    return {str(gap): simulate(jobs, config, arrivals=[
        require_int(f"gaps[{place}]", gap, least=0) * number for number in range(num_requests)])["preemptions"]
        for place, gap in enumerate(gaps)}


def kv_curve(
    config: SchedulerConfig, *, concurrency: int, num_requests: int, prompt_tokens: int, output_tokens: int,
    step_ms: float = 1.0, token_us: float = 0.0, request_us: float = 0.0,
) -> dict[str, list[float]]:
    """Use of the cache and requests over steps and time, for a figure.

    Args:
        config: of the engine.
        concurrency: as `round_prediction`.
        num_requests: as there.
        prompt_tokens: as there.
        output_tokens: as there.
        step_ms: as `step_seconds`.
        token_us: as there.
        request_us: as there.

    Returns: at_s (end of each step), usage_pct, running, waiting: one number a step, when it had ended.
    Raises: ValueError naming the argument.
    Assumes: as `simulate` and `step_seconds`.
    Source: `simulate`.

    >>> config = SchedulerConfig(num_blocks=9, block_size=4, max_num_seqs=2, max_num_batched_tokens=8)
    >>> kv_curve(config, concurrency=1, num_requests=1, prompt_tokens=4, output_tokens=3)["usage_pct"]
    [12.5, 25.0, 0.0]
    """
    engine = Scheduler(config)
    simulate(equal_jobs(num_requests=num_requests, prompt_tokens=prompt_tokens, output_tokens=output_tokens), config,
             concurrency=concurrency, scheduler=engine)
    seconds = step_seconds(engine.trace, step_ms=step_ms, token_us=token_us, request_us=request_us)
    return {"at_s": list(accumulate(seconds)), "usage_pct": [100 * step.usage for step in engine.trace],
            "running": [float(step.running) for step in engine.trace],
            "waiting": [float(step.waiting) for step in engine.trace]}

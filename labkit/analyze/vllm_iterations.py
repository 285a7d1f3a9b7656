"""Every step of an engine, from its log (`--enable-logging-iteration-details`), and what it says about the schedule.

A step's tokens are all that were computed in it, so they also show what was computed twice after a preemption, which
no counter tells. Releases before mid-2026 write the line from the engine core, later ones from the API server, with
the use of the cache behind it; both are read.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from labkit.calc.scheduler import Job, Scheduler, SchedulerConfig, Step
from labkit.calc.scheduler_runs import simulate

_LINE = re.compile(
    r"Iteration\((?P<index>\d+)\): (?P<context_requests>\d+) context requests, (?P<context_tokens>\d+) context tokens, "
    r"(?P<generation_requests>\d+) generation requests, (?P<generation_tokens>\d+) generation tokens, "
    r"iteration elapsed time: (?P<elapsed_ms>[\d.]+) ms(?P<dummy> \(dummy\))?"
    r"(?:, \w+ KV cache usage: (?P<usage>[\d.]+)%)?")
_ENGINE = re.compile(r"(?:EngineCore_(?:DP)?|Engine )(\d+)(?: pid=|: $)")
TOKENS = ("context_requests", "context_tokens", "generation_requests", "generation_tokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class Iteration:
    """One step as the engine logged it."""

    index: int
    """Since the engine's start."""
    context_requests: int
    context_tokens: int
    generation_requests: int
    generation_tokens: int
    elapsed_ms: float
    usage_pct: float | None
    """Of the cache when the step had ended, one decimal; None where the release does not say."""
    engine: int = 0
    """Of several that share the data: each counts its own steps."""


def parse_iterations(text: str) -> list[Iteration]:
    """The steps in a log, or in a piece of one, of all its engines; empty without any.

    Dummy steps of data-parallel ranks without work are left out.
    """
    found = []
    for match in _LINE.finditer(text):
        if match["dummy"]:
            continue
        before = text[text.rfind("\n", 0, match.start()) + 1 : match.start()]
        engines = _ENGINE.findall(before)
        found.append(Iteration(
            engine=int(engines[-1]) if engines else 0, index=int(match["index"]), elapsed_ms=float(match["elapsed_ms"]),
            usage_pct=float(match["usage"]) if match["usage"] else None,
            **{name: int(match[name]) for name in TOKENS}))
    return found


def find_lone_prompt(text: str, *, num_tokens: int, after_tokens: int) -> int:
    """Where the line of a step begins that computed one prompt of `num_tokens` and nothing else.

    Args:
        text: of a log.
        num_tokens: of the prompt.
        after_tokens: that steps before it computed, at least.

    Returns: offset of the first such line's match, -1 without one.
    """
    computed = 0
    for match in _LINE.finditer(text):
        found = tuple(int(match[name]) for name in TOKENS)
        if computed >= after_tokens and found == (1, num_tokens, 0, 0) and not match["dummy"]:
            return match.start()
        computed += found[1] + found[3]
    return -1


def num_lost(steps: Sequence[Iteration]) -> int:
    """Steps missing between the first and the last of each engine: gaps of their numbers, which rise by one."""
    by_engine: dict[int, list[int]] = {}
    for step in steps:
        by_engine.setdefault(step.engine, []).append(step.index)
    return sum(numbers[-1] - numbers[0] + 1 - len(numbers) for numbers in by_engine.values())


def arrival_steps(steps: Sequence[Iteration], *, num_requests: int, prompt_tokens: int) -> list[int]:
    """Steps that had been made when each request's first part was computed: as good as its arrival for the model.

    Args:
        steps: of one load, from its first step on.
        num_requests: of the load, served in order of arrival.
        prompt_tokens: of each of them.

    Returns: one number each, rising, from 0 on.
    Raises: ValueError when the steps do not hold all prompts, or are of several engines.
    Assumes: no cached prefix, and no request is preempted before its first token: then its prompt is counted again.

    >>> line = "Iteration({}): 1 context requests, {} context tokens, 0 generation requests, 0 generation tokens, "
    >>> log = "".join(line.format(i, n) + "iteration elapsed time: 1.0 ms" for i, n in enumerate((8, 6, 2)))
    >>> arrival_steps(parse_iterations(log), num_requests=2, prompt_tokens=8)
    [0, 1]
    """
    if len(engines := {step.engine for step in steps}) > 1:
        raise ValueError(f"the log holds steps of {len(engines)} engines, expected those of one")
    arrivals, seen = list[int](), 0
    for made, step in enumerate(steps):
        seen += step.context_tokens
        while len(arrivals) < num_requests and len(arrivals) * prompt_tokens < seen:
            arrivals.append(made)
    if len(arrivals) < num_requests or seen < num_requests * prompt_tokens:
        raise ValueError(f"the log holds {seen} prompt tokens, expected {num_requests} x {prompt_tokens}")
    return arrivals


def replay(
    steps: Sequence[Iteration], config: SchedulerConfig, *, num_requests: int, prompt_tokens: int, output_tokens: int,
) -> dict[str, Any]:
    """The model run with the arrivals that the engine's log shows, compared with that log step by step.

    Args:
        steps: of one load.
        config: of the engine.
        num_requests: of the load, all of one shape.
        prompt_tokens: of each.
        output_tokens: of each.

    Returns: arrivals, num_steps (of the engine), preemptions, recomputed_tokens and peak_kv_usage (of the model),
        num_different (steps that differ in requests or tokens, missing ones included), num_usage_different (steps
        whose use of the cache differs by more than the log rounds; None where it does not say), first_difference.
    Raises: ValueError as `arrival_steps`.
    """
    arrivals = arrival_steps(steps, num_requests=num_requests, prompt_tokens=prompt_tokens)
    engine = Scheduler(config)
    jobs = [Job(prompt_ids=(number,) * prompt_tokens, output_tokens=output_tokens) for number in range(num_requests)]
    model = simulate(jobs, config, arrivals=arrivals, scheduler=engine)
    differ = [number for number, (ours, seen) in enumerate(zip(engine.trace, steps)) if not _same(ours, seen)]
    usage = [abs(100 * ours.usage - seen.usage_pct) > 0.0501 for ours, seen in zip(engine.trace, steps)
             if seen.usage_pct is not None]
    return {
        "arrivals": arrivals, "num_steps": len(steps),
        **{name: model[name] for name in ("preemptions", "recomputed_tokens", "peak_kv_usage")},
        "num_different": len(differ) + abs(len(engine.trace) - len(steps)),
        "num_usage_different": sum(usage) if usage else None, "first_difference": differ[0] if differ else None,
    }


def _same(ours: Step, seen: Iteration) -> bool:
    """Requests and tokens of a step, prompts and generation apart.

    Where a preempted request computes its past again, releases differ in what they call it: 0.26 counts prompts until
    it has caught up, 0.32 generation. There the sums have to agree.
    """
    if ours.generation_tokens > ours.generation_requests:
        return (ours.context_requests + ours.generation_requests == seen.context_requests + seen.generation_requests
                and ours.context_tokens + ours.generation_tokens == seen.context_tokens + seen.generation_tokens)
    return all(getattr(ours, name) == getattr(seen, name) for name in TOKENS)


def recomputed_tokens(steps: Sequence[Iteration], *, num_requests: int, prompt_tokens: int, output_tokens: int) -> int:
    """Tokens computed more than once: all that were computed less those that each request needs.

    A request's last token is sampled and never computed, so it needs prompt + output - 1.
    """
    computed = sum(step.context_tokens + step.generation_tokens for step in steps)
    return computed - num_requests * (prompt_tokens + output_tokens - 1)

"""What an engine's counters will say of a prefix-cache script: by the model of its scheduler, and by arithmetic alone.

The closed forms share no code with the model. They need whole blocks, the rule of the last token, and a cache that
either keeps all or loses all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from labkit.calc._require import require_int
from labkit.calc.prefix_cache import reusable_tokens
from labkit.calc.prefix_phases import PHASES, Step
from labkit.calc.scheduler import Scheduler, SchedulerConfig
from labkit.calc.scheduler_runs import simulate


def run_steps(steps: Sequence[Step], config: SchedulerConfig) -> dict[str, dict[str, Any]]:
    """What the engine's counters will say of each step. One engine lives through all of them.

    Args:
        steps: in order.
        config: of the engine.

    Returns: name -> num_requests, query_tokens, hit_tokens, generated_tokens, preemptions, evictions, peak_kv_usage.
    Raises: ValueError for a request that never fits.
    Source: labkit.calc.scheduler.

    >>> from labkit.calc.prefix_phases import Workload, phase_steps
    >>> config = SchedulerConfig(num_blocks=100, block_size=16, max_num_seqs=8, max_num_batched_tokens=2048)
    >>> load = Workload(num_requests=4, num_anchors=1, prefix_tokens=64, suffix_tokens=8)
    >>> [found["hit_tokens"] for found in run_steps(phase_steps(load, concurrency=2), config).values()]
    [192, 256, 0, 256, 256]
    """
    engine, found = Scheduler(config), {}
    for step in steps:
        seen = simulate(step.jobs, config, concurrency=step.concurrency, scheduler=engine)
        found[step.name] = {
            "num_requests": len(step.jobs), "generated_tokens": sum(job.output_tokens for job in step.jobs),
            **{name: seen[name] for name in ("query_tokens", "hit_tokens", "preemptions", "evictions",
                                             "peak_kv_usage")}}
    return found


def phase_hits(
    *, block_tokens: int, num_blocks: int, num_requests: int = 48, num_anchors: int = 4, prefix_tokens: int = 1024,
    suffix_tokens: int = 32, output_tokens: int = 16,
) -> dict[str, int | None]:
    """Hit tokens of each phase by block arithmetic alone, for a cache that keeps all or loses all.

    Args:
        block_tokens: tokens of a block, >= 1.
        num_blocks: of the cache, the null block included, >= 2.
        num_requests: of a phase, >= num_anchors.
        num_anchors: shared prefixes, >= 1.
        prefix_tokens: length of a prefix, >= 1.
        suffix_tokens: own tokens of a request, >= 1.
        output_tokens: generated tokens of a request, >= 1.

    Returns: phase -> tokens. `revisit` is None where pollution neither fits beside the anchors nor fills the cache:
        then only the model can tell.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: least recently used blocks go first; the anchors' own blocks fit into the cache.
    Source: report section 8.3; cold (n - a) floor(p / c) c, warm n floor((p + s - 1) / c) c.

    >>> [phase_hits(block_tokens=16, num_blocks=n)["revisit"] for n in (14075, 1170)]
    [49920, 45056]
    >>> phase_hits(block_tokens=32, num_blocks=7038)["warm"]
    49152
    """
    usable = require_int("num_blocks", num_blocks, least=2) - 1
    count = require_int("num_requests", num_requests, least=1)
    anchors = require_int("num_anchors", num_anchors, least=1)
    if count < anchors:
        raise ValueError(f"num_requests={num_requests}: expected at least num_anchors={num_anchors}")
    prompt = require_int("prefix_tokens", prefix_tokens, least=1) + require_int("suffix_tokens", suffix_tokens, least=1)
    shared = prefix_tokens // require_int("block_tokens", block_tokens, least=1)
    computed = prompt + require_int("output_tokens", output_tokens, least=1) - 1
    full, each = computed // block_tokens, -(-computed // block_tokens)
    cold = (count - anchors) * reusable_tokens(shared_tokens=prefix_tokens, block_tokens=block_tokens)
    warm = count * reusable_tokens(shared_tokens=prompt, block_tokens=block_tokens, prompt_tokens=prompt)
    own = anchors * shared + count * (each - shared)
    # A block that is not full is given out again first, so only full ones push the anchors out.
    revisit = warm if own + count * each <= usable else cold if count * full >= usable else None
    return {"cold": cold, "warm": warm, "pollution": 0, "revisit": revisit, "rewarm": warm}


def lifetime_rate(steps: Mapping[str, Mapping[str, Any]]) -> float:
    """Hit rate over all five phases, as a counter read once at the end gives it.

    Args:
        steps: phase -> query_tokens and hit_tokens; other steps are left out.

    Returns: fraction.
    Raises: KeyError for a phase that is missing; ZeroDivisionError without a query.
    Source: sum of hits / sum of queries.

    >>> flat = {name: {"query_tokens": 10, "hit_tokens": 5} for name in PHASES}
    >>> lifetime_rate({**flat, "pollution": {"query_tokens": 10, "hit_tokens": 0}})
    0.4
    """
    return sum(steps[name]["hit_tokens"] for name in PHASES) / sum(steps[name]["query_tokens"] for name in PHASES)


def routed_hits(steps: Sequence[Step], *, prefix_tokens: int, block_tokens: int) -> list[int]:
    """Hit tokens at each replica, if every prefix a replica has not seen is computed there once and stays.

    Args:
        steps: of `routed_steps`, one a replica.
        prefix_tokens: length of a prefix.
        block_tokens: tokens of a block.

    Returns: tokens, one number a replica.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: the cache holds what this traffic needs.
    Source: (requests - different prefixes) floor(p / c) c.

    >>> from labkit.calc.prefix_phases import Workload, routed_steps
    >>> found = routed_steps(Workload(), popularity=[2, 2], num_replicas=2, concurrency=1)
    >>> [sum(routed_hits(steps, prefix_tokens=1024, block_tokens=16)) for steps in found.values()]
    [0, 2048]
    """
    each = reusable_tokens(shared_tokens=prefix_tokens, block_tokens=block_tokens)
    return [(len(step.jobs) - len({job.prompt_ids[:prefix_tokens] for job in step.jobs})) * each for step in steps]

"""The prefix-cache lab before it runs: what each server is sent, and what its counters will say.

In: the load, the two caches. Out: a script for each server, and the prediction that the lab writes down first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from labkit.calc._require import require_int
from labkit.calc.prefix_hits import lifetime_rate, phase_hits, routed_hits, run_steps
from labkit.calc.prefix_phases import (
    PHASES,
    ROUTINGS,
    Step,
    Workload,
    phase_steps,
    routed_steps,
    tail_steps,
    tenant_steps,
)
from labkit.calc.scheduler import SchedulerConfig
from labkit.calc.session_eviction import agent_trace, compare_policies

CASES = {"large": "default", "small": "1 GiB"}
"""Our name of a cache -> the report's."""


def server_scripts(
    load: Workload, *, starts: int, concurrency: int, warmup_requests: int, tenant_prompts: int,
    tail_lengths: Sequence[int], popularity: Sequence[int],
) -> dict[str, list[Step]]:
    """What each server is sent, in order.

    Args:
        load: shape of the requests.
        starts: servers with each cache, >= 1.
        concurrency: requests in flight at most; half of it at each of two replicas.
        warmup_requests: as `phase_steps`.
        tenant_prompts: as `tenant_steps`.
        tail_lengths: as `tail_steps`.
        popularity: as `routed_steps`.

    Returns: server -> steps; servers are `large0`, `large1`, ..., `small0`, ... All go through the five phases, the
        first one through tenants and tails as well, and the first two are replicas for the routings.
    Raises: ValueError naming the argument, the value got, what was expected.
    Source: own definition.

    >>> found = server_scripts(Workload(num_requests=8), starts=1, concurrency=2, warmup_requests=0, tenant_prompts=1,
    ...                        tail_lengths=[64], popularity=[2, 1])
    >>> [(name, len(steps)) for name, steps in found.items()]
    [('large0', 13), ('small0', 7)]
    """
    names = [f"{cache}{start}" for cache in CASES for start in range(require_int("starts", starts, least=1))]
    scripts = {name: phase_steps(load, concurrency=concurrency, warmup_requests=warmup_requests) for name in names}
    scripts[names[0]] += tenant_steps(load, num_prompts=tenant_prompts, concurrency=concurrency)
    scripts[names[0]] += tail_steps(load, shared_lengths=tail_lengths)
    replicas = names[:2]
    routed = routed_steps(load, popularity=popularity, num_replicas=len(replicas),
                          concurrency=max(1, concurrency // len(replicas)))
    for routing in ROUTINGS:
        for name, step in zip(replicas, routed[routing]):
            scripts[name].append(step)
    return scripts


def prediction(
    scripts: Mapping[str, Sequence[Step]], configs: Mapping[str, SchedulerConfig], load: Workload
) -> dict[str, Any]:
    """All that the lab says before it runs.

    Args:
        scripts: of `server_scripts`.
        configs: cache -> engine settings, for `large` and `small`.
        load: shape of the requests.

    Returns: servers (server -> step -> counters), block_size, cap_tokens, query_tokens, hit_tokens, hit_pct,
        computed_tokens, lifetime_pct and closed_form by cache (the report's names), tenant_again, tail_hits,
        routed_hits, routing_hit_pct.
    Raises: ValueError for a request that never fits.
    Assumes: as labkit.calc.scheduler.
    Source: `run_steps` and `phase_hits`.

    >>> load = Workload(num_requests=8, num_anchors=2, prefix_tokens=64)
    >>> config = SchedulerConfig(num_blocks=500, block_size=16, max_num_seqs=8, max_num_batched_tokens=512)
    >>> scripts = server_scripts(load, starts=1, concurrency=2, warmup_requests=0, tenant_prompts=1, tail_lengths=[64],
    ...                          popularity=[2, 1])
    >>> prediction(scripts, {"large": config, "small": config}, load)["lifetime_pct"]["default"]
    60.0
    """
    servers = {name: run_steps(steps, configs[name.rstrip("0123456789")]) for name, steps in scripts.items()}
    first = {case: servers[f"{cache}0"] for cache, case in CASES.items()}
    block = configs["large"].block_size
    lone, replicas = next(iter(servers.values())), list(servers)[:2]
    routed = {routing: [next(step for step in scripts[name] if step.name == routing) for name in replicas]
              for routing in ROUTINGS}
    shape = {name: getattr(load, name) for name in (
        "num_requests", "num_anchors", "prefix_tokens", "suffix_tokens", "output_tokens")}
    return {
        "servers": servers, "block_size": block,
        "cap_tokens": {case: configs[cache].num_blocks * block for cache, case in CASES.items()},
        "query_tokens": load.num_requests * load.prompt_tokens,
        "hit_tokens": {case: {name: steps[name]["hit_tokens"] for name in PHASES} for case, steps in first.items()},
        "hit_pct": {case: {name: round(100 * steps[name]["hit_tokens"] / steps[name]["query_tokens"], 3)
                           for name in PHASES} for case, steps in first.items()},
        "computed_tokens": {case: {name: steps[name]["query_tokens"] - steps[name]["hit_tokens"] for name in PHASES}
                            for case, steps in first.items()},
        "lifetime_pct": {case: round(100 * lifetime_rate(steps), 3) for case, steps in first.items()},
        "closed_form": {case: phase_hits(block_tokens=block, num_blocks=configs[cache].num_blocks, **shape)
                        for cache, case in CASES.items()},
        "tenant_again": lone["tenant a again"]["hit_tokens"],
        "tail_hits": {name: counts["hit_tokens"] for name, counts in lone.items()
                      if name.startswith(("tail ", "whole "))},
        "routed_hits": {routing: routed_hits(steps, prefix_tokens=load.prefix_tokens, block_tokens=block)
                        for routing, steps in routed.items()},
        "routing_hit_pct": {
            routing: round(100 * sum(servers[name][routing]["hit_tokens"] for name in replicas)
                           / sum(servers[name][routing]["query_tokens"] for name in replicas), 3)
            for routing in ROUTINGS},
    }  # fmt: skip


def agent_trace_result(*, cache_tokens: Sequence[int], block_tokens: int = 16, seed: int = 0) -> dict[str, Any]:
    """SIMULATED: what the policies of labkit.calc.session_eviction keep, by size of the cache.

    Args:
        cache_tokens: sizes, in tokens.
        block_tokens: tokens of a block, >= 1.
        seed: of the trace.

    Returns: evidence ("simulated"), turns and sessions of the trace, by_cache_tokens: size -> policy -> counts.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: as labkit.calc.session_eviction.
    Source: labkit.calc.session_eviction.

    >>> agent_trace_result(cache_tokens=[20000])["evidence"]
    'simulated'
    """
    trace = agent_trace(seed=seed)
    by_size = {str(size): compare_policies(cache_blocks=size // block_tokens - 1, block_tokens=block_tokens, seed=seed)
               for size in cache_tokens}
    return {
        "evidence": "simulated", "num_turns": len(trace), "num_sessions": len({turn.session for turn in trace}),
        "query_tokens": sum(turn.prompt_tokens for turn in trace), "by_cache_tokens": by_size,
    }

"""A prefix-cache experiment as a script of requests, and what an engine's counters will say of each step of it.

The very same script is played to the model of the scheduler (a prediction) and to a real server (a measurement). Next
to it stand closed forms that share no code with the model: they need only block arithmetic.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from labkit.calc._require import require_int
from labkit.calc.prefix_cache import reusable_tokens
from labkit.calc.scheduler import Job, Scheduler, SchedulerConfig
from labkit.calc.scheduler_runs import simulate

PHASES = ("cold", "warm", "pollution", "revisit", "rewarm")
TENANTS = ("tenant a", "tenant b", "tenant a again", "no salt")
ROUTINGS = ("round robin", "prefix-aware")
FIRST_ID = 100
"""Token ids below are often special."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The shape of the requests."""

    num_requests: int = 48
    """Of each phase."""
    num_anchors: int = 4
    """Prefixes that all phases but pollution share."""
    prefix_tokens: int = 1024
    suffix_tokens: int = 32
    """After the prefix; every request of a phase has its own."""
    output_tokens: int = 16
    vocab_size: int = 1024
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse what is no load, naming the argument."""
        for name in ("num_requests", "num_anchors", "prefix_tokens", "suffix_tokens", "output_tokens"):
            require_int(name, getattr(self, name), least=1)
        require_int("vocab_size", self.vocab_size, least=FIRST_ID + 2)

    @property
    def prompt_tokens(self) -> int:
        """Tokens of a prompt."""
        return self.prefix_tokens + self.suffix_tokens

    def ids(self, count: int, *key: Any) -> tuple[int, ...]:
        """Token ids drawn evenly, the same for the same key."""
        rng = random.Random(f"{self.seed} {' '.join(map(str, key))}")
        return tuple(rng.randrange(FIRST_ID, self.vocab_size) for _ in range(count))

    def job(self, prefix: Any, suffix: Any, *, label: str = "", salt: str = "") -> Job:
        """A request by the names of its two parts: equal names, equal tokens."""
        ids = self.ids(self.prefix_tokens, "prefix", prefix) + self.ids(self.suffix_tokens, "suffix", suffix)
        return Job(prompt_ids=ids, output_tokens=self.output_tokens, label=label, salt=salt)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Requests that are sent between two looks at the counters."""

    name: str
    jobs: tuple[Job, ...]
    concurrency: int


def phase_steps(load: Workload, *, concurrency: int, warmup_requests: int = 0) -> list[Step]:
    """Warm-up (if any), cold, warm, pollution, revisit, rewarm. The anchor phases send the very same prompts.

    Args:
        load: shape of the requests.
        concurrency: requests in flight at most.
        warmup_requests: prompts of their own, sent once before all phases and once more; >= 0.

    Returns: the steps in order.
    Raises: ValueError naming the argument, the value got, what was expected.
    Source: order of the report's section 8.2; the warm-up is ours, its counts belong to no phase.

    >>> [step.name for step in phase_steps(Workload(num_requests=8), concurrency=2)]
    ['cold', 'warm', 'pollution', 'revisit', 'rewarm']
    """
    require_int("concurrency", concurrency, least=1)
    anchors = tuple(load.job(i % load.num_anchors, i) for i in range(load.num_requests))
    strangers = tuple(load.job(f"pollution {i}", f"pollution {i}") for i in range(load.num_requests))
    warmup = tuple(load.job(f"warmup {i}", f"warmup {i}")
                   for i in range(require_int("warmup_requests", warmup_requests, least=0)))
    steps = [Step(name=name, jobs=strangers if name == "pollution" else anchors, concurrency=concurrency)
             for name in PHASES]
    return [Step(name="warmup", jobs=warmup * 2, concurrency=concurrency), *steps] if warmup else steps


def tenant_steps(load: Workload, *, num_prompts: int, concurrency: int) -> list[Step]:
    """Two tenants and nobody send the same prompts, each with a salt of its own; tenant a sends them twice.

    Args:
        load: shape of the requests.
        num_prompts: prompts, all different, >= 1.
        concurrency: requests in flight at most.

    Returns: one step for each of TENANTS.
    Raises: ValueError naming the argument, the value got, what was expected.
    Source: vLLM's `cache_salt`, part of the key of a prompt's first block.

    >>> [step.jobs[0].salt for step in tenant_steps(Workload(), num_prompts=1, concurrency=1)]
    ['a', 'b', 'a', '']
    """
    require_int("num_prompts", num_prompts, least=1)
    return [Step(name=name, concurrency=require_int("concurrency", concurrency, least=1),
                 jobs=tuple(load.job(f"tenant {i}", f"tenant {i}", salt=salt) for i in range(num_prompts)))
            for name, salt in zip(TENANTS, ("a", "b", "a", ""))]


def tail_steps(load: Workload, *, shared_lengths: Sequence[int]) -> list[Step]:
    """For each length two requests, one after the other, that have exactly so many leading tokens in common.

    The last step sends one prompt of the last length twice: nothing is different, and yet not all can be reused.

    Args:
        load: shape of the requests; what follows the shared tokens is as long as a suffix.
        shared_lengths: tokens, >= 1.

    Returns: steps named `tail <length>`, then `whole <length>`.
    Raises: ValueError naming the argument, the value got, what was expected.
    Source: only full blocks are indexed (interview question 3).

    >>> [step.name for step in tail_steps(Workload(), shared_lengths=[100, 64])]
    ['tail 100', 'tail 64', 'whole 64']
    """
    steps = []
    for length in shared_lengths:
        shared = load.ids(require_int("shared_lengths", length, least=1), "tail", length)
        rest = load.ids(load.suffix_tokens, "rest", length)
        # The first token after the shared ones must differ, or one more would be shared.
        other = FIRST_ID + (rest[0] - FIRST_ID + 1) % (load.vocab_size - FIRST_ID)
        jobs = (Job(prompt_ids=shared + rest, output_tokens=1),
                Job(prompt_ids=(*shared, other, *rest[1:]), output_tokens=1))
        steps.append(Step(name=f"tail {length}", jobs=jobs, concurrency=1))
    for length in shared_lengths[-1:]:
        job = Job(prompt_ids=load.ids(length, "whole", length), output_tokens=1)
        steps.append(Step(name=f"whole {length}", jobs=(job, job), concurrency=1))
    return steps


def routed_steps(
    load: Workload, *, popularity: Sequence[int], num_replicas: int, concurrency: int
) -> dict[str, list[Step]]:
    """The same kind of traffic sent to replicas in turn, or by prefix; each routing gets prefixes nobody has seen.

    Args:
        load: shape of the requests.
        popularity: requests for each prefix, >= 1.
        num_replicas: servers, >= 1.
        concurrency: requests in flight at each server at most.

    Returns: routing -> a step for each replica; it may have no request.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: prefix-aware means that prefix number p always goes to replica p mod the number of replicas; load is not
        looked at.
    Source: own definition, the simplest of both kinds.

    >>> found = routed_steps(Workload(), popularity=[3, 1], num_replicas=2, concurrency=1)
    >>> [[len(step.jobs) for step in steps] for steps in found.values()]
    [[2, 2], [3, 1]]
    """
    replicas = require_int("num_replicas", num_replicas, least=1)
    order = [prefix for prefix, count in enumerate(popularity)
             for _ in range(require_int("popularity", count, least=1))]
    random.Random(f"{load.seed} order").shuffle(order)
    found = {}
    for routing in ROUTINGS:
        parts: list[list[Job]] = [[] for _ in range(replicas)]
        for number, prefix in enumerate(order):
            place = number if routing == "round robin" else prefix
            parts[place % replicas].append(load.job(f"{routing} {prefix}", f"{routing} {number}"))
        found[routing] = [Step(name=routing, jobs=tuple(part), concurrency=concurrency) for part in parts]
    return found


def run_steps(steps: Sequence[Step], config: SchedulerConfig) -> dict[str, dict[str, Any]]:
    """What the engine's counters will say of each step. One engine lives through all of them.

    Args:
        steps: in order.
        config: of the engine.

    Returns: name -> num_requests, query_tokens, hit_tokens, generated_tokens, preemptions, evictions, peak_kv_usage.
    Raises: ValueError for a request that never fits.
    Source: labkit.calc.scheduler.

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
    each = -(-(prompt + require_int("output_tokens", output_tokens, least=1) - 1) // block_tokens)
    shared = prefix_tokens // require_int("block_tokens", block_tokens, least=1)
    cold = (count - anchors) * reusable_tokens(shared_tokens=prefix_tokens, block_tokens=block_tokens)
    warm = count * reusable_tokens(shared_tokens=prompt, block_tokens=block_tokens, prompt_tokens=prompt)
    own, strangers = anchors * shared + count * (each - shared), count * each
    revisit = warm if own + strangers <= usable else cold if strangers >= usable else None
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

    >>> found = routed_steps(Workload(), popularity=[2, 2], num_replicas=2, concurrency=1)
    >>> [sum(routed_hits(steps, prefix_tokens=1024, block_tokens=16)) for steps in found.values()]
    [0, 2048]
    """
    each = reusable_tokens(shared_tokens=prefix_tokens, block_tokens=block_tokens)
    return [(len(step.jobs) - len({job.prompt_ids[:prefix_tokens] for job in step.jobs})) * each for step in steps]

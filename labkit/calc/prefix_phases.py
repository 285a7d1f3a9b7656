"""A prefix-cache experiment as a script: which requests, in which order, between two looks at the counters.

The very same script is played to the model of the scheduler (`labkit.calc.prefix_hits`: a prediction) and to a real
server (a measurement).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from labkit.calc._require import require_int
from labkit.calc.scheduler import Job

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

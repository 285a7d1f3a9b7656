"""What a continuous-batching scheduler with paged KV cache will do, step by step, before an engine runs.

A discrete model of vLLM's V1 scheduler (first come first served, chunked prefill, recompute on preemption, prefix
caching by chained block hashes, LRU over free blocks). It has no clock: a step is a forward pass. What depends only on
the order of arrivals is exact: hit tokens, preemptions, recomputed tokens, the highest use of the cache.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from labkit.calc._require import require_int


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One request as the scheduler sees it."""

    prompt_ids: tuple[int, ...]
    output_tokens: int
    label: str = ""
    """Counted apart in the results, e.g. by phase."""
    salt: str = ""
    """Part of the first block's hash: equal prompts with different salts share nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """Settings of an engine, named as vLLM's arguments."""

    num_blocks: int
    """KV-cache blocks, the null block (never given out) included."""
    block_size: int
    """Tokens a block."""
    max_num_seqs: int
    max_num_batched_tokens: int
    """Tokens a step, prefill and decode together."""
    enable_prefix_caching: bool = True
    reserve_full_prompt: bool = True
    """Admit a request only when all its tokens would fit, not the first chunk alone (`scheduler_reserve_full_isl`)."""
    reuse_partial_first: bool = True
    """Freed blocks that hold no full block of tokens are given out before cached ones; older releases: strictly LRU."""

    def __post_init__(self) -> None:
        """Refuse what no engine starts with."""
        require_int("num_blocks", self.num_blocks, least=2)
        for name in ("block_size", "max_num_seqs", "max_num_batched_tokens"):
            require_int(name, getattr(self, name), least=1)


@dataclass(slots=True)
class _Sequence:
    """State of one request in the scheduler."""

    number: int
    job: Job
    num_computed: int = 0
    num_output: int = 0
    num_preemptions: int = 0
    blocks: list[int] = field(default_factory=list)
    hashes: list[int] = field(default_factory=list)
    hit_tokens: int = 0
    recomputed_tokens: int = 0
    first_step: int | None = None
    """Step that gave the first token."""
    end_step: int | None = None

    @property
    def num_tokens(self) -> int:
        return len(self.job.prompt_ids) + self.num_output

    def token(self, position: int) -> Any:
        """A prompt token, or a stand-in for the generated one: nobody else generates it."""
        prompt = self.job.prompt_ids
        return prompt[position] if position < len(prompt) else (self.number, position)

    def block_hash(self, index: int, block_size: int) -> int:
        """Hash of a full block and everything before it."""
        while len(self.hashes) <= index:
            start = len(self.hashes) * block_size
            parent = self.hashes[-1] if self.hashes else self.job.salt
            self.hashes.append(hash((parent, tuple(self.token(start + i) for i in range(block_size)))))
        return self.hashes[index]


class BlockPool:
    """Blocks, which of them are free in what order, and which full ones can be found again by content."""

    def __init__(self, num_blocks: int, *, reuse_partial_first: bool = True) -> None:
        """All blocks free but block 0, the null block."""
        self.reuse_partial_first = reuse_partial_first
        self.num_usable = num_blocks - 1
        self.free: OrderedDict[int, None] = OrderedDict.fromkeys(range(1, num_blocks))
        self.references = dict.fromkeys(range(1, num_blocks), 0)
        self.hash_of: dict[int, int] = {}
        self.by_hash: dict[int, OrderedDict[int, None]] = {}
        self.num_evictions = 0

    @property
    def usage(self) -> float:
        """Share of the usable blocks that a request holds."""
        return 1 - len(self.free) / self.num_usable

    def find(self, content: int) -> int | None:
        """A block with this content, held or free."""
        return next(iter(self.by_hash.get(content, ())), None)

    def touch(self, block: int) -> None:
        """One more request uses a cached block."""
        self.references[block] += 1
        self.free.pop(block, None)

    def take(self, count: int) -> list[int]:
        """New blocks, the longest free first; what they held can no longer be found."""
        taken = []
        for _ in range(count):
            block, _ = self.free.popitem(last=False)
            content = self.hash_of.pop(block, None)
            if content is not None:
                self.num_evictions += 1
                del self.by_hash[content][block]
                if not self.by_hash[content]:
                    del self.by_hash[content]
            self.references[block] = 1
            taken.append(block)
        return taken

    def keep(self, block: int, content: int) -> None:
        """A full block can be found by its content from now on, already before the step that computes it has run."""
        if block not in self.hash_of:
            self.hash_of[block] = content
            self.by_hash.setdefault(content, OrderedDict())[block] = None

    def give_back(self, blocks: list[int]) -> None:
        """A request ends or is preempted: its last block is free first, so a prefix outlives its tail.

        A block that nobody can find again is the next one to be given out, before any that may be found.
        """
        idle = []
        for block in reversed(blocks):
            self.references[block] -= 1
            if self.references[block] == 0:
                self.free[block] = None
                idle.append(block)
        if self.reuse_partial_first:
            for block in reversed([block for block in idle if block not in self.hash_of]):
                self.free.move_to_end(block, last=False)


class Scheduler:
    """The engine's queues and its cache. `add` requests, then `step` until `is_idle`."""

    def __init__(self, config: SchedulerConfig) -> None:
        """Empty queues, empty cache."""
        self.config = config
        self.pool = BlockPool(config.num_blocks, reuse_partial_first=config.reuse_partial_first)
        self.waiting: list[_Sequence] = []
        self.running: list[_Sequence] = []
        self.done: list[_Sequence] = []
        self.num_steps = 0
        self.num_preemptions = 0
        self.peak_usage = 0.0
        self.peak_running = 0
        self.peak_waiting = 0
        self._num_added = 0

    @property
    def is_idle(self) -> bool:
        """Nothing waits and nothing runs."""
        return not self.waiting and not self.running

    def add(self, job: Job) -> None:
        """A request arrives.

        Raises: ValueError for one that does not fit into the whole cache: an engine would stop at it for ever.
        """
        tokens = len(job.prompt_ids) + job.output_tokens - 1  # the last token's keys are never needed
        if not job.prompt_ids or job.output_tokens < 1:
            raise ValueError("job: expected at least one prompt token and one output token")
        if -(-tokens // self.config.block_size) > self.pool.num_usable:
            raise ValueError(f"job of {tokens} tokens: expected at most {self.pool.num_usable} blocks of "
                             f"{self.config.block_size}")
        self.waiting.append(_Sequence(number=self._num_added, job=job))
        self._num_added += 1

    def step(self) -> list[Job]:
        """One forward pass: schedule, compute, sample. Returns the requests that ended in it."""
        budget = self.config.max_num_batched_tokens
        self.peak_waiting = max(self.peak_waiting, len(self.waiting))
        scheduled: list[tuple[_Sequence, int]] = []
        budget, preempted = self._continue_running(budget, scheduled)
        if not preempted:
            self._admit_waiting(budget, scheduled)
        self.peak_running = max(self.peak_running, len(self.running))
        self.peak_usage = max(self.peak_usage, self.pool.usage)
        self.num_steps += 1
        ended = [sequence for sequence, tokens in scheduled if self._compute(sequence, tokens)]
        for sequence in ended:
            sequence.end_step = self.num_steps
            self.running.remove(sequence)
            self.pool.give_back(sequence.blocks)
            self.done.append(sequence)
        if not scheduled and not self.is_idle:
            raise RuntimeError("nothing could be scheduled: the first waiting request does not fit")
        return [sequence.job for sequence in ended]

    def _continue_running(self, budget: int, scheduled: list[tuple[_Sequence, int]]) -> tuple[int, bool]:
        """Running requests first, in order; when blocks run out the last one that runs makes room."""
        preempted, index = False, 0
        while index < len(self.running) and budget > 0:
            sequence = self.running[index]
            tokens = min(sequence.num_tokens - sequence.num_computed, budget)
            while not (fits := self._allocate(sequence, tokens)):
                preempted = True
                victim = self.running.pop()
                self._preempt(victim)
                if victim is sequence:
                    break
            if not fits:
                break
            scheduled.append((sequence, tokens))
            budget -= tokens
            index += 1
        return budget, preempted

    def _admit_waiting(self, budget: int, scheduled: list[tuple[_Sequence, int]]) -> None:
        """Waiting requests in order, while there are places, tokens and blocks."""
        while self.waiting and budget > 0 and len(self.running) < self.config.max_num_seqs:
            sequence = self.waiting[0]
            found = self._find_prefix(sequence)
            computed = len(found) * self.config.block_size
            tokens = min(sequence.num_tokens - computed, budget)
            if self.config.reserve_full_prompt and not self._has_room(sequence, sequence.num_tokens, found):
                return
            if not self._allocate(sequence, tokens, found=found):
                return
            if sequence.num_preemptions == 0:
                sequence.hit_tokens = computed
            self.running.append(self.waiting.pop(0))
            scheduled.append((sequence, tokens))
            budget -= tokens

    def _find_prefix(self, sequence: _Sequence) -> list[int]:
        """Cached blocks from the start; never the whole prompt, since one token must be computed to sample from."""
        found: list[int] = []
        if not self.config.enable_prefix_caching:
            return found
        for index in range((sequence.num_tokens - 1) // self.config.block_size):
            block = self.pool.find(sequence.block_hash(index, self.config.block_size))
            if block is None:
                break
            found.append(block)
        return found

    def _allocate(self, sequence: _Sequence, tokens: int, found: Sequence[int] = ()) -> bool:
        """Blocks for `tokens` more tokens, behind those found cached; False, and nothing changed, if not enough."""
        size = self.config.block_size
        computed = sequence.num_computed + len(found) * size
        if not self._has_room(sequence, computed + tokens, found):
            return False
        for block in found:
            self.pool.touch(block)
        new = -(-(computed + tokens) // size) - len(sequence.blocks) - len(found)
        sequence.blocks += [*found, *self.pool.take(max(new, 0))]
        sequence.num_computed = computed
        if self.config.enable_prefix_caching:
            for index in range((computed + tokens) // size):
                self.pool.keep(sequence.blocks[index], sequence.block_hash(index, size))
        return True

    def _has_room(self, sequence: _Sequence, tokens: int, found: Sequence[int]) -> bool:
        """Whether `tokens` in all fit; blocks found idle in the cache leave the free list as well."""
        new = -(-tokens // self.config.block_size) - len(sequence.blocks) - len(found)
        return new + sum(self.pool.references[block] == 0 for block in found) <= len(self.pool.free)

    def _preempt(self, victim: _Sequence) -> None:
        """Its blocks are free, what it had computed is lost, and it is the next to be admitted."""
        self.pool.give_back(victim.blocks)
        victim.recomputed_tokens += victim.num_computed
        victim.blocks, victim.num_computed = [], 0
        victim.num_preemptions += 1
        self.num_preemptions += 1
        self.waiting.insert(0, victim)

    def _compute(self, sequence: _Sequence, tokens: int) -> bool:
        """The pass itself; True when the request has its last token."""
        sequence.num_computed += tokens
        if sequence.num_computed < sequence.num_tokens:
            return False
        sequence.num_output += 1
        sequence.first_step = sequence.first_step or self.num_steps
        return sequence.num_output == sequence.job.output_tokens


def simulate(
    jobs: Sequence[Job], config: SchedulerConfig, *, concurrency: int | None = None,
    scheduler: Scheduler | None = None,
) -> dict[str, Any]:
    """Run requests to their end.

    Args:
        jobs: in order of arrival.
        config: of the engine.
        concurrency: requests in flight at most: when one ends, the next is there for the following step. None: all of
            them are there before the first step.
        scheduler: an engine with a past, such as a warm cache; a fresh one if not given.

    Returns: num_steps, preemptions, recomputed_tokens (prompt and output tokens computed again), query_tokens and
        hit_tokens (also `by_label`), peak_kv_usage (0 to 1), peak_running, peak_waiting, evictions, first_steps (step
        of each request's first token, in order of arrival). Counts are of this call alone.
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
    engine = scheduler or Scheduler(config)
    if not engine.is_idle:
        raise ValueError("scheduler: expected one without requests")
    first_done, steps = len(engine.done), engine.num_steps
    preemptions, evictions = engine.num_preemptions, engine.pool.num_evictions
    engine.peak_usage, engine.peak_running, engine.peak_waiting = 0.0, 0, 0
    pending = list(jobs)
    in_flight = 0
    while pending or not engine.is_idle:
        while pending and (concurrency is None or in_flight < concurrency):
            engine.add(pending.pop(0))
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
    }


def largest_concurrency(
    *, prompt_tokens: int, output_tokens: int, config: SchedulerConfig, num_requests: int | None = None,
) -> int:
    """Most requests of one shape that can be in flight without a preemption.

    Args:
        prompt_tokens: of each request; all different, so nothing is shared.
        output_tokens: of each request.
        config: of the engine.
        num_requests: sent in all; 4 times the concurrency that is tried if not given.

    Returns: the largest such number up to `max_num_seqs`; 0 when even one does not fit.
    Raises: ValueError naming the argument.
    Assumes: preemptions grow with concurrency, which holds for equal requests; found by bisection on `simulate`.
    Source: `simulate`; no closed form, since requests that ended make room for others at other times.

    >>> config = SchedulerConfig(num_blocks=1170, block_size=16, max_num_seqs=32, max_num_batched_tokens=2048)
    >>> largest_concurrency(prompt_tokens=1024, output_tokens=512, config=config, num_requests=16)
    12
    """
    require_int("prompt_tokens", prompt_tokens, least=1)
    require_int("output_tokens", output_tokens, least=1)
    if -(-(prompt_tokens + output_tokens - 1) // config.block_size) > config.num_blocks - 1:
        return 0

    def is_quiet(concurrency: int) -> bool:
        count = num_requests or 4 * concurrency
        jobs = [Job(prompt_ids=tuple(range(i * prompt_tokens, (i + 1) * prompt_tokens)), output_tokens=output_tokens)
                for i in range(count)]
        return simulate(jobs, config, concurrency=concurrency)["preemptions"] == 0

    low, high = 1, config.max_num_seqs
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if is_quiet(middle) else (low, middle - 1)
    return low

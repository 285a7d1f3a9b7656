"""What a continuous-batching scheduler with paged KV cache will do, step by step, before an engine runs.

A discrete model of vLLM's V1 scheduler (first come first served, chunked prefill, recompute on preemption, prefix
caching by chained block hashes, LRU over free blocks). It has no clock: a step is a forward pass. What depends only on
the order of arrivals is exact: hit tokens, preemptions, recomputed tokens, the highest use of the cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from labkit.calc._require import require_int
from labkit.calc.block_pool import BlockPool


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What one forward pass had to do, and what was left when it had ended."""

    context_requests: int
    """Requests in it without an output token yet: prompts and parts of prompts."""
    context_tokens: int
    generation_requests: int
    generation_tokens: int
    """One for each of them, more where a preempted request computes its past again."""
    running: int
    waiting: int
    usage: float
    """Share of the usable blocks, 0 to 1, after requests that ended in this pass gave theirs back."""


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
        self.trace: list[Step] = []
        self.preempted: list[tuple[int, int, int]] = []
        """(step from 1 on, request in order of arrival, tokens it has to compute again) of each preemption."""
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
        context = [tokens for sequence, tokens in scheduled if sequence.num_output == 0]
        ended = [sequence for sequence, tokens in scheduled if self._compute(sequence, tokens)]
        for sequence in ended:
            sequence.end_step = self.num_steps
            self.running.remove(sequence)
            self.pool.give_back(sequence.blocks)
            self.done.append(sequence)
        self.trace.append(Step(
            context_requests=len(context), context_tokens=sum(context),
            generation_requests=len(scheduled) - len(context),
            generation_tokens=sum(tokens for _, tokens in scheduled) - sum(context),
            running=len(self.running), waiting=len(self.waiting), usage=self.pool.usage))
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
        self.preempted.append((self.num_steps + 1, victim.number, victim.num_computed))
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

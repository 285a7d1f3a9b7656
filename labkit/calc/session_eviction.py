"""SIMULATED: which cached session to give up while agents wait for their tools. A discrete model, no engine.

Four policies on one made-up trace: least recently used (what vLLM does), ended-first (knows which sessions have
ended), session-aware (and what the others wait for), and clairvoyant (knows when each comes back: nobody can, it is the
bound).

    python -m labkit calc session_eviction compare_policies cache_blocks=2000
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from labkit.calc._require import require_choice, require_fraction, require_int, require_number

POLICIES = ("lru", "ended-first", "session-aware", "clairvoyant")


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One request of a session: its whole context so far, sent again with something new at the end."""

    at_s: float
    session: int
    prompt_tokens: int
    expected_pause_s: float
    """Mean wait of the kind that follows this turn; infinite after the last one. The real wait is another number."""


def agent_trace(
    *, num_sessions: int = 120, mean_gap_s: float = 3.0, one_turn_share: float = 0.4, num_turns: int = 12,
    first_tokens: int = 3000, turn_tokens: int = 600, tool_pause_s: float = 8.0, person_pause_s: float = 120.0,
    person_share: float = 0.2, seed: int = 0,
) -> list[Turn]:
    """A made-up trace: sessions start at random, wait for a tool or for a person, and grow with every turn.

    Args:
        num_sessions: >= 1.
        mean_gap_s: mean time between two starts, seconds, > 0.
        one_turn_share: sessions that never come back, 0 to 1.
        num_turns: most turns of the others, drawn evenly from 2 on, >= 2.
        first_tokens: mean prompt of the first turn, drawn evenly from half to one and a half of it, >= 2.
        turn_tokens: mean growth, likewise, >= 2.
        tool_pause_s: mean wait for a tool, seconds, > 0, exponential.
        person_pause_s: mean wait for a person, seconds, > 0, exponential.
        person_share: pauses that wait for a person, 0 to 1.
        seed: of the draw.

    Returns: turns in order of time.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: sessions share nothing; a turn takes no time.
    Source: own definition; interview question 5.

    >>> trace = agent_trace(num_sessions=2, one_turn_share=0.0, seed=1)
    >>> {turn.session for turn in trace}, trace == sorted(trace, key=lambda turn: turn.at_s)
    ({0, 1}, True)
    """
    require_int("num_sessions", num_sessions, least=1)
    require_int("num_turns", num_turns, least=2)
    for name, value in (("mean_gap_s", mean_gap_s), ("tool_pause_s", tool_pause_s), ("person_pause_s", person_pause_s)):
        require_number(name, value, above=0)
    for name, value in (("one_turn_share", one_turn_share), ("person_share", person_share)):
        require_fraction(name, value)
    rng, start, turns = random.Random(seed), 0.0, []
    draw = lambda mean: rng.randrange(mean // 2, mean + mean // 2)  # noqa: E731
    for session in range(num_sessions):
        start += rng.expovariate(1 / mean_gap_s)
        now, tokens = start, draw(require_int("first_tokens", first_tokens, least=2))
        count = 1 if rng.random() < one_turn_share else rng.randint(2, num_turns)
        for number in range(count):
            mean = person_pause_s if rng.random() < person_share else tool_pause_s
            turns.append(Turn(at_s=now, session=session, prompt_tokens=tokens,
                              expected_pause_s=mean if number + 1 < count else inf))
            now += rng.expovariate(1 / mean)
            tokens += draw(require_int("turn_tokens", turn_tokens, least=2))
    return sorted(turns, key=lambda turn: turn.at_s)


def replay(trace: Sequence[Turn], *, policy: str, cache_blocks: int, block_tokens: int = 16) -> dict[str, Any]:
    """Send a trace through a cache.

    A session's cached blocks are always a run from its start, since its last block is given up first. So one number a
    session is the whole state, and nothing is lost against a model block by block.

    Args:
        trace: of `agent_trace`.
        policy: one of POLICIES.
        cache_blocks: usable blocks, >= 1.
        block_tokens: tokens of a block, >= 1.

    Returns: query_tokens, hit_tokens, lost_tokens (computed once already, and again because they were given up),
        returns (turns after a session's first), whole_returns (of these, that found all they had left behind).
    Raises: ValueError for a prompt that does not fit, or naming the argument.
    Assumes: a turn takes no time, so no two overlap; sessions share nothing.
    Source: own simulation; for `lru` equal to labkit.calc.scheduler, one request at a time.

    >>> turn = dict(prompt_tokens=64, expected_pause_s=1.0)
    >>> trace = [Turn(at_s=i, session=s, **turn) for i, s in enumerate([0, 1, 0])]
    >>> [replay(trace, policy="lru", cache_blocks=blocks)["hit_tokens"] for blocks in (4, 8)]
    [0, 48]
    """
    require_choice("policy", policy, POLICIES)
    usable = require_int("cache_blocks", cache_blocks, least=1)
    size = require_int("block_tokens", block_tokens, least=1)
    coming = _next_use(trace)
    kept: dict[int, int] = {}  # session -> blocks from its start, the one used longest ago first
    last: dict[int, tuple[Turn, float]] = {}  # session -> its last turn, and when it will really come back
    seen: dict[str, int] = dict.fromkeys(("query_tokens", "hit_tokens", "lost_tokens", "returns", "whole_returns"), 0)
    for number, turn in enumerate(trace):
        need = -(-turn.prompt_tokens // size)
        if need > usable:
            raise ValueError(f"prompt_tokens={turn.prompt_tokens}: expected at most {usable} blocks of {size}")
        hit = min(kept.pop(turn.session, 0), (turn.prompt_tokens - 1) // size)
        missing = sum(kept.values()) + need - usable
        while missing > 0:
            victim = _victim(kept, last, policy)
            given = min(missing, kept[victim])
            missing -= given
            kept[victim] -= given
            if not kept[victim]:
                del kept[victim]
        kept[turn.session] = turn.prompt_tokens // size
        seen["query_tokens"] += turn.prompt_tokens
        seen["hit_tokens"] += hit * size
        if turn.session in last:
            had = min(last[turn.session][0].prompt_tokens // size, (turn.prompt_tokens - 1) // size)
            seen["lost_tokens"] += (had - hit) * size
            seen["returns"] += 1
            seen["whole_returns"] += hit == had
        last[turn.session] = (turn, coming[number])
    return seen


def _victim(kept: dict[int, int], last: dict[int, tuple[Turn, float]], policy: str) -> int:
    """The session that gives up blocks next; of equal ones the one used longest ago."""
    if policy == "lru":
        return next(iter(kept))
    if policy == "ended-first":
        return max(kept, key=lambda session: last[session][0].expected_pause_s == inf)
    if policy == "session-aware":
        # An exponential wait has no memory: however long it has lasted, as much again is to be expected.
        return max(kept, key=lambda session: last[session][0].expected_pause_s)
    return max(kept, key=lambda session: last[session][1])


def _next_use(trace: Sequence[Turn]) -> list[float]:
    """For each turn, when its session comes next; infinite if never."""
    coming, found = dict[int, float](), [inf] * len(trace)
    for number in range(len(trace) - 1, -1, -1):
        found[number] = coming.get(trace[number].session, inf)
        coming[trace[number].session] = trace[number].at_s
    return found


def compare_policies(*, cache_blocks: int, block_tokens: int = 16, seed: int = 0) -> dict[str, dict[str, Any]]:
    """All policies on the default trace, with the share of returns that lost nothing. SIMULATED.

    Args:
        cache_blocks: usable blocks, >= 1.
        block_tokens: tokens of a block, >= 1.
        seed: of the trace.

    Returns: policy -> as `replay`, and whole_share.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: as `agent_trace` and `replay`.
    Source: `replay`.

    >>> found = compare_policies(cache_blocks=1000)
    >>> [found[name]["whole_share"] for name in POLICIES] == sorted(found[name]["whole_share"] for name in POLICIES)
    True
    """
    trace = agent_trace(seed=seed)
    found = {name: replay(trace, policy=name, cache_blocks=cache_blocks, block_tokens=block_tokens)
             for name in POLICIES}
    return {name: {**seen, "whole_share": seen["whole_returns"] / seen["returns"] if seen["returns"] else 0.0}
            for name, seen in found.items()}

"""Which cached block to give up: expected seconds saved per byte, and what least-recently-used does instead.

In: chance of reuse, times, bytes. Out: seconds, seconds per byte, an order, hits.

    python -m labkit calc eviction value_per_byte num_bytes=1e6 p_reuse=0.5 recompute_s=2 reload_s=0.2
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from labkit.calc._require import require_choice, require_fraction, require_int, require_number


def keep_benefit_s(*, p_reuse: float, recompute_s: float, reload_s: float | None = None, hit_s: float = 0.0) -> float:
    """Seconds that keeping a block is expected to save over the window looked at.

    Args:
        p_reuse: chance that the block is used again, 0 to 1.
        recompute_s: time to compute it again, seconds, >= 0.
        reload_s: time to fetch it from a slower tier, seconds, >= 0; None: it is in none.
        hit_s: time of a hit, seconds, >= 0.

    Returns: seconds, >= 0.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: on a miss the faster of the two ways is taken; one reuse counts.
    Source: P max(0, min(T_recompute, T_reload) - T_hit); interview question 5.

    >>> keep_benefit_s(p_reuse=0.5, recompute_s=2.0, reload_s=0.25)
    0.125
    """
    miss = require_number("recompute_s", recompute_s, least=0)
    if reload_s is not None:
        miss = min(miss, require_number("reload_s", reload_s, least=0))
    return require_fraction("p_reuse", p_reuse) * max(0.0, miss - require_number("hit_s", hit_s, least=0))


def value_per_byte(
    *, num_bytes: float, p_reuse: float, recompute_s: float, reload_s: float | None = None, hit_s: float = 0.0
) -> float:
    """Worth of a block: expected seconds saved for each byte it occupies; the smallest goes first.

    Args:
        num_bytes: size of the block, > 0.
        p_reuse: as `keep_benefit_s`.
        recompute_s: as `keep_benefit_s`.
        reload_s: as `keep_benefit_s`.
        hit_s: as `keep_benefit_s`.

    Returns: seconds per byte.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: as `keep_benefit_s`.
    Source: benefit / bytes; interview question 5.

    >>> value_per_byte(num_bytes=4, p_reuse=0.5, recompute_s=2.0)
    0.25
    """
    benefit = keep_benefit_s(p_reuse=p_reuse, recompute_s=recompute_s, reload_s=reload_s, hit_s=hit_s)
    return benefit / require_number("num_bytes", num_bytes, above=0)


def eviction_order(*, blocks: Sequence[Mapping[str, Any]]) -> list[str]:
    """Names of blocks in the order in which they should go.

    Args:
        blocks: {"name", and the arguments of `value_per_byte`} for each.

    Returns: names, least worth first; equal worth in the order given.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: as `value_per_byte`; blocks do not depend on each other (a prefix block carries all behind it).
    Source: `value_per_byte`.

    >>> eviction_order(blocks=[
    ...     {"name": "ram", "num_bytes": 1e6, "p_reuse": 0.5, "recompute_s": 5.0, "reload_s": 2.0},
    ...     {"name": "disk", "num_bytes": 1e6, "p_reuse": 0.5, "recompute_s": 5.0, "reload_s": 0.2}])
    ['disk', 'ram']
    """
    worth = []
    for i, block in enumerate(blocks):
        if not isinstance(block, Mapping) or "name" not in block:
            raise ValueError(f"blocks[{i}]={block!r}: expected a name and the arguments of value_per_byte")
        try:
            worth.append((value_per_byte(**{key: x for key, x in block.items() if key != "name"}), i))
        except (TypeError, ValueError) as error:
            raise ValueError(f"blocks[{i}]: {error}") from None
    return [str(blocks[i]["name"]) for _, i in sorted(worth)]


def paused_session_hits(
    policy: str, *, cache_blocks: int = 8, session_blocks: int = 4, other_blocks: int = 8, num_turns: int = 11
) -> int:
    """Returns of a paused session that find their whole prefix, while other traffic passes through the cache.

    Args:
        policy: "lru" or "value" (session blocks are worth more than one-off blocks; ties by age).
        cache_blocks: size of the cache, >= 1.
        session_blocks: prefix of the session, 1 to cache_blocks.
        other_blocks: blocks that are used once between two turns, >= 0.
        num_turns: turns of the session, >= 1; the first one cannot hit.

    Returns: hits, at most num_turns - 1.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: one session; the values are known.
    Source: simulation; interview question 5.

    >>> paused_session_hits("lru"), paused_session_hits("value")
    (0, 10)
    """
    require_choice("policy", policy, ("lru", "value"))
    size = require_int("cache_blocks", cache_blocks, least=1)
    if require_int("session_blocks", session_blocks, least=1) > size:
        raise ValueError(f"session_blocks={session_blocks!r}: expected at most cache_blocks={cache_blocks}")
    require_int("other_blocks", other_blocks, least=0)
    cached: dict[tuple[str, int], int] = {}  # block -> last use
    clock = hits = 0

    def use(block: tuple[str, int]) -> bool:
        nonlocal clock
        clock += 1
        found = block in cached
        cached[block] = clock
        if len(cached) > size:
            others = [name for name in cached if name != block]
            del cached[min(others, key=lambda x: (policy == "value" and x[0] == "session", cached[x]))]
        return found

    for turn in range(require_int("num_turns", num_turns, least=1)):
        found = [use(("session", i)) for i in range(session_blocks)]
        hits += turn > 0 and all(found)
        for i in range(other_blocks):
            use(("other", turn * other_blocks + i))
    return hits

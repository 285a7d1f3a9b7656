"""One step of expert parallelism with a given split: rows, bytes on the fabric, floors of its phases, capacity.

In: tokens of a rank, ranks, share of the hot expert, width. Out: rows, bytes, seconds. One expert a rank, one expert a
token, as in the report; bytes of top-k routing are in `moe_all_to_all`.

    python -m labkit calc moe_routing source_split num_tokens=4096 num_ranks=8 hot_share=0.75
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from labkit.calc._require import require_fraction, require_int, require_number, require_numbers


def source_split(*, num_tokens: int, num_ranks: int, hot_share: float | None = None) -> list[int]:
    """Tokens that one source sends to each rank's expert.

    Args:
        num_tokens: tokens of the source, >= 0.
        num_ranks: P >= 1; rank 0 holds the hot expert.
        hot_share: share of the tokens for rank 0, 0 to 1, rounded to whole tokens; None: all ranks alike.

    Returns: tokens by destination; what does not divide goes to the first destinations of the rest.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: every source splits alike.
    Source: report section 5.1; 4,096 tokens, 75 %: 3,072 to rank 0, then divmod(1024, 7).

    >>> source_split(num_tokens=4096, num_ranks=8, hot_share=0.75)
    [3072, 147, 147, 146, 146, 146, 146, 146]
    >>> source_split(num_tokens=4096, num_ranks=8)
    [512, 512, 512, 512, 512, 512, 512, 512]
    """
    tokens, ranks = require_int("num_tokens", num_tokens), require_int("num_ranks", num_ranks, least=1)
    if hot_share is None:
        return _even(tokens, ranks)
    hot = round(tokens * require_fraction("hot_share", hot_share)) if ranks > 1 else tokens
    return [hot, *_even(tokens - hot, ranks - 1)] if ranks > 1 else [hot]


def received_rows(*, splits: Sequence[Sequence[int]]) -> list[int]:
    """Rows that each rank's expert gets.

    Args:
        splits: [source][destination] rows, one list of equal length for each rank.

    Returns: rows by destination: sums over the sources.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: nothing dropped.
    Source: column sums of the traffic matrix.

    >>> received_rows(splits=[[3072, 147, 147, 146, 146, 146, 146, 146]] * 8)
    [24576, 1176, 1176, 1168, 1168, 1168, 1168, 1168]
    """
    matrix = _square(splits)
    return [sum(row[to] for row in matrix) for to in range(len(matrix))]


def fabric_bytes(*, splits: Sequence[Sequence[int]], row_bytes: float) -> dict[str, Any]:
    """Bytes of one dispatch: sent and received by each rank, on the fabric in all, and through the busiest port.

    Args:
        splits: [source][destination] rows.
        row_bytes: of one row, > 0.

    Returns: {"sent", "received": by rank, without what stays on it, "fabric": their sum, "busiest": the largest of
        them all}. Combine sends what dispatch received, so its numbers are these with the two lists exchanged.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: a rank's own rows do not travel; no headers.
    Source: row and column sums of the matrix without its diagonal.

    >>> fabric_bytes(splits=[[3, 1], [3, 1]], row_bytes=2)
    {'sent': [2, 6], 'received': [6, 2], 'fabric': 8, 'busiest': 6}
    """
    matrix, size = _square(splits), require_number("row_bytes", row_bytes, above=0)
    n = len(matrix)
    sent = [size * sum(matrix[rank][to] for to in range(n) if to != rank) for rank in range(n)]
    received = [size * sum(matrix[source][rank] for source in range(n) if source != rank) for rank in range(n)]
    return {"sent": sent, "received": received, "fabric": sum(sent), "busiest": max([*sent, *received])}


def expert_flop(*, rows: int, hidden: int, ffn: int) -> int:
    """FLOP of one expert's two matrix products.

    Args:
        rows: tokens it gets, >= 0.
        hidden: width, >= 1.
        ffn: width in between, >= 1.

    Returns: FLOP; a multiply and an add count two.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: up and down projection; activation and bias not counted.
    Source: 2 products of 2 rows x hidden x ffn.

    >>> expert_flop(rows=4096, hidden=1024, ffn=4096)
    68719476736
    """
    rows = require_int("rows", rows)
    return 4 * rows * require_int("hidden", hidden, least=1) * require_int("ffn", ffn, least=1)


def step_floor_s(
    *, splits: Sequence[Sequence[int]], hidden: int, ffn: int, element_bytes: float, link_bytes_per_s: float,
    flop_per_s: float,
) -> dict[str, Any]:
    """Time of a step whose phases each wait for their slowest rank.

    Args:
        splits: [source][destination] rows.
        hidden: width, >= 1.
        ffn: width in between, >= 1.
        element_bytes: of one element, > 0.
        link_bytes_per_s: of a rank's port, one direction, > 0.
        flop_per_s: of one rank, > 0.

    Returns: seconds: "dispatch", "expert" (the rank with most rows), "combine", "step" (their sum), "expert_wait" by
        rank (how long it waits for the slowest expert), "mean_rank_step" (the same step if rows were even).
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: phases one after the other; both directions of a port at full rate; efficiency does not depend on rows.
    Source: max over ranks of bytes / rate and FLOP / rate.

    >>> step_floor_s(splits=[[3, 1], [3, 1]], hidden=1, ffn=1, element_bytes=1, link_bytes_per_s=1, flop_per_s=4)
    {'dispatch': 3.0, 'expert': 6.0, 'combine': 3.0, 'step': 12.0, 'expert_wait': [0.0, 4.0], 'mean_rank_step': 8.0}
    """
    rows, rate = received_rows(splits=splits), require_number("flop_per_s", flop_per_s, above=0)
    port = require_number("link_bytes_per_s", link_bytes_per_s, above=0)
    row_bytes = hidden * require_number("element_bytes", element_bytes, above=0)
    moved = fabric_bytes(splits=splits, row_bytes=row_bytes)["busiest"] / port
    times = [expert_flop(rows=count, hidden=hidden, ffn=ffn) / rate for count in rows]
    n, total = len(rows), sum(rows)
    even_move = total * row_bytes * (n - 1) / n**2 / port
    even_expert = 4 * total * hidden * ffn / n / rate
    return {
        "dispatch": moved, "expert": max(times), "combine": moved, "step": 2 * moved + max(times),
        "expert_wait": [max(times) - time for time in times], "mean_rank_step": 2 * even_move + even_expert,
    }


def capacity_outcome(*, loads: Sequence[int], capacity_factor: float) -> dict[str, float]:
    """What a capacity does to given expert loads: rows dropped, slots padded.

    Args:
        loads: rows that the router sends to each expert, >= 0, not all zero.
        capacity_factor: slots of an expert over the mean load, > 0; slots are rounded up.

    Returns: {"capacity_rows", "dropped_share": of the rows, "padded_share": of the slots, "max_rows": computed by the
        fullest expert}.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: a full expert drops what comes next; nothing is sent to another expert.
    Source: C = ceil(factor x mean); extra interview question 37.

    >>> capacity_outcome(loads=[6, 1, 1], capacity_factor=1.5)
    {'capacity_rows': 4, 'dropped_share': 0.25, 'padded_share': 0.5, 'max_rows': 4}
    """
    rows = [require_int(f"loads[{i}]", int(load)) for i, load in enumerate(require_numbers("loads", loads, least=0))]
    total = sum(rows)
    if not total:
        raise ValueError(f"loads={list(loads)!r}: expected at least one above 0")
    slots = math.ceil(require_number("capacity_factor", capacity_factor, above=0) * total / len(rows))
    kept = [min(row, slots) for row in rows]
    return {"capacity_rows": slots, "dropped_share": 1 - sum(kept) / total,
            "padded_share": 1 - sum(kept) / (slots * len(rows)), "max_rows": max(kept)}


def _even(count: int, parts: int) -> list[int]:
    share, extra = divmod(count, parts)
    return [share + (i < extra) for i in range(parts)]


def _square(splits: Sequence[Sequence[int]]) -> list[list[int]]:
    matrix = [[require_int("splits", rows) for rows in row] for row in splits]
    if not matrix or any(len(row) != len(matrix) for row in matrix):
        raise ValueError(f"splits={[list(row) for row in splits]!r}: expected as many destinations as sources")
    return matrix

"""Expert-parallel all-to-all: bytes that dispatch and combine move, with scales, local share and duplicates.

In: local tokens, experts per token, width, bytes per element, ranks. Out: bytes, ranks, shares.

    python -m labkit calc moe_all_to_all group_bytes local_tokens=16 top_k=8 hidden=7168 num_ranks=32
"""

from __future__ import annotations

from math import comb

from labkit.calc._require import require_int, require_number


def row_bytes(
    *, hidden: int, bytes_per_element: float = 2, scale_group: int | None = None, scale_bytes: float = 4
) -> float:
    """Bytes of one token's activation on the wire, quantisation scales included.

    Args:
        hidden: width of the model, >= 1.
        bytes_per_element: > 0 (1 for FP8, 2 for BF16).
        scale_group: elements that share one scale, >= 1; None: no scales.
        scale_bytes: bytes of one scale, > 0.

    Returns: bytes.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: scales travel beside the row; no padding.
    Source: H b + ceil(H / g) s; interview question 11.

    >>> row_bytes(hidden=7168, bytes_per_element=1, scale_group=128)
    7392
    """
    require_int("hidden", hidden, least=1)
    payload = hidden * require_number("bytes_per_element", bytes_per_element, above=0)
    if scale_group is None:
        return payload
    scales = -(-hidden // require_int("scale_group", scale_group, least=1))
    return payload + scales * require_number("scale_bytes", scale_bytes, above=0)


def bytes_per_rank(
    *, local_tokens: int, top_k: int, hidden: int, num_ranks: int, bytes_per_element: float = 2,
    scale_group: int | None = None, scale_bytes: float = 4, remote_only: bool = True,
) -> float:
    """Bytes that one rank sends in dispatch (or in combine): one row for each token-expert pair.

    Args:
        local_tokens: tokens of one rank, >= 0.
        top_k: routed experts of one token, >= 1.
        hidden: width of the model, >= 1.
        num_ranks: P >= 1.
        bytes_per_element: > 0.
        scale_group: as `row_bytes`.
        scale_bytes: as `row_bytes`.
        remote_only: leave out the 1/P of the pairs that stay on the rank.

    Returns: bytes.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: pairs spread evenly over ranks, one copy for each pair (see `distinct_ranks`), headers not counted.
    Source: B k H b (P - 1) / P; interview question 11.

    >>> bytes_per_rank(local_tokens=16, top_k=8, hidden=7168, num_ranks=32) / 2**20
    1.6953125
    """
    row = row_bytes(
        hidden=hidden, bytes_per_element=bytes_per_element, scale_group=scale_group, scale_bytes=scale_bytes
    )
    ranks = require_int("num_ranks", num_ranks, least=1)
    pairs = require_int("local_tokens", local_tokens, least=0) * require_int("top_k", top_k, least=1)
    return pairs * row * (ranks - 1) / ranks if remote_only else pairs * row


def group_bytes(
    *, local_tokens: int, top_k: int, hidden: int, num_ranks: int, dispatch_bytes: float = 2,
    combine_bytes: float = 2, scale_group: int | None = None, scale_bytes: float = 4,
) -> dict[str, float]:
    """Bytes that the whole group injects into the network for one layer: dispatch, combine, both, both directions.

    Args:
        local_tokens: tokens of one rank, >= 0.
        top_k: routed experts of one token, >= 1.
        hidden: width of the model, >= 1.
        num_ranks: P >= 1.
        dispatch_bytes: bytes per element on the way to the experts, > 0.
        combine_bytes: bytes per element on the way back, > 0.
        scale_group: elements that share one scale in dispatch, >= 1; None: no scales. Combine has none.
        scale_bytes: bytes of one scale, > 0.

    Returns: {"dispatch", "combine", "total", "sent_and_received": twice the total}, bytes.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: as `bytes_per_rank`; a lower bound of what a library moves.
    Source: B k H (P - 1) (b_dispatch + b_combine); interview question 11.

    >>> {k: v / 2**20 for k, v in group_bytes(local_tokens=16, top_k=8, hidden=7168, num_ranks=32).items()}
    {'dispatch': 54.25, 'combine': 54.25, 'total': 108.5, 'sent_and_received': 217.0}
    """
    require_number("dispatch_bytes", dispatch_bytes, above=0)
    require_number("combine_bytes", combine_bytes, above=0)
    pairs = require_int("local_tokens", local_tokens, least=0) * require_int("top_k", top_k, least=1)
    copies = pairs * (require_int("num_ranks", num_ranks, least=1) - 1)
    dispatch = copies * row_bytes(
        hidden=hidden, bytes_per_element=dispatch_bytes, scale_group=scale_group, scale_bytes=scale_bytes
    )
    combine = copies * hidden * combine_bytes
    total = dispatch + combine
    return {"dispatch": dispatch, "combine": combine, "total": total, "sent_and_received": 2 * total}


def pairs_per_rank(*, local_tokens: int, top_k: int) -> int:
    """Token-expert pairs of one rank.

    Args:
        local_tokens: tokens of one rank, >= 0.
        top_k: routed experts of one token, >= 1.

    Returns: pairs.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: no token dropped.
    Source: B k.

    >>> pairs_per_rank(local_tokens=16, top_k=8)
    128
    """
    return require_int("local_tokens", local_tokens, least=0) * require_int("top_k", top_k, least=1)


def metadata_bytes(*, local_tokens: int, top_k: int, bytes_per_pair: float = 8) -> float:
    """Bytes of routing data of one rank: an index and a weight for each pair.

    Args:
        local_tokens: tokens of one rank, >= 0.
        top_k: routed experts of one token, >= 1.
        bytes_per_pair: > 0; 8 is an int32 index and an FP32 weight.

    Returns: bytes.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: no compression, no headers.
    Source: B k x bytes; interview question 11.

    >>> metadata_bytes(local_tokens=16, top_k=8)
    1024
    """
    return pairs_per_rank(local_tokens=local_tokens, top_k=top_k) * require_number(
        "bytes_per_pair", bytes_per_pair, above=0
    )


def distinct_ranks(*, num_experts: int, num_ranks: int, top_k: int) -> float:
    """Expected number of different ranks that one token is sent to.

    Args:
        num_experts: routed experts, a multiple of num_ranks.
        num_ranks: P >= 1.
        top_k: different experts of one token, 1 to num_experts.

    Returns: ranks, between 1 and the smaller of k and P.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: experts drawn without replacement, all alike; the own rank is counted.
    Source: P (1 - C(E - E/P, k) / C(E, k)); interview question 11.

    >>> round(distinct_ranks(num_experts=256, num_ranks=32, top_k=8), 2)
    7.27
    """
    experts, ranks = require_int("num_experts", num_experts, least=1), require_int("num_ranks", num_ranks, least=1)
    if experts % ranks:
        raise ValueError(f"num_ranks={num_ranks!r}: expected a divisor of num_experts={num_experts}")
    if require_int("top_k", top_k, least=1) > experts:
        raise ValueError(f"top_k={top_k!r}: expected at most num_experts={num_experts}")
    return ranks * (1 - comb(experts - experts // ranks, top_k) / comb(experts, top_k))


def saved_by_rank_share(*, num_experts: int, num_ranks: int, top_k: int) -> float:
    """Share of the per-pair bytes that a library saves by sending one copy per destination rank.

    Args:
        num_experts: routed experts, a multiple of num_ranks.
        num_ranks: P >= 1.
        top_k: different experts of one token, 1 to num_experts.

    Returns: a fraction in [0, 1).
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: as `distinct_ranks`.
    Source: 1 - E[R] / k; interview question 11, erratum E11.

    >>> round(100 * saved_by_rank_share(num_experts=256, num_ranks=32, top_k=8), 1)
    9.2
    """
    return 1 - distinct_ranks(num_experts=num_experts, num_ranks=num_ranks, top_k=top_k) / top_k

"""Context parallelism: bytes and resident cache of three schemes (gather KV, gather Q, ring), and where they cross.

In: ranks p, history S, query tokens T_q, widths of KV, Q and O. Out: bytes received per rank and layer, tokens.

    python -m labkit calc context_parallel resident_shards gather_kv num_ranks=8
"""

from __future__ import annotations

from labkit.calc._require import require_choice, require_int, require_number

SCHEMES = ("gather_kv", "gather_q", "ring")


def received_bytes(
    scheme: str, *, num_ranks: int, history_tokens: int = 0, query_tokens: int = 0, kv_width: int = 0, q_width: int = 0,
    o_width: int = 0, num_heads: int = 0, bytes_per_element: float = 2, lse_bytes: float = 4,
) -> dict[str, float]:
    """Bytes that one rank receives for one layer, with its number of transfers.

    Args:
        scheme: gather_kv, gather_q (with the merge of partial outputs) or ring.
        num_ranks: p >= 1.
        history_tokens: S, visible tokens, cached prefix included, >= 0; for gather_kv and ring.
        query_tokens: T_q of all ranks, >= 0; for gather_q.
        kv_width: elements of K and V (or latent and rotary key) of one token, >= 0; for gather_kv and ring.
        q_width: elements of Q of one token, >= 0; for gather_q.
        o_width: elements of the output of one token, >= 0; for gather_q.
        num_heads: query heads, one log-sum-exp each, >= 0; for gather_q.
        bytes_per_element: > 0.
        lse_bytes: of one log-sum-exp, > 0.

    Returns: {"bytes", "transfers", "merge_bytes": the part of it that merges outputs}.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: equal shards; gathers sent as rings of p - 1 steps; outputs merged by reduce-scatter.
    Source: (p - 1)/p S d_KV b; (p - 1)/p T_q d_Q b + (p - 1)/p T_q (d_O b + n_h b_l); interview question 7.

    >>> [received_bytes(s, num_ranks=8, history_tokens=65536, kv_width=576)["bytes"] for s in ("gather_kv", "ring")]
    [66060288.0, 66060288.0]
    """
    require_choice("scheme", scheme, SCHEMES)
    p = require_int("num_ranks", num_ranks, least=1)
    size = require_number("bytes_per_element", bytes_per_element, above=0)
    share = (p - 1) / p
    if scheme != "gather_q":
        width = require_int("history_tokens", history_tokens) * require_int("kv_width", kv_width)
        return {"bytes": share * width * size, "transfers": p - 1, "merge_bytes": 0.0}
    tokens = require_int("query_tokens", query_tokens)
    heads = require_int("num_heads", num_heads) * require_number("lse_bytes", lse_bytes, above=0)
    merge = share * tokens * (require_int("o_width", o_width) * size + heads)
    gather = share * tokens * require_int("q_width", q_width) * size
    return {"bytes": gather + merge, "transfers": 2 * (p - 1), "merge_bytes": merge}


def ring_transfers(*, num_ranks: int) -> int:
    """Transfers of a ring after which every rank has seen every shard.

    Args:
        num_ranks: p >= 1.

    Returns: transfers; there is one compute step more, on the shard a rank starts with.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: the shard is not sent home at the end.
    Source: p - 1; interview questions 4 and 7, erratum E01.

    >>> ring_transfers(num_ranks=8)
    7
    """
    return require_int("num_ranks", num_ranks, least=1) - 1


def crossover_query_tokens(*, history_tokens: int, kv_width: int, q_width: int, o_width: int) -> float:
    """Query tokens below which gathering Q moves fewer bytes than gathering KV.

    Args:
        history_tokens: S >= 0.
        kv_width: elements of K and V (or latent and rotary key) of one token, >= 1.
        q_width: elements of Q of one token, >= 1.
        o_width: elements of the output of one token, >= 1.

    Returns: tokens, not rounded.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: one element size for all; log-sum-exp left out (see `lse_share`).
    Source: S d_KV / (d_Q + d_O); interview question 7.

    >>> crossover_query_tokens(history_tokens=131072, kv_width=576, q_width=128 * 192, o_width=128 * 128)
    1843.2
    """
    width = require_int("q_width", q_width, least=1) + require_int("o_width", o_width, least=1)
    return require_int("history_tokens", history_tokens) * require_int("kv_width", kv_width, least=1) / width


def crossover_history_tokens(*, query_tokens: int, kv_width: int, q_width: int, o_width: int) -> float:
    """History above which gathering Q moves fewer bytes than gathering KV.

    Args:
        query_tokens: T_q >= 0.
        kv_width: elements of K and V (or latent and rotary key) of one token, >= 1.
        q_width: elements of Q of one token, >= 1.
        o_width: elements of the output of one token, >= 1.

    Returns: tokens, not rounded.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: as `crossover_query_tokens`.
    Source: T_q (d_Q + d_O) / d_KV; interview question 7.

    >>> crossover_history_tokens(query_tokens=8192, kv_width=2048, q_width=8192, o_width=8192)
    65536.0
    """
    width = require_int("q_width", q_width, least=1) + require_int("o_width", o_width, least=1)
    return require_int("query_tokens", query_tokens) * width / require_int("kv_width", kv_width, least=1)


def lse_share(*, v_head_dim: int, bytes_per_element: float = 2, lse_bytes: float = 4) -> float:
    """What the log-sum-exp adds to the merge of partial outputs.

    Args:
        v_head_dim: width of an output head, >= 1.
        bytes_per_element: of the output, > 0.
        lse_bytes: of one log-sum-exp, > 0.

    Returns: fraction of the output's bytes.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: one log-sum-exp for each head and token.
    Source: b_l / (d_v b); interview question 7.

    >>> lse_share(v_head_dim=128)
    0.015625
    """
    output = require_int("v_head_dim", v_head_dim, least=1) * require_number(
        "bytes_per_element", bytes_per_element, above=0
    )
    return require_number("lse_bytes", lse_bytes, above=0) / output


def resident_shards(scheme: str, *, num_ranks: int, segment_share: float = 1.0) -> float:
    """Peak keys and values on one rank, in shards of S / p tokens.

    Args:
        scheme: gather_kv, gather_q or ring.
        num_ranks: p >= 1.
        segment_share: part of the history gathered at a time, above 0 to 1; for gather_kv only.

    Returns: shards; times S d_KV b / p for bytes.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: one layer; the gathered copy includes the own shard; a ring holds one shard and receives the next.
    Source: p, 2 and 1 shards; interview question 7.

    >>> [resident_shards(s, num_ranks=8) for s in ("gather_kv", "ring", "gather_q")]
    [8.0, 2.0, 1.0]
    """
    require_choice("scheme", scheme, SCHEMES)
    p = require_int("num_ranks", num_ranks, least=1)
    if not 0 < require_number("segment_share", segment_share, above=0) <= 1:
        raise ValueError(f"segment_share={segment_share!r}: expected above 0, at most 1")
    if scheme == "gather_kv":
        return max(1.0, p * segment_share)
    return 1.0 if scheme == "gather_q" else float(min(2, p))


def gathered_q_bytes(
    *, query_tokens: int, num_heads: int, head_dim: int, group_ranks: int, tensor_parallel: int,
    bytes_per_element: float = 2,
) -> dict[str, float]:
    """Bytes of Q that a rank receives when Q is gathered along heads in a group inside the tensor-parallel ranks.

    Args:
        query_tokens: T_q >= 0.
        num_heads: query heads, a multiple of tensor_parallel.
        head_dim: width of a head, >= 1.
        group_ranks: ranks that gather, a divisor of tensor_parallel.
        tensor_parallel: ranks that the heads are split over, >= 1.
        bytes_per_element: > 0.

    Returns: {"by_heads": real, "token_shard_formula": what (p - 1)/p T_q d_Q b would say}.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: every rank holds num_heads / tensor_parallel heads of all query tokens.
    Source: (p - 1) T_q (H / tp) d b; interview question 7.

    >>> gathered_q_bytes(query_tokens=8192, num_heads=64, head_dim=128, group_ranks=4, tensor_parallel=8)
    {'by_heads': 50331648, 'token_shard_formula': 100663296.0}
    """
    tp, p = require_int("tensor_parallel", tensor_parallel, least=1), require_int("group_ranks", group_ranks, least=1)
    if tp % p:
        raise ValueError(f"group_ranks={group_ranks!r}: expected a divisor of tensor_parallel={tensor_parallel}")
    if require_int("num_heads", num_heads, least=1) % tp:
        raise ValueError(f"num_heads={num_heads!r}: expected a multiple of tensor_parallel={tensor_parallel}")
    size = require_number("bytes_per_element", bytes_per_element, above=0)
    head = require_int("query_tokens", query_tokens) * require_int("head_dim", head_dim, least=1) * size
    return {"by_heads": (p - 1) * head * (num_heads // tp), "token_shard_formula": (p - 1) * head * num_heads / p}


def ulysses_bytes(
    *, seq_tokens: int, q_width: int, kv_width: int, num_ranks: int, bytes_per_element: float = 2
) -> float:
    """Bytes that one rank sends for one layer when heads are exchanged for tokens: Q, K, V out and O back.

    Args:
        seq_tokens: S >= 0.
        q_width: elements of Q (and of O) of one token, >= 1.
        kv_width: elements of K and V together, >= 1.
        num_ranks: p >= 1, at most the number of KV heads.
        bytes_per_element: > 0.

    Returns: bytes; falls with p, where a ring's does not.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: equal shards, KV heads not replicated.
    Source: (p - 1)/p S (2 h + 2 h_kv) e / p; extra interview question 19.

    >>> ulysses_bytes(seq_tokens=131072, q_width=8192, kv_width=2048, num_ranks=8) / 2**20
    504.0
    """
    p = require_int("num_ranks", num_ranks, least=1)
    width = 2 * require_int("q_width", q_width, least=1) + require_int("kv_width", kv_width, least=1)
    size = require_number("bytes_per_element", bytes_per_element, above=0)
    return (p - 1) / p * require_int("seq_tokens", seq_tokens) * width * size / p


def causal_imbalance(layout: str, *, num_ranks: int) -> float:
    """Work of the busiest rank over the mean in causal attention.

    Args:
        layout: "contiguous" (rank r has the r-th part) or "zigzag" (parts r and 2p - 1 - r of 2p).
        num_ranks: p >= 1.

    Returns: largest / mean.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: work is the number of query-key pairs under the mask.
    Source: (2 p - 1) / p against 1, summed part by part; extra interview question 18.

    >>> causal_imbalance("contiguous", num_ranks=8), causal_imbalance("zigzag", num_ranks=8)
    (1.875, 1.0)
    """
    require_choice("layout", layout, ("contiguous", "zigzag"))
    p = require_int("num_ranks", num_ranks, least=1)
    if layout == "contiguous":
        work = [2 * r + 1 for r in range(p)]
    else:
        work = [2 * r + 1 + 2 * (2 * p - 1 - r) + 1 for r in range(p)]
    return max(work) * p / sum(work)

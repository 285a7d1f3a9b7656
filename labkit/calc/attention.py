"""Attention by layout: FLOP, traffic and intensity of prefill and decode, for MHA, GQA, MQA and latent attention.

In: heads, widths, sequence length, bytes per element. Out: FLOP, bytes, FLOP per byte.

    python -m labkit calc attention decode_token num_heads=128 num_kv_heads=8 head_dim=192 v_head_dim=128
"""

from __future__ import annotations

from typing import Any

from labkit.calc._require import require_int, require_number
from labkit.calc.kv_cache import kv_bytes_per_token


def attention_flop(
    *, num_queries: int, num_keys: int, head_dim: int, v_head_dim: int | None = None, num_heads: int = 1
) -> int:
    """Operations of the two matrix products of attention, without a mask.

    Args:
        num_queries: query rows, >= 0.
        num_keys: keys that each of them sees, >= 0.
        head_dim: width of a query and key head, >= 1.
        v_head_dim: width of a value head; None: as the key.
        num_heads: query heads, >= 1.

    Returns: FLOP; the softmax itself is not counted.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: no causal mask (it halves a square prefill); tiling does not change the count.
    Source: 2 N M d for Q K^T and 2 N M d_v for P V; interview question 2.

    >>> attention_flop(num_queries=8192, num_keys=8192, head_dim=128)
    34359738368
    """
    pairs = require_int("num_queries", num_queries) * require_int("num_keys", num_keys)
    width = require_int("head_dim", head_dim, least=1)
    v_width = width if v_head_dim is None else require_int("v_head_dim", v_head_dim, least=1)
    return 2 * pairs * (width + v_width) * require_int("num_heads", num_heads, least=1)


def prefill_traffic(
    *, seq_tokens: int, head_dim: int, num_heads: int = 1, bytes_per_element: float = 2, state_bytes: float = 4
) -> dict[str, float]:
    """Memory traffic and extra state of attention over one sequence, scores stored against never stored.

    Args:
        seq_tokens: N >= 1.
        head_dim: d >= 1.
        num_heads: query heads, >= 1.
        bytes_per_element: of Q, K, V, O, S and P, > 0.
        state_bytes: of one scalar of the online softmax, > 0.

    Returns: {"scores_bytes": S and P each written and read, "operand_bytes": Q, K, V, O once, "ratio",
        "probabilities_bytes": P stored, "state_bytes": two scalars for each row}.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: no mask, as many KV heads as query heads, nothing of S and P stays in a cache.
    Source: 4 N^2 b against 4 N d b; Dao et al., "FlashAttention", 2022; interview question 2.

    >>> found = prefill_traffic(seq_tokens=8192, head_dim=128)
    >>> found["scores_bytes"] / 2**20, found["operand_bytes"] / 2**20, found["ratio"]
    (512.0, 8.0, 64.0)
    """
    rows = require_int("seq_tokens", seq_tokens, least=1) * require_int("num_heads", num_heads, least=1)
    require_int("head_dim", head_dim, least=1)
    size = require_number("bytes_per_element", bytes_per_element, above=0)
    return {
        "scores_bytes": 4 * rows * seq_tokens * size, "operand_bytes": 4 * rows * head_dim * size,
        "ratio": seq_tokens / head_dim, "probabilities_bytes": rows * seq_tokens * size,
        "state_bytes": 2 * rows * require_number("state_bytes", state_bytes, above=0),
    }


def decode_token(
    *, num_heads: int, num_kv_heads: int, head_dim: int, v_head_dim: int | None = None, bytes_per_element: float = 2,
    num_queries: int = 1,
) -> dict[str, float]:
    """One cached token of one layer in decode: its bytes, the work on it, the intensity.

    Args:
        num_heads: query heads, a multiple of num_kv_heads.
        num_kv_heads: heads whose K and V are cached, >= 1.
        head_dim: width of a key head, >= 1.
        v_head_dim: width of a value head; None: as the key.
        bytes_per_element: of the cache, > 0.
        num_queries: query tokens that use one read (a verified draft has several), >= 1.

    Returns: {"bytes", "flop", "intensity_flop_per_byte", "times_smaller_than_mha"}.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: each K and V read once and shared by its group on chip; weights, Q and O not counted.
    Source: (2 / e) H / H_kv; interview question 13.

    >>> decode_token(num_heads=128, num_kv_heads=8, head_dim=192, v_head_dim=128)
    {'bytes': 5120, 'flop': 81920, 'intensity_flop_per_byte': 16.0, 'times_smaller_than_mha': 16.0}
    """
    heads, kv_heads = require_int("num_heads", num_heads, least=1), require_int("num_kv_heads", num_kv_heads, least=1)
    if heads % kv_heads:
        raise ValueError(f"num_heads={num_heads!r}: expected a multiple of num_kv_heads={num_kv_heads}")
    size = kv_bytes_per_token(
        num_layers=1, num_kv_heads=kv_heads, head_dim=head_dim, v_head_dim=v_head_dim,
        bytes_per_element=bytes_per_element,
    )
    flop = attention_flop(
        num_queries=require_int("num_queries", num_queries, least=1), num_keys=1, head_dim=head_dim,
        v_head_dim=v_head_dim, num_heads=heads,
    )
    return {
        "bytes": size, "flop": flop, "intensity_flop_per_byte": flop / size, "times_smaller_than_mha": heads / kv_heads,
    }


def mla_decode_token(
    *, num_heads: int, kv_lora_rank: int, qk_rope_head_dim: int, bytes_per_element: float = 2, num_queries: int = 1,
    num_reads: float = 1,
) -> dict[str, float]:
    """One cached token of one layer in decode with absorbed latent attention.

    Args:
        num_heads: query heads, >= 1.
        kv_lora_rank: d_c, width of the latent, >= 1.
        qk_rope_head_dim: d_r, width of the shared rotary key, >= 0.
        bytes_per_element: of the cache, > 0.
        num_queries: query tokens that use one read, >= 1.
        num_reads: rho, how often the latent is read from memory, 1 to num_heads.

    Returns: {"bytes": stored, "flop", "intensity_flop_per_byte": over the bytes read}.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: W_UK and W_UV absorbed into the query and the output; weights not counted.
    Source: 2 H (2 d_c + d_r) / (rho (d_c + d_r) e); interview question 13.

    >>> found = mla_decode_token(num_heads=128, kv_lora_rank=512, qk_rope_head_dim=64)
    >>> found["bytes"], found["flop"], round(found["intensity_flop_per_byte"], 2)
    (1152, 278528, 241.78)
    """
    size = kv_bytes_per_token(
        num_layers=1, kv_lora_rank=kv_lora_rank, qk_rope_head_dim=qk_rope_head_dim, bytes_per_element=bytes_per_element
    )
    heads = require_int("num_heads", num_heads, least=1)
    if require_number("num_reads", num_reads, least=1) > heads:
        raise ValueError(f"num_reads={num_reads!r}: expected at most num_heads={num_heads}")
    queries = require_int("num_queries", num_queries, least=1)
    flop = 2 * queries * heads * (2 * kv_lora_rank + qk_rope_head_dim)
    return {"bytes": size, "flop": flop, "intensity_flop_per_byte": flop / (num_reads * size)}


def qkv_projection_share(*, num_heads: int, num_kv_heads: int) -> float:
    """Work of the Q, K and V projections as a share of multi-head attention's.

    Args:
        num_heads: query heads, a multiple of num_kv_heads.
        num_kv_heads: >= 1.

    Returns: a fraction; one third is the limit for one KV head and many query heads.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: equal widths of all heads.
    Source: (H + 2 H_kv) / (3 H); interview question 13.

    >>> qkv_projection_share(num_heads=128, num_kv_heads=8)
    0.375
    """
    heads, kv_heads = require_int("num_heads", num_heads, least=1), require_int("num_kv_heads", num_kv_heads, least=1)
    if heads % kv_heads:
        raise ValueError(f"num_heads={num_heads!r}: expected a multiple of num_kv_heads={num_kv_heads}")
    return (heads + 2 * kv_heads) / (3 * heads)


def softmax_scale(*, head_dim: int) -> float:
    """The factor on the scores.

    Args:
        head_dim: width of a query and key head, >= 1.

    Returns: 1 / sqrt(d).
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: no temperature, no long-context correction of the scale.
    Source: Vaswani et al., "Attention is all you need", 2017; interview question 20.

    >>> round(softmax_scale(head_dim=128), 10)
    0.0883883476
    """
    return require_int("head_dim", head_dim, least=1) ** -0.5


def decode_step_floor_s(
    *, num_tokens: int, kv_bytes_per_token: float, bytes_per_s: float, num_sequences: int = 1
) -> dict[str, Any]:
    """Bytes of cached history that one decode step reads, and the least time for it.

    Args:
        num_tokens: visible history of each sequence, >= 0.
        kv_bytes_per_token: all layers, > 0.
        bytes_per_s: of the memory or link it is read over, > 0.
        num_sequences: of the batch, >= 0.

    Returns: {"bytes", "time_s"}.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: full attention, nothing shared between sequences, weights not counted. A prefix-cache hit changes nothing.
    Source: B S kappa / bandwidth; interview questions 3 and 5.

    >>> decode_step_floor_s(num_tokens=100000, kv_bytes_per_token=70272, bytes_per_s=64e9)["time_s"]
    0.1098
    """
    tokens = require_int("num_tokens", num_tokens) * require_int("num_sequences", num_sequences)
    size = tokens * require_number("kv_bytes_per_token", kv_bytes_per_token, above=0)
    return {"bytes": size, "time_s": size / require_number("bytes_per_s", bytes_per_s, above=0)}

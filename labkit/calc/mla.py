"""Latent attention in prefill: what expanding the latent costs, and segments that bound it.

In: local heads, widths, history, workspace. Out: bytes, tokens.

    python -m labkit calc mla workspace_tokens workspace_bytes=1073741824 num_heads=16
"""

from __future__ import annotations

import random

from labkit.calc._require import require_int, require_number
from labkit.calc.kv_cache import kv_bytes_per_token


def expanded_bytes_per_token(
    *, num_heads: int, qk_nope_head_dim: int = 128, v_head_dim: int = 128, broadcast_rope_dim: int = 0,
    bytes_per_element: float = 2,
) -> float:
    """Bytes of K and V of one token of one layer after the up-projection.

    Args:
        num_heads: heads on this rank, >= 1.
        qk_nope_head_dim: width of a key head without position, >= 1.
        v_head_dim: width of a value head, >= 1.
        broadcast_rope_dim: rotary key copied into every head, >= 0; 0: kept apart.
        bytes_per_element: > 0.

    Returns: bytes.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: transient K and V in one dtype; Q, scores, output and buffers come on top.
    Source: H (d_nope + d_r + d_v) b; interview question 4.

    >>> expanded_bytes_per_token(num_heads=128), expanded_bytes_per_token(num_heads=128, broadcast_rope_dim=64)
    (65536, 81920)
    """
    width = require_int("qk_nope_head_dim", qk_nope_head_dim, least=1) + require_int("v_head_dim", v_head_dim, least=1)
    width += require_int("broadcast_rope_dim", broadcast_rope_dim, least=0)
    size = require_number("bytes_per_element", bytes_per_element, above=0)
    return require_int("num_heads", num_heads, least=1) * width * size


def expansion_ratio(
    *, num_heads: int, kv_lora_rank: int = 512, qk_rope_head_dim: int = 64, qk_nope_head_dim: int = 128,
    v_head_dim: int = 128,
) -> float:
    """How many times larger the expanded keys and values are than the cache they come from.

    Args:
        num_heads: heads on this rank, >= 1.
        kv_lora_rank: width of the latent, >= 1.
        qk_rope_head_dim: width of the rotary key, >= 0.
        qk_nope_head_dim: width of a key head without position, >= 1.
        v_head_dim: width of a value head, >= 1.

    Returns: ratio.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: one dtype for both; the rotary key is not copied.
    Source: H (d_nope + d_v) / (d_c + d_r); interview question 4.

    >>> round(expansion_ratio(num_heads=128), 1)
    56.9
    """
    expanded = expanded_bytes_per_token(num_heads=num_heads, qk_nope_head_dim=qk_nope_head_dim, v_head_dim=v_head_dim)
    return expanded / kv_bytes_per_token(num_layers=1, kv_lora_rank=kv_lora_rank, qk_rope_head_dim=qk_rope_head_dim)


def peak_expanded_bytes(
    *, history_tokens: int, num_heads: int, segment_tokens: int | None = None, query_tokens: int = 1,
    qk_nope_head_dim: int = 128, v_head_dim: int = 128, broadcast_rope_dim: int = 0, bytes_per_element: float = 2,
) -> float:
    """Largest expansion of one layer that is alive at a time.

    Args:
        history_tokens: cached tokens that the chunk attends to, >= 0.
        num_heads: heads on this rank, >= 1.
        segment_tokens: history expanded at a time, >= 1; None: all of it.
        query_tokens: tokens of the prefill chunk, >= 1; the result does not depend on it, which is the point.
        qk_nope_head_dim: as `expanded_bytes_per_token`.
        v_head_dim: as `expanded_bytes_per_token`.
        broadcast_rope_dim: as `expanded_bytes_per_token`.
        bytes_per_element: as `expanded_bytes_per_token`.

    Returns: bytes.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: one segment alive (double buffering has two); query and score workspace not counted.
    Source: min(S, segment) x expanded bytes; interview question 4.

    >>> [peak_expanded_bytes(history_tokens=131072, num_heads=128, segment_tokens=s) / 2**30 for s in (None, 8192)]
    [8.0, 0.5]
    """
    require_int("query_tokens", query_tokens, least=1)
    alive = require_int("history_tokens", history_tokens, least=0)
    if segment_tokens is not None:
        alive = min(alive, require_int("segment_tokens", segment_tokens, least=1))
    return alive * expanded_bytes_per_token(
        num_heads=num_heads, qk_nope_head_dim=qk_nope_head_dim, v_head_dim=v_head_dim,
        broadcast_rope_dim=broadcast_rope_dim, bytes_per_element=bytes_per_element,
    )


def workspace_tokens(
    *, workspace_bytes: int, num_heads: int, qk_nope_head_dim: int = 128, v_head_dim: int = 128,
    broadcast_rope_dim: int = 0, bytes_per_element: float = 2, num_buffers: int = 1,
) -> int:
    """Longest segment whose expansion fits into a workspace.

    Args:
        workspace_bytes: memory for expanded K and V, >= 0.
        num_heads: heads on this rank, >= 1.
        qk_nope_head_dim: as `expanded_bytes_per_token`.
        v_head_dim: as `expanded_bytes_per_token`.
        broadcast_rope_dim: as `expanded_bytes_per_token`.
        bytes_per_element: as `expanded_bytes_per_token`.
        num_buffers: segments alive at a time, >= 1.

    Returns: tokens; 0 if not even one fits.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: the workspace holds nothing else.
    Source: floor(W / (buffers x expanded bytes)); interview question 4.

    >>> [workspace_tokens(workspace_bytes=2**30, num_heads=h) for h in (16, 128)]
    [131072, 16384]
    """
    token = expanded_bytes_per_token(
        num_heads=num_heads, qk_nope_head_dim=qk_nope_head_dim, v_head_dim=v_head_dim,
        broadcast_rope_dim=broadcast_rope_dim, bytes_per_element=bytes_per_element,
    )
    buffers = require_int("num_buffers", num_buffers, least=1)
    return int(require_int("workspace_bytes", workspace_bytes, least=0) // (buffers * token))


def absorption_error(*, head_dim: int = 4, kv_lora_rank: int = 3, num_tokens: int = 5, seed: int = 7) -> float:
    """Largest difference between attention on expanded keys and values and on the latent itself, random numbers.

    Expanded: scores q . (W_UK c), output W_O sum p (W_UV c). Absorbed: (W_UK^T q) . c, and (W_O W_UV) sum p c.

    Args:
        head_dim: width of a head, 1 to 64.
        kv_lora_rank: width of the latent, 1 to 64.
        num_tokens: cached tokens, 1 to 1000.
        seed: of the random numbers.

    Returns: largest absolute difference of a score or an output; rounding only.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: double precision; no rotary part, which is not absorbed.
    Source: associativity of the products; interview question 13.

    >>> absorption_error() < 1e-12
    True
    """
    for name, value, most in (
        ("head_dim", head_dim, 64), ("kv_lora_rank", kv_lora_rank, 64), ("num_tokens", num_tokens, 1000),
    ):
        if require_int(name, value, least=1) > most:
            raise ValueError(f"{name}={value!r}: expected at most {most}")
    draw = random.Random(seed)

    def matrix(rows: int, columns: int) -> list[list[float]]:
        return [[draw.gauss(0, 1) for _ in range(columns)] for _ in range(rows)]

    up_k, up_v, out = matrix(head_dim, kv_lora_rank), matrix(head_dim, kv_lora_rank), matrix(head_dim, head_dim)
    latents, query = matrix(num_tokens, kv_lora_rank), matrix(1, head_dim)[0]
    weights = [draw.random() for _ in range(num_tokens)]
    absorbed_query = _apply(_transposed(up_k), query)
    scores = [_dot(query, _apply(up_k, c)) - _dot(absorbed_query, c) for c in latents]
    mixed_values = _mix(weights, [_apply(up_v, c) for c in latents])
    out_v = [_apply(_transposed(up_v), row) for row in out]
    outputs = [a - b for a, b in zip(_apply(out, mixed_values), _apply(out_v, _mix(weights, latents)))]
    return max(abs(difference) for difference in scores + outputs)


def _dot(a: list[float], b: list[float]) -> float:
    return sum(x * y for x, y in zip(a, b))


def _apply(matrix: list[list[float]], vector: list[float]) -> list[float]:
    return [_dot(row, vector) for row in matrix]


def _transposed(matrix: list[list[float]]) -> list[list[float]]:
    return [list(column) for column in zip(*matrix)]


def _mix(weights: list[float], vectors: list[list[float]]) -> list[float]:
    return [_dot(weights, list(column)) for column in zip(*vectors)]

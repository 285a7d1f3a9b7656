"""One forward step of a decoder as a roofline: what it reads and computes, part by part, in decode and in prefill.

In: a shape, tokens, rates. Out: bytes, FLOP, seconds. Parts run one after the other; each takes the longer of its
transfer and its arithmetic.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from labkit.calc._require import require_int, require_number
from labkit.calc.attention import attention_flop
from labkit.calc.decoder import DecoderShape, parameter_groups
from labkit.calc.kv_cache import kv_bytes_per_token
from labkit.calc.moe_experts_read import expected_experts
from labkit.calc.roofline import time_floor_s

Parts = dict[str, dict[str, float]]


def decode_parts(
    shape: DecoderShape, *, batch: int, context_tokens: float, element_bytes: float = 2,
    experts_read: float | None = None,
) -> Parts:  # fmt: skip
    """Bytes and FLOP of a step that makes one token for each sequence of a batch.

    Args:
        shape: of the model.
        batch: sequences, >= 1.
        context_tokens: mean tokens in the cache of a sequence, >= 0.
        element_bytes: of a weight and of a cached element, > 0.
        experts_read: different experts of a layer whose weights are read; None: the mean of uniform routing.

    Returns: {part: {"bytes", "flop"}} for "attention_weights", "dense_mlp", "shared_experts", "routed_experts",
        "head" and "kv_cache"; router and norms are in the part they stand before.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: every weight that is needed is read once, the cache once; activations, logits and the new token's cache are
        not counted. Latent attention works on the latent itself (absorbed), the expansion's weights are read once.
    Source: sizes of the modules; 2 FLOP a parameter and token.

    >>> shape = DecoderShape(num_layers=1, hidden=4, num_heads=2, num_kv_heads=1, head_dim=2, intermediate=8,
    ...                      vocab_size=10, tied_embeddings=True)
    >>> parts = decode_parts(shape, batch=2, context_tokens=100)
    >>> parts["kv_cache"]["bytes"], parts["head"]["bytes"], parts["dense_mlp"]["flop"]
    (1600, 88, 384)
    """
    rows = require_int("batch", batch, least=1)
    context = require_number("context_tokens", context_tokens, least=0)
    parts = _weights(shape, num_tokens=rows, head_rows=rows, element_bytes=element_bytes, experts_read=experts_read)
    # Per head and cached token: a product with the key, one with the value; absorbed, both are with the latent.
    if shape.kv_lora_rank:
        widths = 2 * shape.kv_lora_rank + (shape.qk_rope_head_dim or 0)
    else:
        widths = 2 * shape.head_dim
    parts["kv_cache"] = {
        "bytes": rows * context * _cached_bytes(shape, element_bytes),
        "flop": 2 * rows * context * widths * shape.num_heads * shape.num_layers}
    return parts


def prefill_parts(
    shape: DecoderShape, *, num_tokens: int, element_bytes: float = 2, experts_read: float | None = None
) -> Parts:
    """Bytes and FLOP of a step that takes in one whole prompt and gives its first token.

    Args:
        shape: of the model.
        num_tokens: of the prompt, >= 1.
        element_bytes: of a weight and of a cached element, > 0.
        experts_read: as `decode_parts`.

    Returns: as `decode_parts`; "kv_cache" is attention among the prompt's tokens: half of the square, and the cache
        written once.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: as `decode_parts`, but latent attention works on expanded keys and values; the output layer sees the last
        token only; an attention kernel that skips masked tiles.
    Source: as `decode_parts`; `labkit.calc.attention.attention_flop`.

    >>> shape = DecoderShape(num_layers=1, hidden=4, num_heads=2, num_kv_heads=1, head_dim=2, intermediate=8,
    ...                      vocab_size=10, tied_embeddings=True)
    >>> parts = prefill_parts(shape, num_tokens=3)
    >>> parts["kv_cache"]["flop"], parts["head"]["flop"]
    (96, 80)
    """
    tokens = require_int("num_tokens", num_tokens, least=1)
    parts = _weights(shape, num_tokens=tokens, head_rows=1, element_bytes=element_bytes, experts_read=experts_read)
    square = attention_flop(num_queries=tokens, num_keys=tokens + 1, head_dim=shape.head_dim,
                            v_head_dim=shape.v_head_dim, num_heads=shape.num_heads)
    parts["kv_cache"] = {"bytes": tokens * _cached_bytes(shape, element_bytes), "flop": square // 2 * shape.num_layers}
    return parts


def step_floor(parts: Mapping[str, Mapping[str, float]], *, bytes_per_s: float, flop_per_s: float) -> dict[str, Any]:
    """Least time of a step whose parts run one after the other.

    Args:
        parts: of `decode_parts` or `prefill_parts`.
        bytes_per_s: bandwidth, > 0.
        flop_per_s: arithmetic of the weights' type, > 0.

    Returns: {"time_s", "bytes", "flop", "memory_share": of the time in parts that wait for memory, "by_part_s"}.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: no launch, no gap between kernels, full bandwidth for every part.
    Source: sum over the parts of `labkit.calc.roofline.time_floor_s`.

    >>> step_floor({"a": {"bytes": 10, "flop": 1}, "b": {"bytes": 1, "flop": 40}}, bytes_per_s=10, flop_per_s=10)
    {'time_s': 5.0, 'bytes': 11, 'flop': 41, 'memory_share': 0.2, 'by_part_s': {'a': 1.0, 'b': 4.0}}
    """
    times = {name: time_floor_s(num_flop=part["flop"], num_bytes=part["bytes"], peak_flop_per_s=flop_per_s,
                                bytes_per_s=bytes_per_s) for name, part in parts.items()}
    total = sum(times.values())
    waiting = sum(times[name] for name, part in parts.items()
                  if part["bytes"] * flop_per_s > part["flop"] * bytes_per_s)
    return {
        "time_s": total, "bytes": sum(part["bytes"] for part in parts.values()),
        "flop": sum(part["flop"] for part in parts.values()), "memory_share": waiting / total if total else 0.0,
        "by_part_s": times}


def _weights(
    shape: DecoderShape, *, num_tokens: int, head_rows: int, element_bytes: float, experts_read: float | None
) -> Parts:
    size, groups = require_number("element_bytes", element_bytes, above=0), parameter_groups(shape)
    layers = {"attention_weights": groups["attention"] + groups["norms"] - shape.hidden,
              "dense_mlp": groups["dense_mlp"], "shared_experts": groups["shared_experts"] + groups["router"]}
    parts: Parts = {name: {"bytes": size * count, "flop": 2 * num_tokens * count} for name, count in layers.items()}
    parts["routed_experts"] = {"bytes": 0.0, "flop": 0.0}
    if shape.num_experts and shape.num_experts_per_token:
        if experts_read is None:
            experts_read = expected_experts(
                num_tokens=num_tokens, top_k=shape.num_experts_per_token, num_experts=shape.num_experts)
        elif not 0 <= require_number("experts_read", experts_read, least=0) <= shape.num_experts:
            raise ValueError(f"experts_read={experts_read!r}: expected at most num_experts={shape.num_experts}")
        one = groups["routed_experts"] / shape.num_experts
        parts["routed_experts"] = {
            "bytes": size * one * experts_read, "flop": 2 * num_tokens * one * shape.num_experts_per_token}
    head = shape.vocab_size * shape.hidden
    parts["head"] = {"bytes": size * (head + shape.hidden), "flop": 2 * head_rows * head}
    return parts


def _cached_bytes(shape: DecoderShape, element_bytes: float) -> float:
    widths: dict[str, Any] = {"num_kv_heads": shape.num_kv_heads, "head_dim": shape.head_dim}
    if shape.kv_lora_rank:
        widths = {"kv_lora_rank": shape.kv_lora_rank, "qk_rope_head_dim": shape.qk_rope_head_dim}
    return kv_bytes_per_token(num_layers=shape.num_layers, bytes_per_element=element_bytes, **widths)

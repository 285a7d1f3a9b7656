"""What the decode lab predicts of each server before it starts: cache capacity, bytes and FLOP of a step, times.

In: shapes of the models as plain mappings, rates of the device. Out: plain dicts, times in milliseconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from labkit.calc import decode_step
from labkit.calc.decoder import DecoderShape, active_parameters, parameter_groups
from labkit.calc.kv_cache import capacity_blocks, kv_bytes_per_token
from labkit.calc.moe_experts_read import expected_experts

BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}


def split_server(name: str) -> tuple[str, str]:
    """`<model> <mode>` -> model and mode.

    Raises: ValueError naming the server when it is not of this form or the mode is neither `eager` nor `graph`.

    >>> split_server("tiny-qwen2 eager")
    ('tiny-qwen2', 'eager')
    """
    model, _, mode = name.partition(" ")
    if not model or mode not in ("eager", "graph"):
        raise ValueError(f"servers: {name!r}: expected '<model> eager' or '<model> graph'")
    return model, mode


def launches_per_step(shape: DecoderShape) -> int:
    """Kernels that one step starts when every module is called in turn: counted by hand, an estimate.

    A layer: two norms, projection of queries, keys and values, rotation, cache write, attention, output projection (7);
    a gated MLP 3; experts 8 (router, choice, sorting 2, products 2, activation, sum); shared experts 4 with their sum;
    a latent 4 more (its own projection and norm, two absorbed products). Then 8 for embedding, last norm, output layer
    and the choice of a token.
    """
    layer = 7 + (2 if shape.qk_norm else 0) + (4 if shape.kv_lora_rank else 0)
    dense = shape.num_layers - shape.expert_layers
    experts = shape.expert_layers * (8 + (4 if shape.num_shared_experts else 0))
    return shape.num_layers * layer + 3 * dense + experts + 8


def server_prediction(
    shape: DecoderShape, *, dtype: str, mode: str, block_size: int, cache_bytes: int, batches: Sequence[int],
    context_tokens: int, output_tokens: int, prompt_tokens: Sequence[int], rates: Mapping[str, Any], launch_s: float,
    step_s: float, is_asynchronous: bool, draws_may_repeat: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """One server.

    Args:
        shape: of its model.
        dtype: of weights and cache.
        mode: `graph`: decode steps are replayed CUDA graphs; `eager`: every kernel is launched by the host. The step
            that takes in a prompt is launched one by one in both.
        block_size: tokens of a KV block.
        cache_bytes: memory of the cache.
        batches: sequences that decode together.
        context_tokens: prompt of each of them.
        output_tokens: of each of them.
        prompt_tokens: lengths of the single prompts whose TTFT is taken.
        rates: {"bytes_per_s", "flop_per_s"}.
        launch_s: host time of calling one kernel by its module, seconds.
        step_s: host time between two steps, in which the device waits, seconds.
        is_asynchronous: a GPU, which runs while the host issues: the slower of the two decides. On a CPU they add up.
        draws_may_repeat: routing draws a token's experts independently, so that one may come twice.

    Returns: capacity_blocks, capacity_tokens, kv_bytes_per_token, parameters, active_parameters, parameter_groups,
        weights_bytes, launches, decode {batch: ...}, ttft {prompt tokens: ...}; each of these with bytes, flop,
        floor_ms (roofline), launch_ms (0 in a graph), predicted_ms (of both, and the time between steps),
        memory_share, by_part_ms, and experts_read (of one layer; None without experts).
    """
    size, launches = BYTES[dtype], launches_per_step(shape)
    widths: dict[str, Any] = {"num_kv_heads": shape.num_kv_heads, "head_dim": shape.head_dim}
    if shape.kv_lora_rank:
        widths = {"kv_lora_rank": shape.kv_lora_rank, "qk_rope_head_dim": shape.qk_rope_head_dim}
    token_bytes = kv_bytes_per_token(num_layers=shape.num_layers, bytes_per_element=size, **widths)
    blocks = capacity_blocks(cache_bytes=cache_bytes, kv_bytes_per_token=token_bytes, block_tokens=block_size)

    def timed(parts: decode_step.Parts, *, is_graph: bool, num_tokens: int) -> dict[str, Any]:
        floor = decode_step.step_floor(parts, bytes_per_s=rates["bytes_per_s"], flop_per_s=rates["flop_per_s"])
        launch = 0.0 if is_graph else launches * launch_s
        work = max(floor["time_s"], launch) if is_asynchronous else floor["time_s"] + launch
        return {
            "bytes": floor["bytes"], "flop": floor["flop"], "floor_ms": 1e3 * floor["time_s"],
            "launch_ms": 1e3 * launch, "predicted_ms": 1e3 * (work + step_s), "memory_share": floor["memory_share"],
            "by_part_ms": {name: 1e3 * value for name, value in floor["by_part_s"].items()},
            "experts_read": touched(num_tokens)}

    def touched(num_tokens: int) -> float | None:
        return experts_read(shape, num_tokens, draws_may_repeat=draws_may_repeat)

    context = context_tokens + output_tokens / 2
    return {
        "mode": mode, "block_size": block_size, "capacity_blocks": blocks, "capacity_tokens": blocks * block_size,
        "kv_bytes_per_token": token_bytes, "parameters": sum(parameter_groups(shape).values()),
        "active_parameters": active_parameters(shape), "parameter_groups": parameter_groups(shape),
        "weights_bytes": size * sum(parameter_groups(shape).values()), "launches": launches,
        "decode": {str(batch): timed(decode_step.decode_parts(
            shape, batch=batch, context_tokens=context, element_bytes=size, experts_read=touched(batch)),
            is_graph=mode == "graph", num_tokens=batch) for batch in batches},
        "ttft": {str(tokens): timed(decode_step.prefill_parts(
            shape, num_tokens=tokens, element_bytes=size, experts_read=touched(tokens)),
            is_graph=False, num_tokens=tokens) for tokens in prompt_tokens}}


def draws(num_tokens: int, top_k: int, *, may_repeat: bool) -> tuple[int, int]:
    """(draws, different experts of each): a token's experts that may repeat are as many draws of one expert."""
    return (num_tokens * top_k, 1) if may_repeat else (num_tokens, top_k)


def experts_read(shape: DecoderShape, num_tokens: int, *, draws_may_repeat: bool = False) -> float | None:
    """Mean number of different experts of a layer that so many tokens touch; None for a model without experts.

    Args:
        shape: of the model.
        num_tokens: of the batch.
        draws_may_repeat: as `server_prediction`.
    """
    if not shape.num_experts or not shape.num_experts_per_token:
        return None
    count, each = draws(num_tokens, shape.num_experts_per_token, may_repeat=draws_may_repeat)
    return expected_experts(num_tokens=count, top_k=each, num_experts=shape.num_experts)

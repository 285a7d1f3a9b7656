"""The tensors of a model folder, one by one, from its `config.json`: what the closed forms are checked against.

In: the configuration by Hugging Face's names. Out: name and size of every tensor, as its checkpoint has them. Nothing
of `labkit.calc.decoder` is used here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

Tensor = tuple[str, tuple[int, ...]]


def config_tensors(config: Mapping[str, Any]) -> Iterator[Tensor]:
    """Every tensor of a model: (name, sizes).

    Args:
        config: of `labkit.engine.model_folder.model_config`.

    Raises: ValueError for a model type that is not known here.
    """
    hidden, kind = config["hidden_size"], config["model_type"]
    attention = {"qwen2": _grouped, "qwen3_moe": _grouped, "deepseek_v2": _latent}.get(kind)
    if attention is None:
        raise ValueError(f"model_type={kind!r}: expected qwen2, qwen3_moe or deepseek_v2")
    yield "model.embed_tokens.weight", (config["vocab_size"], hidden)
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}"
        yield from ((f"{at}.self_attn.{name}", size) for name, size in attention(config))
        for norm in ("input_layernorm", "post_attention_layernorm"):
            yield f"{at}.{norm}.weight", (hidden,)
        if _is_dense(config, layer):
            yield from _mlp(f"{at}.mlp", hidden, config["intermediate_size"])
        else:
            yield from _experts(f"{at}.mlp", config)
    yield "model.norm.weight", (hidden,)
    if not config["tie_word_embeddings"]:
        yield "lm_head.weight", (config["vocab_size"], hidden)


def count_parameters(config: Mapping[str, Any]) -> int:
    """Elements of all tensors of `config_tensors`, added up one by one.

    Args:
        config: as `config_tensors`.

    Raises: as `config_tensors`.
    """
    return sum(math.prod(size) for _, size in config_tensors(config))


def _is_dense(config: Mapping[str, Any], layer: int) -> bool:
    if config["model_type"] == "qwen3_moe":
        return layer in config["mlp_only_layers"] or (layer + 1) % config["decoder_sparse_step"] != 0
    if config["model_type"] == "deepseek_v2":
        return layer < config["first_k_dense_replace"] or layer % config["moe_layer_freq"] != 0
    return True


def _grouped(config: Mapping[str, Any]) -> Iterator[Tensor]:
    hidden, width = config["hidden_size"], config["head_dim"]
    heads = {"q": config["num_attention_heads"], "k": config["num_key_value_heads"], "v": config["num_key_value_heads"]}
    for name, count in heads.items():
        yield f"{name}_proj.weight", (count * width, hidden)
        if config["model_type"] == "qwen2":  # its class has these biases, whatever the configuration says
            yield f"{name}_proj.bias", (count * width,)
    yield "o_proj.weight", (hidden, heads["q"] * width)
    if config["model_type"] == "qwen3_moe":
        yield "q_norm.weight", (width,)
        yield "k_norm.weight", (width,)


def _latent(config: Mapping[str, Any]) -> Iterator[Tensor]:
    hidden, heads, rank = config["hidden_size"], config["num_attention_heads"], config["kv_lora_rank"]
    nope, rope, value = config["qk_nope_head_dim"], config["qk_rope_head_dim"], config["v_head_dim"]
    if config["q_lora_rank"] is None:
        yield "q_proj.weight", (heads * (nope + rope), hidden)
    else:
        yield "q_a_proj.weight", (config["q_lora_rank"], hidden)
        yield "q_a_layernorm.weight", (config["q_lora_rank"],)
        yield "q_b_proj.weight", (heads * (nope + rope), config["q_lora_rank"])
    yield "kv_a_proj_with_mqa.weight", (rank + rope, hidden)
    yield "kv_a_layernorm.weight", (rank,)
    yield "kv_b_proj.weight", (heads * (nope + value), rank)
    yield "o_proj.weight", (hidden, heads * value)


def _mlp(at: str, hidden: int, width: int) -> Iterator[Tensor]:
    yield f"{at}.gate_proj.weight", (width, hidden)
    yield f"{at}.up_proj.weight", (width, hidden)
    yield f"{at}.down_proj.weight", (hidden, width)


def _experts(at: str, config: Mapping[str, Any]) -> Iterator[Tensor]:
    hidden, width = config["hidden_size"], config["moe_intermediate_size"]
    count = config["num_experts"] if config["model_type"] == "qwen3_moe" else config["n_routed_experts"]
    yield f"{at}.gate.weight", (count, hidden)
    for expert in range(count):
        yield from _mlp(f"{at}.experts.{expert}", hidden, width)
    if shared := config.get("n_shared_experts"):
        yield from _mlp(f"{at}.shared_experts", hidden, shared * width)

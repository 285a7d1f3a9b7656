"""Model folders made from shapes: a `config.json` that an engine starts from with dummy weights; nothing is downloaded.

In: a `ModelSpec` with an `architecture`. Out: a folder with `config.json`, for an engine that is told to skip the
tokenizer and to make its weights up (vLLM: `--skip-tokenizer-init --load-format dummy`).

    write_model_folder(load_model("tiny-qwen2"), Path("tiny"))      # tiny/config.json
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from labkit.models import ModelSpec

CLASS_OF = {"qwen2": "Qwen2ForCausalLM", "qwen3_moe": "Qwen3MoeForCausalLM", "deepseek_v2": "DeepseekV2ForCausalLM"}
"""Model type -> class of the model with its output layer, by Hugging Face's names."""


def write_model_folder(spec: ModelSpec, folder: Path) -> Path:
    """Write the `config.json` of a model with these shapes.

    Args:
        spec: a model of `data/models` whose `architecture` is one of `CLASS_OF`.
        folder: made if it is not there.

    Returns: the folder.
    Raises: ValueError naming the model and what is missing or not supported.
    Assumes: rotary positions without scaling; no tokenizer, so beginning and end of text are just two small ids.
    """
    config = json.dumps(model_config(spec), indent=1, sort_keys=True)  # before the folder: a refusal leaves nothing
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(config + "\n", encoding="utf-8")
    return folder


def model_config(spec: ModelSpec) -> dict[str, Any]:
    """The same configuration as a dictionary, keys by Hugging Face's names.

    Args:
        spec: as `write_model_folder`.

    Raises: as `write_model_folder`.
    """
    family = {"qwen2": _qwen2, "qwen3_moe": _qwen3_moe, "deepseek_v2": _deepseek_v2}.get(spec.architecture or "")
    if family is None:
        raise ValueError(
            f"{spec.name}: architecture={spec.architecture!r}: expected one of {', '.join(CLASS_OF)}; "
            "no model folder can be written for the others")
    return {
        "architectures": [CLASS_OF[str(spec.architecture)]], "model_type": spec.architecture,
        "hidden_size": spec.hidden, "intermediate_size": spec.intermediate, "num_hidden_layers": spec.num_layers,
        "num_attention_heads": spec.num_heads, "num_key_value_heads": spec.num_kv_heads,
        "vocab_size": spec.vocab_size, "tie_word_embeddings": spec.tied_embeddings, "torch_dtype": spec.dtype,
        "max_position_embeddings": _need(spec, "max_positions"), "rope_theta": _need(spec, "rope_theta"),
        "rms_norm_eps": _need(spec, "norm_eps"), "hidden_act": "silu", "initializer_range": 0.02,
        "bos_token_id": 0, "eos_token_id": 1, **family(spec),
    }


def _qwen2(spec: ModelSpec) -> dict[str, Any]:
    _fixed(spec, qkv_bias=True, qk_norm=False, num_experts=None, kv_lora_rank=None, layer_pattern=None)
    return {"head_dim": spec.head_dim, "use_sliding_window": False}


def _qwen3_moe(spec: ModelSpec) -> dict[str, Any]:
    _fixed(spec, qkv_bias=False, qk_norm=True, num_shared_experts=None, kv_lora_rank=None, layer_pattern=None)
    return {
        "head_dim": spec.head_dim, "attention_bias": False, "use_sliding_window": False,
        "num_experts": _need(spec, "num_experts"), "num_experts_per_tok": _need(spec, "num_experts_per_token"),
        "moe_intermediate_size": _need(spec, "moe_intermediate"), "norm_topk_prob": _need(spec, "norm_topk_prob"),
        "mlp_only_layers": list(range(_need(spec, "first_dense_layers"))), "decoder_sparse_step": 1,
    }


def _deepseek_v2(spec: ModelSpec) -> dict[str, Any]:
    _fixed(spec, qkv_bias=False, qk_norm=False, layer_pattern=None)
    nope, rope = _need(spec, "qk_nope_head_dim"), _need(spec, "qk_rope_head_dim")
    if nope + rope != spec.head_dim:
        raise ValueError(f"{spec.name}: head_dim={spec.head_dim}: expected qk_nope_head_dim + qk_rope_head_dim "
                         f"= {nope + rope}")
    return {
        "attention_bias": False, "q_lora_rank": spec.q_lora_rank, "kv_lora_rank": _need(spec, "kv_lora_rank"),
        "qk_nope_head_dim": nope, "qk_rope_head_dim": rope, "v_head_dim": _need(spec, "v_head_dim"),
        "n_routed_experts": _need(spec, "num_experts"), "num_experts_per_tok": _need(spec, "num_experts_per_token"),
        "moe_intermediate_size": _need(spec, "moe_intermediate"), "n_shared_experts": _need(spec, "num_shared_experts"),
        "first_k_dense_replace": _need(spec, "first_dense_layers"), "moe_layer_freq": 1,
        "norm_topk_prob": _need(spec, "norm_topk_prob"), "scoring_func": "softmax", "topk_method": "greedy",
        "n_group": 1, "topk_group": 1, "routed_scaling_factor": 1.0,
    }


def _need(spec: ModelSpec, field: str) -> Any:
    value = getattr(spec, field)
    if value is None:
        raise ValueError(f"{spec.name}: {field} is not recorded in data/models/{spec.name}.yaml: expected a value, "
                         f"a {spec.architecture} configuration needs it")
    return value


def _fixed(spec: ModelSpec, **expected: Any) -> None:
    """What the class of this model type always has: a spec that says otherwise would start as another model."""
    for field, value in expected.items():
        if getattr(spec, field) != value:
            raise ValueError(f"{spec.name}: {field}={getattr(spec, field)!r}: expected {value!r} in a "
                             f"{spec.architecture} model")

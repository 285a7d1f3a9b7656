"""Model folders: the keys that an engine reads, against published configurations written out by hand."""

import json
from dataclasses import replace

import pytest

from labkit.engine.model_folder import CLASS_OF, model_config, write_model_folder
from labkit.models import list_models, load_model

# read off the config.json of each model on the Hugging Face Hub
PUBLISHED = {
    "qwen2.5-7b": {
        "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 3584, "intermediate_size": 18944,
        "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4, "vocab_size": 152064,
        "max_position_embeddings": 131072, "rope_theta": 1000000.0, "rms_norm_eps": 1e-06,
        "tie_word_embeddings": False, "use_sliding_window": False, "hidden_act": "silu", "torch_dtype": "bfloat16",
    },
    "qwen3-30b-a3b": {
        "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": 2048,
        "intermediate_size": 6144, "num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4,
        "head_dim": 128, "vocab_size": 151936, "max_position_embeddings": 40960, "rope_theta": 1000000.0,
        "rms_norm_eps": 1e-06, "tie_word_embeddings": False, "attention_bias": False, "num_experts": 128,
        "num_experts_per_tok": 8, "moe_intermediate_size": 768, "norm_topk_prob": True, "decoder_sparse_step": 1,
        "mlp_only_layers": [], "torch_dtype": "bfloat16",
    },
    "deepseek-v2-lite": {
        "architectures": ["DeepseekV2ForCausalLM"], "model_type": "deepseek_v2", "hidden_size": 2048,
        "intermediate_size": 10944, "num_hidden_layers": 27, "num_attention_heads": 16, "num_key_value_heads": 16,
        "vocab_size": 102400, "max_position_embeddings": 163840, "rope_theta": 10000, "rms_norm_eps": 1e-06,
        "tie_word_embeddings": False, "q_lora_rank": None, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64, "v_head_dim": 128, "n_routed_experts": 64, "n_shared_experts": 2,
        "num_experts_per_tok": 6, "moe_intermediate_size": 1408, "first_k_dense_replace": 1, "moe_layer_freq": 1,
        "norm_topk_prob": False, "scoring_func": "softmax", "topk_method": "greedy", "n_group": 1, "topk_group": 1,
        "routed_scaling_factor": 1.0, "torch_dtype": "bfloat16",
    },
}
TINY = {"tiny-qwen2": "qwen2", "tiny-qwen3-moe": "qwen3_moe", "tiny-deepseek-v2": "deepseek_v2"}


@pytest.mark.parametrize("name", PUBLISHED)
def test_config_is_the_published_one(name, tmp_path):
    folder = write_model_folder(load_model(name), tmp_path / "a" / "b")
    assert [path.name for path in folder.iterdir()] == ["config.json"] and folder == tmp_path / "a" / "b"
    written = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    assert {key: written.get(key, "missing") for key in PUBLISHED[name]} == PUBLISHED[name]


@pytest.mark.parametrize("name", TINY)
def test_a_tiny_model_has_the_keys_of_its_big_one(name):
    big = next(model for model, keys in PUBLISHED.items() if keys["model_type"] == TINY[name])
    tiny = model_config(load_model(name))
    assert tiny.keys() == model_config(load_model(big)).keys() and tiny["model_type"] == TINY[name]


def test_the_family_is_data_not_a_name(tmp_path):
    renamed = replace(load_model("tiny-qwen2"), name="deepseek-mixtral")
    assert model_config(renamed) == model_config(load_model("tiny-qwen2"))


@pytest.mark.parametrize("name", [name for name in list_models() if load_model(name).architecture not in CLASS_OF])
def test_other_models_are_refused_in_one_line(name, tmp_path):
    with pytest.raises(ValueError, match=rf"^{name}: architecture=None: expected one of qwen2, qwen3_moe") as error:
        write_model_folder(load_model(name), tmp_path / "x")
    assert "\n" not in str(error.value) and not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("tiny-qwen2", {"qkv_bias": False}, "tiny-qwen2: qkv_bias=False: expected True in a qwen2 model"),
        ("tiny-qwen2", {"num_experts": 8}, "num_experts=8: expected None"),
        ("tiny-qwen2", {"layer_pattern": "sf"}, "layer_pattern='sf': expected None"),
        ("tiny-qwen2", {"rope_theta": None}, "rope_theta is not recorded in data/models/tiny-qwen2.yaml"),
        ("tiny-qwen3-moe", {"norm_topk_prob": None}, "norm_topk_prob is not recorded"),
        ("tiny-qwen3-moe", {"num_shared_experts": 1}, "num_shared_experts=1: expected None"),
        ("tiny-deepseek-v2", {"head_dim": 128}, "head_dim=128: expected qk_nope_head_dim"),
        ("tiny-deepseek-v2", {"first_dense_layers": None}, "first_dense_layers is not recorded"),
    ],
)
def test_a_shape_that_the_class_cannot_have_is_refused(name, change, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        write_model_folder(replace(load_model(name), **change), tmp_path / "x")
    assert not (tmp_path / "x").exists()

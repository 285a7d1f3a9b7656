"""Parameters and one step of a decoder: published totals, tensor by tensor, and hand numbers."""

from dataclasses import replace

import pytest

from labkit.calc import decode_step, decoder, moe_experts_read
from labkit.calc.decoder import DecoderShape, active_parameters, parameter_groups
from labkit.engine.model_folder import model_config
from labkit.engine.model_tensors import config_tensors, count_parameters
from labkit.models import list_models, load_model

KNOWN = [name for name in list_models() if load_model(name).architecture]
# tiny: elements of the modules that transformers 5.19 makes from our folders; big: of the published checkpoints
TOTAL = {"tiny-qwen2": 427136, "tiny-qwen3-moe": 1942272, "tiny-deepseek-v2": 2305664, "qwen2.5-7b": 7_615_616_512,
         "qwen3-30b-a3b": 30_532_122_624, "deepseek-v2-lite": 15_706_484_224}


def shape_of(name):
    return DecoderShape(**load_model(name).decoder_shape())


@pytest.mark.parametrize("name", KNOWN)
def test_closed_form_tensor_list_and_published_count_agree(name):
    assert sum(parameter_groups(shape_of(name)).values()) == TOTAL[name]
    assert count_parameters(model_config(load_model(name))) == TOTAL[name]


def test_a_query_latent_is_counted():
    """DeepSeek-V2's way, on a tiny model: the same two ways, one through q_a, its norm and q_b."""
    spec = replace(load_model("tiny-deepseek-v2"), q_lora_rank=48)
    assert sum(parameter_groups(DecoderShape(**spec.decoder_shape())).values()) == count_parameters(model_config(spec))


def test_tensors_have_the_names_of_a_checkpoint():
    names = dict(config_tensors(model_config(load_model("tiny-deepseek-v2"))))
    assert names["model.layers.0.mlp.gate_proj.weight"] == (256, 128)  # the first layer is dense
    assert names["model.layers.1.mlp.experts.15.down_proj.weight"] == (128, 64)
    assert names["model.layers.1.mlp.shared_experts.up_proj.weight"] == (64, 128)
    assert names["model.layers.1.self_attn.kv_b_proj.weight"] == (4 * 256, 512)
    tied = dict(config_tensors(model_config(load_model("tiny-qwen2"))))
    assert "lm_head.weight" not in tied and tied["model.layers.0.self_attn.k_proj.bias"] == (64,)
    with pytest.raises(ValueError, match="model_type='gpt2'"):
        list(config_tensors({"model_type": "gpt2", "hidden_size": 1}))


@pytest.mark.parametrize(
    ("name", "with_embedding", "billions"),
    [("qwen3-30b-a3b", True, 3.3), ("deepseek-v2-lite", False, 2.4), ("qwen2.5-7b", True, 7.6)],
)
def test_active_parameters_of_the_model_cards(name, with_embedding, billions):
    """3.3B counts the embedding's table, 2.4B does not; both cards cut off after one digit."""
    assert active_parameters(shape_of(name), with_embedding=with_embedding) // 10**8 / 10 == billions


def test_dense_step_by_hand():
    """Qwen2.5-7B: all but the embedding is read, 2 FLOP a parameter, and 57,344 bytes a cached token."""
    parts = decode_step.decode_parts(shape_of("qwen2.5-7b"), batch=8, context_tokens=1000)
    table = 152064 * 3584
    weights = sum(part["bytes"] for name, part in parts.items() if name != "kv_cache")
    assert weights == 2 * (7_615_616_512 - table)
    assert parts["kv_cache"]["bytes"] == 8 * 1000 * 57344
    assert parts["kv_cache"]["flop"] == 8 * 1000 * 28 * 28 * 128 * 4
    assert parts["routed_experts"] == {"bytes": 0, "flop": 0}
    floor = decode_step.step_floor(parts, bytes_per_s=4.3e12, flop_per_s=8e14)
    assert floor["time_s"] == pytest.approx((weights + 8e3 * 57344) / 4.3e12) and floor["memory_share"] == 1


def test_a_tied_head_is_read_although_it_is_no_parameter_of_its_own():
    shape = shape_of("tiny-qwen2")
    parts = decode_step.decode_parts(shape, batch=1, context_tokens=0)
    assert parts["head"]["bytes"] == 2 * (1024 * 128 + 128) and parameter_groups(shape)["head"] == 0
    assert sum(part["bytes"] for part in parts.values()) == 2 * 427136


def test_experts_are_read_as_far_as_they_are_touched():
    """Qwen3-30B-A3B: one expert of one layer is 3 x 2048 x 768 parameters; 48 layers."""
    shape, one = shape_of("qwen3-30b-a3b"), 2 * 3 * 2048 * 768 * 48
    for batch, touched in ((1, 8), (8, 51.62), (32, 111.77)):
        part = decode_step.decode_parts(shape, batch=batch, context_tokens=0)["routed_experts"]
        assert part["bytes"] == pytest.approx(one * touched, rel=1e-4)
        assert part["flop"] == pytest.approx(batch * 8 * one)
    assert decode_step.decode_parts(shape, batch=32, context_tokens=0, experts_read=8)["routed_experts"][
        "bytes"] == pytest.approx(8 * one)
    with pytest.raises(ValueError, match="experts_read=129"):
        decode_step.decode_parts(shape, batch=1, context_tokens=0, experts_read=129)


def test_latent_cache_and_absorbed_products():
    shape = shape_of("deepseek-v2-lite")
    part = decode_step.decode_parts(shape, batch=4, context_tokens=500)["kv_cache"]
    assert part["bytes"] == 4 * 500 * 31104
    assert part["flop"] == 4 * 500 * 27 * 16 * 2 * ((512 + 64) + 512)
    grown = decode_step.prefill_parts(shape, num_tokens=500)["kv_cache"]
    assert grown["flop"] == 27 * 16 * (500 * 501 // 2) * 2 * (192 + 128) and grown["bytes"] == 500 * 31104


def test_prefill_is_quadratic_in_attention_and_linear_elsewhere():
    shape = shape_of("qwen2.5-7b")
    short, long = (decode_step.prefill_parts(shape, num_tokens=n) for n in (1024, 4096))
    assert long["dense_mlp"]["flop"] == 4 * short["dense_mlp"]["flop"]
    assert long["dense_mlp"]["bytes"] == short["dense_mlp"]["bytes"]
    assert long["kv_cache"]["flop"] / short["kv_cache"]["flop"] == 4096 * 4097 / (1024 * 1025)
    assert long["head"]["flop"] == short["head"]["flop"] == 2 * 152064 * 3584
    assert decode_step.step_floor(long, bytes_per_s=4.3e12, flop_per_s=8e14)["memory_share"] < 0.05


def test_each_part_takes_the_longer_of_its_two_times():
    parts = {"a": {"bytes": 100.0, "flop": 1.0}, "b": {"bytes": 1.0, "flop": 50.0}}
    found = decode_step.step_floor(parts, bytes_per_s=10, flop_per_s=5)
    assert found["by_part_s"] == {"a": 10, "b": 10} and found["time_s"] == 20 and found["memory_share"] == 0.5


@pytest.mark.parametrize(("tokens", "top_k", "experts"), [(1, 8, 128), (8, 8, 128), (32, 6, 64), (5, 3, 3), (0, 2, 9)])
def test_expected_experts_three_ways(tokens, top_k, experts):
    """Closed form, distribution by a Markov chain, and drawing (400 draws; spread of the mean under 0.3)."""
    closed = moe_experts_read.expected_experts(num_tokens=tokens, top_k=top_k, num_experts=experts)
    chance = moe_experts_read.experts_distribution(num_tokens=tokens, top_k=top_k, num_experts=experts)
    assert sum(chance) == pytest.approx(1) and len(chance) == experts + 1
    assert sum(n * p for n, p in enumerate(chance)) == pytest.approx(closed)
    assert moe_experts_read.sampled_experts(num_tokens=tokens, top_k=top_k, num_experts=experts) == pytest.approx(
        closed, abs=0.9)


def test_two_tokens_by_hand():
    """Two of four: the second token has 0, 1 or 2 new ones in 1, 4 and 1 of 6 ways."""
    chance = moe_experts_read.experts_distribution(num_tokens=2, top_k=2, num_experts=4)
    assert chance == pytest.approx([0, 0, 1 / 6, 4 / 6, 1 / 6])


@pytest.mark.parametrize(
    ("change", "message"),
    [({"hidden": 0}, "hidden=0"), ({"kv_lora_rank": 8}, "expected all or none"), ({"num_experts": 4}, "all or none"),
     ({"qkv_bias": 1}, "qkv_bias=1"), ({"first_dense_layers": 3}, "first_dense_layers=3: expected at most 2"),
     ({"tied_embeddings": None}, "tied_embeddings=None")],
)
def test_an_impossible_shape_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        replace(shape_of("tiny-qwen2"), **change)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda s: decode_step.decode_parts(s, batch=0, context_tokens=1), "batch=0"),
        (lambda s: decode_step.decode_parts(s, batch=1, context_tokens=-1), "context_tokens=-1"),
        (lambda s: decode_step.prefill_parts(s, num_tokens=0), "num_tokens=0"),
        (lambda s: decode_step.prefill_parts(s, num_tokens=1, element_bytes=0), "element_bytes=0"),
        (lambda s: moe_experts_read.expected_experts(num_tokens=1, top_k=3, num_experts=2), "top_k=3"),
        (lambda s: moe_experts_read.experts_distribution(num_tokens=10**6, top_k=1, num_experts=2), "num_tokens"),
        (lambda s: moe_experts_read.sampled_experts(num_tokens=1, top_k=1, num_experts=2, num_trials=0), "num_trials"),
    ],
)
def test_bad_input_names_the_argument(call, message):
    with pytest.raises(ValueError, match=message):
        call(shape_of("tiny-qwen2"))


def test_shapes_for_formulas_only_say_what_is_missing():
    with pytest.raises(ValueError, match=r"llama-3\.1-8b: architecture, qkv_bias and qk_norm"):
        load_model("llama-3.1-8b").decoder_shape()
    assert decoder.parameter_groups(shape_of("qwen3-30b-a3b"))["dense_mlp"] == 0

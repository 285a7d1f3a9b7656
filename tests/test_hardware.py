"""Profiles and shapes as data: complete, sourced, and equal to what clocks, buses and parameter counts give."""

import re
from datetime import date

import pytest
import yaml

from labkit import hardware, models
from labkit.calc import ddp, tinygpt
from labkit.hardware import UNITS, list_profiles, load_profile, match_profile

GPUS = [name for name in list_profiles() if name != "generic_cpu"]

# Second source for the peaks: FLOP per clock and SM of the architecture, and the boost clock in GHz (tensor, other).
# fp32 counts 2 per core; dense tensor rates are those of the tensor cores of one SM.
ARCHITECTURE = {
    "v100_pcie_32gb": (1.380, 1.380, {"fp64": 64, "fp32": 128, "fp16": 1024}),
    "v100_sxm2_32gb": (1.530, 1.530, {"fp64": 64, "fp32": 128, "fp16": 1024}),
    "a100_sxm_40gb": (1.410, 1.410, {"fp64": 64, "fp64_tensor": 128, "fp32": 128, "tf32": 1024, "bf16": 2048}),
    "a100_sxm_80gb": (1.410, 1.410, {"fp64": 64, "fp64_tensor": 128, "fp32": 128, "fp16": 2048, "int8": 4096}),
    "h100_sxm": (1.830, 1.980, {"fp64": 128, "fp32": 256, "tf32": 2048, "bf16": 4096, "fp8": 8192, "int8": 8192}),
    "h100_pcie": (1.620, 1.755, {"fp64": 128, "fp32": 256, "tf32": 2048, "fp16": 4096, "fp8": 8192}),
    "h200": (1.830, 1.980, {"fp64": 128, "fp32": 256, "tf32": 2048, "fp16": 4096, "bf16": 4096, "fp8": 8192}),
    "b200": (1.860, 1.980, {"fp64": 128, "fp32": 256, "tf32": 4096, "bf16": 8192, "fp8": 16384, "fp4": 32768}),
    "l4": (2.040, 2.040, {"fp32": 256, "tf32": 512, "bf16": 1024, "fp8": 2048, "int8": 2048}),
    "rtx4090": (2.520, 2.520, {"fp32": 256, "tf32": 256, "bf16": 512, "fp8": 1024, "int8": 2048}),
    "rtx5090": (2.407, 2.407, {"fp32": 256, "tf32": 256, "bf16": 512, "fp8": 1024, "int8": 2048, "fp4": 4096}),
    "mi300x": (2.100, 2.100, {"fp64": 128, "fp64_tensor": 256, "fp32": 256, "tf32": 1024, "bf16": 2048, "fp8": 4096}),
}
OTHER_CLOCK = ("fp64", "fp32")

# Second source for the bandwidth: bus width in bits, bits per second and pin.
MEMORY = {
    "v100_pcie_32gb": (4096, 1.754e9), "v100_sxm2_32gb": (4096, 1.754e9), "a100_sxm_40gb": (5120, 2.43e9),
    "a100_sxm_80gb": (5120, 3.186e9), "h100_sxm": (5120, 5.238e9), "h100_pcie": (5120, 3.186e9),
    "h200": (6144, 6.402e9), "b200": (7680, 7.992e9), "l4": (192, 12.5e9), "rtx4090": (384, 21e9),
    "rtx5090": (512, 28e9), "mi300x": (8192, 5.2e9),
}


@pytest.mark.parametrize("name", list_profiles())
def test_profile_is_complete_and_sourced(name):
    profile = load_profile(name)
    assert list(profile.fields) == list(UNITS)
    for key, field in {**profile.fields, **profile.measured}.items():
        date.fromisoformat(field.accessed)
        if field.value is not None:
            assert field.value > 0, key
            assert field.source and field.source != "not known", key
        assert field.unit == UNITS.get(key, field.unit)
        if key.startswith("peak_"):
            assert field.sparsity in ("none", "2:4") and f"peak_{field.dtype}_" in key


@pytest.mark.parametrize("name", GPUS)
def test_no_source_is_listed_without_being_used(name):
    raw = yaml.safe_load((hardware.HARDWARE / f"{name}.yaml").read_text())
    entries = [*raw["fields"].values(), *(raw.get("measured") or {}).values()]
    assert {entry["source"] for entry in entries if entry} == set(raw["sources"])


@pytest.mark.parametrize("name", GPUS)
def test_peaks_follow_from_clock_and_width(name):
    """Within 3 %: datasheets round, to two digits where the B200 prints 2.2 PFLOPS of sparse tf32."""
    tensor_ghz, other_ghz, rates = ARCHITECTURE[name]
    profile = load_profile(name)
    for dtype, flop_per_clock in rates.items():
        clock = (other_ghz if dtype in OTHER_CLOCK else tensor_ghz) * 1e9
        expected = profile.value("num_sms") * flop_per_clock * clock
        assert profile.peak_flop_per_s(dtype) == pytest.approx(expected, rel=0.03), dtype


@pytest.mark.parametrize("name", GPUS)
def test_bandwidth_follows_from_the_bus(name):
    """Within 3 %: the H200's datasheet rounds 4.92 down to 4.8."""
    bits, rate = MEMORY[name]
    assert load_profile(name).value("memory_bandwidth_bytes_per_s") == pytest.approx(bits / 8 * rate, rel=0.03)


@pytest.mark.parametrize("name", GPUS)
def test_sparse_is_twice_dense(name):
    profile = load_profile(name)
    for dtype in hardware.SPARSE_DTYPES:
        dense, sparse = profile.peak_flop_per_s(dtype), profile.peak_flop_per_s(dtype, sparse=True)
        if sparse is not None:
            assert sparse == pytest.approx(2 * dense, rel=2e-3)


@pytest.mark.parametrize("name", GPUS)
def test_capacity_is_binary(name):
    """The driver shows more bytes than the decimal reading of the advertised size, and no more than the binary one."""
    profile = load_profile(name)
    advertised = round(profile.value("memory_bytes") / 2**30)
    assert profile.value("memory_bytes") == advertised * 2**30
    reported = profile.value("memory_reported_bytes")
    if reported is not None:
        assert advertised * 1e9 < reported <= advertised * 2**30


@pytest.mark.parametrize("name", GPUS)
def test_threads_are_warps_times_lanes(name):
    profile = load_profile(name)
    lanes = 64 if profile.vendor == "AMD" else 32
    assert profile.value("max_threads_per_sm") == lanes * profile.value("max_warps_per_sm")
    assert profile.value("shared_memory_per_block_bytes") <= profile.value("shared_memory_per_sm_bytes")


def test_measured_ceilings_are_below_the_published_ones():
    h200 = load_profile("h200")
    assert h200.value("copy_bytes_per_s") < h200.value("memory_bandwidth_bytes_per_s")
    assert h200.value("bf16_matmul_flop_per_s") < h200.peak_flop_per_s("bf16")
    assert h200.value("peer_copy_bytes_per_s") < h200.value("link_one_way_bytes_per_s")
    for field in h200.measured.values():
        assert field.low is None or field.low <= field.value


def test_numbers_that_are_often_mixed_up():
    assert load_profile("h100_sxm").peak_flop_per_s("bf16") == 989.4e12
    assert load_profile("h100_sxm").peak_flop_per_s("bf16", sparse=True) == 1978.9e12
    assert load_profile("mi300x").peak_flop_per_s("bf16") == 1307.4e12
    assert load_profile("v100_pcie_32gb").peak_flop_per_s("fp16") == 112e12
    assert load_profile("v100_pcie_32gb").peak_flop_per_s("bf16") is None
    assert all(field.value is None for field in load_profile("generic_cpu").fields.values())


def test_matching_is_exact():
    for name in list_profiles():
        for product in load_profile(name).product_names:
            assert match_profile(product) == name
    for unknown in ("", "NVIDIA H200 NVL", "NVIDIA H100 NVL", "NVIDIA H20", "NVIDIA GH200 480GB", "nvidia h200",
                    "NVIDIA A100 80GB PCIe", "Tesla V100-SXM2-16GB", "NVIDIA GeForce RTX 4090 D", "NVIDIA L40S"):
        assert match_profile(unknown) is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda raw: raw["fields"].pop("tdp_w"), "tdp_w"),
        (lambda raw: raw["fields"].update(tdp_watts=None), "tdp_watts"),
        (lambda raw: raw["fields"]["tdp_w"].update(value="7e2"), r"value '7e2'.*9\.89e\+14"),
        (lambda raw: raw["fields"]["tdp_w"].update(value=float("nan")), "value nan"),
        (lambda raw: raw["fields"]["tdp_w"].update(source="memory"), "source 'memory'"),
        (lambda raw: raw["fields"].update(tdp_w=700), "tdp_w=700"),
        (lambda raw: raw["measured"]["copy_bytes_per_s"].pop("unit"), "copy_bytes_per_s: unit missing"),
        (lambda raw: raw.pop("accessed"), "accessed"),
    ],
)
def test_malformed_profile_is_refused(change, message, tmp_path, monkeypatch):
    raw = yaml.safe_load((hardware.HARDWARE / "h200.yaml").read_text())
    change(raw)
    (tmp_path / "broken.yaml").write_text(yaml.safe_dump(raw))
    monkeypatch.setattr(hardware, "HARDWARE", tmp_path)
    with pytest.raises(ValueError, match=message):
        load_profile.__wrapped__("broken")


def test_unknown_names_suggest_the_close_one():
    with pytest.raises(ValueError, match="did you mean 'h200'"):
        load_profile("h20")
    with pytest.raises(ValueError, match="did you mean 'memory_bytes'"):
        load_profile("h200").value("memory_byte")
    with pytest.raises(ValueError, match="peak_fp3_dense"):
        load_profile("h200").peak_flop_per_s("fp3")
    with pytest.raises(ValueError, match=r"did you mean 'qwen2\.5-7b'"):
        models.load_model("qwen2-7b")


def count_parameters(model, *, attention_bias=False, qk_norm=False):
    """Parameters of a Llama-like model from its shape, written without our calculators."""
    m, d = model, model.hidden
    heads = (m.num_heads + 2 * m.num_kv_heads) * m.head_dim
    attention = d * heads + m.num_heads * m.head_dim * d + attention_bias * heads + qk_norm * 2 * m.head_dim
    mlp = 3 * d * m.intermediate
    if m.num_experts:
        mlp = m.num_experts * 3 * d * m.moe_intermediate + d * m.num_experts
    return m.vocab_size * d * (1 if m.tied_embeddings else 2) + m.num_layers * (attention + mlp + 2 * d) + d


@pytest.mark.parametrize(
    ("name", "options", "published"),
    [
        ("llama-3.1-8b", {}, 8_030_261_248),
        ("llama-3.1-70b", {}, 70_553_706_496),
        ("qwen2.5-7b", {"attention_bias": True}, 7_615_616_512),
        ("qwen3-30b-a3b", {"qk_norm": True}, 30_532_122_624),
    ],
)
def test_shapes_give_the_published_parameter_counts(name, options, published):
    """Published: element counts of the safetensors files on the model's page."""
    assert count_parameters(models.load_model(name), **options) == published


def test_the_report_model_is_the_one_of_the_calculator():
    spec = models.load_model("tinygpt-report")
    parameters = tinygpt.tinygpt_parameters(
        num_layers=spec.num_layers, hidden=spec.hidden, vocab_size=spec.vocab_size, num_positions=spec.num_positions,
        tied=spec.tied_embeddings)
    assert ddp.num_parameters(parameters=parameters) == 109_942_272


@pytest.mark.parametrize("name", models.list_models())
def test_model_is_sourced_and_plain(name):
    spec = models.load_model(name)
    date.fromisoformat(spec.accessed)
    assert re.search(r"\w", spec.source) and spec.to_json()["num_layers"] == spec.num_layers
    assert spec.is_mla == name.removeprefix("tiny-").startswith(("deepseek", "kimi"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_kv_heads": 3}, "num_heads=28"),
        ({"kv_lora_rank": 512}, "qk_rope_head_dim"),
        ({"experts": 4}, "unknown field experts"),
        ({"hidden": None}, "hidden"),
    ],
)
def test_malformed_model_is_refused(change, message, tmp_path, monkeypatch):
    raw = yaml.safe_load((models.MODELS / "qwen2.5-7b.yaml").read_text()) | change
    (tmp_path / "broken.yaml").write_text(yaml.safe_dump({k: v for k, v in raw.items() if v is not None}))
    monkeypatch.setattr(models, "MODELS", tmp_path)
    with pytest.raises(ValueError, match=message):
        models.load_model.__wrapped__("broken")

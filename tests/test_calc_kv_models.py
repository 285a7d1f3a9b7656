"""KV cache of published models: bytes per token from their configurations, published totals, windows and hybrids."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.calc import kv_cache
from labkit.models import list_models, load_model

GIB = 2**30

# model: (layers with attention, what a layer caches for a token in elements), read off config.json by hand
PUBLISHED = {
    "llama-2-7b": (32, 2 * 32 * 128), "llama-2-70b": (80, 2 * 8 * 128), "llama-3.1-8b": (32, 2 * 8 * 128),
    "llama-3.1-70b": (80, 2 * 8 * 128), "llama-3.1-405b": (126, 2 * 8 * 128), "qwen2.5-7b": (28, 2 * 4 * 128),
    "qwen2.5-72b": (80, 2 * 8 * 128), "qwen3-8b": (36, 2 * 8 * 128), "qwen3-32b": (64, 2 * 8 * 128),
    "qwen3-30b-a3b": (48, 2 * 4 * 128), "qwen3-235b-a22b": (94, 2 * 4 * 128), "mistral-7b-v0.1": (32, 2 * 8 * 128),
    "mixtral-8x7b": (32, 2 * 8 * 128), "gemma-2-9b": (42, 2 * 8 * 256), "gemma-2-27b": (46, 2 * 16 * 128),
    "gemma-3-12b": (48, 2 * 8 * 256), "gemma-3-27b": (62, 2 * 16 * 128), "phi-3-mini-4k": (32, 2 * 32 * 96),
    "phi-4": (40, 2 * 10 * 128), "gpt-oss-20b": (24, 2 * 8 * 64), "gpt-oss-120b": (36, 2 * 8 * 64),
    "deepseek-v2-lite": (27, 512 + 64), "deepseek-v2": (60, 512 + 64), "deepseek-v3": (61, 512 + 64),
    "kimi-k2": (61, 512 + 64), "glm-4.5": (92, 2 * 8 * 128), "glm-4.5-air": (46, 2 * 8 * 128),
    "falcon-7b": (32, 2 * 1 * 64), "opt-6.7b": (32, 2 * 32 * 128), "gpt-3-175b": (96, 2 * 96 * 128),
    "jamba-v0.1": (4, 2 * 8 * 128), "qwen3-next-80b-a3b": (12, 2 * 2 * 256),
}
SLIDING = {"mistral-7b-v0.1": (0, 32), "phi-3-mini-4k": (0, 32), "gemma-2-9b": (21, 21), "gemma-2-27b": (23, 23),
           "gemma-3-12b": (8, 40), "gemma-3-27b": (10, 52), "gpt-oss-20b": (12, 12), "gpt-oss-120b": (18, 18)}


@pytest.mark.parametrize("name", PUBLISHED)
def test_bytes_per_token_of_published_configurations(name):
    layers, elements = PUBLISHED[name]
    assert kv_cache.kv_bytes_per_token(**load_model(name).kv_cache_shape()) == 2 * layers * elements


def test_every_model_of_others_is_in_the_table():
    assert set(PUBLISHED) == {name for name in list_models() if not name.startswith("tiny")}


@pytest.mark.parametrize(
    ("name", "gib"), [("llama-2-7b", 128), ("mistral-7b-v0.1", 32), ("mixtral-8x7b", 32), ("jamba-v0.1", 4)]
)
def test_totals_that_the_jamba_paper_prints(name, gib):
    """Lieber et al., "Jamba", 2024, table 1: KV cache of 256K tokens in 16 bits, the window of Mistral not used."""
    assert 256 * 1024 * kv_cache.kv_bytes_per_token(**load_model(name).kv_cache_shape()) == gib * GIB


@pytest.mark.parametrize(
    ("name", "count"),
    [("llama-2-7b", 6738415616), ("mistral-7b-v0.1", 7241732096), ("phi-3-mini-4k", 3821079552),
     ("llama-3.1-405b", 405853388800), ("phi-4", 14659507200), ("mixtral-8x7b", 46702792704)],
)
def test_widths_give_the_published_parameter_counts(name, count):
    """Two vocabulary tables, Q and O, K and V, a gated MLP or experts with their router, two norms a layer and one."""
    m = load_model(name)
    h, mlp = m.hidden, 3 * m.hidden * m.intermediate
    if m.num_experts is not None:
        mlp = m.num_experts * 3 * h * m.moe_intermediate + h * m.num_experts
    attention = 2 * h * m.head_dim * (m.num_heads + m.num_kv_heads)
    assert 2 * m.vocab_size * h + m.num_layers * (attention + mlp + 2 * h) + h == count


@pytest.mark.parametrize("name", SLIDING)
def test_layers_that_slide(name):
    shape = load_model(name).kv_layers_shape()
    assert (shape["full_layers"], shape["window_layers"]) == SLIDING[name]


def test_hybrids_cache_in_few_layers():
    jamba, qwen = (load_model(name).layer_kinds() for name in ("jamba-v0.1", "qwen3-next-80b-a3b"))
    assert [i for i, kind in enumerate(jamba) if kind == "f"] == [4, 12, 20, 28]
    assert [i for i, kind in enumerate(qwen) if kind == "f"] == list(range(3, 48, 4))


@pytest.mark.parametrize("name", list_models())
@pytest.mark.parametrize("tokens", [0, 1, 127, 129, 1500, 5000])
def test_sequence_by_walking_its_layers(name, tokens):
    """Slow version: every layer keeps the tokens that a next query would see."""
    model, total = load_model(name), 0
    one = 2 * (model.kv_lora_rank + model.qk_rope_head_dim if model.is_mla else 2 * model.num_kv_heads * model.head_dim)
    for kind in model.layer_kinds():
        seen = {"f": tokens, "s": min(tokens, model.sliding_window or 0), "l": 0}[kind]
        total += seen * one
    assert kv_cache.sequence_bytes(num_tokens=tokens, **model.kv_layers_shape()) == total


def test_hand_window():
    """gpt-oss-20b: 2 KiB a layer and token; 12 layers keep all, 12 keep 128: at 8,192 tokens 195 MiB instead of 384."""
    shape = load_model("gpt-oss-20b").kv_layers_shape()
    assert kv_cache.sequence_bytes(num_tokens=8192, **shape) == 12 * (8192 + 128) * 2048
    assert kv_cache.sequences_that_fit(cache_bytes=10 * 12 * (8192 + 128) * 2048 - 1, num_tokens=8192, **shape) == 9


@given(a=st.integers(0, 10**6), b=st.integers(0, 10**6), full=st.integers(0, 40), slide=st.integers(0, 40),
       window=st.integers(1, 5000))
def test_growth(a, b, full, slide, window):
    """Never shrinks; inside the window as if all layers were full; far beyond it only full layers grow."""
    shape = dict(full_layers=full, window_layers=slide, window_tokens=window, num_kv_heads=2, head_dim=8)
    low, high = (kv_cache.sequence_bytes(num_tokens=n, **shape) for n in sorted((a, b)))
    assert low <= high
    inside = kv_cache.sequence_bytes(num_tokens=window, **shape)
    assert inside == window * (full + slide) * 64
    assert kv_cache.sequence_bytes(num_tokens=window + 1, **shape) - inside == full * 64


@given(state=st.integers(0, 10**9), tokens=st.integers(1, 10**5))
def test_a_state_is_constant(state, tokens):
    shape = dict(full_layers=1, num_kv_heads=1, head_dim=1)
    without = kv_cache.sequence_bytes(num_tokens=tokens, **shape)
    assert kv_cache.sequence_bytes(num_tokens=tokens, state_bytes=state, **shape) == without + state


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: kv_cache.sequence_bytes(num_tokens=-1, full_layers=1, num_kv_heads=1, head_dim=1), "num_tokens=-1"),
        (lambda: kv_cache.sequence_bytes(num_tokens=1, full_layers=-1, num_kv_heads=1, head_dim=1), "full_layers=-1"),
        (lambda: kv_cache.sequence_bytes(num_tokens=1, full_layers=1, window_layers=1, num_kv_heads=1, head_dim=1),
         "window_tokens=None"),
        (lambda: kv_cache.sequence_bytes(num_tokens=1, full_layers=1), "num_kv_heads=None"),
        (lambda: kv_cache.sequences_that_fit(
            cache_bytes=1, num_tokens=1, full_layers=0, num_kv_heads=1, head_dim=1), "full_layers=0: expected"),
        (lambda: kv_cache.sequences_that_fit(
            cache_bytes=-1, num_tokens=1, full_layers=1, num_kv_heads=1, head_dim=1), "cache_bytes=-1"),
    ],
)
def test_bad_input_names_the_argument(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize(
    ("change", "message"),
    [("layer_pattern: fx\n", "layer_pattern='fx'"), ("layer_pattern: sf\n", "sliding_window=None"),
     ("sliding_window: 128\n", "sliding_window=128")],
)
def test_an_inconsistent_pattern_is_refused(change, message, tmp_path, monkeypatch):
    from labkit import models

    text = (models.MODELS / "phi-4.yaml").read_text(encoding="utf-8")
    (tmp_path / "odd.yaml").write_text(text + change, encoding="utf-8")
    monkeypatch.setattr(models, "MODELS", tmp_path)
    with pytest.raises(ValueError, match=message):
        models.load_model.__wrapped__("odd")

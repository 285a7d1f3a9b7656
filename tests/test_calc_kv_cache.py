"""KV cache: capacities seen on real engines, the interview table, and blocks filled one token at a time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.calc import kv_cache
from labkit.models import list_models, load_model

GIB = 2**30


@pytest.mark.parametrize(
    ("model", "bytes_per_token", "cache_gib", "tokens"),
    [
        ("qwen2.5-7b", 57344, 1, 18720),
        ("qwen2.5-7b", 57344, 4, 74896),
        ("qwen3-30b-a3b", 98304, 4, 43680),
        ("deepseek-v2-lite", 31104, 4, 138080),
    ],
)
def test_capacities_that_vllm_printed(model, bytes_per_token, cache_gib, tokens):
    """Printed by vLLM 0.26.0 on one H200 under --kv-cache-memory-bytes, block 16 (and by the report on a V100)."""
    found = kv_cache.kv_bytes_per_token(**load_model(model).kv_cache_shape())
    assert found == bytes_per_token
    assert kv_cache.capacity_tokens(cache_bytes=cache_gib * GIB, kv_bytes_per_token=found) == tokens


def test_printed_concurrency():
    """Report section 8: 18,720 tokens at length 2,048 is 9.14x, 225,200 tokens 109.96x."""
    assert kv_cache.max_concurrency(num_blocks=18720 // 16, max_tokens=2048) == pytest.approx(9.14, abs=0.005)
    assert kv_cache.max_concurrency(num_blocks=225200 // 16, max_tokens=2048) == pytest.approx(109.96, abs=0.005)


def test_interview_table():
    """Question 13, one layer, 128 heads of 192 + 128, 16 bits: MHA, GQA-8, MQA, MLA."""
    rows = [
        kv_cache.kv_bytes_per_token(num_layers=1, num_kv_heads=heads, head_dim=192, v_head_dim=128)
        for heads in (128, 8, 1)
    ]
    mla = kv_cache.kv_bytes_per_token(num_layers=1, kv_lora_rank=512, qk_rope_head_dim=64)
    assert (*rows, mla) == (81920, 5120, 640, 1152)
    assert rows[0] / mla == pytest.approx(71.1111, abs=5e-5)


def test_null_block_of_the_report():
    """Erratum E08: 8 sequences of 1,536 tokens hold 768 of 1,169 usable blocks, 65.70 %."""
    blocks = kv_cache.capacity_blocks(cache_bytes=GIB, kv_bytes_per_token=57344)
    usable = kv_cache.usable_blocks(num_blocks=blocks)
    assert (blocks, usable) == (1170, 1169)
    assert 100 * 8 * kv_cache.blocks_for(num_tokens=1536) / usable == pytest.approx(65.70, abs=0.005)


@pytest.mark.parametrize("name", list_models())
def test_bytes_by_walking_the_cache(name):
    """Slow version: add up every cached vector of one token."""
    model = load_model(name)
    total = 0
    for kind in model.layer_kinds():
        if kind == "l":  # linear attention and state space: nothing that grows with a token
            continue
        if model.is_mla:
            total += 2 * model.kv_lora_rank + 2 * model.qk_rope_head_dim
        else:
            total += sum(2 * model.head_dim + 2 * model.head_dim for _ in range(model.num_kv_heads))
    assert kv_cache.kv_bytes_per_token(**model.kv_cache_shape()) == total


@given(cache=st.integers(0, 10**6), per_token=st.integers(1, 400), block=st.integers(1, 40))
def test_capacity_by_filling_blocks(cache, per_token, block):
    """Slow version: allocate whole blocks until the memory is used up."""
    left, blocks = cache, 0
    while left >= per_token * block and blocks < 3000:
        left -= per_token * block
        blocks += 1
    if blocks < 3000:
        assert kv_cache.capacity_blocks(cache_bytes=cache, kv_bytes_per_token=per_token, block_tokens=block) == blocks
    tokens = kv_cache.capacity_tokens(cache_bytes=cache, kv_bytes_per_token=per_token, block_tokens=block)
    assert tokens % block == 0 and tokens * per_token <= cache < (tokens + block) * per_token


@given(tokens=st.integers(0, 5000), block=st.integers(1, 64))
def test_blocks_of_a_sequence(tokens, block):
    found = kv_cache.blocks_for(num_tokens=tokens, block_tokens=block)
    assert found == len({position // block for position in range(tokens)})


@given(layers=st.integers(1, 100), heads=st.integers(1, 64), dim=st.integers(1, 256))
def test_identities(layers, heads, dim):
    """fp8 halves; MQA is one head of MHA; layers add up."""
    one = lambda **kw: kv_cache.kv_bytes_per_token(head_dim=dim, **kw)  # noqa: E731
    full = one(num_layers=layers, num_kv_heads=heads)
    assert one(num_layers=layers, num_kv_heads=heads, bytes_per_element=1) * 2 == full
    assert one(num_layers=layers, num_kv_heads=1) * heads == full
    assert one(num_layers=1, num_kv_heads=heads) * layers == full


def test_tensor_parallel_split():
    split = [kv_cache.kv_heads_per_rank(num_kv_heads=8, tensor_parallel=tp) for tp in (1, 2, 8, 16)]
    assert split == [8, 4, 1, 1]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: kv_cache.kv_bytes_per_token(num_layers=1), "num_kv_heads=None"),
        (lambda: kv_cache.kv_bytes_per_token(num_layers=1, num_kv_heads=1), "head_dim=None"),
        (lambda: kv_cache.kv_bytes_per_token(num_layers=1, kv_lora_rank=512), "qk_rope_head_dim=None"),
        (lambda: kv_cache.kv_bytes_per_token(num_layers=1, num_kv_heads=1, kv_lora_rank=1, qk_rope_head_dim=1),
         "MLA caches no heads"),
        (lambda: kv_cache.kv_bytes_per_token(num_layers=0, num_kv_heads=1, head_dim=1), "num_layers=0"),
        (lambda: kv_cache.capacity_blocks(cache_bytes=-1, kv_bytes_per_token=1), "cache_bytes=-1"),
        (lambda: kv_cache.capacity_blocks(cache_bytes=1, kv_bytes_per_token=0), "kv_bytes_per_token=0"),
        (lambda: kv_cache.usable_blocks(num_blocks=0), "num_blocks=0"),
        (lambda: kv_cache.max_concurrency(num_blocks=1, max_tokens=0), "max_tokens=0"),
        (lambda: kv_cache.kv_heads_per_rank(num_kv_heads=8, tensor_parallel=3), "tensor_parallel=3"),
    ],
)
def test_bad_input_names_the_argument(call, message):
    with pytest.raises(ValueError, match=message):
        call()

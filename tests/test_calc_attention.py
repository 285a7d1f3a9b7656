"""Attention layouts: the interview's table, products counted one by one, limits."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.calc import attention

SHAPE = dict(num_heads=128, head_dim=192, v_head_dim=128)
LATENT = dict(num_heads=128, kv_lora_rank=512, qk_rope_head_dim=64)


@pytest.mark.parametrize(
    ("kv_heads", "size", "intensity", "smaller"), [(128, 81920, 1, 1), (8, 5120, 16, 16), (1, 640, 128, 128)]
)
def test_printed_table(kv_heads, size, intensity, smaller):
    """Interview question 13: MHA, GQA-8 and MQA; the work is 81,920 FLOP in all three."""
    found = attention.decode_token(num_kv_heads=kv_heads, **SHAPE)
    assert (found["bytes"], found["flop"], found["intensity_flop_per_byte"]) == (size, 81920, intensity)
    assert found["times_smaller_than_mha"] == smaller


def test_printed_latent_row():
    """Interview question 13: 1,152 B, 278,528 FLOP (3.4x), 241.78 FLOP/B; 483.6 for two queries, 120.9 for rho 2."""
    found = attention.mla_decode_token(**LATENT)
    assert (found["bytes"], found["flop"], found["flop"] / 81920) == (1152, 278528, 3.4)
    assert found["intensity_flop_per_byte"] == pytest.approx(241.78, abs=0.005)
    assert found["intensity_flop_per_byte"] < 989.5 / 3.35
    two = attention.mla_decode_token(num_queries=2, **LATENT)["intensity_flop_per_byte"]
    half = attention.mla_decode_token(num_reads=2, **LATENT)["intensity_flop_per_byte"]
    assert (two, half) == (pytest.approx(483.6, abs=0.05), pytest.approx(120.9, abs=0.05))


def test_printed_prefill():
    """Interview question 2: 34,359,738,368 FLOP; 512 against 8 MiB; 2 MiB of state against 4 GiB for 32 heads."""
    assert attention.attention_flop(num_queries=8192, num_keys=8192, head_dim=128) == 34359738368
    one = attention.prefill_traffic(seq_tokens=8192, head_dim=128)
    assert (one["scores_bytes"], one["operand_bytes"], one["ratio"]) == (512 * 2**20, 8 * 2**20, 64)
    heads = attention.prefill_traffic(seq_tokens=8192, head_dim=128, num_heads=32)
    assert (heads["state_bytes"], heads["probabilities_bytes"]) == (2 * 2**20, 4 * 2**30)


def test_printed_shares():
    assert [100 * attention.qkv_projection_share(num_heads=128, num_kv_heads=h) for h in (1, 8, 128)] == pytest.approx(
        [33.9, 37.5, 100], abs=0.05)
    assert attention.softmax_scale(head_dim=128) == pytest.approx(0.0883883476, abs=5e-11)


def test_printed_history_reads():
    """Interview questions 3 and 5: 30.5 GiB for GQA; 109.8 ms over a host link, 2.1 ms from HBM for MLA."""
    gqa = attention.decode_step_floor_s(num_tokens=100000, kv_bytes_per_token=327680, bytes_per_s=3.35e12)
    assert gqa["bytes"] / 2**30 == pytest.approx(30.5, abs=0.05)
    mla = [attention.decode_step_floor_s(num_tokens=100000, kv_bytes_per_token=70272, bytes_per_s=b)["time_s"]
           for b in (64e9, 3.35e12)]
    assert [1e3 * t for t in mla] == pytest.approx([109.8, 2.1], abs=0.05)


@pytest.mark.parametrize(("queries", "keys", "width", "v_width"), [(1, 1, 1, 1), (2, 3, 4, 5), (3, 1, 2, 6)])
def test_flop_by_counting(queries, keys, width, v_width):
    """Slow version: a multiply and an add for every scalar product."""
    flop = 0
    for _ in itertools.product(range(queries), range(keys), range(width)):
        flop += 2
    for _ in itertools.product(range(queries), range(v_width), range(keys)):
        flop += 2
    assert attention.attention_flop(num_queries=queries, num_keys=keys, head_dim=width, v_head_dim=v_width) == flop


@given(kv=st.integers(1, 32), group=st.integers(1, 16), width=st.integers(1, 256), size=st.sampled_from([0.5, 1, 2, 4]))
def test_intensity_is_two_over_e_times_the_group(kv, group, width, size):
    found = attention.decode_token(num_heads=kv * group, num_kv_heads=kv, head_dim=width, bytes_per_element=size)
    assert found["intensity_flop_per_byte"] == pytest.approx(2 / size * group)


@given(heads=st.integers(1, 256), rank=st.integers(1, 1024), rope=st.integers(0, 256), reads=st.floats(1, 8))
def test_latent_limits(heads, rank, rope, reads):
    """Reading the latent rho times divides the intensity; without a rotary part it is 2 H for 16 bits."""
    shape = dict(num_heads=max(8, heads), kv_lora_rank=rank, qk_rope_head_dim=rope)
    once = attention.mla_decode_token(**shape)["intensity_flop_per_byte"]
    again = attention.mla_decode_token(num_reads=reads, **shape)["intensity_flop_per_byte"]
    assert again * reads == pytest.approx(once)
    bare = attention.mla_decode_token(num_heads=heads, kv_lora_rank=rank, qk_rope_head_dim=0)
    assert bare["intensity_flop_per_byte"] == pytest.approx(2 * heads)


@given(seq=st.integers(1, 5000), width=st.integers(1, 256))
def test_stored_scores_cost_n_over_d(seq, width):
    found = attention.prefill_traffic(seq_tokens=seq, head_dim=width)
    assert found["scores_bytes"] == pytest.approx(found["operand_bytes"] * found["ratio"])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: attention.attention_flop(num_queries=-1, num_keys=1, head_dim=1), "num_queries=-1"),
        (lambda: attention.prefill_traffic(seq_tokens=0, head_dim=1), "seq_tokens=0"),
        (lambda: attention.decode_token(num_heads=6, num_kv_heads=4, head_dim=1), "num_heads=6"),
        (lambda: attention.mla_decode_token(num_heads=4, kv_lora_rank=1, qk_rope_head_dim=0, num_reads=5),
         "num_reads=5"),
        (lambda: attention.mla_decode_token(num_heads=4, kv_lora_rank=0, qk_rope_head_dim=0), "kv_lora_rank=0"),
        (lambda: attention.qkv_projection_share(num_heads=3, num_kv_heads=2), "num_heads=3"),
        (lambda: attention.softmax_scale(head_dim=0), "head_dim=0"),
        (lambda: attention.decode_step_floor_s(num_tokens=1, kv_bytes_per_token=0, bytes_per_s=1),
         "kv_bytes_per_token=0"),
    ],
)
def test_bad_input_names_the_argument(call, message):
    with pytest.raises(ValueError, match=message):
        call()

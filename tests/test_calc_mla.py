"""Latent attention in prefill: printed sizes, the workspace put back, absorption."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.calc import kv_quantisation, mla

GIB = 2**30
heads = st.integers(1, 256)


def test_printed_expansion():
    """Interview question 4: 65,536 B; 8 GiB for 128K; 56.9 times the cache; 80 KiB and 10 GiB with rotary keys."""
    assert mla.expanded_bytes_per_token(num_heads=128) == 65536
    assert mla.peak_expanded_bytes(history_tokens=131072, num_heads=128) == 8 * GIB
    assert mla.expansion_ratio(num_heads=128) == pytest.approx(56.9, abs=0.05)
    assert mla.expanded_bytes_per_token(num_heads=128, broadcast_rope_dim=64) == 80 * 1024
    assert mla.peak_expanded_bytes(history_tokens=131072, num_heads=128, broadcast_rope_dim=64) == 10 * GIB


def test_printed_segments():
    """Interview question 4: a shorter query chunk changes nothing, segments of 8K leave 0.5 GiB; 1 GiB holds these."""
    peak = [mla.peak_expanded_bytes(history_tokens=131072, num_heads=128, query_tokens=q, segment_tokens=s) / GIB
            for q, s in ((8192, None), (512, None), (8192, 8192))]
    assert peak == [8, 8, 0.5]
    assert [mla.workspace_tokens(workspace_bytes=GIB, num_heads=h) for h in (16, 128)] == [131072, 16384]


def test_printed_records():
    """Interview questions 4, 5 and 13: 656 B, 1.756 and 1.94 times; 71.11, 4.44; 82.2 and 93.3 %."""
    flash = dict(width=512, num_scales=4, unquantised_width=64)
    assert kv_quantisation.record_bytes(**flash) == 656
    assert kv_quantisation.saving_ratio(**flash) == pytest.approx(1.756, abs=5e-4)
    assert kv_quantisation.saving_ratio(width=128) == pytest.approx(1.94, abs=0.005)
    latent = {"num_layers": 1, "kv_lora_rank": 512, "qk_rope_head_dim": 64}
    ratio = [kv_quantisation.cache_comparison(
        baseline={"num_layers": 1, "num_kv_heads": h, "head_dim": 192, "v_head_dim": 128}, other=latent)["ratio"]
        for h in (128, 8)]
    assert ratio == pytest.approx([71.11, 4.44], abs=0.005)
    saved = [100 * kv_quantisation.cache_comparison(
        baseline={"num_layers": 95, "num_kv_heads": 8, "head_dim": 128},
        other={**latent, "num_layers": 60, "bytes_per_element": b})["saved_share"] for b in (2, 0.75)]
    assert saved == pytest.approx([82.2, 93.3], abs=0.05)


@given(space=st.integers(0, 10**10), num_heads=heads, rope=st.integers(0, 128), buffers=st.integers(1, 3))
def test_the_workspace_holds_its_segment_and_not_one_token_more(space, num_heads, rope, buffers):
    shape = dict(num_heads=num_heads, broadcast_rope_dim=rope)
    tokens = mla.workspace_tokens(workspace_bytes=space, num_buffers=buffers, **shape)
    token = mla.expanded_bytes_per_token(**shape)
    assert buffers * tokens * token <= space < buffers * (tokens + 1) * token


@given(history=st.integers(0, 10**6), a=st.integers(1, 10**6), b=st.integers(1, 10**6))
def test_longer_segments_never_need_less(history, a, b):
    peaks = [mla.peak_expanded_bytes(history_tokens=history, num_heads=2, segment_tokens=s) for s in sorted((a, b))]
    assert peaks[0] <= peaks[1] <= mla.peak_expanded_bytes(history_tokens=history, num_heads=2)


@given(head=st.integers(1, 16), rank=st.integers(1, 16), tokens=st.integers(1, 20), seed=st.integers(0, 100))
def test_absorbing_changes_only_rounding(head, rank, tokens, seed):
    """Sums of up to 16 x 16 x 20 products of size about 1 in double precision."""
    assert mla.absorption_error(head_dim=head, kv_lora_rank=rank, num_tokens=tokens, seed=seed) < 1e-9


@given(width=st.integers(1, 1024), scales=st.integers(0, 8), kept=st.integers(0, 128))
def test_saving_stays_below_the_ratio_of_types(width, scales, kept):
    ratio = kv_quantisation.saving_ratio(width=width, num_scales=scales, unquantised_width=kept)
    assert ratio <= 2 and (ratio == 2) == (scales == 0 and kept == 0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: mla.expanded_bytes_per_token(num_heads=0), "num_heads=0"),
        (lambda: mla.expansion_ratio(num_heads=1, kv_lora_rank=0), "kv_lora_rank=0"),
        (lambda: mla.peak_expanded_bytes(history_tokens=-1, num_heads=1), "history_tokens=-1"),
        (lambda: mla.peak_expanded_bytes(history_tokens=1, num_heads=1, segment_tokens=0), "segment_tokens=0"),
        (lambda: mla.workspace_tokens(workspace_bytes=-1, num_heads=1), "workspace_bytes=-1"),
        (lambda: mla.absorption_error(head_dim=65), "head_dim=65: expected at most 64"),
        (lambda: kv_quantisation.record_bytes(width=0), "width=0"),
        (lambda: kv_quantisation.saving_ratio(width=1, bytes_low=2), "bytes_low=2"),
        (lambda: kv_quantisation.cache_comparison(baseline={"num_layers": 1}, other={}), "baseline="),
        (lambda: kv_quantisation.cache_comparison(
            baseline={"num_layers": 1, "num_kv_heads": 1, "head_dim": 1}, other={"layers": 1}), "other="),
    ],
)
def test_bad_input_names_the_argument(call, message):
    with pytest.raises(ValueError, match=message):
        call()

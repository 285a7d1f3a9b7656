"""Context parallelism: printed bytes, a ring played shard by shard, the crossover put back into the volumes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.calc import context_parallel as cp

MLA = dict(kv_width=576, q_width=128 * 192, o_width=128 * 128)
GQA = dict(kv_width=2048, q_width=8192, o_width=8192)
width = st.integers(1, 4096)


def test_printed_volumes():
    """Interview question 7: 66,060,288 bytes gathered or passed on 7 times; 50,331,648 for heads, not 100,663,296."""
    found = [cp.received_bytes(s, num_ranks=8, history_tokens=65536, kv_width=576) for s in ("gather_kv", "ring")]
    assert [x["bytes"] for x in found] == [66060288, 66060288] and found[1]["transfers"] == 7
    q = cp.gathered_q_bytes(query_tokens=8192, num_heads=64, head_dim=128, group_ranks=4, tensor_parallel=8)
    assert q == {"by_heads": 50331648, "token_shard_formula": 100663296}


def test_printed_crossovers():
    """Interview question 7: 1,843.2 and 16,384 query tokens at 128K; 64K and 582,542 history tokens for 8K queries."""
    queries = [cp.crossover_query_tokens(history_tokens=131072, **x) for x in (MLA, GQA)]
    assert queries == [pytest.approx(1843.2), 16384]
    history = [cp.crossover_history_tokens(query_tokens=8192, **x) for x in (GQA, MLA)]
    assert history == [65536, pytest.approx(582542, abs=0.5)]


def test_printed_shares():
    assert 100 * cp.lse_share(v_head_dim=128) == pytest.approx(1.6, abs=0.05)
    assert [cp.resident_shards(s, num_ranks=8) for s in ("gather_kv", "ring", "gather_q")] == [8, 2, 1]
    assert cp.resident_shards("gather_kv", num_ranks=8, segment_share=0.25) == 2
    assert [cp.causal_imbalance(x, num_ranks=8) for x in ("contiguous", "zigzag")] == [1.875, 1]
    ulysses = cp.ulysses_bytes(seq_tokens=131072, q_width=8192, kv_width=2048, num_ranks=8)
    ring = cp.received_bytes("ring", num_ranks=8, history_tokens=131072, kv_width=2048)["bytes"]
    assert (ulysses / 2**20, ring / 2**20) == (504, 448)


@pytest.mark.parametrize("p", [1, 2, 3, 8])
def test_ring_played_shard_by_shard(p):
    """Slow version: pass shards on until every rank has seen all; erratum E01: p - 1 transfers, not p."""
    seen, holds, transfers, received = [{r} for r in range(p)], list(range(p)), 0, 0
    while any(len(x) < p for x in seen):
        holds = [holds[r - 1] for r in range(p)]
        transfers, received = transfers + 1, received + 24 // p * 10 * 2
        for r in range(p):
            seen[r].add(holds[r])
    assert cp.ring_transfers(num_ranks=p) == transfers
    found = cp.received_bytes("ring", num_ranks=p, history_tokens=24, kv_width=10)
    assert (found["bytes"], found["transfers"]) == (pytest.approx(received), transfers)


@pytest.mark.parametrize("p", [1, 2, 5])
def test_imbalance_by_counting_pairs(p):
    """Slow version: 2p parts of 40 tokens, query-key pairs under the mask; the diagonal costs half a token a part."""
    size = 40
    part = [sum(i + 1 for i in range(k * size, (k + 1) * size)) for k in range(2 * p)]
    contiguous = [part[2 * r] + part[2 * r + 1] for r in range(p)]
    zigzag = [part[r] + part[2 * p - 1 - r] for r in range(p)]
    for layout, work in (("contiguous", contiguous), ("zigzag", zigzag)):
        assert cp.causal_imbalance(layout, num_ranks=p) == pytest.approx(max(work) * p / sum(work), rel=0.02)


@given(history=st.integers(1, 10**6), kv=width, q=width, o=width, p=st.integers(2, 64))
def test_volumes_meet_at_the_crossover(history, kv, q, o, p):
    """Identity: one query token below it gathering Q is cheaper, one above it gathering KV (log-sum-exp left out)."""
    edge = cp.crossover_query_tokens(history_tokens=history, kv_width=kv, q_width=q, o_width=o)
    gather_kv = cp.received_bytes("gather_kv", num_ranks=p, history_tokens=history, kv_width=kv)["bytes"]
    for tokens, cheaper in ((int(edge), True), (int(edge) + 1, False)):
        gather_q = cp.received_bytes("gather_q", num_ranks=p, query_tokens=tokens, q_width=q, o_width=o)["bytes"]
        assert gather_q == pytest.approx(gather_kv, rel=1e-9) or (gather_q < gather_kv) == cheaper
    back = cp.crossover_history_tokens(query_tokens=1, kv_width=kv, q_width=q, o_width=o)
    assert back * edge == pytest.approx(history)


@given(p=st.integers(1, 128), heads=st.integers(1, 64))
def test_limits(p, heads):
    """One rank moves nothing; the merge is part of the whole; Ulysses falls with p."""
    found = cp.received_bytes("gather_q", num_ranks=p, query_tokens=7, q_width=9, o_width=5, num_heads=heads)
    assert 0 <= found["merge_bytes"] <= found["bytes"] and (found["bytes"] == 0) == (p == 1)
    sizes = [cp.ulysses_bytes(seq_tokens=64, q_width=8, kv_width=4, num_ranks=n) for n in (2 + p, 3 + p)]
    assert sizes[1] < sizes[0]
    assert 1 <= cp.causal_imbalance("contiguous", num_ranks=p) < 2


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: cp.received_bytes("star", num_ranks=2), "scheme='star': expected one of gather_kv, gather_q, ring"),
        (lambda: cp.received_bytes("ring", num_ranks=0), "num_ranks=0"),
        (lambda: cp.received_bytes("ring", num_ranks=2, history_tokens=-1), "history_tokens=-1"),
        (lambda: cp.ring_transfers(num_ranks=0), "num_ranks=0"),
        (lambda: cp.crossover_query_tokens(history_tokens=1, kv_width=0, q_width=1, o_width=1), "kv_width=0"),
        (lambda: cp.crossover_history_tokens(query_tokens=1, kv_width=1, q_width=1, o_width=0), "o_width=0"),
        (lambda: cp.lse_share(v_head_dim=0), "v_head_dim=0"),
        (lambda: cp.resident_shards("ring", num_ranks=2, segment_share=1.5), "segment_share=1.5"),
        (lambda: cp.gathered_q_bytes(
            query_tokens=1, num_heads=8, head_dim=1, group_ranks=3, tensor_parallel=8), "group_ranks=3"),
        (lambda: cp.gathered_q_bytes(
            query_tokens=1, num_heads=6, head_dim=1, group_ranks=2, tensor_parallel=4), "num_heads=6"),
        (lambda: cp.causal_imbalance("spiral", num_ranks=2), "layout='spiral'"),
    ],
)
def test_bad_input_names_the_argument(call, message):
    with pytest.raises(ValueError, match=message):
        call()

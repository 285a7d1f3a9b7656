"""Mixture of experts: printed figures, routing counted token by token, limits and identities."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.calc import moe

counts = st.integers(1, 300)


def test_printed_rows_and_tokens():
    """Interview questions 1 and 9: E = 256, k = 8."""
    assert moe.rows_per_expert(num_tokens=512, top_k=8, num_experts=256) == 16
    assert moe.tokens_for_rows(rows=333, top_k=8, num_experts=256) == 10656
    local = [moe.tokens_for_rows(rows=333, top_k=8, num_experts=256, num_ranks=p) for p in (32, 64)]
    assert local == [333, 166.5]


def test_printed_group_sizes():
    """Interview question 9: targets of 16, 64 and 333 rows at 16 local tokens; the last one cannot exist."""
    found = [moe.ranks_for_rows(rows=r, local_tokens=16, top_k=8, num_experts=256) for r in (16, 64, 333)]
    assert [x["ranks"] for x in found] == [32, 128, 666]
    assert [x["reachable"] for x in found] == [True, True, False]
    assert found[2]["most_rows"] == 128 and found[2]["local_tokens_needed"] == 42


def test_replicas_do_not_lift_the_ceiling():
    """Erratum E02: with as many copies as ranks, rows stop at k x local tokens."""
    rows = [moe.rows_per_instance(num_ranks=p, local_tokens=16, top_k=8, num_experts=256) for p in (32, 256, 666, 5000)]
    assert rows == [16, 128, 128, 128]


def test_printed_layouts():
    assert moe.expert_copies(num_experts=256, num_ranks=32, redundant_per_rank=1) == {"per_rank": 9, "copies": 288}
    assert moe.expert_copies(num_experts=288, num_ranks=144)["per_rank"] == 2
    assert moe.layout_gpus(tensor_parallel=4, data_parallel=8) == {"gpus": 32, "nodes": 4}
    assert moe.layout_gpus(tensor_parallel=1, data_parallel=9)["nodes"] == 2


def test_mean_rows_by_routing_every_token():
    """Slow version: all choices of 2 out of 5 experts, once each; every expert gets equally many rows."""
    rows = [0] * 5
    choices = list(itertools.combinations(range(5), 2))
    for choice in choices:
        for expert in choice:
            rows[expert] += 1
    assert set(rows) == {moe.rows_per_expert(num_tokens=len(choices), top_k=2, num_experts=5)}


@given(rows=st.floats(0.5, 1e4), top_k=st.integers(1, 16), experts=st.integers(16, 512), ranks=counts)
def test_tokens_and_rows_are_inverse(rows, top_k, experts, ranks):
    tokens = moe.tokens_for_rows(rows=rows, top_k=top_k, num_experts=experts)
    assert top_k * tokens / experts == pytest.approx(rows)
    assert moe.tokens_for_rows(rows=rows, top_k=top_k, num_experts=experts, num_ranks=ranks) * ranks == pytest.approx(
        tokens)


@given(p=counts, q=counts, local=counts, top_k=st.integers(1, 8))
def test_more_ranks_never_mean_fewer_rows(p, q, local, top_k):
    rows = [moe.rows_per_instance(num_ranks=x, local_tokens=local, top_k=top_k, num_experts=64) for x in sorted((p, q))]
    assert rows[0] <= rows[1] <= top_k * local


@given(loads=st.lists(st.floats(0.01, 1e6), min_size=1, max_size=30))
def test_imbalance_limits(loads):
    ratio = moe.load_imbalance_ratio(loads=loads)
    assert 1 - 1e-9 <= ratio <= len(loads) * (1 + 1e-9)
    coupled = moe.coupled_step_s(times_s=loads)
    assert coupled["coupled_s"] / coupled["mean_s"] == pytest.approx(ratio)


def test_printed_hot_expert():
    """Interview question 9: about 28 and 151 rows; 200 trials leave a standard error near 0.2 and 0.6, taken as 3 %."""
    found = moe.hottest_load(num_tokens=512, top_k=8, num_experts=256, num_ranks=32)
    assert found["expert"] == pytest.approx(28, rel=0.03) and found["rank"] == pytest.approx(151, rel=0.03)


def test_printed_drops_and_limits():
    """Extra question 37: 9.77, 2.19 and 0.0 %; capacity 0 drops everything."""
    drop = [moe.dropped_share(num_tokens=512, top_k=8, num_experts=256, capacity_factor=c) for c in (0, 1, 1.25, 2)]
    assert drop[0] == pytest.approx(1)
    assert [100 * x for x in drop[1:]] == pytest.approx([9.77, 2.19, 0.0], abs=0.005)
    assert moe.dropped_share(num_tokens=7, top_k=3, num_experts=3, capacity_factor=0.5) == 0.5


def test_drops_by_enumeration():
    """Slow version: 3 tokens, an expert hit by each with chance 1/2, capacity 1.5 x 0.8 = 1.2 rows."""
    expected = sum(math.comb(3, n) / 8 * max(0, n - 1.2) for n in range(4)) / 1.5
    found = moe.dropped_share(num_tokens=3, top_k=1, num_experts=2, capacity_factor=0.8)
    assert found == pytest.approx(expected)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: moe.rows_per_expert(num_tokens=-1, top_k=1, num_experts=2), "num_tokens=-1"),
        (lambda: moe.rows_per_expert(num_tokens=1, top_k=3, num_experts=2), "top_k=3: expected at most num_experts=2"),
        (lambda: moe.rows_per_expert(num_tokens=1, top_k=1, num_experts=8, num_instances=7), "num_instances=7"),
        (lambda: moe.tokens_for_rows(rows=0, top_k=1, num_experts=2), "rows=0"),
        (lambda: moe.ranks_for_rows(rows=1, local_tokens=0, top_k=1, num_experts=2), "local_tokens=0"),
        (lambda: moe.layout_gpus(tensor_parallel=0, data_parallel=1), "tensor_parallel=0"),
        (lambda: moe.load_imbalance_ratio(loads=[0, 0]), "at least one above 0"),
        (lambda: moe.load_imbalance_ratio(loads=[1, -1]), r"loads\[1\]=-1"),
        (lambda: moe.coupled_step_s(times_s=[]), "times_s="),
        (lambda: moe.hottest_load(num_tokens=1, top_k=1, num_experts=6, num_ranks=4), "num_ranks=4"),
        (lambda: moe.dropped_share(num_tokens=1, top_k=1, num_experts=2, capacity_factor=-1), "capacity_factor=-1"),
    ],
)
def test_bad_input_names_the_argument(call, message):
    with pytest.raises(ValueError, match=message):
        call()

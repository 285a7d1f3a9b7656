"""Splits, bytes and floors of an expert-parallel step, against the report's numbers and a token-by-token count."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.calc.moe_routing import (
    capacity_outcome,
    expert_flop,
    fabric_bytes,
    received_rows,
    source_split,
    step_floor_s,
)
from labkit.experiments.moe_alltoall import question_example_mib


def test_report_splits():
    hot = source_split(num_tokens=4096, num_ranks=8, hot_share=0.75)
    assert hot == [3072, 147, 147, 146, 146, 146, 146, 146]
    assert received_rows(splits=[hot] * 8) == [24576, 1176, 1176, 1168, 1168, 1168, 1168, 1168]
    assert received_rows(splits=[source_split(num_tokens=4096, num_ranks=8)] * 8) == [4096] * 8


def test_question_11_comes_out_of_the_same_function():
    """16 x 8 x 7168 x 2 B x 31/32; times 32 ranks; both ways; with FP8 on the way out three quarters of that."""
    found = question_example_mib()
    assert found["rank_dispatch"] == pytest.approx(1.695, abs=5e-4)
    assert (found["group_dispatch"], found["group_total"]) == (54.25, 108.5)
    assert found["group_total_fp8_dispatch"] == pytest.approx(81.375)


@given(tokens=st.integers(0, 500), ranks=st.integers(1, 9), share=st.none() | st.floats(0, 1))
def test_a_split_loses_no_token_and_is_even(tokens, ranks, share):
    split = source_split(num_tokens=tokens, num_ranks=ranks, hot_share=share)
    assert sum(split) == tokens and len(split) == ranks and min(split) >= 0
    rest = split if share is None else split[1:]
    assert not rest or max(rest) - min(rest) <= 1
    if share is not None and ranks > 1:
        assert abs(split[0] - share * tokens) <= 0.5


@given(st.integers(1, 5).flatmap(lambda n: st.lists(
    st.lists(st.integers(0, 9), min_size=n, max_size=n), min_size=n, max_size=n)))
def test_bytes_row_by_row(splits):
    """Oracle: send every row on its own."""
    n = len(splits)
    sent, received = [0] * n, [0] * n
    for source in range(n):
        for to in range(n):
            for _ in range(splits[source][to]):
                if source != to:
                    sent[source] += 3
                    received[to] += 3
    found = fabric_bytes(splits=splits, row_bytes=3)
    assert (found["sent"], found["received"]) == (sent, received)
    assert found["fabric"] == sum(sent) == sum(received) and found["busiest"] == max(sent + received)


def test_skew_moves_bytes_to_one_port_and_adds_none():
    """All sources split alike, so what stays at home is one source's worth of tokens whatever the skew."""
    found = {share: fabric_bytes(splits=[source_split(num_tokens=4096, num_ranks=8, hot_share=share)] * 8, row_bytes=2)
             for share in (None, 0.5, 0.75, 1.0)}
    assert {each["fabric"] for each in found.values()} == {7 * 4096 * 2}
    assert found[None]["busiest"] == 3584 * 2 and found[1.0]["busiest"] == 7 * 4096 * 2


def test_floor_by_hand():
    """Hot rank: 24,576 rows of 4 x 1024 x 4096 FLOP; 7/8 of them come over the wire."""
    split = source_split(num_tokens=4096, num_ranks=8, hot_share=0.75)
    floor = step_floor_s(splits=[split] * 8, hidden=1024, ffn=4096, element_bytes=2, link_bytes_per_s=1e9,
                         flop_per_s=1e12)
    assert floor["expert"] == pytest.approx(24576 * 4 * 1024 * 4096 / 1e12)
    assert floor["dispatch"] == floor["combine"] == pytest.approx(7 * 3072 * 2048 / 1e9)
    assert floor["step"] == pytest.approx(floor["expert"] + 2 * floor["dispatch"])
    assert floor["expert_wait"][0] == 0 and floor["expert_wait"][1] == pytest.approx(
        (24576 - 1176) * 4 * 1024 * 4096 / 1e12)
    even = step_floor_s(splits=[[512] * 8] * 8, hidden=1024, ffn=4096, element_bytes=2, link_bytes_per_s=1e9,
                        flop_per_s=1e12)
    assert even["step"] == pytest.approx(floor["mean_rank_step"]) == pytest.approx(even["mean_rank_step"])


def test_capacity_row_by_row():
    loads = [24576, 1176, 1176, 1168, 1168, 1168, 1168, 1168]
    before = None
    for factor in (0.5, 1.0, 1.25, 2.0, 6.0):
        slots = -(-int(factor * 4096 * 8) // 8)
        dropped = sum(max(0, load - slots) for load in loads)
        padded = sum(max(0, slots - load) for load in loads)
        found = capacity_outcome(loads=loads, capacity_factor=factor)
        assert found["dropped_share"] == pytest.approx(dropped / 32768)
        assert found["padded_share"] == pytest.approx(padded / (8 * slots))
        if before:
            assert found["dropped_share"] <= before["dropped_share"] and found["max_rows"] >= before["max_rows"]
        before = found
    assert before["dropped_share"] == 0 and before["max_rows"] == 24576


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match=r"hot_share=1\.5"):
        source_split(num_tokens=4, num_ranks=2, hot_share=1.5)
    with pytest.raises(ValueError, match="as many destinations as sources"):
        received_rows(splits=[[1, 2]])
    with pytest.raises(ValueError, match=r"loads=.*at least one above 0"):
        capacity_outcome(loads=[0, 0], capacity_factor=1)
    assert expert_flop(rows=0, hidden=4, ffn=8) == 0

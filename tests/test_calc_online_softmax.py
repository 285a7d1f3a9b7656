"""Softmax in pieces: hand numbers, the plain formula as oracle, order does not matter."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.calc import online_softmax as soft

row = st.lists(st.tuples(st.floats(-30, 30), st.floats(-10, 10)), min_size=1, max_size=40)


def plain(scores, values):
    """The definition, without any shift: safe for scores up to 30."""
    weights = [math.exp(s) for s in scores]
    return sum(w * v for w, v in zip(weights, values)) / sum(weights), math.log(sum(weights))


def test_hand_numbers():
    """Weights 1 and 3: (1 x 8 + 3 x 4) / 4 = 5, lse = log 4. An average of the pieces would be 6."""
    found = soft.merge_lse(lses=[0.0, math.log(3)], outputs=[[8.0], [4.0]])
    assert found["output"] == pytest.approx([5.0]) and found["lse"] == pytest.approx(math.log(4))
    empty = {"max": None, "sum": 0.0, "output": []}
    state = soft.tile_state(scores=[2.0, 2.0], values=[[1.0], [3.0]])
    assert soft.merge_states(first=empty, second=state) == state == soft.merge_states(first=state, second=empty)
    assert state == {"max": 2.0, "sum": 2.0, "output": [4.0]}


@given(row=row, tile=st.integers(1, 41))
def test_tiles_give_the_plain_formula(row, tile):
    """Interview questions 2 and 4; rounding of about 40 exponentials of relative error 2^-52."""
    scores, values = zip(*row)
    output, lse = plain(scores, values)
    found = soft.tiled_attention_row(scores=scores, values=[[v] for v in values], tile_tokens=tile)
    assert found["output"][0] == pytest.approx(output, abs=1e-12 * (1 + max(map(abs, values))), rel=1e-12)
    assert found["lse"] == pytest.approx(lse, abs=1e-12)


@given(row=row, seed=st.randoms(use_true_random=False))
def test_pieces_merge_in_any_order(row, seed):
    scores, values = zip(*row)
    pieces = [soft.attention_row(scores=[s], values=[[v]]) for s, v in row]
    seed.shuffle(pieces)
    found = soft.merge_lse(lses=[p["lse"] for p in pieces], outputs=[p["output"] for p in pieces])
    assert found["output"][0] == pytest.approx(plain(scores, values)[0], abs=1e-11, rel=1e-11)


@given(row=row, shift=st.floats(-500, 500))
def test_a_common_shift_moves_only_the_lse(row, shift):
    scores, values = zip(*row)
    base = soft.attention_row(scores=scores, values=[[v] for v in values])
    moved = soft.attention_row(scores=[s + shift for s in scores], values=[[v] for v in values])
    assert moved["output"][0] == pytest.approx(base["output"][0], abs=1e-9)
    assert moved["lse"] - shift == pytest.approx(base["lse"], abs=1e-9)


def test_scores_far_out_do_not_overflow():
    found = soft.tiled_attention_row(scores=[1e4, 1e4 - 1, -1e4], values=[[1.0], [0.0], [9.0]], tile_tokens=1)
    assert found["output"][0] == pytest.approx(1 / (1 + math.exp(-1)))


def test_printed_demonstrations():
    """Interview questions 2, 4 and 7: exact to 1e-12 with weights, wrong by a lot without."""
    assert max(soft.tiling_error(num_keys=97, tile_tokens=t) for t in (1, 5, 16, 97)) < 1e-12
    assert soft.split_merge_error(num_keys=40, num_splits=4, interleaved=True) < 1e-12
    assert soft.split_merge_error(num_keys=64, num_splits=4, reverse=True) < 1e-12
    assert soft.split_merge_error(num_keys=64, num_splits=4, weighted=False) > 0.01
    exact = soft.attention_row(scores=[0.0, 4.0], values=[[1.0], [0.0]])["output"][0]
    assert abs(exact - 0.5) > 0.4


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: soft.attention_row(scores=[], values=[]), "scores="),
        (lambda: soft.attention_row(scores=[1.0], values=[]), "values: 0 rows: expected 1"),
        (lambda: soft.attention_row(scores=[1.0, math.inf], values=[[1], [2]]), r"scores\[1\]=inf"),
        (lambda: soft.attention_row(scores=[1.0, 2.0], values=[[1], [2, 3]]), "different lengths"),
        (lambda: soft.tiled_attention_row(scores=[1.0], values=[[1.0]], tile_tokens=0), "tile_tokens=0"),
        (lambda: soft.merge_states(first={}, second={}), "first="),
        (lambda: soft.merge_states(first={"max": 0.0, "sum": 1.0, "output": [1.0]},
                                   second={"max": 0.0, "sum": 1.0, "output": []}), "second: output of 0 numbers"),
        (lambda: soft.tiling_error(num_keys=10**6, tile_tokens=1), "num_keys=1000000"),
        (lambda: soft.split_merge_error(num_keys=3, num_splits=4), "num_splits=4"),
    ],
)
def test_bad_input_names_the_argument(call, message):
    with pytest.raises(ValueError, match=message):
        call()

"""Interval algebra against an oracle that looks at every tick."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from labkit.analyze.intervals import (
    covered_before,
    intersect,
    intersection_ns,
    pieces_outside,
    spans,
    subtract,
    total_ns,
    union,
)

HORIZON = 60
PIECES = st.lists(
    st.tuples(st.integers(-5, HORIZON), st.integers(-3, 15)).map(lambda p: (p[0], p[0] + p[1])), max_size=12
)


def ticks(pieces) -> set[int]:
    """Every tick that some half-open piece covers; a piece that ends before it begins covers nothing."""
    return {t for a, b in pieces for t in range(a, b)}


def test_hand_timeline():
    # comm 2..10, compute 0..4 and 8..12: overlap 2..4 and 8..10; exposed 4..8
    comm, compute = union([(2, 10)]), union([(0, 4), (8, 12)])
    assert intersection_ns(comm, compute) == 4
    assert subtract(comm, compute).tolist() == [[4, 8]]
    assert total_ns(compute) == 8


@given(PIECES)
def test_union_covers_the_same_ticks_and_is_disjoint(pieces):
    result = union(pieces)
    assert ticks(result.tolist()) == ticks(pieces)
    assert total_ns(result) == len(ticks(pieces))
    assert (result[1:, 0] > result[:-1, 1]).all()  # not even touching
    assert union(result).tolist() == result.tolist()


@given(PIECES, PIECES)
def test_two_sets_tick_by_tick(first, second):
    a, b = union(first), union(second)
    assert intersection_ns(a, b) == len(ticks(first) & ticks(second))
    assert ticks(intersect(a, b).tolist()) == ticks(first) & ticks(second)
    assert ticks(subtract(a, b).tolist()) == ticks(first) - ticks(second)
    both = union(np.concatenate([a, b]))
    assert total_ns(both) == total_ns(a) + total_ns(b) - intersection_ns(a, b)


@given(PIECES, st.lists(st.integers(-10, HORIZON + 20), max_size=8))
def test_covered_before_counts_ticks(pieces, times):
    covered = covered_before(union(pieces), times)
    assert covered.tolist() == [sum(t < time for t in ticks(pieces)) for time in times]


@given(PIECES, PIECES)
def test_pieces_outside_one_by_one(intervals, hidden):
    given_spans = np.array(intervals, dtype=np.int64).reshape(-1, 2)
    pieces, index = pieces_outside(given_spans, union(hidden))
    assert (pieces[:, 1] > pieces[:, 0]).all()
    for i, interval in enumerate(intervals):
        mine = pieces[index == i].tolist()
        assert ticks(mine) == ticks([interval]) - ticks(hidden)
        assert sum(b - a for a, b in mine) == len(ticks(mine))  # no tick twice


def test_nothing_in_nothing_out():
    empty = union([])
    some = union([(1, 5)])
    assert empty.shape == (0, 2)
    assert intersection_ns(empty, some) == intersection_ns(some, empty) == 0
    assert subtract(some, empty).tolist() == [[1, 5]]
    assert subtract(empty, some).shape == (0, 2)
    assert total_ns(empty) == 0


def test_epoch_nanoseconds_lose_nothing():
    start = 1_712_195_495_506_160_123
    result = union(spans([start, start + 1], [1, 1]))
    assert result.tolist() == [[start, start + 2]]
    assert total_ns(result) == 2

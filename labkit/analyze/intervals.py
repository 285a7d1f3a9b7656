"""Interval algebra on integer nanoseconds: unions and intersections, never sums of overlapping pieces.

An interval is half-open, [start, end): two that touch do not overlap. A set of intervals is an int64 array of shape
(n, 2). The functions that ask for a *union* want what `union` returns: sorted, disjoint, no empty piece.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Spans = NDArray[np.int64]


def spans(start_ns: ArrayLike, dur_ns: ArrayLike) -> Spans:
    """Intervals from starts and durations in ns; shape (n, 2).

    >>> spans([0, 5], [3, 2]).tolist()
    [[0, 3], [5, 7]]
    """
    start = np.asarray(start_ns, dtype=np.int64)
    return np.stack([start, start + np.asarray(dur_ns, dtype=np.int64)], axis=-1).reshape(-1, 2)


def union(intervals: ArrayLike) -> Spans:
    """Sorted, disjoint intervals covering exactly the same ns; empty ones vanish, touching ones merge.

    >>> union([(5, 9), (0, 3), (3, 4), (8, 12), (20, 20)]).tolist()
    [[0, 4], [5, 12]]
    """
    pieces = np.asarray(intervals, dtype=np.int64).reshape(-1, 2)
    pieces = pieces[pieces[:, 1] > pieces[:, 0]]
    if len(pieces) == 0:
        return pieces
    pieces = pieces[np.argsort(pieces[:, 0], kind="stable")]
    reach = np.maximum.accumulate(pieces[:, 1])
    first = np.empty(len(pieces), dtype=bool)
    first[0] = True
    # A piece opens a new interval only if it starts after everything before it has ended.
    np.greater(pieces[1:, 0], reach[:-1], out=first[1:])
    opens = np.flatnonzero(first)
    closes = np.append(opens[1:], len(pieces)) - 1
    return np.stack([pieces[opens, 0], reach[closes]], axis=-1)


def total_ns(union_spans: Spans) -> int:
    """Length of a union in ns.

    >>> total_ns(union([(0, 10), (5, 12)]))
    12
    """
    return int((union_spans[:, 1] - union_spans[:, 0]).sum())


def covered_before(union_spans: Spans, times_ns: ArrayLike) -> NDArray[np.int64]:
    """For each time, how many ns of the union lie before it; shape of `times_ns`.

    >>> covered_before(union([(0, 10), (20, 30)]), [5, 15, 25, 99]).tolist()
    [5, 10, 15, 20]
    """
    times = np.asarray(times_ns, dtype=np.int64)
    if len(union_spans) == 0:
        return np.zeros(times.shape, dtype=np.int64)
    start, end = union_spans[:, 0], union_spans[:, 1]
    done = np.concatenate([[0], np.cumsum(end - start)])
    index = np.searchsorted(start, times, side="right")
    inside = np.minimum(times, end[np.maximum(index - 1, 0)]) - start[np.maximum(index - 1, 0)]
    return np.where(index == 0, 0, done[np.maximum(index - 1, 0)] + np.maximum(inside, 0))


def intersection_ns(a: Spans, b: Spans) -> int:
    """Length in ns of what two unions have in common.

    >>> intersection_ns(union([(2, 10)]), union([(0, 4), (8, 12)]))
    4
    >>> intersection_ns(union([(0, 5)]), union([(5, 9)]))
    0
    """
    if len(a) == 0 or len(b) == 0:
        return 0
    return int((covered_before(b, a[:, 1]) - covered_before(b, a[:, 0])).sum())


def subtract(a: Spans, b: Spans) -> Spans:
    """What is in union `a` and not in union `b`, as a union.

    >>> subtract(union([(0, 10), (20, 30)]), union([(3, 4), (8, 25)])).tolist()
    [[0, 3], [4, 8], [25, 30]]
    """
    if len(a) == 0 or len(b) == 0:
        return a
    # At every edge, count how deep we are in each set; keep the stretches inside a and outside b.
    edges = np.concatenate([a[:, 0], a[:, 1], b[:, 0], b[:, 1]])
    in_a = np.repeat([1, -1, 0, 0], [len(a), len(a), len(b), len(b)])
    in_b = np.repeat([0, 0, 1, -1], [len(a), len(a), len(b), len(b)])
    order = np.argsort(edges, kind="stable")
    edges = edges[order]
    keep = (np.cumsum(in_a[order]) > 0) & (np.cumsum(in_b[order]) == 0)
    pieces = np.stack([edges[:-1], edges[1:]], axis=-1)[keep[:-1]]
    return union(pieces)


def intersect(a: Spans, b: Spans) -> Spans:
    """What two unions have in common, as a union.

    >>> intersect(union([(0, 10), (20, 30)]), union([(3, 4), (8, 25)])).tolist()
    [[3, 4], [8, 10], [20, 25]]
    """
    return subtract(a, subtract(a, b))


def pieces_outside(intervals: Spans, hidden: Spans) -> tuple[Spans, NDArray[np.int64]]:
    """What each interval, one by one, has outside of a union: the pieces, and the index of the interval of each.

    >>> pieces, index = pieces_outside(spans([0, 10], [10, 5]), union([(3, 4), (8, 12)]))
    >>> pieces.tolist(), index.tolist()
    ([[0, 3], [4, 8], [12, 15]], [0, 0, 1])
    """
    ends_of_time = np.iinfo(np.int64)
    gap_start = np.concatenate([[ends_of_time.min], hidden[:, 1]])
    gap_end = np.concatenate([hidden[:, 0], [ends_of_time.max]])
    first = np.searchsorted(gap_end, intervals[:, 0], side="right")
    last = np.searchsorted(gap_start, intervals[:, 1], side="left") - 1
    count = np.maximum(last - first + 1, 0)
    index = np.repeat(np.arange(len(intervals)), count)
    gap = np.arange(len(index)) - np.repeat(np.cumsum(count) - count, count) + first[index]
    start, end = np.maximum(intervals[index, 0], gap_start[gap]), np.minimum(intervals[index, 1], gap_end[gap])
    filled = end > start
    return np.stack([start, end], axis=-1)[filled], index[filled]

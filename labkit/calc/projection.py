"""Projection of a point onto a line or a segment, in any number of dimensions, with the degenerate case named.

In: points A, B, C as lists. Out: parameter t, foot point, distance.

    python -m labkit calc projection project_point a=[1,1] b=[4,5] c=[5,2]
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Sequence
from typing import Any

from labkit.calc._require import require_int, require_number, require_numbers


def project_point(
    *, a: Sequence[float], b: Sequence[float], c: Sequence[float], segment: bool = False
) -> dict[str, Any]:
    """Foot of the perpendicular from C to the line through A and B, or the nearest point of the segment.

    Args:
        a: first point, n >= 1 finite coordinates.
        b: second point, as many.
        c: point to project, as many.
        segment: keep t between 0 and 1.

    Returns: {"t": 0 at A, 1 at B, "point": [n], "distance": of C from it}.
    Raises: ValueError naming the argument, the value got, what was expected; also when A and B cannot be told apart
        (see `is_degenerate`).
    Assumes: Euclidean distance; coordinates are scaled, so squares neither overflow nor vanish.
    Source: t = (C - A).(B - A) / |B - A|^2; interview question 28.

    >>> found = project_point(a=[1, 1], b=[4, 5], c=[5, 2])
    >>> found["t"], [round(x, 9) for x in found["point"]]
    (0.64, [2.92, 3.56])
    """
    a, b, c = _points(a, b, c)
    if is_degenerate(a=a, b=b):
        raise ValueError(f"b={b!r}: expected a point that differs from a by more than the rounding of coordinates")
    along, off = [y - x for x, y in zip(a, b)], [y - x for x, y in zip(a, c)]
    length = max(abs(x) for x in along)
    unit = [x / length for x in along]
    t = math.fsum(x / length * y for x, y in zip(off, unit)) / math.fsum(x * x for x in unit)
    if segment:
        t = min(1.0, max(0.0, t))
    # From the nearer end: at t = 1 the foot is then exactly B.
    point = [y - (1 - t) * d if t > 0.5 else x + t * d for x, y, d in zip(a, b, along)]
    return {"t": t, "point": point, "distance": math.dist(c, point)}


def clamped_parameter(*, t: float) -> float:
    """Parameter of the nearest point of the segment.

    Args:
        t: parameter on the line, finite.

    Returns: t, at least 0 and at most 1.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: nothing.
    Source: min(1, max(0, t)); interview question 28.

    >>> [clamped_parameter(t=t) for t in (-0.5, 1.7, 0.3)]
    [0.0, 1.0, 0.3]
    """
    (value,) = require_numbers("t", [t])
    return min(1.0, max(0.0, value))


def is_degenerate(*, a: Sequence[float], b: Sequence[float], relative: float = 4 * sys.float_info.epsilon) -> bool:
    """Whether two points are too near for their coordinates to give a direction.

    Args:
        a: first point, n >= 1 finite coordinates.
        b: second point, as many.
        relative: distance that counts as none, in units of the largest coordinate, >= 0.

    Returns: True for equal points and for points nearer than the rounding of their coordinates.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: coordinates are exact to one rounding. A fixed tolerance would call a short segment at the origin
        degenerate and miss an unresolved one far away.
    Source: interview question 28.

    >>> is_degenerate(a=[0.0], b=[1e-7]), is_degenerate(a=[1e8], b=[1e8 + 1e-9])
    (False, True)
    """
    a, b = _points(a, b)
    (scale,) = require_numbers("relative", [relative], least=0)
    largest = max(abs(x) for x in a + b)
    return max(abs(x - y) for x, y in zip(a, b)) <= scale * largest


def fixed_tolerance_rejects(*, length: float, tolerance: float = 1e-12) -> bool:
    """Whether a fixed tolerance on the squared length would call a segment degenerate.

    Args:
        length: of the segment, >= 0.
        tolerance: on the square, >= 0.

    Returns: True if length squared is below it.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: nothing; shown because it is wrong, see `is_degenerate`.
    Source: interview question 28.

    >>> fixed_tolerance_rejects(length=1e-7)
    True
    """
    size, limit = require_numbers("length and tolerance", [length, tolerance], least=0)
    return size * size < limit


def residual_dot(*, num_dims: int, num_trials: int = 20, spread: float = 5.0, seed: int = 0) -> float:
    """Largest |(C - foot) . (B - A)| over random points: the residual must be orthogonal to the line.

    Args:
        num_dims: coordinates, 1 to 1000.
        num_trials: 1 to 10000.
        spread: standard deviation of the coordinates, > 0.
        seed: of the random numbers.

    Returns: dot product; rounding only.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: double precision.
    Source: the condition that t is derived from; interview question 28.

    >>> residual_dot(num_dims=7) < 1e-9
    True
    """
    for name, value, most in (("num_dims", num_dims, 1000), ("num_trials", num_trials, 10_000)):
        if require_int(name, value, least=1) > most:
            raise ValueError(f"{name}={value!r}: expected at most {most}")
    scale, draw, worst = require_number("spread", spread, above=0), random.Random(seed), 0.0
    for _ in range(num_trials):
        a, b, c = ([draw.gauss(0, scale) for _ in range(num_dims)] for _ in range(3))
        foot = project_point(a=a, b=b, c=c)["point"]
        worst = max(worst, abs(math.fsum((z - f) * (y - x) for x, y, z, f in zip(a, b, c, foot))))
    return worst


def _points(*points: Sequence[float]) -> tuple[list[float], ...]:
    names = "abc"
    found = tuple(require_numbers(names[i], point) for i, point in enumerate(points))
    for i, point in enumerate(found):
        if len(point) != len(found[0]):
            raise ValueError(f"{names[i]}={point!r}: expected {len(found[0])} coordinates, as a")
    return found

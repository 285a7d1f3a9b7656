"""The logistic function without overflow: value, derivative, logarithm, the loss on logits, vanishing products.

In: x, labels, layers. Out: numbers.

    python -m labkit calc sigmoid logit_loss x=-110 y=1
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from labkit.calc._require import require_fraction, require_int, require_number, require_numbers
from labkit.calc.floating_point import float_limits, round_to


def sigmoid(*, x: float) -> float:
    """1 / (1 + e^-x), by the form whose exponential cannot overflow.

    Args:
        x: finite.

    Returns: a number from 0 to 1.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: double precision.
    Source: 1 / (1 + e^-x) for x >= 0, e^x / (1 + e^x) below; interview question 29.

    >>> sigmoid(x=0), sigmoid(x=-1000), sigmoid(x=1000)
    (0.5, 0.0, 1.0)
    """
    if require_number("x", x) >= 0:
        return 1 / (1 + math.exp(-x))
    small = math.exp(x)
    return small / (1 + small)


def sigmoid_derivative(*, x: float) -> float:
    """Slope of the logistic function; largest, 1/4, at 0.

    Args:
        x: finite.

    Returns: a number from 0 to 1/4; exactly even in x.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: double precision; s (1 - s) would round to 0 for large x, where the true slope is e^-x.
    Source: s (1 - s) = e^-|x| / (1 + e^-|x|)^2; interview question 29.

    >>> sigmoid_derivative(x=0), sigmoid_derivative(x=50) == sigmoid_derivative(x=-50) > 0
    (0.25, True)
    """
    small = math.exp(-abs(require_number("x", x)))
    return min(0.25, small / (1 + small) ** 2)  # near 0 rounding would go one ulp over the maximum


def derivative_error(*, points: Sequence[float], step: float = 1e-5) -> float:
    """Largest difference between the slope's formula and a central difference.

    Args:
        points: x values, at least one, finite.
        step: h > 0.

    Returns: absolute difference, of the order of h^2 and of rounding over h.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: double precision.
    Source: (s(x + h) - s(x - h)) / 2 h; interview question 29.

    >>> derivative_error(points=[-6, -1.3, 0, 0.7, 4]) < 1e-9
    True
    """
    h = require_number("step", step, above=0)
    return max(
        abs((sigmoid(x=x + h) - sigmoid(x=x - h)) / (2 * h) - sigmoid_derivative(x=x))
        for x in require_numbers("points", points)
    )


def gradient_product(*, x: float, num_layers: int) -> float:
    """Product of the slopes of a stack of logistic layers that all see the same input.

    Args:
        x: finite.
        num_layers: >= 0.

    Returns: derivative to the power of the number of layers.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: weights of 1.
    Source: interview question 29.

    >>> gradient_product(x=0, num_layers=6)
    0.000244140625
    """
    return sigmoid_derivative(x=x) ** require_int("num_layers", num_layers, least=0)


def logit_loss(*, x: float, y: float) -> float:
    """Binary cross-entropy of a logit, without forming the probability.

    Args:
        x: logit, finite.
        y: label or target probability, 0 to 1.

    Returns: loss, >= 0, finite for every finite x.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: natural logarithm.
    Source: max(x, 0) - x y + log(1 + e^-|x|); interview question 29.

    >>> logit_loss(x=-110, y=1), round(logit_loss(x=0, y=1), 6)
    (110.0, 0.693147)
    """
    target = require_fraction("y", y)
    return max(require_number("x", x), 0.0) - x * target + math.log1p(math.exp(-abs(x)))


def narrow_sigmoid(*, x: float, dtype: str = "float32") -> float:
    """Logistic function with its exponential rounded to a narrow format: where it becomes exactly 0.

    Args:
        x: finite.
        dtype: as `floating_point.ulp`.

    Returns: a number of the format.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: the stable form, every step rounded.
    Source: interview question 29.

    >>> narrow_sigmoid(x=-110), narrow_sigmoid(x=0)
    (0.0, 0.5)
    """
    small = round_to(value=math.exp(-abs(require_number("x", x))), dtype=dtype)
    below = round_to(value=1 + small, dtype=dtype)
    return round_to(value=(1.0 if x >= 0 else small) / below, dtype=dtype)


def overflow_at(*, dtype: str = "float32") -> float:
    """Size of x from which e^|x| overflows, and with it the plain form at -x.

    Args:
        dtype: as `floating_point.ulp`.

    Returns: natural logarithm of the largest number.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: round to nearest moves the edge by less than one ulp.
    Source: interview question 29.

    >>> round(overflow_at(), 2), round(overflow_at(dtype="float64"), 2)
    (88.72, 709.78)
    """
    return float_limits(dtype=dtype)["log_max"]


def plain_forms(*, x: float) -> dict[str, Any]:
    """What the two plain forms give in IEEE arithmetic, where an overflow is infinity instead of an error.

    Args:
        x: finite.

    Returns: {"one_over": 1 / (1 + e^-x), "exp_over": e^x / (1 + e^x) or None for not-a-number,
        "python_raises": whether math.exp overflows in one of them}.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: double precision.
    Source: interview question 29.

    >>> plain_forms(x=-710)["one_over"], plain_forms(x=710)["exp_over"], plain_forms(x=710)["python_raises"]
    (0.0, None, True)
    """
    limit = overflow_at(dtype="float64")
    up, down = (math.inf if z > limit else math.exp(z) for z in (require_number("x", x), -x))
    return {
        "one_over": 1 / (1 + down), "exp_over": None if math.isinf(up) else up / (1 + up),
        "python_raises": math.isinf(up) or math.isinf(down),
    }

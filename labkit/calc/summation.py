"""Sums in a finite format: order, trees, compensation, split dot products, and one ulp that flips an argmax.

In: numbers or a recipe for random ones, a format. Out: sums, counts of different bit patterns, errors.

    python -m labkit calc summation num_patterns order num_values=512 num_orders=50
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any

from labkit.calc._require import require_choice, require_int, require_numbers
from labkit.calc.floating_point import round_to, ulp

METHODS = ("serial", "pairwise", "kahan")
MOST_VALUES = 100_000


def rounded_sum(method: str, *, values: Sequence[float], dtype: str = "float32") -> float:
    """Sum of numbers with every intermediate result rounded to a format.

    Args:
        method: serial (left to right), pairwise (a fixed tree) or kahan (compensated, left to right).
        values: finite numbers; rounded to the format first.
        dtype: as `floating_point.ulp`.

    Returns: a number of the format; infinity after an overflow is refused.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: to nearest, ties to even.
    Source: interview question 16; Higham, "Accuracy and Stability of Numerical Algorithms", chapter 4.

    >>> [round(rounded_sum("serial", values=x), 6) for x in ([1e20, -1e20, 3.14], [3.14, -1e20, 1e20])]
    [3.14, 0.0]
    """
    require_choice("method", method, METHODS)
    found = require_numbers("values", values, least_count=0)
    numbers = [_finite(round_to(value=value, dtype=dtype), dtype) for value in found]

    def add(a: float, b: float) -> float:
        return _finite(round_to(value=a + b, dtype=dtype), dtype)

    if method == "pairwise":
        while len(numbers) > 1:
            odd = numbers[-1:] if len(numbers) % 2 else []
            numbers = [add(a, b) for a, b in zip(numbers[::2], numbers[1::2])] + odd
        return numbers[0] if numbers else 0.0
    total = lost = 0.0
    for number in numbers:
        if method == "serial":
            total = add(total, number)
        else:
            step = add(number, -lost)
            new = add(total, step)
            lost = add(add(new, -total), -step)
            total = new
    return total


def num_patterns(
    what: str, *, num_values: int = 512, num_orders: int = 50, method: str = "serial", splits: Sequence[int] = (),
    dtype: str = "float32", seed: int = 0,
) -> int:
    """Different results of one sum: over shuffled orders, or over ways of splitting it.

    Args:
        what: "order" (shuffles of the numbers) or "splits" (parts added serially, then the parts).
        num_values: random numbers of very different sizes, 1 to 100000.
        num_orders: shuffles, 1 to 1000; for order.
        method: as `rounded_sum`; for order. "pairwise" is then shuffled too; a fixed order has one result.
        splits: numbers of parts, each 1 to num_values; for splits.
        dtype: as `floating_point.ulp`.
        seed: of the random numbers.

    Returns: number of different results.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: as `rounded_sum`.
    Source: interview question 16 and extra question 47, batch invariance.

    >>> num_patterns("splits", num_values=256, splits=[8, 8, 8]), num_patterns("order", num_values=64) > 1
    (1, True)
    """
    require_choice("what", what, ("order", "splits"))
    values, draw = _draw(num_values, seed)
    if what == "order":
        if require_int("num_orders", num_orders, least=1) > 1000:
            raise ValueError(f"num_orders={num_orders!r}: expected at most 1000")
        shuffled = (draw.sample(values, len(values)) for _ in range(num_orders))
        return len({rounded_sum(method, values=order, dtype=dtype) for order in shuffled})
    if not len(splits):
        raise ValueError("splits=[]: expected at least one number of parts")
    return len({split_sum(values=values, num_splits=parts, dtype=dtype) for parts in splits})


def split_sum(*, values: Sequence[float], num_splits: int, dtype: str = "float32") -> float:
    """Serial sums of neighbouring parts, added serially: what a split reduction does.

    Args:
        values: finite numbers, at least num_splits.
        num_splits: parts, >= 1.
        dtype: as `floating_point.ulp`.

    Returns: a number of the format.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: as `rounded_sum`.
    Source: extra interview question 47.

    >>> [split_sum(values=[2.0**24, 1.0, 1.0, 1.0], num_splits=n) for n in (1, 2)]
    [16777216.0, 16777218.0]
    """
    n = require_int("num_splits", num_splits, least=1)
    if n > len(values):
        raise ValueError(f"num_splits={num_splits!r}: expected at most {len(values)}, the number of values")
    parts = [values[i * len(values) // n : (i + 1) * len(values) // n] for i in range(n)]
    sums = [rounded_sum("serial", values=part, dtype=dtype) for part in parts]
    return rounded_sum("serial", values=sums, dtype=dtype)


def mean_error(method: str, *, num_values: int = 400, num_orders: int = 20, seed: int = 4) -> float:
    """Mean absolute error of FP32 sums of one set of random numbers over shuffled orders.

    Args:
        method: as `rounded_sum`.
        num_values: 1 to 100000.
        num_orders: shuffles, 1 to 1000.
        seed: of the random numbers.

    Returns: error against the exact sum.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: as `rounded_sum`.
    Source: `math.fsum` as the exact sum; interview question 16.

    >>> mean_error("kahan") < mean_error("pairwise") < mean_error("serial")
    True
    """
    values, draw = _draw(num_values, seed)
    if require_int("num_orders", num_orders, least=1) > 1000:
        raise ValueError(f"num_orders={num_orders!r}: expected at most 1000")
    exact = math.fsum(values)
    sums = (rounded_sum(method, values=draw.sample(values, len(values))) for _ in range(num_orders))
    return math.fsum(abs(total - exact) for total in sums) / num_orders


def error_ratio(
    *, first: str = "kahan", second: str = "serial", num_values: int = 400, num_orders: int = 20, seed: int = 4
) -> float:
    """Mean error of one way to sum over that of another, on the same numbers and orders.

    Args:
        first: as `rounded_sum`.
        second: as `rounded_sum`.
        num_values: 1 to 100000.
        num_orders: shuffles, 1 to 1000.
        seed: of the random numbers.

    Returns: ratio, below 1 if the first is more accurate.
    Raises: ValueError naming the argument, the value got, what was expected; also when the second has no error.
    Assumes: as `mean_error`.
    Source: `mean_error`; interview question 16.

    >>> error_ratio() < 0.5
    True
    """
    errors = [
        mean_error(method, num_values=num_values, num_orders=num_orders, seed=seed) for method in (first, second)
    ]
    if not errors[1]:
        raise ValueError(f"num_values={num_values!r}: expected more; {second} makes no error on so few")
    return errors[0] / errors[1]


def error_bound(method: str, *, num_values: int, sum_of_sizes: float = 1.0, dtype: str = "float32") -> float:
    """First-order bound of the error of a sum.

    Args:
        method: serial or pairwise.
        num_values: n >= 1.
        sum_of_sizes: sum of |x|, >= 0.
        dtype: as `floating_point.ulp`.

    Returns: (n - 1) u or ceil(log2 n) u, times the sum of sizes; u is half the spacing at 1.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: terms of order u^2 left out.
    Source: Higham, "Accuracy and Stability of Numerical Algorithms", chapter 4; interview question 16.

    >>> error_bound("serial", num_values=1024) / error_bound("pairwise", num_values=1024)
    102.3
    """
    require_choice("method", method, ("serial", "pairwise"))
    n = require_int("num_values", num_values, least=1)
    (size,) = require_numbers("sum_of_sizes", [sum_of_sizes], least=0)
    steps = n - 1 if method == "serial" else math.ceil(math.log2(n))
    return steps * ulp(value=1.0, dtype=dtype) / 2 * size


def wrapped_sum(*, values: Sequence[int], order: Sequence[int], bits: int = 32) -> dict[str, Any]:
    """Integer atomics that wrap around: the final sum, and the old value each of them returned.

    Args:
        values: integers, one for each thread.
        order: indices of values, each once, in the order in which the atomics happen.
        bits: width of the integer, 1 to 128.

    Returns: {"sum", "old": by thread}.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: unsigned.
    Source: addition modulo 2^bits is associative and commutative; interview question 16.

    >>> [wrapped_sum(values=[3000000000, 2000000000], order=o) for o in ([0, 1], [1, 0])]
    [{'sum': 705032704, 'old': [0, 3000000000]}, {'sum': 705032704, 'old': [2000000000, 0]}]
    """
    if sorted(order) != list(range(len(values))):
        raise ValueError(f"order={list(order)!r}: expected each index of values once")
    if require_int("bits", bits, least=1) > 128:
        raise ValueError(f"bits={bits!r}: expected at most 128")
    total, old = 0, [0] * len(values)
    for i in order:
        old[i] = total
        total = (total + require_int("values", values[i], least=-(2**128))) % 2**bits
    return {"sum": total, "old": old}


def interleaved_increments(*, atomic: bool, num_threads: int = 2) -> int:
    """Value after every thread has added 1 to a zero: all load before any stores, or one after the other.

    Args:
        atomic: each load and store together.
        num_threads: >= 1.

    Returns: the final value.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: the worst interleaving where it is not atomic.
    Source: lost update; interview question 16.

    >>> interleaved_increments(atomic=False), interleaved_increments(atomic=True)
    (1, 2)
    """
    threads, value = require_int("num_threads", num_threads, least=1), 0
    loaded = [value] * threads
    for seen in loaded:
        value = (value if atomic else seen) + 1
    return value


def argmax_after_ulps(*, logit: float, ulps: Sequence[int], dtype: str = "float32") -> int:
    """Index of the largest of several logits that lie a number of ulps above one value; the first of equals.

    Args:
        logit: finite.
        ulps: steps above `logit`, one for each logit.
        dtype: as `floating_point.ulp`.

    Returns: index.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: all stay in the binade of `logit`.
    Source: interview question 16.

    >>> argmax_after_ulps(logit=10.0, ulps=[0, 1]), argmax_after_ulps(logit=10.0, ulps=[2, 1])
    (1, 0)
    """
    if not len(ulps):
        raise ValueError("ulps=[]: expected at least one logit")
    spacing, start = ulp(value=logit, dtype=dtype), round_to(value=logit, dtype=dtype)
    logits = [start + require_int("ulps", steps, least=-(2**20)) * spacing for steps in ulps]
    return max(range(len(logits)), key=lambda i: logits[i])


def ones_until_stalled(*, num_ones: int, dtype: str = "bfloat16") -> float:
    """Running sum of ones in a format: from 2^p on, adding one changes nothing.

    Args:
        num_ones: 0 to 100000.
        dtype: as `floating_point.ulp`.

    Returns: the sum that is reached.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: as `rounded_sum`, serial.
    Source: 2^8 for bfloat16's 8 bits; extra interview question 46.

    >>> ones_until_stalled(num_ones=1000), ones_until_stalled(num_ones=1000, dtype="float32")
    (256.0, 1000.0)
    """
    if require_int("num_ones", num_ones, least=0) > MOST_VALUES:
        raise ValueError(f"num_ones={num_ones!r}: expected at most {MOST_VALUES}")
    return rounded_sum("serial", values=[1.0] * num_ones, dtype=dtype)


def _draw(num_values: int, seed: int) -> tuple[list[float], random.Random]:
    if require_int("num_values", num_values, least=1) > MOST_VALUES:
        raise ValueError(f"num_values={num_values!r}: expected at most {MOST_VALUES}")
    draw = random.Random(seed)
    return [round_to(value=draw.uniform(-1, 1) * 10 ** draw.uniform(-3, 6)) for _ in range(num_values)], draw


def _finite(number: float, dtype: str) -> float:
    if not math.isfinite(number):
        raise ValueError(f"values: a sum overflows {dtype}: expected smaller numbers")
    return number

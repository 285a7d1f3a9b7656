"""Binary floating point by its formats: spacing, rounding, bit patterns, what a subtraction does, limits.

In: numbers, a format name. Out: exact doubles that the format can hold, bit patterns, spacings.

    python -m labkit calc floating_point ulp value=9.9e9 dtype=float32
"""

from __future__ import annotations

import math
from typing import Any

from labkit.calc._require import require_choice, require_number

FORMATS: dict[str, tuple[int, int, int, float]] = {
    "float64": (53, -1022, 1023, (2 - 2.0**-52) * 2.0**1023),
    "float32": (24, -126, 127, (2 - 2.0**-23) * 2.0**127),
    "float16": (11, -14, 15, 65504.0),
    "bfloat16": (8, -126, 127, (2 - 2.0**-7) * 2.0**127),
    "float8_e4m3fn": (4, -6, 8, 448.0),
    "float8_e5m2": (3, -14, 15, 57344.0),
}
"""Name -> significand bits (the hidden one included), least and greatest exponent, largest number."""


def ulp(*, value: float, dtype: str = "float32") -> float:
    """Distance of neighbouring numbers of a format where a value lies.

    Args:
        value: finite, within the format's range.
        dtype: float64, float32, float16, bfloat16, float8_e4m3fn or float8_e5m2.

    Returns: 2 to the (floor(log2 |value|) - p + 1); below the normal range the subnormal spacing.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: the binade that |value| starts in, downwards the spacing halves at a power of two.
    Source: IEEE 754-2019; OCP 8-bit floating point specification; interview question 17.

    >>> ulp(value=9.9e9), ulp(value=9.9e9, dtype="float64"), ulp(value=1.0, dtype="bfloat16")
    (1024.0, 1.9073486328125e-06, 0.0078125)
    """
    bits, least, _, largest = _format(dtype)
    size = abs(require_number("value", value))
    if size > largest:
        raise ValueError(f"value={value!r}: expected at most {largest:g} in {dtype}")
    exponent = max(least, math.frexp(size)[1] - 1) if size else least
    return math.ldexp(1.0, exponent - bits + 1)


def round_to(*, value: float, dtype: str = "float32") -> float:
    """The number of a format that a value is rounded to.

    Args:
        value: finite; past the format's range it becomes infinity (float8_e4m3fn: refused, it has none).
        dtype: as `ulp`.

    Returns: a double that the format holds exactly.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: to nearest, ties to even; subnormals kept.
    Source: IEEE 754-2019, section 4.3.1.

    >>> round_to(value=9.9e9), round_to(value=0.1, dtype="bfloat16")
    (9900000256.0, 0.10009765625)
    """
    bits, least, _, largest = _format(dtype)
    if not require_number("value", value):
        return float(value)
    spacing = max(least, math.frexp(value)[1] - 1) - bits + 1
    # Scaling by a power of two is exact, and Python rounds half to even.
    rounded = math.copysign(math.ldexp(float(round(math.ldexp(abs(value), -spacing))), spacing), value) if (
        dtype != "float64") else float(value)
    if abs(rounded) > largest:
        if dtype == "float8_e4m3fn":
            raise ValueError(f"value={value!r}: expected at most {largest:g} in {dtype}, which has no infinity")
        return math.copysign(math.inf, value)
    return rounded


def float32_bits(*, value: float) -> str:
    """Bit pattern of a value rounded to FP32.

    Args:
        value: finite and within the range.

    Returns: eight hexadecimal digits with 0x in front.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: as `round_to`.
    Source: IEEE 754-2019, binary32.

    >>> float32_bits(value=9.9e9), float32_bits(value=-0.0)
    ('0x50138581', '0x80000000')
    """
    bits, least, _, largest = _format("float32")
    number = round_to(value=value)
    if abs(number) > largest:
        raise ValueError(f"value={value!r}: expected at most {largest:g}")
    sign = int(math.copysign(1, number) < 0) << 31
    spacing = (max(least, math.frexp(number)[1] - 1) if number else least) - bits + 1
    significand = int(math.ldexp(abs(number), -spacing))
    field = 0 if significand < 1 << (bits - 1) else spacing + bits - 1 - least + 1
    return f"0x{sign | field << (bits - 1) | significand & ((1 << (bits - 1)) - 1):08x}"


def subtraction(*, x: float, y: float, dtype: str = "float32") -> dict[str, Any]:
    """Difference x - y in a format, both operands rounded first.

    Args:
        x: finite.
        y: finite.
        dtype: as `ulp`.

    Returns: {"x", "y": as the format holds them, "result", "moved": whether the result differs from x,
        "bits": of the result, for float32, else None}.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: one rounding of the exact difference. In double it is Python's own subtraction.
    Source: IEEE 754-2019; absorbed if |y| is under half an ulp of x; interview question 17.

    >>> subtraction(x=9.9e9, y=1e-9)["moved"], subtraction(x=9.9e9, y=512.0)["moved"]
    (False, True)
    """
    a, b = (round_to(value=v, dtype=dtype) for v in (x, y))
    if not (math.isfinite(a) and math.isfinite(b)):
        raise ValueError(f"x={x!r}, y={y!r}: expected numbers within the range of {dtype}")
    # Rounding the double result once more changes nothing: 53 bits are at least 2 p + 2 for all narrower formats
    # (Figueroa, "When is double rounding innocuous?", 1995).
    result = round_to(value=a - b, dtype=dtype)
    bits = float32_bits(value=result) if dtype == "float32" else None
    return {"x": a, "y": b, "result": result, "moved": result != a, "bits": bits}


def product(*, x: float, y: float, dtype: str = "float32") -> float:
    """Product x y in a format, both operands rounded first.

    Args:
        x: finite.
        y: finite.
        dtype: as `ulp`.

    Returns: the rounded product.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: as `subtraction`; a double holds the product of two 24-bit significands exactly.
    Source: IEEE 754-2019.

    >>> product(x=9.9, y=1e9)
    9899999232.0
    """
    a, b = (round_to(value=v, dtype=dtype) for v in (x, y))
    return round_to(value=a * b, dtype=dtype)


def neighbours(*, value: float, dtype: str = "float32") -> dict[str, Any]:
    """Numbers of a format around a value.

    Args:
        value: finite, within the range.
        dtype: as `ulp`.

    Returns: {"in_ulps": value over the spacing, "below", "above": largest not above, smallest not below it,
        "representable"}.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: the spacing at the value.
    Source: floor and ceil in units of `ulp`; interview question 17.

    >>> neighbours(value=9.9e9)
    {'in_ulps': 9667968.75, 'below': 9899999232.0, 'above': 9900000256.0, 'representable': False}
    """
    spacing = ulp(value=value, dtype=dtype)
    steps = value / spacing
    below, above = math.floor(steps) * spacing, math.ceil(steps) * spacing
    return {"in_ulps": steps, "below": below, "above": above, "representable": below == above}


def significant_bits(*, large: float, small: float) -> float:
    """Bits a significand needs to tell a small quantity beside a large one.

    Args:
        large: > 0.
        small: > 0.

    Returns: log2(large / small); one more to round correctly.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: both in one fixed-point window.
    Source: interview question 17.

    >>> round(significant_bits(large=9.9e9, small=1e-9), 1)
    63.1
    """
    return math.log2(require_number("large", large, above=0)) - math.log2(require_number("small", small, above=0))


def float_limits(*, dtype: str = "float32") -> dict[str, float]:
    """Range of a format and its spacing at 1.

    Args:
        dtype: as `ulp`.

    Returns: {"max", "min_normal", "min_subnormal", "epsilon": spacing at 1, "log_max": largest x with e^x finite}.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: subnormals supported.
    Source: IEEE 754-2019; OCP 8-bit floating point specification; interview questions 17 and 29, extra question 45.

    >>> float_limits(dtype="float8_e4m3fn")["max"], round(float_limits()["log_max"], 2)
    (448.0, 88.72)
    """
    bits, least, _, largest = _format(dtype)
    return {
        "max": largest, "min_normal": math.ldexp(1.0, least), "min_subnormal": math.ldexp(1.0, least - bits + 1),
        "epsilon": math.ldexp(1.0, 1 - bits), "log_max": math.log(largest),
    }


def _format(dtype: str) -> tuple[int, int, int, float]:
    return FORMATS[require_choice("dtype", dtype, tuple(FORMATS))]

"""Argument checks of the calculators: one line naming the argument, the value got and what was expected."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any


def require_int(name: str, value: Any, *, least: int = 0) -> int:
    """`value` if it is an integer of at least `least`; raises ValueError otherwise (a bool is no integer here)."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name}={value!r}: expected an integer, {least} or more")
    return value


def require_number(name: str, value: Any, *, above: float | None = None, least: float | None = None) -> float:
    """`value` if it is a finite number above `above` or at least `least`; raises ValueError otherwise."""
    wanted = f" above {above:g}" if above is not None else f", {least:g} or more" if least is not None else ""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{name}={value!r}: expected a finite number{wanted}")
    if (above is not None and value <= above) or (least is not None and value < least):
        raise ValueError(f"{name}={value!r}: expected a number{wanted}")
    return value


def require_choice(name: str, value: Any, choices: Sequence[str]) -> str:
    """`value` if it is one of `choices`; raises ValueError otherwise."""
    if value not in choices:
        raise ValueError(f"{name}={value!r}: expected one of {', '.join(choices)}")
    return value


def require_fraction(name: str, value: Any, *, zero: bool = True, one: bool = True) -> float:
    """`value` if it is a number between 0 and 1, ends included unless excluded; raises ValueError otherwise."""
    ends = {(True, True): "", (False, True): ", 0 excluded", (True, False): ", 1 excluded"}
    wanted = "a fraction between 0 and 1" + ends.get((zero, one), ", both excluded")
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{name}={value!r}: expected {wanted}")
    if not 0 <= value <= 1 or (value == 0 and not zero) or (value == 1 and not one):
        raise ValueError(f"{name}={value!r}: expected {wanted}")
    return value


def require_numbers(
    name: str, values: Any, *, least_count: int = 1, above: float | None = None, least: float | None = None
) -> list[float]:
    """`values` as a list of at least `least_count` finite numbers; raises ValueError otherwise."""
    if isinstance(values, str) or not isinstance(values, Sequence) or len(values) < least_count:
        raise ValueError(f"{name}={values!r}: expected a list of {least_count} or more numbers")
    return [require_number(f"{name}[{i}]", value, above=above, least=least) for i, value in enumerate(values)]

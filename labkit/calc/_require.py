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

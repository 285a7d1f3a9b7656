"""When a recomputed or measured value counts as the printed one.

- `exact`: equal; numbers as numbers (512.0 is 512), text and truth values as they are.
- `dp N`, `sig N`: equal after rounding to N decimals or N significant digits, a half either way included.
- `rel X`: |seen - expected| <= X * |expected|.
- `reachable`: some value inside the rounding of the printed inputs gives a value inside the rounding of the printed
  result. This is the right question for a column computed from unrounded data.
- `direction PIVOT`: same side of PIVOT (0 for a difference, 1 for a ratio), and p10-p90 of the samples does not reach
  over it. Keys whose printed value is the pivot itself are not judged.
- `beside`: shown beside the printed value, never judged: the time of other hardware is not right or wrong.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

MODES_WITH_NUMBER = ("dp", "sig", "rel", "direction")
MODES = ("exact", "reachable", "beside", *MODES_WITH_NUMBER)
MODES_WITH_RANGE = ("reachable", "direction")
"""Rules that ask how far a value could be off; for the others it is evaluated once."""
SLACK = 1 + 1e-9
"""A half is a half: 15.625 printed as 15.63 must not fail on the last bit of a float."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One comparison rule, parsed."""

    mode: str
    amount: float = 0.0


@dataclass(frozen=True, slots=True)
class Seen:
    """One value that came out, and the range it could have: from rounded inputs, or p10-p90 of samples."""

    value: Any
    low: float | None = None
    high: float | None = None


def parse_rule(text: Any) -> Rule:
    """Read `dp 2` and the like; raises ValueError naming what was expected."""
    words = text.split() if isinstance(text, str) else []
    if len(words) == 1 and words[0] in ("exact", "reachable", "beside"):
        return Rule(words[0])
    if len(words) == 2 and words[0] in MODES_WITH_NUMBER:
        try:
            amount = float(words[1])
        except ValueError:
            amount = math.nan
        if math.isfinite(amount) and (words[0] == "direction" or amount >= 0):
            return Rule(words[0], amount)
    raise ValueError(f"compare={text!r}: expected exact, dp N, sig N, rel X, reachable, direction PIVOT or beside")


def is_number(value: Any) -> bool:
    """Whether `value` is a number; truth values are not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def leaves(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """(path, leaf) of nested mappings and lists."""
    if isinstance(tree, Mapping):
        for key, item in tree.items():
            yield from leaves(item, (*path, key))
    elif isinstance(tree, list | tuple):
        for i, item in enumerate(tree):
            yield from leaves(item, (*path, i))
    else:
        yield path, tree


def printed_decimals(value: Any) -> int:
    """Decimals of the most precisely printed number in a value: {a: 127.1, b: 124.88} has 2."""
    found = [0]
    for _, leaf in leaves(value):
        if is_number(leaf):
            exponent = Decimal(repr(leaf)).as_tuple().exponent
            found.append(-exponent if isinstance(exponent, int) else 0)
    return max(found) if found else 0


def allowance(expected: Any, rule: Rule, decimals: int) -> float | None:
    """Largest |seen - expected| that counts as equal for one number; None where the rule is not about a distance."""
    if not is_number(expected):
        return 0.0 if rule.mode == "exact" else None
    if rule.mode == "dp":
        return 0.5 * 10.0 ** -rule.amount
    if rule.mode == "sig":
        magnitude = math.floor(math.log10(abs(expected))) if expected else 0
        return 0.5 * 10.0 ** (magnitude + 1 - rule.amount)
    if rule.mode == "rel":
        return rule.amount * abs(expected)
    if rule.mode == "reachable":
        return 0.5 * 10.0**-decimals
    return 0.0 if rule.mode == "exact" else None


def leaf_agrees(expected: Any, seen: Seen, rule: Rule, decimals: int) -> bool:
    """Whether one value counts as the expected one."""
    if rule.mode == "beside":
        return True
    if not (is_number(expected) and is_number(seen.value)):
        return type(expected) is type(seen.value) and expected == seen.value
    if rule.mode == "direction":
        return direction(expected, seen, rule.amount) in ("same", "not judged")
    allowed = (allowance(expected, rule, decimals) or 0.0) * SLACK
    if rule.mode == "reachable" and seen.low is not None and seen.high is not None:
        return seen.low <= expected + allowed and seen.high >= expected - allowed
    return abs(seen.value - expected) <= allowed


def direction(expected: float, seen: Seen, pivot: float) -> str:
    """`same`, `opposite`, `unresolved` (the spread reaches over the pivot) or `not judged` (printed on the pivot)."""
    if expected == pivot:
        return "not judged"
    low, high = (seen.value if end is None else end for end in (seen.low, seen.high))
    if low <= pivot <= high:
        return "unresolved"
    return "same" if (seen.value > pivot) == (expected > pivot) else "opposite"


def at(tree: Any, path: tuple[Any, ...]) -> Any:
    """Entry of nested mappings and lists; raises KeyError or IndexError."""
    for part in path:
        if not isinstance(tree, Mapping | list | tuple):
            raise KeyError(part)
        tree = tree[part]
    return tree


def disagreements(expected: Any, seen: Any, rule: Rule, decimals: int) -> list[tuple[Any, ...]]:
    """Paths at which `seen` (a tree of Seen) is missing or does not count as `expected`; extra entries are ignored.

    A list must have the expected length: a bucket too many is not a detail.
    """
    wrong = []
    for path, leaf in leaves(expected):
        try:
            found = at(seen, path)
            short = any(
                isinstance(at(expected, path[:i]), list) and len(at(expected, path[:i])) != len(at(seen, path[:i]))
                for i in range(len(path))
            )
        except (KeyError, IndexError, TypeError):
            wrong.append(path)
            continue
        if short or not isinstance(found, Seen) or not leaf_agrees(leaf, found, rule, decimals):
            wrong.append(path)
    return wrong

"""What all-reduces return when ranks issue them in different orders on one communicator.

In: each rank's order of tensors, their values. Out: what every rank holds afterwards. Whether anything hangs is
`collective_choice.call_order`.

    python -m labkit calc collective_order reduced_by_position orders='[["A"],["B"]]' values='{"A":[0,1],"B":[2,3]}'
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from labkit.calc._require import require_number


def reduced_by_position(
    *, orders: Sequence[Sequence[str]], values: Mapping[str, Sequence[float]] | Sequence[Sequence[Any]]
) -> dict[str, list[float]]:
    """Sums after all-reduces that are matched by their position in each rank's sequence, never by name.

    Args:
        orders: for each rank the names of its tensors in the order in which it reduces them; one length for all.
        values: {name: one value per rank} before the first call, or the same as [name, values] pairs.

    Returns: {name: [value on rank 0, rank 1, ...]} afterwards; equal in all ranks if the orders are.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: one communicator, sum, equal shapes and types, so that no backend can notice.
    Source: a collective has a sequence number and no name; report section 12.3; extra interview question 10.

    >>> reduced_by_position(orders=[["A", "B"], ["B", "A"]], values={"A": [1000, 1001], "B": [2000, 2001]})
    {'A': [3001, 3001], 'B': [3001, 3001]}
    """
    if len(orders) < 2 or len({len(order) for order in orders}) > 1:
        raise ValueError(f"orders={[list(o) for o in orders]!r}: expected two or more ranks with equally many calls")
    start: dict[str, Sequence[float]] = dict(values)  # type: ignore[arg-type]  # a mapping, or pairs from YAML
    for name, found in start.items():
        if len(found) != len(orders):
            raise ValueError(f"values[{name}]={list(found)!r}: expected {len(orders)} numbers, one per rank")
        for value in found:
            require_number(f"values[{name}]", value)
    unknown = sorted({name for order in orders for name in order} - set(start))
    if unknown:
        raise ValueError(f"orders: no values for {', '.join(unknown)}")
    held = {name: list(found) for name, found in start.items()}
    for names in zip(*orders):
        total = sum(held[name][rank] for rank, name in enumerate(names))
        for rank, name in enumerate(names):
            held[name][rank] = total
    return held

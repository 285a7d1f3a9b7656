"""A JSON value and an optional format -> the text a page shows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from labkit.units import format_bytes, format_seconds

DISPLAY_UNITS = {"us": "µs", "ratio": "", "count": "", "x": "×"}
"""Units that read badly in prose as they are stored."""
NAMED_FORMATS = ("bytes", "decimal-bytes", "seconds", "percent")


class LookupProblem(ValueError):
    """A role or directive that cannot be resolved; the message is one line."""


def split_format(text: str) -> tuple[str, str]:
    """Split `expression | format` at the last bar that is outside quotes and brackets; the format may be empty.

    >>> split_format("ddp-bucket-count:25 MiB | .1f MiB")
    ('ddp-bucket-count:25 MiB', '.1f MiB')
    """
    expression, bar, spec = text.rpartition(" | ")
    return (expression.strip(), spec.strip()) if bar else (text.strip(), "")


def is_quantity(value: Any) -> bool:
    """Whether `value` is a quantity of records.quantity: {"value", "unit", ...}."""
    return isinstance(value, Mapping) and "value" in value and "unit" in value


def show_value(value: Any, spec: str = "", *, unit: str | None = None) -> str:
    """Text of a value.

    Args:
        value: number, text, boolean, list of those, or a quantity.
        spec: Python's format mini-language or one of bytes, decimal-bytes, seconds, percent; a unit may follow after a
            space and replaces the value's own.
        unit: the value's own unit; None or "" shows none.

    Raises: LookupProblem when the value is unknown (null), a mapping, or does not fit the format.

    >>> show_value(109942272, unit="parameters")
    '109,942,272 parameters'
    >>> show_value(0.125, "percent")
    '12.5 %'
    """
    if is_quantity(value):
        value, unit = value["value"], value["unit"]
    spec, _, own_unit = spec.partition(" ")
    if own_unit:
        unit = own_unit
    if value is None:
        raise LookupProblem("the value is unknown (null)")
    if isinstance(value, Mapping):
        raise LookupProblem(f"the value has the keys {', '.join(map(str, value))}; name one")
    if isinstance(value, list | tuple):
        if any(isinstance(item, Mapping | list | tuple) for item in value):
            raise LookupProblem("the value is a nested list; name one entry")
        text = ", ".join(_scalar(item, spec) for item in value)
    else:
        text = _scalar(value, spec)
    if spec in NAMED_FORMATS:
        return text
    suffix = DISPLAY_UNITS.get(unit or "", unit or "")
    return f"{text}\N{NO-BREAK SPACE}{suffix}" if suffix else text


def _scalar(value: Any, spec: str) -> str:
    if spec in NAMED_FORMATS and isinstance(value, int | float) and not isinstance(value, bool):
        if spec == "percent":
            return f"{value * 100:.1f}\N{NO-BREAK SPACE}%"
        text = format_seconds(value) if spec == "seconds" else format_bytes(value, binary=spec == "bytes")
        return text.replace(" us", " µs").replace(" ", "\N{NO-BREAK SPACE}")
    if spec:
        try:
            return format(value, spec)
        except (TypeError, ValueError):
            raise LookupProblem(f"format {spec!r} does not fit {value!r}") from None
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}" if abs(value) >= 10_000 else str(value)
    if isinstance(value, float):
        if value.is_integer() and abs(value) < 1e15:
            return _scalar(int(value), "")
        return f"{value:,.0f}" if 1e4 <= abs(value) < 1e9 else f"{value:.4g}".replace("e+", "e")
    return str(value)


def walk(value: Any, path: str) -> Any:
    """The entry of nested mappings and lists that `path` names: keys joined by dots; a key may itself hold dots.

    Raises: LookupProblem naming the part that was not found and the keys there are.

    >>> walk({"step": {"0.5 MiB": [7, 8]}}, "step.0.5 MiB.1")
    8
    """
    if not path:
        return value
    parts = path.split(".")
    for length in range(len(parts), 0, -1):
        head, rest = ".".join(parts[:length]), ".".join(parts[length:])
        if isinstance(value, Mapping):
            key = next((key for key in value if str(key) == head), None)
            if key is not None:
                return walk(value[key], rest)
        elif isinstance(value, list | tuple) and head.isdigit() and int(head) < len(value):
            return walk(value[int(head)], rest)
    known = ", ".join(map(str, value)) if isinstance(value, Mapping) else f"a {type(value).__name__}"
    raise LookupProblem(f"no {path!r} (there is: {known})")

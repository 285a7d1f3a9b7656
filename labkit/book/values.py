"""A JSON value and an optional format -> the text a page shows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from labkit.units import format_bytes, format_seconds

DISPLAY_UNITS = {"us": "µs", "ratio": "", "count": "", "x": "×"}
"""Units that read badly in prose as they are stored."""
NAMED_FORMATS = ("bytes", "decimal-bytes", "seconds", "percent", "bare")


_SCALES: dict[str, dict[str, float]] = {
    "bytes": {
        "bytes": 1, "B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30,
    },
    "rate": {"bytes/s": 1, "B/s": 1, "kB/s": 1e3, "MB/s": 1e6, "GB/s": 1e9, "TB/s": 1e12, "GiB/s": 2**30},
    "time": {"s": 1, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9, "min": 60},
    "operations": {"FLOP": 1, "MFLOP": 1e6, "GFLOP": 1e9, "TFLOP": 1e12},
    "operation rate": {"FLOP/s": 1, "GFLOP/s": 1e9, "TFLOP/s": 1e12, "PFLOP/s": 1e15},
    "share": {"ratio": 1, "%": 0.01},
}
_READABLE: dict[str | None, tuple[str, ...]] = {
    "bytes": ("GiB", "MiB", "KiB"),
    "bytes/s": ("TB/s", "GB/s", "MB/s", "kB/s"),
    "FLOP/s": ("PFLOP/s", "TFLOP/s", "GFLOP/s"),
    "FLOP": ("TFLOP", "GFLOP", "MFLOP"),
    "s": ("s", "ms", "us", "ns"),
}
"""Base unit -> units for people, largest first; taken when no format is given."""
_SUFFIXES = (
    ("_flop_per_byte", "FLOP/B"), ("_flop_per_s", "FLOP/s"), ("_gb_per_s", "GB/s"), ("_bytes_per_s", "bytes/s"),
    ("_tokens_per_s", "tokens/s"), ("_req_per_s", "requests/s"), ("_bytes", "bytes"), ("_flop", "FLOP"),
    ("_mib", "MiB"), ("_gib", "GiB"), ("_tokens", "tokens"), ("_ratio", "ratio"), ("_pct", "%"), ("_ms", "ms"),
    ("_us", "us"), ("_s", "s"),
)


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


def show_value(value: Any, spec: str = "", *, unit: str | None = None, exact: bool = False) -> str:
    r"""Text of a value.

    Args:
        value: number, text, boolean, list of those, or a quantity.
        spec: Python's format mini-language or one of bytes, decimal-bytes, seconds, percent, bare (no unit); a unit may
            follow after a space, and the value is converted to it.
        unit: the value's own unit; None or "" shows none.
        exact: show every digit that was written down (a printed figure), not four significant ones.

    Raises: LookupProblem when the value is unknown (null), a mapping, or does not fit the format.

    >>> show_value(109942272, unit="parameters").replace("\N{NO-BREAK SPACE}", " ")
    '109,942,272 parameters'
    """
    if is_quantity(value):
        value, unit = value["value"], value["unit"]
    spec, _, wanted = spec.partition(" ")
    if not (spec or exact) and unit in _READABLE and isinstance(value, int | float) and not isinstance(value, bool):
        wanted = _readable_unit(value, unit)
    if value is None:
        raise LookupProblem("the value is unknown (null)")
    if isinstance(value, Mapping):
        raise LookupProblem(f"the value has the keys {', '.join(map(str, value))}; name one")
    if isinstance(value, list | tuple):
        if any(isinstance(item, Mapping | list | tuple) for item in value):
            raise LookupProblem("the value is a nested list; name one entry")
        text = ", ".join(_scalar(convert(item, unit, wanted), spec, exact) for item in value)
    else:
        text = _scalar(convert(value, unit, wanted), spec, exact)
    if spec in NAMED_FORMATS:
        return text
    suffix = wanted or unit or ""
    suffix = DISPLAY_UNITS.get(suffix, suffix)
    return f"{text}\N{NO-BREAK SPACE}{suffix}" if suffix else text


def convert(value: Any, unit: str | None, wanted: str) -> Any:
    """`value` in the unit `wanted`; unchanged when either unit is missing or a mere word (buckets, tokens).

    Raises: LookupProblem when the units measure different things.

    >>> convert(98304000, "bytes", "MiB")
    93.75
    """
    ours, theirs = _dimension(unit), _dimension(wanted)
    if not unit or not wanted or unit == wanted or (ours is None and theirs is None):
        return value
    if ours != theirs or ours is None or isinstance(value, bool) or not isinstance(value, int | float):
        raise LookupProblem(f"the value is in {unit}, the format asks for {wanted}")
    return value * _SCALES[ours][unit] / _SCALES[ours][wanted]


def _readable_unit(value: float, unit: str | None) -> str:
    """The largest unit for people in which the value is at least 1; the unit itself when there is none."""
    scale = _SCALES[str(_dimension(unit))]
    return next((name for name in _READABLE[unit] if abs(value) >= scale[name]), str(unit))


def _dimension(unit: str | None) -> str | None:
    return next((name for name, scale in _SCALES.items() if unit in scale), None)


def unit_of_name(name: str) -> str | None:
    """The unit that an identifier ends in; None when it ends in none.

    >>> unit_of_name("busbw_bytes_per_s"), unit_of_name("num_buckets")
    ('bytes/s', None)
    """
    return next((unit for suffix, unit in _SUFFIXES if name.endswith(suffix)), None)


def _scalar(value: Any, spec: str, exact: bool) -> str:
    spec = "" if spec == "bare" else spec
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
        if exact and abs(value) < 1e6:
            return repr(value)
        if value.is_integer() and abs(value) < 1e15:
            return _scalar(int(value), "", exact)
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

"""Two records of one experiment side by side."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from labkit.records.schema import RecordError, RunRecord


def compare_records(first: RunRecord, second: RunRecord) -> list[dict[str, Any]]:
    """Parameters and environment that differ, then every result that either record has.

    Returns: rows {kind, name, unit, first, second, ratio}; kind is "param", "environment" or "result"; a nested result
    is named with dots; ratio is second / first of two numbers in one unit, else None; a value that one record does not
    have is None.

    Raises: RecordError for records of two experiments.
    """
    if first.experiment != second.experiment:
        raise RecordError(f"cannot compare {first.experiment}/{first.run_id} with {second.experiment}/{second.run_id}")
    rows = [
        {"kind": kind, "name": name, "unit": None, "first": a.get(name), "second": b.get(name), "ratio": None}
        for kind, a, b in (("param", first.params, second.params), ("environment", _about(first), _about(second)))
        for name in dict.fromkeys([*a, *b]) if a.get(name) != b.get(name)
    ]
    a, b = _flat(first.results), _flat(second.results)
    return rows + [_result_row(name, a.get(name), b.get(name)) for name in dict.fromkeys([*a, *b])]


def _about(record: RunRecord) -> dict[str, Any]:
    git, software = record.environment.get("git", {}), record.environment.get("software", {})
    return {"hardware": record.hardware_tag, "commit": git.get("commit"), "dirty": git.get("dirty"),
            **{f"version of {name}": software.get(name) for name in ("python", "torch", "triton")},
            "evidence": record.evidence, "status": record.status, "preset": record.preset}


def _flat(results: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested results by dotted name; a quantity stays whole."""
    flat: dict[str, Any] = {}
    for name, value in results.items():
        if isinstance(value, dict) and value and not _is_quantity(value):
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def _is_quantity(value: Any) -> bool:
    return isinstance(value, dict) and {"value", "unit"} <= value.keys()


def _result_row(name: str, first: Any, second: Any) -> dict[str, Any]:
    units = [value["unit"] if _is_quantity(value) else None for value in (first, second)]
    a, b = (value["value"] if _is_quantity(value) else value for value in (first, second))
    present = [unit for unit, value in zip(units, (first, second)) if value is not None]
    same_unit = len(set(present)) <= 1
    numbers = all(isinstance(x, int | float) and not isinstance(x, bool) for x in (a, b))
    unit = next(iter(present), None) if same_unit else " / ".join(map(str, units))
    ratio = b / a if numbers and same_unit and a else None
    return {"kind": "result", "name": name, "unit": unit, "first": a, "second": b, "ratio": ratio}

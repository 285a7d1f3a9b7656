"""Tables of launch records: one row a chain, one row a fitted line, records side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from labkit.records import RunRecord


def chains_table(record: RunRecord) -> pd.DataFrame:
    """One row a variant, size and length.

    Columns: variant, size (FP32 elements), length (steps), predicted_us, p50_us, p10_us, p90_us, n, issue_us (host part
    of it), us_per_step, eager_over_this (time of eager over this), residual_pct (against predicted_us),
    own_residual_pct (against the same model with unit costs read off this run's shortest chains).
    """
    results, predicted = record.results, record.prediction["values"]["time_us"]
    rows = []
    for name in record.params["variants"]:
        for size, by_length in _by_number(results["time_us"].get(name, {})):
            for n, seen in _by_number(by_length):
                rows.append({
                    "variant": name, "size": int(size), "length": int(n), "predicted_us": predicted[name][size][n],
                    "p50_us": seen["value"], "p10_us": seen["p10"], "p90_us": seen["p90"], "n": seen["n"],
                    "issue_us": results["issue_us"][name][size][n], "us_per_step": seen["value"] / int(n),
                    "eager_over_this": results["speedup"].get(name, {}).get(size, {}).get(n),
                    "residual_pct": results["residual_pct"][name][size].get(n),
                    "own_residual_pct": results["own_residual_pct"].get(name, {}).get(size, {}).get(n),
                })  # fmt: skip
    return pd.DataFrame(rows)


def fit_table(record: RunRecord) -> pd.DataFrame:
    """One row a variant and size: variant, size, fixed_us (at no step), step_us (of one more step)."""
    fitted = record.results["fit"]
    return pd.DataFrame([
        {"variant": name, "size": int(size), **line}
        for name in record.params["variants"] for size, line in _by_number(fitted.get(name, {}))
    ])  # fmt: skip


def _by_number(found: dict[str, Any]) -> list[tuple[str, Any]]:
    return sorted(found.items(), key=lambda item: int(item[0]))


def compare_table(records: Sequence[RunRecord]) -> pd.DataFrame:
    """Costs by record: quantity, size, one column `<hardware tag> <preset>` a record, and what was assumed before.

    Rows: cost of a step and fixed cost of each variant at the smallest size, the size from which launches are hidden,
    the chain from which compiling pays. The 8x V100 report has no such lab.
    """
    values: dict[str, dict[str, Any]] = {}
    for record in records:
        results, column = record.results, f"{record.hardware_tag} {record.preset}"
        small = str(record.params["sizes"][0])
        for name, by_size in results["fit"].items():
            if small in by_size:
                values.setdefault(f"{name}: one more step (us)", {})[column] = by_size[small]["step_us"]
                values.setdefault(f"{name}: fixed (us)", {})[column] = by_size[small]["fixed_us"]
        for label, column_label in (("op_us", "eager: one more step (us)"), ("node_us", "graph: one more step (us)")):
            if column_label in values:
                values[column_label][f"{column}, assumed"] = record.params[label]
        values.setdefault("launches hidden from (elements)", {})[column] = results["hidden_from_elements"]
        values["launches hidden from (elements)"][f"{column}, assumed"] = record.prediction["values"]["hiding_elements"]
        values.setdefault("compiling pays from (steps)", {})[column] = results["break_even_steps"]
    return pd.DataFrame([{"quantity": name, **by_record} for name, by_record in values.items()])

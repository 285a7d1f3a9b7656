"""Tables of the expert-parallel lab: one run by case, and several runs beside the prediction and the report.

In: records. Out: DataFrames with units in the column names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

from labkit.records import RunRecord

if TYPE_CHECKING:
    import pandas as pd

COMPARED = {"max_mean": "ratio", "calls_per_step": "all-to-alls", "fabric_bytes": "bytes", "dispatch_ms": "ms",
            "expert_ms": "ms", "combine_ms": "ms", "step_ms": "ms", "tokens_per_s": "tokens/s",
            "dispatch_gb_per_s": "GB/s", "peer_copy_gb_per_s": "GB/s", "dispatch_vs_peer_copy": "ratio"}
"""Results that `comparison` shows, and their units."""


def cases_frame(record: RunRecord) -> pd.DataFrame:
    """One row a case: who gets how much, how long the phases take, and where a cold rank's time goes.

    Columns: case, max_rows, max_mean (rows of the fullest rank over the mean), dispatch_ms, expert_ms, combine_ms,
    step_ms, step_p10_ms, step_p90_ms, num_samples (slowest rank of each step), tokens_per_s; medians of single ranks:
    hot_combine_ms (rank 0), cold_combine_ms (median of the other ranks), and of steps that meet before combine
    cold_wait_ms and cold_transfer_ms. Unknown is <NA>.
    """
    import pandas as pd

    results = record.results
    rows = []
    for case, received in results.get("received", {}).items():
        step = results.get("step_ms", {}).get(case, {})
        rows.append({
            "case": case, "max_rows": max(received), "max_mean": results["max_mean"][case],
            **{name: _value(results.get(name, {}).get(case)) for name in ("dispatch_ms", "expert_ms", "combine_ms")},
            "step_ms": step.get("value"), "step_p10_ms": step.get("p10"), "step_p90_ms": step.get("p90"),
            "num_samples": step.get("n", 0), "tokens_per_s": _value(results.get("tokens_per_s", {}).get(case)),
            "hot_combine_ms": _hot(results, "rank_combine_ms", case),
            "cold_combine_ms": cold(results, "rank_combine_ms", case),
            "cold_wait_ms": cold(results, "rank_wait_ms", case),
            "cold_transfer_ms": cold(results, "rank_transfer_ms", case),
        })
    frame = pd.DataFrame(rows)
    return frame.sort_values("max_mean", kind="stable", ignore_index=True).convert_dtypes() if rows else pd.DataFrame(
        columns=["case"])


def cold(results: Mapping[str, Any], name: str, case: str) -> float | None:
    """Median over the ranks without the hot expert of a time by rank, ms; None where it was not measured."""
    times = results.get(name, {}).get(case, [])[1:]
    return median(times) if times else None


def _hot(results: Mapping[str, Any], name: str, case: str) -> float | None:
    times = results.get(name, {}).get(case, [])
    return times[0] if times else None


def comparison(records: Sequence[RunRecord], *, reported: Mapping[str, Mapping[str, float]]) -> pd.DataFrame:
    """Prediction, runs and report side by side.

    Args:
        records: runs, the one of interest first; its prediction is shown.
        reported: result -> case -> figure of the 8x V100 report.

    Returns: one row a result and case. Columns: result, case, unit, predicted, then one column a run, named by hardware
    and preset, then "8x V100 (quoted)". Medians where there are samples; unknown is <NA>. Evidence: predicted is
    derived (times are floors), a run is measured, the last column is quoted.
    """
    import pandas as pd

    predicted = dict(records[0].prediction.get("values", {})) if records else {}
    floors = predicted.get("floor_ms", {})
    for phase in ("dispatch", "expert", "combine", "step"):
        predicted[f"{phase}_ms"] = {case: found[phase] for case, found in floors.items()}
    columns: dict[str, Mapping[str, Any]] = {"predicted": predicted}
    for record in records:
        label = f"{record.hardware_tag} {record.preset}"
        columns[label if label not in columns else f"{label} {record.run_id.split('_')[0]}"] = record.results
    columns["8x V100 (quoted)"] = reported
    rows = []
    for result, unit in COMPARED.items():
        cases: dict[str, None] = {}
        for known in columns.values():
            entry = known.get(result)
            cases |= dict.fromkeys(entry if isinstance(entry, Mapping) else [""] if entry is not None else [])
        for case in cases:
            rows.append({"result": result, "case": case, "unit": unit,
                         **{name: _entry(known.get(result), case) for name, known in columns.items()}})
    return pd.DataFrame(rows, columns=["result", "case", "unit", *columns]).convert_dtypes()


def _entry(value: Any, case: str) -> float | None:
    if isinstance(value, Mapping):
        return _value(value.get(case))
    return value if case == "" else None


def _value(value: Any) -> float | None:
    return value["value"] if isinstance(value, Mapping) else value

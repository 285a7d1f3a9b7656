"""Tables of the DDP bucket lab: one run by case, and several runs beside the prediction and the report.

In: records. Out: DataFrames with units in the column names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from labkit.analyze.ddp_results import trace_results
from labkit.calc.ddp_prediction import in_case_order
from labkit.records import RunRecord

if TYPE_CHECKING:
    import pandas as pd

MIB = 2**20
COMPARED = {
    "bucket_count": "buckets",
    "bucket_max_mib": "MiB",
    "collectives_per_step": "all-reduces/step",
    "accum_collectives": "all-reduces/step",
    "wire_bytes_per_rank": "bytes/step",
    "step_time_ms": "ms",
    "tokens_per_s": "tokens/s",
    "comm_union_ms": "ms",
    "exposed_comm_ms": "ms",
    "overlap_pct": "%",
    "compute_ms": "ms",
    "comm_transfer_ms": "ms",
    "comm_wait_ms": "ms",
    "first_comm_start_ms": "ms",
}
"""Results that `comparison` shows, and their units."""


def cases_frame(record: RunRecord) -> pd.DataFrame:
    """One row a case: what the reducer did and how long it took.

    Columns: case, num_buckets, largest_mib, num_collectives, wire_mib_per_rank (sent by a rank in a step), step_ms,
    step_p10_ms, step_p90_ms, num_samples (unprofiled, slowest rank), tokens_per_s; then of one recorded step comm_ms,
    exposed_ms, overlap_pct, first_comm_ms, compute_before_comm_pct (of the rank that waited least), wait_ms and
    transfer_ms (see `labkit.analyze.ddp_results.trace_results`). Unknown is <NA>.
    """
    import pandas as pd

    results = seen(record)
    accum = f"{record.params['accum_cap_mib']:g} MiB"
    sizes = results.get("bucket_sizes_bytes", {})
    rows = []
    for case in in_case_order(cases=[*sizes, *results.get("accum_collectives", {})]):
        buckets = sizes.get(case, sizes[accum])
        time = results["step_time_ms"].get(case, {})
        wire = results["wire_bytes_per_rank"].get(case)
        rows.append({
            "case": case,
            "num_buckets": len(buckets),
            "largest_mib": max(buckets) / MIB,
            "num_collectives": {**results["collectives_per_step"], **results["accum_collectives"]}[case],
            "wire_mib_per_rank": None if wire is None else wire / MIB,
            "step_ms": time.get("value"),
            "step_p10_ms": time.get("p10"),
            "step_p90_ms": time.get("p90"),
            "num_samples": time.get("n", 0),
            "tokens_per_s": results["tokens_per_s"].get(case, {}).get("value"),
            "comm_ms": results["comm_union_ms"].get(case),
            "exposed_ms": results["exposed_comm_ms"].get(case),
            "overlap_pct": results["overlap_pct"].get(case),
            "wait_ms": results["comm_wait_ms"].get(case),
            "transfer_ms": results["comm_transfer_ms"].get(case),
            "first_comm_ms": results["first_comm_start_ms"].get(case),
            "compute_before_comm_pct": results["compute_before_first_comm_pct"].get(case),
        })
    return pd.DataFrame(rows).convert_dtypes() if rows else pd.DataFrame(columns=["case"])


def seen(record: RunRecord) -> dict[str, Any]:
    """Results of a record, those of its recorded steps read anew from its samples where it keeps them."""
    cases = [*record.results.get("bucket_count", {}), *record.results.get("accum_collectives", {})]
    anew = trace_results(record.samples, cases)
    return {**record.results, **{name: {**record.results.get(name, {}), **found} for name, found in anew.items()}}


def comparison(records: Sequence[RunRecord], *, reported: Mapping[str, Mapping[str, float]]) -> pd.DataFrame:
    """Prediction, runs and report side by side.

    Args:
        records: runs, the one of interest first; its prediction is shown.
        reported: result name -> case -> figure of the 8x V100 report.

    Returns: one row a result and case. Columns: result, case, unit, predicted, then one column a run, named by hardware
    and preset, then "8x V100 (quoted)". Medians where there are samples; unknown is <NA>. Evidence: predicted is
    derived (times are floors that no step can beat), a run is measured, the last column is quoted.
    """
    import pandas as pd

    values = records[0].prediction.get("values", {}) if records else {}
    floors = {"comm_transfer_ms": values.get("comm_floor_ms"), "compute_ms": values.get("compute_floor_ms")}
    predicted = {**values, **floors}
    columns: dict[str, Mapping[str, Any]] = {"predicted": predicted}
    for record in records:
        label = f"{record.hardware_tag} {record.preset}"
        if label in columns:  # two runs of one kind: tell them apart by their ids
            label = f"{label} {record.run_id.split('_')[0]}"
        columns[label] = seen(record)
    columns["8x V100 (quoted)"] = reported
    rows = []
    for result, unit in COMPARED.items():
        cases = {case for known in columns.values() for case in known.get(result) or {}}
        for case in in_case_order(cases=cases):
            values = {name: _number((known.get(result) or {}).get(case)) for name, known in columns.items()}
            rows.append({"result": result, "case": case, "unit": unit, **values})
    return pd.DataFrame(rows, columns=["result", "case", "unit", *columns]).convert_dtypes()


def _number(value: Any) -> float | None:
    return value["value"] if isinstance(value, Mapping) else value

"""Tables of the FSDP lab: one run by case, and several runs beside the prediction and the report.

In: records. Out: DataFrames with units in the column names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from labkit.calc.fsdp import in_order
from labkit.records import RunRecord

if TYPE_CHECKING:
    import pandas as pd

MIB = 2**20
COMPARED = {
    "collectives": "calls/step",
    "wire_bytes_per_rank": "bytes/step",
    "step_time_ms": "ms",
    "tokens_per_s": "tokens/s",
    "allocated_peak_gib": "GiB",
    "active_peak_gib": "GiB",
    "reserved_peak_gib": "GiB",
    "comm_union_ms": "ms",
    "comm_transfer_ms": "ms",
    "exposed_comm_ms": "ms",
    "overlap_pct": "%",
    "compute_ms": "ms",
    "limiter_waits": "waits/step",
}
"""Results that `comparison` shows, and their units."""


def cases_frame(record: RunRecord) -> pd.DataFrame:
    """One row a case: what it sent, what it kept, how long it took.

    Columns: case, num_units, num_gathers, num_scatters, wire_mib_per_rank (sent by a rank in a step),
    state_mib_per_rank (shards, gradients and moments of the largest rank); step_ms, step_p10_ms, step_p90_ms,
    num_samples (unprofiled, slowest rank), tokens_per_s; allocated_gib, active_gib, reserved_gib (peaks; on a GPU
    only); then of one recorded step comm_ms, exposed_ms, overlap_pct, compute_ms (of the rank that waited least) and
    transfer_ms. Unknown is <NA>.
    """
    import pandas as pd

    results = record.results
    rows = []
    for case in in_order(cases=results.get("step_time_ms", {})):
        time, counts = results["step_time_ms"][case], results["collectives"].get(case, {"ag": 0, "rs": 0})
        state = results["state_bytes"][case]
        rows.append({
            "case": case,
            "num_gathers": counts["ag"],
            "num_scatters": counts["rs"],
            "wire_mib_per_rank": results["wire_bytes_per_rank"].get(case, 0) / MIB,
            "state_mib_per_rank": max(sum(of_rank) for of_rank in zip(*state.values())) / MIB,
            "step_ms": time["value"],
            "step_p10_ms": time["p10"],
            "step_p90_ms": time["p90"],
            "num_samples": time["n"],
            "tokens_per_s": results["tokens_per_s"][case]["value"],
            **{f"{name}_gib": results[f"{name}_peak_gib"].get(case) for name in ("allocated", "active", "reserved")},
            "comm_ms": results["comm_union_ms"].get(case),
            "exposed_ms": results["exposed_comm_ms"].get(case),
            "overlap_pct": results["overlap_pct"].get(case),
            "compute_ms": results["compute_ms"].get(case),
            "transfer_ms": results["comm_transfer_ms"].get(case),
        })
    return pd.DataFrame(rows).convert_dtypes() if rows else pd.DataFrame(columns=["case"])


def comparison(records: Sequence[RunRecord], *, reported: Mapping[str, Mapping[str, Any]]) -> pd.DataFrame:
    """Prediction, runs and report side by side.

    Args:
        records: runs, the one of interest first; its prediction is shown.
        reported: result name -> case -> figure of the 8x V100 report.

    Returns: one row a result and case. Columns: result, case, unit, predicted, then one column a run, named by hardware
    and preset, then "8x V100 (quoted)". Medians where there are samples; counts as "gathers + scatters"; unknown is
    <NA>. Evidence: predicted is derived (times are floors that no step can beat), a run is measured, the last column is
    quoted.
    """
    import pandas as pd

    values = records[0].prediction.get("values", {}) if records else {}
    floors = {"comm_transfer_ms": "comm_floor_ms", "exposed_comm_ms": "exposed_floor_ms",
              "step_time_ms": "step_floor_ms"}
    predicted = {**values, **{name: values.get(floor) for name, floor in floors.items()},
                 "allocated_peak_gib": {case: size / 2**30
                                        for case, size in values.get("memory_floor_bytes", {}).items()}
                 if records and records[0].results.get("allocated_peak_gib") else {}}
    columns: dict[str, Mapping[str, Any]] = {"predicted": predicted}
    for record in records:
        label = f"{record.hardware_tag} {record.preset}"
        if label in columns:  # two runs of one kind: tell them apart by their ids
            label = f"{label} {record.run_id.split('_')[0]}"
        columns[label] = record.results
    columns["8x V100 (quoted)"] = reported
    rows = []
    for result, unit in COMPARED.items():
        cases = {case for known in columns.values() for case in known.get(result) or {}}
        for case in in_order(cases=cases):
            shown = {name: _shown((known.get(result) or {}).get(case)) for name, known in columns.items()}
            rows.append({"result": result, "case": case, "unit": unit, **shown})
    return pd.DataFrame(rows, columns=["result", "case", "unit", *columns])


def _shown(value: Any) -> float | str | None:
    if isinstance(value, Mapping):
        return f"{value['ag']} + {value['rs']}" if "ag" in value else value["value"]
    return value

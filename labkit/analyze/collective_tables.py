"""Tables of the collective sweep: one run by case and size, and several runs beside the prediction and the report.

In: records. Out: DataFrames with units in the column names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from labkit.calc.collective_fit import label_bytes
from labkit.records import RunRecord

if TYPE_CHECKING:
    import pandas as pd

COMPARED = {
    "chosen": "pair in the log", "best_combo": "pair", "best_time": "us", "best_busbw": "GB/s", "channel_busbw": "GB/s",
    "pair_alone": "GB/s", "pair_together": "GB/s", "pair_slowdown_max": "x", "directions": "GB/s",
}
"""Results that `comparison` shows, and their units."""


def sweep_frame(record: RunRecord) -> pd.DataFrame:
    """One row a case and size.

    Columns: case (`auto` and forced pairs: all_reduce; else the collective), size_bytes, size, time_us (median of the
    slowest rank), p10_us, p90_us, num_samples, algbw_gb_per_s, busbw_gb_per_s (1e9 bytes/s). Empty for a failed launch.
    """
    import pandas as pd

    rows = []
    for case, sizes in record.results.get("time_us", {}).items():
        for label, time in sizes.items():
            rows.append({
                "case": case, "size_bytes": label_bytes(label), "size": label, "time_us": time["value"],
                "p10_us": time["p10"], "p90_us": time["p90"], "num_samples": time["n"],
                "algbw_gb_per_s": record.results["algbw_gb_per_s"][case][label],
                "busbw_gb_per_s": record.results["busbw_gb_per_s"][case][label]["value"]})
    rows.sort(key=lambda row: (row["case"] != "auto", "+" not in row["case"], row["case"], row["size_bytes"]))
    return pd.DataFrame(rows).convert_dtypes() if rows else pd.DataFrame(columns=["case"])


def winner_frame(record: RunRecord) -> pd.DataFrame:
    """One row a size: which forced pair was fastest, and what the library chose by its own log.

    Columns: size, fastest, time_us, is_clear (its p90 is below every other pair's p10), chosen (None where the log has
    no line), auto_us (time as the library chooses), loss_pct (of the library's choice against the fastest).
    """
    import pandas as pd

    results, rows = record.results, []
    for label, best in sorted(results.get("best_combo", {}).items(), key=lambda entry: label_bytes(entry[0])):
        own, first = results["time_us"].get("auto", {}).get(label), results["best_time"][label]
        rows.append({
            "size": label, "fastest": best, "time_us": first["value"], "is_clear": results["best_is_clear"][label],
            "chosen": results["chosen"].get(label), "auto_us": own["value"] if own else None,
            "loss_pct": 100 * (own["value"] / first["value"] - 1) if own else None})
    return pd.DataFrame(rows, columns=["size", "fastest", "time_us", "is_clear", "chosen", "auto_us", "loss_pct"])


def fit_frame(record: RunRecord) -> pd.DataFrame:
    """One row a case: alpha and bandwidth from every second size, tested on the others.

    Columns: case, alpha_us, algbw_gb_per_s, median_held_out_pct, worst_held_out_pct (absolute residuals of the sizes
    that were not fitted), nccl_alpha_us and nccl_gb_per_s (NCCL's own cost table, from its log; None without one).
    """
    import pandas as pd

    columns = ["alpha_us", "algbw_gb_per_s", "median_held_out_pct", "worst_held_out_pct"]
    model = record.results.get("model_us_gb_per_s", {})
    rows = [{"case": case, **{name: fit[name] for name in columns},
             "nccl_alpha_us": model.get(case, {}).get("latency_us"),
             "nccl_gb_per_s": model.get(case, {}).get("bandwidth_gb_per_s")}
            for case, fit in record.results.get("fit", {}).items()]
    return pd.DataFrame(rows, columns=["case", *columns, "nccl_alpha_us", "nccl_gb_per_s"])


def comparison(records: Sequence[RunRecord], *, reported: Mapping[str, Mapping[str, Any]]) -> pd.DataFrame:
    """Prediction, runs and report side by side.

    Args:
        records: runs, the one of interest first; its prediction is shown.
        reported: result name -> case -> figure of the 8x V100 report.

    Returns: one row a result and case. Columns: result, case, unit, predicted (floors of the link, which no ring or
    tree can beat), then one column a run, named by hardware and preset, then "8x V100 (quoted)". Medians where there
    are samples; unknown is None.
    """
    import pandas as pd

    values = records[0].prediction.get("values", {}) if records else {}
    columns: dict[str, Mapping[str, Any]] = {"predicted": {"best_time": values.get("floor_us", {})}}
    for record in records:
        label = f"{record.hardware_tag} {record.preset}"
        if label in columns:  # two runs of one kind: tell them apart by their ids
            label = f"{label} {record.run_id.split('_')[0]}"
        columns[label] = record.results
    columns["8x V100 (quoted)"] = reported
    rows = []
    for result, unit in COMPARED.items():
        cases = list(dict.fromkeys(str(case) for known in columns.values() for case in known.get(result) or {}))
        for case in sorted(cases, key=_order):
            found = {name: _plain((known.get(result) or {}).get(case)) for name, known in columns.items()}
            if any(found[name] is not None for name in columns if name != "predicted"):
                rows.append({"result": result, "case": case, "unit": unit, **found})
    return pd.DataFrame(rows, columns=["result", "case", "unit", *columns], dtype=object)


def _order(case: str) -> tuple[int, float, str]:
    """Sizes by bytes, numbers by value, the rest as text."""
    try:
        return 0, float(label_bytes(case)), ""
    except ValueError:
        return (1, float(case), "") if case.isdigit() else (2, 0.0, case)


def _plain(value: Any) -> Any:
    value = value["value"] if isinstance(value, Mapping) else value
    return round(value, 3) if isinstance(value, float) else value

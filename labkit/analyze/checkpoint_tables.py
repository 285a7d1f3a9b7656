"""Tables of the checkpoint lab: controls, runs beside prediction and report, saves, accidents, faults.

In: records. Out: DataFrames with units in the column names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from labkit.calc.checkpoint_resume import CONTROLS, REPORTED
from labkit.records import RunRecord

if TYPE_CHECKING:
    import pandas as pd


def resume_frame(record: RunRecord) -> pd.DataFrame:
    """One row a world size and control.

    Columns: ranks, control, first_mismatch_step (predicted, for gloo's ring), seen_mismatch_step, reordered_elements
    (predicted: summed in another order), gradient_elements_differing (first resumed step), elements_differing and
    max_diff_nano (weights at the end; the largest difference in 1e-9), is_bitwise. No step is <NA>: every gradient
    repeats.
    """
    import pandas as pd

    predicted = record.prediction.get("values", {})
    rows = [{
        "ranks": int(world), "control": control,
        "first_mismatch_step": predicted["first_mismatch"][world][control], "seen_mismatch_step": seen,
        "reordered_elements": predicted["reordered_elements"][world][control],
        **{name: found[name][control] for name in ("gradient_elements_differing", "elements_differing")},
        "max_diff_nano": found["max_abs_diff"][control] * 1e9, "is_bitwise": found["is_bitwise"][control],
    } for world, found in record.results.get("by_world_size", {}).items()
        for control, seen in _in_order(found["first_mismatch"])]
    columns = ["ranks", "control", "first_mismatch_step", "seen_mismatch_step", "reordered_elements",
               "gradient_elements_differing", "elements_differing", "max_diff_nano", "is_bitwise"]
    return pd.DataFrame(rows, columns=columns).convert_dtypes()


def _in_order(by_control: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Items in the order of CONTROLS: a record keeps its keys sorted."""
    return [(control, by_control[control]) for control in CONTROLS if control in by_control]


def cost_frame(record: RunRecord) -> pd.DataFrame:
    """One row a size of state and kind of save.

    Columns: size, save, ms, p10_ms, p90_ms, num_samples, cost_pct (over the bare save of the same round), hash_ms
    (share of the slowest rank), stall_ms (what training waits for). Unknown is <NA>.
    """
    import pandas as pd

    results = record.results
    rows = []
    for size, variants in results.get("save_ms", {}).items():
        for variant, time in variants.items():
            rows.append({
                "size": size, "save": variant, "ms": time["value"], "p10_ms": time["p10"], "p90_ms": time["p90"],
                "num_samples": time["n"],
                "cost_pct": results["save_cost_pct"][size].get(variant, {}).get("value"),
                "hash_ms": results["hash_ms"].get(size, {}).get(variant, {}).get("value"),
                "stall_ms": results["async_stall_ms"][size]["value"] if variant == "async" else time["value"]})
    columns = ["size", "save", "ms", "p10_ms", "p90_ms", "num_samples", "cost_pct", "hash_ms", "stall_ms"]
    return pd.DataFrame(rows, columns=columns).convert_dtypes()


def goal_frame(record: RunRecord) -> pd.DataFrame:
    """One row a size of state: what the fast hash and the manifest add to a bare save, beside the goal of five percent.

    Columns: size, bare_ms, extra_ms (median over rounds, like cost_pct), extra_p10_ms, extra_p90_ms, fitted_ms (the
    straight line through all sizes), cost_pct, predicted_pct, num_samples, is_within_5_pct.
    """
    import pandas as pd

    results, rows = record.results, []
    predicted = record.prediction.get("values", {}).get("save_cost_pct", {})
    fit = results.get("fast_cost_fit")
    for size, extra in results.get("fast_extra_ms", {}).items():
        rows.append({
            "size": size, "bare_ms": results["save_ms"][size]["bare"]["value"], "extra_ms": extra["value"],
            "extra_p10_ms": extra["p10"], "extra_p90_ms": extra["p90"],
            "fitted_ms": fit["fixed_ms"] + fit["per_mb_ms"] * float(size.split()[0]) if fit else None,
            "cost_pct": results["fast_cost_pct"][size]["value"],
            "predicted_pct": predicted.get(size, {}).get(results["fast_hash"]), "num_samples": extra["n"],
            "is_within_5_pct": results["is_fast_cost_within_5_pct"][size]})
    rows.sort(key=lambda row: float(row["size"].split()[0]))
    columns = ["size", "bare_ms", "extra_ms", "extra_p10_ms", "extra_p90_ms", "fitted_ms", "cost_pct", "predicted_pct",
               "num_samples", "is_within_5_pct"]
    return pd.DataFrame(rows, columns=columns).convert_dtypes()


def dcp_frame(record: RunRecord) -> pd.DataFrame:
    """One row an accident. Columns: accident, dcp_load, verify, newest_good_step, said (first line of verification)."""
    import pandas as pd

    rows = [{"accident": name, "dcp_load": own["dcp_load"], "verify": own["verify"],
             "newest_good_step": own["newest_good_step"], "said": next(iter(own["said"]), "")}
            for name, own in record.results.get("dcp_scenarios", {}).items()]
    return pd.DataFrame(rows, columns=["accident", "dcp_load", "verify", "newest_good_step", "said"])


def fault_frame(record: RunRecord) -> pd.DataFrame:
    """One row a kind of fault. Columns: where (drill on the protocol, or real gloo ranks), fault, tried, detected,
    recovered.
    """
    import pandas as pd

    rows = [{"where": "protocol", "fault": kind, "tried": own["faults"], "detected": own["detected"],
             "recovered": own["recovered"]}
            for kind, own in record.results.get("drill", {}).get("by_kind", {}).items()]
    rows += [{"where": "gloo ranks", "fault": kind, "tried": own["tries"], "detected": own["recovered"],
              "recovered": own["recovered"]}
             for kind, own in record.results.get("kills", {}).get("by_fault", {}).items() if kind != "none"]
    return pd.DataFrame(rows, columns=["where", "fault", "tried", "detected", "recovered"])


def comparison(records: Sequence[RunRecord], *, reported: Mapping[str, Mapping[str, Any]]) -> pd.DataFrame:
    """Prediction, runs and report side by side.

    Args:
        records: runs, the one of interest first; its prediction is shown.
        reported: result name -> control, or unit -> figure of the 8x V100 report.

    Returns: one row a result and case, of the report's controls only. Columns: result, case, predicted, one column a
        run (hardware and preset), "8x V100 (quoted)". Values are text, since steps, counts and times share a column;
        "" is unknown. "predicted" is derived; a run is measured; the last column is quoted.
    """
    import pandas as pd

    columns: dict[str, dict[tuple[str, str], Any]] = {"predicted": _predicted(records[0])}
    for record in records:
        label = f"{record.hardware_tag} {record.preset}"
        columns[f"{label} {record.run_id.split('_')[0]}" if label in columns else label] = _seen(record)
    columns["8x V100 (quoted)"] = {
        (name, f"8 ranks, {case}" if case in CONTROLS else case): value
        for name, own in reported.items() for case, value in own.items()}
    keys = sorted(dict.fromkeys(key for found in columns.values() for key in found),
                  key=lambda key: [*_NAMES.values()].index(key[0]) if key[0] in _NAMES.values() else len(_NAMES))
    rows = [{"result": result, "case": case,
             **{name: _text(found[result, case]) if (result, case) in found else "" for name, found in columns.items()}}
            for result, case in keys]
    return pd.DataFrame(rows, columns=["result", "case", *columns])


_NAMES = {"first_mismatch": "first_mismatch", "elements_differing": "diff_elements", "max_abs_diff": "max_diff"}


def _predicted(record: RunRecord) -> dict[tuple[str, str], Any]:
    values = record.prediction.get("values", {})
    found = {("first_mismatch", f"{world} ranks, {control}"): step
             for world, own in values.get("first_mismatch", {}).items() for control, step in _in_order(own)
             if control in REPORTED}
    found |= {("save cost %", f"{size}, {name}"): cost for size, own in values.get("save_cost_pct", {}).items()
              for name, cost in own.items()}
    found |= {("5 % from MB", name): size for name, size in values.get("within_5_pct_from_mb", {}).items()}
    return found


def _seen(record: RunRecord) -> dict[tuple[str, str], Any]:
    results = record.results
    found = {(_NAMES[name], f"{world} ranks, {control}"): value
             for name in _NAMES for world, own in results.get("by_world_size", {}).items()
             for control, value in _in_order(own[name]) if control in REPORTED}
    found |= {("save cost %", f"{size}, {name.removeprefix('protocol ')}"): cost["value"]
              for size, own in results.get("save_cost_pct", {}).items() for name, cost in own.items()}
    if fit := results.get("fast_cost_fit"):
        found["5 % from MB", results["fast_hash"]] = fit["within_5_pct_from_mb"]
    for name in ("fault_exit_time", "fault_straggler_time"):
        if name in results:
            found[name, "s"] = results[name]
    return found


def _text(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,d}" if isinstance(value, int) else f"{value:.4g}"

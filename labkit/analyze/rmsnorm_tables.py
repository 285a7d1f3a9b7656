"""Tables of RMSNorm records: one row a shape, and predicted, measured and quoted side by side."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import pandas as pd
import yaml

from labkit.paths import CLAIMS
from labkit.records import RunRecord

QUOTED = {
    "time_ms": "triton-ms", "speedup_native": "triton-speedup-native", "speedup_composite": "triton-speedup-composite",
    "min_bytes_gb_per_s": "triton-minbytes-bw", "max_abs_err": "triton-max-err",
}  # fmt: skip
"""Result name -> claim of the 8x V100 report that states it."""
EVIDENCE = {"cpu": "interpreter, correctness only", "cuda": "measured"}


@cache
def quoted() -> dict[str, dict[str, float]]:
    """What the 8x V100 report prints, by result name and shape."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    claims = yaml.load((CLAIMS / "v100_report.yaml").read_text(encoding="utf-8"), Loader=loader)["claims"]
    values = {claim["id"]: claim["value"] for claim in claims}
    return {name: values[claim_id] for name, claim_id in QUOTED.items()}


def number(value: Any) -> Any:
    """The median of a quantity; anything else as it is."""
    return value["value"] if isinstance(value, dict) and "p10" in value else value


def shape_table(record: RunRecord) -> pd.DataFrame:
    """One row a shape.

    Columns: shape, rows_checked, min_mb (1e6 bytes), block, masked_pct, max_abs_err and max_rel_err (report's kernel),
    report_bound_used and fast_bound_used (largest error / bound, at most 1), right. For a GPU native_bound_used and
    liger_bound_used (not judged); from calls after an L2 flush fast_ms, native_gpu_ms, compile_ms, liger_ms, copy_ms
    (medians), fast_, copy_, native_ and compile_gb_per_s with _p10, _p90 and _n, copy_fraction (copy over fast),
    speedup_compile, speedup_native_gpu, noise_pct (copy timed twice), config; from loops as the report timed: time_ms,
    native_ms, composite_ms, speedup_native, speedup_composite; v100_* as quoted; flags.
    """
    results = record.results
    rows = [_row(record, shape) for shape in record.params["shapes"] if shape in results["within_bound"]]
    if record.params["device"] == "cuda" and results.get("fast_ms"):
        rows = [{**row, **_times(results, row["shape"])} for row in rows]
    return pd.DataFrame(rows)


def _row(record: RunRecord, shape: str) -> dict[str, Any]:
    results, hidden = record.results, shape.split()[0].split("x")[1]
    used = results["bound_used"]
    return {
        "shape": shape, "rows_checked": results["rows_checked"][shape], "min_mb": results["min_bytes"][shape] / 1e6,
        "block": results["block_size"][hidden], "masked_pct": results["masked_lane_pct"][hidden],
        "max_abs_err": results["max_abs_err"][shape], "max_rel_err": results["max_rel_err"][shape],
        "report_bound_used": used["report"][shape], "fast_bound_used": used["fast"][shape],
        **{f"{name}_bound_used": used[name].get(shape) for name in ("native", "liger") if name in used},
        "right": results["within_bound"][shape],
    }  # fmt: skip


def _times(results: dict[str, Any], shape: str) -> dict[str, Any]:
    get = lambda name: number(results.get(name, {}).get(shape))  # noqa: E731
    out: dict[str, Any] = {name: get(name) for name in ("fast_ms", "compile_ms", "liger_ms", "copy_ms")}
    out["native_gpu_ms"] = number(results["cold_ms"].get("native", {}).get(shape))
    for name in ("fast_gb_per_s", "copy_gb_per_s", "native_gb_per_s", "compile_gb_per_s"):
        found = results.get(name, {}).get(shape) or {}
        out |= {name: found.get("value"), f"{name}_p10": found.get("p10"), f"{name}_p90": found.get("p90")}
        out[f"{name}_n"] = found.get("n")
    for name in ("copy_fraction", "speedup_compile", "speedup_native_gpu"):
        out[name] = get(name)
    out["noise_pct"] = results["noise_floor_pct"].get(shape)
    for name in ("time_ms", "native_ms", "composite_ms", "speedup_native", "speedup_composite"):
        out[name] = get(name)
    out |= {f"v100_{name}": values.get(shape) for name, values in quoted().items()}
    flags = results["flags"].get(shape, {})
    host, looped = flags.get("host_bound", []), [name for name, found in results["stream_ms"].items() if shape in found]
    told = ["host-bound: " + ("all" if len(host) == len(looped) else ", ".join(host))] if host else []
    told += ["fits L2"] if flags.get("l2_hot") else []
    told += ["compile fell back"] if flags.get("compile_fell_back") else []
    told += results["goal_missed"].get(shape, [])
    return {**out, "config": results["config"].get(shape), "flags": "; ".join(told)}


def compare_table(records: Sequence[RunRecord]) -> pd.DataFrame:
    """Predicted, measured and quoted values side by side.

    Columns: quantity (result name, unit in the name), shape, predicted (by the first record that predicted it), one
    column a record named `<hardware tag> (<evidence>)`, with the preset where two records share it, and `V100 PCIe
    (quoted)`. None: not measured there. Rows: the report's six shapes, the fast kernel on every shape that any record
    timed, then the parts that any record timed.
    """
    report = quoted()
    names = ["max_abs_err", "time_ms", "speedup_native", "speedup_composite", "min_bytes_gb_per_s"]
    pairs = [(name, shape) for name in names for shape in report["time_ms"]]
    shapes = dict.fromkeys(shape for record in records for shape in record.params["shapes"])
    timed = [shape for shape in shapes if any(shape in record.results.get("fast_ms", {}) for record in records)]
    pairs += [(name, shape) for name in ("fast_ms", "copy_fraction", "speedup_compile") for shape in timed]
    for part in ("backward", "wide_forward", "wide_backward"):
        found = dict.fromkeys(shape for record in records for shape in record.results.get(f"{part}_ms", {}))
        pairs += [(f"{part}_{name}", shape) for name in ("ms", "copy_fraction", "speedup_compile") for shape in found]
    return pd.DataFrame([_compared(name, shape, records, report) for name, shape in pairs])


def _compared(name: str, shape: str, records: Sequence[RunRecord], report: dict[str, Any]) -> dict[str, Any]:
    row: dict[str, Any] = {"quantity": name, "shape": shape, "predicted": None}
    if name == "fast_ms":
        found = [r.prediction["values"].get("time_ms", {}).get("profile", {}).get(shape) for r in records]
        row["predicted"] = next((value for value in found if value is not None), None)
    if name.removesuffix("_ms") in ("backward", "wide_forward", "wide_backward"):
        times = [r.prediction["values"].get("part_time_ms", {}).get("profile", {}) for r in records]
        found = [by_part.get(name.removesuffix("_ms"), {}).get(shape) for by_part in times]
        row["predicted"] = next((value for value in found if value is not None), None)
    plain = [f"{record.hardware_tag} ({EVIDENCE[record.params['device']]})" for record in records]
    for record, name_of in zip(records, plain):
        column = name_of if plain.count(name_of) == 1 else f"{name_of[:-1]}, {record.preset})"
        row[column] = number(record.results.get(name, {}).get(shape))
    return {**row, "V100 PCIe (quoted)": report.get(name, {}).get(shape)}

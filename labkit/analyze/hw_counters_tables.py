"""Tables of the hardware counter lab, for its page. In: records. Out: DataFrames with units in their column names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from labkit.analyze.hw_counters_plan import MEASURED_AS, workloads
from labkit.analyze.hw_counters_results import derived
from labkit.records import RunRecord

COLUMNS = {
    "dram_read_mb": ("dram_read_bytes", 1e-6), "dram_write_mb": ("dram_write_bytes", 1e-6),
    "retained_mb": ("retained_write_bytes", 1e-6), "dram_over_min": ("dram_over_min_bytes", 1.0),
    "l2_hit_pct": ("l2_hit_pct", 1.0), "l1_hit_pct": ("l1_hit_pct", 1.0), "l2_read_mb": ("l2_read_bytes", 1e-6),
    "ncu_us": ("ncu_time_us", 1.0), "cold_us": ("cold_time_us", 1.0), "steady_us": ("steady_time_us", 1.0),
    "effective_gb_per_s": ("effective_gb_per_s", 1.0), "dram_gb_per_s": ("dram_gb_per_s", 1.0),
    "registers": ("registers", 1.0), "theoretical_pct": ("theoretical_occupancy_pct", 1.0),
    "rule_pct": ("rule_occupancy_pct", 1.0), "achieved_pct": ("achieved_occupancy_pct", 1.0),
    "tensor_pipe_pct": ("tensor_pipe_pct", 1.0), "dram_throughput_pct": ("dram_throughput_pct", 1.0),
    "sm_throughput_pct": ("sm_throughput_pct", 1.0), "cycles_per_instruction": ("cycles_per_instruction", 1.0),
    "l2_write_mb": ("l2_write_bytes", 1e-6), "passes_seen": ("passes_seen_by_memory", 1.0),
    "local_stores": ("local_stores", 1.0),
    "tensor_instructions": ("tensor_instructions", 1.0), "tensor_flop": ("tensor_flop", 1.0),
}
"""Column -> result and factor; MB is 1e6 bytes."""
COMPARED = (
    ("read from memory, cold", "dram_read_bytes", 1e-6, "MB"),
    ("written to memory, cold", "dram_write_bytes", 1e-6, "MB"),
    ("still in L2 at the end", "retained_write_bytes", 1e-6, "MB"),
    ("the same, if L2 were one cache", "retained_one_cache_bytes", 1e-6, "MB"), ("L2 hits", "l2_hit_pct", 1.0, "%"),
    ("read from L2", "l2_read_bytes", 1e-6, "MB"), ("tensor operations", "tensor_flop", 1e-9, "GFLOP"),
    ("one cold call", "cold_time_us", 1.0, "us"), ("one of many calls", "steady_time_us", 1.0, "us"),
)  # fmt: skip
REPORT = "not read: no permission"
"""What the V100 report has in place of every counter."""


def value_of(results: Mapping[str, Any], name: str, workload: str) -> float | None:
    """A result's number for one workload, the median of a quantity; None where there is none."""
    value = results.get(name, {}).get(workload)
    value = value.get("value") if isinstance(value, Mapping) else value
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def kernel_table(record: RunRecord) -> pd.DataFrame:
    """One row a workload of a GPU record.

    Columns: workload, op, passes, kernels (per call), min_mb, those of COLUMNS (MB, us, GB/s, percent), top_stall.
    """
    plan, rows = workloads(record.params), []
    results = {**derived(record.results, plan), **record.results}  # a record may lack what a later version derives
    for name, spec in plan.items():
        passes = spec.get("passes", 1)
        row: dict[str, Any] = {"workload": name, "op": spec["op"], "passes": passes,
                               "kernels": results.get("kernels_per_call", {}).get(name, 0),
                               "min_mb": passes * (spec["read_bytes"] + spec["write_bytes"]) / 1e6}  # fmt: skip
        for column, (result, factor) in COLUMNS.items():
            value = value_of(results, result, name)
            row[column] = None if value is None else value * factor
        rows.append({**row, "top_stall": results.get("top_stall", {}).get(name)})
    return pd.DataFrame(rows)


def host_table(record: RunRecord) -> pd.DataFrame:
    """One row a mapping of a CPU record: size, predicted_faults, getrusage_faults, perf_faults, second_faults, n."""
    faults = record.results.get("page_faults", {})
    return pd.DataFrame([
        {"size": size, "predicted_faults": entry["predicted"], "getrusage_faults": entry["getrusage"],
         "perf_faults": entry["perf"], "second_faults": entry["second"], "n": entry["n"],
         "ns_per_page": record.results["touch_ns_per_page"][size]}
        for size, entry in faults.items()
    ])  # fmt: skip


def counters_table(record: RunRecord) -> pd.DataFrame:
    """Which counters this machine gives: counter, state ("read", or why not)."""
    found = dict(record.results.get("host_counters", {}))
    query = record.results.get("ncu_query")
    if query:
        found["GPU counters"] = query["error"] or f"{query['num_metrics']} offered"
    elif record.results.get("counters"):
        found["GPU counters"] = record.results["counters"]
    return pd.DataFrame([{"counter": name, "state": state} for name, state in found.items()])


def stall_table(record: RunRecord, names: Sequence[str] | None = None, *, top: int = 4) -> pd.DataFrame:
    """The largest reasons of each workload: workload, reason, warps (waiting whenever an instruction is issued)."""
    stalls = record.results.get("stalls", {})
    rows = [
        {"workload": name, "reason": reason, "warps": value, "share_pct": 100 * value / sum(stalls[name].values())}
        for name in (names or stalls) if name in stalls
        for reason, value in sorted(stalls[name].items(), key=lambda item: -item[1])[:top]
    ]  # fmt: skip
    return pd.DataFrame(rows)


def compare_table(records: Sequence[RunRecord]) -> pd.DataFrame:
    """Predicted, measured, residual and the report side by side.

    Args:
        records: those without GPU counters are left out.

    Returns: quantity, workload, unit, and for each hardware tag `<tag> predicted`, `<tag>` and `<tag> residual_pct`;
        v100_report says why the report has no number.
    """
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for record in records:
        if record.results.get("counters") != "read":
            continue
        tag, predicted = record.hardware_tag, record.prediction["values"]
        for label, result, factor, unit in COMPARED:
            for workload in predicted.get(result, {}):
                expected = value_of(predicted, result, workload)
                seen = value_of(record.results, MEASURED_AS.get(result, result), workload)
                if seen is None or expected is None:
                    continue
                row = rows.setdefault((label, workload), {"quantity": label, "workload": workload, "unit": unit})
                row |= {f"{tag} predicted": expected * factor, tag: seen * factor,
                        f"{tag} residual_pct": 100 * (seen / expected - 1) if expected else None}  # fmt: skip
    return pd.DataFrame([{**row, "v100_report": REPORT} for row in rows.values()])

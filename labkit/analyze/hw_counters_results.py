"""What a run of the hardware counter lab found: by workload, from the counted calls and the unprofiled times.

In: rows of `labkit.analyze.hw_counters.counted_calls`, timing lines, the plan of the slice. Out: plain dicts for a
record's results and samples. Everything can be computed again from the files of a record, which is what a replay does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from labkit.analyze.hw_counters import STALLS, Row, counted_calls, folders, groups_read, read_lines
from labkit.calc.gemm import gemm_flop
from labkit.calc.occupancy import LIMITS, occupancy
from labkit.records import quantity

COLD = {
    "dram_read_bytes": "bytes", "dram_write_bytes": "bytes", "l2_hit_pct": "%", "l1_hit_pct": "%",
    "achieved_occupancy_pct": "%", "sm_throughput_pct": "%", "dram_throughput_pct": "%", "tensor_pipe_pct": "%",
    "cycles_per_instruction": "cycles", "l2_read_bytes": "bytes", "l2_write_bytes": "bytes",
}
"""Result of the cold calls -> unit; each is a quantity by workload."""
FIXED = ("registers", "theoretical_occupancy_pct", "threads_per_block", "shared_static_bytes", "shared_dynamic_bytes",
         "tensor_instructions", "gmma_instructions", "hmma_instructions", "tensor_flop", "local_stores")  # fmt: skip
"""Results that every call of a workload must give alike."""
SECTOR_BYTES = 32
Plan = Mapping[str, Mapping[str, Any]]
"""Workload -> its spec with `read_bytes` and `write_bytes`."""


def collect(run_dir: Path, plan: Plan) -> tuple[dict[str, Any], dict[str, Any]]:
    """Results and samples of a run from its files.

    Raises: ValueError when the files do not fit together.
    """
    rows = [with_l2_bytes(row) for row in counted_calls(run_dir)]
    times = timing_samples(run_dir)
    found = {**counted_results(rows, plan), **timing_results(times, plan), "counters_read": groups_read(rows)}
    found["device"] = next((line for _, _, folder in folders(run_dir) for line in read_lines(folder)
                            if line["kind"] == "device"), {})  # fmt: skip
    return {**found, **derived(found, plan)}, {**count_samples(rows), **times_as_samples(times)}


def with_l2_bytes(row: Row) -> Row:
    """A row with its L2 sectors as bytes too."""
    sectors = {kind: row.get(f"l2_{kind}_sectors") for kind in ("read", "write")}
    return row | {f"l2_{kind}_bytes": SECTOR_BYTES * value for kind, value in sectors.items() if value is not None}


def values_of(rows: Sequence[Row], name: str, workload: str) -> list[list[float]]:
    """Values of one name by process."""
    by_process: dict[int, list[float]] = {}
    for row in rows:
        if row["workload"] == workload and row.get(name) is not None:
            by_process.setdefault(row["process"], []).append(row[name])
    return [values for _, values in sorted(by_process.items())]


def counted_results(rows: Sequence[Row], plan: Plan) -> dict[str, Any]:
    """Counter values by workload; the caches were emptied before each pass of the tool."""
    out: dict[str, Any] = {name: {} for name in (*COLD, *FIXED, "ncu_time_us", "stalls", "kernels_per_call", "kernels")}
    for workload in plan:
        for name, unit in COLD.items():
            _put(out[name], workload, values_of(rows, name, workload), unit)
        _put(out["ncu_time_us"], workload, _scaled(values_of(rows, "time_ns", workload), 1e-3), "us")
        own = [row for row in rows if row["workload"] == workload]
        for name in FIXED:
            seen = sorted({row[name] for row in own if row.get(name) is not None})
            if seen:
                out[name][workload] = seen[0] if len(seen) == 1 else seen
        if own:
            out["kernels_per_call"][workload] = max(len(row["kernels"]) for row in own)
            out["kernels"][workload] = sorted({name for row in own for name in row["kernels"]})
            out["stalls"][workload] = _means(own)
    return {name: value for name, value in out.items() if value}


def _means(rows: Sequence[Row]) -> dict[str, float]:
    """Mean warps waiting for each reason whenever an instruction was issued, largest first."""
    means = {name: [row[f"stall_{name}"] for row in rows if row.get(f"stall_{name}") is not None] for name in STALLS}
    found = {name: round(sum(values) / len(values), 4) for name, values in means.items() if values}
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def _put(into: dict[str, Any], workload: str, by_process: list[list[float]], unit: str) -> None:
    values = [value for process in by_process for value in process]
    if values:
        into[workload] = quantity(values, unit, num_processes=len(by_process))


def _scaled(by_process: list[list[float]], factor: float) -> list[list[float]]:
    return [[value * factor for value in values] for values in by_process]


def timing_samples(run_dir: Path) -> dict[tuple[str, str], list[list[float]]]:
    """(mode, workload) -> unprofiled times in ms, by process."""
    found: dict[tuple[str, str], list[list[float]]] = {}
    for _, mode, folder in folders(run_dir):
        if mode == "time":
            for line in read_lines(folder):
                if line["kind"] == "timing":
                    found.setdefault((line["mode"], line["name"]), []).append(line["ms"])
    return found


def timing_results(times: Mapping[tuple[str, str], list[list[float]]], plan: Plan) -> dict[str, Any]:
    """Unprofiled `cold_time_us` and `steady_time_us` by workload, and minimum bytes over the cold time."""
    out: dict[str, Any] = {}
    for (mode, workload), by_process in times.items():
        _put(out.setdefault(f"{mode}_time_us", {}), workload, _scaled(by_process, 1e3), "us")
    rates: dict[str, Any] = {}
    for workload, time in out.get("cold_time_us", {}).items():
        spec = plan[workload]
        moved = spec.get("passes", 1) * (spec["read_bytes"] + spec["write_bytes"])
        ends = {"value": "value", "p10": "p90", "p90": "p10"}
        rates[workload] = {**time, "unit": "GB/s", **{end: moved / time[other] / 1e3 for end, other in ends.items()}}
    return {**out, **({"effective_gb_per_s": rates} if rates else {})}


def derived(found: Mapping[str, Any], plan: Plan) -> dict[str, Any]:
    """What follows from the counters: bytes left in L2, bytes over time, occupancy by the rule, ratio to the least."""
    out: dict[str, Any] = {"retained_write_bytes": {}, "dram_gb_per_s": {}, "dram_over_min_bytes": {},
                           "passes_seen_by_memory": {}, "retained_pct_of_l2": {}, "lookups_per_access": {},
                           "tensor_flop_over_needed": {},
                           "rule_occupancy_pct": {}, "top_stall": {}}  # fmt: skip
    for workload, read in found.get("dram_read_bytes", {}).items():
        written, spec = found["dram_write_bytes"][workload]["value"], plan[workload]
        passes = spec.get("passes", 1)
        total, smallest = read["value"] + written, passes * (spec["read_bytes"] + spec["write_bytes"])
        out["dram_gb_per_s"][workload] = total / found["ncu_time_us"][workload]["value"] / 1e3
        out["dram_over_min_bytes"][workload] = total / smallest
        out["passes_seen_by_memory"][workload] = read["value"] / spec["read_bytes"]
        if passes == 1:  # else a line may be written again before it leaves, and the difference says nothing
            out["retained_write_bytes"][workload] = spec["write_bytes"] - written
            if l2 := found["device"].get("l2_bytes"):
                out["retained_pct_of_l2"][workload] = 100 * (spec["write_bytes"] - written) / l2
        if (looked := found.get("l2_read_bytes", {}).get(workload)) is not None:
            out["lookups_per_access"][workload] = looked["value"] / (passes * spec["read_bytes"])
    for workload, done in found.get("tensor_flop", {}).items():
        spec = plan[workload]
        if spec["op"] == "gemm" and isinstance(done, int | float):
            out["tensor_flop_over_needed"][workload] = done / gemm_flop(m=spec["m"], n=spec["n"], k=spec["k"])
    for workload, registers in found.get("registers", {}).items():
        if (rule := rule_occupancy(found, workload, registers)) is not None:
            out["rule_occupancy_pct"][workload] = 100 * rule
    for workload, reasons in found.get("stalls", {}).items():
        waiting = {name: value for name, value in reasons.items() if name not in ("selected", "not_selected")}
        if waiting:
            out["top_stall"][workload] = max(waiting, key=lambda name: waiting[name])
    return {name: value for name, value in out.items() if value}


def rule_occupancy(found: Mapping[str, Any], workload: str, registers: Any) -> float | None:
    """Occupancy by our own rule from what the compiler reserved; None where a figure is missing or not one number."""
    threads = found.get("threads_per_block", {}).get(workload)
    shared = [found.get(f"shared_{kind}_bytes", {}).get(workload) for kind in ("static", "dynamic")]
    capability = ".".join(str(part) for part in found.get("device", {}).get("cc", ())) or "9.0"
    if not all(isinstance(value, int | float) for value in (registers, threads, *shared)) or capability not in LIMITS:
        return None
    return occupancy(registers_per_thread=int(registers), threads_per_block=int(threads), compute_capability=capability,
                     shared_bytes_per_block=int(sum(shared)))["occupancy"]  # fmt: skip


def count_samples(rows: Sequence[Row]) -> dict[str, Any]:
    """Bytes and time of every counted call, as a record keeps samples: by process."""
    units = {"dram_read_bytes": "bytes", "dram_write_bytes": "bytes", "time_ns": "ns"}
    return {
        f"{name}.{workload}": {"unit": unit, "values": values}
        for workload in dict.fromkeys(row["workload"] for row in rows)
        for name, unit in units.items() if (values := values_of(rows, name, workload))
    }  # fmt: skip


def times_as_samples(times: Mapping[tuple[str, str], list[list[float]]]) -> dict[str, Any]:
    """Unprofiled times as a record keeps samples."""
    return {f"{mode}_time_ms.{workload}": {"unit": "ms", "values": values}
            for (mode, workload), values in times.items()}  # fmt: skip

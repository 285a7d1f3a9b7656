"""Which kernels the hardware counter lab looks at, how many bytes each must move, and what its counters should say.

In: plain parameters of the slice, a GPU's numbers. Out: workloads by name, predictions by result and workload.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from labkit.calc import cache_traffic
from labkit.calc.gemm import gemm_flop

ELEMENT_BYTES = 2
FIRST_EVICTED = ("copy_evict_first", "fast")
"""Ops whose last loads mark the lines as the first to leave the cache."""
WARM_OPS = ("copy", "report", "fast")
"""Ops that are also counted warm, with the caches left as the call before left them."""


def workloads(params: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Name -> {"name", "op", sizes, "read_bytes", "write_bytes"}; the bytes are the least that any kernel must move."""
    plan: dict[str, dict[str, Any]] = {}

    def add_norm(op: str, rows: int, hidden: int, num_warps: int | None = None) -> None:
        tensor = rows * hidden * ELEMENT_BYTES
        label = f"{op.replace('_', ' ')}{'' if num_warps is None else f' w{num_warps}'} {rows}x{hidden}"
        weight = 0 if op in ("copy", "copy_evict_first", "memcpy") else hidden * ELEMENT_BYTES
        spec = {"name": label, "op": op, "rows": rows, "hidden": hidden, "read_bytes": tensor + weight,
                "write_bytes": tensor}  # fmt: skip
        plan.setdefault(label, spec if num_warps is None else {**spec, "num_warps": num_warps})

    for rows in params["rows"]:
        for op in ("copy", "copy_evict_first", "fast", "native"):
            add_norm(op, rows, params["hidden"])
        add_norm("report", rows, params["hidden"], 4)
    for rows in params["compile_rows"]:
        add_norm("compile", rows, params["hidden"])
        add_norm("memcpy", rows, params["hidden"])
    for hidden in params["warps_hidden"]:
        for num_warps in params["warps"]:
            add_norm("report", params["warps_rows"], hidden, num_warps)
    for text in params["products"]:
        m, n, k = (int(part) for part in text.split("x"))
        name = f"gemm {text}"
        plan[name] = {"name": name, "op": "gemm", "m": m, "n": n, "k": k,
                      "read_bytes": ELEMENT_BYTES * (m * k + n * k), "write_bytes": ELEMENT_BYTES * m * n}  # fmt: skip
    return plan


def warm_workloads(plan: Mapping[str, Mapping[str, Any]], params: Mapping[str, Any]) -> list[str]:
    """Names that are also counted warm: the sweep over sizes of a few ops."""
    sizes = {(rows, params["hidden"]) for rows in params["rows"]}
    return [name for name, spec in plan.items() if spec["op"] in WARM_OPS and (spec["rows"], spec["hidden"]) in sizes
            and spec.get("num_warps", 4) == 4]  # fmt: skip


def predictions(
    plan: Mapping[str, Mapping[str, Any]], params: Mapping[str, Any], *, l2_bytes: float, bytes_per_s: float | None
) -> dict[str, dict[str, float]]:
    """Result name -> workload -> predicted value.

    Args:
        plan: from `workloads`.
        params: of the slice.
        l2_bytes: capacity of the last-level cache.
        bytes_per_s: bandwidth of a large copy, bytes read plus written; None: no times.
    """
    out: dict[str, dict[str, float]] = {}
    warm = set(warm_workloads(plan, params))
    for name, spec in plan.items():
        moved = {"read_bytes": spec["read_bytes"], "write_bytes": spec["write_bytes"]}
        weight = 0.0 if spec["op"] in FIRST_EVICTED else 1.0
        kept = cache_traffic.retained_write_bytes(**moved, l2_bytes=l2_bytes, read_weight=weight)
        found = {
            "dram_read_bytes": spec["read_bytes"], "dram_write_bytes": spec["write_bytes"] - kept,
            "retained_write_bytes": kept,
        }  # fmt: skip
        if spec["op"] == "gemm":
            found["tensor_flop"] = gemm_flop(m=spec["m"], n=spec["n"], k=spec["k"])
        else:
            found["l2_hit_pct"] = 100 * cache_traffic.stream_hit_share(**moved)
        if name in warm:
            found |= {
                "warm_dram_read_bytes": cache_traffic.counted_read_bytes(**moved, l2_bytes=l2_bytes, is_warm=True),
                "warm_dram_write_bytes": cache_traffic.counted_write_bytes(**moved, l2_bytes=l2_bytes, is_steady=True),
            }  # fmt: skip
        if bytes_per_s and spec["op"] != "gemm":
            floor = params["launch_floor_us"]
            found["cold_time_us"] = floor + 1e6 * (spec["read_bytes"] + spec["write_bytes"] - kept) / bytes_per_s
            if sum(moved.values()) > l2_bytes:
                found["steady_time_us"] = floor + 1e6 * sum(moved.values()) / bytes_per_s
        for result, value in found.items():
            out.setdefault(result, {})[name] = value
    return out


def residuals_pct(
    results: Mapping[str, Any], predicted: Mapping[str, Mapping[str, float]]
) -> dict[str, dict[str, float]]:  # fmt: skip
    """Measured over predicted minus 1, in percent, for every prediction above 0 that has a measurement."""
    out: dict[str, dict[str, float]] = {}
    for result, by_name in predicted.items():
        for name, value in by_name.items():
            seen = results.get(result, {}).get(name)
            seen = seen.get("value") if isinstance(seen, dict) else seen
            if isinstance(seen, int | float) and value > 0:
                out.setdefault(result, {})[name] = round(100 * (seen / value - 1), 3)
    return out

"""Which kernels the hardware counter lab looks at, how many bytes each must move, and what its counters should say.

In: plain parameters of the slice, a GPU's numbers. Out: workloads by name, predictions by result and workload.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from labkit.calc import cache_traffic
from labkit.calc.gemm import gemm_flop

ELEMENT_BYTES = 2
PASSES = 4
"""Times that op `copy_again` copies its tensor in one launch."""
READS_LEAVE_FIRST = ("copy_evict_first", "fast")
"""Ops whose last loads mark the lines as the first to leave the cache."""
COPIES = ("copy", "copy_evict_first", "copy_again", "memcpy")
UNCOUNTED, UNTIMED = ("memcpy",), ("compile",)
"""A driver's memory copy is no kernel; compiling takes longer than all the timing, and the RMSNorm lab times it."""


def workloads(params: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Name -> {"name", "op", sizes, "read_bytes", "write_bytes"}; the bytes are the least that one pass must move."""
    plan: dict[str, dict[str, Any]] = {}

    def add_norm(op: str, rows: int, hidden: int, **more: int) -> None:
        tensor = rows * hidden * ELEMENT_BYTES
        warps = f" w{more['num_warps']}" if "num_warps" in more else ""
        label = f"{op.replace('_', ' ')}{warps} {rows}x{hidden}"
        weight = 0 if op in COPIES else hidden * ELEMENT_BYTES
        plan.setdefault(label, {"name": label, "op": op, "rows": rows, "hidden": hidden, **more,
                                "read_bytes": tensor + weight, "write_bytes": tensor})  # fmt: skip

    for rows in params["rows"]:
        for op in ("copy", "copy_evict_first", "fast"):
            add_norm(op, rows, params["hidden"])
        add_norm("report", rows, params["hidden"], num_warps=4)
    for rows in params["again_rows"]:
        add_norm("copy_again", rows, params["hidden"], passes=PASSES)
    for hidden in params["warps_hidden"]:
        for num_warps in params["warps"]:
            add_norm("report", params["warps_rows"], hidden, num_warps=num_warps)
    for rows in params["rows"]:
        add_norm("native", rows, params["hidden"])
    for rows in params["compile_rows"]:
        add_norm("compile", rows, params["hidden"])
        add_norm("memcpy", rows, params["hidden"])
    for text in params["products"]:
        m, n, k = (int(part) for part in text.split("x"))
        name = f"gemm {text}"
        plan[name] = {"name": name, "op": "gemm", "m": m, "n": n, "k": k,
                      "read_bytes": ELEMENT_BYTES * (m * k + n * k), "write_bytes": ELEMENT_BYTES * m * n}  # fmt: skip
    return plan


def predictions(
    plan: Mapping[str, Mapping[str, Any]], params: Mapping[str, Any], *, l2_bytes: float, bytes_per_s: float | None
) -> dict[str, dict[str, float]]:
    """Result name -> workload -> predicted value.

    Args:
        plan: from `workloads`.
        params: of the slice.
        l2_bytes: capacity of the last-level cache.
        bytes_per_s: bandwidth of a large copy, bytes read plus written; None: no times.

    Returns: `retained_one_cache_bytes` is what one undivided LRU cache would keep (all of it for writes, where reads
        are marked as the first to leave); every other figure takes `params["read_copies"]` lines for a line read.
    """
    out: dict[str, dict[str, float]] = {}
    for name, spec in plan.items():
        moved = {"read_bytes": spec["read_bytes"], "write_bytes": spec["write_bytes"], "l2_bytes": l2_bytes}
        halves = {**moved, "read_copies": params["read_copies"]}
        passes = spec.get("passes", 1)
        one = 0.0 if spec["op"] in READS_LEAVE_FIRST else 1.0
        written = cache_traffic.counted_write_bytes(**halves, passes=passes)
        found: dict[str, float] = {"dram_read_bytes": cache_traffic.counted_read_bytes(**halves, passes=passes)}
        if spec["op"] != "gemm":  # a product re-reads its operands in tiles: it is no stream, only its minimum is known
            found["dram_write_bytes"] = written
        if passes == 1 and spec["op"] != "gemm":
            found |= {"retained_write_bytes": cache_traffic.retained_write_bytes(**halves),
                      "retained_one_cache_bytes": cache_traffic.retained_write_bytes(**moved, read_copies=one)}
        if spec["op"] == "gemm":
            found["tensor_flop"] = gemm_flop(m=spec["m"], n=spec["n"], k=spec["k"])
        elif passes == 1:
            share = cache_traffic.stream_hit_share(read_bytes=spec["read_bytes"], write_bytes=spec["write_bytes"])
            found["l2_hit_pct"] = 100 * share
            found |= {f"l2_{kind}_bytes": params["read_copies"] * spec[f"{kind}_bytes"] for kind in ("read", "write")}
            if bytes_per_s:
                found |= _times(spec, written, l2_bytes, params["launch_floor_us"], bytes_per_s)
        for result, value in found.items():
            out.setdefault(result, {})[name] = value
    return out


def _times(
    spec: Mapping[str, Any], written: float, l2_bytes: float, floor_us: float, bytes_per_s: float
) -> dict[str, float]:
    """A cold call pays for what memory sees; one of many calls also for what the call before left behind."""
    whole = spec["read_bytes"] + spec["write_bytes"]
    found = {"cold_time_us": floor_us + 1e6 * (spec["read_bytes"] + written) / bytes_per_s}
    return found | ({"steady_time_us": floor_us + 1e6 * whole / bytes_per_s} if whole > l2_bytes else {})


MEASURED_AS = {"retained_one_cache_bytes": "retained_write_bytes"}
"""Predictions that stand for another result."""


def residuals_pct(
    results: Mapping[str, Any], predicted: Mapping[str, Mapping[str, float]]
) -> dict[str, dict[str, float]]:  # fmt: skip
    """Measured over predicted minus 1, in percent, for every prediction above 0 that has a measurement."""
    out: dict[str, dict[str, float]] = {}
    for result, by_name in predicted.items():
        for name, value in by_name.items():
            seen = results.get(MEASURED_AS.get(result, result), {}).get(name)
            seen = seen.get("value") if isinstance(seen, dict) else seen
            if isinstance(seen, int | float) and value > 0:
                out.setdefault(result, {})[name] = round(100 * (seen / value - 1), 3)
    return out

"""A GPU run of the hardware counter lab as the tool and the worker would write it, from a plan and simple rules."""

from __future__ import annotations

import csv
import io
import json

from labkit.analyze.hw_counters import METRICS, STALLS
from labkit.calc.occupancy import occupancy

L2 = 62914560
META = ["ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream", "Block Size", "Grid Size",
        "Device", "CC"]
UNITS = {"dram_read_bytes": "byte", "dram_write_bytes": "byte", "time_ns": "ns", "l2_hit_pct": "%",
         "registers": "register/thread", "shared_static_bytes": "byte/block"}
REGISTERS = {1: 255, 2: 172, 4: 99, 8: 54, 16: 40}


def counters(spec, *, kept_share=0.4):
    """What one call counts: reads R, writes W minus what fits in a share of L2; a small tensor is read once."""
    read, write, passes = spec["read_bytes"], spec["write_bytes"], spec.get("passes", 1)
    kept = min(write, int(kept_share * L2))
    if passes > 1 and 1.5 * read + write > L2:
        read, write = passes * read, passes * write
    warps = spec.get("num_warps", 4)
    registers = REGISTERS[warps]
    shared = 16 * warps
    bound = 100 * occupancy(registers_per_thread=registers, threads_per_block=32 * warps,
                            shared_bytes_per_block=shared)["occupancy"]
    is_gemm = spec["op"] == "gemm"
    stall = {f"stall_{name}": 0.1 for name in STALLS} | {"stall_long_scoreboard": 20.0, "stall_selected": 1.0}
    return {
        "dram_read_bytes": read, "dram_write_bytes": write - kept, "l2_hit_pct": 51.0,
        "l2_read_sectors": 3 * read // 64, "l2_write_sectors": 3 * write // 64,
        "time_ns": 2000 + (read + write) // 4000,
        "achieved_occupancy_pct": 0.9 * bound, "theoretical_occupancy_pct": bound, "registers": registers,
        "shared_static_bytes": shared,
        "shared_dynamic_bytes": 0, "l1_hit_pct": 0.0, "sm_throughput_pct": 20.0, "dram_throughput_pct": 85.0,
        "tensor_pipe_pct": 90.0 if is_gemm else 0.0, "tensor_instructions": 4096 if is_gemm else 0,
        "gmma_instructions": 4096 if is_gemm else 0, "hmma_instructions": 0, "local_stores": 0,
        "tensor_flop": 2 * spec["m"] * spec["n"] * spec["k"] if is_gemm else 0,
        "cycles_per_instruction": sum(stall.values()), **stall,
    }


def table(specs, calls, metrics, *, change=None):
    """The tool's table: markers as the worker sets them, the calls of each workload, thousands separators."""
    short = {tool: name for name, tool in METRICS.items() if tool in metrics}
    out = io.StringIO()
    writer = csv.writer(out, quoting=csv.QUOTE_ALL, lineterminator="\n")
    writer.writerow([*META, "device__attribute_chip", *short])
    writer.writerow([""] * (len(META) + 1) + [UNITS.get(name, "") for name in short.values()])
    number = 0

    def row(kernel, block, values):
        nonlocal number
        cells = [f"{values[name]:,}" if values.get(name) is not None else "n/a" for name in short.values()]
        place = [number, 7, "python3", "127.0.0.1", kernel, 1, 7, f"({block}, 1, 1)", "(132, 1, 1)", 0, "9.0", "384"]
        writer.writerow([*place, *cells])
        number += 1

    for spec, is_marked in marked(specs):
        if is_marked:
            row("empty_kernel", 128, {"time_ns": 900})
        for _ in range(calls):
            values = counters(spec)
            values = change(spec, values) if change else values
            row("rmsnorm_" + spec["op"], 32 * spec.get("num_warps", 4), values)
    return "==PROF== Connected to process 7 (/usr/bin/python3)\n" + out.getvalue()


def marked(specs):
    """(workload, whether a marker goes before it): not between two of our own kernels."""
    was_own = False
    for spec in specs:
        is_own = spec["op"] in ("copy", "copy_evict_first", "copy_again", "report", "fast")
        yield spec, not (is_own and was_own)
        was_own = is_own


def worker_lines(folder):
    """rank0.jsonl of the worker of a folder, from its params.json."""
    params = json.loads((folder / "params.json").read_text())
    lines = [{"kind": "device", "name": "NVIDIA H200", "l2_bytes": L2, "cc": [9, 0], "num_sms": 132}]
    for spec, is_marked in marked(params["workloads"]):
        moved = spec.get("passes", 1) * (spec["read_bytes"] + spec["write_bytes"])
        if params["mode"] == "time":
            for mode, rate in (("cold", 4.5e9), ("steady", 4.2e9)):
                ms = [round(0.003 + moved / rate + 1e-5 * i, 6) for i in range(params["rounds"])]
                lines.append({"kind": "timing", "name": spec["name"], "mode": mode, "ms": ms})
        else:
            lines.append({"kind": "profiled", "name": spec["name"], "calls": params["calls"], "is_marked": is_marked})
        lines.append({"kind": "check", "what": spec["name"], "passed": True, "num_bad": 0})
    lines.append({"kind": "done", "wall_s": 1.0})
    (folder / "rank0.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return params

"""Counters of the hardware lab: the tool's table and the worker's lines -> one row a call of a workload.

In: folders `p<process>-<mode>` of a run, each with `rank0.jsonl` and, where kernels were counted, `ncu.csv`. Out: plain
rows and dicts. Every kernel between two markers belongs to the workloads that the worker announced there.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from labkit.analyze.ncu_csv import KNOWN, parse_ncu_csv
from labkit.records import public_text

MARKER = "empty_kernel"
TABLE_NAME = "ncu.csv"
STALLS = (
    "long_scoreboard", "short_scoreboard", "lg_throttle", "mio_throttle", "tex_throttle", "math_pipe_throttle",
    "barrier", "membar", "wait", "not_selected", "selected", "no_instruction", "branch_resolving", "dispatch_stall",
    "imc_miss", "sleeping", "drain", "gmma", "misc",
)  # fmt: skip
"""Reasons why a warp did not issue; `selected` is the warp that did."""
METRICS: dict[str, str] = {
    "dram_read_bytes": "dram__bytes_read.sum",
    "dram_write_bytes": "dram__bytes_write.sum",
    "l2_hit_pct": "lts__t_sector_hit_rate.pct",
    "l2_read_sectors": "lts__t_sectors_op_read.sum",
    "l2_write_sectors": "lts__t_sectors_op_write.sum",
    "time_ns": "gpu__time_duration.sum",
    "achieved_occupancy_pct": "sm__warps_active.avg.pct_of_peak_sustained_active",
    "theoretical_occupancy_pct": "sm__maximum_warps_per_active_cycle_pct",
    "registers": "launch__registers_per_thread",
    "shared_static_bytes": "launch__shared_mem_per_block_static",
    "shared_dynamic_bytes": "launch__shared_mem_per_block_dynamic",
    "l1_hit_pct": "l1tex__t_sector_hit_rate.pct",
    "sm_throughput_pct": "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "dram_throughput_pct": "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "tensor_pipe_pct": "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
    "tensor_instructions": "sm__inst_executed_pipe_tensor.sum",
    "gmma_instructions": "sm__inst_executed_pipe_tensor_op_gmma.sum",
    "hmma_instructions": "sm__inst_executed_pipe_tensor_op_hmma.sum",
    "tensor_flop": "sm__ops_path_tensor_src_bf16_dst_fp32.sum",
    "local_stores": "smsp__inst_executed_op_local_st.sum",
    "cycles_per_instruction": "smsp__average_warp_latency_per_inst_issued.ratio",
    **{f"stall_{name}": f"smsp__average_warps_issue_stalled_{name}_per_issue_active.ratio" for name in STALLS},
}
"""Our name -> the tool's, for compute capability 9.0; what a GPU does not offer is left out by name."""
OTHER_NAMES = {"sm__ops_path_tensor_src_bf16_dst_fp32.sum": "sm__ops_path_tensor_src_bf16_dst_fp32_sparsity_off.sum"}
"""What newer versions of the tool call a metric."""
SUMMED = ("dram_read_bytes", "dram_write_bytes", "l2_read_sectors", "l2_write_sectors", "time_ns",
          "tensor_instructions", "gmma_instructions", "hmma_instructions", "tensor_flop",
          "local_stores")  # fmt: skip
"""Added over the kernels of a call; of the others the kernel that takes longest counts."""
GROUPS = {
    "achieved occupancy": "achieved_occupancy_pct", "dram bytes": "dram_read_bytes", "L2 hit": "l2_hit_pct",
    "stall reasons": "stall_long_scoreboard",
}
"""What the report could not read, and one of our names for each."""
Row = dict[str, Any]


def metric_names() -> list[str]:
    """The tool's names to ask for, old and new names of each."""
    return [*METRICS.values(), *OTHER_NAMES.values()]


def read_lines(folder: Path) -> list[dict[str, Any]]:
    """Lines of a worker; a last line that was cut off is left out. Raises: ValueError naming the file and line."""
    path = folder / "rank0.jsonl"
    found, rows = [], path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    for number, text in enumerate(rows, start=1):
        try:
            found.append(json.loads(text))
        except ValueError:
            if number < len(rows):
                raise ValueError(f"{folder.name}/{path.name} line {number}: not JSON") from None
    return found


def folders(run_dir: Path) -> list[tuple[int, str, Path]]:
    """(process, mode, folder) of every `p<process>-<mode>` of a run, in order."""
    found = [(re.fullmatch(r"p(\d{1,4})-(\w+)", path.name), path) for path in run_dir.glob("p*-*") if path.is_dir()]
    return sorted((int(match[1]), match[2], path) for match, path in found if match)


def lines_of(run_dir: Path, kind: str) -> list[dict[str, Any]]:
    """All lines of one kind that the workers of a run wrote. Raises: ValueError as `read_lines`."""
    return [line for _, _, folder in folders(run_dir) for line in read_lines(folder) if line["kind"] == kind]


def counted_calls(run_dir: Path) -> list[Row]:
    """One row a call: process, workload, call, kernels, and every name of METRICS that was counted.

    Raises: ValueError when a table cannot be matched with what the worker announced, or holds no kernels.
    """
    rows: list[Row] = []
    for process, _, folder in folders(run_dir):
        table = folder / TABLE_NAME
        if not table.is_file():
            continue
        answer = parse_ncu_csv(table.read_text(encoding="utf-8"))
        if answer["error"] or not answer["kernels"]:
            raise ValueError(f"{folder.name}/{TABLE_NAME}: {answer['error']}")
        segments = announced_segments([line for line in read_lines(folder) if line["kind"] == "profiled"])
        for lines, kernels in zip(segments, parts(answer["kernels"], len(segments), folder.name)):
            for line, group in zip(lines, split(kernels, lines, folder.name)):
                for call, of_call in enumerate(calls_of(group, line["calls"], f"{folder.name}: {line['name']}")):
                    where = {"process": process, "workload": line["name"], "call": call}
                    rows.append({**where, **one_call(of_call)})
    return rows


def announced_segments(lines: Sequence[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    """The worker's `profiled` lines, a new group at each that came after a marker."""
    found: list[list[Mapping[str, Any]]] = []
    for line in lines:
        if line["is_marked"] or not found:
            found.append([])
        found[-1].append(line)
    return found


def split(
    kernels: list[Mapping[str, Any]], lines: Sequence[Mapping[str, Any]], where: str
) -> list[list[Mapping[str, Any]]]:  # fmt: skip
    """Kernels of one group by workload: all of a single one, or one a call where several were announced.

    Raises: ValueError when several were announced and there are more or fewer kernels than calls.
    """
    if len(lines) == 1:
        return [kernels]
    if len(kernels) != sum(line["calls"] for line in lines):
        names = f"{lines[0]['name']} to {lines[-1]['name']}"
        raise ValueError(f"{where}: {len(kernels)} kernels for {names}, expected {sum(x['calls'] for x in lines)}")
    found, at = [], 0
    for line in lines:
        found.append(kernels[at : at + line["calls"]])
        at += line["calls"]
    return found


def parts(kernels: Sequence[Mapping[str, Any]], num_parts: int, where: str) -> list[list[Mapping[str, Any]]]:
    """The kernels between markers; raises ValueError unless there is one marker for each part and none before it."""
    found: list[list[Mapping[str, Any]]] = []
    for kernel in kernels:
        if MARKER in kernel["name"]:
            found.append([])
        elif found:
            found[-1].append(kernel)
        else:
            raise ValueError(f"{where}: {kernel['name']} was counted before the first marker")
    if len(found) != num_parts:
        raise ValueError(f"{where}: {len(found)} markers in the table, the worker set {num_parts}")
    return found


def calls_of(kernels: list[Mapping[str, Any]], calls: int, where: str) -> list[list[Mapping[str, Any]]]:
    """Kernels grouped by call; none for a workload that launches none. Raises: ValueError if they do not divide."""
    if len(kernels) % calls:
        raise ValueError(f"{where}: {len(kernels)} kernels in {calls} calls")
    each = len(kernels) // calls
    return [kernels[i * each : (i + 1) * each] for i in range(calls)] if each else []


def one_call(kernels: Sequence[Mapping[str, Any]]) -> Row:
    """Sums, and what the longest kernel says, of the kernels of one call; a name that was not counted is left out."""
    longest = max(kernels, key=lambda kernel: value_of(kernel, METRICS["time_ns"]) or 0.0)
    row: Row = {
        "kernels": [kernel["name"][:80] for kernel in kernels],
        "threads_per_block": _product(longest.get("block")), "num_blocks": _product(longest.get("grid")),
    }  # fmt: skip
    for name, metric in METRICS.items():
        if name in SUMMED:
            values = [value_of(kernel, metric) for kernel in kernels]
            value = sum(v for v in values if v is not None) if None not in values else None
        else:
            value = value_of(longest, metric)
        if value is not None:
            row[name] = value
    return row


def value_of(kernel: Mapping[str, Any], metric: str) -> float | None:
    """A numeric metric of a parsed kernel, whether its name carries the unit or not."""
    names = (metric, f"{metric}_ns", OTHER_NAMES.get(metric, metric))
    value = next((found for name in names if (found := kernel["metrics"].get(name)) is not None), None)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _product(sizes: Iterable[int] | None) -> int | None:
    total = 1
    for size in sizes or ():
        total *= size
    return total if sizes else None


def groups_read(rows: Sequence[Row]) -> list[str]:
    """Which of the report's four kinds of counters have a number in these rows."""
    return [group for group, name in GROUPS.items() if any(row.get(name) is not None for row in rows)]


def public_table(text: str, *, run_dir: Path) -> str:
    """The tool's output as a record keeps it: columns of METRICS only, nothing about processes, folders and the host.

    The tool adds a hundred columns about the device. Cells stay as they were printed.
    """
    wanted = {*METRICS.values(), *OTHER_NAMES.values()}
    kept = [line for line in text.splitlines() if not re.match(r"==PROF== (Dis)?[Cc]onnected", line)]
    start = next((i for i, line in enumerate(kept) if line.startswith('"ID"')), len(kept))
    rows = list(csv.reader(line for line in kept[start:] if line.startswith('"')))
    columns = [i for i, title in enumerate(rows[0]) if title in wanted or title.lower() in KNOWN] if rows else []
    out = io.StringIO()
    writer = csv.writer(out, quoting=csv.QUOTE_ALL, lineterminator="\n")
    writer.writerows([[row[i] for i in columns] for row in rows if len(row) == len(rows[0])])
    said = [line for i, line in enumerate(kept) if i < start or not line.startswith('"')]
    return public_text("".join(line + "\n" for line in said) + out.getvalue(), run_dir=run_dir)

"""Times by num_warps and by resident blocks, from the lines of labkit.workers.warp_sweep of all processes.

Keys are cells (`h4096/w4`) and, for the same machine code at fewer blocks, cells and blocks (`h4096/w4` -> `2`).
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import Any

from labkit.calc.rmsnorm import min_bytes, predicted_time_s
from labkit.calc.row_registers import rows_in_flight_bytes, spill_traffic_bytes
from labkit.records import quantity

Lines = list[dict[str, Any]]
MODES = ("stream", "cold")


def pooled(lines: Lines, mode: str) -> dict[tuple[int, str], list[list[float]]]:
    """(hidden, call) -> samples of each process, ms per call."""
    found: dict[tuple[int, str], list[list[float]]] = {}
    for line in sorted((li for li in lines if li["kind"] == "timing" and li["mode"] == mode),
                       key=lambda line: line["process"]):  # fmt: skip
        found.setdefault((line["hidden"], line["name"]), []).append(line["ms"])
    return found


def timing_results(lines: Lines, *, rows: int, max_warps_per_sm: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Results and samples of a sweep.

    Args:
        lines: of all processes, each with its `process`.
        rows: rows of the input.
        max_warps_per_sm: of this GPU.

    Returns: results: `ms`, `cold_ms`, `gb_per_s` and `copy_fraction` (copy over kernel, round by round, stream) by
    cell; `copy_ms` and `noise_pct` (how far two timings of one copy differ) by row length; `slowdown` (median over the
    fastest of that length); `dial_ms`, `dial_gb_per_s`, `dial_occupancy_pct`, `dial_in_flight_kib` by cell and blocks.
    Samples: every one, by mode and call.
    """
    stream = pooled(lines, "stream")
    out: dict[str, Any] = {"copy_ms": {}, "noise_pct": {}, "dial_ms": {}, "dial_gb_per_s": {},
                           "dial_occupancy_pct": {}, "dial_in_flight_kib": {}}  # fmt: skip
    out |= {"ms": _by_cell(stream), "cold_ms": _by_cell(pooled(lines, "cold")), "gb_per_s": {}, "copy_fraction": {}}
    for (hidden, name), processes in stream.items():
        moved = min_bytes(rows=rows, hidden=hidden)
        rates = [moved / ms / 1e6 for process in processes for ms in process]
        if name == "copy":
            out["copy_ms"][f"h{hidden}"] = _quantity(processes, "ms")
            if again := stream.get((hidden, "copy_again")):
                first, second = (median([ms for process in part for ms in process]) for part in (processes, again))
                out["noise_pct"][f"h{hidden}"] = 100 * abs(first / second - 1)
        elif " b" in name:
            _add_dial(out, hidden, name, processes, rates, max_warps_per_sm)
        elif name.startswith("w"):
            out["gb_per_s"][f"h{hidden}/{name}"] = quantity(rates, "GB/s", num_processes=len(processes))
            if copies := stream.get((hidden, "copy")):
                ratios = [c / k for copy, kernel in zip(copies, processes) for c, k in zip(copy, kernel)]
                out["copy_fraction"][f"h{hidden}/{name}"] = quantity(ratios, "ratio", num_processes=len(processes))
    out["slowdown"] = slowdowns(out["ms"])
    samples = {f"{mode} h{hidden}/{name}": {"unit": "ms", "values": processes}
               for mode in MODES for (hidden, name), processes in pooled(lines, mode).items()}  # fmt: skip
    return out, samples


def _quantity(processes: list[list[float]], unit: str) -> dict[str, Any]:
    return quantity([ms for process in processes for ms in process], unit, num_processes=len(processes))


def _by_cell(samples: Mapping[tuple[int, str], list[list[float]]]) -> dict[str, Any]:
    return {f"h{hidden}/{name}": _quantity(processes, "ms") for (hidden, name), processes in samples.items()
            if name.startswith("w") and " " not in name}  # fmt: skip


def _add_dial(out: dict[str, Any], hidden: int, name: str, processes: list[list[float]], rates: list[float],
              max_warps_per_sm: int) -> None:  # fmt: skip
    warps, _, blocks = name.partition(" b")
    cell, num_blocks = f"h{hidden}/{warps}", int(blocks)
    in_flight = rows_in_flight_bytes(hidden=hidden, blocks_per_sm=num_blocks)
    for key, value in (
        ("dial_ms", _quantity(processes, "ms")),
        ("dial_gb_per_s", quantity(rates, "GB/s", num_processes=len(processes))),
        ("dial_occupancy_pct", 100 * num_blocks * int(warps[1:]) / max_warps_per_sm),
        ("dial_in_flight_kib", in_flight / 1024),
    ):
        out[key].setdefault(cell, {})[blocks] = value


def slowdowns(times: Mapping[str, Any]) -> dict[str, float]:
    """Median time over the fastest median of the same row length, by cell."""
    best: dict[str, float] = {}
    for cell, found in times.items():
        hidden = cell.split("/")[0]
        best[hidden] = min(found["value"], best.get(hidden, found["value"]))
    return {cell: found["value"] / best[cell.split("/")[0]] for cell, found in times.items()}


def with_spills(
    cells: Lines, *, target: int, rows: int, bytes_per_s: float | None, launch_floor_s: float
) -> dict[str, float]:
    """Time by cell if every spilled byte went to memory and back: an upper bracket, known once the cubins are, ms.

    Args:
        cells: compiled cells, with spill bytes per thread.
        target: only cells of this target, with hints.
        rows: rows of the input.
        bytes_per_s: of a copy, bytes/s; None: unknown, then nothing is said.
        launch_floor_s: seconds.
    """
    out = {}
    for cell in cells if bytes_per_s is not None else ():
        if bytes_per_s and cell["target"] == target and cell["hints"] and cell["spill_store_bytes"] is not None:
            spilled = spill_traffic_bytes(rows=rows, num_warps=cell["num_warps"],
                                          spill_store_bytes=cell["spill_store_bytes"],
                                          spill_load_bytes=cell["spill_load_bytes"])  # fmt: skip
            moved = min_bytes(rows=rows, hidden=cell["hidden"]) + spilled
            out[cell["name"]] = 1e3 * predicted_time_s(
                num_bytes=moved, bytes_per_s=bytes_per_s, launch_floor_s=launch_floor_s)
    return out


def refusals(lines: Lines) -> dict[str, str]:
    """What a timing process could not do, and why, by cell or experiment."""
    return {f"h{line['hidden']}/w{line['num_warps']}" if "num_warps" in line else line["what"]: line["error"]
            for line in lines if line["kind"] == "refusal"}  # fmt: skip


def knee(dial_gb_per_s: Mapping[str, Mapping[str, Any]], *, share: float = 0.95) -> dict[str, int]:
    """Fewest resident blocks that reach `share` of the best rate of the same machine code, by cell."""
    found = {}
    for cell, rates in dial_gb_per_s.items():
        best = max(rate["value"] for rate in rates.values())
        found[cell] = min(int(blocks) for blocks, rate in rates.items() if rate["value"] >= share * best)
    return found


def residuals_pct(measured: Mapping[str, Any], predicted: Mapping[str, float]) -> dict[str, float]:
    """100 x (measured / predicted - 1) of what both hold and is not zero; quantities by their medians."""
    out = {}
    for name, value in predicted.items():
        seen = measured.get(name)
        seen = seen["value"] if isinstance(seen, Mapping) else seen
        if seen is not None and value:
            out[name] = 100 * (seen / value - 1)
    return out

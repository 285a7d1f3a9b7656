"""Results of a collective sweep: bandwidths by nccl-tests' definitions, winners, fits, channels, pairs, paths.

In: cells by name (`collective_files.read_cells`). Out: what a record keeps. Names of cells are `p<process>-<case>`, and
`log-<case>` for those that only log.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from labkit.analyze.collective_files import Cell
from labkit.calc.collective_fit import crossover_bytes, hold_out, label_bytes, size_label
from labkit.calc.collectives import busbw_factor
from labkit.records import quantity

OWN = "auto"
"""The case where the library chooses by itself."""
SUBSYSTEMS = ("INIT", "GRAPH", "TUNING")
Times = dict[str, dict[str, dict[int, list[list[float]]]]]
"""case -> collective -> size in bytes -> for each process the samples, us."""


def case_of(name: str) -> str:
    """Case of a cell's name.

    >>> case_of("p2-Ring+LL"), case_of("log-auto")
    ('Ring+LL', 'auto')
    """
    return name.split("-", 1)[1]


def gather_times(cells: Mapping[str, Cell], *, eager: bool = False) -> Times:
    """Samples of the slowest rank by case, collective and size, apart for each process."""
    found: Times = {}
    for cell in cells.values():
        if not cell.name.startswith("p") or cell.status != "measured":
            continue
        for row in cell.eager_times if eager else cell.times:
            sizes = found.setdefault(case_of(cell.name), {}).setdefault(row["collective"], {})
            if row["times_us"]:
                sizes.setdefault(row["size_bytes"], []).append(row["times_us"])
    return found


def sweep_results(times: Times, *, world_size: int) -> dict[str, Any]:
    """time_us, busbw_gb_per_s and algbw_gb_per_s by case (or collective), and size.

    All-reduce is given by case (`auto`, `Ring+LL`, ...), the other collectives, which run as the library chooses, by
    their name. Bandwidths are in GB/s, 1e9.
    """
    time_us: dict[str, dict[str, Any]] = {}
    algbw: dict[str, dict[str, Any]] = {}
    busbw: dict[str, dict[str, Any]] = {}
    for case, collectives in times.items():
        for collective, sizes in collectives.items():
            name = case if collective == "all_reduce" else collective
            factor = busbw_factor(collective, world_size=world_size)
            for size, processes in sorted(sizes.items()):
                samples = [time for process in processes for time in process]
                speeds = [size / time / 1e3 for time in samples]
                label = size_label(size)
                time_us.setdefault(name, {})[label] = _brief(quantity(samples, "us", num_processes=len(processes)))
                algbw.setdefault(name, {})[label] = float(f"{median(speeds):.6g}")
                busbw.setdefault(name, {})[label] = _brief(quantity(
                    [speed * factor for speed in speeds], "GB/s", num_processes=len(processes)))
    return {"time_us": time_us, "algbw_gb_per_s": algbw, "busbw_gb_per_s": busbw}


def _brief(found: dict[str, Any]) -> dict[str, Any]:
    """A quantity to six digits: a record holds hundreds of them, and no clock has more."""
    return {**found, **{name: float(f"{found[name]:.6g}") for name in ("value", "p10", "p90")}}


def samples_of(times: Times) -> dict[str, Any]:
    """All samples, for the record: a name for each case, collective and size; a list for each process."""
    return {f"time_us.{case}.{collective}.{size_label(size)}": {
        "unit": "us", "values": [[round(time, 3) for time in process] for process in processes]}
        for case, collectives in times.items() for collective, sizes in collectives.items()
        for size, processes in sorted(sizes.items())}


def winners(time_us: Mapping[str, Mapping[str, Any]], combos: Sequence[str]) -> dict[str, Any]:
    """best_combo, best_time, best_is_clear by size, over the forced pairs that ran.

    The winner is clear when its p90 is below every other pair's p10.
    """
    ran = [combo for combo in combos if combo in time_us]
    best, clear, best_time = {}, {}, {}
    sizes = list(time_us[ran[0]]) if len(ran) > 1 else []
    for label in sizes:
        at = {combo: time_us[combo][label] for combo in ran if label in time_us[combo]}
        first = min(at, key=lambda combo: at[combo]["value"])
        best[label], best_time[label] = first, at[first]
        clear[label] = all(at[first]["p90"] < other["p10"] for combo, other in at.items() if combo != first)
    return {"best_combo": best, "best_time": best_time, "best_is_clear": clear}


def fits(times: Times) -> dict[str, Any]:
    """Alpha and bandwidth of each case's all-reduce from half of the sizes, with residuals on the other half.

    Returns: case -> {"alpha_us", "algbw_gb_per_s", "worst_held_out_pct", "median_held_out_pct", "held_out": labels,
        "residual_pct": {label: %}}; cases with fewer than four sizes, or whose time does not grow, are left out.
    """
    found = {}
    for case, collectives in times.items():
        sizes = {size: median(time for process in processes for time in process)
                 for size, processes in collectives.get("all_reduce", {}).items()}
        try:
            fit = hold_out(sizes_bytes=list(sizes), times_s=[time / 1e6 for time in sizes.values()])
        except ValueError:
            continue
        found[case] = {
            "alpha_us": fit["alpha_s"] * 1e6, "algbw_gb_per_s": fit["bytes_per_s"] / 1e9,
            "worst_held_out_pct": fit["worst_held_out_pct"], "median_held_out_pct": fit["median_held_out_pct"],
            "held_out": [size_label(int(size)) for size in fit["held_out_bytes"]],
            "residual_pct": {size_label(int(size)): value for size, value in fit["residual_pct"].items()}}
    return found


def crossovers(fitted: Mapping[str, Mapping[str, Any]]) -> dict[str, float | None]:
    """Sizes where Ring and Tree cross under each protocol, and where protocols cross on Ring, by the fits; bytes.

    None where they do not cross between the smallest and the largest size that was measured.
    """
    pairs = [(f"Tree+{protocol}", f"Ring+{protocol}") for protocol in ("LL", "LL128", "Simple")]
    pairs += [("Ring+LL", "Ring+LL128"), ("Ring+LL", "Ring+Simple"), ("Ring+LL128", "Ring+Simple")]
    line = {case: {"alpha_s": fit["alpha_us"] / 1e6, "bytes_per_s": fit["algbw_gb_per_s"] * 1e9}
            for case, fit in fitted.items()}
    found = {}
    for a, b in pairs:
        if a in line and b in line:
            sizes = [label_bytes(label) for label in fitted[a]["residual_pct"]]
            size = crossover_bytes(first=line[a], second=line[b])
            found[f"{a} / {b}"] = size if size is not None and min(sizes) <= size <= max(sizes) else None
    return found


def logged(cells: Mapping[str, Cell]) -> dict[str, Any]:
    """What the library logged: its own choice by size, the forced pairs, channels, paths, version and cost model."""
    logs = {case_of(cell.name): cell.log for cell in cells.values()
            if cell.status == "measured" and cell.log and cell.log["choices"]}
    channel_logs = {case: log for case, log in logs.items() if case[:2] == "ch"}
    own: dict[str, Any] = logs.get(OWN) or {}
    forced = {case: sorted({pair or "several" for pair in log["chosen"].get("all_reduce", {}).values()})
              for case, log in logs.items() if "+" in case}
    subsystems = [set(log["subsystems"]) for log in logs.values()]
    return {
        "chosen": {size_label(int(size)): pair for size, pair in sorted(
            own.get("chosen", {}).get("all_reduce", {}).items(), key=lambda entry: int(entry[0]))},
        "chosen_channels": {size_label(row["size_bytes"]): row["num_channels"] for row in sorted(
            own.get("choices", []), key=lambda row: row["size_bytes"]) if row["num_channels"]},
        "forced_pairs_in_log": forced,
        "channels_in_log": {case.removeprefix("ch"): sorted({row["num_channels"] for row in log["choices"]
                                                             if row["num_channels"]})
                            for case, log in channel_logs.items()},
        "model_us_gb_per_s": {pair: model for pair, model in own.get("model", {}).get("all_reduce", {}).items()
                              if pair.split("+")[0] in ("Ring", "Tree")},
        "transport": own.get("transports", {}),
        "nccl_version": next((log["nccl_version"] for log in logs.values() if log["nccl_version"]), None),
        "debug_env": bool(subsystems) and all(set(SUBSYSTEMS) <= found for found in subsystems) if logs else None,
    }


def channel_results(times: Times, *, world_size: int) -> dict[str, Any]:
    """channel_busbw: number of channels -> GB/s of the one size that was run."""
    found = {}
    for case, collectives in times.items():
        if case.startswith("ch") and case[2:].isdigit():
            ((size, processes),) = collectives["all_reduce"].items()
            factor = busbw_factor("all_reduce", world_size=world_size)
            found[case[2:]] = quantity([size / time / 1e3 * factor for process in processes for time in process],
                                       "GB/s", num_processes=len(processes))
    return {"channel_busbw": dict(sorted(found.items(), key=lambda entry: int(entry[0])))}


def values_checked(cells: Mapping[str, Cell]) -> dict[str, int]:
    """wrong_elements of all checks, and num_checked: how many (cell, collective, size) were compared."""
    rows = [row["num_wrong"] for cell in cells.values() for row in cell.times]
    pairs = {(cell.name, row["collective"], row["pair"]): row["pair_wrong"] for cell in cells.values()
             for row in cell.pairs}
    return {"wrong_elements": sum(rows) + sum(wrong or 0 for wrong in pairs.values()),
            "num_checked": len(rows) + len(pairs)}

"""Pairs of ranks alone and together: did they really run apart and at once, and what did it cost?

In: cells of kind `pairs`. Out: bandwidths in GB/s (1e9), slowdowns, and windows in time that prove the procedure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import median
from typing import Any

from labkit.analyze.collective_files import Cell
from labkit.records import quantity

DIRECTIONS = {"send_forward": "forward alone", "send_backward": "backward alone", "send_recv": "both, each way"}
LEAST_OVERLAP = 0.5
"""Share of the shortest window in which all pairs must be busy, for a run to count as together."""
CONTENDED = 1.1
"""Slowdown from which pairs count as disturbing each other."""
Window = tuple[float, float]


def window(row: Mapping[str, Any]) -> Window:
    """From the first timed call to the end of the last, seconds on the host's clock."""
    return row["starts_s"][0], row["starts_s"][-1] + row["times_us"][-1] * row["num_calls"] / 1e6


def common(windows: Sequence[Window]) -> Window:
    """Where all windows overlap; the end is before the start where they do not."""
    return max(start for start, _ in windows), min(end for _, end in windows)


def overlap_share(windows: Sequence[Window]) -> float:
    """Length of the common window over the shortest one, 0 where there is none.

    >>> overlap_share([(0.0, 4.0), (2.0, 4.0)]), overlap_share([(0.0, 1.0), (2.0, 3.0)])
    (1.0, 0.0)
    """
    start, end = common(windows)
    shortest = min(stop - begin for begin, stop in windows)
    return max(0.0, end - start) / shortest if shortest > 0 else 0.0


def inside(row: Mapping[str, Any], span: Window) -> list[float]:
    """Times (us) of the samples that lie wholly in a window; all of them where none does."""
    kept = [time for start, time in zip(row["starts_s"], row["times_us"])
            if start >= span[0] and start + time * row["num_calls"] / 1e6 <= span[1]]
    return kept or list(row["times_us"])


def pair_results(cells: Mapping[str, Cell], *, families: Mapping[str, str]) -> dict[str, Any]:
    """Sums of all-reduce bus bandwidth of the pairs, alone and together.

    Args:
        cells: all cells; those of pairs are named `p<process>-pairs<number>`.
        families: `pairs<number>` -> name of the set: its link where all pairs have the same, else its pairs.

    Returns: pair_alone, pair_together {family: quantity, GB/s, sum over pairs}, pair_slowdown_mean and
        pair_slowdown_max {family: ratio over pairs of the medians}, pair_detail {family: {pair: {alone, together}}},
        pair_overlap {family: smallest share of the common window}, pair_procedure: True when every alone window lies
        apart from the others and the windows together overlap by half at least; None without two pairs.
        topo_matrix_limit: True when pairs with equal links in the topology matrix slow each other; None without links.
    """
    alone, together, detail, overlap, apart = {}, {}, {}, {}, []
    mean, worst = {}, {}
    for name, family in families.items():
        sets = [cell for cell in cells.values() if cell.name.endswith(f"-{name}") and cell.pairs]
        runs = [_one_process(cell) for cell in sets]
        runs = [run for run in runs if run["together"]]
        if not runs:
            continue
        alone[family] = quantity([sum(median(s) for s in run["alone"].values()) for run in runs], "GB/s",
                                 num_processes=len(runs))
        together[family] = quantity([sum(median(s) for s in run["together"].values()) for run in runs], "GB/s",
                                    num_processes=len(runs))
        detail[family] = {pair: {phase: quantity([speed for run in runs for speed in run[phase][pair]], "GB/s",
                                                 num_processes=len(runs)) for phase in ("alone", "together")}
                          for pair in runs[0]["alone"]}
        slow = [entry["alone"]["value"] / entry["together"]["value"] for entry in detail[family].values()]
        mean[family], worst[family] = sum(slow) / len(slow), max(slow)
        overlap[family] = min(run["overlap"] for run in runs)
        apart += [run["is_apart"] for run in runs]
    linked = [family for family in worst if "-" not in family]  # named by a link: the matrix shows one for all pairs
    procedure = all(apart) and all(share >= LEAST_OVERLAP for share in overlap.values()) if overlap else None
    return {"pair_alone": alone, "pair_together": together, "pair_slowdown_mean": mean, "pair_slowdown_max": worst,
            "pair_detail": detail, "pair_overlap": overlap, "pair_procedure": procedure,
            "topo_matrix_limit": any(worst[family] > CONTENDED for family in linked) if linked else None}


def _one_process(cell: Cell) -> dict[str, Any]:
    rows = [row for row in cell.pairs if row["collective"] == "all_reduce"]
    by_phase = {phase: [row for row in rows if row["phase"].startswith(phase)] for phase in ("alone", "together")}
    windows = sorted(window(row) for row in by_phase["alone"])
    span = common([window(row) for row in by_phase["together"]]) if by_phase["together"] else (0.0, 0.0)
    # Two ranks: bus and algorithm bandwidth of an all-reduce are the same.
    speed = lambda row, times: [row["size_bytes"] / time / 1e3 for time in times]  # noqa: E731
    return {
        "alone": {row["pair"]: speed(row, row["times_us"]) for row in by_phase["alone"]},
        "together": {row["pair"]: speed(row, inside(row, span)) for row in by_phase["together"]},
        "overlap": overlap_share([window(row) for row in by_phase["together"]]) if by_phase["together"] else 0.0,
        "is_apart": all(first[1] <= second[0] for first, second in pairwise(windows)),
    }


def direction_results(cells: Mapping[str, Cell]) -> dict[str, Any]:
    """directions: GB/s of one pair, one way alone and each way while both run."""
    found: dict[str, list[list[float]]] = {}
    for cell in cells.values():
        if cell.name.endswith("-directions"):
            for row in cell.pairs:
                speeds = [row["size_bytes"] / time / 1e3 for time in row["times_us"]]
                found.setdefault(DIRECTIONS[row["collective"]], []).append(speeds)
    return {"directions": {name: quantity([speed for process in processes for speed in process], "GB/s",
                                          num_processes=len(processes)) for name, processes in found.items()}}

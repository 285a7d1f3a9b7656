"""What a verified save costs, from the ranks' files of `labkit.workers.checkpoint_resume`.

In: rows of all ranks, one list a process. Out: quantities by state size and variant. A save takes as long as its
slowest rank; a cost compares a save with the bare save of the same round, so that a drift of the disk hits both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import linear_regression
from typing import Any

from labkit.analyze.ddp_rank_files import of_kind
from labkit.records import quantity

Rows = Sequence[dict[str, Any]]
Times = dict[str, dict[str, list[list[float]]]]
"""Size -> variant -> [process][round]."""


def save_times_ms(processes: Sequence[Rows], field: str = "time_s") -> Times:
    """Times of the slowest rank, ms, by size ("50 MB") and variant; rounds that a variant lacks are left out."""
    found: Times = {}
    for number, rows in enumerate(processes):
        rounds: dict[tuple[str, str, int], list[float]] = {}
        for row in of_kind(rows, "cost"):
            if field in row:
                key = (f"{row['size_mb']:g} MB", row["variant"], row["index"])
                rounds.setdefault(key, []).append(row[field] * 1e3)
        for (size, variant, _), times in sorted(rounds.items(), key=lambda item: item[0][2]):
            by_process = found.setdefault(size, {}).setdefault(variant, [[] for _ in processes])
            by_process[number].append(max(times))
    return found


def cost_results(processes: Sequence[Rows]) -> tuple[dict[str, Any], dict[str, Any]]:
    """(results, samples) of the save times.

    Results: save_ms and save_cost_pct {size: {variant: quantity}}, async_stall_ms, hash_ms {size: {variant: quantity}},
    verify_ms {size: {hash: quantity}}, fast_hash, fast_cost_pct and fast_extra_ms {size: quantity} (over the bare save
    of the same round), is_fast_cost_within_5_pct {size: bool}, fast_cost_fit (see `cost_fit`). Empty without timed
    saves.
    """
    times = save_times_ms(processes)
    if not times:
        return {}, {}
    num = len(processes)
    costs = _paired(times, lambda own, bare: 100 * (own / bare - 1))
    fast = "xxh3_128" if any("protocol xxh3_128" in variants for variants in times.values()) else "sha256"
    fast_costs = {size: _quantity(own[f"protocol {fast}"], "%", num) for size, own in costs.items()
                  if f"protocol {fast}" in own}
    extra = {size: _quantity(own[f"protocol {fast}"], "ms", num)
             for size, own in _paired(times, lambda own, bare: own - bare).items() if f"protocol {fast}" in own}
    bare = {size: _quantity(own["bare"], "ms", num) for size, own in times.items()}
    results = {
        "save_ms": _quantities(times, "ms", num), "save_cost_pct": _quantities(costs, "%", num),
        "async_stall_ms": {size: own["async"] for size, own in _quantities(
            save_times_ms(processes, "stall_s"), "ms", num).items()},
        "hash_ms": _quantities(save_times_ms(processes, "hash_s"), "ms", num),
        "verify_ms": _verify_ms(processes), "fast_hash": fast, "fast_cost_pct": fast_costs,
        "fast_extra_ms": extra, "fast_cost_fit": cost_fit(bare, extra),
        "is_fast_cost_within_5_pct": {size: own["value"] <= 5 for size, own in fast_costs.items()},
    }
    samples = {f"save_ms.{size}.{variant}": {"unit": "ms", "values": by_process}
               for size, variants in times.items() for variant, by_process in variants.items()}
    return results, samples


def cost_fit(bare: Mapping[str, Mapping[str, Any]], extra: Mapping[str, Mapping[str, Any]]
             ) -> dict[str, float | None] | None:
    """Straight lines through the medians: a fixed part and a part per MB, of the bare save and of what is added to it.

    Args:
        bare: size ("50 MB") -> quantity, ms.
        extra: size -> quantity, ms.

    Returns: {"fixed_ms", "per_mb_ms", "bare_fixed_ms", "bare_per_mb_ms", "within_5_pct_from_mb" (the size from which on
        the added part is at most 5 % of the bare one, 0 if from the start, None if never)}; None with one size.
    """
    sizes = [size for size in bare if size in extra]
    if len(sizes) < 2:
        return None
    mb = [float(size.split()[0]) for size in sizes]
    per_mb, fixed = linear_regression(mb, [extra[size]["value"] for size in sizes])
    bare_per_mb, bare_fixed = linear_regression(mb, [bare[size]["value"] for size in sizes])
    left, needed = 0.05 * bare_per_mb - per_mb, fixed - 0.05 * bare_fixed
    start = max(0.0, needed / left) if left > 0 else None
    return {"fixed_ms": fixed, "per_mb_ms": per_mb, "bare_fixed_ms": bare_fixed, "bare_per_mb_ms": bare_per_mb,
            "within_5_pct_from_mb": start}


def _paired(times: Times, compare: Callable[[float, float], float]) -> Times:
    """Every variant but `bare` against the bare save of the same round."""
    return {size: {variant: [[compare(t, bare) for t, bare in zip(own, base, strict=True)]
                             for own, base in zip(by_process, variants["bare"], strict=True)]
                   for variant, by_process in variants.items() if variant != "bare"}
            for size, variants in times.items()}


def _quantities(times: Mapping[str, Mapping[str, list[list[float]]]], unit: str, num: int) -> dict[str, dict[str, Any]]:
    return {size: {variant: _quantity(own, unit, num) for variant, own in variants.items()}
            for size, variants in times.items()}


def _quantity(by_process: Sequence[Sequence[float]], unit: str, num: int) -> dict[str, Any]:
    return quantity([value for own in by_process for value in own], unit, num_processes=num)


def _verify_ms(processes: Sequence[Rows]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, list[float]]] = {}
    for rows in processes:
        for row in of_kind(rows, "verify_cost"):
            found.setdefault(f"{row['size_mb']:g} MB", {}).setdefault(row["hash"], []).append(row["time_s"] * 1e3)
    return {size: {name: quantity(own, "ms", num_processes=len(processes)) for name, own in by_hash.items()}
            for size, by_hash in found.items()}

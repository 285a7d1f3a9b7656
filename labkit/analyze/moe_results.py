"""What the ranks of an expert-parallel run left behind, as plain values by case.

In: rows of `rank<k>.jsonl`. Out: counts, times of the slowest rank, waiting apart from transfer, bandwidth.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from labkit.analyze.ddp_rank_files import of_kind
from labkit.records import quantity

PHASES = ("counts", "dispatch", "expert", "combine")
Rows = list[dict[str, Any]]


def structure(rows: Rows, cases: Sequence[str]) -> dict[str, Any]:
    """Rows received, imbalance and checks of the first process, by case.

    Args:
        rows: of every rank of one process.
        cases: labels, in order.

    Returns: "received" (case -> rows by rank), "max_mean", "ids_wrong" (token ids not back in place, all ranks),
        "ids_checked", "out_rel_diff" (largest of any row), "matrix".
    Raises: LookupError when a rank has not checked a case.
    """
    found: dict[str, dict[str, Any]] = {name: {} for name in (
        "received", "max_mean", "ids_wrong", "ids_checked", "out_rel_diff", "matrix")}
    num_ranks = 1 + max(row["rank"] for row in rows)
    for case in cases:
        checks = {row["rank"]: row for row in of_kind(rows, "case", case=case)}
        by_rank = [checks[rank] for rank in range(num_ranks)]
        received = [row["received_rows"] for row in by_rank]
        found["received"][case] = received
        found["max_mean"][case] = max(received) * num_ranks / sum(received)
        found["ids_wrong"][case] = sum(row["num_ids_wrong"] for row in by_rank)
        found["ids_checked"][case] = sum(row["num_ids"] for row in by_rank)
        found["out_rel_diff"][case] = max(row["out_rel_diff"] for row in by_rank)
        found["matrix"][case] = by_rank[0]["matrix"]
    return found


def times_ms(rows: Rows, case: str, phase: str, *, is_split: bool) -> list[list[float]]:
    """Times of one phase, [rank][step], ms; `phase` may be "step": the sum of the phases of a rank."""
    by_rank: dict[int, dict[int, float]] = {}
    for row in of_kind(rows, "step", case=case, is_split=is_split):
        parts = [name for name in row if name.endswith("_s")] if phase == "step" else [f"{phase}_s"]
        by_rank.setdefault(row["rank"], {})[row["index"]] = 1e3 * sum(row[name] for name in parts)
    return [[by_rank[rank][index] for index in sorted(by_rank[rank])] for rank in sorted(by_rank)]


def timing(processes: Sequence[Rows], tokens: Mapping[str, int]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Times by case over all processes.

    Args:
        processes: rows of every rank, by process.
        tokens: case -> tokens of all ranks in one step.

    Returns: (results, samples). Results: "<phase>_ms" and "step_ms" of the slowest rank of each step; "tokens_per_s";
        by rank, as medians: "rank_combine_ms" (as it comes), "rank_wait_ms" and "rank_transfer_ms" (of steps that meet
        before combine). Samples: every one, [process][rank][step] for the phases.
    """
    results: dict[str, Any] = {name: {} for name in (
        *(f"{phase}_ms" for phase in (*PHASES, "step")), "tokens_per_s", "rank_combine_ms", "rank_expert_ms",
        "rank_wait_ms", "rank_transfer_ms")}
    samples: dict[str, Any] = {}
    for case in tokens:
        for phase in (*PHASES, "step"):
            by_process = [times_ms(rows, case, phase, is_split=False) for rows in processes]
            slowest = [[max(step) for step in zip(*ranks, strict=True)] for ranks in by_process]
            pooled = [time for steps in slowest for time in steps]
            if not pooled:
                continue
            results[f"{phase}_ms"][case] = quantity(pooled, "ms", num_processes=len(processes))
            samples[f"{phase}_ms.{case}"] = {"unit": "ms", "values": slowest}
            if phase == "step":
                rates = [tokens[case] / time * 1e3 for time in pooled]
                results["tokens_per_s"][case] = quantity(rates, "tokens/s", num_processes=len(processes))
        for name, phase, is_split in (("rank_combine_ms", "combine", False), ("rank_expert_ms", "expert", False),
                                      ("rank_wait_ms", "wait", True), ("rank_transfer_ms", "combine", True)):
            by_process = [times_ms(rows, case, phase, is_split=is_split) for rows in processes]
            by_rank = [[time for steps in ranks for time in steps] for ranks in zip(*by_process)]
            if by_rank and all(by_rank):
                results[name][case] = [median(times) for times in by_rank]
                samples[f"{name}.{case}"] = {"unit": "ms", "values": by_process}
    return results, samples


def waits_in_combine(results: Mapping[str, Any]) -> bool | None:
    """Whether the ranks without the hot expert spend more of their combine waiting than the rank that has it.

    Args:
        results: of `timing`; the large hot case counts where there is one, else `hot`.

    Returns: True if their median wait at the meeting point is longer than the hot rank's, and combine as it comes takes
        them longer than the transfer alone; None where it was not measured.
    """
    waits = results.get("rank_wait_ms", {})
    case = next((case for case in ("hot, large", "hot") if case in waits), None)
    if case is None or len(waits[case]) < 2:
        return None
    cold = {name: median(results[name][case][1:]) for name in ("rank_wait_ms", "rank_combine_ms", "rank_transfer_ms")}
    return cold["rank_wait_ms"] > waits[case][0] and cold["rank_combine_ms"] > cold["rank_transfer_ms"]


def late(rows: Rows) -> dict[str, Any]:
    """What the first rank's clock says about one all-to-all when the last rank is late, ms; empty with one rank.

    Returns: "in_time_ms", "late_ms" (medians), "delay_ms", "includes_wait": the difference is most of the delay.
    """
    found = of_kind(rows, "late", rank=0)
    if not found or max(row["rank"] for row in rows) == 0:
        return {}
    medians = [1e3 * median(row["time_s"] for row in found if row["is_late"] is is_late) for is_late in (False, True)]
    delay = 1e3 * found[0]["delay_s"]
    return {"in_time_ms": medians[0], "late_ms": medians[1], "delay_ms": delay,
            "includes_wait": medians[1] - medians[0] >= 0.8 * delay}


def kernel_lengths(rows: Rows) -> dict[str, Any]:
    """Length of the communication kernel on the first rank, same payload, without and with a late rank.

    Returns: "in_time_ms", "late_ms", "names", "is_misread": it grew by more than half of the delay; empty where there
        are no kernels (a CPU, or a profiler without GPU events).
    """
    by_late = {row["is_late"]: row for row in of_kind(rows, "kernels", rank=0)}
    if len(by_late) < 2 or not all(row["kernel_s"] for row in by_late.values()):
        return {}
    length = {is_late: 1e3 * sum(row["kernel_s"]) for is_late, row in by_late.items()}
    delay = 1e3 * by_late[True]["delay_s"]
    return {"in_time_ms": length[False], "late_ms": length[True], "names": by_late[True]["names"],
            "is_misread": length[True] - length[False] > delay / 2}


def bandwidth(processes: Sequence[Rows]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Dispatch bandwidth of each payload (slowest rank), and copies to the peer GPU, of all processes.

    Returns: (results, samples); results are empty without GPUs. "dispatch_gb_per_s" (remote bytes of a rank over the
        slowest rank's time, by MiB sent), "peer_copy_gb_per_s" ("one_way", "both_ways" per direction) and
        "dispatch_vs_peer_copy": median dispatch over median copy under the same load (both ways), and over the lone
        copy, of the largest payload.
    """
    results: dict[str, Any] = {}
    samples: dict[str, Any] = {}
    sizes = sorted({row["remote_bytes"] for rows in processes for row in of_kind(rows, "bandwidth")})
    for size in sizes:
        rates = []
        for rows in processes:
            ranks = [row["times_s"] for row in of_kind(rows, "bandwidth", remote_bytes=size)]
            rates.append([size / max(times) / 1e9 for times in zip(*ranks, strict=True)])
        label = f"{size / 2**20:g} MiB"
        pooled = [rate for found in rates for rate in found]
        results.setdefault("dispatch_gb_per_s", {})[label] = quantity(pooled, "GB/s", num_processes=len(processes))
        samples[f"dispatch_gb_per_s.{label}"] = {"unit": "GB/s", "values": rates}
    for is_both, name in ((False, "one_way"), (True, "both_ways")):
        rates = []
        for rows in processes:
            ranks = of_kind(rows, "peer_copy", is_both=is_both)
            if ranks:
                rates.append([ranks[0]["num_bytes"] / max(times) / 1e9
                              for times in zip(*(row["times_s"] for row in ranks), strict=True)])
        if rates:
            pooled = [rate for found in rates for rate in found]
            results.setdefault("peer_copy_gb_per_s", {})[name] = quantity(pooled, "GB/s", num_processes=len(rates))
            samples[f"peer_copy_gb_per_s.{name}"] = {"unit": "GB/s", "values": rates}
    if sizes and "peer_copy_gb_per_s" in results:
        best = results["dispatch_gb_per_s"][f"{sizes[-1] / 2**20:g} MiB"]["value"]
        results["dispatch_vs_peer_copy"] = {
            name: best / copy["value"] for name, copy in results["peer_copy_gb_per_s"].items()}
    return results, samples


def dedup(rows: Rows) -> dict[str, Any]:
    """Rows sent to other ranks, one for each pair or one for each rank of a token, and how far the outputs differ.

    Returns: "pair_rows", "rank_rows" (other ranks only), "saved_share", "distinct_ranks" (mean of a token, own rank
        included), "num_tokens", "rel_diff"; empty where it was not run.
    """
    found = of_kind(rows, "dedup")
    if not found:
        return {}

    def remote(matrix: Sequence[Sequence[int]]) -> int:
        return sum(count for source, row in enumerate(matrix) for to, count in enumerate(row) if to != source)

    pair, rank = found[0]["pair_matrix"], found[0]["rank_matrix"]
    num_tokens = sum(row["num_tokens"] for row in found)
    return {
        "pair_rows": remote(pair), "rank_rows": remote(rank), "num_tokens": num_tokens,
        "saved_share": 1 - sum(map(sum, rank)) / sum(map(sum, pair)),
        "distinct_ranks": sum(map(sum, rank)) / num_tokens, "rel_diff": max(row["rel_diff"] for row in found),
    }


def calls_per_step(rows: Rows) -> dict[str, int]:
    """All-to-alls that each rank's profiler saw in one step: {"all_to_alls", "ranks_agree"}."""
    found = of_kind(rows, "calls")
    counts = {row["all_to_alls"] for row in found}
    return {"all_to_alls": max(counts, default=0), "ranks_agree": int(len(counts) == 1)}


def medians_by_case(results: Mapping[str, Any], name: str) -> dict[str, float]:
    """Medians of a timed result by case; empty where it was not timed."""
    return {case: value["value"] for case, value in (results.get(name) or {}).items()}

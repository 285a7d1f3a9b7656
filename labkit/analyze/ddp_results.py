"""From the rank files of a DDP run to the results and samples of its record.

In: one `Process` for each fresh launch. Out: plain JSON values by name and case, as the claim ledger looks them up. A
case is a bucket cap ("25 MiB") or an accumulation variant ("m8a1"); the first process also holds the checks.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from labkit.analyze.ddp_rank_files import (
    loopback_per_rank_bytes,
    of_kind,
    rank_times_ms,
    read_ranks,
    slowest_rank_ms,
    trace_facts,
)
from labkit.calc.collectives import ring_bytes_per_rank
from labkit.records import quantity

MIB = 2**20
VARIANTS = ("m8a1", "m1a8-no_sync", "m1a8-sync-every")
TRAPS = ("forward", "backward")
TRACE_SAMPLES = {
    "comm_union_ms": ("comm_ms", "ms"),
    "exposed_comm_ms": ("exposed_ms", "ms"),
    "compute_ms": ("compute_ms", "ms"),
    "first_comm_start_ms": ("first_comm_ms", "ms"),
    "compute_before_first_comm_pct": ("compute_before_comm_pct", "%"),
    "comm_wait_ms": ("wait_ms", "ms"),
    "comm_transfer_ms": ("transfer_ms", "ms"),
}
"""Sample name -> the trace fact it collects, by process and rank, and its unit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """What one fresh launch left behind."""

    rows: list[dict[str, Any]]
    traces: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Case, or "trap forward", "trap backward", -> `ddp_rank_files.trace_facts`."""

    def row(self, kind: str, **wanted: Any) -> dict[str, Any]:
        """The first such row of rank 0, or an empty one."""
        return next(iter(of_kind(self.rows, kind, rank=0, **wanted)), {})


def read_process(folder: Path) -> Process:
    """Read one launch: rank files and all traces they name; raises UnreadableInput if something is missing."""
    rows = read_ranks(folder)
    named: dict[str, dict[int, str]] = {}
    for row in of_kind(rows, "profiled"):
        named.setdefault(row["case"], {})[row["rank"]] = row["trace"]
    for row in of_kind(rows, "trap"):
        named.setdefault(f"trap {row['scope']}", {})[row["rank"]] = row["trace"]
    return Process(rows=rows, traces={case: trace_facts(folder, traces) for case, traces in named.items()})


def collectives_seen(facts: dict[str, Any], *, world_size: int) -> list[int]:
    """All-reduces of a recorded step by rank; a single rank may call one without any communication being recorded."""
    return facts["calls"] if world_size == 1 else facts["collectives"]


def structure(first: Process, *, world_size: int) -> dict[str, Any]:
    """Results that are counts, sizes and identities, from the process that checked them."""
    logs = {row["case"]: row for row in of_kind(first.rows, "reducer", rank=0)}
    counts = {case: collectives_seen(facts, world_size=world_size)[0] for case, facts in first.traces.items()}
    checks = {row["case"]: row for row in of_kind(first.rows, "gradients", rank=0)}
    shapes = first.row("setup")["parameters"]
    sizes = {case: log["rebuilt_bucket_sizes_bytes"] for case, log in logs.items()}
    num_elements = [rows * (cols[0] if cols else 1) for _, (rows, *cols), _ in shapes]
    split = checks.get("m1a8-no_sync", {}).get("vs_other") or {}
    found: dict[str, Any] = {
        "num_parameters": sum(num_elements),
        "gradient_bytes": sum(next(iter(sizes.values()))),
        "large_parameter_mib": 4 * max(num_elements) / MIB,
        "bucket_sizes_bytes": sizes,
        "initial_bucket_sizes_bytes": {case: log["initial_bucket_sizes_bytes"] for case, log in logs.items()},
        "bucket_count": {case: len(buckets) for case, buckets in sizes.items()},
        "bucket_max_mib": {case: max(buckets) / MIB for case, buckets in sizes.items()},
        "cap1_largest_bucket_mib": max(sizes["1 MiB"]) / MIB if "1 MiB" in sizes else None,
        "collectives_per_step": {case: counts[case] for case in sizes},
        "accum_collectives": {case: counts[case] for case in VARIANTS},
        **{f"no_sync_{scope}_only_collectives": counts[f"trap {scope}"] for scope in TRAPS},
        "wire_bytes_per_rank": {
            case: ring_bytes_per_rank("all_reduce", size_bytes=first.traces[case]["bytes"][0], world_size=world_size)
            for case in [*sizes, *VARIANTS]} if world_size > 1 else {},
        "slices_distinct": slices_are_distinct(first),
        "gradients_equal_across_ranks": {case: not check["names_differing"] for case, check in checks.items()},
        "grad_rel_diff_vs_reference": {case: check["vs_reference"]["rel_diff"] for case, check in checks.items()},
        "grad_rel_diff_m1a8_vs_m8a1": split.get("rel_diff"),
        "grad_bitwise_equal_m1a8_vs_m8a1": split.get("is_bitwise_equal"),
        "loss_rel_diff_m1a8_vs_m8a1": abs(checks["m1a8-no_sync"]["loss"] / checks["m8a1"]["loss"] - 1),
    }
    return {**found, **_straggler(first), **_equivalence(first)}


def slices_are_distinct(first: Process) -> bool:
    """Whether the micro-steps of all ranks together use every sample of the batch once, each with tokens of its own."""
    rows = [row for row in of_kind(first.rows, "gradients") if row["case"].startswith("m1a8")]
    by_case: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        by_case.setdefault(row["case"], []).append(row)
    return bool(by_case) and all(
        sorted(ids := [i for row in rows for i in row["sample_ids"]]) == list(range(len(ids)))
        and len({digest for row in rows for digest in row["micro_digests"]}) == len(ids)
        for rows in by_case.values())


def timing(processes: list[Process], *, tokens_per_step: dict[str, int]) -> tuple[dict[str, Any], dict[str, Any]]:
    """(results, samples) of unprofiled steps: the slowest rank of each step, over all processes.

    Args:
        processes: every launch.
        tokens_per_step: case -> tokens of all ranks in one optimizer step.
    """
    results: dict[str, Any] = {"step_time_ms": {}, "tokens_per_s": {}}
    samples: dict[str, Any] = {}
    for case, tokens in tokens_per_step.items():
        by_rank = [rank_times_ms(process.rows, case) for process in processes]
        slowest = [slowest_rank_ms(times) for times in by_rank]
        pooled = [ms for steps in slowest for ms in steps]
        if not pooled:
            continue
        time = quantity(pooled, "ms", num_processes=len(processes))
        rate = {end: tokens / time[of] * 1e3 for end, of in (("value", "value"), ("p10", "p90"), ("p90", "p10"))}
        results["step_time_ms"][case] = time
        # One definition: the rate of the median step, so that rate and step time invert to each other (erratum E02).
        results["tokens_per_s"][case] = {**time, **rate, "unit": "tokens/s"}
        samples[f"step_time_ms.{case}"] = {"unit": "ms", "values": slowest}
        samples[f"rank_step_time_ms.{case}"] = {"unit": "ms", "values": by_rank}
    return results, samples


def recorded(processes: list[Process], cases: list[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """(results, samples) of profiled steps. Structure, not speed: a recorded step is slower than a plain one."""
    samples = {f"{name}.{case}": {"unit": unit, "values": [process.traces[case][fact] for process in processes]}
               for name, (fact, unit) in TRACE_SAMPLES.items() for case in cases}
    return trace_results(samples, cases), samples


def trace_results(samples: dict[str, Any], cases: Iterable[str]) -> dict[str, dict[str, Any]]:
    """What a recorded step says about communication, from a record's samples.

    Inside a collective an early rank waits for a late one, so the union of its collectives is mostly waiting. The rank
    that waits least shows communication; the others' waiting is a result of its own. Of several processes the one whose
    rank has the median union is taken, so that the numbers of a case belong to one trace.

    Args:
        samples: the record's, as `recorded` made them.
        cases: caps and variants.

    Returns: result -> case -> value: comm_union_ms, exposed_comm_ms, compute_ms, overlap_pct, first_comm_start_ms,
        compute_before_first_comm_pct of that trace; comm_wait_ms (the longest over ranks) and comm_transfer_ms (common
        to all ranks), medians over processes, sums over collectives. A case without communication is left out.
    """
    results: dict[str, dict[str, Any]] = {name: {} for name in (*TRACE_SAMPLES, "overlap_pct")}
    for case in cases:
        by_name = {name: samples.get(f"{name}.{case}", {}).get("values", []) for name in TRACE_SAMPLES}
        unions = by_name["comm_union_ms"]
        places = [(min(ranks), process, ranks.index(min(ranks))) for process, ranks in enumerate(unions) if min(ranks)]
        if not places:
            continue
        union, process, rank = sorted(places)[(len(places) - 1) // 2]
        for name in ("comm_union_ms", "exposed_comm_ms", "compute_ms", "first_comm_start_ms",
                     "compute_before_first_comm_pct"):
            if by_name[name]:
                results[name][case] = by_name[name][process][rank]
        results["overlap_pct"][case] = 100 * (1 - results["exposed_comm_ms"][case] / union)
        waits = [max(ranks) for ranks in by_name["comm_wait_ms"] if ranks]
        transfers = [value for value in by_name["comm_transfer_ms"] if value is not None]
        if waits:
            results["comm_wait_ms"][case] = median(waits)
        if transfers:
            results["comm_transfer_ms"][case] = median(transfers)
    return results


def loopback_seen(processes: list[Process], cases: list[str], *, world_size: int) -> dict[str, float]:
    """Case -> bytes per rank that the loopback interface carried in the quietest timed step; empty on a GPU."""
    seen = {case: [loopback_per_rank_bytes(p.rows, case, world_size=world_size) for p in processes] for case in cases}
    return {case: min(known) for case, values in seen.items() if (known := [v for v in values if v is not None])}


def _straggler(first: Process) -> dict[str, Any]:
    """Rank 0's clock beside the slowest one, while the last rank sleeps after its last collective."""
    by_index: dict[int, dict[int, float]] = {}
    for row in of_kind(first.rows, "straggler"):
        by_index.setdefault(row["index"], {})[row["rank"]] = row["time_s"] * 1e3
    if not by_index:
        return {}
    own = [times[0] for times in by_index.values()]
    slowest = [max(times.values()) for times in by_index.values()]
    return {
        "straggler_rank0_ms": quantity(own, "ms", num_processes=1),
        "straggler_slowest_ms": quantity(slowest, "ms", num_processes=1),
        "straggler_rank0_vs_slowest": sum(own) / sum(slowest),
    }


def _equivalence(first: Process) -> dict[str, Any]:
    """How far training with accumulation is from training with one big micro-step after a few real steps."""
    row = first.row("equivalence")
    if not row:
        return {}
    pairs = zip(row["losses"]["m1a8-no_sync"], row["losses"]["m8a1"], strict=True)
    return {"equivalence_loss_rel_diff": [abs(split / whole - 1) for split, whole in pairs],
            "equivalence_parameter_rel_diff": row["parameters"]["rel_diff"]}

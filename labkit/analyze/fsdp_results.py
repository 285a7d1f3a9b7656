"""From the files of an FSDP run to the results and samples of its record.

In: one `Process` for each fresh launch. Out: plain JSON values by name and case, as the claim ledger looks them up. A
case is named as in `labkit.calc.fsdp`; "alone" is the baseline without sharding. The first process holds the checks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from labkit.analyze.ddp_rank_files import loopback_per_rank_bytes, of_kind, rank_times_ms, read_ranks, slowest_rank_ms
from labkit.analyze.fsdp_traces import rank_facts, split_waiting
from labkit.calc.collectives import ring_bytes_per_rank
from labkit.records import quantity

GIB = 2**30
TRACE_SAMPLES: dict[str, Callable[[dict[str, Any]], float]] = {
    "comm_union_ms": lambda facts: facts["comm_ms"],
    "exposed_comm_ms": lambda facts: facts["exposed_ms"],
    "compute_ms": lambda facts: facts["compute_ms"],
    "ag_union_ms": lambda facts: facts["ag"]["union_ms"],
    "ag_exposed_ms": lambda facts: facts["ag"]["exposed_ms"],
    "rs_union_ms": lambda facts: facts["rs"]["union_ms"],
    "rs_exposed_ms": lambda facts: facts["rs"]["exposed_ms"],
}
"""Sample name -> the number of one rank's recorded step that it collects, by process and rank."""
PEAKS = ("allocated", "active", "reserved")


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """What one fresh launch left behind."""

    rows: list[dict[str, Any]]
    traces: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """Case -> `fsdp_traces.rank_facts` of every rank, in rank order."""

    def calls(self, case: str) -> list[list[Any]]:
        """Collectives of one step as rank 0's dispatcher saw them: [phase, collective, bytes, products before]."""
        return of_kind(self.rows, "calls", case=case, rank=0)[0]["calls"]

    @property
    def cases(self) -> list[str]:
        """Sharded cases, in the order in which they ran."""
        return [row["case"] for row in of_kind(self.rows, "calls", rank=0)]


def read_process(folder: Path) -> Process:
    """Read one launch: rank files and all traces they name; raises UnreadableInput if something is missing."""
    rows = read_ranks(folder)
    named: dict[str, dict[int, str]] = {}
    for row in of_kind(rows, "profiled"):
        named.setdefault(row["case"], {})[row["rank"]] = row["trace"]
    return Process(rows=rows, traces={
        case: [rank_facts(folder / traces[rank]) for rank in sorted(traces)] for case, traces in named.items()})


def structure(first: Process, *, world_size: int) -> dict[str, Any]:
    """Results that are counts, sizes and identities, from the process that checked them."""
    calls = {case: first.calls(case) for case in first.cases}
    units = {row["case"]: row["num_units"] for row in of_kind(first.rows, "units", rank=0)}
    state = {case: {kind: [row["state_bytes"][kind] for row in of_kind(first.rows, "units", case=case)]
                    for kind in ("parameters", "gradients", "optimizer")} for case in units}
    sums = {case: {op: sum(size for _, name, size, _ in calls[case] if name == op)
                   for op in ("all_gather", "reduce_scatter")} for case in calls}
    block = next((case for case in calls if case.endswith("block+PRE")), None)
    root = next((case for case in calls if case.endswith("root+PRE")), None)
    refusal = of_kind(first.rows, "refusal", rank=0)
    return {
        "units": {wrap: units[case] for wrap, case in (("root", root), ("block", block)) if case is not None},
        "collectives": {case: {"ag": _count(calls[case], "all_gather"), "rs": _count(calls[case], "reduce_scatter")}
                        for case in calls},
        "block_decomposition": None if block is None else {
            "forward_ag": _count(calls[block], "all_gather", "forward"),
            "backward_ag": _count(calls[block], "all_gather", "backward"),
            "rs": _count(calls[block], "reduce_scatter")},
        "root_schedule": None if root is None else [call[:2] for call in calls[root]] == [
            ["forward", "all_gather"], ["backward", "reduce_scatter"]],
        "gather_bytes": {case: found["all_gather"] for case, found in sums.items()},
        "scatter_bytes": {case: found["reduce_scatter"] for case, found in sums.items()},
        "wire_bytes_per_rank": {case: sum(ring_bytes_per_rank(op, size_bytes=size, world_size=world_size)
                                          for op, size in found.items()) if world_size > 1 else 0
                                for case, found in sums.items()},
        "state_bytes": state,
        "fsdp1_refusal": refusal[0]["fsdp1"] if refusal else None,
    }


def _count(calls: list[list[Any]], collective: str, phase: str | None = None) -> int:
    return sum(name == collective and phase in (None, when) for when, name, *_ in calls)


def training(first: Process, *, world_size: int) -> dict[str, Any]:
    """How far each case's training is from one process's, by case: loss, first gradients, distance moved."""
    found: dict[str, dict[str, float]] = {name: {} for name in (
        "loss_rel_diff", "gradient_rel_diff", "parameter_rel_diff")}
    for row in of_kind(first.rows, "check", rank=0):
        of_ranks = of_kind(first.rows, "check", case=row["case"])
        means = [sum(losses) / world_size for losses in zip(*(each["losses"] for each in of_ranks), strict=True)]
        found["loss_rel_diff"][row["case"]] = max(
            abs(mean / whole - 1) for mean, whole in zip(means, row["reference_losses"], strict=True))
        found["gradient_rel_diff"][row["case"]] = row["gradients"]["worst_rel_diff"]
        found["parameter_rel_diff"][row["case"]] = row["parameters"]["worst_rel_diff"]
    return found


def timing(processes: list[Process], *, tokens_per_step: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """(results, samples) of unprofiled steps: the slowest rank of each step, over all processes.

    Args:
        processes: every launch.
        tokens_per_step: of all ranks in one optimizer step.
    """
    results: dict[str, Any] = {"step_time_ms": {}, "tokens_per_s": {}}
    samples: dict[str, Any] = {}
    for case in dict.fromkeys(row["case"] for row in of_kind(processes[0].rows, "step")):
        by_rank = [rank_times_ms(process.rows, case) for process in processes]
        slowest = [slowest_rank_ms(times) for times in by_rank]
        time = quantity([ms for steps in slowest for ms in steps], "ms", num_processes=len(processes))
        rate = {end: tokens_per_step / time[of] * 1e3 for end, of in (("value", "value"), ("p10", "p90"),
                                                                      ("p90", "p10"))}
        results["step_time_ms"][case] = time
        # One definition: the rate of the median step, so that rate and step time invert to each other (erratum E02).
        results["tokens_per_s"][case] = {**time, **rate, "unit": "tokens/s"}
        samples[f"step_time_ms.{case}"] = {"unit": "ms", "values": slowest}
        samples[f"rank_step_time_ms.{case}"] = {"unit": "ms", "values": by_rank}
    return results, samples


def recorded(processes: list[Process]) -> tuple[dict[str, Any], dict[str, Any]]:
    """(results, samples) of recorded steps. Structure, not speed: a recorded step is slower than a plain one.

    Inside a collective an early rank waits for a late one. So a case is shown by the rank that waited least, in the
    process whose such rank has the median union: its numbers belong to one trace.

    Returns: results by name and case: those of `TRACE_SAMPLES`, overlap_pct, ag_overlap_pct, rs_overlap_pct (share of
        the time in collectives that compute covers; None without communication), comm_transfer_ms, comm_wait_ms
        (medians over processes; absent where unknown), limiter_waits.
    """
    processes = [process for process in processes if process.traces]
    results: dict[str, Any] = {name: {} for name in (
        *TRACE_SAMPLES, "overlap_pct", "ag_overlap_pct", "rs_overlap_pct", "comm_transfer_ms", "comm_wait_ms",
        "limiter_waits")}
    samples: dict[str, Any] = {}
    for case in processes[0].traces:
        ranks = [process.traces[case] for process in processes]
        for name, take in TRACE_SAMPLES.items():
            samples[f"{name}.{case}"] = {"unit": "ms", "values": [[take(facts) for facts in each] for each in ranks]}
        least = sorted((min(each, key=lambda facts: facts["comm_ms"]) for each in ranks),
                       key=lambda facts: facts["comm_ms"])
        shown = least[(len(least) - 1) // 2]
        for name, take in TRACE_SAMPLES.items():
            results[name][case] = take(shown)
        for prefix, busy, bare in (("", shown["comm_ms"], shown["exposed_ms"]),
                                   *((f"{kind}_", shown[kind]["union_ms"], shown[kind]["exposed_ms"])
                                     for kind in ("ag", "rs"))):
            results[f"{prefix}overlap_pct"][case] = 100 * (1 - bare / busy) if busy else None
        results["limiter_waits"][case] = shown["limiter_waits"]
        splits = [split_waiting(each) for each in ranks]
        for name, key in (("comm_transfer_ms", "transfer_ms"), ("comm_wait_ms", "longest_wait_ms")):
            known = [value for split in splits if (value := split[key]) is not None]
            if known:
                results[name][case] = median(known)
    return results, samples


def memory(processes: list[Process]) -> dict[str, Any]:
    """Peaks of the allocator by case, GiB, the largest over ranks and processes; empty on a CPU.

    Returns: allocated_peak_gib, active_peak_gib, reserved_peak_gib, before_gib (in use before the case), and
        memory_def: whether the two ways to read each peak agree everywhere and a peak of reserved memory is never
        below one of allocated memory; absent on a CPU.
    """
    rows = [row for process in processes for row in of_kind(process.rows, "memory")]
    cases = list(dict.fromkeys(row["case"] for row in rows))
    found: dict[str, Any] = {
        f"{name}_peak_gib": {case: max(row[f"{name}_peak_bytes"] for row in rows if row["case"] == case) / GIB
                             for case in cases} for name in PEAKS}
    found["before_gib"] = {case: max(row["before_bytes"] for row in rows if row["case"] == case) / GIB
                           for case in cases}
    if rows:
        found["memory_def"] = all(
            row["allocated_peak_bytes"] == row["max_memory_allocated"] <= row["max_memory_reserved"]
            and row["reserved_peak_bytes"] == row["max_memory_reserved"] for row in rows)
    return found


def loopback_seen(processes: list[Process], cases: list[str], *, world_size: int) -> dict[str, float]:
    """Case -> bytes per rank that the loopback interface carried in the quietest timed step; empty on a GPU."""
    seen = {case: [loopback_per_rank_bytes(p.rows, case, world_size=world_size) for p in processes] for case in cases}
    return {case: min(known) for case, values in seen.items() if (known := [v for v in values if v is not None])}


def verdicts(results: dict[str, Any]) -> dict[str, Any]:
    """What the report's two statements about FSDP1's switches come to in this run; absent where it cannot be said.

    Args:
        results: of the run so far.

    Returns: limiter_role: with the limiter the host waits and reserves no more than without it. pre_gain_ms: how much
        less time a step takes under PRE than under NONE; pre_exposed_gain_ms: how much less communication is exposed.
    """
    times, exposed = results["step_time_ms"], results["exposed_comm_ms"]
    waits, reserved = results["limiter_waits"], results["reserved_peak_gib"]
    on, off, none = "block+PRE", "block+PRE+no-limiter", "block+NONE"
    found: dict[str, Any] = {}
    if on in reserved and off in reserved:
        found["limiter_role"] = waits[on] > waits[off] == 0 and reserved[on] <= reserved[off]
    if on in times and none in times:
        found["pre_gain_ms"] = times[none]["value"] - times[on]["value"]
        found["pre_exposed_gain_ms"] = exposed[none] - exposed[on]
    return found


def exit_verdicts(
    launches: list[dict[str, Any]], exits: dict[str, dict[str, Any]], *, world_size: int
) -> dict[str, Any]:
    """What the report's statements about leaving come to; absent where the way was not tried.

    Args:
        launches: `labkit.analyze.job_exit.job_exit` of each launch that trained and left in the right order.
        exits: the same of each way to leave that was tried, by name.
        world_size: ranks.

    Returns: exit_fix: barrier, then destroy, left nothing behind. exit_cause: destroying the group while a gather may
        still run did, and the right order did not. exit_error: what the logs of the tried ways complain of, by way.
        results_file_not_success: a way that failed had written the result of every rank.
    """
    is_fixed = bool(launches) and all(launch["is_clean"] for launch in launches)
    early, hasty = exits.get("early"), exits.get("no_barrier")
    said: dict[str, Any] = {
        "exit_fix": is_fixed,
        "exit_error": {how: ", ".join(found["complaints"]) or "none" for how, found in exits.items()}}
    if hasty is not None:
        said["exit_cause"] = is_fixed and not hasty["is_clean"]
    if early is not None:
        said["results_file_not_success"] = early["exitcode"] != 0 and early["results_written"] == world_size
    return said

"""What happened to jobs that were broken on purpose, from the files of the workers that broke them.

In: rows of the kill, drill and train workers, and torchrun's output. Out: plain values.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from labkit.analyze.ddp_rank_files import of_kind

Rows = Sequence[dict[str, Any]]
_WATCHDOG = re.compile(r"Watchdog caught collective operation timeout: WorkNCCL\(SeqNum=(\d+), OpType=(\w+), "
                       r"NumelIn=(\d+)")
SURVIVOR = {"kill": 4, "straggler": 4, "disk_full": 3}
"""Exit code of a rank that nothing happened to: 3, the save was refused; 4, a peer went away or nobody came."""


def watchdog_report(log: str) -> dict[str, Any] | None:
    """What NCCL's watchdog said first about a collective that timed out; None if it said nothing.

    >>> watchdog_report("... Watchdog caught collective operation timeout: WorkNCCL(SeqNum=3, OpType=ALLREDUCE, "
    ...                 "NumelIn=1048576, NumelOut=1048576, Timeout(ms)=6000) ran for 6001 milliseconds")
    {'SeqNum': 3, 'op': 'ALLREDUCE', 'NumelIn': 1048576}
    """
    found = _WATCHDOG.search(log)
    return {"SeqNum": int(found[1]), "op": found[2], "NumelIn": int(found[3])} if found else None


def aligned(rows: Rows, *, world_size: int) -> dict[str, Any]:
    """The ranks' own logs of collectives, laid side by side.

    Returns: {"last_completed": {rank: sequence}, "waiting": {rank: [sequence, op, elements]} (begun, never ended),
        "missing": ranks that never began the collective others wait in, "sequence": that collective or None}.
    """
    last = {rank: max((row["sequence"] for row in of_kind(rows, "end", rank=rank)), default=0)
            for rank in range(world_size)}
    begun = {rank: max(of_kind(rows, "begin", rank=rank), key=lambda row: row["sequence"], default=None)
             for rank in range(world_size)}
    waiting = {rank: [row["sequence"], row["op"], row["num_elements"]] for rank, row in begun.items()
               if row is not None and row["sequence"] > last[rank]}
    sequence = min((about[0] for about in waiting.values()), default=None)
    missing = [rank for rank, row in begun.items()
               if sequence is not None and (row is None or row["sequence"] < sequence)]
    return {"last_completed": {str(rank): number for rank, number in last.items()},
            "waiting": {str(rank): about for rank, about in waiting.items()}, "missing": missing, "sequence": sequence}


def first_complaint_s(rows: Rows) -> float | None:
    """Seconds from the fault to the first error that any rank's collective raised; None if none did."""
    struck = [row["time_s"] for row in of_kind(rows, "fault")]
    errors = [row["time_s"] for row in of_kind(rows, "error")]
    return min(errors) - struck[0] if struck and errors else None


def job_facts(rows: Rows, log: str, *, world_size: int, wall_s: float, timeout_s: float, rank: int | None,
              exitcode: int | None, had_to_be_ended: bool = False) -> dict[str, Any]:
    """What torchrun, the process group and the ranks' own logs said about a job that was broken.

    Args:
        rows: of the train worker.
        log: torchrun's output.
        world_size: ranks.
        wall_s: from the start of torchrun to its end.
        timeout_s: of the process group.
        rank: the rank that the launcher blames.
        exitcode: of that rank.
        had_to_be_ended: the job did not end by itself before the launcher's deadline.
    """
    found = re.search(r"\b(ChildFailedError)\b", log)
    logs = aligned(rows, world_size=world_size)
    return {
        "failed": rank is not None or exitcode is not None or had_to_be_ended,
        "had_to_be_ended": had_to_be_ended, "error": found[1] if found else None, "rank": rank,
        "exitcode": exitcode, "wall_s": wall_s, "before_timeout": wall_s < timeout_s,
        "after_timeout": wall_s >= timeout_s, "aligned": logs, "missing": logs["missing"],
        "first_error_s": first_complaint_s(rows), "watchdog": watchdog_report(log)}


def kill_results(rows: Rows) -> dict[str, Any]:
    """What a chain of tries left, each judged against what had to be left.

    Returns: {"num_tries", "num_kills", "num_points" (steps of all ranks' writers), "wrong": lines, one for each try
        that left something else than it had to, "by_fault": {fault: {"tries", "recovered"}}, "slowest_s"}.
    """
    points = of_kind(rows, "points")[0]["points"]
    tries = sorted(of_kind(rows, "try"), key=lambda row: row["number"])
    wrong, counts, good = [], {row["fault"]: Counter() for row in tries}, 1
    for row in tries:
        problems = list(_try_problems(row, points, good))
        wrong += [f"try {row['number']} ({row['fault']}): {problem}" for problem in problems]
        counts[row["fault"]].update(tries=1, recovered=int(not problems))
        good = row["newest_good_step"] or good
    return {
        "num_tries": len(tries), "num_kills": sum(row["fault"] == "kill" for row in tries),
        "num_points": sum(len(own) for own in points), "wrong": wrong,
        "by_fault": {fault: dict(own) for fault, own in counts.items()},
        "slowest_s": max(row["wall_s"] for row in tries),
        "files_as_expected": all(_files_fit(row, points) for row in tries if row["fault"] == "kill"),
    }


def _try_problems(row: Mapping[str, Any], points: Sequence[Sequence[Sequence[str]]], good: int) -> Iterator[str]:
    """What is wrong after one try, given the newest good step before it."""
    fault, struck = row["fault"], row["rank_of_fault"]
    last = points[struck][row["point"]] if fault == "kill" else None
    is_committed = fault == "none" or last == ["replaced", "manifest.json"]
    expected = good + 1 if is_committed else good
    if row["newest_good_step"] != expected:
        yield f"newest good step {row['newest_good_step']}, expected {expected}"
    if row["loaded_steps"] != [good] * len(points) or len(set(row["loaded_models"])) != 1:
        yield f"ranks loaded steps {row['loaded_steps']}, expected {good} and one model on every rank"
    codes = [SURVIVOR.get(fault, 0)] * len(points)
    if fault == "kill":
        codes[struck] = -9
    if row["exitcodes"] != codes:
        yield f"exit codes {row['exitcodes']}, expected {codes}"
    if fault == "kill" and not _files_fit(row, points):
        yield f"files {row['files_left']['names']} after a kill at {last}"


def _files_fit(row: Mapping[str, Any], points: Sequence[Sequence[Sequence[str]]]) -> bool:
    """A file has its name if, and only if, its writer got past the replace."""
    own = points[row["rank_of_fault"]][: row["point"] + 1]
    replaced = {name for what, name in own if what == "replaced"}
    pending = {name for _, name in points[row["rank_of_fault"]]} - replaced
    return replaced <= set(row["files_left"]["names"]) and not pending & set(row["files_left"]["names"])


def drill_results(rows: Rows) -> dict[str, Any]:
    """The drill in numbers.

    Returns: {"num_faults", "num_detected", "num_recovered", "num_false_alarms", "num_clean_checks", "by_kind": {kind:
        {"faults", "detected", "recovered"}}, "tmpfs", "missed": numbers of the faults that were not}.
    """
    faults = of_kind(rows, "fault")
    by_kind: dict[str, Counter[str]] = {row["fault"]: Counter() for row in faults}
    for row in faults:
        by_kind[row["fault"]].update(
            faults=1, detected=int(row["is_detected"]), recovered=int(row["is_recovered"]))
    return {
        "num_faults": len(faults), "num_detected": sum(row["is_detected"] for row in faults),
        "num_recovered": sum(row["is_recovered"] for row in faults),
        "num_false_alarms": sum(row["false_alarms"] for row in faults),
        "num_clean_checks": 5 * len(faults),  # three good steps, one after harmless changes, one copy
        "by_kind": {kind: dict(own) for kind, own in by_kind.items()},
        "tmpfs": next((row["tmpfs"] for row in of_kind(rows, "disk")), "not tried"),
        "missed": [row["number"] for row in faults if not (row["is_detected"] and row["is_recovered"])],
    }


DCP_EXPECTED: dict[str, tuple[str, str, int]] = {
    "untouched": ("right", "good", 2),
    "flipped byte": ("wrong values", "damaged", 1),
    "cut to half": ("raises CheckpointException", "damaged", 1),
    "metadata deleted": ("raises CheckpointException", "incomplete", 1),
    "crash while overwriting": ("wrong values", "damaged", 1),
    "unfinished save": ("raises CheckpointException", "incomplete", 1),
    "shard dropped": ("raises CheckpointException", "damaged", 1),
    "stale extra shard": ("right", "good", 2),
    "shards swapped": ("wrong values", "damaged", 1),
    "manifest cut": ("right", "damaged", 1),
}
"""Scenario -> (what DCP's load does, our status, newest good step)."""


def dcp_results(rows: Rows) -> dict[str, dict[str, Any]]:
    """Scenario -> {"dcp_load", "verify", "newest_good_step", "named", "said"}; empty if DCP was not tried."""
    return {row["scenario"]: {
        "dcp_load": row["dcp_load"], "verify": row["verify"], "newest_good_step": row["newest_good_step"],
        "named": row["named"], "said": [*row["problems"], *row["warnings"]]} for row in of_kind(rows, "dcp", rank=0)}


def expected_names(world_size: int) -> dict[str, list[str]]:
    """Scenario -> files that verification has to name."""
    last = f"__{world_size - 1}_0.distcp"
    shards = sorted(f"__{rank}_0.distcp" for rank in range(world_size))
    return {"untouched": [], "flipped byte": ["__0_0.distcp"], "cut to half": ["__0_0.distcp"],
            "metadata deleted": [".metadata"], "crash while overwriting": shards, "unfinished save": [],
            "shard dropped": [last], "stale extra shard": [], "shards swapped": ["__0_0.distcp", last],
            "manifest cut": ["manifest.json"]}

"""Was an FSDP run right? Checks of its first process against the prediction and independent computations.

Independent of each other: the dispatcher's log of every collective, torch's profiler, the closed form in
`labkit.calc.fsdp`, sums over a rank's tensors, the allocator, the loopback counter, and training of one process.
"""

from __future__ import annotations

import math
from typing import Any

from labkit.analyze.ddp_rank_files import of_kind
from labkit.analyze.fsdp_results import Process
from labkit.analyze.fsdp_traces import KINDS
from labkit.records import Oracle

GIB = 2**30


def movement_bound(gradient_bound: float) -> float:
    """How far apart two AdamW runs may move from one start, relative to the distance moved.

    AdamW divides a gradient by its own size, so a step moves an element by the learning rate towards the gradient's
    sign. An element can go the other way only if its gradient is smaller than its error. With normally distributed
    gradients of spread s and errors up to e s that is a share 0.8 e of the elements, each off by twice its step: the
    norm of the difference is sqrt(4 x 0.8 e) of the norm of the movement.

    Args:
        gradient_bound: e, the largest relative error of a gradient.

    Returns: 2 sqrt(e), a ratio. A scale error of all gradients does not show here (AdamW removes it): gradients are
        compared on their own.

    >>> movement_bound(0.0004)
    0.04
    """
    return 2 * math.sqrt(gradient_bound)


def fsdp_oracles(first: Process, *, predicted: dict[str, Any], world_size: int, bound: float,
                 loopback_bytes: dict[str, float], training: dict[str, dict[str, float]]) -> list[Oracle]:
    """Every check of a run's first process.

    Args:
        first: the process that checked.
        predicted: values of the prediction.
        world_size: ranks.
        bound: rounding bound of a gradient for this model and batch.
        loopback_bytes: see `fsdp_results.loopback_seen`; empty on a GPU.
        training: see `fsdp_results.training`.
    """
    found = [*_call_oracles(first, predicted, world_size), *_state_oracles(first, predicted),
             *_training_oracles(first, world_size, bound, training)]
    if loopback_bytes and world_size > 1:
        least = {case: predicted["loopback_floor_bytes"][case] for case in loopback_bytes}
        found.append(Oracle(
            name="loopback carried at least the predicted bytes", expected=least, seen=loopback_bytes,
            passed=all(loopback_bytes[case] >= least[case] for case in least),
            detail="gloo sends a reduce-scatter as an all-reduce, twice its bytes; the interface is shared with the "
                   "rest of the host, so a lower bound can be checked"))
    return found


def _equal(name: str, expected: Any, seen: Any, detail: str = "") -> Oracle:
    return Oracle(name=name, passed=expected == seen, expected=expected, seen=seen, detail=detail)


def _call_oracles(first: Process, predicted: dict[str, Any], world_size: int) -> list[Oracle]:
    """The dispatcher's log against the prediction, then the trace against the dispatcher's log."""
    cases, is_cpu = first.cases, any(facts["is_cpu"] for ranks in first.traces.values() for facts in ranks)
    logs = {case: [row["calls"] for row in of_kind(first.rows, "calls", case=case)] for case in cases}
    counts = {case: {kind: [sum(call[1] == name for call in log) for log in logs[case]]
                     for kind, name in KINDS.items()} for case in cases}
    sizes = {case: {kind: [sum(call[2] for call in log if call[1] == name) for log in logs[case]]
                    for kind, name in KINDS.items()} for case in cases}
    if is_cpu:  # a CPU trace gives the bytes that go in: of a gather the rank's own part
        for case in cases:
            sizes[case]["ag"] = [size // world_size for size in sizes[case]["ag"]]
    return [
        _equal("every collective as predicted, one by one", {case: [len(predicted["calls"][case])] * world_size
                                                             for case in cases},
               {case: [_num_equal(predicted["calls"][case], log) for log in logs[case]] for case in cases},
               "calls that agree in phase, kind, bytes and number of matrix products before them, by case and rank"),
        _equal("collectives in the trace equal the dispatcher's log", counts,
               {case: {kind: [facts[kind]["count"] for facts in first.traces[case]] for kind in KINDS}
                for case in cases}),
        _equal("operator calls in the trace file equal that count", counts,
               {case: {kind: [facts[kind]["calls"] for facts in first.traces[case]] for kind in KINDS}
                for case in cases}),
        _equal("bytes in the trace equal the dispatcher's log", sizes,
               {case: {kind: [facts[kind]["bytes"] for facts in first.traces[case]] for kind in KINDS}
                for case in cases}),
        _equal("no other communication in a step", {case: [{}] * world_size for case in first.traces},
               {case: [facts["others"] for facts in ranks] for case, ranks in first.traces.items()}),
    ]


def _num_equal(expected: list[list[Any]], seen: list[list[Any]]) -> int:
    """Calls that agree; one less than all of them if there are calls too many."""
    same = sum(a == b for a, b in zip(expected, seen))
    return same if len(seen) == len(expected) else min(same, len(expected) - 1)


def _state_oracles(first: Process, predicted: dict[str, Any]) -> list[Oracle]:
    """What each rank keeps, and on a GPU what the allocator says."""
    units = {row["case"]: row for row in of_kind(first.rows, "units", rank=0)}
    wraps = {case: predicted["units"]["root" if "root+" in case else "block"] for case in first.cases}
    state = {case: {kind: [row["state_bytes"][kind] for row in of_kind(first.rows, "units", case=case)]
                    for kind in ("parameters", "gradients", "optimizer")} for case in first.cases}
    found = [
        _equal("wrapped units as predicted", wraps, {case: units[case]["num_units"] for case in first.cases}),
        _equal("bytes of parameters, gradients and optimizer on each rank as predicted",
               {case: predicted["state_bytes"][case] for case in first.cases}, state),
    ]
    memory = of_kind(first.rows, "memory")
    if memory:
        floors = {case: predicted["memory_floor_bytes"][case] for case in first.cases}
        seen = {case: min(row["allocated_peak_bytes"] - row["before_bytes"] for row in memory if row["case"] == case)
                for case in first.cases}
        found += [
            Oracle(name="allocated peak is at least shards, moments and gathered parameters", expected=floors,
                   seen=seen, passed=all(seen[case] >= floors[case] for case in floors),
                   detail="bytes over what was in use before the case; gradients and activations come on top"),
            _equal("peaks by function equal the allocator's table, reserved is not below allocated", [],
                   [f"{row['case']} rank {row['rank']}" for row in memory
                    if not (row["allocated_peak_bytes"] == row["max_memory_allocated"]
                            <= row["max_memory_reserved"] == row["reserved_peak_bytes"])]),
        ]
    return found


def _training_oracles(first: Process, world_size: int, bound: float,
                      training: dict[str, dict[str, float]]) -> list[Oracle]:
    """Losses, gradients and parameters of every case against one process on the whole batch."""
    checks = of_kind(first.rows, "check")
    num_parameters = len(of_kind(first.rows, "setup", rank=0)[0]["parameters"])
    moved = movement_bound(bound)
    return [
        _equal("every case was trained beside the reference, every parameter compared",
               {case: [num_parameters] * world_size for case in first.cases},
               {case: [row["num_compared"] for row in checks if row["case"] == case] for case in first.cases}),
        _close("gradients equal one process on the whole batch", training["gradient_rel_diff"], bound,
               "worst tensor after the first backward: |difference| / |reference|; float32, no FSDP in the reference"),
        _close("parameters moved as in one process", training["parameter_rel_diff"], moved,
               "worst tensor after all steps: |difference| / |distance moved|"),
        _close("losses equal one process on the whole batch", training["loss_rel_diff"], bound,
               "mean over ranks, largest relative difference over steps"),
        _equal("whole parameters bitwise equal on all ranks", {case: [] for case in first.cases},
               {case: sorted({n for row in checks if row["case"] == case for n in row["names_differing"]})
                for case in first.cases}, "tensors that are not what rank 0 sent"),
    ]


def _close(name: str, seen: dict[str, float], bound: float, detail: str) -> Oracle:
    """Passes when there is something to compare and all of it is within the bound."""
    return Oracle(name=name, passed=bool(seen) and max(seen.values()) <= bound, expected=0.0, seen=seen,
                  tolerance=bound, detail=detail)


def exit_oracles(launches: list[dict[str, Any]], exits: dict[str, dict[str, Any]], *, world_size: int) -> list[Oracle]:
    """Did the right order of leaving leave nothing behind, and did a wrong one fail although results were written?

    Args:
        launches: `labkit.analyze.job_exit.job_exit` of each launch that trained: it leaves in the right order.
        exits: the same of each way to leave that was tried, by name.
        world_size: ranks.
    """
    found = [_equal("barrier, then destroy: exit 0, a silent log, nothing left", [True] * len(launches),
                    [launch["is_clean"] for launch in launches],
                    "; ".join(", ".join([*launch["complaints"], *launch["left"]]) for launch in launches).strip("; "))]
    if "ordered" in exits:
        found.append(_equal("the right order alone is clean", True, exits["ordered"]["is_clean"],
                            ", ".join(exits["ordered"]["complaints"])))
    if "early" in exits:
        early = exits["early"]
        found.append(_equal("a peer that leaves early fails the job, with every result on disk", [True, world_size],
                            [early["exitcode"] != 0, early["results_written"]], early["error"]))
    return found

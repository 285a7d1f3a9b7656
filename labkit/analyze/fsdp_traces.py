"""One recorded FSDP step as numbers: gathers and scatters, their bytes and times, and what of them is exposed.

In: torch profiler traces of one step, one a rank. Out: plain values. gloo sends a reduce-scatter as an all-reduce, and
the trace of a CPU run says so; it is counted here as what was asked for.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from labkit.analyze.ddp_rank_files import timeline
from labkit.analyze.intervals import spans, subtract, total_ns, union
from labkit.analyze.kinds import UnreadableInput
from labkit.analyze.trace import trace_events

if TYPE_CHECKING:
    import pandas as pd

KINDS = {"ag": "all_gather", "rs": "reduce_scatter"}
CALLS = {"ag": '"c10d::_allgather_base_"', "rs": '"c10d::_reduce_scatter_base_"'}
"""Names of the operators that ask for a collective, as they stand in the file."""
LIMITER = '"FullyShardedDataParallel.rate_limiter"'
"""FSDP1 records this range when its host waits because two gathers are in flight."""
STEP = 0


def rank_facts(path: Path) -> dict[str, Any]:
    """Counts, bytes and times of one rank's recorded step.

    Args:
        path: trace file.

    Returns: for "ag" and "rs" each {"calls" (in the file's text), "count" (in the step), "bytes", "union_ms",
        "exposed_ms", "durations_ms" (in order of start)}; "comm_ms", "exposed_ms", "compute_ms" (unions),
        "others" (communication that is neither, by name), "limiter_waits", "timeline" (see
        `labkit.analyze.ddp_rank_files.timeline`), "is_cpu".
    Raises: UnreadableInput when the file is no trace or has not the step.
    """
    text = path.read_text(encoding="utf-8")
    events = trace_events(path)
    rows = cast("pd.DataFrame", events[(events["step"] == STEP).to_numpy(dtype=bool, na_value=False)])
    if rows.empty:
        raise UnreadableInput(f"{path.name}: no step {STEP} in the trace")
    is_cpu = str(rows["device"].iloc[0]).startswith("cpu")
    start, dur = rows["start_ns"].to_numpy(), rows["dur_ns"].to_numpy()
    cls, collective = rows["cls"].to_numpy(), rows["collective"].to_numpy()
    if is_cpu:
        collective = np.where(collective == "all_reduce", "reduce_scatter", collective)
    sizes = rows["bytes"].to_numpy(dtype="float64", na_value=0.0)
    compute, comm = (union(spans(start[cls == which], dur[cls == which])) for which in ("compute", "comm"))
    facts: dict[str, Any] = {
        "comm_ms": total_ns(comm) / 1e6, "exposed_ms": total_ns(subtract(comm, compute)) / 1e6,
        "compute_ms": total_ns(compute) / 1e6, "limiter_waits": text.count(LIMITER), "is_cpu": is_cpu,
        "timeline": timeline(rows), "others": {}}
    for name in collective[cls == "comm"]:
        if name not in KINDS.values():
            facts["others"][str(name)] = facts["others"].get(str(name), 0) + 1
    for kind, name in KINDS.items():
        mine = (cls == "comm") & (collective == name)
        busy = union(spans(start[mine], dur[mine]))
        facts[kind] = {
            "calls": text.count(CALLS[kind]), "count": int(mine.sum()), "bytes": int(sizes[mine].sum()),
            "union_ms": total_ns(busy) / 1e6, "exposed_ms": total_ns(subtract(busy, compute)) / 1e6,
            "durations_ms": (dur[mine] / 1e6).tolist()}
    return facts


def split_waiting(ranks: list[dict[str, Any]]) -> dict[str, float | None]:
    """Time in collectives split into transfer and waiting for a later rank.

    A rank that comes early waits inside the collective, so of each call the shortest time over ranks is transfer.

    Args:
        ranks: `rank_facts` of every rank.

    Returns: {"transfer_ms", "longest_wait_ms" (over ranks)}, sums over calls; None with one rank, without
        communication, or where ranks recorded different numbers of calls.
    """
    unknown: dict[str, float | None] = {"transfer_ms": None, "longest_wait_ms": None}
    if len(ranks) < 2:
        return unknown
    transfer, waits = 0.0, [0.0] * len(ranks)
    for kind in KINDS:
        durations = [facts[kind]["durations_ms"] for facts in ranks]
        if len({len(of_rank) for of_rank in durations}) > 1:
            return unknown
        for call in zip(*durations):
            transfer += min(call)
            waits = [wait + time - min(call) for wait, time in zip(waits, call)]
    return {"transfer_ms": transfer, "longest_wait_ms": max(waits)} if transfer else unknown

"""What the ranks of a DDP run left behind, as plain values: step times, reducer log, checks, and trace summaries.

In: the folder of one process of a run (`rank<k>.jsonl`, `trace_<case>_rank<k>.json`). Out: dicts by case. A case is a
bucket cap ("25 MiB") or an accumulation variant ("m1a8-no_sync").
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from labkit.analyze.intervals import Spans, covered_before, spans, subtract, total_ns, union
from labkit.analyze.kinds import UnreadableInput
from labkit.analyze.trace import analyze_trace, trace_events
from labkit.analyze.trace_ranks import analyze_trace_dir

if TYPE_CHECKING:
    import pandas as pd

STEP = "0"
"""Number of the one recorded step; what lies outside of it (a barrier before) is not the step's."""
CALL = '"c10d::allreduce_"'
"""Name of the operator that asks for an all-reduce, as it stands in the file."""
TIMELINE_BINS = 200


def read_ranks(folder: Path) -> list[dict[str, Any]]:
    """Every line of every rank's file, rank by rank.

    Raises: UnreadableInput naming the file when there is none or a line is not a JSON object with a `kind`.
    """
    paths = sorted(folder.glob("rank*.jsonl"), key=lambda path: int(path.stem.removeprefix("rank")))
    if not paths:
        raise UnreadableInput(f"{folder.name}: no rank<k>.jsonl, the worker wrote nothing")
    rows = []
    for path in paths:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            try:
                row = json.loads(line)
                rows.append({**row, "kind": row["kind"], "rank": int(row["rank"])})
            except (ValueError, KeyError, TypeError):
                raise UnreadableInput(f"{path.name} line {number}: expected a JSON object with kind and rank") from None
    return rows


def of_kind(rows: Iterable[dict[str, Any]], kind: str, **wanted: Any) -> list[dict[str, Any]]:
    """Rows of one kind whose fields equal `wanted`, in file order."""
    wanted["kind"] = kind
    return [row for row in rows if all(row.get(name) == value for name, value in wanted.items())]


def rank_times_ms(rows: list[dict[str, Any]], case: str) -> list[list[float]]:
    """Unprofiled step times, [rank][step], ms."""
    by_rank: dict[int, dict[int, float]] = {}
    for row in of_kind(rows, "step", case=case):
        by_rank.setdefault(row["rank"], {})[row["index"]] = row["time_s"] * 1e3
    return [[by_rank[rank][index] for index in sorted(by_rank[rank])] for rank in sorted(by_rank)]


def slowest_rank_ms(times_ms: list[list[float]]) -> list[float]:
    """Time of each step: that of its slowest rank.

    Args:
        times_ms: [rank][step], as `rank_times_ms` gives it.

    >>> slowest_rank_ms([[1.0, 5.0], [2.0, 3.0]])
    [2.0, 5.0]
    """
    return [max(step) for step in zip(*times_ms, strict=True)]


def loopback_per_rank_bytes(rows: list[dict[str, Any]], case: str, *, world_size: int) -> float | None:
    """Bytes over the loopback interface in the quietest step of a case, divided by the ranks; None if not counted.

    The interface is shared with everything else on the host, so this is an upper bound of what the ranks sent.
    """
    seen = [row["loopback_bytes"] for row in of_kind(rows, "step", case=case, rank=0) if row["loopback_bytes"]]
    return min(seen) / world_size if seen else None


def trace_facts(folder: Path, traces: dict[int, str]) -> dict[str, Any]:
    """Counts, bytes and times of one recorded step over all ranks.

    Args:
        folder: where the traces are.
        traces: rank -> file name.

    Returns: lists by rank: "calls" (all-reduce calls in the file's text), "collectives" (all-reduces that the analyzer
        counts in the step), "bytes" (of their messages), "comm_ms", "exposed_ms", "compute_ms" (unions), "overlap_pct",
        "first_comm_ms", "compute_before_comm_pct" (None without communication), "timeline" (see `timeline`). And
        "wait_ms" by rank and "transfer_ms", summed over collectives: the time a rank waited for a later one, and the
        shortest time over ranks; None with one rank or without communication.
    Raises: UnreadableInput when a file is no trace or has not the step.
    """
    facts: dict[str, Any] = {}
    paths = [folder / traces[rank] for rank in sorted(traces)]
    for path in paths:
        step = (analyze_trace(path)["steps"] or {}).get(STEP)
        if step is None:
            raise UnreadableInput(f"{path.name}: no step {STEP} in the trace")
        reduce = step["collectives"].get("all_reduce", {"count": 0, "bytes": 0})
        events = trace_events(path)
        events = cast("pd.DataFrame", events[(events["step"] == int(STEP)).to_numpy(dtype=bool, na_value=False)])
        of_rank = {
            "calls": path.read_text(encoding="utf-8").count(CALL),
            "collectives": reduce["count"],
            "bytes": reduce["bytes"],
            "comm_ms": step["comm_us"] / 1e3,
            "exposed_ms": step["exposed_comm_us"] / 1e3,
            "compute_ms": step["compute_us"] / 1e3,
            "overlap_pct": None if step["overlap_fraction"] is None else 100 * step["overlap_fraction"],
            **before_first_comm(events),
            "timeline": timeline(events),
        }
        for name, value in of_rank.items():
            facts.setdefault(name, []).append(value)
    split = analyze_trace_dir(paths)
    facts["wait_ms"] = None if split["wait_us"] is None else [us / 1e3 for us in split["wait_us"].values()]
    facts["transfer_ms"] = None if split["collective_min_us"] is None else split["collective_min_us"] / 1e3
    return facts


def before_first_comm(events: pd.DataFrame) -> dict[str, float | None]:
    """When the first collective starts, and how much of the step's compute lies before it.

    Args:
        events: one step's work, as `labkit.analyze.trace.trace_events` gives it.

    Returns: {"first_comm_ms": ms from the step's first work, "compute_before_comm_pct": % of compute time}; None where
        there is no communication or no compute.
    """
    start, dur, is_comm, is_compute = _columns(events)
    if not is_comm.any() or not is_compute.any():
        return {"first_comm_ms": None, "compute_before_comm_pct": None}
    first = start[is_comm].min()
    pieces = union(spans(start[is_compute], dur[is_compute]))
    before = union(pieces.clip(max=first))
    return {"first_comm_ms": float(first - start.min()) / 1e6,
            "compute_before_comm_pct": 100 * total_ns(before) / total_ns(pieces)}


def timeline(events: pd.DataFrame) -> dict[str, Any]:
    """One step's work for drawing: how busy each of `TIMELINE_BINS` equal intervals is.

    Shares and not pieces, because a GPU that waits for its host runs thousands of short kernels with gaps between them:
    drawn as lines they would look like one busy block.

    Args:
        events: one step's work, as `labkit.analyze.trace.trace_events` gives it.

    Returns: {"bin_ms": length of an interval, "compute_pct", "comm_pct", "exposed_pct": share of each interval in which
        compute runs, communication runs, communication runs alone, in whole percent; "collectives": [[start ms, end ms,
        MiB or None], ...] from the step's first work}. Empty lists where nothing ran.
    """
    if events.empty:
        return {"bin_ms": 0.0, "compute_pct": [], "comm_pct": [], "exposed_pct": [], "collectives": []}
    start, dur, is_comm, is_compute = _columns(events)
    start = start - start.min()
    edges = np.linspace(0, int((start + dur).max()), TIMELINE_BINS + 1).astype(np.int64)
    compute, comm = (union(spans(start[rows], dur[rows])) for rows in (is_compute, is_comm))
    sizes = events["bytes"].to_numpy(dtype="float64", na_value=float("nan"))[is_comm].tolist()

    def share_pct(busy: Spans) -> list[int]:
        return np.rint(100 * np.diff(covered_before(busy, edges)) / np.maximum(np.diff(edges), 1)).astype(int).tolist()

    return {
        "bin_ms": float(edges[-1]) / TIMELINE_BINS / 1e6,
        "compute_pct": share_pct(compute),
        "comm_pct": share_pct(comm),
        "exposed_pct": share_pct(subtract(comm, compute)),
        "collectives": [
            [_ms(begin), _ms(end), None if size != size else round(size / 2**20, 3)]
            for (begin, end), size in zip(spans(start[is_comm], dur[is_comm]).tolist(), sizes, strict=True)],
    }


def _columns(events: pd.DataFrame) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """(start ns, duration ns, is communication, is compute) of each row."""
    cls = events["cls"].to_numpy()
    return events["start_ns"].to_numpy(), events["dur_ns"].to_numpy(), cls == "comm", cls == "compute"


def _ms(time_ns: int) -> float:
    return round(time_ns / 1e6, 3)

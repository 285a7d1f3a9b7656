"""Communication, compute and their overlap in one PyTorch profiler trace, counted in integer nanoseconds.

In: a trace file of one rank (GPU or CPU; any torch release; whole, compressed or damaged). Out: one plain object, or a
table of the work for timelines. Times are unions of intervals, so two kernels that run at once count once; only
`comm_sum_us` is a sum. `labkit analyze torch_trace FILE --json`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.analyze.intervals import intersection_ns, spans, total_ns, union
from labkit.analyze.kinds import clean_text
from labkit.analyze.trace_columns import NO_DETAIL
from labkit.analyze.trace_read import Trace, read_trace
from labkit.analyze.trace_work import CLASSES, COMM, COMPUTE, MEMORY, NO_STEP, Work, device_work

if TYPE_CHECKING:
    import pandas as pd

_RANK_IN_NAME = re.compile(r"(?<![A-Za-z])(?<!local)(?<!local[_.-])rank[_=.-]?(\d{1,6})(?!\d)", re.IGNORECASE)
_COMM_KEYS = ("n_comm", "comm_us", "overlap_us", "exposed_comm_us", "comm_sum_us", "overlap_fraction", "busy_us")


def analyze_trace(path: Path, *, use_msgspec: bool = True) -> dict[str, Any]:
    """Overlap of communication and compute in one rank's trace.

    Args:
        path: trace file (JSON, possibly gzip).
        use_msgspec: decode with msgspec if installed; the answer is the same without.

    Returns: plain object. `n_comm`, `n_compute`, `n_memory` count rows; `comm_us`, `compute_us`, `memory_us` are
    unions; `overlap_us` is communication while compute runs, `exposed_comm_us` the rest of communication,
    `overlap_fraction` is `overlap_us` / `comm_us` (None if there is no communication); `busy_us` is communication or
    compute. These are for the one device; with several they are None and `devices` has them for each.
    `steps` has the same by profiler step (GPU: the step in which the kernel was *launched*), `outside_steps` what
    belongs to none. `collectives` has count, bytes and summed time by collective. `warnings` are short fixed texts,
    `warning_details` explains each.

    Raises: UnreadableInput when the file is no trace.
    """
    trace = read_trace(Path(path), use_msgspec=use_msgspec)
    work = device_work(trace)
    result = identity(trace, work)
    used = sorted(set(work.device.tolist()), key=lambda device: (str(type(work.places[device])), work.places[device]))
    rows = {str(work.places[device]): np.flatnonzero(work.device == device) for device in used}
    devices = {label: _device_summary(work, rows[label]) for label in rows}
    if len(devices) == 1:
        result |= next(iter(devices.values()))
    else:
        result |= _device_summary(work, np.empty(0, dtype=np.int64))
        if devices:
            counts = {key: sum(d[key] for d in devices.values()) for key in ("n_comm", "n_compute", "n_memory")}
            result |= {key: None for key in result if key.endswith("_us")} | counts
            result |= {"overlap_fraction": None, "steps": None, "outside_steps": None, "collectives": None}
    result["devices"] = devices
    return result


def trace_events(path: Path) -> pd.DataFrame:
    """The work of one trace as a table for timelines, sorted by start.

    Columns: device, stream (labels; on a CPU "cpu" and the thread), cls ("comm", "compute", "memory"), name, start_ns,
    dur_ns (int64, on the trace's clock), step (Int64, <NA> outside steps), collective (canonical name or None), bytes
    (Int64 message size, <NA> if the file does not say).

    Raises: UnreadableInput when the file is no trace.
    """
    import pandas as pd

    work = device_work(read_trace(Path(path)))
    rows = range(len(work.start))
    is_comm = work.cls == COMM
    details = [work.detail_of(row) for row in rows]
    sizes = [None if detail is None else detail.size_bytes for detail in details]
    return pd.DataFrame(
        {
            "device": pd.Series([work.places[i] for i in work.device], dtype=object),
            "stream": pd.Series([work.places[i] for i in work.stream], dtype=object),
            "cls": pd.Series([CLASSES[i] for i in work.cls], dtype=object),
            "name": pd.Series([work.names[i] for i in work.name], dtype=object),
            "start_ns": work.start,
            "dur_ns": work.dur,
            "step": pd.array([None if step == NO_STEP else int(step) for step in work.step], dtype="Int64"),
            "collective": pd.Series([work.collective(row) if is_comm[row] else None for row in rows], dtype=object),
            "bytes": pd.array(sizes, dtype="Int64"),
        }
    )


def identity(trace: Trace, work: Work) -> dict[str, Any]:
    """Whose trace this is and how well it could be read: rank, world size, completeness, warnings."""
    info = trace.header.get("distributedInfo")
    info = info if isinstance(info, dict) else {}
    warnings = dict(work.warnings)
    rank, world_size = _whole(info.get("rank")), _whole(info.get("world_size"))
    rank_source = "distributedInfo" if rank is not None else None
    in_name = _RANK_IN_NAME.findall(trace.path.name)
    if rank is None and in_name:
        rank, rank_source = int(in_name[-1]), "file name"
    elif rank is not None and in_name and int(in_name[-1]) != rank:
        warnings["rank in the file name differs"] = f"file name says {int(in_name[-1])}, distributedInfo says {rank}"
    columns = trace.columns
    resolution = columns.resolution.warning()
    if resolution:
        warnings[resolution] = "epoch microseconds written from doubles: shorter differences are rounding"
    if columns.num_spans and not len(work.start):
        warnings["no device or operator work in the file"] = f"{columns.num_spans} events have durations, none is work"
    if columns.num_negative:
        warnings["negative duration"] = f"{columns.num_negative} events left out"
    if columns.num_without_time:
        warnings["events without a usable time"] = f"{columns.num_without_time} events left out"
    if trace.num_unpaired:
        warnings["begin or end events without a partner"] = f"{trace.num_unpaired} events left out"
    if trace.lost_device_work:
        warnings["device work was skipped"] = "a damaged event was a kernel or copy: device times are lower bounds"
    if any(work.details[code].uneven_splits for code in np.unique(work.detail[work.detail != NO_DETAIL])):
        warnings["uneven all-to-all: bytes overstate what was sent"] = (
            "the file gives buffer sizes; a rank's own part and padding are in them, but are not sent"
        )
    return {
        "rank": rank,
        "rank_source": rank_source,
        "world_size": world_size,
        "world_size_source": "distributedInfo" if world_size is not None else None,
        "backend": clean_text(info["backend"]) if isinstance(info.get("backend"), str) else None,
        "device_kind": "cpu" if work.on_cpu else "gpu" if len(work.start) else None,
        "complete": trace.complete,
        "usable": "all" if trace.complete else "partial",
        "events": columns.num_events,
        "skipped_events": trace.num_skipped,
        "repaired_events": trace.num_repaired,
        "damage": trace.damage,
        "steps_by": work.steps_by if work.has_steps else None,
        "warnings": list(warnings),
        "warning_details": warnings,
    }


def _whole(value: Any) -> int | None:
    if isinstance(value, str) and re.fullmatch(r"\s*\d{1,9}\s*", value):
        return int(value)
    return int(value) if isinstance(value, (int, float)) and 0 <= value < 2**31 and value == int(value) else None


def summarize(work: Work, rows: np.ndarray, *, clip: bool = False) -> dict[str, Any]:
    """Counts and unions of some rows of work, in us: see `analyze_trace`; `clip` takes the clipped durations."""
    durations = work.clipped if clip and work.clipped is not None else work.dur
    cls, all_spans = work.cls[rows], spans(work.start[rows], durations[rows])
    comm, compute, memory = (union(all_spans[cls == which]) for which in (COMM, COMPUTE, MEMORY))
    comm_ns, compute_ns, overlap_ns = total_ns(comm), total_ns(compute), intersection_ns(comm, compute)
    result: dict[str, Any] = {
        "n_comm": int((cls == COMM).sum()),
        "n_compute": int((cls == COMPUTE).sum()),
        "n_memory": int((cls == MEMORY).sum()),
        "comm_us": comm_ns / 1000,
        "compute_us": compute_ns / 1000,
        "memory_us": total_ns(memory) / 1000,
        "overlap_us": overlap_ns / 1000,
        "exposed_comm_us": (comm_ns - overlap_ns) / 1000,
        "comm_sum_us": int(durations[rows][cls == COMM].sum()) / 1000,
        "overlap_fraction": overlap_ns / comm_ns if comm_ns else None,
        "busy_us": (comm_ns + compute_ns - overlap_ns) / 1000,
        "span_us": int(all_spans[:, 1].max() - all_spans[:, 0].min()) / 1000 if len(rows) else 0.0,
        "collectives": _collectives(work, rows[cls == COMM]),
    }
    if not work.is_comm_recorded:
        result |= dict.fromkeys(_COMM_KEYS)
    return result


def _device_summary(work: Work, rows: np.ndarray) -> dict[str, Any]:
    result = summarize(work, rows)
    result |= {"steps": {}, "outside_steps": None}
    if work.has_steps and len(rows):
        ordered = rows[np.argsort(work.step[rows], kind="stable")]
        step = work.step[ordered]
        for part in np.split(np.arange(len(ordered)), np.flatnonzero(np.diff(step)) + 1):
            if step[part[0]] != NO_STEP:
                result["steps"][str(step[part[0]])] = summarize(work, ordered[part])
        result["outside_steps"] = summarize(work, rows[work.step[rows] == NO_STEP])
    if work.clipped is not None:
        result["clipped"] = summarize(work, rows, clip=True)
    return result


def _collectives(work: Work, rows: np.ndarray) -> dict[str, dict[str, Any]]:
    """Count, bytes and summed time by collective."""
    found: dict[str, dict[str, Any]] = {}
    # Rows alike in name and detail are alike in everything but time: look at one of each.
    pairs = np.stack([work.name[rows], work.detail[rows]], axis=-1)
    _, first, which = np.unique(pairs, axis=0, return_index=True, return_inverse=True)
    which = which.reshape(-1)
    counts, times = np.bincount(which, minlength=len(first)), np.zeros(len(first), dtype=np.int64)
    np.add.at(times, which, work.dur[rows])
    for index in np.argsort(first, kind="stable").tolist():
        row, count = int(rows[first[index]]), int(counts[index])
        detail = work.detail_of(row)
        entry = found.setdefault(
            work.collective(row), {"count": 0, "bytes": 0, "n_without_bytes": 0, "sum_us": 0, "named_by_kernel": 0}
        )
        entry["count"] += count
        entry["sum_us"] += int(times[index])
        entry["named_by_kernel"] += count if detail is None else 0
        if detail is None or detail.size_bytes is None:
            entry["n_without_bytes"] += count
        else:
            entry["bytes"] += detail.size_bytes * count
    for entry in found.values():
        entry["sum_us"] /= 1000
        if entry["n_without_bytes"]:
            entry["bytes"] = None
    return found

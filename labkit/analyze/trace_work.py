"""From a trace's columns to work: one row for each stretch of communication, compute or copying on a device.

On a GPU a row is a kernel, copy or memset. On a CPU (gloo) a row is a collective on its run-loop thread, or a stretch
of a thread's outermost operators without the calls that only enqueue a collective.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labkit.analyze.intervals import pieces_outside, spans, subtract, union
from labkit.analyze.kinds import clean_text
from labkit.analyze.trace_columns import KERNEL, NO_DETAIL
from labkit.analyze.trace_detail import CommDetail
from labkit.analyze.trace_names import collective_in_kernel_name, is_comm_kernel, is_sync_marker
from labkit.analyze.trace_read import Trace
from labkit.analyze.trace_table import Codes

COMM, COMPUTE, MEMORY = 0, 1, 2
CLASSES = ("comm", "compute", "memory")
NO_STEP = -1
_SWALLOW_NS, _OVERRUN_NS = 50_000, 1_000_000
_NOWHERE = -(2**62)
_NUMBERED = re.compile(r"\s*(?:stream|gpu|device)?\s*(\d{1,18})\s*", re.IGNORECASE)
_ENQUEUE = re.compile(r"^(?:_?c10d|record_param_comms|ProfilerStep)")
Ints = NDArray[np.int64]


@dataclass(slots=True)
class Work:
    """Rows of device work, sorted by start.

    `device`, `stream` and `name` are indices into `places` and `names`; `step` is the profiler step or NO_STEP.
    """

    start: Ints
    dur: Ints
    cls: Ints
    device: Ints
    stream: Ints
    name: Ints
    step: Ints
    launched: NDArray[np.bool_]
    """False for work whose launch the file should hold but does not: it was launched before recording began."""
    names: list[str]
    places: list[int | str]
    detail: Ints
    """Index into `details`, or NO_DETAIL."""
    details: list[CommDetail]
    clipped: Ints | None = None
    """Durations cut at the next start of their stream, where durations as written are impossible."""
    has_steps: bool = False
    steps_by: str | None = None
    on_cpu: bool = False
    is_comm_recorded: bool = True
    """False for a CPU-only recording of a job that communicates on devices."""
    warnings: dict[str, str] = field(default_factory=dict)
    """Short fixed text -> detail."""

    def detail_of(self, row: int) -> CommDetail | None:
        """What the file says about a row's collective, if anything."""
        code = self.detail[row]
        return None if code == NO_DETAIL else self.details[code]

    def collective(self, row: int) -> str:
        """The collective of a communication row, or "unknown"."""
        detail = self.detail_of(row)
        return detail.collective if detail is not None else collective_in_kernel_name(self.names[self.name[row]])


def device_work(trace: Trace) -> Work:
    """The work recorded in a trace: device work if there is any, else CPU operators and CPU collectives."""
    return _gpu_work(trace) if trace.columns.device.length else _cpu_work(trace)


def _place(value: Any) -> int | str:
    """Label of a device, stream, process or thread: 7, "7" and "stream 7" are one place."""
    if isinstance(value, (int, float)) and value == value and abs(value) < 2**63:
        return int(value)
    if isinstance(value, str) and (match := _NUMBERED.fullmatch(value)):
        return int(match[1])
    return clean_text(value)


def _codes(values: Iterable[Any], codes: Codes) -> Ints:
    return np.array([codes[value] for value in values] or [0], dtype=np.int64)


def _gpu_work(trace: Trace) -> Work:
    table, warnings, names, places = trace.columns.device, dict[str, str](), Codes(), Codes()
    # A key stands for a name, a device, a stream and a kind of event: few, so loop over them and not over the rows.
    keys, key = list(trace.columns.device_keys), table.column("key")
    name = _codes((clean_text(each[0]) for each in keys), names)[key]
    device = _codes((_place(each[1]) for each in keys), places)[key]
    stream = _codes((_place(each[2]) for each in keys), places)[key]
    what = np.array([each[3] for each in keys], dtype=np.int64)[key]
    comm_name = np.array([is_comm_kernel(name) for name in names], dtype=bool)
    sync_name = np.array([is_sync_marker(name) for name in names], dtype=bool)
    is_comm = comm_name[name] | (table.column("detail") != NO_DETAIL)
    cls = np.where(what != KERNEL, MEMORY, np.where(is_comm, COMM, COMPUTE))
    columns = {key: table.column(key) for key in ("start", "dur", "correlation", "detail")}
    columns |= {"device": device, "stream": stream, "name": name, "cls": cls}
    order = np.argsort(columns["start"], kind="stable")
    order = order[~sync_name[name[order]]]
    repeated = _repeats([columns[k][order] for k in ("start", "dur", "device", "stream", "name", "correlation")])
    if repeated.any():
        warnings["duplicate events dropped"] = f"{int(repeated.sum())} events repeat another one in every field"
        order = order[~repeated]
    columns = {key: column[order] for key, column in columns.items()}
    launch_start, launch_pid = _launches(trace, columns["correlation"], warnings, columns["start"])
    step = _step_of(trace, launch_start, launch_pid)
    clipped = _clipped(columns, warnings)
    return Work(
        start=columns["start"],
        dur=columns["dur"],
        cls=columns["cls"],
        device=columns["device"],
        stream=columns["stream"],
        name=columns["name"],
        step=step,
        launched=(launch_start > _NOWHERE) | (trace.columns.launch.column("correlation") < 0).all(),
        names=list(names),
        places=list(places),
        detail=np.where(columns["cls"] == COMM, columns["detail"], NO_DETAIL),
        details=trace.columns.details,
        has_steps=trace.columns.step.length > 0,
        steps_by="launch",
        clipped=clipped,
        warnings=warnings,
    )


def _repeats(columns: list[Ints]) -> NDArray[np.bool_]:
    """Rows equal in every column to an earlier one; the first column is sorted."""
    repeated = np.zeros(len(columns[0]), dtype=bool)
    same_start = np.zeros(len(columns[0]) + 1, dtype=bool)
    np.equal(columns[0][1:], columns[0][:-1], out=same_start[1:-1])
    rows = np.flatnonzero(same_start[1:] | same_start[:-1])  # nearly always few: only these can repeat
    if len(rows):
        ranked = rows[np.lexsort([column[rows] for column in columns[::-1]])]
        equal = np.logical_and.reduce([column[ranked[1:]] == column[ranked[:-1]] for column in columns])
        repeated[ranked[1:][equal]] = True
    return repeated


def _launches(trace: Trace, correlation: Ints, warnings: dict[str, str], start: Ints) -> tuple[Ints, Ints]:
    """Start (ns) and process code of each row's launch; `_NOWHERE` and -1 where the file has none."""
    nowhere = np.full(len(correlation), _NOWHERE), np.full(len(correlation), -1)
    table = trace.columns.launch
    known, begun, pid = table.column("correlation"), table.column("start"), table.column("pid")
    usable = (known >= 0) & (begun > _NOWHERE)
    known, begun, pid = known[usable], begun[usable], pid[usable]
    if not len(known):
        return nowhere
    order = np.lexsort((begun, known))  # a runtime call and the driver call inside it share a number: take the earlier
    known, begun, pid = known[order], begun[order], pid[order]
    place = np.minimum(np.searchsorted(known, correlation), len(known) - 1)
    found = (correlation >= 0) & (known[place] == correlation)
    late_us = (begun[place] - start)[found] / 1000
    if (late_us > 0).any():
        count, total = int((late_us > 0).sum()), int(found.sum())
        warnings["kernel starts before its launch"] = (
            f"{count} of {total}, by up to {late_us.max():g} us: host and device clocks differ; durations are kept"
        )
    if not found.all():
        warnings["kernels without a launch in the file"] = (
            f"{int((~found).sum())} of {len(found)}: launched before recording began, or their launch was lost"
        )
    return np.where(found, begun[place], nowhere[0]), np.where(found, pid[place], nowhere[1])


def _step_of(trace: Trace, time: Ints, pid: Ints) -> Ints:
    """The profiler step whose CPU-side span holds each time; by process where the file has steps of several."""
    table = trace.columns.step
    step = np.full(len(time), NO_STEP)
    if not table.length:
        return step
    order = np.argsort(table.column("start"), kind="stable")
    begin, length, number = (table.column(key)[order] for key in ("start", "dur", "number"))
    owner = table.column("pid")[order]  # the code of a pid, as in `pid`
    for process in np.unique(owner):
        mine = owner == process
        rows = slice(None) if mine.all() else pid == process
        place = np.searchsorted(begin[mine], time[rows], side="right") - 1
        inside = (place >= 0) & (time[rows] < (begin + length)[mine][place])
        step[rows] = np.where(inside, number[mine][place], step[rows])
    return step


def _clipped(columns: dict[str, Ints], warnings: dict[str, str]) -> Ints | None:
    """Durations cut at the next start of their stream, if some are impossible as written; else None.

    Work of one stream runs one after the other. Programmatic dependent launch lets neighbours overlap a little, and
    that is legal; swallowing a later one whole, or running on for a millisecond, is not (seen with ROCm's tracers).
    """
    lane = columns["device"] * (1 << 31) + columns["stream"]
    order = np.lexsort((columns["start"], lane))
    start, end, lane = columns["start"][order], (columns["start"] + columns["dur"])[order], lane[order]
    impossible = 0
    for part in np.split(np.arange(len(order)), np.flatnonzero(np.diff(lane)) + 1):
        reach = np.maximum.accumulate(end[part])[:-1]
        overrun = reach - start[part][1:]
        swallowed = (reach >= end[part][1:]) & (overrun >= _SWALLOW_NS)
        impossible += int((swallowed | (overrun >= _OVERRUN_NS)).sum())
    if not impossible:
        return None
    warnings["duration overruns the next kernel on its stream"] = (
        f"{impossible} kernels start far inside an earlier one of their stream: durations as written are impossible; "
        "'clipped' has the answer with each cut at the next start"
    )
    following = np.append(np.where(lane[1:] == lane[:-1], start[1:], end[:-1]), end[-1:])
    clipped = np.empty(len(order), dtype=np.int64)
    clipped[order] = np.minimum(end, following) - start
    return clipped


def _cpu_work(trace: Trace) -> Work:
    table, names, places, key = trace.columns.cpu, Codes(), Codes(), trace.columns.cpu.column("key")
    start, dur, detail = (table.column(each) for each in ("start", "dur", "detail"))
    keys = list(trace.columns.cpu_keys)
    name = _codes((clean_text(each[0]) for each in keys), names)[key]
    pid = _codes((_place(each[1]) for each in keys), places)[key]
    tid = _codes((_place(each[2]) for each in keys), places)[key]
    of_step = np.array([trace.columns.pids.get(each[1], -1) for each in keys] or [0], dtype=np.int64)[key]
    is_comm = detail != NO_DETAIL
    enqueues = np.array([bool(_ENQUEUE.match(text)) for text in names], dtype=bool)
    loops = {places[_place(thread)] for thread in trace.columns.comm_threads}
    # Rows as (start, end, class, row of the table); collectives first, then what each thread computes.
    pieces = [np.stack([start, start + dur, np.full(len(start), COMM), np.arange(len(start))], axis=-1)[is_comm]]
    for process, thread in {(int(p), int(t)) for p, t in zip(pid, tid)}:
        mine = np.flatnonzero((pid == process) & (tid == thread))
        ops, comms = mine[~is_comm[mine]], mine[is_comm[mine]]
        if len(ops):
            pieces.append(_outermost(start, dur, ops, comms, enqueues[name[ops]], is_loop=thread in loops))
    rows = np.concatenate(pieces)
    rows = rows[np.lexsort((rows[:, 3], rows[:, 0]))]
    begun, source = rows[:, 0], rows[:, 3]
    processes = sorted(set(pid[source].tolist()))
    # One process is "cpu"; a file merged from several has one device for each.
    devices = np.searchsorted(processes, pid[source]) + len(places)
    labels = ["cpu"] if len(processes) <= 1 else [f"cpu:{list(places)[process]}" for process in processes]
    work = Work(
        start=begun,
        dur=rows[:, 1] - begun,
        cls=rows[:, 2],
        device=devices,
        stream=tid[source],
        name=name[source],
        step=_step_of(trace, begun, of_step[source]),
        launched=np.ones(len(rows), dtype=bool),
        names=list(names),
        places=[*places, *labels],
        detail=np.where(rows[:, 2] == COMM, detail[source], NO_DETAIL),
        details=trace.columns.details,
        has_steps=trace.columns.step.length > 0,
        steps_by="start",
        on_cpu=table.length > 0,
    )
    if trace.columns.num_launch_annotations and not is_comm.any():
        work.is_comm_recorded = False
        work.warnings["device work was not recorded"] = (
            "the file names collectives that ran on devices but holds CPU events only: communication is unknown"
        )
    return work


def _outermost(
    start: Ints, dur: Ints, ops: Ints, comms: Ints, enqueues: NDArray[np.bool_], *, is_loop: bool
) -> Ints:
    """Stretches of one thread's outermost operators, without enqueueing calls and a run loop's own collectives.

    Returns rows of (start, end, COMPUTE, row of the table); shape (n, 4).
    """
    own_comm = union(spans(start[comms], dur[comms]))
    op_union = union(spans(start[ops], dur[ops]))
    # A thread that computes only while it runs a collective is a run loop, whatever it is called.
    is_loop = is_loop or (len(own_comm) > 0 and len(subtract(op_union, own_comm)) == 0)
    not_compute = [spans(start[ops[enqueues]], dur[ops[enqueues]])] + ([own_comm] if is_loop else [])
    hidden = union(np.concatenate(not_compute))
    order = ops[np.lexsort((-dur[ops], start[ops]))]
    begin, end = start[order], (start + dur)[order]
    reach = np.concatenate([begin[:1], np.maximum.accumulate(end)[:-1]])
    outer = (end > reach) & (dur[order] > 0)
    stretch = np.stack([np.maximum(begin, reach)[outer], end[outer]], axis=-1)
    row = order[outer]
    visible, index = pieces_outside(stretch, hidden)
    return np.concatenate([np.insert(visible, 2, COMPUTE, axis=1), row[index].reshape(-1, 1)], axis=1)

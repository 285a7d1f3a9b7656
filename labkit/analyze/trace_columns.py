"""Trace events to columns: device work, launches, profiler steps, CPU operators. Everything else is dropped here.

Columns, not objects, are what keeps a large trace small in memory: events arrive in pieces, leave a few integers each
and are forgotten. The loops run once for each event of the file, so they are written for speed.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labkit.analyze.trace_detail import CommDetail, cpu_detail, kernel_detail, whole_number
from labkit.analyze.trace_names import cpu_collective
from labkit.analyze.trace_time import MISSING, NS_LIMIT, Resolution, exact_ns, fast_ns

Ints = NDArray[np.int64]
KERNEL, MEMCPY, MEMSET = 0, 1, 2
NO_DETAIL = -1
_DEVICE_CATS = {
    "kernel": KERNEL,
    "concurrent_kernel": KERNEL,
    "gpu_memcpy": MEMCPY,
    "memcpy": MEMCPY,
    "gpu_memset": MEMSET,
    "memset": MEMSET,
}
_STEP = re.compile(r"^ProfilerStep#(\d{1,17})")
_STEP_MEANING = ("profiler", "step")
_STEP_MARK, _IGNORE = -2, -3
_NO_CORRELATION = -1
_LAUNCH_ONLY = ("nccl", "xccl")
"""Backends whose CPU annotation is the launch of device work, not the work."""


_FLUSH_AT = 1 << 15
"""Rows that wait as plain lists before they become arrays."""


class Table:
    """Equal-length columns: lists that are being filled, arrays once full."""

    def __init__(self, *names: str) -> None:
        """Columns by name; all are integers (times, codes)."""
        self.filling: dict[str, list[Any]] = {name: [] for name in names}
        self._done: dict[str, list[Ints]] = {name: [] for name in names}
        self.length = 0

    def take(self) -> dict[str, list[Any]]:
        """The rows that are still lists, which are then forgotten here."""
        rows, self.filling = self.filling, {name: [] for name in self.filling}
        return rows

    def store(self, rows: dict[str, Any], keep: NDArray[np.bool_]) -> None:
        """Add finished rows, those marked in `keep`."""
        for name, values in rows.items():
            self._done[name].append(np.asarray(values, dtype=np.int64).reshape(-1)[keep])
        self.length += int(keep.sum())

    def column(self, name: str) -> Ints:
        """One column of the finished rows as one array."""
        parts = self._done[name]
        if len(parts) != 1:
            self._done[name] = parts = [np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)]
        return parts[0]


class Codes(dict):
    """Numbers for values: the first value seen is 0, the next new one 1, ..."""

    def __missing__(self, key: Any) -> int:
        """Give a new value the next number."""
        self[key] = code = len(self)
        return code

    def number(self, values: list[Any]) -> list[int]:
        """The number of each value; unhashable values are numbered by their text."""
        try:
            return list(map(self.__getitem__, values))
        except TypeError:
            return [self[v if isinstance(v, (str, int, float, type(None))) else repr(v)] for v in values]


class _Sorter(dict):
    """Category of an event -> where to put it; a category is looked at once for each piece of the file."""

    def __init__(self) -> None:
        self.device: dict[int, list[Any]] = {KERNEL: [], MEMCPY: [], MEMSET: []}
        self.launch: list[Any] = []
        self.cpu: list[Any] = []
        self.annotation: list[Any] = []

    def __missing__(self, cat: Any) -> Callable[[Any], None]:
        put: Callable[[Any], None] = _drop
        for part in reversed(str(cat).lower().split(",")):  # the first part that is known decides
            part = part.strip()
            if part in _DEVICE_CATS:
                put = self.device[_DEVICE_CATS[part]].append
            elif part.endswith(("runtime", "driver")):
                put = self.launch.append
            elif part in ("cpu_op", "operator"):
                put = self.cpu.append
            elif part == "user_annotation":
                put = self.annotation.append
        self[cat] = put
        return put


def _drop(event: Any) -> None:
    """Nothing to keep."""


class TraceColumns:
    """Collects events: `add` piece by piece, then `flush`.

    Attributes:
        device: start, dur, name, what (KERNEL, MEMCPY, MEMSET), device, stream, correlation, detail.
        launch: start, correlation, pid.
        step: number, start, dur, pid.
        cpu: start, dur, name, pid, tid, detail (operators, and collectives where `detail` is not NO_DETAIL).
        details: what `detail` numbers. names, places: codes of names; of device, stream, pid and tid values.
        num_events: everything seen, kept or not. Times are ns.
    """

    def __init__(self, *, exact: bool = False) -> None:
        """Start empty; `exact` where numbers come as decimal text."""
        self.exact = exact
        self.device = Table("start", "dur", "name", "what", "device", "stream", "correlation", "detail")
        self.launch = Table("start", "correlation", "pid")
        self.step = Table("start", "dur", "number", "pid")
        self.cpu = Table("start", "dur", "name", "pid", "tid", "detail")
        self.details: list[CommDetail] = []
        self.names, self.places = Codes(), Codes()
        self.comm_threads: set[int] = set()
        """tid codes of threads named as a gloo run loop."""
        self.unpaired: list[Any] = []
        """B and E events, in file order, for `trace_pairs`."""
        self.resolution = Resolution()
        self.num_events = 0
        self.num_without_time = 0
        self.num_negative = 0
        self.num_launch_annotations = 0
        """`nccl:...` annotations on the CPU: launches of work that a device trace would show."""
        self._detail_codes: dict[Any, int] = {}
        self._collective_of: dict[Any, tuple[str, str] | None] = {}

    def add(self, events: list[Any]) -> None:
        """Take in events of `trace_decode`. Raises: NeedsExactText when doubles will not do; start again with text."""
        sorter = _Sorter()
        others: list[Any] = []
        for event in events:
            if event.ph == "X":
                sorter[event.cat](event)
            else:
                others.append(event)
        for event in others:
            if event.ph is None and event.dur is not None:  # an event with a duration is complete, whatever it lacks
                sorter[event.cat](event)
            elif event.ph in ("B", "E"):
                self.unpaired.append(event)
            elif event.ph == "M" and event.name == "thread_name" and _is_gloo_loop(event.args):
                self.comm_threads.update(self.places.number([event.tid]))
        self.num_events += len(events)
        for what, kernels in sorter.device.items():
            if kernels:
                self._add_device(kernels, what)
        if sorter.launch:
            self._add_launches(sorter.launch)
        if sorter.cpu:
            self._add_cpu(sorter.cpu, are_operators=True)
        if sorter.annotation:
            self._add_cpu(sorter.annotation, are_operators=False)
        if len(self.device.filling["start"]) + len(self.cpu.filling["start"]) > _FLUSH_AT:
            self.flush()

    def flush(self) -> None:
        """Turn what was added into arrays. Raises: NeedsExactText."""
        for table in (self.device, self.launch, self.step, self.cpu):
            rows: dict[str, Any] = table.take()
            if not rows["start"]:
                continue
            start = exact_ns(rows["start"], self.resolution) if self.exact else fast_ns(rows["start"])
            rows["start"] = start
            usable = (np.abs(start) < NS_LIMIT) & (start != MISSING)
            if "dur" in rows:
                rows["dur"] = dur = exact_ns(rows["dur"]) if self.exact else fast_ns(rows["dur"])
                timed = usable & (dur != MISSING) & (dur < NS_LIMIT)
                usable = timed & (dur >= 0)
                self.num_without_time += int((~timed).sum())
                self.num_negative += int((timed & ~usable).sum())
            if "correlation" in rows:
                rows["correlation"] = _correlations(rows["correlation"])
            table.store(rows, usable)

    def _add_device(self, events: list[Any], what: int) -> None:
        args = [event.args for event in events]
        if None in args:
            args = [_NO_ARGS if arg is None else arg for arg in args]
        devices, streams = [arg.device for arg in args], [arg.stream for arg in args]
        if None in devices:
            devices = [event.pid if value is None else value for event, value in zip(events, devices)]
        if None in streams:
            streams = [event.tid if value is None else value for event, value in zip(events, streams)]
        rows = self.device.filling
        rows["start"] += [event.ts for event in events]
        rows["dur"] += [event.dur for event in events]
        rows["name"] += self.names.number([event.name for event in events])
        rows["what"] += [what] * len(events)
        rows["device"] += self.places.number(devices)
        rows["stream"] += self.places.number(streams)
        rows["correlation"] += [arg.correlation for arg in args]
        rows["detail"] += [NO_DETAIL if arg.collective is None else self._kernel_detail(arg) for arg in args]

    def _add_launches(self, events: list[Any]) -> None:
        rows = self.launch.filling
        rows["start"] += [event.ts for event in events]
        rows["correlation"] += [None if event.args is None else event.args.correlation for event in events]
        rows["pid"] += self.places.number([event.pid for event in events])

    def _add_cpu(self, events: list[Any], *, are_operators: bool) -> None:
        """Operators, CPU collectives and steps; old releases write the latter two as operators, not annotations."""
        details = [self._cpu_detail(event, are_operators) for event in events]
        if _IGNORE in details or _STEP_MARK in details:
            self._add_steps([event for event, detail in zip(events, details) if detail == _STEP_MARK])
            events = [event for event, detail in zip(events, details) if detail > _STEP_MARK]
            details = [detail for detail in details if detail > _STEP_MARK]
        rows = self.cpu.filling
        rows["start"] += [event.ts for event in events]
        rows["dur"] += [event.dur for event in events]
        rows["name"] += self.names.number([event.name for event in events])
        rows["pid"] += self.places.number([event.pid for event in events])
        rows["tid"] += self.places.number([event.tid for event in events])
        rows["detail"] += details

    def _add_steps(self, events: list[Any]) -> None:
        rows = self.step.filling
        for event in events:
            match = _STEP.match(event.name)
            rows["number"].append(int(match[1]) if match else 0)
            rows["start"].append(event.ts)
            rows["dur"].append(event.dur)
        rows["pid"] += self.places.number([event.pid for event in events])

    def _cpu_detail(self, event: Any, is_operator: bool) -> int:
        """Code of a CPU collective's detail, NO_DETAIL for an operator, _STEP_MARK or _IGNORE for what is no work."""
        try:
            collective = self._collective_of[event.name]
        except KeyError:
            collective = self._collective_of[event.name] = _cpu_meaning(event.name)
        except TypeError:  # a list or an object for a name
            collective = None
        if collective is None:
            return NO_DETAIL if is_operator else _IGNORE
        if collective is _STEP_MEANING:
            return _STEP_MARK
        if collective[0] in _LAUNCH_ONLY:
            self.num_launch_annotations += 1
            return _IGNORE
        return self._detail_code(cpu_detail(collective[1], event.args))

    def _kernel_detail(self, args: Any) -> int:
        key = (args.collective, args.in_nelems, args.out_nelems, args.dtype, args.group, args.group_ranks)
        try:
            return self._detail_codes[key, args.in_split, args.out_split]
        except (KeyError, TypeError) as err:
            code = self._detail_code(kernel_detail(args))
            if isinstance(err, KeyError):
                self._detail_codes[key, args.in_split, args.out_split] = code
            return code

    def _detail_code(self, detail: CommDetail) -> int:
        code = self._detail_codes.setdefault(detail, len(self.details))
        if code == len(self.details):
            self.details.append(detail)
        return code


class _NoArgs:
    """Stands for the arguments of an event that has none."""

    device = stream = correlation = collective = None


_NO_ARGS = _NoArgs()


def _is_gloo_loop(args: Any) -> bool:
    return args is not None and "gloo_runloop" in str(args.name)


def _cpu_meaning(name: Any) -> tuple[str, str] | None:
    if not isinstance(name, str):
        return None
    return _STEP_MEANING if _STEP.match(name) else cpu_collective(name)


def _correlations(values: list[Any]) -> Ints:
    try:
        numbers = np.array(values, dtype=np.int64)
        if numbers.ndim != 1:
            raise ValueError("every value is a list")
    except (TypeError, ValueError, OverflowError):
        known = [whole_number(value) for value in values]
        small = [_NO_CORRELATION if n is None or not 0 <= n < NS_LIMIT else n for n in known]
        return np.array(small, dtype=np.int64)
    return np.where((numbers < 0) | (numbers >= NS_LIMIT), _NO_CORRELATION, numbers)

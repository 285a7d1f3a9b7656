"""Trace events to columns: device work, launches, profiler steps, CPU operators. Everything else is dropped here.

Columns, not objects, are what keeps a large trace small in memory: events arrive in pieces, leave a few integers each
and are forgotten. The loops run once for each event of the file, so they are written for speed.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from operator import attrgetter
from typing import Any

from labkit.analyze.trace_detail import CommDetail, cpu_detail, kernel_detail
from labkit.analyze.trace_names import cpu_collective
from labkit.analyze.trace_table import Codes, Table
from labkit.analyze.trace_time import Resolution

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
_STEP_MARK, _LAUNCH_MARK, _COLLECTIVE_MARK = -2, -3, -4
_DESCRIBED = attrgetter(
    "collective", "in_nelems", "out_nelems", "dtype", "group", "group_ranks", "in_split", "out_split"
)
_LAUNCH_ONLY = ("nccl", "xccl")
"""Backends whose CPU annotation is the launch of device work, not the work."""


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
        device: start, dur, key, correlation, detail; `device_keys` numbers (name, device, stream, what), where `what`
            is KERNEL, MEMCPY or MEMSET.
        launch: start, correlation, pid.
        step: start, dur, number, pid.
        cpu: start, dur, key, detail (operators, and collectives where `detail` is not NO_DETAIL); `cpu_keys` numbers
            (name, pid, tid).
        details: what `detail` numbers. pids: what `pid` numbers. Times are ns.
        num_events: everything seen, kept or not; num_spans: those with a duration (`ph` X).
    """

    def __init__(self, *, exact: bool = False) -> None:
        """Start empty; `exact` where numbers come as decimal text."""
        self.device = Table("key", "correlation", "detail", exact=exact)
        self.launch = Table("correlation", "pid", exact=exact, has_dur=False)
        self.step = Table("number", "pid", exact=exact)
        self.cpu = Table("key", "detail", exact=exact)
        self.device_keys, self.cpu_keys, self.pids = Codes(), Codes(), Codes()
        self.details: list[CommDetail] = []
        self.comm_threads: set[Any] = set()
        """Text of the tids of threads named as a gloo run loop."""
        self.unpaired: list[Any] = []
        """B and E events, in file order, for `trace_pairs`."""
        self.resolution = Resolution()
        self.num_events = 0
        self.num_spans = 0
        self.num_launch_annotations = 0
        """`nccl:...` annotations on the CPU: launches of work that a device trace would show."""
        self._detail_codes: dict[Any, int] = {}
        self._meanings = _Meanings()

    @property
    def num_negative(self) -> int:
        """Events left out because they end before they begin."""
        return sum(table.num_negative for table in (self.device, self.step, self.cpu))

    @property
    def num_without_time(self) -> int:
        """Events left out because a time is missing, no number or out of range."""
        return sum(table.num_without_time for table in (self.device, self.step, self.cpu))

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
                self.comm_threads.add(str(event.tid))
        self.num_events += len(events)
        self.num_spans += len(events) - len(others)
        for what, kernels in sorter.device.items():
            if kernels:
                self._add_device(kernels, what)
        if sorter.launch:
            self._add_launches(sorter.launch)
        if sorter.cpu:
            self._add_cpu(sorter.cpu, are_operators=True)
        if sorter.annotation:
            self._add_cpu(sorter.annotation, are_operators=False)
        if self.device.is_due() or self.cpu.is_due() or self.launch.is_due():
            self.flush()

    def flush(self) -> None:
        """Turn what was added into arrays. Raises: NeedsExactText."""
        for table in (self.device, self.launch, self.step, self.cpu):
            table.flush(self.resolution)

    def _add_device(self, events: list[Any], what: int) -> None:
        args = [event.args for event in events]
        if None in args:
            args = [_NO_ARGS if arg is None else arg for arg in args]
        devices, streams = [arg.device for arg in args], [arg.stream for arg in args]
        if None in devices:
            devices = [event.pid if value is None else value for event, value in zip(events, devices)]
        if None in streams:
            streams = [event.tid if value is None else value for event, value in zip(events, streams)]
        names = [event.name for event in events]
        self.device.add(
            start=[event.ts for event in events],
            dur=[event.dur for event in events],
            key=self.device_keys.number_rows(names, devices, streams, [what] * len(events)),
            correlation=[arg.correlation for arg in args],
            detail=[NO_DETAIL if arg.collective is None else self._kernel_detail(arg) for arg in args],
        )

    def _add_launches(self, events: list[Any]) -> None:
        self.launch.add(
            start=[event.ts for event in events],
            correlation=[None if event.args is None else event.args.correlation for event in events],
            pid=self.pids.number([event.pid for event in events]),
        )

    def _add_cpu(self, events: list[Any], *, are_operators: bool) -> None:
        """Operators, CPU collectives and steps; old releases write the latter two as operators, not annotations."""
        meanings = self._meanings.of([event.name for event in events])
        if not are_operators or meanings.count(NO_DETAIL) < len(events):
            self._add_steps([event for event, meaning in zip(events, meanings) if meaning == _STEP_MARK])
            self.num_launch_annotations += meanings.count(_LAUNCH_MARK)
            wanted = (NO_DETAIL, _COLLECTIVE_MARK) if are_operators else (_COLLECTIVE_MARK,)
            events = [event for event, meaning in zip(events, meanings) if meaning in wanted]
            marks = [meaning for meaning in meanings if meaning in wanted]
            meanings = [self._cpu_detail(e) if mark == _COLLECTIVE_MARK else mark for e, mark in zip(events, marks)]
        names, pids = [event.name for event in events], [event.pid for event in events]
        self.cpu.add(
            start=[event.ts for event in events],
            dur=[event.dur for event in events],
            key=self.cpu_keys.number_rows(names, pids, [event.tid for event in events]),
            detail=meanings,
        )

    def _add_steps(self, events: list[Any]) -> None:
        matches = [_STEP.match(event.name) for event in events]
        self.step.add(
            start=[event.ts for event in events],
            dur=[event.dur for event in events],
            number=[int(match[1]) for match in matches if match],
            pid=self.pids.number([event.pid for event in events]),
        )

    def _cpu_detail(self, event: Any) -> int:
        """Code of a CPU collective's detail."""
        collective = cpu_collective(event.name)
        return NO_DETAIL if collective is None else self._detail_code(cpu_detail(collective[1], event.args))

    def _kernel_detail(self, args: Any) -> int:
        described = _DESCRIBED(args)
        try:
            return self._detail_codes[described]
        except KeyError:
            code = self._detail_codes[described] = self._detail_code(kernel_detail(args))
            return code
        except TypeError:  # split sizes as a list
            return self._detail_code(kernel_detail(args))

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


class _Meanings(dict):
    """Name of a CPU event -> what it is; a name is looked at once."""

    def __missing__(self, name: Any) -> int:
        meaning = NO_DETAIL
        if isinstance(name, str):
            collective = cpu_collective(name)
            if _STEP.match(name):
                meaning = _STEP_MARK
            elif collective is not None:
                meaning = _LAUNCH_MARK if collective[0] in _LAUNCH_ONLY else _COLLECTIVE_MARK
        self[name] = meaning
        return meaning

    def of(self, names: list[Any]) -> list[int]:
        """The meaning of each name: a mark, or NO_DETAIL for an operator."""
        try:
            return list(map(self.__getitem__, names))
        except TypeError:  # a list or an object for a name
            return [self[name] if isinstance(name, str) else NO_DETAIL for name in names]

"""Trace events to columns: device work, launches, profiler steps, CPU operators. Everything else is dropped here.

Columns, not objects, are what keeps a large trace small in memory: events arrive in pieces, leave a few integers each
and are forgotten.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labkit.analyze.trace_decode import plain
from labkit.analyze.trace_names import canonical_collective, cpu_collective, dtype_bytes
from labkit.analyze.trace_time import MISSING, NS_LIMIT, Resolution, exact_ns, fast_ns

KERNEL, MEMCPY, MEMSET = 0, 1, 2
_DEVICE_CATS = {
    "kernel": KERNEL,
    "concurrent_kernel": KERNEL,
    "gpu_memcpy": MEMCPY,
    "memcpy": MEMCPY,
    "gpu_memset": MEMSET,
    "memset": MEMSET,
}
_STEP = re.compile(r"^ProfilerStep#(\d+)")
_NO_CORRELATION = -1


@dataclass(frozen=True, slots=True)
class CommDetail:
    """What the file says about one collective, beyond its time."""

    collective: str
    """Canonical name."""
    size_bytes: int | None
    """Message size: the larger of what goes in and what comes out, as nccl-tests counts it; None if unknown."""
    group: str
    """Process group, as far as the file names it."""
    uneven_splits: bool = False
    """An all-to-all whose splits differ: the size counts data that stays on the rank."""


@dataclass(slots=True)
class Table:
    """Equal-length columns, grown piece by piece."""

    pieces: dict[str, list[NDArray[np.int64]]] = field(default_factory=dict)
    length: int = 0

    def append(self, **columns: Iterable[int] | NDArray[np.int64]) -> None:
        """Add rows."""
        added = 0
        for name, values in columns.items():
            array = np.asarray(values, dtype=np.int64).reshape(-1)
            self.pieces.setdefault(name, []).append(array)
            added = len(array)
        self.length += added

    def column(self, name: str) -> NDArray[np.int64]:
        """One column as one array (empty if nothing was added)."""
        parts = self.pieces.get(name, [])
        if len(parts) != 1:
            parts[:] = [np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)]
            self.pieces[name] = parts
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


class TraceColumns:
    """Collects events, `add` by `add`. `exact=True` where numbers are decimal text.

    Attributes:
        device: start, dur, name, what (KERNEL, MEMCPY, MEMSET), device, stream, correlation; ns and codes.
        launch: start, correlation, pid.
        step: number, start, dur, pid.
        cpu: start, dur, name, pid, tid (operators and CPU collectives).
        comm: row of `device` -> CommDetail; cpu_comm: row of `cpu` -> CommDetail.
        names, places: codes of names, and of device, stream, pid, tid values.
        num_events: everything seen, kept or not.
    """

    def __init__(self) -> None:
        """Start empty."""
        self.device, self.launch, self.step, self.cpu = Table(), Table(), Table(), Table()
        self.comm: dict[int, CommDetail] = {}
        self.cpu_comm: dict[int, CommDetail] = {}
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
        self._bucket_of: dict[Any, str | int | None] = {}

    def add(self, events: list[Any], *, exact: bool = False) -> None:
        """Take in events (`trace_decode`). Raises: NeedsExactText, having changed nothing, when doubles will not do."""
        device: list[Any] = []
        what: list[int] = []
        launch: list[Any] = []
        step: list[Any] = []
        cpu: list[Any] = []
        unpaired: list[Any] = []
        threads: list[Any] = []
        bucket_of = self._bucket_of
        for event in events:
            ph = event.ph
            if ph != "X" and not (ph is None and event.dur is not None):
                if ph in ("B", "E"):
                    unpaired.append(event)
                elif ph == "M" and event.name == "thread_name":
                    threads.append(event)
                continue
            try:
                bucket = bucket_of[event.cat]
            except (KeyError, TypeError):
                bucket = self._classify(event.cat)
            if bucket is None:
                continue
            if bucket == "launch":
                launch.append(event)
            elif bucket == "cpu":
                cpu.append(event)
            elif bucket == "annotation":
                name = event.name
                if isinstance(name, str) and (name.startswith("ProfilerStep#") or ":" in name):
                    cpu.append(event)
            elif isinstance(bucket, int):
                device.append(event)
                what.append(bucket)
        if any(event.name.__class__ is str and event.name.startswith("ProfilerStep#") for event in cpu):
            step = [event for event in cpu if str(event.name).startswith("ProfilerStep#")]
            cpu = [event for event in cpu if not str(event.name).startswith("ProfilerStep#")]
        groups = (device, launch, step, cpu)
        times = [self._times(group, exact) for group in groups]  # may raise: nothing is changed before this
        self.num_events += len(events)
        self.unpaired += unpaired
        self._name_threads(threads)
        self._add_device(device, what, *times[0])
        self._add_launches(launch, *times[1])
        self._add_steps(step, *times[2])
        self._add_cpu(cpu, *times[3])

    def _classify(self, cat: Any) -> str | int | None:
        """Which table events of a category go to: a device kind, "launch", "cpu", "annotation" or None."""
        bucket: str | int | None = None
        for part in str(cat).lower().split(","):
            part = part.strip()
            if part in _DEVICE_CATS:
                bucket = _DEVICE_CATS[part]
            elif part.endswith(("runtime", "driver")):
                bucket = "launch"
            elif part in ("cpu_op", "operator"):
                bucket = "cpu"
            elif part == "user_annotation":
                bucket = "annotation"
            if bucket is not None:
                break
        if isinstance(cat, (str, type(None))):
            self._bucket_of[cat] = bucket
        return bucket

    def _times(self, events: list[Any], exact: bool) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        starts, durations = [event.ts for event in events], [event.dur for event in events]
        if exact:
            return exact_ns(starts, self.resolution), exact_ns(durations)
        return fast_ns(starts), fast_ns(durations)

    def _usable(self, start: NDArray[np.int64], dur: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Rows with a start and a non-negative duration; counts the others."""
        timed = (np.abs(start) < NS_LIMIT) & (start != MISSING) & (dur != MISSING) & (dur < NS_LIMIT)
        forward = timed & (dur >= 0)
        self.num_without_time += int((~timed).sum())
        self.num_negative += int((timed & ~forward).sum())
        return forward

    def _add_device(
        self, events: list[Any], what: list[int], start: NDArray[np.int64], dur: NDArray[np.int64]
    ) -> None:
        events, start, dur, usable = _select(events, start, dur, self._usable(start, dur))
        if not events:
            return
        args = [event.args for event in events]
        first_row = self.device.length
        for index, arg in enumerate(args):
            if arg is not None and arg.collective is not None:
                self.comm[first_row + index] = _detail(arg)
        self.device.append(
            start=start,
            dur=dur,
            name=self.names.number([event.name for event in events]),
            what=np.asarray(what)[usable],
            device=self.places.number(
                [e.pid if a is None or a.device is None else a.device for e, a in zip(events, args)]
            ),
            stream=self.places.number(
                [e.tid if a is None or a.stream is None else a.stream for e, a in zip(events, args)]
            ),
            correlation=[_correlation(a) for a in args],
        )

    def _add_launches(self, events: list[Any], start: NDArray[np.int64], dur: NDArray[np.int64]) -> None:
        rows = [i for i, e in enumerate(events) if e.args is not None and e.args.correlation is not None]
        if not rows:
            return
        self.launch.append(
            start=start[rows],
            correlation=[_correlation(events[i].args) for i in rows],
            pid=self.places.number([events[i].pid for i in rows]),
        )

    def _add_steps(self, events: list[Any], start: NDArray[np.int64], dur: NDArray[np.int64]) -> None:
        events, start, dur, _ = _select(events, start, dur, self._usable(start, dur))
        numbers = [_STEP.match(event.name) for event in events]
        rows = [i for i, match in enumerate(numbers) if match and len(match[1]) < 18]
        if rows:
            self.step.append(
                number=[int(numbers[i][1]) for i in rows],  # type: ignore[index]
                start=start[rows],
                dur=dur[rows],
                pid=self.places.number([events[i].pid for i in rows]),
            )

    def _add_cpu(self, events: list[Any], start: NDArray[np.int64], dur: NDArray[np.int64]) -> None:
        events, start, dur, _ = _select(events, start, dur, self._usable(start, dur))
        keep: list[int] = []
        first_row = self.cpu.length
        for index, event in enumerate(events):
            name = event.name
            collective = cpu_collective(name) if isinstance(name, str) and ":" in name else None
            if collective is not None and collective[0] in ("nccl", "xccl"):
                self.num_launch_annotations += 1
            elif collective is not None:
                self.cpu_comm[first_row + len(keep)] = _cpu_detail(collective[1], event.args)
                keep.append(index)
            elif self._bucket_of.get(event.cat) == "cpu":
                keep.append(index)
        if keep:
            self.cpu.append(
                start=start[keep],
                dur=dur[keep],
                name=self.names.number([events[i].name for i in keep]),
                pid=self.places.number([events[i].pid for i in keep]),
                tid=self.places.number([events[i].tid for i in keep]),
            )

    def _name_threads(self, events: list[Any]) -> None:
        for event in events:
            if event.args is not None and "gloo_runloop" in str(event.args.name):
                self.comm_threads.update(self.places.number([event.tid]))


def _select(
    events: list[Any], start: NDArray[np.int64], dur: NDArray[np.int64], usable: NDArray[np.bool_]
) -> tuple[list[Any], NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
    if usable.all():
        return events, start, dur, usable
    return [event for event, good in zip(events, usable) if good], start[usable], dur[usable], usable


def _correlation(args: Any) -> int:
    value = None if args is None else args.correlation
    if value.__class__ is not int:
        value = _integer(value)
    return value if value is not None and 0 <= value < NS_LIMIT else _NO_CORRELATION


def _integer(value: Any) -> int | None:
    """A whole number from JSON (number or text), or None."""
    try:
        return int(value) if isinstance(value, str) or value == int(value) else None
    except (TypeError, ValueError, OverflowError, ArithmeticError):
        return None


def _numbers(value: Any) -> list[int]:
    """A list of integers that may be written as text, e.g. "[3, 5]"."""
    value = plain(value)
    if isinstance(value, str):
        return [int(text) for text in re.findall(r"-?\d{1,18}", value)]
    if isinstance(value, list):
        return [number for number in map(_integer, value) if number is not None]
    return []


def _detail(args: Any) -> CommDetail:
    """From the arguments that torch attaches to an NCCL kernel."""
    elements = [n for n in (_integer(args.in_nelems), _integer(args.out_nelems)) if n is not None and n >= 0]
    element_bytes = dtype_bytes(args.dtype)
    splits = [_numbers(args.in_split), _numbers(args.out_split)]
    return CommDetail(
        collective=canonical_collective(str(args.collective)),
        size_bytes=max(elements) * element_bytes if elements and element_bytes else None,
        group=f"{args.group if args.group is not None else ''}",
        uneven_splits=any(len(set(split)) > 1 for split in splits),
    )


def _cpu_detail(collective: str, args: Any) -> CommDetail:
    """From the shapes of a CPU collective's inputs, recorded only with `record_shapes=True`."""
    dims, types = (plain(args.dims), plain(args.types)) if args is not None else (None, None)
    size: int | None = None
    if isinstance(dims, list) and isinstance(types, list) and dims and len(dims) == len(types):
        sizes = [_tensor_bytes(shape, dtype) for shape, dtype in zip(dims, types)]
        known = [n for n in sizes if n is not None]
        size = sum(known) if known else None
    return CommDetail(collective=collective, size_bytes=size, group="")


def _tensor_bytes(shape: Any, dtype: Any) -> int | None:
    element_bytes = dtype_bytes(dtype)
    if not isinstance(shape, list) or element_bytes is None:
        return None
    numbers = [_integer(n) for n in shape]
    size = element_bytes
    for number in numbers:
        if number is None or number < 0:
            return None
        size *= number
    return size

"""Begin/end pairs (`ph` B and E) to complete events, the way trace viewers pair them: per thread, last begun first."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from labkit.analyze.trace_decode import Event
from labkit.analyze.trace_time import MISSING, exact_ns


def pair_events(events: list[Any]) -> tuple[list[Event], int]:
    """Complete events from B and E events in file order, and how many had no partner.

    An end with a name closes the last begun event of that name on its thread; one without closes the last begun.
    Times stay in us; durations are `decimal.Decimal`, so that a difference of two large times loses nothing.
    """
    stamps = exact_ns([_stamp(event.ts) for event in events]).tolist()
    order = sorted((i for i in range(len(events)) if stamps[i] != MISSING), key=lambda i: stamps[i])
    open_on: dict[tuple[str, str], list[int]] = {}
    done: list[Event] = []
    unpaired = len(events) - len(order)
    for index in order:
        event = events[index]
        stack = open_on.setdefault((repr(event.pid), repr(event.tid)), [])
        if event.ph == "B":
            stack.append(index)
            continue
        match = next((k for k in reversed(range(len(stack))) if _same(events[stack[k]], event)), None)
        if match is None:
            unpaired += 1
            continue
        begin = stack.pop(match)
        first = events[begin]
        done.append(
            Event(
                ph="X",
                cat=first.cat if first.cat is not None else event.cat,
                name=first.name,
                ts=Decimal(stamps[begin]) / 1000,
                dur=Decimal(stamps[index] - stamps[begin]) / 1000,
                pid=first.pid,
                tid=first.tid,
                args=first.args if first.args is not None else event.args,
            )
        )
    return done, unpaired + sum(len(stack) for stack in open_on.values())


def _stamp(value: Any) -> Any:
    # A double below the limit of `trace_time` prints as the text it came from.
    return Decimal(repr(value)) if isinstance(value, float) else value


def _same(begin: Any, end: Any) -> bool:
    return end.name is None or begin.name is None or begin.name == end.name

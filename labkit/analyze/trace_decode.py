"""One piece of a trace's event list, decoded: with msgspec if it is installed, with the standard library if not.

Both ways give objects with the same attributes, holding only what the analysis needs, so everything after this module
cannot tell them apart. `exact=True` keeps non-integer numbers as decimal text (see `trace_time`).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

try:
    import msgspec
except ImportError:  # a GPU host may have nothing but torch, numpy and pandas
    msgspec = None

_ARG_NAMES = {
    "device": "device",
    "stream": "stream",
    "correlation": "correlation",
    "name": "name",
    "collective": "Collective name",
    "in_nelems": "In msg nelems",
    "out_nelems": "Out msg nelems",
    "dtype": "dtype",
    "group": "Process Group Name",
    "group_ranks": "Process Group Ranks",
    "in_split": "In split size",
    "out_split": "Out split size",
    "dims": "Input Dims",
    "types": "Input type",
}
_EVENT_NAMES = ("ph", "cat", "name", "ts", "dur", "pid", "tid", "args")


@dataclass(slots=True)
class Args:
    """The `args` of an event that matter here; a field is None where the file has none."""

    device: Any = None
    stream: Any = None
    correlation: Any = None
    name: Any = None
    collective: Any = None
    in_nelems: Any = None
    out_nelems: Any = None
    dtype: Any = None
    group: Any = None
    group_ranks: Any = None
    in_split: Any = None
    out_split: Any = None
    dims: Any = None
    types: Any = None


@dataclass(slots=True)
class Event:
    """One trace event as written: `ts` and `dur` in us."""

    ph: Any = None
    cat: Any = None
    name: Any = None
    ts: Any = None
    dur: Any = None
    pid: Any = None
    tid: Any = None
    args: Any = None


def from_dict(raw: dict[str, Any]) -> Event:
    """An event from a decoded JSON object."""
    event = Event(*map(raw.get, _EVENT_NAMES))
    if not isinstance(event.cat, (str, type(None))):
        event.cat = str(event.cat)
    if event.args is not None:
        event.args = Args(*map(event.args.get, _ARG_NAMES.values())) if isinstance(event.args, dict) else None
    return event


def loads(text: str | bytes, *, exact: bool = False, strict: bool = True) -> Any:
    """Standard-library decode that accepts NaN and Infinity. Raises: ValueError (also for absurd nesting or numbers).

    Args:
        text: JSON.
        exact: decimals as `decimal.Decimal`.
        strict: refuse control characters inside strings.
    """
    try:
        return json.loads(text, parse_float=Decimal if exact else None, strict=strict)
    except (RecursionError, ArithmeticError) as err:
        raise ValueError(f"cannot be decoded ({type(err).__name__})") from err


if msgspec is not None:

    class _FastArgs(msgspec.Struct, gc=False, rename=_ARG_NAMES):
        device: Any = None
        stream: Any = None
        correlation: Any = None
        name: Any = None
        collective: Any = None
        in_nelems: Any = None
        out_nelems: Any = None
        dtype: Any = None
        group: Any = None
        group_ranks: Any = None
        in_split: Any = None
        out_split: Any = None
        # Shapes are on every operator and read for few: leave them undecoded.
        dims: msgspec.Raw = None  # type: ignore[assignment]
        types: msgspec.Raw = None  # type: ignore[assignment]

    class _FastEvent(msgspec.Struct, gc=False):
        ph: Any = None
        cat: str | None = None
        name: Any = None
        pid: Any = None
        tid: Any = None
        ts: Any = None
        dur: Any = None
        args: _FastArgs | None = None

    class _ExactEvent(_FastEvent, gc=False):
        # The text itself: msgspec's Decimal would not say whether it stood in quotes.
        ts: msgspec.Raw = None  # type: ignore[assignment]
        dur: msgspec.Raw = None  # type: ignore[assignment]

    _FAST = msgspec.json.Decoder(list[_FastEvent])
    _EXACT = msgspec.json.Decoder(list[_ExactEvent])


def plain(value: Any) -> Any:
    """The value of a field that may have been left undecoded."""
    if msgspec is not None and isinstance(value, msgspec.Raw):
        try:
            return msgspec.json.decode(value)
        except msgspec.DecodeError:
            return None
    return value


def _exact_number(raw: Any) -> Any:
    return None if raw is None else loads(bytes(raw), exact=True)


def decode_events(array: bytes | memoryview, *, exact: bool = False, use_msgspec: bool = True) -> list[Any]:
    """All events of a JSON list.

    Raises: ValueError when the piece is not a list of JSON objects; the caller then goes event by event.
    """
    if use_msgspec and msgspec is not None:
        try:
            if not exact:
                return _FAST.decode(array)
            texts = _EXACT.decode(array)
            for event in texts:
                event.ts, event.dur = _exact_number(event.ts), _exact_number(event.dur)
            return texts
        except (msgspec.MsgspecError, RecursionError, ArithmeticError):
            pass  # NaN, odd types, damage: the slower reader says which
    events = loads(bytes(array), exact=exact)
    if not all(isinstance(event, dict) for event in events):
        raise ValueError("not every event is an object")
    return [from_dict(event) for event in events]

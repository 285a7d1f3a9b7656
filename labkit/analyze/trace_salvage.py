"""Event by event through damaged trace text: keep every event that can be read, say where the others were.

Works on text decoded with `surrogateescape`, so that a position in the text can be turned back into a byte offset.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from labkit.analyze.trace_decode import loads

_SPACE = re.compile(r"\s*")
# Where an event may begin: after the end of another one, an object whose first key is a key of events.
_NEXT_EVENT = re.compile(r'\}\s*,\s*(?=\{\s*"(?:ph|cat|name|pid|tid|ts|dur|id|bp|args|s|tts|sf|tdur)"\s*:)')
_ARRAY_END = re.compile(r"\}\s*(?=\])")
_BAD_ESCAPE = re.compile(r'\\(?:u(?![0-9a-fA-F]{4})|(?!["\\/bfnrtu]))')
_ESCAPE_PAIR = re.compile(r"\\\\")
_DEVICE_WORK = re.compile(r'"cat"\s*:\s*"(?:concurrent_kernel|kernel|(?:gpu_)?mem(?:cpy|set))"', re.IGNORECASE)


@dataclass(slots=True)
class Skipped:
    """One stretch of text that could not be read as an event."""

    position: int
    """Index in the scanned text."""
    reason: str
    was_device_work: bool
    """It named itself a kernel, copy or memset: totals of device time are then lower bounds."""


@dataclass(slots=True)
class Scan:
    """What one pass over a stretch of text gave."""

    events: list[dict[str, Any]] = field(default_factory=list)
    position: int = 0
    """Where reading must go on: the start of an event, or the list's closing bracket."""
    closed: bool = False
    """The closing bracket of the event list was reached; `position` points at it."""
    repaired: int = 0
    """Events read only after replacing bad bytes, control characters or backslashes."""
    skipped: list[Skipped] = field(default_factory=list)


def footer_is_valid(text: str | bytes, *, is_object: bool) -> bool:
    """Whether text that starts at the closing bracket of the event list is the rest of a well-formed file."""
    if isinstance(text, bytes):
        text = text.decode("utf-8", "surrogateescape")
    try:
        loads(('{"traceEvents":[' if is_object else "[") + text, strict=False)
    except ValueError:
        return False
    return True


def _decoders(exact: bool) -> tuple[json.JSONDecoder, json.JSONDecoder]:
    parse_float = Decimal if exact else None
    return json.JSONDecoder(parse_float=parse_float), json.JSONDecoder(parse_float=parse_float, strict=False)


def scan_events(text: str, *, final: bool, is_object: bool, exact: bool = False) -> Scan:
    """Read events one by one from text that starts at an event or at the closing bracket.

    Args:
        text: a stretch of the event list.
        final: nothing follows this text; else an unreadable end is left for the next stretch.
        is_object: the list sits in an object (`{"traceEvents": [...], ...}`), not bare.
        exact: decimals as `decimal.Decimal`.
    """
    strict, lenient = _decoders(exact)
    scan = Scan()
    position = _skip_space(text, 0)
    while position < len(text):
        if text[position] == "]":
            scan.closed = True
            break
        if text[position] == ",":
            position = _skip_space(text, position + 1)
            continue
        end = _read_one(text, position, strict, lenient, scan)
        if end is not None:
            position = _skip_space(text, end)
            continue
        next_start = _resync(text, position, final=final, is_object=is_object)
        if next_start is None:
            break
        if not _repair(text, position, next_start, lenient, scan):
            _skip(text, position, next_start, scan)
        position = next_start
    scan.position = position
    return scan


def _skip_space(text: str, position: int) -> int:
    match = _SPACE.match(text, position)
    return match.end() if match else position


def _read_one(text: str, position: int, strict: json.JSONDecoder, lenient: json.JSONDecoder, scan: Scan) -> int | None:
    for decoder in (strict, lenient):
        try:
            event, end = decoder.raw_decode(text, position)
        except (ValueError, RecursionError, ArithmeticError):
            continue
        if not isinstance(event, dict):
            scan.skipped.append(Skipped(position, "not an object", was_device_work=False))
            return end
        scan.events.append(event)
        if decoder is lenient or _has_bad_bytes(text, position, end):
            scan.repaired += 1
        return end
    return None


def _has_bad_bytes(text: str, position: int, end: int) -> bool:
    piece = text[position:end]
    return not piece.isascii() and any("\udc80" <= char <= "\udcff" for char in piece)


def _resync(text: str, position: int, *, final: bool, is_object: bool) -> int | None:
    """Where the next event, or the list's end, begins after damage at `position`; None if that is not in sight."""
    match = _NEXT_EVENT.search(text, position)
    if match:
        return match.end()
    if not final:
        return None
    for match in _ARRAY_END.finditer(text, position):
        if footer_is_valid(text[match.end() :], is_object=is_object):
            return match.end()
    return None


def _repair(text: str, position: int, next_start: int, lenient: json.JSONDecoder, scan: Scan) -> bool:
    """Windows paths: a backslash that escapes nothing stands for itself."""
    piece = text[position:next_start].rstrip().removesuffix(",").rstrip()
    halves = _ESCAPE_PAIR.split(piece)
    fixed = "\\\\".join(_BAD_ESCAPE.sub(lambda match: "\\" + match.group(), half) for half in halves)
    if fixed == piece:
        return False
    try:
        event, end = lenient.raw_decode(fixed)
    except (ValueError, RecursionError, ArithmeticError):
        return False
    if end != len(fixed) or not isinstance(event, dict):
        return False
    scan.events.append(event)
    scan.repaired += 1
    return True


def _skip(text: str, position: int, next_start: int, scan: Scan) -> None:
    piece = text[position:next_start]
    try:
        json.loads(piece.rstrip().removesuffix(","), strict=False)
        reason = "unreadable"
    except json.JSONDecodeError as err:
        reason = err.msg
    except (ValueError, RecursionError):
        reason = "unreadable"
    scan.skipped.append(Skipped(position, reason, was_device_work=bool(_DEVICE_WORK.search(piece))))

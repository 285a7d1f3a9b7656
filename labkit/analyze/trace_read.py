"""Read a PyTorch profiler trace of any age, in pieces, whole or damaged, into columns.

The event list is cut at places that look like "end of one event, begin of the next" and decoded piece by piece. A cut
inside a string or a nested list leaves a piece that is no valid JSON, so a piece that decodes was cut right; one that
does not is read event by event (`trace_salvage`). Memory stays a few pieces plus the columns, whatever the file's size.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from labkit.analyze.kinds import UnreadableInput
from labkit.analyze.trace_columns import TraceColumns
from labkit.analyze.trace_decode import decode_events, from_dict, loads
from labkit.analyze.trace_pairs import pair_events
from labkit.analyze.trace_salvage import footer_is_valid, scan_events
from labkit.analyze.trace_source import ByteSource
from labkit.analyze.trace_time import NeedsExactText

READ_BYTES = 1 << 19
PIECE_BYTES = 1 << 18
"""Decoded at once: small enough that its objects are still in the processor's cache when they are looked at."""
_LIMIT_BYTES = 1 << 28
"""No header, footer or single event is larger than this."""
_EVENT_LIST = re.compile(rb'"traceEvents"\s*:\s*\[')
_BETWEEN_EVENTS = re.compile(rb"\}\s*,\s*(?=\{)")
_LIST_END = re.compile(rb"\}\s*(?=\])")
_HEADER_KEYS = ("schemaVersion", "deviceProperties", "distributedInfo", "baseTimeNanoseconds", "host_name", "trace_id")


@dataclass(slots=True)
class Trace:
    """A trace in columns, and how well it could be read."""

    path: Path
    columns: TraceColumns
    header: dict[str, Any] = field(default_factory=dict)
    """The top-level keys beside the events; empty for the bare-list form."""
    complete: bool = True
    """Everything the writer meant to write was read."""
    num_skipped: int = 0
    """Events that were there but could not be read."""
    num_repaired: int = 0
    num_unpaired: int = 0
    damage: list[str] = field(default_factory=list)
    """What was wrong, one line each, with byte offsets."""
    lost_device_work: bool = False


def read_trace(path: Path, *, use_msgspec: bool = True) -> Trace:
    """Read a trace file.

    Args:
        path: JSON or gzip, object form or bare list.
        use_msgspec: decode with msgspec where it is installed; the answer is the same without.

    Raises: UnreadableInput when the file is not a trace, or too damaged to give any event.
    """
    for exact in (False, True):
        with ByteSource(path) as source:
            reader = _Reader(source, use_msgspec=use_msgspec, exact=exact)
            try:
                reader.read_header()
                reader.read_events()
                return reader.finish()
            except NeedsExactText:
                continue  # only before the second round: exact text never asks for more
    raise AssertionError("unreachable")


class _Reader:
    """State of reading one file: a buffer, and how far in it everything is done."""

    def __init__(self, source: ByteSource, *, use_msgspec: bool, exact: bool) -> None:
        self.source, self.use_msgspec, self.exact = source, use_msgspec, exact
        self.columns = TraceColumns(exact=exact)
        self.trace = Trace(path=source.path, columns=self.columns)
        self.buffer = bytearray()
        self.start = 0  # of what is not done yet, in the buffer
        self.offset = 0  # of the buffer's first byte, in the (decompressed) file
        self.at_end = False
        self.is_object = True
        self.header_text = b""

    def fill(self) -> None:
        """Take in about READ_BYTES more."""
        if len(self.buffer) - self.start > _LIMIT_BYTES:
            raise UnreadableInput(f"{self.source.path}: no event boundary within {_LIMIT_BYTES} bytes, not a trace")
        data = self.source.read(READ_BYTES)
        self.at_end = not data
        done = max(self.start - 1, 0)  # one byte is kept: `try_piece` puts a bracket there
        self.offset += done
        self.buffer = self.buffer[done:]
        self.buffer += data
        self.start -= done

    def read_header(self) -> None:
        """Everything up to the first event."""
        path = self.source.path
        while len(self.buffer.lstrip()) < 4 and not self.at_end:
            self.fill()
        self.start = 3 if self.buffer.startswith(b"\xef\xbb\xbf") else 0
        self.start = len(self.buffer) - len(self.buffer[self.start :].lstrip())
        first = bytes(self.buffer[self.start : self.start + 1])
        if not first:
            why = self.source.damage or "nothing but blanks"
            raise UnreadableInput(f"{path}: {why}, expected a PyTorch trace (JSON)")
        if first == b"[":
            self.is_object = False
            self.start += 1
            return
        if first != b"{":
            seen = self.buffer[self.start : self.start + 24].decode("utf-8", "replace")
            raise UnreadableInput(f"{path}: not a PyTorch trace: expected JSON, it begins with {seen!r}")
        searched = self.start
        while (match := _EVENT_LIST.search(self.buffer, searched)) is None:
            if self.at_end:
                why = f" ({self.source.damage})" if self.source.damage else ""
                raise UnreadableInput(f'{path}: no "traceEvents" list{why}, not a PyTorch trace')
            searched = max(self.start, len(self.buffer) - 64) - max(self.start - 1, 0)
            self.fill()
        self.header_text = bytes(self.buffer[self.start : match.end()])
        self.start = match.end()

    def read_events(self) -> None:
        """Every event, then the footer."""
        wanted = PIECE_BYTES
        while True:
            if not self.at_end and len(self.buffer) - self.start < wanted:
                self.fill()
                continue
            limit = self.start + wanted
            if self.at_end and limit >= len(self.buffer):
                if not self.read_tail():
                    self.scan(len(self.buffer), len(self.buffer), final=True)
                return
            cut = _last_boundary(self.buffer, self.start, limit)
            if cut is None:
                wanted *= 2  # an event larger than that
                continue
            end, rest = cut
            if self.try_piece(end):
                self.start = rest
            elif self.scan(end, rest, final=False):
                return
            elif self.start < end:  # an event that goes on behind the cut, or damage with no end in sight
                wanted = max(wanted, end - self.start) * 2
                continue
            wanted = PIECE_BYTES

    def try_piece(self, end: int) -> bool:
        """Decode the buffer up to `end` at full speed; False when that is no list of events."""
        # Brackets are put around the piece in place, instead of copying it: what stands there is white space, a comma
        # or a bracket of the file, and comes back afterwards.
        before, after = self.buffer[self.start - 1], self.buffer[end]
        self.buffer[self.start - 1], self.buffer[end] = ord("["), ord("]")
        try:
            piece = memoryview(self.buffer)[self.start - 1 : end + 1]
            events = decode_events(piece, exact=self.exact, use_msgspec=self.use_msgspec)
        except ValueError:
            return False
        finally:
            self.buffer[self.start - 1], self.buffer[end] = before, after
        self.columns.add(events)
        return True

    def read_tail(self) -> bool:
        """The last piece at full speed, if the list is closed and what follows is well-formed."""
        for match in list(_LIST_END.finditer(self.buffer, self.start))[-1:]:
            footer = bytes(self.buffer[match.end() :])
            if footer_is_valid(footer, is_object=self.is_object) and self.try_piece(match.start() + 1):
                self.read_footer(footer)
                return True
        return False

    def scan(self, end: int, rest: int, *, final: bool) -> bool:
        """Event by event through the buffer up to `end`; True when the list is done."""
        text = self.buffer[self.start : end].decode("utf-8", "surrogateescape")
        result = scan_events(text, final=final, is_object=self.is_object, exact=self.exact)
        self.columns.add([from_dict(event) for event in result.events])
        for skipped in result.skipped:
            if len(self.trace.damage) < 10:
                where = self.offset + self.start + _num_bytes(text[: skipped.position])
                self.trace.damage.append(f"event at byte {where} skipped: {skipped.reason}")
            self.trace.lost_device_work |= skipped.was_device_work
        self.trace.num_skipped += len(result.skipped)
        self.trace.num_repaired += result.repaired
        everything = result.position >= len(text)
        self.start = rest if everything and not final else self.start + _num_bytes(text[: result.position])
        if result.closed:
            while not self.at_end and len(self.buffer) - self.start <= _LIMIT_BYTES:
                self.fill()
            self.read_footer(bytes(self.buffer[self.start :]))
        elif final:
            self.cut_off()
        return result.closed

    def cut_off(self) -> None:
        """The file ends before the list does."""
        self.trace.complete = False
        left = self.buffer[self.start :].strip()
        where = f"byte {self.offset + self.start}"
        if self.source.damage is None:
            self.trace.damage.append(f"cut off at {where}" if left else f"no closing bracket at {where}")
        if left:
            self.trace.num_skipped += 1

    def read_footer(self, footer: bytes) -> None:
        """What follows the events."""
        text = footer.decode("utf-8", "surrogateescape")
        if not footer_is_valid(text, is_object=self.is_object):
            self.trace.complete = False
            self.trace.damage.append(f"damaged after the last event, at byte {self.offset + self.start}")
        if self.is_object:
            self.trace.header = self.read_top_level(text)

    def read_top_level(self, footer: str) -> dict[str, Any]:
        """Top-level keys from what stands around the events, key by key if that is damaged."""
        head = self.header_text.decode("utf-8", "surrogateescape")
        for text in (head + footer, head + "]}"):
            try:
                whole = loads(text, strict=False)
            except ValueError:
                continue
            if isinstance(whole, dict):
                return {key: value for key, value in whole.items() if key != "traceEvents"}
        self.trace.complete = False
        self.trace.damage.append("damaged before the first event")
        found: dict[str, Any] = {}
        for key in _HEADER_KEYS:
            match = re.search(rf'"{key}"\s*:\s*', head)
            if match:
                try:
                    found[key] = json.JSONDecoder(strict=False).raw_decode(head, match.end())[0]
                except (ValueError, RecursionError):
                    continue
        return found

    def finish(self) -> Trace:
        """Pair B and E events, settle what is complete."""
        trace, columns = self.trace, self.columns
        if self.is_object and not trace.header:
            trace.header = self.read_top_level("]}")
        columns.flush()
        if columns.unpaired:
            events, trace.num_unpaired = pair_events(columns.unpaired)
            columns.unpaired, before = [], columns.num_events
            columns.add(events)
            columns.flush()
            columns.num_events = before
        if self.source.damage:
            trace.damage.append(self.source.damage)
            trace.complete = False
        if trace.num_skipped:
            trace.complete = False
        if columns.num_events == 0 and not trace.complete:
            raise UnreadableInput(f"{trace.path}: no event could be read: {trace.damage[0]}")
        if columns.num_events == 0 and not self.is_object and trace.num_skipped:
            raise UnreadableInput(f"{trace.path}: a JSON list that holds no trace events")
        return trace


def _num_bytes(text: str) -> int:
    return len(text.encode("utf-8", "surrogateescape"))


def _last_boundary(buffer: bytearray, start: int, limit: int) -> tuple[int, int] | None:
    """(end of the last whole event before `limit`, start of the next), or None."""
    position = limit
    while (position := buffer.rfind(b"}", start, position)) >= 0:
        match = _BETWEEN_EVENTS.match(buffer, position)
        if match:
            return position + 1, match.end()
    return None

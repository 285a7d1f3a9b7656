"""Read a PyTorch profiler trace of any age, in pieces, whole or damaged, into columns.

The event list is cut at places that look like "end of one event, begin of the next" and decoded piece by piece. A cut
inside a string or a nested list leaves a piece that is no valid JSON, so a piece that decodes was cut right; one that
does not is read event by event (`trace_salvage`). Memory stays a few pieces plus the columns, whatever the file's size.
"""

from __future__ import annotations

import json
import re
from collections import Counter
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

PIECE_BYTES = 1 << 20
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
    with ByteSource(path) as source:
        reader = _Reader(source, use_msgspec=use_msgspec)
        reader.read_header()
        reader.read_events()
        return reader.finish()


class _Reader:
    def __init__(self, source: ByteSource, *, use_msgspec: bool) -> None:
        self.source, self.use_msgspec = source, use_msgspec
        self.trace = Trace(path=source.path, columns=TraceColumns())
        self.buffer = b""
        self.offset = 0  # of the buffer's first byte, in the (decompressed) file
        self.at_end = False
        self.exact = False
        self.is_object = True
        self.header_text = b""
        self.reasons: Counter[str] = Counter()

    def fill(self, size: int = PIECE_BYTES) -> None:
        """Take in about `size` more bytes."""
        if len(self.buffer) > _LIMIT_BYTES:
            raise UnreadableInput(f"{self.source.path}: no event boundary within {_LIMIT_BYTES} bytes, not a trace")
        data = self.source.read(size)
        self.at_end = not data
        self.buffer += data

    def drop(self, count: int) -> None:
        """Forget the first `count` bytes of the buffer."""
        self.buffer = self.buffer[count:]
        self.offset += count

    def read_header(self) -> None:
        """Everything up to the first event."""
        path = self.source.path
        while len(self.buffer.lstrip()) < 4 and not self.at_end:
            self.fill()
        if self.buffer.startswith(b"\xef\xbb\xbf"):
            self.drop(3)
        self.drop(len(self.buffer) - len(self.buffer.lstrip()))
        if not self.buffer:
            why = self.source.damage or "nothing but blanks"
            raise UnreadableInput(f"{path}: {why}, expected a PyTorch trace (JSON)")
        if self.buffer[:1] == b"[":
            self.is_object = False
            self.drop(1)
            return
        if self.buffer[:1] != b"{":
            seen = self.buffer[:24].decode("utf-8", "replace")
            raise UnreadableInput(f"{path}: not a PyTorch trace: expected JSON, it begins with {seen!r}")
        searched = 0
        while (match := _EVENT_LIST.search(self.buffer, searched)) is None:
            if self.at_end:
                why = f" ({self.source.damage})" if self.source.damage else ""
                raise UnreadableInput(f'{path}: no "traceEvents" list{why}, not a PyTorch trace')
            searched = max(0, len(self.buffer) - 64)
            self.fill()
        self.header_text = self.buffer[: match.end()]
        self.drop(match.end())

    def read_events(self) -> None:
        """Every event, then the footer."""
        while True:
            if not self.at_end and len(self.buffer) < PIECE_BYTES:
                self.fill()
                continue
            cut = None if self.at_end else _last_boundary(self.buffer)
            if cut is None and not self.at_end:
                self.fill()
                continue
            if cut is None and self.read_tail():
                return
            end, rest = (len(self.buffer), len(self.buffer)) if cut is None else cut
            if cut is not None and self.try_piece(self.buffer[:end]):
                self.drop(rest)
                continue
            if self.scan(end, rest, final=cut is None):
                return

    def try_piece(self, piece: bytes) -> bool:
        """Decode a piece at full speed; False when it is no list of events."""
        try:
            try:
                events = decode_events(piece, exact=self.exact, use_msgspec=self.use_msgspec)
                self.trace.columns.add(events, exact=self.exact)
            except NeedsExactText:
                self.exact = True
                events = decode_events(piece, exact=True, use_msgspec=self.use_msgspec)
                self.trace.columns.add(events, exact=True)
        except ValueError:
            return False
        return True

    def read_tail(self) -> bool:
        """The last piece at full speed, if the list is closed and what follows is well-formed."""
        for match in list(_LIST_END.finditer(self.buffer))[-1:]:
            footer = self.buffer[match.end() :]
            if footer_is_valid(footer, is_object=self.is_object) and self.try_piece(self.buffer[: match.start() + 1]):
                self.read_footer(footer)
                return True
        return False

    def scan(self, end: int, rest: int, *, final: bool) -> bool:
        """Event by event through the first `end` bytes; True when the list is done."""
        text = self.buffer[:end].decode("utf-8", "surrogateescape")
        result = scan_events(text, final=final, is_object=self.is_object, exact=self.exact)
        try:
            self.trace.columns.add([from_dict(event) for event in result.events], exact=self.exact)
        except NeedsExactText:
            self.exact = True
            return self.scan(end, rest, final=final)
        for skipped in result.skipped:
            self.note(self.byte_offset(text, skipped.position), skipped.reason)
            self.trace.lost_device_work |= skipped.was_device_work
        self.trace.num_skipped += len(result.skipped)
        self.trace.num_repaired += result.repaired
        used = len(text[: result.position].encode("utf-8", "surrogateescape"))
        if result.closed:
            self.drop(used)
            while not self.at_end and len(self.buffer) <= _LIMIT_BYTES:
                self.fill()
            self.read_footer(self.buffer)
            return True
        if final:
            self.cut_off(used)
            return True
        if result.position >= len(text):
            self.drop(rest)
        else:
            self.drop(used)
            self.fill()
        return False

    def byte_offset(self, text: str, position: int) -> int:
        return self.offset + len(text[:position].encode("utf-8", "surrogateescape"))

    def note(self, offset: int, reason: str) -> None:
        self.reasons[reason] += 1
        if len(self.trace.damage) < 10:
            self.trace.damage.append(f"event at byte {offset} skipped: {reason}")

    def cut_off(self, used: int) -> None:
        """The file ends before the list does."""
        self.trace.complete = False
        left = self.buffer[used:].strip()
        where = f"byte {self.offset + used}"
        if self.source.damage is None:
            self.trace.damage.append(f"cut off at {where}" if left else f"no closing bracket at {where}")
        if left:
            self.trace.num_skipped += 1

    def read_footer(self, footer: bytes) -> None:
        """What follows the events."""
        text = footer.decode("utf-8", "surrogateescape")
        if not footer_is_valid(text, is_object=self.is_object):
            self.trace.complete = False
            self.trace.damage.append(f"damaged after the last event, at byte {self.offset}")
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
        trace = self.trace
        if self.is_object and not trace.header:
            trace.header = self.read_top_level("]}")
        if trace.columns.unpaired:
            events, trace.num_unpaired = pair_events(trace.columns.unpaired)
            trace.columns.unpaired = []
            before = trace.columns.num_events
            trace.columns.add(events, exact=True)
            trace.columns.num_events = before
        if self.source.damage:
            trace.damage.append(self.source.damage)
            trace.complete = False
        if trace.num_skipped:
            trace.complete = False
        if trace.columns.num_events == 0 and not trace.complete:
            raise UnreadableInput(f"{trace.path}: no event could be read: {trace.damage[0]}")
        if trace.columns.num_events == 0 and not self.is_object and trace.num_skipped:
            raise UnreadableInput(f"{trace.path}: a JSON list that holds no trace events")
        return trace


def _last_boundary(buffer: bytes) -> tuple[int, int] | None:
    """(end of the last whole event, start of the next) near the end of the buffer, or None."""
    position = len(buffer)
    while (position := buffer.rfind(b"}", 0, position)) >= 0:
        match = _BETWEEN_EVENTS.match(buffer, position)
        if match:
            return position + 1, match.end()
    return None

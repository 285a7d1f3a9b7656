"""The lines of a vLLM server's log without what was put before them.

vLLM itself writes a process tag, a level, a time and a place, in another form every few releases; Ray, Docker, kubectl,
journald, Slurm and torch put theirs in front, and a log may be written as one JSON object a line. A reader of facts
wants the message, its level and the engine that wrote it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from labkit.analyze.kinds import clean_text
from labkit.analyze.log_carriers import MPIRUN, POD, PROCESS, STREAM, carried_texts, json_record

_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_LOST_ANSI = re.compile(r"\[\d{1,3}(?:;\d{1,3})*m")
_ESCAPED_ANSI = re.compile(r"(?:\^\[|␛|#033)?" + _LOST_ANSI.pattern)
_TIME = r"(?:\d{4}[-/]\d\d[-/]\d\d[T ])?\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?"
_WRAPPING = re.compile("^(?:" + "|".join((
    rf"{PROCESS}\s?",
    rf"{_TIME}\s+(?:{STREAM} )?", rf"\[{_TIME}\]\s*",  # kubectl --timestamps, a container runtime's files
    r"[A-Z][a-z]{2} +\d+ \d\d:\d\d:\d\d \S+ [\w.@/-]+(?:\[\d+\])?: ", r"\S+ [\w.@/-]+\[\d+\]: ",  # journald, syslog
    r"[\w.-]*\s*\|\s", rf"{POD}\s",  # Docker compose and exception groups, kubectl --prefix
    r"\[rank\d+\]:\s?", r"\d{1,4}: ", rf"{MPIRUN} ?",  # torch, srun, mpirun
    r"\[[\w.:/-]{1,60}\]\s+", r"\(Process\)\s+", r"\S+ >> ", r"[#>] ",  # launchers, a quotation
    r"[^\s()]{1,60}(?:\s+[^\s()]{1,60})?\s+(?=\(\w+ pid=\d+\))",  # any name before a process tag
)) + ")")
_HEADER = re.compile(
    r"\b(DEBUG|INFO|WARNING|ERROR|CRITICAL)\s+"
    r"(?:[\d/-]+ [\d:.,]+ (?:\[?[\w./-]+:\d+\]\s?)?|(?:[\d/-]+ )?\[?[\w./-]+\.\w+:\d+\]\s?)"
    r"(?:[\w.:#-]* ?[\w.:#-]* -- )?")  # Ray Serve names the deployment and the replica
_BARE_LEVEL = re.compile(r"^(?:- )?(DEBUG|INFO|WARNING|ERROR|CRITICAL)(?::\s+|\s+(?:[\w.]+:\d+ )?(?:--? )?)")
_TRACEBACK = "Traceback (most recent call last):"
_ENGINE = re.compile(r"\(EngineCore_(?:DP)?(\d+) pid=")
_REPEATED = re.compile(r"\s*\[repeated \d+x across cluster\].*$")


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a log."""

    text: str
    """The message, without indentation."""
    level: str | None
    """None where the line has no header of its own, as most lines of a traceback."""
    engine: int | None
    """Number of the data-parallel engine that wrote it, as its tag says; None for a lone engine and other processes."""


def log_lines(text: str) -> list[Line]:
    """Every line of a log, in order; a line that is a JSON object is taken for the text inside."""
    raws = text.splitlines()
    wrapping = _learned(raws)
    return [line for raw in raws for line in _lines(raw, wrapping)]


def _learned(raws: Sequence[str]) -> re.Pattern[str] | None:
    """What else stands before a line of this log: before the one that every traceback begins with, numbers aside."""
    found = set()
    for raw in raws:
        if _TRACEBACK in raw and not raw.lstrip().startswith("{"):
            before, begins, _ = _line(raw, None).text.partition(_TRACEBACK)
            if begins and 0 < len(before) <= 80 and not before.endswith("exception: "):
                found.add(re.sub(r"\d+", r"\\d+", re.escape(before)))
    return re.compile(f"(?:{'|'.join(sorted(found))})") if 0 < len(found) <= 20 else None


def _lines(raw: str, wrapping: re.Pattern[str] | None) -> Iterator[Line]:
    if (record := json_record(raw)) is None:
        yield _line(raw, wrapping)
        return
    level = next((str(record[key]).upper() for key in ("levelname", "level", "severity") if record.get(key)), None)
    body = carried_texts(record) + [str(trace) for trace in (record.get("exc_info"),) if trace]
    for number, inner in enumerate(clean_text("\n".join(body)).splitlines()):
        line = _line(inner, wrapping)
        yield line if line.level or number else Line(line.text, level, line.engine)


def _line(raw: str, wrapping: re.Pattern[str] | None) -> Line:
    text = _ANSI.sub("", raw) if "\x1b" in raw else raw
    if _LOST_ANSI.search(text):
        text = _ESCAPED_ANSI.sub("", text)
    text = (_REPEATED.sub("", text) if "[repeated" in text else text).strip()
    tag = _ENGINE.search(text)
    engine = int(tag[1]) if tag else None
    if match := _HEADER.search(text):
        return Line(text[match.end():].strip(), match[1], engine)
    while match := _WRAPPING.match(text) or (wrapping and wrapping.match(text)):
        text = text[match.end():].lstrip()
    if match := _BARE_LEVEL.match(text):  # the web server's lines
        return Line(text[match.end():], match[1], engine)
    return Line(text, None, engine)

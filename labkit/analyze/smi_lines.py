"""Lines of a tool's output that a launcher, a collector or a quotation has put something in front of."""

from __future__ import annotations

import re
from collections.abc import Callable

from labkit.analyze.log_carriers import CLOCK, PROCESS, STREAM

_FRONT = re.compile(
    rf"(?:>+ ?(?=[\s\w]))?(?:{PROCESS} )?"
    rf"(?:{CLOCK}(?: {STREAM})? ?(?![,\d]))?"  # a clock with a comma behind it is a cell
    r"(?:\[(?P<rank>\d+(?:,\d+)?)\](?:<std(?:out|err)>)?:? ?|\s{0,6}(?P<task>\d+): ?"
    r"|(?P<host>[A-Za-z][\w.-]*)(?:: ?|\s+\| ))?")


def by_source(text: str, is_header: Callable[[str], bool]) -> list[tuple[str, str]]:
    r"""(who wrote it, line without what stands in front); the first is "" where no line with a header has a label.

    Args:
        text: what was kept.
        is_header: whether a line is the first of a table. Only if one is, behind a label or a time, is anything taken
            off: a message such as "bash: no such command" has no label.

    >>> by_source("7: index, name\n7: 0, L4", lambda line: line.startswith("index"))
    [('7', 'index, name'), ('7', '0, L4')]
    """
    lines = text.splitlines()
    fronts = [_FRONT.match(line) for line in lines]
    ends = [found.end() if found else 0 for found in fronts]
    if not any(end and is_header(line[end:]) for line, end in zip(lines, ends)):
        return [("", line) for line in lines]
    return [(_label(found), line[end:]) for line, found, end in zip(lines, fronts, ends)]


def of_first_source(text: str, is_header: Callable[[str], bool]) -> list[str]:
    """Lines of whoever wrote the first header: several machines may have written one file at once."""
    lines = by_source(text, is_header)
    first = next((source for source, line in lines if is_header(line)), "")
    return [line for source, line in lines if source == first]


def _label(found: re.Match[str] | None) -> str:
    return next((value for value in found.groups() if value), "") if found else ""

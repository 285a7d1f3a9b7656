"""Lines of an nccl-tests log without what launchers, collectors and people put in front of them.

A prefix is found in two ways: by its known forms (mpirun, srun, kubectl, loggers), and by what stands before the
texts that every table has. A prefix that such lines share is taken off the others, too.
"""

from __future__ import annotations

import re
from collections import Counter

from labkit.analyze.kinds import clean_text
from labkit.analyze.log_carriers import CLOCK, MPIRUN, PROCESS, SERVICE, STREAM, TASK, carried_texts, json_record
from labkit.analyze.smi import plain_text

_PREFIX = re.compile(
    rf"^(?:{CLOCK} (?:{STREAM} )?|{MPIRUN} ?|{PROCESS} |{TASK} |{SERVICE} "
    r"|(?:- )?(?:INFO|DEBUG|WARNING|ERROR)(?: - |:)"
    r"|(?:[A-Z][a-z]{2} ){2}[\d :]+(?=[\[<])|<std(?:out|err|diag)>: ?"  # mpirun with time stamps
    r"|\[(?:default|rank)?\d+\]:? |\[(?:default|rank)\d+\]:"  # mpirun -prepend-rank, torchrun
    r"|>+ )")  # quoted mail
_ANCHOR = re.compile(
    r"#?[ \t]*(?:nThreads?:? \d|Rank +\d+ +(?:Group|Pid)|Out of bounds values|Avg bus bandwidth"
    r"|Collective test (?:starting|concluded)|nccl-tests version|(?:size|bytes)\s+(?:count|N)\s+type)"
    r"|#\s+(?:Using devices|\(B\)|out-of-place)")
_TYPES = r"u?int(?:8|32|64)|half|float|double|bfloat16|bf16|fp8\w*|f8\w*|fp?(?:16|32|64)"
_ROW = re.compile(rf"(?<![\w.-])\d+[ \t]+\d+[ \t]+(?:{_TYPES})[ \t]+(?:\S+[ \t]+){{3}}")
_BROKEN_INSIDE = re.compile(rf"(?:\[\d+\]|{PROCESS}) *$")
"""A prefix at a line's end: another process began its line inside of a row."""


def table_lines(text: str) -> list[str]:
    r"""Lines of a log, each from where the program's own text starts.

    >>> table_lines("(head, pid=7) # nThread 1 nGpus 8\n(head, pid=7)  8  2 float sum -1 9.1 0.0 0.0 0")
    ['# nThread 1 nGpus 8', ' 8  2 float sum -1 9.1 0.0 0.0 0']
    """
    lines = [_without_known_prefix(line) for line in unwrapped(plain_text(clean_text(text)))]
    fronts = Counter(front for line in lines if (front := _front(line)))
    shared = [front for front, times in fronts.most_common(4) if times > 1]
    return [_from_anchor(line, shared) for line in lines]


def unwrapped(text: str) -> list[str]:
    """Lines out of JSON records, one a line, and out of a text whose line ends were written as backslash and n."""
    if text.count("\\n#") > text.count("\n#"):
        text = text.replace("\\r", "").replace("\\n", "\n").replace("\\t", "\t")
    lines = []
    for line in text.splitlines():
        record = json_record(line)
        lines += [line] if record is None else clean_text(carried_texts(record)[0]).splitlines()
    return lines


def _without_known_prefix(line: str) -> str:
    for _ in range(4):
        shorter = _PREFIX.sub("", line, count=1)
        if shorter == line:
            break
        line = shorter
    return _BROKEN_INSIDE.sub("", line) if _ROW.match(line.lstrip()) else line


def _front(line: str) -> str:
    """What stands before one of the table's texts; "" for blanks or another line."""
    found = _ANCHOR.search(line)
    front = line[: found.start()] if found else ""
    return front if front.strip(" \t#") else ""


def _from_anchor(line: str, shared: list[str]) -> str:
    for front in shared:
        if line.startswith(front):
            return line[len(front) :]
        if line.rstrip() == front.rstrip():
            return ""
    if found := _ANCHOR.search(line):
        return line[found.start() :] if line[: found.start()].strip() else line
    if (row := _ROW.search(line)) and line[: row.start()].strip() and "#" not in line[: row.start()]:
        return line[row.start() :]
    return line

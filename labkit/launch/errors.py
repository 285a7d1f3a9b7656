"""Who failed first, and with what: from the error files that torch's `@record` writes and from the run's output.

When one rank dies, the others die of it: they lose their connection, or the agent stops them with SIGTERM. So blame
goes by kind before time: an error of a rank's own, or a signal from outside, before a complaint about a peer, before
SIGTERM. Times come from the error files' modification times (ns); the timestamps inside are whole seconds, too coarse.
"""

from __future__ import annotations

import json
import re
import time
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

_PREFIX = re.compile(r"\[rank(\d+)\]:")
_TABLE = re.compile(r"^\s+(time|rank|exitcode)\s+: (\S+)(?: \((?:local_rank|pid): (\d+)\))?")
_PEER = re.compile(
    r"connection (closed|reset|refused|aborted|was)|broken pipe|socket (closed|timeout)|remote process exited"
    r"|communicator was aborted|DistBackendError|DistNetworkError|NCCL (error|watchdog)|timed out (waiting|after)"
    r"|timeout caused pair closure|wait timeout|closed by (remote )?peer|no longer alive", re.IGNORECASE)
_MAX_ERROR_CHARS = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerError:
    """What is known about one worker that did not end well."""

    rank: int | None = None
    exitcode: int | None = None
    """None where nobody knows, or where the agent stopped the rank while it ended of its own error."""
    error: str = ""
    """One line, e.g. `ValueError: boom`."""
    traceback: str = ""
    time_s: float | None = None
    """When the error file was written, or when the agent noticed: Unix seconds."""

    @property
    def is_witness(self) -> bool:
        """This rank complains about another one; NCCL's watchdog ends such a rank by SIGABRT."""
        return self.exitcode == -6 or bool(_PEER.search(self.error))


class LogTail:
    """The end of a run's output, kept apart by rank; lines of torchrun itself are rank None.

    >>> tail = LogTail()
    >>> tail.add("[rank1]:step 1[rank0]:step 1")
    >>> tail.last_line(0), tail.last_line(None)
    ('step 1', '')
    """

    def __init__(self, max_lines: int = 2000) -> None:
        self.lines: defaultdict[int | None, deque[str]] = defaultdict(lambda: deque(maxlen=max_lines))

    def add(self, line: str) -> None:
        """Take one line of output; two ranks can share a line."""
        parts = _PREFIX.split(line)  # text, rank, text, rank, text ...
        if parts[0] or len(parts) == 1:
            self.lines[None].append(parts[0])
        doubled = False
        for rank, text in zip(parts[1::2], parts[2::2]):
            if text or not doubled:
                self.lines[int(rank)].append(text.removeprefix(" ") if doubled else text)
            doubled = not text  # torch's own excepthook adds "[rank1]: " once more
            if doubled:
                self.lines[int(rank)].pop()

    def last_line(self, rank: int | None) -> str:
        """The last line of a rank that is not blank, or an empty string."""
        return next((line.strip() for line in reversed(self.lines.get(rank, ())) if line.strip()), "")

    def last_exception(self, rank: int | None) -> tuple[str, str]:
        """(last line, whole text) of the last Python traceback of a rank; empty strings if there is none."""
        error, text, block = "", "", list[str]()
        for line in self.lines.get(rank, ()):
            if line.startswith("Traceback (most recent call last):"):
                block = [line]
            elif block and (line.startswith(" ") or not line):
                block.append(line)
            elif block:
                error, text, block = line, "\n".join([*block, line]), []
        return error, text


def read_error_file(path: Path, *, rank: int | None) -> WorkerError | None:
    """The error that `@record` wrote, in both layouts of the message; None if there is no usable file."""
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        written_s = path.stat().st_mtime_ns / 1e9
    except (OSError, ValueError):
        return None
    message = raw.get("message") if isinstance(raw, dict) else None
    if isinstance(message, str):
        return WorkerError(rank=rank, error=one_line(message), time_s=written_s)
    if not isinstance(message, dict):
        return None
    extra = message.get("extraInfo")
    traceback = extra.get("py_callstack", "") if isinstance(extra, dict) else ""
    return WorkerError(rank=rank, error=one_line(str(message.get("message", ""))), traceback=str(traceback),
                       time_s=written_s)


def failure_table(tail: LogTail) -> list[WorkerError]:
    """Rank, exit code and time of each entry in the table that torchrun prints at the end."""
    found: list[WorkerError] = []
    noticed: float | None = None
    for line in tail.lines.get(None, ()):
        if not (match := _TABLE.match(line)):
            continue
        key, value, _ = match.groups()
        try:
            if key == "time":
                noticed = time.mktime(time.strptime(value, "%Y-%m-%d_%H:%M:%S"))
            elif key == "rank":
                found.append(WorkerError(rank=int(value), time_s=noticed))
            elif found:
                found[-1] = replace(found[-1], exitcode=int(value))
        except ValueError:  # a line that only looks like the table's
            continue
    return found


def first_failure(errors: Sequence[WorkerError], tail: LogTail) -> WorkerError:
    """The error to blame, with `error` filled from the output where no error file told it.

    Args:
        errors: one or more entries; several for the same rank are merged, the first known value wins.
        tail: the run's output.
    """
    merged: dict[int | None, WorkerError] = {}
    for error in errors:
        if known := merged.get(error.rank):
            error = WorkerError(
                rank=error.rank, exitcode=error.exitcode if known.exitcode is None else known.exitcode,
                error=known.error or error.error, traceback=known.traceback or error.traceback,
                time_s=known.time_s if known.time_s is not None else error.time_s)
        merged[error.rank] = error
    return min((_filled(error, tail) for error in merged.values()), key=_blame)


def one_line(text: str) -> str:
    r"""The first non-blank line of a message, at most 300 characters.

    >>> one_line("\n ValueError: boom \nmore")
    'ValueError: boom'
    """
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return line if len(line) <= _MAX_ERROR_CHARS else line[: _MAX_ERROR_CHARS - 3] + "..."


def _filled(error: WorkerError, tail: LogTail) -> WorkerError:
    if error.error:
        # It raised, and the agent stopped it while it ended, since another rank had ended of it faster.
        was_ending = error.exitcode == -15 and error.traceback
        return replace(error, exitcode=None) if was_ending else error
    if error.exitcode is not None and error.exitcode < 0:
        hint = " (out of memory?)" if error.exitcode == -9 else ""
        return replace(error, error=f"killed by signal {-error.exitcode}{hint}")
    line, text = tail.last_exception(error.rank)
    return replace(error, error=one_line(line or tail.last_line(error.rank) or "no output"), traceback=text)


def _blame(error: WorkerError) -> tuple[int, float]:
    stopped_by_agent = error.exitcode == -15 and not error.traceback
    kind = 2 if stopped_by_agent else 1 if error.is_witness else 0
    return kind, error.time_s if error.time_s is not None else float("inf")

"""Why a torchrun job failed: the failing rank, not its victims.

In: torchrun's output (with or without `--tee` prefixes, glued lines, several nodes). Out: one plain object.
"""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass, field
from typing import Any

from labkit.analyze.kinds import UnreadableInput
from labkit.analyze.smi import plain_text
from labkit.analyze.torchrun_untagged import (
    AGENT_FAILED,
    FINISHED,
    LAUNCHER_ERROR,
    PEER_LOST,
    end_after_restart,
    outside_failure,
    unnamed_errors,
    without_outer_prefixes,
)

_PREFIX = re.compile(r"\[([A-Za-z_][\w-]*?)(\d{1,6})\]:[ ]?")
_RULE = re.compile(r"^\s*[-=*]{8,}\s*$")
_BLOCK = re.compile(r"^\s*\[(\d+)\]:\s*$")
_FIELD = re.compile(r"^\s*(time|host|rank|exitcode|error_file|traceback|msg)\s*: ?(.*)$")
_CLOSING = re.compile(r"Sending process (\d{1,9}) closing signal (SIG\w+)")
_TRACEBACK = re.compile(r"\s*(?:\+ Exception Group )?Traceback \(most recent call last\)")
_GROUP_BAR = re.compile(r"^\s*\| (?=\S)")
_EXCEPTION = re.compile(r"^(?!Traceback)[A-Za-z_][\w.]*(?::|$)")
_GOT_SIGNAL = re.compile(r"(?:^|\b)(?:signal:? 1?[25]\b|SIGTERM|SIGINT|KeyboardInterrupt)", re.IGNORECASE)
_NO_TRACEBACK = "To enable traceback see"


@dataclass(slots=True)
class _Line:
    text: str
    role: str | None = None
    number: int | None = None
    rank: int | None = None


@dataclass(slots=True)
class _Failure:
    is_root_block: bool
    fields: dict[str, str] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)


def parse_log(text: str) -> dict[str, Any]:
    """What a torchrun log says about failure.

    Returns: `failed` (None if a failed attempt was restarted and the log does not say how that ended); `root_cause`
    (rank, local_rank, exitcode, signal, pid, host, time, error, error_file, traceback; None if nothing failed);
    `other_failures` (same keys), `root_cause_by` (how it was chosen), `glued_lines` (lines holding the output of two
    ranks), `closing_signals` (processes that the agent itself stopped), `errors_by_rank`,
    `unnamed_errors` (distinct exceptions of the last attempt whose rank the log does not name; an only one is taken for
    the root cause's).

    Raises: UnreadableInput for empty text or a web page.
    """
    clean = plain_text(text)
    if not clean.strip():
        raise UnreadableInput("empty log")
    if re.match(r"\s*<(?:!doctype|html)", clean, re.IGNORECASE):
        raise UnreadableInput("a web page, expected torchrun's output")
    lines, glued = _logical_lines(clean)
    printed = _printed_errors(lines)
    failures = [_describe(failure, printed) for failure in _failure_blocks(lines)]
    closing = [(int(m[1]), m[2]) for line in lines for m in _CLOSING.finditer(line.text)]
    agent = [(int(m[1]), int(m[2]), int(m[3])) for line in lines for m in AGENT_FAILED.finditer(line.text)]
    if not failures:
        failures = [_from_agent(*seen, printed) for seen in agent]
    root, chosen_by = _root_cause(failures, {pid for pid, _ in closing}, {pid for _, _, pid in agent})
    texts = [line.text for line in lines]
    unnamed = unnamed_errors(texts, [line.role is None and line.rank is None for line in lines])
    if root is not None and root["error"] is None and root["exitcode"] in (1, 2) and len(unnamed) == 1:
        root["error"], root["traceback"] = unnamed[0][1], unnamed[0][2] or None  # Python's own codes of an end by error
    if root is None and (launcher := _launcher_failure(lines)):
        root, chosen_by = launcher, "launcher error"
        if "CalledProcessError" in launcher["error"] and len(unnamed) == 1:  # it only repeats that a rank failed
            root["error"], root["traceback"] = unnamed[0][1], unnamed[0][2] or None
            chosen_by = "the only traceback in the output"
    if root is None and printed:
        rank, (error, trace) = next(iter(printed.items()))
        root, chosen_by = _failure(rank=rank[1], error=error, traceback=trace), "first traceback in the output"
    if root is None and unnamed and not any(line.text.strip() for line in lines[unnamed[-1][0] + 6 :]):
        error, trace = unnamed[0][1:]
        root, chosen_by = _failure(error=error, traceback=trace or None), "a traceback at the end, of an unnamed rank"
    if root is None and (told := outside_failure(texts)):
        root, chosen_by = _failure(error=told), "a line from outside the ranks"
    failed: bool | None = root is not None
    if chosen_by == "first failure the agent saw" and (end := end_after_restart(texts)) is not None:
        failed, root, chosen_by = (None, root, end) if end != FINISHED else (False, None, None)
    return {
        "failed": failed,
        "root_cause": _public(root),
        "root_cause_by": chosen_by,
        "other_failures": [_public(failure) for failure in failures if failure is not root],
        "glued_lines": glued,
        "closing_signals": [{"pid": pid, "signal": name} for pid, name in closing],
        "unnamed_errors": [error for _, error, _ in unnamed],
        "errors_by_rank": {f"{role}{number}": error for (role, number), (error, _) in printed.items()},
    }


def _logical_lines(text: str) -> tuple[list[_Line], int]:
    """Lines by writer: outer launcher prefixes removed, tee prefixes read, glued lines split; and how many were."""
    raw = without_outer_prefixes(text.split("\n"))
    # Only what stands at the start of some line is a prefix; the same text elsewhere may be data.
    roles = {match[1] for line in raw if (match := _PREFIX.match(line))} | {"rank"}
    lines: list[_Line] = []
    glued = 0
    for line in raw:
        starts = [m.start() for m in _PREFIX.finditer(line) if m[1] in roles]
        while starts and not line[: starts[0]].strip():
            # Prefixes that follow one another at the start belong to one writer: [default1]:[rank1]: text
            match = _PREFIX.match(line, starts.pop(0))
            while match and starts and starts[0] == match.end():
                match = _PREFIX.match(line, starts.pop(0))
            break
        pieces = [line[a:b] for a, b in zip([0, *starts], [*starts, len(line)])]
        glued += len(pieces) > 1
        lines += [_read_prefixes(piece, roles) for piece in pieces]
    return lines, glued


def _read_prefixes(text: str, roles: set[str]) -> _Line:
    line = _Line(text=text)
    while (match := _PREFIX.match(line.text)) and match[1] in roles:
        if match[1] == "rank":
            line.rank = int(match[2])
        else:
            line.role, line.number = match[1], int(match[2])
        line.text = line.text[match.end() :]
    return line


def _printed_errors(lines: list[_Line]) -> dict[tuple[str, int], tuple[str, str]]:
    """Writer -> (error line, traceback) of the last Python traceback it printed; ("rank", n) or (role, n)."""
    by_writer: dict[tuple[str, int], list[str]] = {}
    for line in lines:
        if line.rank is not None:
            by_writer.setdefault(("rank", line.rank), []).append(line.text)
        elif line.role is not None and line.number is not None:
            by_writer.setdefault((line.role, line.number), []).append(line.text)
    found: dict[tuple[str, int], tuple[str, str]] = {}
    for writer, texts in by_writer.items():
        error = _last_error(texts)
        if error is not None:
            found[writer] = error
    return found


def _last_error(texts: list[str]) -> tuple[str, str] | None:
    """(exception line, traceback) of the last traceback in some lines."""
    starts = [i for i, text in enumerate(texts) if _TRACEBACK.match(text)]
    if not starts:
        return None
    indent = len(texts[starts[-1]]) - len(texts[starts[-1]].lstrip())
    for end in range(starts[-1] + 1, len(texts)):
        text = texts[end][indent:] if not texts[end][:indent].strip() else texts[end]
        text = _GROUP_BAR.sub("", text)
        if _EXCEPTION.match(text):
            return text.strip(), "\n".join(texts[starts[0] : end + 1])
    return None


def _failure_blocks(lines: list[_Line]) -> list[_Failure]:
    """The numbered blocks of torchrun's ChildFailedError reports."""
    failures: list[_Failure] = []
    in_report, in_root = False, False
    current: _Failure | None = None
    for line in lines:
        text = line.text
        heading = text.strip()
        if re.match(r"^Root Cause\b.*:$", heading):
            in_report, in_root, current = True, True, None
        elif re.match(r"^(?:Other )?Failures:$", heading):
            in_report, in_root, current = True, False, None
        elif in_report and _BLOCK.match(text):
            current = _Failure(is_root_block=in_root)
            failures.append(current)
        elif _RULE.match(text):
            current = None
        elif current is not None:
            match = _FIELD.match(text) if not current.lines else None
            if match and match[1] in ("traceback", "msg"):
                current.lines.append(match[2])
            elif match:
                current.fields[match[1]] = match[2].strip()
            elif current.lines:
                current.lines.append(text[2:] if text.startswith("  ") else text)  # the report indents by two
    return [failure for failure in failures if failure.fields]


def _failure(**known: Any) -> dict[str, Any]:
    keys = ("rank", "local_rank", "exitcode", "signal", "pid", "host", "time", "error", "error_file", "traceback")
    return dict.fromkeys(keys) | {"is_root_block": False} | known


def _public(failure: dict[str, Any] | None) -> dict[str, Any] | None:
    return None if failure is None else {key: value for key, value in failure.items() if key != "is_root_block"}


def _integer(text: str, pattern: str) -> int | None:
    match = re.search(pattern, text)
    return int(match[1]) if match else None


def _signal_name(exitcode: int | None) -> str | None:
    if exitcode is None or exitcode >= 0:
        return None
    try:
        return signal.Signals(-exitcode).name
    except ValueError:
        return f"signal {-exitcode}"


def _describe(failure: _Failure, printed: dict[tuple[str, int], tuple[str, str]]) -> dict[str, Any]:
    fields = failure.fields
    rank = _integer(fields.get("rank", ""), r"^(\d{1,6})")
    local = _integer(fields.get("rank", ""), r"local_rank: (\d{1,6})")
    exitcode = _integer(fields.get("exitcode", ""), r"^(-?\d{1,6})")
    named = re.search(r"\((SIG\w+)\)", fields.get("exitcode", ""))
    lines = failure.lines
    found = _last_error(lines)
    error, trace = found if found else (" ".join(line.strip() for line in lines).strip(' "') or None, None)
    if error is None or error.startswith((_NO_TRACEBACK, "<N/A>", "Process failed")):
        error, trace = _of_writer(printed, rank, local) or (None, None)
    file = fields.get("error_file", "<N/A>")
    return _failure(
        is_root_block=failure.is_root_block,
        rank=rank,
        local_rank=local,
        exitcode=exitcode,
        signal=named[1] if named else _signal_name(exitcode),
        pid=_integer(fields.get("exitcode", ""), r"pid: (\d{1,9})"),
        host=fields.get("host"),
        time=fields.get("time"),
        error=error,
        error_file=None if file in ("<N/A>", "") else file,
        traceback=trace,
    )


def _of_writer(
    printed: dict[tuple[str, int], tuple[str, str]], rank: int | None, local: int | None
) -> tuple[str, str] | None:
    for (role, number), error in printed.items():
        if (role == "rank" and number == rank) or (role != "rank" and number == local):
            return error
    return None


def _from_agent(exitcode: int, local: int, pid: int, printed: dict[tuple[str, int], tuple[str, str]]) -> dict:
    """A failure the agent logged, in a log that ends before torchrun's report; the global rank is not in it."""
    error, trace = _of_writer(printed, None, local) or (None, None)
    return _failure(
        local_rank=local, exitcode=exitcode, signal=_signal_name(exitcode), pid=pid, error=error, traceback=trace
    )


def _root_cause(
    failures: list[dict[str, Any]], closed_pids: set[int], agent_pids: set[int]
) -> tuple[dict[str, Any] | None, str | None]:
    """The failure that came first and was nobody's victim.

    torchrun names the earliest one, but its times are whole seconds and, without error files, the time it noticed. So a
    process that the agent itself stopped, or that only lost its peers, yields to one with a reason of its own.
    """
    if not failures:
        return None, None
    named = [failure for failure in failures if failure["is_root_block"]]
    if len(named) > 1:  # several nodes report: each named its own first failure
        named = sorted(named, key=lambda failure: failure["time"] or "")
    chosen = named[0] if named else failures[0]
    order = sorted(failures, key=lambda failure: (failure is not chosen, failure["time"] or ""))

    def victim(failure: dict[str, Any]) -> int:
        error = failure["error"] or ""
        stopped = failure["signal"] in ("SIGTERM", "SIGINT") or failure["pid"] in closed_pids - agent_pids
        if stopped and (not error or _GOT_SIGNAL.search(error)):
            return 2
        return int(bool(PEER_LOST.search(error)))

    best = min(order, key=victim)
    if best is chosen:
        return best, "named by torchrun" if named else "first failure the agent saw"
    why = "was stopped by the agent" if victim(chosen) == 2 else "only lost a peer"
    return best, f"not rank {chosen['rank']}, which {why}"


def _launcher_failure(lines: list[_Line]) -> dict[str, Any] | None:
    """An error of torchrun itself: rendezvous, port, a signal from outside."""
    for line in reversed(lines):
        of_launcher = line.role is None and line.rank is None and LAUNCHER_ERROR.match(line.text)
        if of_launcher and "ChildFailedError" not in line.text:
            code = _integer(line.text, r"CalledProcessError: .* exit status (\d{1,3})\.")
            return _failure(error=line.text.strip(), exitcode=code)
    return None

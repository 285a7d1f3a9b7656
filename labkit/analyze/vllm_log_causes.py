"""Why a vLLM server did not start, or died: the first error of its log that is no consequence of another."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from labkit.analyze.vllm_log_lines import Line

MAX_CHARS = 300
_EXCEPTION = re.compile(
    r"^((?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Exit|Interrupt|Refused|Timeout|Expired)"
    r"|(?:[A-Za-z_]\w*\.)*(?:exc|exceptions|errors?)\.[A-Z]\w*)(?:: (.*))?$")
_NO_EXCEPTION = re.compile(  # a wrong argument, a crash in native code, and what the system or Docker says
    r"^(?:(?:[\w./-]+ )*[\w./-]+: error: .+|Fatal Python error: .+|what\(\):\s+(?P<what>.+)|.*\bSegmentation fault\b.*"
    r"|Bus error\b.*|Killed|Failed: Cuda error .+|docker: Error response from daemon: .+|.*: command not found)$")
_TELLS = re.compile(
    r"rror|xception|Exit|Interrupt|Refused|Timeout|Expired|\bexc\.|what\(\)|fault|Killed|not found|failed|root cause"
    r"|died|dead|memory|already|seq")
"""In every line with a cause, and in few others."""
_KNOWN = (
    (re.compile(r"\b(CUDA|HIP|XPU|NPU|MPS)(?: error:| backend)? out of memory", re.IGNORECASE),
     lambda found: f"{found[1].upper()} out of memory"),
    (re.compile(r"address already in use", re.IGNORECASE), lambda _: "address already in use"),
    (re.compile(r"No available memory for the cache blocks"), lambda _: "no memory left for the KV cache"),
    (re.compile(r"max(?:imum)? seq(?:uence)? len\w* \(?\d+.*KV cache", re.IGNORECASE),
     lambda found: found.string.split(": ", 1)[-1]),
)
_CONSEQUENCES = ("Engine core initialization failed", "See root cause above", "Engine process failed to start",
                 "EngineCore failed to start", "EngineDeadError", "WorkerProc initialization failed",
                 "is already dead", "See stack trace for the root cause")
"""What a process says when another one has failed: never the cause."""
_OF_AN_END = re.compile(
    r"^(?:RuntimeError: cancelled|asyncio\.exceptions\.CancelledError|KeyboardInterrupt|SystemExit)"
    r"|^\S*ChildFailedError|(?:Worker|Engine core|RayWorker)\s?[Pp]roc .*died unexpectedly")
"""What stands in a log because processes end: the cause only where there is no other."""
_REPEATS = "please check the stack trace above for the root cause"
"""In an error that says another one's message once more: the cause only where that one was cut off."""
_LOOK_UPS = ("KeyError", "AttributeError", "IndexError", "StopIteration")
"""Errors that code catches to raise one that says what is wrong."""
_HANDLING = "During handling of the above exception, another exception occurred"
_DEATH = re.compile(
    r"encountered a fatal error|hit an exception|died unexpectedly|EngineDeadError|Engine background task failed"
    r"|Engine loop (?:is dead|has died)|Background loop has errored|Engine process \(pid \d+\) died|is already dead")
_LOOK_BACK = 300
"""Lines before the first that says an engine died, in which its error may stand: the first engine wrote it before."""


@dataclass(frozen=True, slots=True)
class Failure:
    """What a log says of a failure."""

    cause: str | None
    """The first error that is no consequence of another; None where the log names none."""
    seen: bool
    """Something failed, whether or not the log says why."""


def find_failure(lines: Sequence[Line]) -> Failure:
    """The first cause in some lines."""
    weak, seen = None, False
    for number, line in enumerate(lines):
        if not _TELLS.search(line.text):
            continue
        if any(words in line.text for words in _CONSEQUENCES):
            seen = True
            continue
        if _OF_AN_END.search(line.text):
            weak = weak or line.text[:MAX_CHARS]
        elif (cause := _cause(line, lines[number + 1 : number + 4])) is not None:
            if _REPEATS not in line.text and not _was_handled(cause, lines[number + 1 : number + 4]):
                return Failure(cause, True)
            weak = weak or cause
    return Failure(weak, seen or weak is not None)


def find_death(lines: Sequence[Line]) -> str | None:
    """Why a server that had been ready died; None for one that did not, however many requests failed."""
    first = next((number for number, line in enumerate(lines) if _DEATH.search(line.text)), None)
    if first is None:
        return None
    cause = find_failure(lines[first:]).cause or find_failure(lines[max(0, first - _LOOK_BACK) : first]).cause
    return cause or lines[first].text[:MAX_CHARS]


def _was_handled(cause: str, after: Sequence[Line]) -> bool:
    return cause.startswith(_LOOK_UPS) and any(_HANDLING in line.text for line in after)


def _cause(line: Line, after: Sequence[Line]) -> str | None:
    """The cause that a line names; `after` are the next lines, which say what pydantic found wrong."""
    text = line.text
    if line.level not in (None, "ERROR", "CRITICAL"):  # a warning, or a prompt that speaks of errors
        return None
    match = _EXCEPTION.match(text)
    if match is not None or line.level is not None or "rror" in text:
        for pattern, name in _KNOWN:
            if known := pattern.search(text):
                return name(known)
    if match is None:
        other = _NO_EXCEPTION.match(text)
        return (other["what"] or text)[:MAX_CHARS] if other else None
    return (text + _invalid(after) if "validation error" in text else text)[:MAX_CHARS]


def _invalid(after: Sequence[Line]) -> str:
    """What a pydantic error is about: a line of its own for the field, unless it is of the whole, then the reason."""
    texts = [line.text for line in after]
    if texts and texts[0].startswith("Value error"):
        return f": {texts[0]}"
    return f": {texts[0]}: {texts[1]}" if len(texts) > 1 and "[type=" in texts[1] else ""

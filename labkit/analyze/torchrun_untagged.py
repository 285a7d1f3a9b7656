"""Lines of a job's output whose writer nobody named: prefixes of what carried the log, and tracebacks without a rank.

torchrun passes its workers' output through as it is (without `--tee`), so the only traceback in a log may belong to no
named rank; and clusters put a prefix of their own before every line.
"""

from __future__ import annotations

import re

from labkit.analyze.log_carriers import CLOCK, MPIRUN, POD, PROCESS, SERVICE, TASK

_OUTER_PREFIXES = tuple(re.compile(pattern) for pattern in (
    r"^>(?: |$)",
    *(rf"^{form}(?: |$)" for form in (CLOCK, POD, PROCESS, SERVICE)),
    rf"^{TASK} ?",
    rf"^{MPIRUN} ?",
    r"^(?:[a-z][\w-]*\d[\w.-]*|\d{1,3}(?:\.\d{1,3}){3}): ?",
))  # fmt: skip
"""A quotation, a container's clock, kubectl, Ray, docker compose, srun -l, mpirun, pdsh (a host with a number)."""
AGENT_FAILED = re.compile(r"failed \(exitcode: (-?\d{1,6})\) local_rank: (\d{1,6}) \(pid: (\d{1,9})\)")
LAUNCHER_ERROR = re.compile(
    r"^(?:torch\.distributed\.[\w.]*(?:Error|Exception)"
    r"|[\w.]*(?:SignalException|RendezvousTimeoutError|DistNetworkError|CalledProcessError))\b"
    r"|^torchrun: error: "
)
# What a rank says when another one went away: it is a victim, though it ended with an exception of its own.
PEER_LOST = re.compile(
    r"connection closed by peer|connection reset by peer|broken pipe|remote process exited|communicator was aborted"
    r"|watchdog (?:caught|got)|socket timeout|connection refused|timed out waiting for clients|nccl.*remote",
    re.IGNORECASE,
)
_AGENTS_OWN = re.compile(
    r"^(?:[WEIF]\d{4} |(?:WARNING|ERROR|INFO):torch\.distributed|\[\d{4}-\d\d-\d\d |Traceback|\s)")
# What a scheduler, a shell or the launcher says of a job whose ranks say nothing.
_FROM_OUTSIDE = re.compile(
    r"oom_kill event|Out Of Memory|\bCANCELLED (?:AT|DUE|BY)\b"
    r"|^srun: error: .*(?:Exited with exit code|Killed|Terminated)"
    r"|(?:Segmentation fault|Aborted|Bus error|Killed)(?: +\(core dumped\)|\s*$| +(?:torchrun|python))"
    r"|\bChildFailedError\b|exits with return code = -?[1-9]")
FINISHED = "finished"
_START = re.compile(r"(?:\^C)?Traceback \(most recent call last\)")
_ERROR = re.compile(r"^(?:[A-Za-z_]\w*\.)*[A-Z]\w*[a-z]\w*(?::(?: |$)|$)")
_NO_SCRIPT = re.compile(r": can't open file '.*': \[Errno \d+\] .*")
_CHAINED = ("The above exception was the direct cause", "During handling of the above exception")


def without_outer_prefixes(raw: list[str]) -> list[str]:
    """The lines without a prefix that nearly all of them have; one of each form is taken off, in any order."""
    left = list(_OUTER_PREFIXES)
    while (outer := next((pattern for pattern in left if _is_everywhere(pattern, raw)), None)) is not None:
        left.remove(outer)
        raw = [outer.sub("", line, count=1) for line in raw]
    return raw


def _is_everywhere(pattern: re.Pattern[str], raw: list[str]) -> bool:
    filled = [line for line in raw if line.strip()]
    return len(filled) > 3 and sum(bool(pattern.match(line)) for line in filled) >= 0.9 * len(filled)


def untagged_errors(texts: list[str | None]) -> list[tuple[int, str, str]]:
    """Ends of the tracebacks in some lines, which several processes may have written at once.

    Args:
        texts: lines; None stands for one whose writer is known.

    Returns: (index of the line, the exception's line, traceback up to it); of chained exceptions the last.
    """
    found: list[tuple[int, str, str]] = []
    start, num_open, is_chained = 0, 0, False
    for at, text in enumerate(texts):
        if text is None:
            continue
        if _START.match(text):
            start = start if num_open or is_chained else at
            num_open, is_chained = num_open + 1, False
        elif found and text.startswith(_CHAINED):
            found, is_chained = found[:-1], True
        elif num_open and _ERROR.match(text):
            num_open -= 1
            found.append((at, text.strip(), "\n".join(line for line in texts[start : at + 1] if line is not None)))
        elif _NO_SCRIPT.search(text):
            found.append((at, text.strip(), ""))
    return found


def unnamed_errors(texts: list[str], is_untagged: list[bool]) -> list[tuple[int, str, str]]:
    """(index, exception line, traceback) of the last attempt's untagged tracebacks, each exception once.

    Those of torchrun itself are left out, and those of ranks that lost a peer where another reason stands beside them.
    """
    known = [text if free else None for text, free in zip(texts, is_untagged)]
    found = [one for one in untagged_errors(known) if not LAUNCHER_ERROR.match(one[1])]
    attempts = [i for i, text in enumerate(texts) if AGENT_FAILED.search(text)]
    if len(attempts) > 1:
        found = [one for one in found if one[0] > attempts[-2]] or found
    found = [one for one in found if not PEER_LOST.search(one[1])] or found
    return list({error: (at, error, trace) for at, error, trace in reversed(found)}.values())[::-1]


def end_after_restart(texts: list[str]) -> str | None:
    """How a job went on after the failure that the agent saw last: None if nothing shows that it did."""
    last = max((i for i, text in enumerate(texts) if AGENT_FAILED.search(text)), default=len(texts))
    after = [text for text in texts[last + 1 :] if text.strip()]
    if any(re.search(r"worker group successfully finished", text) for text in after):
        return FINISHED
    if any(LAUNCHER_ERROR.match(text) for text in after):
        return None
    output = [text for text in after if not _AGENTS_OWN.match(text) and not _ERROR.match(text)]
    return "an attempt failed and output follows: how the job ended is not in the log" if output else None


def outside_failure(texts: list[str]) -> str | None:
    """The first line in which something outside the ranks says that the job failed."""
    return next((text.strip()[:300] for text in texts if _FROM_OUTSIDE.search(text)), None)

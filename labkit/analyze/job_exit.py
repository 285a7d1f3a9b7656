"""How a distributed job ended: exit code, what its log complains of, and whether the results were there all the same.

In: the folder of one launch (`rank<k>.jsonl`, `log.txt`) and how it ended. Out: one plain object.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

COMPLAINTS = {
    "group not destroyed": r"destroy_process_group\(\) was not called|process group has NOT been destroyed",
    "peer gone": r"connection closed by peer|connection reset by peer|remote process exited",
    "proxy error": r"NCCL WARN.*proxy|proxy.*\b(?:close|error|fail)",
    "watchdog timeout": r"watchdog.*(?:timeout|timed out|caught)",
    "NCCL warning": r"NCCL WARN",
    "leaked object": r"leaked (?:semaphore|shared_memory)",
}
"""Short fixed text -> pattern in a log line, upper and lower case alike."""


def complaints(text: str) -> list[str]:
    """Which of `COMPLAINTS` a log makes, in their order.

    >>> complaints("[rank0]: RuntimeError: Connection closed by peer [127.0.0.1]:1")
    ['peer gone']
    """
    return [name for name, pattern in COMPLAINTS.items() if re.search(pattern, text, re.IGNORECASE)]


def job_exit(folder: Path, *, exitcode: int | None, error: str = "", ended: Sequence[str] = (),
             shm_removed: Sequence[str] = ()) -> dict[str, Any]:
    """One launch.

    Args:
        folder: of the launch.
        exitcode: 0, or that of the rank that failed first.
        error: one line, for a launch that failed; cut to 200 characters.
        ended: processes that had to be ended after it.
        shm_removed: shared-memory files that had to be removed after it.

    Returns: {"exitcode", "is_clean" (exit 0, nothing in the log, nothing left), "results_written" (ranks whose result
        row is whole), "complaints", "error", "left": names of processes and shared-memory files}.
    """
    log = folder / "log.txt"
    found = complaints(log.read_text(encoding="utf-8", errors="replace")) if log.is_file() else []
    left = [*ended, *shm_removed]
    return {"exitcode": exitcode, "is_clean": exitcode == 0 and not found and not left,
            "results_written": _results_written(folder), "complaints": found, "error": error[:200], "left": left}


def _results_written(folder: Path) -> int:
    """Ranks that wrote a whole result row."""
    count = 0
    for path in folder.glob("rank*.jsonl"):
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                row = json.loads(line)
            except ValueError:
                continue
            if isinstance(row, dict) and row.get("kind") in ("result", "end"):
                count += 1
                break
    return count

"""What launchers and collectors put around a program's lines: forms that the readers of logs share.

Each form is a piece of a regular expression, without an anchor and without what has to follow it: how sure a reader
must be that a line was carried, and how often it looks, is for the reader to say.
"""

from __future__ import annotations

import json
from typing import Any

CLOCK = r"\[?\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?\]?"
"""`kubectl logs --timestamps`, dated loggers."""
STREAM = r"std(?:out|err) [FP]"
"""Behind the clock in a container runtime's own files."""
PROCESS = r"\([^()]*\bpid=\d+[^()]*\)"
"""Ray, SkyPilot, vLLM: (head, rank=0, pid=7), (EngineCore_DP0 pid=9)."""
POD = r"\[pod/[^\]\s]+\]"
"""`kubectl logs --prefix`."""
SERVICE = r"[\w.-]+\s+\|"
"""docker compose."""
MPIRUN = r"\[(?:[^\]\s]+[:@])?\d+,\d+\](?:<std(?:out|err|diag)>)?:"
"""`mpirun --tag-output`; newer ones put the host in front of the rank."""
TASK = r"\s{0,6}\d{1,5}:"
"""`srun --label`."""
TEXT_KEYS = ("log", "message", "msg", "MESSAGE", "textPayload", "line")
"""Where loggers that write one JSON object a line put the program's text."""


def json_record(line: str) -> dict[str, Any] | None:
    """The JSON object that a line is, if it carries a text.

    >>> json_record('{"log": "step 1", "stream": "stdout"}')["log"], json_record('{"loss": 1}'), json_record("step 1")
    ('step 1', None, None)
    """
    if not line.lstrip().startswith("{"):
        return None
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and carried_texts(found) else None


def carried_texts(record: dict[str, Any]) -> list[str]:
    """The texts under a record's TEXT_KEYS, in their order."""
    return [record[key] for key in TEXT_KEYS if isinstance(record.get(key), str) and record[key]]

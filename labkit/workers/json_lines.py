"""The JSON-lines file of one process: every line is on disk before the next measurement starts."""

from __future__ import annotations

import json
from typing import Any, TextIO

MUST_BE_ZERO = ("num_bad", "unwritten", "guards_touched", "input_changed", "bits_changed", "rows_wrong")
"""Counts of wrong things that a check of a kernel can report."""


class JsonLines:
    """Writes lines with a `kind` and remembers what was found wrong."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.failed: list[str] = []

    def write(self, kind: str, **values: Any) -> None:
        """Append one line; NaN and infinity are refused."""
        self.stream.write(json.dumps({"kind": kind, **values}, allow_nan=False) + "\n")
        self.stream.flush()

    def refuse(self, what: str, error: BaseException, **values: Any) -> None:
        """Record that one thing could not be measured, and go on."""
        first = (str(error).strip().splitlines() or [""])[0][:300]
        self.write("refusal", what=what, error=f"{type(error).__name__}: {first}", **values)

    def judge(self, kind: str, num_bad: int, **values: Any) -> None:
        """Write a check; more than zero wrong elements is remembered."""
        self.write(kind, num_bad=num_bad, **values)
        if num_bad:
            self.failed.append(f"{kind} {values}: {num_bad} wrong")

    def judge_counts(self, kind: str, what: str, seen: dict[str, Any], **values: Any) -> None:
        """Write a check of several things, with its verdict, and remember it when a count of MUST_BE_ZERO is not."""
        wrong = {name: seen[name] for name in MUST_BE_ZERO if seen.get(name)}
        self.write(kind, what=what, passed=not wrong, **seen, **values)
        if wrong:
            self.failed.append(f"{kind} {what} {values}: {wrong}")

"""What text and JSON output of nccl-tests and rccl-tests have in common: names, numbers, and what a run is worth.

`nccl_tests_text` and `nccl_tests_json` read the files. Unknown is None: a size without a check is not "0 wrong", a
bandwidth of NaN is not a number, and one process that thinks it is alone is no collective.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

_PROGRAM = re.compile(r"(?:^|/)([a-z]\w*?)_perf(?:_mpi)?(?:\.exe)?$")
_OPS = {"alltoall": "all_to_all", "alltoallv": "all_to_all_v", "sendrecv": "send_recv"}
_WORDS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
SIDES = ("out_of_place", "in_place")


def operation(program: str | None) -> str | None:
    """Collective that a program of nccl-tests runs; None for another program.

    >>> operation("./build/all_reduce_perf"), operation("alltoall_perf"), operation("python")
    ('all_reduce', 'all_to_all', None)
    """
    found = _PROGRAM.search(program or "")
    return _OPS.get(found[1], found[1]) if found else None


def number(text: Any) -> float | None:
    """A finite number from a cell or JSON value; None for N/A, nan, inf, blanks and null.

    >>> number("27.29"), number("N/A"), number("-nan"), number(1)
    (27.29, None, None, 1.0)
    """
    if isinstance(text, bool) or not isinstance(text, str | int | float):
        return None
    try:
        value = float(text)
    except (ValueError, OverflowError):
        return None
    return value if math.isfinite(value) else None


def count(text: Any) -> int | None:
    """A whole number, also as `%g` prints it; None where there is none.

    >>> count("1e+06"), count("     -1"), count("N/A")
    (1000000, -1, None)
    """
    value = number(text)
    return None if value is None else round(value)


def version_text(code: int | None) -> str | None:
    """NCCL's version number as people write it; three digits before 2.9, five since.

    >>> version_text(22807), version_text(2708)
    ('2.28.7', '2.7.8')
    """
    if not code or code < 1000:
        return None
    major, rest = divmod(code, 10000 if code >= 10000 else 1000)
    return f"{major}.{rest // 100}.{rest % 100}"


def in_words(amount: int) -> str:
    """A small number as a word."""
    return _WORDS[amount] if 0 <= amount < len(_WORDS) else str(amount)


def ranks_of(ranks: Sequence[int], groups: Sequence[int | None]) -> dict[str, Any]:
    """Ranks of one operation and of the job, and how many groups run at once, from the listed ranks.

    With NCCL_TESTS_SPLIT each group runs its own operation: ranks of an operation are those of one group, and the
    bandwidth of the machine is the printed one times the number of groups.

    Returns: {"nranks", "nranks_total", "groups", "aggregate_busbw_factor"}; nranks is None for groups of unequal size.
    """
    total = len(ranks)
    num_groups = len({group for group in groups if group is not None}) or 1
    even = total % num_groups == 0
    return {"nranks": total // num_groups if even else None, "nranks_total": total, "groups": num_groups,
            "aggregate_busbw_factor": num_groups}


def verdict(
    rows: Sequence[Mapping[str, Any]], *, oob: int | None, oob_ok: bool | None, bandwidth_check: str | None,
    validation: int | None, finished: bool
) -> dict[str, Any]:
    """Whether a table was checked, whether it passed, and how many of its rows say something.

    Args:
        rows: with `size` and the two sides.
        oob: the footer's count of values out of bounds; None without a footer.
        oob_ok: its word; None without one.
        bandwidth_check: "OK", "FAILED", or None where no limit was set.
        validation: iterations that were checked, from the header; 0 is `-c 0`, None if not told.
        finished: the footer is there.

    Returns: {"validated", "passed", "usable_rows"}; None where it is not known.
    """
    wrong = [row[side].get("wrong") for row in rows for side in SIDES if row.get(side)]
    deltas = [row[side].get("max_error") for row in rows for side in SIDES if row.get(side)]
    checked = any(value is not None for value in (*wrong, *deltas))
    validated = False if validation == 0 or (rows and not checked) else (True if checked else None)
    exceeded = any(row[side].get("exceeded") for row in rows for side in SIDES if row.get(side))
    failed = exceeded or any(wrong) or (oob or 0) > 0 or oob_ok is False or bandwidth_check == "FAILED"
    passed: bool | None = False if failed else None
    if not failed and validated and finished and oob is not None:
        passed = True
    return {"validated": validated, "passed": passed, "usable_rows": sum(bool(row["size"]) for row in rows)}

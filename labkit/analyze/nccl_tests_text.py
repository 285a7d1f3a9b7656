"""Text output of nccl-tests 1.x to 2.19.6 and of rccl-tests, as it comes: prefixed, interleaved, cut, repeated.

    python -m labkit analyze nccl_tests_text all_reduce.txt

The header line says what the columns are, so a version that adds a column is read like the others. Times are in us,
bandwidths in GB/s (1e9) and are never recomputed: with `-C 1` the time column is the CPU's and does not belong to them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from labkit.analyze.kinds import UnreadableInput
from labkit.analyze.nccl_tests import SIDES, count, in_words, number, operation, ranks_of, verdict, version_text
from labkit.analyze.nccl_tests_columns import CELL, Layout, guessed_layout, layout_of
from labkit.analyze.nccl_tests_lines import table_lines
from labkit.analyze.nccl_tests_reporter import csv_records, read_records

_LIBRARY_LINE = re.compile(
    r"[A-Za-z][\w.-]*:\d+:\d+ (?:\[\d+\] )?(?:N|R)CCL |\[\d{4}-\d\d-\d\d [\d:.]+\] [\w.-]+:\d+:\d+ ")
_CONFIG = re.compile(r"#?\s*nThreads?:? (\d+)\s+nGpus:? (\d+)\s+min[Bb]ytes:? (\d+)\s+max[Bb]ytes:? (\d+)")
_RANK = re.compile(
    r"#?\s*Rank\s+(\d+)(?:\s+Group\s+(\d+))?(?:\s+Pid\s+(\d+))?\s+on\s+(\S+)\s+device\s+(\d+)\s+\[([^\]]*)\]\s*(.*)")
_VERSION = re.compile(
    r"nccl-tests version (\S+?)(?: \(\S*\))?(?: nccl-headers=(\d+))?(?: nccl-library=(\d+))?\s*$")
_OOB = re.compile(r"#?\s*Out of bounds values\s*:\s*(\S+)\s*(OK|FAILED)?")
_AVERAGE = re.compile(r"#?\s*Avg bus bandwidth\s*:\s*(\S+)\s*(OK|FAILED)?")
_STARTS = re.compile(r"^\s*(\d+)\s+(\d+)\s+([A-Za-z]\w*)(?=\s|$)")
_FAILURE = re.compile(
    r"Test (?:NCCL |CUDA |MPI )?failure|Invalid number of GPUs|# error:|NCCL WARN|CUDA error|unhandled cuda error"
    r"|noticed that process|exited on signal|No such file or directory|command not found|error while loading shared",
    re.IGNORECASE)
@dataclass
class _Run:
    """One start of a program: its header, ranks, rows and footer."""

    config: dict[str, int] = field(default_factory=dict)
    op: str | None = None
    ranks: list[re.Match[str]] = field(default_factory=list)
    layout: Layout = field(default_factory=Layout)
    has_header: bool = False
    rows: list[list[str]] = field(default_factory=list)
    oob: tuple[int | None, str | None] = (None, None)
    average: tuple[float | None, str | None] | None = None
    num_average_lines: int = 0
    num_headers: int = 0


def parse_text(text: str) -> dict[str, Any]:
    """One log of nccl-tests or rccl-tests.

    Returns: `op` (None if not told), `nranks` in one operation, `nranks_total`, `groups`, `hosts`, `vendor`, `library`,
    versions, `columns`, `time_kind` ("device" or "cpu"), `rows` (size in bytes, count, type, redop, root, and for each
    of out_of_place and in_place: time_us, algbw and busbw in GB/s, wrong, and what else the version prints),
    `usable_rows` (size above 0), `oob`, `avg_busbw`, `bandwidth_check`, `validated`, `passed` (None: not known),
    `finished`, `runs` (programs started in this log), `usable` and `error`. Several programs one after the other are in
    `results`, each as above.

    Raises: UnreadableInput when there is neither a table nor a known failure.
    """
    lines = table_lines(text)
    if records := csv_records(lines):
        return read_records(records) | {"runs": 1}
    runs, facts = _collect(lines)
    failure = next((line.strip() for line in lines if _FAILURE.search(line) and " NCCL INFO " not in line), None)
    if not any(run.rows or run.has_header or run.config for run in runs):
        if failure is None:
            raise UnreadableInput("no table of nccl-tests found, expected a header line with size, algbw and busbw")
        return {"runs": 0, "rows": [], "usable_rows": 0, "usable": False, "passed": None, "finished": False,
                "error": failure[:200]}
    if alone := _independent(runs):
        why = f"{in_words(len(runs))} independent {alone}-rank runs: the binary was built without MPI"
        return {"runs": len(runs), "nranks_each": alone, "rows": [], "usable_rows": 0, "usable": False, "passed": None,
                **facts, "error": why}
    runs = [run for run in runs if run.rows or run.has_header or run.average] or runs
    answers = [_answer(run, facts, failure) for run in runs]
    if len(answers) == 1:
        return answers[0] | {"runs": 1}
    passed = [answer["passed"] for answer in answers]
    return {**answers[0], "runs": len(answers), "results": answers,
            "rows": [row | {"run": i} for i, answer in enumerate(answers) for row in answer["rows"]],
            "usable_rows": sum(answer["usable_rows"] for answer in answers),
            "usable": all(answer["usable"] for answer in answers),
            "op": answers[0]["op"] if len({answer["op"] for answer in answers}) == 1 else None,
            "avg_busbw": None, "finished": all(answer["finished"] for answer in answers),
            "passed": False if False in passed else (True if all(passed) else None),
            "error": next((answer["error"] for answer in answers if answer["error"]), None)}


def _collect(lines: list[str]) -> tuple[list[_Run], dict[str, Any]]:
    """Runs of a log and facts that stand outside of tables."""
    runs = [_Run()]
    facts: dict[str, Any] = {"vendor": None, "library": None, "nccl_tests_version": None, "nccl_version": None}
    open_row: list[str] | None = None
    op_before: str | None = None
    one_side = False
    for line in lines:
        run = runs[-1]
        if found := _CONFIG.match(line.strip()):
            if run.config:
                runs.append(run := _Run())
            numbers = dict(re.findall(r"(warmup iters|agg iters|iters|validation|graph):? (\d+)", line))
            run.config = {"nthreads": int(found[1]), "ngpus": int(found[2]), "min_bytes": int(found[3]),
                          "max_bytes": int(found[4]), **{key.replace(" ", "_"): int(v) for key, v in numbers.items()}}
            run.op = run.op or op_before
            op_before = None
            continue
        if found := re.search(r"Collective test starting: (\S+)", line):
            op_before = operation(found[1])
            continue
        if found := _RANK.match(line.strip()):
            _unfinished(runs).ranks.append(found)
            continue
        _note_version(line, facts)
        if found := _OOB.search(line):
            run.oob = count(found[1]), found[2]
            open_row = None
            continue
        if found := _AVERAGE.search(line):
            run.average = number(found[1]), found[2]
            run.num_average_lines += 1
            continue
        if "in-place" in line and "busbw" not in line:
            one_side = "out-of-place" not in line
        if layout := layout_of(line):
            run = _unfinished(runs)
            layout.sides = ("in_place",) if one_side and layout.num_sides == 1 else SIDES
            one_side = False
            run.layout, run.has_header = layout, True
            run.num_headers += 1
            continue
        open_row = _row_cells(line, run, open_row)
    if op_before and runs[-1].op is None:
        runs[-1].op = op_before
    return runs, facts


def _unfinished(runs: list[_Run]) -> _Run:
    """The last run, or a new one if all have their footer: a table without a line of settings is one of its own."""
    if all(run.average is not None for run in runs):
        runs.append(_Run())
    return runs[-1]


def _note_version(line: str, facts: dict[str, Any]) -> None:
    if found := _VERSION.search(line):
        facts |= {"library": "nccl", "vendor": "nvidia", "nccl_tests_version": found[1],
                  "nccl_version": version_text(count(found[3]) or count(found[2]))}
    elif found := re.search(r"rccl-tests: Version (\S*)", line):
        facts |= {"library": "rccl", "vendor": "amd", "rccl_tests_version": found[1] or None}
    elif found := re.match(r"(?:.*NCCL INFO )?\s*(RCCL|HIP|ROCm) version\s*: (\S+)", line):
        facts |= {"library": "rccl", "vendor": "amd", f"{found[1].lower()}_version": found[2]}
    elif (found := re.search(r"\bNCCL version (\d+\.\d+\.\d+)", line)) and facts["library"] is None:
        facts |= {"library": "nccl", "vendor": "nvidia", "nccl_version": found[1]}


def _row_cells(line: str, run: _Run, open_row: list[str] | None) -> list[str] | None:
    """Add what a line holds of a table row; the row goes on in a later line if something else was printed inside it."""
    if line.lstrip().startswith("#"):
        return open_row
    if (inside := _LIBRARY_LINE.search(line)) is not None:
        line = line[: inside.start()]
    line = line.split("#", 1)[0]  # a summary printed inside a row
    starts = _STARTS.match(line)
    cells = line.split()
    if starts is None:
        if open_row is None or not cells or not all(CELL.match(cell) for cell in cells):
            return open_row
        open_row += cells
    else:
        if not run.has_header:
            run.layout = guessed_layout(cells)
        if re.search(r"\S {26,}(?=\S)", line[starts.end() :]) and len(cells) < run.layout.num_cells:
            lead = len(run.layout.leading)  # out of place was not run: its columns are blank
            cells = cells[:lead] + ["N/A"] * len(run.layout.side) + cells[lead:]
        open_row = cells
        run.rows.append(open_row)
    return None if len(open_row) >= run.layout.num_cells else open_row


def _independent(runs: list[_Run]) -> int | None:
    """Ranks of each run if several processes ran alone at once (two "Rank 0"): no collective at all."""
    listed = sum(len(run.ranks) for run in runs)
    if len(runs) < 2 or listed == 0 or listed % len(runs):
        return None
    each = listed // len(runs)
    numbers = sorted(int(found[1]) for run in runs for found in run.ranks)
    if numbers != sorted(list(range(each)) * len(runs)):
        return None
    # One after the other, each with its own ranks, table and footer, is a log of several tests. But the same test
    # on one rank each, from several processes, is what mpirun starts when the binary knows no MPI.
    in_order = all(len(run.ranks) == each and run.average is not None for run in runs)
    same = all(run.config == runs[0].config for run in runs) and len({_process(run) for run in runs}) > 1
    return each if not in_order or (each == 1 and same) else None


def _process(run: _Run) -> tuple[Any, ...]:
    return tuple((found[3], found[4]) for found in run.ranks)


def _answer(run: _Run, facts: dict[str, Any], failure: str | None) -> dict[str, Any]:
    layout = run.layout
    rows = [_row(cells, layout) for cells in run.rows]
    finished = run.average is not None
    oob, word = run.oob
    average, bandwidth_check = run.average or (None, None)
    numbers, groups = [int(found[1]) for found in run.ranks], [count(found[2]) for found in run.ranks]
    if not _all_ranks(run, rows):
        numbers = []
    is_amd = any("AMD" in found[7] or "Instinct" in found[7] for found in run.ranks)
    answer: dict[str, Any] = {
        "op": run.op, **facts,
        **(ranks_of(numbers, groups) if numbers else {"nranks": None, "nranks_total": None, "groups": None}),
        "hosts": len({found[4] for found in run.ranks}) or None,
        "devices": sorted({found[7].strip() for found in run.ranks}),
        "config": run.config, "columns": layout.num_cells, "time_kind": "cpu" if layout.is_cpu_time else "device",
        "rows": rows, "oob": oob, "avg_busbw": average, "bandwidth_check": bandwidth_check, "finished": finished,
        "tables": max(1, run.num_headers),
        **verdict(rows, oob=oob, oob_ok=None if word is None else word == "OK", bandwidth_check=bandwidth_check,
                  validation=run.config.get("validation"), finished=finished),
    }
    if run.ranks and answer["vendor"] is None:
        answer |= {"vendor": "amd", "library": "rccl"} if is_amd else {"vendor": "nvidia", "library": "nccl"}
    answer["incomplete_rows"] = sum(len(cells) < layout.num_cells for cells in run.rows)
    if layout.is_cpu_time:
        speeds = [(row["size"], row["out_of_place"].get("algbw")) for row in rows if row["out_of_place"]]
        implied = [size / speed / 1e3 for size, speed in speeds if size and speed]
        answer["implied_time_us_from_algbw"] = round(implied[-1], 3) if implied else None
    if failure and finished and answer["passed"] is not False:
        answer["warnings"], failure = [failure[:200]], None
    answer["error"] = failure[:200] if failure else (
        None if finished else "no footer: the program did not finish, or its output was cut")
    if answer["nranks_total"] == 1:
        answer["error"] = answer["error"] or "one rank: nothing crosses a link, bus bandwidth is 0 by definition"
    answer["usable"] = answer["usable_rows"] > 0 and answer["passed"] is not False and answer["nranks_total"] != 1
    return answer


def _all_ranks(run: _Run, rows: list[dict[str, Any]]) -> bool:
    """Whether every rank of the run is listed: pasted text often keeps the last of them, or the first."""
    numbers = {int(found[1]) for found in run.ranks}
    per_process = run.config.get("ngpus", 1) * run.config.get("nthreads", 1)
    speeds = [row[side].get("busbw") for row in rows for side in SIDES if row[side]]
    alone = len(numbers) == 1 and any(speeds)  # bus bandwidth of one rank is 0
    return numbers == set(range(len(numbers))) and len(numbers) >= per_process and not alone


def _row(cells: list[str], layout: Layout) -> dict[str, Any]:
    lead, width = len(layout.leading), len(layout.side)
    row: dict[str, Any] = {"size": None, "count": None, "type": None, "redop": None, "root": None}
    for name, cell in zip(layout.leading, cells):
        row[name] = cell if name in ("type", "redop") else count(cell)
    for i, side in enumerate(layout.sides[: layout.num_sides]):
        found = cells[lead + i * width : lead + (i + 1) * width]
        row[side] = _side(dict(zip(layout.side, found)), layout) if found and not _is_blank(found) else None
    for side in SIDES:
        row.setdefault(side, None)
    after = cells[layout.num_cells :]
    for name, cell in zip(layout.after, after):
        row[name] = count(cell) if name == "num_channels" else None if _is_blank([cell]) else cell
    if len(after) >= 2 and re.fullmatch(r"\d{4}-\d\d-\d\d", after[0]):
        row["timestamp"] = " ".join(after[:2])
    return row


def _is_blank(cells: list[str]) -> bool:
    return all(cell.upper() in ("N/A", "NA") for cell in cells)


def _side(cells: dict[str, str], layout: Layout) -> dict[str, Any]:
    time_us = number(cells.get("time"))
    time_us = None if time_us is None else time_us * layout.time_scale
    side: dict[str, Any] = {"time_us": None if layout.is_cpu_time else time_us, "algbw": number(cells.get("algbw")),
                            "busbw": number(cells.get("busbw")), "wrong": count(cells.get("wrong"))}
    if layout.is_cpu_time:
        side["cpu_time_us"] = time_us
    for name, cell in cells.items():
        if name not in ("time", "algbw", "busbw", "wrong"):
            side[name] = count(cell) if name == "bitdiff" else number(cell.rstrip("*"))
            if cell.endswith("*"):
                side["exceeded"] = True  # rccl-tests marks an error above its limit
    return side

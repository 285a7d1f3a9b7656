"""Cells that a program of nccl-tests measured instead of our worker.

In: its JSON or text output. Out: a `Cell` like the worker's, with the out-of-place side only, as the report uses it.
The program tells one mean a size: a process is then one sample.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from labkit.analyze.collective_files import Cell
from labkit.analyze.kinds import UnreadableInput
from labkit.analyze.nccl_tests_json import parse_json, without_secrets
from labkit.analyze.nccl_tests_text import parse_text
from labkit.records import write_atomic

SIDE = "out_of_place"


def split_plan(planned: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """(cells for the worker, cells for the program): the program takes every timed all-reduce.

    The library's own choice is then two cells: all_reduce by the program, the other collectives by the worker. Sizes
    off the grid (the large ones) are left out.
    """
    own, program = [], []
    for cell in planned:
        if cell["kind"] != "times" or cell["num_samples"] == 0 or "all_reduce" not in cell["sizes"]:
            own.append(cell)
            continue
        others = {name: sizes for name, sizes in cell["sizes"].items() if name != "all_reduce"}
        if others:
            process, _, case = cell["name"].partition("-")
            own.append({**cell, "name": f"{process}o-{case}", "sizes": others})
        program.append({**cell, "sizes": {"all_reduce": _grid(cell["sizes"]["all_reduce"])}})
    return own, program


def _grid(sizes: list[int]) -> list[int]:
    """The first sizes that stand in one ratio: a program takes a first, a last and a factor."""
    kept = sizes[:2]
    for size in sizes[2:]:
        if size * kept[0] != kept[-1] * kept[1]:
            break
        kept.append(size)
    return kept


def program_cell(plan: dict[str, Any], *, text: Path, json: Path | None, exitcode: int | None, timed_out: bool,
                 wall_s: float) -> Cell:
    """What one start of a program measured, or why it did not.

    Args:
        plan: the cell as planned.
        text: what the program printed.
        json: its JSON file; None if there is none. It is rewritten without secrets.
        exitcode: of the program.
        timed_out: the deadline passed.
        wall_s: how long it ran.
    """
    cell = Cell(name=plan["name"], status="measured", reason=None, wall_s=wall_s, setup={"engine": "nccl-tests"})
    try:
        if json is not None:
            found = parse_json(json.read_text(encoding="utf-8", errors="replace"))
            write_atomic(json, without_secrets(json.read_text(encoding="utf-8", errors="replace")))
        else:
            found = parse_text(text.read_text(encoding="utf-8", errors="replace"))
    except UnreadableInput as error:
        found = {"rows": [], "error": str(error), "passed": None}
        if json is not None:
            json.unlink()  # it cannot be read, so nothing can be taken out of it
    if timed_out:
        cell.status, cell.reason = "timed_out", f"no end after {plan['timeout_s']:g} s"
        return cell
    if (exitcode != 0 and found["passed"] is not False) or not found["rows"]:
        cell.status, cell.reason = "refused", found["error"] or f"exit code {exitcode}"
        return cell
    for row in found["rows"]:
        side = row[SIDE]
        if side is None or side["time_us"] is None or side["wrong"] is None:
            cell.status, cell.reason = "failed", f"no {SIDE} time or check at {row['size']} bytes"
            return cell
        cell.times.append({
            "collective": "all_reduce", "size_bytes": row["size"], "num_calls": plan["num_samples"],
            "times_us": [side["time_us"]], "starts_s": [0.0], "timing": "nccl-tests", "graph_error": None,
            "loopback_bytes": None, "num_wrong": side["wrong"]})
    return cell

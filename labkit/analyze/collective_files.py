"""What the cells of a collective sweep left: status of each cell, times of the slowest rank, the library's log.

In: a folder written by `labkit.workers.collective_cells`. Out: plain values by cell. The ranks' own files are then put
into two, because a run has hundreds of them and the library's log names the host.
"""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from labkit.analyze.kinds import UnreadableInput
from labkit.analyze.nccl_log import parse_log
from labkit.records import write_atomic


@dataclass(kw_only=True)
class Cell:
    """One cell, read."""

    name: str
    status: str
    reason: str | None
    wall_s: float
    times: list[dict[str, Any]] = field(default_factory=list)
    """A row for each collective and size: times_us of the slowest rank, num_wrong of all ranks, num_calls, timing,
    loopback_bytes of all timed calls."""
    eager_times: list[dict[str, Any]] = field(default_factory=list)
    pairs: list[dict[str, Any]] = field(default_factory=list)
    """A row for each collective, phase and pair: times_us of the slower rank, starts_s of its first rank, and
    `pair_wrong`."""
    refused: dict[str, str] = field(default_factory=dict)
    """Collective -> why the library does not have it."""
    setup: dict[str, Any] = field(default_factory=dict)
    log: dict[str, Any] | None = None
    """What `nccl_log.parse_log` found in the logs of all ranks; None without a log."""


def read_cells(run_dir: Path) -> dict[str, Cell]:
    """Every cell of a run by name, in the order they ran.

    Raises: UnreadableInput when a file is missing or broken, or the ranks of a cell tell different things.
    """
    path = run_dir / "cells.jsonl"
    cells = {}
    for ended in _lines(path):
        cell = Cell(name=ended["name"], status=ended["status"], reason=ended["reason"], wall_s=ended["wall_s"])
        folder = run_dir / "cells" / cell.name
        if cell.status == "measured":
            _read_ranks(cell, folder)
        logs = [log.read_text(encoding="utf-8", errors="replace") for log in sorted(folder.glob("nccl_rank*.log"))]
        if any(re.search(r"\bNCCL (INFO|WARN|version)", log) for log in logs):
            cell.log = parse_log("\n".join(logs))
        cells[cell.name] = cell
    if not cells:
        raise UnreadableInput(f"{path}: no cell ended")
    return cells


def _read_ranks(cell: Cell, folder: Path) -> None:
    ranks = [_lines(path) for path in sorted(folder.glob("rank*.jsonl"), key=lambda p: int(p.stem[4:]))]
    if not ranks or any(not rows or rows[-1]["kind"] != "end" for rows in ranks):
        raise UnreadableInput(f"{folder}: a rank's file has no end, expected one of each rank")
    cell.setup = ranks[0][0]
    if len(ranks) != cell.setup["num_ranks"]:
        raise UnreadableInput(f"{folder}: {len(ranks)} rank files, expected {cell.setup['num_ranks']}")
    for kind, into in (("times", cell.times), ("eager_times", cell.eager_times)):
        own = [[row for row in rows if row["kind"] == kind] for rows in ranks]
        if len({len(rows) for rows in own}) != 1:
            raise UnreadableInput(f"{folder}: ranks have different numbers of {kind}")
        into += [_slowest(list(rows), folder) for rows in zip(*own)]
    for row in (row for rows in ranks for row in rows if row["kind"] == "refused"):
        cell.refused[row["collective"]] = row["reason"]
    wrong: dict[tuple[str, str], int] = {}
    for row in (row for rows in ranks for row in rows if row["kind"] == "pair_checked"):
        key = row["collective"], _pair_name(row)
        wrong[key] = wrong.get(key, 0) + row["num_wrong"]
    phases: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for row in (row for rows in ranks for row in rows if row["kind"] == "pair"):
        phases.setdefault((row["collective"], row["phase"], _pair_name(row)), []).append(row)
    for (collective, phase, pair), rows in phases.items():
        cell.pairs.append({**_slowest(rows, folder), "phase": phase, "pair": pair,
                           "pair_wrong": wrong.get((collective, pair))})


def _pair_name(row: dict[str, Any]) -> str:
    return "-".join(map(str, row["pair"]))


def _slowest(rows: list[dict[str, Any]], folder: Path) -> dict[str, Any]:
    """One row of the same measurement on all ranks: the slowest time of each sample."""
    first = rows[0]
    for name in ("collective", "size_bytes", "num_calls"):
        if len({row[name] for row in rows}) != 1:
            raise UnreadableInput(f"{folder}: ranks differ in {name}: {[row[name] for row in rows]}")
    times = [max(sample) for sample in zip(*(row["times_us"] for row in rows), strict=True)]
    timings = {row["timing"] for row in rows}
    return {"collective": first["collective"], "size_bytes": first["size_bytes"], "num_calls": first["num_calls"],
            "times_us": times, "starts_s": first["starts_s"], "timing": timings.pop() if len(timings) == 1 else "mixed",
            "graph_error": next((row["graph_error"] for row in rows if row["graph_error"]), None),
            "loopback_bytes": first["loopback_bytes"], "num_wrong": sum(row.get("num_wrong", 0) for row in rows)}


def _lines(path: Path) -> list[dict[str, Any]]:
    try:
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except OSError as error:
        raise UnreadableInput(f"{path}: {error.strerror}") from None
    except ValueError as error:
        raise UnreadableInput(f"{path}: {error}") from None


def pack(run_dir: Path) -> None:
    """Put the files of all cells into `ranks.jsonl` and `nccl_log.txt` (no hosts, paths, repeats), and drop them."""
    rows, logs = [], []
    for folder in sorted((run_dir / "cells").glob("*")):
        for path in sorted(folder.glob("rank*.jsonl")):
            for row in path.read_text(encoding="utf-8").splitlines():
                rows.append(f'{{"cell": {json.dumps(folder.name)}, {row[1:]}')
        for path in [*sorted(folder.glob("nccl_rank*.log")), *sorted(folder.glob("rank*.error"))]:
            logs.append(f"=== {folder.name}/{path.name}")
            for line in dict.fromkeys(path.read_text(encoding="utf-8", errors="replace").splitlines()):
                line = re.sub(r"^(\[[\d :.-]+\] )?\S+?:\d+:\d+ ", "", line)
                logs.append(re.sub(r"(?<![\w.])/[\w.@+-]+(?:/[\w.@+-]*)+", "<path>", line))
    write_atomic(run_dir / "ranks.jsonl", "\n".join(rows) + "\n")
    if logs:
        write_atomic(run_dir / "nccl_log.txt", "\n".join(logs) + "\n")
    shutil.rmtree(run_dir / "cells", ignore_errors=True)

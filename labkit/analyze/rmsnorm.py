"""What the lines of labkit.workers.rmsnorm_bench say about correctness; times are in analyze/rmsnorm_times.py.

In: the run directory of one run (`p<process>/rank<rank>.jsonl`). Out: plain dicts for a record's results and samples.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from labkit.calc import rmsnorm as calc

Lines = list[dict[str, Any]]
OURS = ("report", "fast")
COUNTS = ("num_bad", "unwritten", "guards_touched", "input_changed")


def read_lines(run_dir: Path) -> Lines:
    """All lines of a run with their process and rank; a last line that was cut off is left out.

    Raises: ValueError naming the file and line that is not JSON.
    """
    found: Lines = []
    for path in sorted(run_dir.glob("p*/rank*.jsonl")):
        where = {"process": int(path.parent.name[1:]), "rank": int(path.stem[4:])}
        rows = path.read_text(encoding="utf-8").splitlines()
        for number, text in enumerate(rows, start=1):
            try:
                found.append({**json.loads(text), **where})
            except ValueError:
                if number < len(rows):
                    raise ValueError(f"{path.parent.name}/{path.name} line {number}: not JSON") from None
    return found


def of_kind(lines: Lines, *kinds: str, **values: Any) -> Lines:
    """Lines of these kinds whose entries equal `values`."""
    return [line for line in lines if line["kind"] in kinds and all(line.get(k) == v for k, v in values.items())]


def structure(shapes: Mapping[str, tuple[int, int, int]]) -> dict[str, Any]:
    """What the shapes fix without a run: min_bytes by shape, block_size and masked_lane_pct by hidden size.

    Args:
        shapes: text -> rows, hidden, bytes per element.
    """
    hidden = sorted({h for _, h, _ in shapes.values()})
    return {
        "min_bytes": {text: int(calc.min_bytes(rows=r, hidden=h, bytes_in=b)) for text, (r, h, b) in shapes.items()},
        "block_size": {str(h): calc.block_size(hidden=h) for h in hidden},
        "masked_lane_pct": {str(h): round(100 * calc.masked_share(hidden=h), 3) for h in hidden},
    }


def errors(lines: Lines, shapes: Sequence[str]) -> dict[str, Any]:
    """Errors against float64 of what was checked.

    Returns: by shape max_abs_err and max_rel_err of the report's kernel, within_bound (both kernels, every check) and
    rows_checked; bound_used (largest error / bound) by provider and shape, the baselines' included.
    """
    out: dict[str, Any] = {"max_abs_err": {}, "max_rel_err": {}, "within_bound": {}, "rows_checked": {}}
    used: dict[str, dict[str, float]] = {}
    for shape in shapes:
        seen = [line for line in of_kind(lines, "check", "recheck", shape=shape) if "case" not in line]
        ours = {name: [line for line in seen if line["what"].startswith(name)] for name in OURS}
        if not all(ours.values()):
            continue
        for key in ("max_abs_err", "max_rel_err"):
            out[key][shape] = max(line[key] for line in ours["report"])
        out["within_bound"][shape] = all(line["passed"] for line in seen)
        rows = [line["rows_checked"] for line in seen if "rows_checked" in line]
        out["rows_checked"][shape] = max(rows) if rows else int(shape.split("x")[0])
        for name in OURS:
            used.setdefault(name, {})[shape] = max(line["bound_used"] for line in ours[name])
    for line in of_kind(lines, "baseline_error"):
        by_shape = used.setdefault(line["provider"], {})
        by_shape[line["shape"]] = max(by_shape.get(line["shape"], 0.0), line["bound_used"])
    return {**out, "bound_used": used}


def wrong_counts(lines: Lines) -> dict[str, int]:
    """Over every check of ours: elements out of bound, not written, written outside; inputs changed, rows wrong."""
    checks = of_kind(lines, "check", "recheck", "canary")
    found = {name: sum(int(line.get(name) or 0) for line in checks) for name in COUNTS}
    return {**found, "canary_rows_wrong": sum(len(line.get("rows_wrong", ())) for line in checks)}


def all_samples(lines: Lines) -> dict[str, Any]:
    """Every sample for `RunRecord.samples`: `<mode> <provider> <shape>` -> unit and one list a process and rank."""
    out: dict[str, Any] = {}
    for line in of_kind(lines, "timing", "floor"):
        name = " ".join(line[key] for key in ("mode", "provider", "shape") if key in line)
        name = f"{name} empty kernel" if line["kind"] == "floor" else name
        out.setdefault(name, {"unit": "ms", "values": []})["values"].append([round(v, 5) for v in line["ms"]])
    return out

"""Resources of cross-compiled kernels: what three tools say of each cubin, and the occupancy that follows.

In: the lines of labkit.workers.triton_compile. Out: plain dicts for a record's results, by target (`sm_70`) and cell
(`h4096/w1`: row length 4,096, one warp; `h4096/w1 bare`: compiled without knowing that anything is divisible by 16).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from labkit.analyze.cuobjdump import parse_resource_usage
from labkit.analyze.kinds import UnreadableInput
from labkit.analyze.ptxas import parse_verbose
from labkit.calc import row_registers as rows
from labkit.calc.occupancy import naive_occupancy, occupancy
from labkit.calc.occupancy_by_placing import allocate_blocks

Cell = dict[str, Any]
CAPABILITIES = {70: "7.0", 75: "7.5", 80: "8.0", 86: "8.6", 89: "8.9", 90: "9.0", 100: "10.0", 120: "12.0"}
"""Targets whose limits are known, and their compute capability."""
TABLES = ("registers", "stack_bytes", "spill_store_bytes", "spill_load_bytes", "static_shared_bytes",
          "dynamic_shared_bytes", "max_load_bytes", "occupancy_pct", "naive_occupancy_pct", "blocks_per_sm",
          "limited_by", "in_flight_kib")  # fmt: skip


def read_jsonl(path: Path) -> list[Cell]:
    """Lines of one worker's file; raises ValueError naming file and line that is not JSON, OSError if it is absent."""
    found = []
    for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            found.append(json.loads(text))
        except ValueError:
            raise ValueError(f"{path.parent.name}/{path.name} line {number}: not JSON") from None
    return found


def cell_name(line: Mapping[str, Any]) -> str:
    """Name of a cell within its target.

    >>> cell_name({"hidden": 4096, "num_warps": 2, "hints": False})
    'h4096/w2 bare'
    """
    return f"h{line['hidden']}/w{line['num_warps']}" + ("" if line["hints"] else " bare")


def compiled_cells(lines: list[Cell], *, kernel: str, bytes_per_element: int = 2) -> list[Cell]:
    """One dict a compiled cell: the three readings and what follows from them.

    Args:
        lines: of the compile worker.
        kernel: name of the function in the cubin.
        bytes_per_element: of the rows.

    Returns: name, target, `arch`, hidden, num_warps, hints; `registers`, `stack_bytes`, `static_shared_bytes` (by
    cuobjdump), `ptxas_registers`, `ptxas_stack_bytes`, `ptxas_shared_bytes`, `spill_store_bytes`, `spill_load_bytes`
    (by ptxas), `elf_registers`, `elf_stack_bytes` (by the file itself), None where a tool does not say; `dynamic_`
    and `max_load_bytes`; occupancy by formula and by placing warps.
    """
    return [_cell(line, kernel, bytes_per_element) for line in lines if line["kind"] == "kernel"]


def _cell(line: Cell, kernel: str, bytes_per_element: int) -> Cell:
    target, hidden, num_warps = line["target"], line["hidden"], line["num_warps"]
    dump, log = _entry(parse_resource_usage, line["cuobjdump"], kernel), _entry(parse_verbose, line["ptxas"], kernel)
    elf, sass = line.get("elf") or {}, line.get("local_instructions") or {}
    # The cubin alone does not name its architecture; without it the reserved bytes cannot be told apart.
    reserved = 1024 if target >= 90 and (dump.get("shared_bytes") or 0) >= 1024 else 0
    shared = dump.get("shared_bytes")
    cell = {
        "name": cell_name(line), "target": target, "arch": log.get("arch"), "hidden": hidden, "num_warps": num_warps,
        "hints": line["hints"], "registers": dump.get("registers"), "stack_bytes": dump.get("stack_bytes"),
        "static_shared_bytes": None if shared is None else shared - reserved, "reserved_shared_bytes": reserved,
        "ptxas_registers": log.get("registers"), "ptxas_stack_bytes": log.get("stack_bytes"),
        "ptxas_shared_bytes": log.get("shared_bytes"), "spill_store_bytes": log.get("spill_store_bytes"),
        "spill_load_bytes": log.get("spill_load_bytes"), "elf_registers": elf.get("registers"),
        "elf_stack_bytes": elf.get("stack_bytes"), "sass_store_bytes": sass.get("store"),
        "sass_load_bytes": sass.get("load"), "dynamic_shared_bytes": line["dynamic_shared_bytes"],
        "max_load_bytes": line["max_load_bytes"], "max_store_bytes": line["max_store_bytes"],
        "row_registers": rows.row_registers_per_thread(
            hidden=hidden, num_warps=num_warps, bytes_per_element=bytes_per_element),
        "elements_per_thread": line["block"] // (32 * num_warps),
    }  # fmt: skip
    return cell | _occupancy(cell, bytes_per_element)


def _entry(parse: Any, text: str, kernel: str) -> dict[str, Any]:
    try:
        return parse(text)["functions"].get(kernel, {})
    except UnreadableInput:
        return {}


def _occupancy(cell: Cell, bytes_per_element: int) -> dict[str, Any]:
    names = ("blocks_per_sm", "occupancy_pct", "naive_occupancy_pct", "limited_by", "placed_blocks_per_sm",
             "in_flight_kib")  # fmt: skip
    if cell["registers"] is None or cell["target"] not in CAPABILITIES:
        return dict.fromkeys(names)
    asked = {
        "registers_per_thread": cell["registers"], "threads_per_block": 32 * cell["num_warps"],
        "shared_bytes_per_block": cell["static_shared_bytes"] + cell["dynamic_shared_bytes"],
        "compute_capability": CAPABILITIES[cell["target"]],
    }  # fmt: skip
    found = occupancy(**asked)
    in_flight = rows.rows_in_flight_bytes(hidden=cell["hidden"], blocks_per_sm=found["blocks_per_sm"],
                                          bytes_per_element=bytes_per_element)  # fmt: skip
    return dict(zip(names, (
        found["blocks_per_sm"], 100 * found["occupancy"], 100 * naive_occupancy(**asked)["occupancy"],
        " and ".join(found["limited_by"]), allocate_blocks(**asked)["blocks_per_sm"], in_flight / 1024)))  # fmt: skip


def compiled_results(lines: list[Cell], cells: list[Cell], *, report_target: int) -> dict[str, Any]:
    """What a record keeps of a compilation.

    Args:
        lines: of the compile worker.
        cells: from `compiled_cells`.
        report_target: the target of the report's GPU, 70 for a V100.

    Returns: `compiler` (versions), `cuobjdump` (every cell was read with it), `registers` and `stack` of the report's
    target by cell (the claims' keys), `by_target` (each of TABLES by target and cell), `equal_share` (registers by
    elements per thread), `equal_share_spread` (largest minus smallest where several row lengths are), `refused`.
    """
    (compiler,) = [line for line in lines if line["kind"] == "compiler"]
    out: dict[str, Any] = {
        "compiler": {name: compiler[name] for name in ("triton", "ptxas", "cuobjdump", "fp_fusion")},
        "cuobjdump": bool(cells) and all(cell["registers"] is not None for cell in cells),
    }  # fmt: skip
    out["by_target"] = {name: by_target(cells, name) for name in TABLES}
    target = f"sm_{report_target}"
    out["registers"] = _hinted(out["by_target"]["registers"].get(target, {}))
    out["stack"] = _hinted(out["by_target"]["stack_bytes"].get(target, {}))
    out["equal_share"] = equal_shares(cells)
    pairs = {target: [max(found) - min(found) for found in shares.values() if len(found) > 1]
             for target, shares in out["equal_share"].items()}  # fmt: skip
    out["equal_share_spread"] = {target: max(differences) for target, differences in pairs.items() if differences}
    out["refused"] = {f"sm_{line['target']} {cell_name(line)}": line["error"]
                      for line in lines if line["kind"] == "refusal"}  # fmt: skip
    return out


def _hinted(cells: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in cells.items() if not name.endswith(" bare")}


def by_target(cells: list[Cell], key: str) -> dict[str, dict[str, Any]]:
    """One value of every cell: {"sm_70": {"h4096/w1": value}}."""
    found: dict[str, dict[str, Any]] = {}
    for cell in cells:
        found.setdefault(f"sm_{cell['target']}", {})[cell["name"]] = cell[key]
    return found


def equal_shares(cells: list[Cell]) -> dict[str, dict[str, list[int]]]:
    """Registers by target and elements per thread, of cells with hints and without a stack: {"sm_70": {"64": [99]}}.

    A cell with a stack is at the limit, so that its registers say nothing of what it would need.
    """
    found: dict[str, dict[str, list[int]]] = {}
    for cell in sorted(cells, key=lambda cell: (cell["target"], cell["elements_per_thread"], cell["hidden"])):
        if cell["hints"] and cell["registers"] is not None and not cell["stack_bytes"]:
            shares = found.setdefault(f"sm_{cell['target']}", {})
            shares.setdefault(str(cell["elements_per_thread"]), []).append(cell["registers"])
    return found

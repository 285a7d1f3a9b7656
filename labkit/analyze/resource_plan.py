"""Which cells triton_resources compiles, and what is said of each beforehand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from labkit.analyze.resources import CAPABILITIES, cell_name
from labkit.calc.resource_prediction import resource_prediction
from labkit.calc.rmsnorm import block_size, min_bytes, predicted_time_s
from labkit.calc.row_registers import knee_blocks_per_sm


def wanted_cells(
    *, targets: Sequence[int], hidden: Sequence[int], long_targets: Sequence[int], bare_targets: Sequence[int],
    num_warps: Sequence[int],
) -> list[dict[str, Any]]:  # fmt: skip
    """Cells to compile: target, hidden, num_warps, block (the padded row) and hints, in the order of the targets.

    Args:
        targets: 70 for sm_70.
        hidden: row lengths; the first for every target.
        long_targets: targets also compiled for the other row lengths.
        bare_targets: targets for which the first length is also compiled without hints of divisibility.
        num_warps: warps that share a row.
    """
    found = []
    for target in targets:
        wanted = [(length, True) for length in (hidden if target in long_targets else hidden[:1])]
        wanted += [(hidden[0], False)] if target in bare_targets else []
        found += [{"target": target, "hidden": length, "num_warps": warps, "hints": hints,
                   "block": block_size(hidden=length)} for length, hints in wanted for warps in num_warps]  # fmt: skip
    return found


def predicted_cells(cells: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What is said beforehand of the cells with hints.

    Returns: `row_registers`, `registers` and `stack_bytes` by cell; `must_spill`, `occupancy_pct` and
    `naive_occupancy_pct` by target and cell (None for a target whose limits are not known).
    """
    out: dict[str, Any] = {name: {} for name in ("row_registers", "registers", "stack_bytes", "must_spill",
                                                 "occupancy_pct", "naive_occupancy_pct")}  # fmt: skip
    for cell in cells:
        if not cell["hints"]:
            continue
        target, name, capability = f"sm_{cell['target']}", cell_name(cell), CAPABILITIES.get(cell["target"])
        said = resource_prediction(hidden=cell["hidden"], num_warps=cell["num_warps"],
                                   compute_capabilities=(capability,) if capability else ())  # fmt: skip
        for key, value in said.items():
            if isinstance(value, dict):
                out[key].setdefault(target, {})[name] = value.get(capability)
            else:
                out[key][name] = value
    return out


def predicted_times(
    *, hidden: Sequence[int], num_warps: Sequence[int], rows: int, bytes_per_s: float, num_sms: int, block_s: float,
    launch_floor_s: float,
) -> dict[str, Any]:  # fmt: skip
    """`ms` by cell, the same for all num_warps, and `knee_blocks`, the blocks per SM that keep the memory busy.

    Args:
        hidden: row lengths.
        num_warps: warps that share a row: nothing is said to follow from them.
        rows: rows of the input.
        bytes_per_s: of a large copy, bytes/s.
        num_sms: SMs of the GPU.
        block_s: time of a block that does not queue for the memory, seconds.
        launch_floor_s: time of an empty kernel, seconds.
    """
    whole = {length: 1e3 * predicted_time_s(num_bytes=min_bytes(rows=rows, hidden=length), bytes_per_s=bytes_per_s,
                                            launch_floor_s=launch_floor_s) for length in hidden}  # fmt: skip
    return {
        "ms": {f"h{length}/w{warps}": ms for length, ms in whole.items() for warps in num_warps},
        "knee_blocks": {f"h{length}": knee_blocks_per_sm(hidden=length, bytes_per_s=bytes_per_s, num_sms=num_sms,
                                                         block_s=block_s) for length in hidden},
    }  # fmt: skip

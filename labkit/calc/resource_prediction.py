"""What one-row kernels should need, before a compiler is asked: registers, stack, certain spills, occupancy bounds.

In: row length, warps, compute capabilities. Out: a plain dict, fractions in percent.

    python -m labkit calc resource_prediction resource_prediction hidden=8192 num_warps=1
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from labkit.calc.occupancy import naive_occupancy, occupancy
from labkit.calc.row_registers import must_spill, register_cap, register_estimate, row_registers_per_thread


def resource_prediction(
    *, hidden: int, num_warps: int, compute_capabilities: Sequence[str] = ("7.0", "9.0")
) -> dict[str, Any]:
    """Everything that is said beforehand of one kernel.

    Args:
        hidden: length of a row of 2-byte elements, >= 1.
        num_warps: warps of the block, 1 to 32.
        compute_capabilities: keys of `labkit.calc.occupancy.LIMITS`.

    Returns: `row_registers` (the least that can be), `registers` and `stack_bytes` (a line through the report's
        counts), all per thread; by compute capability `must_spill`, `occupancy_pct` and `naive_occupancy_pct` of the
        registers guessed.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: one row a block, whole in registers; shared memory does not limit.
    Source: labkit.calc.row_registers and labkit.calc.occupancy; report section 14.2.

    >>> found = resource_prediction(hidden=8192, num_warps=2, compute_capabilities=("7.0",))
    >>> found["registers"], found["occupancy_pct"], found["naive_occupancy_pct"]
    (172, {'7.0': 12.5}, {'7.0': 15.625})
    """
    guess = register_estimate(hidden=hidden, num_warps=num_warps, cap=register_cap(num_warps=num_warps))
    asked: dict[str, Any] = {"registers_per_thread": guess["registers"], "threads_per_block": 32 * num_warps}
    return {
        "row_registers": row_registers_per_thread(hidden=hidden, num_warps=num_warps), **guess,
        "must_spill": {capability: must_spill(hidden=hidden, num_warps=num_warps, compute_capability=capability)
                       for capability in compute_capabilities},
        "occupancy_pct": {capability: 100 * occupancy(**asked, compute_capability=capability)["occupancy"]
                          for capability in compute_capabilities},
        "naive_occupancy_pct": {capability: 100 * naive_occupancy(**asked, compute_capability=capability)["occupancy"]
                                for capability in compute_capabilities},
    }  # fmt: skip

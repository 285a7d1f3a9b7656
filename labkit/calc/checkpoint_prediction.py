"""Everything that the checkpoint lab predicts before a run, in one plain object.

In: the model's widths, ranks, sizes of state, rates that are assumed. Out: counts, bytes, percent.

    python -m labkit calc checkpoint_prediction checkpoint_prediction world_sizes=[2,4]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from labkit.calc._require import require_int
from labkit.calc.checkpoint_resume import CONTROLS, first_mismatch, mlp_parameters, reordered_elements
from labkit.calc.checkpoint_save import adamw_state_bytes, miss_rate_bound, save_cost_pct, size_for_cost_bytes
from labkit.calc.ddp import bucket_sizes_bytes

WRITE_BYTES_PER_S = 0.4e9
"""Assumed: serialise, write and sync to a cloud disk."""
HASH_BYTES_PER_S = {"sha256": 1.2e9, "xxh3_128": 1e10}
"""Assumed: one core."""
COPY_BYTES_PER_S = 2e9
"""Assumed: the part of the write that the hash runs beside, from the job's memory to the kernel's."""
MANIFEST_S = 0.004
"""Assumed: two messages, a small file and its folder, synced."""
GOAL_PCT = 5.0


def checkpoint_prediction(
    *, world_sizes: Sequence[int] = (2, 4, 8), hidden: int = 1024, inner: int = 2048, save_step: int = 3,
    sizes_mb: Sequence[float] = (50.0,), num_faults: int = 200,
) -> dict[str, Any]:
    """What follows from shapes, the reducer's rules and a ring's order of summation; and a save's cost, if rates hold.

    Args:
        world_sizes: ranks of each resumed job, each >= 2.
        hidden: width of the model, like `inner`.
        inner: width between the two layers.
        save_step: the step that is saved.
        sizes_mb: states to save, MB (1e6 bytes).
        num_faults: of the drill; 0 if there is none.

    Returns: num_parameters, state_bytes; first_mismatch and reordered_elements {ranks: {control: value}};
        rebuilt_buckets_bytes {control: sizes}; num_files of a checkpoint {ranks: n}; save_cost_pct {size: {hash: %}}
        and within_5_pct_from_mb {hash: MB, None if never} at the rates in `assumed`; miss_rate_bound of the drill,
        None without one.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: gloo's ring; the hash runs beside the copy into the kernel, the manifest comes on top.
    Source: `labkit.calc.checkpoint_resume`, `labkit.calc.checkpoint_save`, `labkit.calc.ddp`.

    >>> plan = checkpoint_prediction(world_sizes=[4])
    >>> plan["state_bytes"], plan["first_mismatch"]["4"]["fused AdamW"], plan["num_files"]["4"]
    (50368512, 4, 6)
    """
    shape = {"hidden": hidden, "inner": inner}
    parameters = mlp_parameters(**shape)
    rates = {name: {"write_bytes_per_s": WRITE_BYTES_PER_S, "hash_bytes_per_s": rate, "fixed_s": MANIFEST_S,
                    "copy_bytes_per_s": COPY_BYTES_PER_S} for name, rate in HASH_BYTES_PER_S.items()}
    sizes = {name: size_for_cost_bytes(cost_pct=GOAL_PCT, **own) for name, own in rates.items()}
    num_parameters = 2 * hidden * inner + hidden + inner
    return {
        "num_parameters": num_parameters,
        "state_bytes": adamw_state_bytes(num_parameters=num_parameters),
        "first_mismatch": {str(n): first_mismatch(world_size=n, save_step=save_step, **shape) for n in world_sizes},
        "reordered_elements": {str(n): reordered_elements(world_size=n, **shape) for n in world_sizes},
        "rebuilt_buckets_bytes": {
            control: bucket_sizes_bytes(parameters=parameters, bucket_cap_mib=settings.get("bucket_cap_mib"))
            if settings.get("is_rebuilt", True) else [] for control, settings in CONTROLS.items()},
        "num_files": {str(n): require_int("world_sizes", n, least=2) + 2 for n in world_sizes},
        "save_cost_pct": {f"{size:g} MB": {name: save_cost_pct(state_bytes=size * 1e6, **own)
                                           for name, own in rates.items()} for size in sizes_mb},
        "within_5_pct_from_mb": {name: None if size is None else size / 1e6 for name, size in sizes.items()},
        "assumed": {"write_bytes_per_s": WRITE_BYTES_PER_S, "hash_bytes_per_s": HASH_BYTES_PER_S,
                    "copy_bytes_per_s": COPY_BYTES_PER_S, "manifest_s": MANIFEST_S},
        "miss_rate_bound": miss_rate_bound(num_faults=num_faults) if num_faults else None,
    }

"""Tables of the backward pass, the two-pass kernels and the shape cache of one RMSNorm record."""

from __future__ import annotations

from typing import Any

import pandas as pd

from labkit.analyze.rmsnorm_tables import number
from labkit.records import RunRecord


def part_table(record: RunRecord, part: str) -> pd.DataFrame:
    """One row a shape of `backward`, `wide_forward` or `wide_backward`; empty if the run did not time that part.

    Columns: shape, min_mb (least bytes, 1e6), ours_ms, and predicted_ms with residual_pct (by the copy measured on such
    a GPU before); copy_fraction (bandwidth of least bytes over that of a copy) with _p10, _p90 and _n, the same for
    compile, liger and native (no percentiles); speedup_compile, speedup_liger, speedup_native; noise_pct; partial_pct
    (traffic of dweight's partial sums over the least bytes); config; missed (the goal, where it was).
    """
    results = record.results
    predicted = record.prediction["values"].get("part_time_ms", {}).get("profile", {}).get(part, {})
    residual = results.get("part_residual_pct", {}).get(part, {}).get("profile", {})
    rows = []
    for shape, time in results.get(f"{part}_ms", {}).items():
        get = lambda name, shape=shape: results.get(f"{part}_{name}", {}).get(shape)  # noqa: E731
        fraction, partial = get("copy_fraction") or {}, get("partial_sum_bytes")
        row: dict[str, Any] = {
            "shape": shape, "min_mb": get("min_bytes") / 1e6, "ours_ms": time["value"],
            "predicted_ms": predicted.get(shape), "residual_pct": residual.get(shape),
            "copy_fraction": fraction.get("value"), "copy_fraction_p10": fraction.get("p10"),
            "copy_fraction_p90": fraction.get("p90"), "copy_fraction_n": fraction.get("n"),
        }  # fmt: skip
        for name in ("compile", "liger", "native"):
            row |= {f"{name}_copy_fraction": number(get(f"{name}_copy_fraction")),
                    f"speedup_{name}": number(get(f"speedup_{name}"))}  # fmt: skip
        row |= {"noise_pct": get("noise_floor_pct"), "config": get("config"), "missed": get("goal_missed") or "",
                "partial_pct": None if partial is None else 100 * partial / get("min_bytes")}  # fmt: skip
        rows.append(row)
    return pd.DataFrame(rows)


def gradient_table(record: RunRecord) -> pd.DataFrame:
    """Largest error over its bound by row length, through autograd.

    Columns: hidden, dx_bound_used, dweight_bound_used.
    """
    found = record.results.get("gradient_bound_used", {})
    rows = [{"hidden": int(hidden), "dx_bound_used": used["dx"], "dweight_bound_used": used["dweight"]}
            for hidden, used in found.items()]  # fmt: skip
    return pd.DataFrame(rows).sort_values("hidden", ignore_index=True) if rows else pd.DataFrame()


def cache_table(record: RunRecord) -> pd.DataFrame:
    """One row a tuned shape and direction: shape, chosen, gain_pct (over the rule's setting), timings by process."""
    timings = record.results.get("cache_timings", {})
    rows = [
        {"shape": shape, "chosen": label, "gain_pct": record.results["cache_gain_pct"].get(shape),
         **{f"timings, {name}": found.get(shape, 0) for name, found in timings.items()}}
        for shape, label in record.results.get("cache_chosen", {}).items()
    ]  # fmt: skip
    return pd.DataFrame(rows)

"""Tables of product records: one row a point, one row a knee, records side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from labkit.analyze.gemm_model import cases
from labkit.calc import gemm
from labkit.records import RunRecord


def points_table(record: RunRecord) -> pd.DataFrame:
    """One row a case and number of rows of the sweep.

    Columns: case, kind, rows, intensity_flop_per_byte, bound (`memory` or `compute` by this run's ceilings),
    predicted_us (by the ceilings measured before the sweep), datasheet_us, p50_us, p10_us, p90_us, p99_us (None below
    100 samples), n, residual_pct (against predicted_us), own_residual_pct (against the ceilings measured during the
    sweep), gb_per_s and tflop_per_s (least bytes and FLOP over the median), graph_us (back to back in a replayed
    graph), warm_us, kernel.
    """
    results, found = record.results, cases(record.params["shapes"], record.params["kinds"])
    predicted = results["predicted_ms"]
    rows = []
    for case in (name for name in found if name in results["time_ms"]):
        by_rows = results["time_ms"][case]
        size = found[case]
        knee = results["mstar_rows"][case].get("this_run")
        for m, seen in sorted((int(m), q) for m, q in by_rows.items()):
            moved = gemm.gemm_bytes(m=m, n=size.n, k=size.k, **size.widths)
            flop = gemm.gemm_flop(m=m, n=size.n, k=size.k)
            rows.append({
                "case": case, "kind": size.kind, "rows": m, "intensity_flop_per_byte": flop / moved,
                "bound": None if knee is None else "memory" if m < knee else "compute",
                **{f"{column}_us": _us(predicted.get(name, {}).get(case, {}).get(str(m)))
                   for column, name in (("predicted", "this_machine"), ("datasheet", "datasheet"))},
                "p50_us": _us(seen["value"]), "p10_us": _us(seen["p10"]), "p90_us": _us(seen["p90"]),
                "p99_us": _us(results["p99_ms"][case].get(str(m))), "n": seen["n"],
                "residual_pct": results["residual_pct"].get("this_machine", {}).get(case, {}).get(str(m)),
                "own_residual_pct": results["residual_pct"]["this_run"].get(case, {}).get(str(m)),
                "gb_per_s": moved / seen["value"] / 1e6, "tflop_per_s": flop / seen["value"] / 1e9,
                "graph_us": _us(results["graph_ms"].get(case, {}).get(str(m), {}).get("value")),
                "warm_us": _us(results["warm_ms"].get(case, {}).get(str(m), {}).get("value")),
                "kernel": ", ".join(results["kernels"].get(case, {}).get(str(m), [])) or None,
            })  # fmt: skip
    return pd.DataFrame(rows)


def _us(ms: float | None) -> float | None:
    return None if ms is None else 1e3 * ms


def knee_table(record: RunRecord) -> pd.DataFrame:
    """One row a case.

    Columns: case, mstar_datasheet, mstar_profile, mstar_this_run (rows; None where a ceiling is unknown), knee_rows
    (measured; None with a why), knee_low and knee_high (processes alone), residual_pct (knee over mstar_this_run),
    mstar_achieved (the formula with the two roofs that products of this shape reach: rate of the slope, bandwidth of
    few rows; back to back where that was measured), crossing_rows and half_double_rows (two other readings of the knee,
    see `labkit.analyze.gemm.knee`),
    knee_in_graph_rows (of calls back to back), flat_gb_per_s (weight bytes over the fitted floor, launch included),
    graph_gb_per_s and graph_tflop_per_s (both back to back), steep_tflop_per_s (of the fitted slope), why.
    """
    results, found = record.results, cases(record.params["shapes"], record.params["kinds"])
    rows = []
    for case in (name for name in found if name in results["knee"]):
        seen, replayed = results["knee"][case], results["knee_in_graph"].get(case, {})
        mstar, size = results["mstar_rows"][case], found[case]
        alone = [value for value in seen["by_process"] if value is not None]
        weight = size.widths["bytes_b"] * size.k * size.n
        reached = replayed if replayed.get("steep_tflop_per_s") else seen
        achieved = None
        if reached.get("flat_ms") and reached.get("steep_tflop_per_s"):
            ridge = reached["steep_tflop_per_s"] * 1e12 / (weight / reached["flat_ms"] * 1e3)
            achieved = gemm.critical_rows(n=size.n, k=size.k, ridge_flop_per_byte=ridge, **size.widths)
        rows.append({
            "case": case, **{f"mstar_{name}": mstar.get(name) for name in ("datasheet", "profile", "this_run")},
            "knee_rows": seen["rows"], "knee_low": min(alone, default=None), "knee_high": max(alone, default=None),
            "residual_pct": 100 * (seen["rows"] / mstar["this_run"] - 1) if seen["rows"] else None,
            "mstar_achieved": achieved,
            "crossing_rows": seen.get("crossing_rows"), "half_double_rows": seen.get("half_double_rows"),
            "knee_in_graph_rows": results["knee_in_graph_rows"].get(case),
            "graph_gb_per_s": weight / replayed["flat_ms"] / 1e6 if replayed.get("flat_ms") else None,
            "graph_tflop_per_s": replayed.get("steep_tflop_per_s"),
            "flat_gb_per_s": weight / seen["flat_ms"] / 1e6 if seen.get("flat_ms") else None,
            "steep_tflop_per_s": seen.get("steep_tflop_per_s"), "why": seen.get("why", ""),
        })  # fmt: skip
    return pd.DataFrame(rows)


def steps_table(record: RunRecord) -> pd.DataFrame:
    """One row a case and M: case, rows, tile, tile_next, waves, waves_next, predicted_ratio, ratio (time of one more
    row over the time); empty for a run without pairs.
    """
    columns = ["case", "rows", "tile", "tile_next", "waves", "waves_next", "predicted_ratio", "ratio"]
    return pd.DataFrame(record.results["steps"], columns=columns)


def grouped_table(record: RunRecord) -> pd.DataFrame:
    """One row a case and mean rows: case, rows, predicted_us, grouped_us, skewed_us, loop_us, loop_over_grouped,
    skewed_over_grouped.
    """
    results = record.results
    rows = []
    for case in dict.fromkeys([*results["grouped_ms"], *results["loop_ms"]]):
        for m in sorted({*results["grouped_ms"].get(case, {}), *results["loop_ms"].get(case, {})}, key=int):
            row: dict[str, Any] = {"case": case, "rows": int(m),
                                   "predicted_us": _us(results["grouped_predicted_ms"].get(case, {}).get(m))}
            row |= {f"{mode}_us": _us(results[f"{mode}_ms"].get(case, {}).get(m, {}).get("value"))
                    for mode in ("grouped", "skewed", "loop")}
            rows.append(row | {name: results[name].get(case, {}).get(m)
                               for name in ("loop_over_grouped", "skewed_over_grouped")})
    return pd.DataFrame(rows)


def compare_table(records: Sequence[RunRecord]) -> pd.DataFrame:
    """What each record predicts and measures, one column a record named by hardware and preset.

    Columns: quantity (with unit), case, one column a record. Rows: ridge and ceilings by kind, M* and knee by case.
    The 8x V100 report has no such lab.
    """
    values: dict[tuple[str, str], dict[str, Any]] = {}
    for record in records:
        results, column = record.results, f"{record.hardware_tag} {record.preset}"
        for kind, found in results["gemm_tflop_per_s"].items():
            values.setdefault(("product ceiling (TFLOP/s)", kind), {})[column] = found["value"]
        for name in ("copy", "read"):
            values.setdefault((f"{name} ceiling (GB/s)", "all"), {})[column] = results[f"{name}_gb_per_s"]["value"]
        for label, by_kind in results["ridge_flop_per_byte"].items():
            for kind, ridge in by_kind.items():
                values.setdefault((f"ridge, {label} (FLOP/byte)", kind), {})[column] = ridge
        for case, seen in results["mstar_rows"].items():
            for label, rows in seen.items():
                values.setdefault((f"M*, {label} (rows)", case), {})[column] = rows
            values.setdefault(("knee, single calls (rows)", case), {})[column] = results["knee_rows"].get(case)
            values.setdefault(("knee, back to back (rows)", case), {})[column] = results["knee_in_graph_rows"].get(case)
    return pd.DataFrame([{"quantity": quantity, "case": case, **by_record}
                         for (quantity, case), by_record in values.items()])  # fmt: skip

"""What the lines of labkit.workers.gemm_bench say: ceilings, times, knee, residuals, steps of one more row.

In: the run directory of one run (`c0` the ceilings before the sweep, `p<k>` the sweeps). Out: plain dicts. Times are ms
of one call, rates 1e9 bytes/s and 1e12 FLOP/s.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from labkit.analyze.gemm_model import Case, critical_rows, predicted_grouped_ms, predicted_ms
from labkit.calc import gemm_time
from labkit.records import quantity

Lines = list[dict[str, Any]]
MOST_SAMPLES = 8000
MAIN_MODES = ("cold", "graph", "grouped", "loop")
P99_SAMPLES = 100
"""Fewer samples than this have no 99th percentile."""
FLAT_SHARE, STEEP_SHARE = 0.34, 2.0
"""Rows up to a third of M* are taken as memory-bound, from twice M* on as compute-bound."""
_TILE = re.compile(r"_(\d+)x(\d+)_\d+x\d+_\d+x\d+_")


def read_lines(run_dir: Path, pattern: str = "p*") -> Lines:
    """All lines of the processes whose folder matches, with their process number; a cut-off last line is left out.

    Raises: ValueError naming the file and line that is not JSON.
    """
    found: Lines = []
    for path in sorted(run_dir.glob(f"{pattern}/rank0.jsonl")):
        rows = path.read_text(encoding="utf-8").splitlines()
        for number, text in enumerate(rows, start=1):
            try:
                found.append({**json.loads(text), "process": int(path.parent.name[1:])})
            except ValueError:
                if number < len(rows):
                    raise ValueError(f"{path.parent.name}/{path.name} line {number}: not JSON") from None
    return found


def of_kind(lines: Lines, kind: str, **values: Any) -> Lines:
    """Lines of this kind whose entries equal `values`."""
    return [line for line in lines if line["kind"] == kind and all(line.get(k) == v for k, v in values.items())]


def ceilings(lines: Lines) -> dict[str, Any]:
    """Measured ceilings as quantities.

    Returns: floor_ms, copy_gb_per_s, read_gb_per_s, gemm_tflop_per_s by kind, and on a GPU sustained_tflop_per_s.
    """
    found: dict[str, Any] = {"gemm_tflop_per_s": {}, "sustained_tflop_per_s": {}}
    for what in dict.fromkeys(line["what"] for line in of_kind(lines, "ceiling")):
        seen = of_kind(lines, "ceiling", what=what)
        num_processes = len({line["process"] for line in seen})
        head, _, kind = what.partition(" ")
        if what == "floor":
            found["floor_ms"] = quantity([ms for line in seen for ms in line["ms"]], "ms", num_processes=num_processes)
        elif head in ("gemm", "sustained"):
            rates = [line["work"] / ms / 1e9 for line in seen for ms in line["ms"]]
            found[f"{head}_tflop_per_s"][kind] = quantity(rates, "TFLOP/s", num_processes=num_processes)
        else:
            rates = [line["work"] / ms / 1e6 for line in seen for ms in line["ms"]]
            found[f"{what}_gb_per_s"] = quantity(rates, "GB/s", num_processes=num_processes)
    return found


def rates_of(measured: Mapping[str, Any], pick: str = "value") -> dict[str, Any]:
    """Measured ceilings in the form that predictions take; memory is the better of copy and read.

    Args:
        measured: of `ceilings`.
        pick: `value` (median) or `p90`.
    """
    return {
        "bytes_per_s": 1e9 * max(measured["copy_gb_per_s"][pick], measured["read_gb_per_s"][pick]),
        "flop_per_s": {kind: 1e12 * found[pick] for kind, found in measured["gemm_tflop_per_s"].items()},
        "floor_s": measured["floor_ms"]["value"] / 1e3,
    }


def times(lines: Lines, mode: str) -> dict[str, dict[str, list[list[float]]]]:
    """Case -> rows -> samples in ms, one list for each process."""
    out: dict[str, dict[str, dict[int, list[float]]]] = {}
    for line in of_kind(lines, "timing", mode=mode):
        parts = out.setdefault(line["case"], {}).setdefault(str(line["rows"]), {})
        parts.setdefault(line["process"], []).extend(line["ms"])
    return {case: {rows: [parts[p] for p in sorted(parts)] for rows, parts in by_rows.items()}
            for case, by_rows in out.items()}  # fmt: skip


def pooled(parts: Sequence[Sequence[float]], unit: str = "ms") -> dict[str, Any]:
    """Quantity of the samples of all processes."""
    return quantity([value for part in parts for value in part], unit, num_processes=len(parts))


def p99(parts: Sequence[Sequence[float]]) -> float | None:
    """99th percentile (nearest rank) of all samples; None below P99_SAMPLES."""
    ordered = sorted(value for part in parts for value in part)
    return ordered[-(-len(ordered) * 99 // 100) - 1] if len(ordered) >= P99_SAMPLES else None


def knee(by_rows: Mapping[str, float], case: Case, rates: Mapping[str, Any]) -> dict[str, Any]:
    """Where the memory-bound floor and the compute-bound slope of one series of medians meet.

    The floor is the median, over few rows, of time minus what the activations add by the model; the slope is that of a
    line through the large products. `rows` lets the slope start at the launch floor, as the model does; `crossing_rows`
    lets it start where the fitted line does, so a fixed cost of large products moves it; `half_double_rows` is half of
    the rows at which a call takes twice the floor, and needs no line. An ideal curve gives M* twice, and then what M*
    would be if activations cost nothing.

    Args:
        by_rows: rows -> time, ms.
        case: shape and kind.
        rates: measured ceilings of the run.

    Returns: rows (None with a `why`), crossing_rows, half_double_rows (None where there is none), flat_ms,
    steep_intercept_ms, steep_tflop_per_s, flat_rows and steep_rows that were used.
    """
    expected = critical_rows(case, rates)
    if expected is None:
        return {"rows": None, "why": "no ceiling for this kind"}
    ordered = sorted(map(int, by_rows))
    flat = [m for m in ordered if m <= FLAT_SHARE * expected]
    steep = [m for m in ordered if m >= STEEP_SHARE * expected]
    out: dict[str, Any] = {"rows": None, "flat_rows": flat, "steep_rows": steep}
    if not flat:
        return {**out, "why": "compute-bound from the first rows on"}
    if len(steep) < 2:
        return {**out, "why": "fewer than two compute-bound points"}
    slope_s = (case.widths["bytes_a"] * case.k + case.widths["bytes_c"] * case.n) / rates["bytes_per_s"]
    floor_s = median(by_rows[str(m)] / 1e3 - slope_s * m for m in flat)
    line = gemm_time.fit_line(x=steep, y=[by_rows[str(m)] / 1e3 for m in steep])
    out |= {"flat_ms": 1e3 * floor_s, "steep_intercept_ms": 1e3 * line["intercept"]}
    if line["slope"] > 0:
        out["steep_tflop_per_s"] = 2e-12 * case.k * case.n / line["slope"]
    lines = {"flat_intercept_s": floor_s, "flat_slope_s": slope_s, "steep_slope_s": line["slope"]}
    out["rows"] = gemm_time.knee_rows(**lines, steep_intercept_s=min(rates["floor_s"], floor_s))
    out["crossing_rows"] = gemm_time.knee_rows(**lines, steep_intercept_s=line["intercept"])
    out["half_double_rows"] = _half_double(ordered, by_rows, floor_s=floor_s, launch_s=rates["floor_s"])
    return out if out["rows"] else {**out, "why": "large products are not slower by the row than small ones"}


def _half_double(
    ordered: Sequence[int], by_rows: Mapping[str, float], *, floor_s: float, launch_s: float
) -> float | None:
    """Half of the rows at which a call, launch taken off, takes twice the memory-bound floor; on a straight line
    between the two points around it.
    """
    goal = 1e3 * (launch_s + 2 * (floor_s - launch_s))
    for low, high in pairwise(ordered):
        before, after = by_rows[str(low)], by_rows[str(high)]
        if before < goal <= after:
            return (low + (high - low) * (goal - before) / (after - before)) / 2
    return None


def knees(cold: Mapping[str, Mapping[str, list[list[float]]]], found: Mapping[str, Case], rates: Mapping[str, Any]
          ) -> dict[str, dict[str, Any]]:  # fmt: skip
    """Case -> knee of the medians over all samples, with `by_process`, the knees of each process alone."""
    out = {}
    for name, by_rows in cold.items():
        whole = knee({m: median(v for part in parts for v in part) for m, parts in by_rows.items()}, found[name], rates)
        num_processes = min(len(parts) for parts in by_rows.values())
        alone = [knee({m: median(parts[p]) for m, parts in by_rows.items()}, found[name], rates)["rows"]
                 for p in range(num_processes)]  # fmt: skip
        out[name] = {**whole, "by_process": alone}
    return out


def residual_pct(
    measured: Mapping[str, Mapping[str, float]], predicted: Mapping[str, Mapping[str, float]]
) -> dict[str, dict[str, float]]:
    """Case -> rows -> measured over predicted time, minus one, in percent."""
    return {case: {m: round(100 * (ms / predicted[case][m] - 1), 2) for m, ms in by_rows.items()}
            for case, by_rows in measured.items() if predicted.get(case)}  # fmt: skip


def tile_of(names: Sequence[str]) -> tuple[int, int] | None:
    """Tile (rows, columns) of a product kernel by its name; None where the name does not say.

    cuBLAS sees C transposed, so the first number of its name counts columns of C and the second rows.

    >>> tile_of(["nvjet_tst_128x64_64x8_2x1_v_bz_TNT"])
    (64, 128)
    """
    for name in names:
        if "nvjet" in name and (seen := _TILE.search(name)):
            return int(seen[2]), int(seen[1])
    return None


def short_name(name: str) -> str:
    """A kernel's name without namespace and template arguments.

    >>> short_name("void cublasLt::splitKreduce_kernel<32, 16, int>(float)")
    'splitKreduce_kernel'
    """
    return re.split(r"[<(]", name.replace(" (", "_"))[0].split("::")[-1].removeprefix("void ").strip()


def steps(lines: Lines, found: Mapping[str, Case], *, num_sms: int | None) -> list[dict[str, Any]]:
    """What one more row costs: a row for each case and M of the fine sweep.

    Returns: case, rows (M), ratio (time of M + 1 over M, paired by process), tile of both kernels as `rows x columns`,
    waves of both, predicted ratio by the busiest SM's padded work (None where a tile is unknown or K is split).
    """
    names = {(line["case"], line["rows"]): line["names"] for line in of_kind(lines, "kernel")}
    out = []
    for case, by_rows in times(lines, "fine").items():
        for m in sorted(map(int, by_rows)):
            if str(m + 1) not in by_rows:
                continue
            here, more = by_rows[str(m)], by_rows[str(m + 1)]
            ratio = median(median(b) / median(a) for a, b in zip(here, more))
            row: dict[str, Any] = {"case": case, "rows": m, "ratio": round(ratio, 4)}
            sides = [_waves(names.get((case, rows), []), found[case], rows, num_sms) for rows in (m, m + 1)]
            for suffix, side in zip(("", "_next"), sides):
                row |= {f"{key}{suffix}": side[key] for key in ("tile", "waves")}
            work = [side["elements"] for side in sides]
            row["predicted_ratio"] = round(work[1] / work[0], 4) if all(work) else None
            out.append(row)
    return out


def _waves(names: Sequence[str], case: Case, rows: int, num_sms: int | None) -> dict[str, Any]:
    tile, is_split = tile_of(names), any("splitK" in name for name in names)
    if tile is None or num_sms is None:
        return {"tile": None, "waves": None, "elements": None}
    seen = gemm_time.tile_waves(m=rows, n=case.n, tile_m=tile[0], tile_n=tile[1], num_sms=num_sms)
    text = f"{tile[0]}x{tile[1]}" + (" split K" if is_split else "")
    if is_split:  # the name does not say into how many parts
        return {"tile": text, "waves": None, "elements": None}
    return {"tile": text, "waves": seen["waves"], "elements": seen["elements"]}


def grouped(
    lines: Lines, found: Mapping[str, Case], rates: Mapping[str, Any], *, num_experts: int,
    skewed_counts: Mapping[str, Sequence[int]],
) -> dict[str, Any]:  # fmt: skip
    """Grouped products: mode -> case -> mean rows an expert -> time, and the loop and the skew against the even call.

    Returns: grouped_ms, skewed_ms, loop_ms (quantities); loop_over_grouped and skewed_over_grouped (ratios of medians);
    grouped_predicted_ms and skewed_predicted_ms by this run's ceilings.
    """
    out: dict[str, Any] = {}
    medians: dict[str, dict[str, dict[str, float]]] = {}
    for mode in ("grouped", "skewed", "loop"):
        seen = times(lines, mode)
        out[f"{mode}_ms"] = {case: {m: pooled(parts) for m, parts in by_rows.items()} for case, by_rows in seen.items()}
        medians[mode] = {case: {m: q["value"] for m, q in by_rows.items()}
                         for case, by_rows in out[f"{mode}_ms"].items()}  # fmt: skip
    for mode in ("loop", "skewed"):
        out[f"{mode}_over_grouped"] = {
            case: {m: round(ms / medians["grouped"][case][m], 4) for m, ms in by_rows.items()
                   if m in medians["grouped"].get(case, {})}
            for case, by_rows in medians[mode].items()}  # fmt: skip
    even = {m: [int(m)] * num_experts for by_rows in medians["grouped"].values() for m in by_rows}
    for mode, counts in (("grouped", even), ("skewed", skewed_counts)):
        out[f"{mode}_predicted_ms"] = {
            case: predicted_grouped_ms(found[case], {m: counts[m] for m in by_rows}, rates)
            for case, by_rows in medians[mode].items()}  # fmt: skip
    return out


def results(
    lines: Lines, before: Lines, found: Mapping[str, Case], *, predicted: Mapping[str, Any], num_experts: int,
    skewed_counts: Mapping[str, Sequence[int]],
) -> dict[str, Any]:  # fmt: skip
    """Everything a record publishes of a run.

    Args:
        lines: of the sweeps.
        before: of the process that measured the ceilings first.
        found: the cases.
        predicted: of `labkit.analyze.gemm_model.prediction`, with the ceilings of `before` as `this_machine`.
        num_experts: experts of a grouped product.
        skewed_counts: mean rows -> rows of each expert in the skewed call.
    """
    measured = ceilings(lines)
    rates = rates_of(measured)
    cold, warm, replayed = (times(lines, mode) for mode in ("cold", "warm", "graph"))
    medians = {case: {m: median(v for part in parts for v in part) for m, parts in by_rows.items()}
               for case, by_rows in cold.items()}  # fmt: skip
    own = {case: predicted_ms(found[case], map(int, by_rows), rates) for case, by_rows in cold.items()}
    device = next(iter(of_kind(lines, "device")), {})
    out = {
        **measured, "ceilings_before": ceilings(before),
        "num_sms": device.get("num_sms"), "num_threads": device.get("num_threads"),
        "cache_bytes": device.get("cache_bytes"),
        "time_ms": {case: {m: pooled(parts) for m, parts in by_rows.items()} for case, by_rows in cold.items()},
        "p99_ms": {case: {m: p99(parts) for m, parts in by_rows.items()} for case, by_rows in cold.items()},
        "warm_ms": {case: {m: pooled(parts) for m, parts in by_rows.items()} for case, by_rows in warm.items()},
        "graph_ms": {case: {m: pooled(parts) for m, parts in by_rows.items()} for case, by_rows in replayed.items()},
        "mstar_rows": {case: {**predicted["mstar_rows"].get(case, {}), "this_run": critical_rows(found[case], rates)}
                       for case in found},
        "ridge_flop_per_byte": {
            **predicted["ridge_flop_per_byte"],
            "this_run": {kind: rate / rates["bytes_per_s"] for kind, rate in rates["flop_per_s"].items()}},
        "knee": knees(cold, found, rates), "knee_in_graph": knees(replayed, found, {**rates, "floor_s": 0.0}),
        "residual_pct": {**{label: residual_pct(medians, by_case) for label, by_case in predicted["time_ms"].items()},
                         "this_run": residual_pct(medians, own)},
        "steps": steps(lines, found, num_sms=device.get("num_sms")),
        "kernels": {case: {str(line["rows"]): [short_name(name) for name in line["names"]]
                           for line in of_kind(lines, "kernel", case=case)}
                    for case in found if of_kind(lines, "kernel", case=case)},
        "bound_used": _worst(lines),
        "left_out": [f"{line['case']} {line['mode']} {line['rows']}" for line in of_kind(lines, "left_out", process=0)],
    }  # fmt: skip
    out["knee_rows"] = {case: seen["rows"] for case, seen in out["knee"].items()}
    out["knee_in_graph_rows"] = {case: seen["rows"] for case, seen in out["knee_in_graph"].items()}
    return {**out, **grouped(lines, found, rates, num_experts=num_experts, skewed_counts=skewed_counts)}


def _worst(lines: Lines) -> dict[str, float]:
    """Case and mode -> largest error over its bound."""
    out: dict[str, float] = {}
    for line in of_kind(lines, "bound"):
        name = f"{line['case']} {line['mode']}"
        out[name] = max(out.get(name, 0.0), line["bound_used"])
    return out


def samples(lines: Lines) -> dict[str, Any]:
    """Samples for `RunRecord.samples`: `<mode> <case> <rows>` and `ceiling <what>`, one list a process.

    Where there are more than MOST_SAMPLES, those of MAIN_MODES only: a record stays small enough to be committed, and
    the files of the processes hold the others.
    """
    out: dict[str, Any] = {}
    timing = of_kind(lines, "timing")
    modes = dict.fromkeys(line["mode"] for line in timing)
    if sum(len(line["ms"]) for line in timing) > MOST_SAMPLES:
        modes = [mode for mode in modes if mode in MAIN_MODES]
    for mode in modes:
        for case, by_rows in times(lines, mode).items():
            for rows, parts in by_rows.items():
                values = [[float(f"{1e3 * ms:.4g}") for ms in part] for part in parts]
                out[f"{mode} {case} {rows}"] = {"unit": "us", "values": values}
    for what in dict.fromkeys(line["what"] for line in of_kind(lines, "ceiling")):
        seen = of_kind(lines, "ceiling", what=what)
        out[f"ceiling {what}"] = {"unit": "us", "values": [
            [float(f"{1e3 * ms:.4g}") for line in seen if line["process"] == p for ms in line["ms"]]
            for p in sorted({line["process"] for line in seen})]}  # fmt: skip
    return out

"""What must hold for a run of the product lab, from the lines of its workers, and what a reader must be told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from labkit.analyze.gemm import MAIN_MODES, MOST_SAMPLES, Lines, of_kind, rates_of
from labkit.analyze.gemm_model import Case, predicted_ms
from labkit.calc import gemm
from labkit.records import Oracle

BUSY_SPREAD = 0.4
"""Ceilings of one run that lie further apart than this come from a machine that does something else as well. Then its
times prove nothing, good or bad, and are not judged.
"""
ROOF_SLACK = 0.10
"""A time may be this much below the roof on top of the spread of the ceilings: they are measured too."""


def oracles(
    params: Mapping[str, Any], lines: Lines, results: Mapping[str, Any], found: Mapping[str, Case]
) -> list[Oracle]:
    """The oracles of one run.

    Args:
        params: as recorded.
        lines: of the sweeps.
        results: of the record.
        found: the cases.
    """
    checks = {kind: of_kind(lines, kind) for kind in ("exact", "bound")}
    dense = len(results["time_ms"])
    return [
        _equal("integers_exact", "elements of integer products that differ from float64", 0,
               sum(line["num_bad"] for line in checks["exact"])),
        _equal("normal_within_bound", "elements (FP8: results) outside the error bound", 0,
               sum(line["num_bad"] for line in checks["bound"])),
        _equal("cases_checked", "dense products checked with integers and with normal numbers",
               2 * dense * len(params["check_rows"]),
               sum(line["mode"] == "dense" for kind in checks for line in checks[kind])),
        _counted(lines, found),
        _equal("processes_ended", "processes that reached their end", params["num_processes"],
               len(of_kind(lines, "done"))),
        _points(params, lines, found),
        *([] if why_not_judged(params, results) else
          [*_not_above_the_roof(results, found), *_grows_past_the_knee(results)]),
    ]  # fmt: skip


def why_not_judged(params: Mapping[str, Any], results: Mapping[str, Any]) -> str | None:
    """Why no time of this run is judged, as a note for its readers; None where times are judged."""
    if is_busy(results):
        return "the ceilings lie far apart: the machine was busy, so times were not judged"
    if params["device"] == "cpu" and params["num_processes"] < 2:
        return ("one process on a CPU: other work of the machine is not told from a slow product, so times were not "
                "judged")
    return None


def is_busy(results: Mapping[str, Any]) -> bool:
    """Whether the ceilings before and during the sweep lie so far apart that times cannot be judged."""
    return _spread(results) > BUSY_SPREAD


def _spread(results: Mapping[str, Any]) -> float:
    """Highest p90 over lowest p10 of each ceiling, before and during the sweep, minus one; the largest of them."""
    both = (results["ceilings_before"], results)
    seen = [[found["copy_gb_per_s"] for found in both], [found["read_gb_per_s"] for found in both]]
    seen += [[found["gemm_tflop_per_s"][kind] for found in both if kind in found["gemm_tflop_per_s"]]
             for kind in results["gemm_tflop_per_s"]]
    return max(max(q["p90"] for q in part) / min(q["p10"] for q in part) - 1 for part in seen)


def _counted(lines: Lines, found: Mapping[str, Case]) -> Oracle:
    """FLOP by PyTorch's counter and bytes of the very tensors, against the calculator."""
    seen = of_kind(lines, "count")
    wrong = []
    for line in seen:
        case, rows = found[line["case"]], line["rows"]
        flop = gemm.gemm_flop(m=rows, n=case.n, k=case.k)
        moved = gemm.gemm_bytes(m=rows, n=case.n, k=case.k, **case.widths)
        if line["flop"] not in (None, flop) or line["bytes"] != moved:
            wrong.append(f"{line['case']}: {line['flop']} FLOP, {line['bytes']} bytes, expected {flop}, {moved}")
    with_flop = sum(line["flop"] is not None for line in seen)
    return Oracle(name="counted_twice", passed=bool(with_flop) and not wrong, expected="calculator's FLOP and bytes",
                  seen="; ".join(wrong) or f"{with_flop} cases with equal FLOP, {len(seen)} with equal bytes",
                  detail="PyTorch's FLOP counter and the bytes of the tensors of one call")  # fmt: skip


def _points(params: Mapping[str, Any], lines: Lines, found: Mapping[str, Case]) -> Oracle:
    """Every point that was asked for was timed, left out as too slow, or refused with its error."""
    expected = len(found) * len(params["rows"]) * params["num_processes"]
    timed = {(line["process"], line["case"], line["rows"]) for line in of_kind(lines, "timing", mode="cold")}
    left = {(line["process"], line["case"], line["rows"]) for line in of_kind(lines, "left_out", mode="cold")}
    gone = sum(len(params["rows"]) for line in of_kind(lines, "refusal", what="product"))
    return _equal("every_point_accounted", "points timed, left out as too slow, or refused", expected,
                  len(timed | left) + gone)  # fmt: skip


def _not_above_the_roof(results: Mapping[str, Any], found: Mapping[str, Case]) -> list[Oracle]:
    """No median below the time that the best ceilings of the same run allow: else a ceiling or a time is wrong.

    The best are those before or during the sweep, whichever are higher: a busy machine lowers either.
    """
    before, during = (rates_of(found, "p90") for found in (results["ceilings_before"], results))
    best = {
        "bytes_per_s": max(before["bytes_per_s"], during["bytes_per_s"]), "floor_s": 0.0,
        "flop_per_s": {kind: max(rate, before["flop_per_s"].get(kind, 0.0)) for kind, rate in
                       during["flop_per_s"].items()},
    }  # fmt: skip
    allowed = 1 - ROOF_SLACK - _spread(results)
    shares = {
        f"{case} {m}": q["value"] / roof[m]
        for case, by_rows in results["time_ms"].items()
        if (roof := predicted_ms(found[case], map(int, by_rows), best)) for m, q in by_rows.items()
    }  # fmt: skip
    if not shares:
        return []
    lowest = min(shares, key=lambda name: shares[name])
    return [Oracle(name="not_above_the_roof", passed=shares[lowest] >= allowed, expected=f"at least {allowed:.2f}",
                   seen=round(shares[lowest], 3),
                   detail=f"{lowest}: time over the roofline's least time, ceilings of this run")]  # fmt: skip


def _grows_past_the_knee(results: Mapping[str, Any]) -> list[Oracle]:
    """Past the knee four times the rows cannot take less time: not even their p90 against the p10 of the rows."""
    seen = {}
    for case, by_rows in results["time_ms"].items():
        start = results["mstar_rows"][case]["this_run"]
        for m in map(int, by_rows):
            if start and m >= start and str(4 * m) in by_rows:
                seen[f"{case} {m}"] = by_rows[str(4 * m)]["p90"] / by_rows[str(m)]["p10"]
    if not seen:
        return []
    lowest = min(seen, key=lambda name: seen[name])
    return [Oracle(name="grows_past_the_knee", passed=seen[lowest] > 1, expected="above 1", seen=round(seen[lowest], 3),
                   detail=f"{lowest}: p90 of four times the rows over p10 of the rows")]  # fmt: skip


def _equal(name: str, detail: str, expected: Any, seen: Any) -> Oracle:
    return Oracle(name=name, passed=seen == expected, expected=expected, seen=seen, detail=detail)


def notes(params: Mapping[str, Any], lines: Lines) -> list[str]:
    """What could not be measured, once each, and what the times leave out."""
    found = [f"{line['what']} ({line.get('case', 'ceilings')}): {line['error']}" for line in of_kind(lines, "refusal")]
    if left := of_kind(lines, "left_out", process=0):
        found.append(f"{len(left)} points left out: a call took more than {params['max_call_ms']:g} ms")
    if params["device"] == "cpu":
        found.append("CPU: no waves of tiles; rates of bf16 depend on whether the CPU has bf16 instructions")
    else:
        found.append("short bursts: the card's clock is that of a rested card; see sustained_tflop_per_s")
    timing = of_kind(lines, "timing")
    if sum(len(line["ms"]) for line in timing) > MOST_SAMPLES:
        found.append(f"samples of {', '.join(MAIN_MODES)} calls are in this record, the others in the processes' files")
    return list(dict.fromkeys(found))

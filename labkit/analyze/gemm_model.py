"""Predictions of the product lab: which cases a run has, their times under given ceilings, and M*.

A case is `<shape name> <kind>`, e.g. `gate_up bf16`. Rates come as plain numbers, so that the same functions serve the
data sheet, a recorded card and the ceilings that a run has just measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from labkit.calc import gemm, gemm_time
from labkit.calc.roofline import ridge_flop_per_byte

BYTES = {"fp32": (4, 4), "fp32_linear": (4, 4), "bf16": (2, 2), "fp8": (1, 2)}
"""Kind -> bytes per element of both operands, of the result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One weight shape in one kind."""

    name: str
    kind: str
    k: int
    n: int

    @property
    def widths(self) -> dict[str, Any]:
        """Bytes per element, by the calculators' names."""
        operand, result = BYTES[self.kind]
        return {"bytes_a": operand, "bytes_b": operand, "bytes_c": result}


def cases(shapes: Sequence[str], kinds: Sequence[str]) -> dict[str, Case]:
    """Name of each case -> the case, shapes first: `gate_up 7168x4096` in `bf16` is `gate_up bf16`."""
    found = {}
    for text in shapes:
        name, size = text.split()
        k, n = (int(part) for part in size.split("x"))
        found |= {f"{name} {kind}": Case(name=name, kind=kind, k=k, n=n) for kind in kinds}
    return found


def predicted_ms(case: Case, rows: Iterable[int], rates: Mapping[str, Any]) -> dict[str, float]:
    """Rows -> predicted time of one product, ms; empty where the rate of this kind is unknown.

    Args:
        case: shape and kind.
        rows: numbers of rows.
        rates: {"bytes_per_s", "flop_per_s": {kind: rate}, "floor_s"}.
    """
    peak = rates["flop_per_s"].get(case.kind)
    if not peak or not rates["bytes_per_s"]:
        return {}
    return {
        str(m): 1e3 * gemm_time.predicted_time_s(
            m=m, n=case.n, k=case.k, flop_per_s=peak, bytes_per_s=rates["bytes_per_s"],
            launch_floor_s=rates["floor_s"], **case.widths)
        for m in rows
    }  # fmt: skip


def predicted_grouped_ms(
    case: Case, counts: Mapping[str, Sequence[int]], rates: Mapping[str, Any]
) -> dict[str, float]:
    """Name -> predicted time of one grouped product with these rows of each expert, ms."""
    peak = rates["flop_per_s"].get(case.kind)
    if not peak or not rates["bytes_per_s"]:
        return {}
    out = {}
    for name, rows in counts.items():
        work = gemm_time.grouped_work(rows=list(rows), n=case.n, k=case.k, **case.widths)
        slower = max(work["flop"] / peak, work["bytes"] / rates["bytes_per_s"])
        out[name] = 1e3 * (rates["floor_s"] + slower)
    return out


def critical_rows(case: Case, rates: Mapping[str, Any]) -> float | None:
    """M* of a case under these ceilings; None where a rate is unknown or no number of rows reaches the ridge."""
    peak = rates["flop_per_s"].get(case.kind)
    if not peak or not rates["bytes_per_s"]:
        return None
    ridge = ridge_flop_per_byte(peak_flop_per_s=peak, bytes_per_s=rates["bytes_per_s"])
    return gemm.critical_rows(n=case.n, k=case.k, ridge_flop_per_byte=ridge, **case.widths)


def prediction(
    found: Mapping[str, Case], rows: Sequence[int], ceilings: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """M* and times for each set of ceilings, and the counts that need none.

    Returns: flop and bytes by case and rows; mstar_rows by case and ceiling name; time_ms by ceiling name, case and
    rows; ridge_flop_per_byte by ceiling name and kind.
    """
    kinds = list(dict.fromkeys(case.kind for case in found.values()))
    return {
        "flop": {name: {str(m): gemm.gemm_flop(m=m, n=c.n, k=c.k) for m in rows} for name, c in found.items()},
        "bytes": {name: {str(m): gemm.gemm_bytes(m=m, n=c.n, k=c.k, **c.widths) for m in rows}
                  for name, c in found.items()},
        "mstar_rows": {name: {label: critical_rows(c, rates) for label, rates in ceilings.items()}
                       for name, c in found.items()},
        "time_ms": {label: {name: predicted_ms(c, rows, rates) for name, c in found.items()}
                    for label, rates in ceilings.items()},
        "ridge_flop_per_byte": {
            label: {kind: rates["flop_per_s"][kind] / rates["bytes_per_s"] for kind in kinds
                    if rates["flop_per_s"].get(kind) and rates["bytes_per_s"]}
            for label, rates in ceilings.items()},
    }  # fmt: skip

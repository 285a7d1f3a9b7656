"""Tables of triton_resources records: one row a compiled cell, and predicted, measured and quoted side by side."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import pandas as pd
import yaml

from labkit.calc.rmsnorm import elements_per_thread, min_bytes
from labkit.paths import CLAIMS
from labkit.records import RunRecord

QUOTED = {"registers": "occ-registers", "stack_bytes": "occ-stack", "naive_occupancy_pct": "occ-bound",
          "occupancy_pct": "occ-bound-granular", "ms": "occ-ms", "gb_per_s": "occ-bw"}  # fmt: skip
"""Column -> claim of the 8x V100 report (or of its correction) that states it."""
COMPILED = ("registers", "stack_bytes", "spill_store_bytes", "spill_load_bytes", "dynamic_shared_bytes",
            "max_load_bytes", "blocks_per_sm", "occupancy_pct", "naive_occupancy_pct", "limited_by",
            "in_flight_kib")  # fmt: skip
TIMED = ("ms", "cold_ms", "gb_per_s", "copy_fraction")


@cache
def quoted() -> dict[str, dict[str, float]]:
    """What the 8x V100 report prints, by column and cell."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    claims = yaml.load((CLAIMS / "v100_report.yaml").read_text(encoding="utf-8"), Loader=loader)["claims"]
    values = {claim["id"]: claim["value"] for claim in claims if claim["id"] in QUOTED.values()}
    return {column: values[claim_id] for column, claim_id in QUOTED.items()}


def number(value: Any) -> Any:
    """The median of a quantity; anything else as it is."""
    return value["value"] if isinstance(value, dict) and "p10" in value else value


def cell_table(record: RunRecord) -> pd.DataFrame:
    """One row a target and cell.

    Columns: target, cell, hidden, num_warps, elements (of a row, per thread), hints (the compiler knew that addresses
    are divisible by 16), registers and predicted_registers (per thread), stack_bytes, spill_store_bytes and
    spill_load_bytes (per thread, by instructions), dynamic_shared_bytes (per block), max_load_bytes (widest load),
    blocks_per_sm, occupancy_pct (bound with the allocation's units), naive_occupancy_pct (plain division), limited_by,
    in_flight_kib (rows of the resident blocks of an SM), v100_registers, v100_stack_bytes as quoted. Of a GPU's own
    target also ms, cold_ms, gb_per_s, copy_fraction, each with _p10, _p90 and _n, slowdown, v100_ms, and predicted_ms
    and spilled_ms: least bytes over a copy's rate, without and with all spilled bytes.
    """
    tables, plan = record.results["by_target"], record.prediction["values"]
    rows = []
    for target, found in tables["registers"].items():
        for name in found:
            cell, _, bare = name.partition(" ")
            hidden, num_warps = (int(part[1:]) for part in cell.split("/"))
            row = {"target": target, "cell": cell, "hidden": hidden, "num_warps": num_warps,
                   "elements": int(elements_per_thread(hidden=hidden, num_warps=num_warps)), "hints": not bare,
                   "predicted_registers": plan["registers"].get(cell)}  # fmt: skip
            row |= {column: tables[column][target].get(name) for column in COMPILED}
            row |= {f"v100_{column}": quoted()[column].get(cell) for column in ("registers", "stack_bytes")}
            if target == record.results.get("gpu_target") and not bare:
                row |= _times(record.results, cell)
                row |= {"predicted_ms": plan.get("ms", {}).get(cell),
                        "spilled_ms": record.results.get("ms_with_spills", {}).get(cell)}  # fmt: skip
            rows.append(row)
    # A record's JSON is in alphabetical order, where 16 comes before 2.
    rows.sort(key=lambda row: (int(row["target"][3:]), not row["hints"], row["hidden"], row["num_warps"]))
    return pd.DataFrame(rows)


def _times(results: dict[str, Any], cell: str) -> dict[str, Any]:
    row: dict[str, Any] = {"slowdown": results["slowdown"].get(cell), "v100_ms": quoted()["ms"].get(cell)}
    for column in TIMED:
        found = results[column].get(cell) or {}
        row |= {column: found.get("value"), f"{column}_n": found.get("n")}
        row |= {f"{column}_{end}": found.get(end) for end in ("p10", "p90")}
    return row


def target_table(record: RunRecord, column: str = "registers") -> pd.DataFrame:
    """One column of `cell_table` with the cells as rows and the targets as columns; cells with hints only."""
    frame = cell_table(record)
    frame = frame.query("hints")
    order = list(dict.fromkeys(frame["cell"]))
    wide = frame.pivot(index="cell", columns="target", values=column)
    return wide.reindex(index=order, columns=list(dict.fromkeys(frame["target"]))).reset_index().convert_dtypes()


def bare_table(record: RunRecord) -> pd.DataFrame:
    """What hints change. Columns: target, cell, registers, bare_registers, max_load_bytes, bare_max_load_bytes."""
    frame = cell_table(record)
    keys, values = ["target", "cell"], ["registers", "max_load_bytes"]
    known, bare = (frame.query(which).filter(items=keys + values) for which in ("hints", "not hints"))
    both = bare.rename(columns={name: f"bare_{name}" for name in values}).merge(known, on=keys)
    return both.filter(items=["target", "cell", *(n for v in values for n in (v, f"bare_{v}"))])


def dial_table(record: RunRecord) -> pd.DataFrame:
    """One machine code at several numbers of resident blocks, beside Little's law.

    Columns: cell, blocks, occupancy_pct, in_flight_kib, ms, gb_per_s with _p10 and _p90, little_gb_per_s (blocks times
    the rate of one block, at most a copy's rate in the same run), residual_pct (measured over that, minus 1).
    """
    results, rows = record.results, []
    for cell, rates in results["dial_gb_per_s"].items():
        hidden = int(cell.split("/")[0][1:])
        copy = min_bytes(rows=record.params["rows"], hidden=hidden) / results["copy_ms"][f"h{hidden}"]["value"] / 1e6
        for blocks in sorted(rates, key=int):
            law = min(int(blocks) * rates["1"]["value"], copy) if "1" in rates else None
            seen = rates[blocks]
            rows.append({
                "cell": cell, "blocks": int(blocks), "occupancy_pct": results["dial_occupancy_pct"][cell][blocks],
                "in_flight_kib": results["dial_in_flight_kib"][cell][blocks],
                "ms": results["dial_ms"][cell][blocks]["value"], "gb_per_s": seen["value"],
                "gb_per_s_p10": seen["p10"], "gb_per_s_p90": seen["p90"], "little_gb_per_s": law,
                "residual_pct": None if law is None else 100 * (seen["value"] / law - 1)})  # fmt: skip
    order = {cell: (int(cell.split("/")[0][1:]), int(cell.split("/w")[1])) for cell in results["dial_gb_per_s"]}
    rows.sort(key=lambda row: (*order[row["cell"]], row["blocks"]))
    return pd.DataFrame(rows)


def compiler_table(records: Sequence[RunRecord]) -> pd.DataFrame:
    """Who compiled. Columns: machine, triton, ptxas, cuobjdump, target (those of one ptxas)."""
    found = pd.DataFrame([
        {"machine": record.hardware_tag, "triton": record.results["compiler"]["triton"], "target": target,
         "ptxas": version, "cuobjdump": record.results["compiler"]["cuobjdump"]}
        for record in records for target, version in record.results["compiler"]["ptxas"].items()
    ])  # fmt: skip
    return found.groupby(["machine", "triton", "ptxas", "cuobjdump"], sort=False)["target"].agg(", ".join).reset_index()


def compare_table(records: Sequence[RunRecord]) -> pd.DataFrame:
    """Predicted, measured and quoted values side by side, for the report's cells.

    Columns: quantity (unit in the name), cell, predicted, one column a record named `<hardware tag>, Triton <version>`,
    and `V100 PCIe (quoted)`. None: not measured there. Registers, stack and bounds are of the report's target sm_70;
    times and rates of the GPU that ran.
    """
    rows = []
    for quantity in ("registers", "stack_bytes", "occupancy_pct", "naive_occupancy_pct", "ms", "gb_per_s"):
        for cell in quoted()["registers"]:
            row: dict[str, Any] = {"quantity": quantity, "cell": cell, "predicted": None}
            for record in records:
                plan = record.prediction["values"].get(quantity, {})
                plan = plan.get("sm_70", {}) if quantity.endswith("occupancy_pct") else plan
                row["predicted"] = plan.get(cell) if row["predicted"] is None else row["predicted"]
                row[_column(record)] = _seen(record, quantity, cell)
            rows.append({**row, "V100 PCIe (quoted)": quoted()[quantity].get(cell)})
    return pd.DataFrame(rows)


def _column(record: RunRecord) -> str:
    return f"{record.hardware_tag}, Triton {record.results['compiler']['triton']}"


def _seen(record: RunRecord, quantity: str, cell: str) -> Any:
    if quantity in TIMED:
        return number(record.results.get(quantity, {}).get(cell))
    return record.results["by_target"][quantity].get("sm_70", {}).get(cell)

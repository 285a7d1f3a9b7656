"""Tables of decode records: one row a point, one row a server, where a step's time goes, records side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from labkit.records import RunRecord


def points_table(record: RunRecord) -> pd.DataFrame:
    """One row a server and point.

    Columns: model, mode, kind (`ITL` of a batch, `TTFT` of one prompt), size (sequences, or tokens), experts_read (of a
    layer, predicted), gigabytes and gflop (of the step, predicted), floor_ms (roofline), launch_ms (host, predicted),
    predicted_ms (of both), p50_ms, p10_ms, p90_ms, n, residual_pct (p50 against predicted_ms), over_floor_ms (p50 minus
    floor_ms), memory_share (of the floor's time).
    """
    rows, results = [], record.results
    for name, told in _servers(record):
        for kind, key, short in (("ITL", "itl_ms", "itl"), ("TTFT", "ttft_ms", "ttft")):
            for size, point in _by_number(told["decode" if short == "itl" else "ttft"]):
                seen = results.get(key, {}).get(name, {}).get(size, {})
                rows.append({
                    "model": told["model"], "mode": told["mode"], "kind": kind, "size": int(size),
                    "experts_read": point["experts_read"], "gigabytes": point["bytes"] / 1e9,
                    "gflop": point["flop"] / 1e9, "floor_ms": point["floor_ms"], "launch_ms": point["launch_ms"],
                    "predicted_ms": point["predicted_ms"], "p50_ms": seen.get("value"), "p10_ms": seen.get("p10"),
                    "p90_ms": seen.get("p90"), "n": seen.get("n"),
                    "residual_pct": _at(results, "residual_pct", short, name, size),
                    "over_floor_ms": _at(results, "over_floor_ms", short, name, size),
                    "memory_share": point["memory_share"],
                })
    return pd.DataFrame(rows)


def servers_table(record: RunRecord) -> pd.DataFrame:
    """One row a server.

    Columns: model, mode, parameters and active (predicted), weights_gib (predicted), loaded_gib (by the log),
    kv_bytes_per_token, block_size, predicted_tokens (KV capacity), log_tokens, page_tokens, startup_s, fixed_ms and
    gb_per_s (line of ITL against bytes).
    """
    rows = []
    for name, told in _servers(record):
        facts, line = record.results.get("server", {}).get(name, {}), record.results.get("fit", {}).get(name) or {}
        rows.append({
            "model": told["model"], "mode": told["mode"], "parameters": told["parameters"],
            "active": told["active_parameters"], "weights_gib": told["weights_bytes"] / 2**30,
            "loaded_gib": facts.get("model_load_gib"), "kv_bytes_per_token": told["kv_bytes_per_token"],
            "block_size": told["block_size"], "predicted_tokens": told["capacity_tokens"],
            "log_tokens": facts.get("log_tokens"), "page_tokens": facts.get("page_tokens"),
            "startup_s": facts.get("startup_s"), "fixed_ms": line.get("fixed_ms"), "gb_per_s": line.get("gb_per_s"),
        })
    return pd.DataFrame(rows)


def parts_table(record: RunRecord) -> pd.DataFrame:
    """Where the predicted floor of a decode step goes: model, mode, batch, part, ms. Parts of no time are left out."""
    return pd.DataFrame([
        {"model": told["model"], "mode": told["mode"], "batch": int(batch), "part": part, "ms": ms}
        for _, told in _servers(record)
        for batch, point in _by_number(told["decode"]) for part, ms in point["by_part_ms"].items() if ms > 0
    ])


def compare_table(records: Sequence[RunRecord]) -> pd.DataFrame:
    """Capacity, ITL and TTFT of each model, mode and size: predicted and measured, two columns a record.

    The 8x V100 report measured no decode step of these models, so it has no column.
    """
    values: dict[str, dict[str, Any]] = {}
    for record in records:
        column = f"{record.hardware_tag} {record.preset}"
        for row in servers_table(record).to_dict("records"):
            label = f"{row['model']} {row['mode']}: KV capacity (tokens)"
            values.setdefault(label, {}).update(
                {f"{column}, predicted": row["predicted_tokens"], column: row["page_tokens"]})
        for row in points_table(record).to_dict("records"):
            of = "batch" if row["kind"] == "ITL" else "tokens"
            label = f"{row['model']} {row['mode']}: {row['kind']} of {row['size']} {of} (ms)".replace(
                f"of {row['size']} batch", f"at batch {row['size']}")
            values.setdefault(label, {}).update({f"{column}, predicted": row["predicted_ms"], column: row["p50_ms"]})
    return pd.DataFrame([{"quantity": name, **by_record} for name, by_record in values.items()])


def _servers(record: RunRecord) -> list[tuple[str, Any]]:
    """Name and prediction of each server in the order of the run; a record's own keys are sorted as texts."""
    told = record.prediction["values"]["servers"]
    return [(name, told[name]) for name in record.params["servers"]]


def _by_number(found: dict[str, Any]) -> list[tuple[str, Any]]:
    return sorted(found.items(), key=lambda item: int(item[0]))


def _at(found: dict[str, Any], *keys: str) -> Any:
    value: Any = found
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value

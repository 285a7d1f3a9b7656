"""Tables of prefix-cache records: by phase, the noise floor, the variants, several records beside the report.

In: records. Out: DataFrames with units in the column names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean
from typing import Any

import pandas as pd

from labkit.calc.prefix_phases import PHASES, ROUTINGS, TENANTS
from labkit.calc.prefix_prediction import CASES
from labkit.calc.session_eviction import POLICIES
from labkit.calc.statistics import nearest_rank
from labkit.records import RunRecord

COMPARED = {
    "cap_tokens": "tokens", "query_tokens": "tokens", "revisit_hit_tokens": "tokens", "revisit_hit_pct": "%",
    "cold_hit_tokens": "tokens", "warm_hit_tokens": "tokens", "lifetime_pct": "%", "ttft_cold": "ms", "ttft_warm": "ms",
    "ttft_revisit": "ms", "ttft_rewarm": "ms", "revisit_warm_mean": "x", "revisit_warm_p95": "x",
    "throughput_ratio": "x",
}  # fmt: skip
"""Results that `comparison` shows, and their units. `ttft_*` are means, as the report prints them."""
QUOTED = "8x V100 (quoted)"


def phases_table(record: RunRecord) -> pd.DataFrame:
    """One row a cache and phase.

    Columns: cache, phase, query_tokens, predicted_hit_tokens, hit_tokens, hit_pct (of this phase), lifetime_pct (of all
    phases so far), computed_tokens (not hit), ttft_p10_ms, ttft_p50_ms, ttft_p90_ms, ttft_p95_ms, ttft_mean_ms, n (all
    starts), requests_per_s (mean of the starts), starts_differ_pct (mean TTFT of the last start against the first).
    """
    results, predicted = record.results, record.prediction["values"]
    rows = []
    for case in (case for case in CASES.values() if case in results["hit_tokens"]):
        phases = results["hit_tokens"][case]
        for name in PHASES:
            times = results["ttft_ms"].get(case, {}).get(name, {})
            ratio = results["aa_ratio"].get(f"{case}, {name}, two starts")
            rows.append({
                "cache": case, "phase": name, "query_tokens": results["query_tokens"],
                "predicted_hit_tokens": predicted["hit_tokens"][case][name], "hit_tokens": phases[name],
                "hit_pct": results["hit_pct"][case][name], "lifetime_pct": results["lifetime_pct_after"][case][name],
                "computed_tokens": predicted["query_tokens"] - phases[name],
                **{f"ttft_{key}_ms": times.get("value" if key == "p50" else key)
                   for key in ("p10", "p50", "p90", "p95", "mean")},
                "n": times.get("n"), "requests_per_s": mean(results["requests_per_s"][case][name]),
                "starts_differ_pct": None if ratio is None else 100 * (ratio - 1),
            })  # fmt: skip
    return pd.DataFrame(rows)


def noise_table(record: RunRecord) -> pd.DataFrame:
    """Ratios of times, one row a pair: of things that are the same, and last of the one that is not.

    Two starts of one setting are the same; so are warm, revisit and rewarm in the large cache, which keeps everything.
    Columns: what, same, mean_ttft, p95_ttft, requests_per_s (ratios of these three).
    """
    samples, rates = record.samples, record.results["requests_per_s"]
    pooled = {(case, name): [value for part in samples[f"ttft {case} {name}"]["values"] for value in part]
              for case in rates for name in PHASES}
    rows = []
    for case in (case for case in CASES.values() if case in rates):
        for name in PHASES:
            parts = samples[f"ttft {case} {name}"]["values"]
            if len(parts) > 1:
                rows.append({"what": f"{case}, {name}, last start over first", "same": True,
                             **_ratios(parts[-1], parts[0], rates[case][name][-1], rates[case][name][0])})
        for name in ("revisit", "rewarm") if case == "default" else ("revisit",):
            rows.append({"what": f"{case}, {name} over warm", "same": case == "default", **_ratios(
                pooled[case, name], pooled[case, "warm"], mean(rates[case][name]), mean(rates[case]["warm"]))})
    return pd.DataFrame(rows).sort_values("same", ascending=False, kind="stable", ignore_index=True)


def _ratios(new: Sequence[float], old: Sequence[float], new_rate: float, old_rate: float) -> dict[str, float]:
    tails = [nearest_rank(values=values, percent=95) for values in (new, old)]
    return {"mean_ttft": mean(new) / mean(old), "p95_ttft": tails[0] / tails[1], "requests_per_s": new_rate / old_rate}


def above_noise(noise: pd.DataFrame) -> pd.DataFrame:
    """What a loss of the anchors did to times, against what chance does.

    Args:
        noise: of `noise_table`.

    Returns: one row a quantity: quantity, ratio (small cache, revisit over warm), noise_low and noise_high (smallest
        and largest ratio of things that are the same), above_noise (whether the ratio lies outside them).
    """
    same, lost = noise[noise["same"]], noise[~noise["same"]]
    rows = []
    for name in ("mean_ttft", "p95_ttft", "requests_per_s"):
        low, high = min(same[name]), max(same[name])
        rows += [{"quantity": name, "ratio": ratio, "noise_low": low, "noise_high": high,
                  "above_noise": not low <= ratio <= high} for ratio in lost[name]]
    return pd.DataFrame(rows)


def tails_table(record: RunRecord) -> pd.DataFrame:
    """One row a pair of prompts: pair, shared_tokens, hit_tokens, predicted_tokens, lost_tokens (shared, not hit)."""
    hits, predicted = record.results["tail_hits"], record.prediction["values"]["tail_hits"]
    rows = [{"pair": "the same prompt twice" if name.startswith("whole") else "longer prompts",
             "shared_tokens": int(name.split()[1]), "hit_tokens": seen, "predicted_tokens": predicted[name],
             "lost_tokens": int(name.split()[1]) - seen} for name, seen in hits.items()]
    return pd.DataFrame(rows).sort_values(["pair", "shared_tokens"], ignore_index=True)


def tenants_table(record: RunRecord) -> pd.DataFrame:
    """One row a sending of the same prompts, in order: who, hit_tokens, predicted_tokens."""
    servers = record.prediction["values"]["servers"]
    lone = servers["large0"]
    return pd.DataFrame([{"who": name, "hit_tokens": seen, "predicted_tokens": lone[name]["hit_tokens"]}
                         for name in TENANTS for seen in [record.results["tenant_hits"][name]]])


def routing_table(record: RunRecord) -> pd.DataFrame:
    """One row a routing and replica: routing, replica, requests, hit_tokens, predicted_tokens, computed_tokens,
    ttft_p50_ms.
    """
    servers = record.prediction["values"]["servers"]
    return pd.DataFrame([
        {"routing": routing, "replica": server, "requests": seen["requests"], "hit_tokens": seen["hit_tokens"],
         "predicted_tokens": servers[server][routing]["hit_tokens"],
         "computed_tokens": seen["query_tokens"] - seen["hit_tokens"], "ttft_p50_ms": seen["ttft_p50_ms"]}
        for routing in ROUTINGS for server, seen in record.results["routing"][routing].items()])  # fmt: skip


def agent_trace_table(record: RunRecord) -> pd.DataFrame:
    """SIMULATED, one row a cache size and policy: cache_tokens, policy, whole_returns_pct, hit_pct, lost_tokens,
    evidence.
    """
    found = record.results["simulated_agent_trace"]
    return pd.DataFrame([
        {"cache_tokens": int(size), "policy": policy, "whole_returns_pct": 100 * policies[policy]["whole_share"],
         "hit_pct": 100 * policies[policy]["hit_tokens"] / policies[policy]["query_tokens"],
         "lost_tokens": policies[policy]["lost_tokens"], "evidence": found["evidence"]}
        for size, policies in sorted(found["by_cache_tokens"].items(), key=lambda item: int(item[0]))
        for policy in POLICIES])  # fmt: skip


def comparison(records: Sequence[RunRecord], *, reported: Mapping[str, Mapping[str, Any]]) -> pd.DataFrame:
    """Prediction, runs and report side by side.

    Args:
        records: runs, the one of interest first; its prediction is shown.
        reported: result -> cache -> figure of the 8x V100 report.

    Returns: one row a result and cache. Columns: result, cache, unit, predicted, one column a run, named by hardware
    and preset, then "8x V100 (quoted)"; unknown is <NA>. Times are never predicted here.
    """
    columns: dict[str, Mapping[str, Any]] = {}
    if records:
        columns["predicted"] = _figures(records[0].prediction["values"])
    for record in records:
        label = f"{record.hardware_tag} {record.preset}, block {record.params['block_size']}"
        columns[label if label not in columns else f"{label}, {record.run_id.split('_')[0]}"] = _figures(record.results)
    columns[QUOTED] = reported
    rows = []
    for result, unit in COMPARED.items():
        known_cases = {case for known in columns.values() for case in known.get(result, {})}
        cases = [case for case in (*CASES.values(), "each phase") if case in known_cases]
        rows += [{"result": result, "cache": case, "unit": unit,
                  **{name: known.get(result, {}).get(case) for name, known in columns.items()}} for case in cases]
    return pd.DataFrame(rows, columns=["result", "cache", "unit", *columns]).convert_dtypes()


def _figures(found: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Result -> cache -> figure, of a record's results or of a prediction."""
    flat = {name: found[name] for name in COMPARED if isinstance(found.get(name), Mapping)}
    for phase in ("revisit", "cold", "warm"):
        flat[f"{phase}_hit_tokens"] = {case: phases[phase] for case, phases in found.get("hit_tokens", {}).items()}
    flat["revisit_hit_pct"] = {case: phases["revisit"] for case, phases in found.get("hit_pct", {}).items()}
    return {**flat, "query_tokens": {"each phase": found.get("query_tokens")}}

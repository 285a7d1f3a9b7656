"""What the prefix-cache lab measured: hit tokens, rates and times by phase, and its variants.

In: lines of the run (`steps.jsonl`). Out: results and samples of a record. A line is {"kind": "server" | "step" |
"end", ...}; a step holds what the client saw and the difference of the two metrics pages around it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from labkit.calc.prefix_hits import lifetime_rate
from labkit.calc.prefix_phases import PHASES, ROUTINGS, TENANTS
from labkit.calc.prefix_prediction import CASES
from labkit.calc.statistics import nearest_rank
from labkit.records import quantity

Line = Mapping[str, Any]
COUNTED = {"query_tokens": "prefix_cache_queries", "hit_tokens": "prefix_cache_hits", "preemptions": "preemptions",
           "generated_tokens": "generation_tokens"}
"""Predicted name -> name of the counter."""


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Lines of a run's file; none if it is not there.

    Raises: ValueError for a line that is no JSON object.
    """
    if not path.is_file():
        return []
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]
    if any(not isinstance(line, dict) or "kind" not in line for line in lines):
        raise ValueError(f"{path.name}: expected JSON objects with a kind")
    return lines


def of_kind(lines: Iterable[Line], kind: str) -> list[Line]:
    """Lines of one kind, in order."""
    return [line for line in lines if line["kind"] == kind]


def steps_of(lines: Iterable[Line], name: str, *, cache: str | None = None) -> list[Line]:
    """Lines of one step by start, of one cache or of all servers."""
    return [line for line in of_kind(lines, "step") if line["name"] == name and cache in (None, line["cache"])]


def counted(line: Line) -> dict[str, int]:
    """What the engine's counters say of a step, by the names of the prediction.

    Raises: ValueError naming a counter that the pages lack, or why they give no difference.
    """
    found = {ours: line["pair"].get(theirs) for ours, theirs in COUNTED.items()}
    for name, value in found.items():
        if value is None:
            raise ValueError(f"{line['server']} {line['name']}: {line['pair'].get('error') or f'no counter of {name}'}")
    return found


def results(lines: Sequence[Line]) -> dict[str, Any]:
    """Everything a record publishes of a run. Keys of caches are the report's: `default` and `1 GiB`."""
    caches = [cache for cache in CASES if steps_of(lines, PHASES[0], cache=cache)]
    hits = {cache: {name: [counted(line)["hit_tokens"] for line in steps_of(lines, name, cache=cache)]
                    for name in PHASES} for cache in caches}
    first = {cache: {name: counted(steps_of(lines, name, cache=cache)[0]) for name in PHASES} for cache in caches}
    queries = sorted({counts["query_tokens"] for phases in first.values() for counts in phases.values()})
    capacity = {CASES[line["cache"]]: line["kv_cache_tokens"] for line in of_kind(lines, "server")}
    found: dict[str, Any] = {
        "block_size": next((line["block_size"] for line in of_kind(lines, "server")), None),
        "cap_tokens": capacity, "cap_small": capacity.get("1 GiB"),
        "query_tokens": queries[0] if len(queries) == 1 else None,
        "hit_tokens": {CASES[cache]: {name: values[0] for name, values in phases.items()}
                       for cache, phases in hits.items()},
        "hit_tokens_by_start": {CASES[cache]: phases for cache, phases in hits.items()},
        "hit_pct": {CASES[cache]: {name: _pct(counts) for name, counts in phases.items()}
                    for cache, phases in first.items()},
        "lifetime_pct": {CASES[cache]: round(100 * lifetime_rate(phases), 3) for cache, phases in first.items()},
        "lifetime_pct_after": {CASES[cache]: _running_rates(phases) for cache, phases in first.items()},
        "client_lag_p99_ms": round(1e3 * max(line["client_lag_p99_s"] for line in of_kind(lines, "step")), 2),
        "startup_s": {line["server"]: round(line["startup_s"], 1) for line in of_kind(lines, "server")},
    }  # fmt: skip
    for name, cache in (("hit_default", "large"), ("hit_small", "small")):
        if cache in first:
            counts = first[cache]["revisit"]
            found[name] = {"hit": counts["hit_tokens"], "query": counts["query_tokens"], "pct": _pct(counts)}
    return {**found, **timings(lines, caches), **variants(lines), "global_misleads": misleads(found),
            "counter_diff": is_difference(lines)}


def _pct(counts: Mapping[str, Any]) -> float:
    return round(100 * counts["hit_tokens"] / counts["query_tokens"], 3)


def _running_rates(phases: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """The rate that a counter read since the start gives after each phase, percent."""
    hits = queries = 0
    found = {}
    for name in PHASES:
        hits, queries = hits + phases[name]["hit_tokens"], queries + phases[name]["query_tokens"]
        found[name] = round(100 * hits / queries, 3)
    return found


def timings(lines: Sequence[Line], caches: Sequence[str]) -> dict[str, Any]:
    """Times by cache and phase, of all starts together, and what two equal starts differ by.

    Returns: ttft_ms (median with p10 and p90, and mean and p95 beside it), ttft_<phase> (means, as the report prints
        them), requests_per_s (one number a start), revisit over warm (mean, p95, throughput), aa_ratio: of two things
        that are the same, mean TTFT of the last start over the first, and of rewarm over warm in the large cache.
    """
    found: dict[str, Any] = {"ttft_ms": {}, "requests_per_s": {}, "aa_ratio": {}}
    for cache in caches:
        parts = {name: [line["ttft_ms"] for line in steps_of(lines, name, cache=cache) if line["ttft_ms"]]
                 for name in PHASES}
        times = {name: _times(values) for name, values in parts.items() if values}
        rates = {name: [round(line["num_requests"] / line["wall_s"], 3)
                        for line in steps_of(lines, name, cache=cache)] for name in PHASES}
        case = CASES[cache]
        found["ttft_ms"][case], found["requests_per_s"][case] = times, rates
        if len(times) < len(PHASES):
            continue
        for name in PHASES:
            found.setdefault(f"ttft_{name}", {})[case] = times[name]["mean"]
        for name, key in (("revisit_warm_mean", "mean"), ("revisit_warm_p95", "p95")):
            found.setdefault(name, {})[case] = round(times["revisit"][key] / times["warm"][key], 4)
        found.setdefault("throughput_ratio", {})[case] = round(mean(rates["revisit"]) / mean(rates["warm"]), 4)
        found["aa_ratio"] |= {f"{case}, {name}, two starts": round(mean(values[-1]) / mean(values[0]), 4)
                              for name, values in parts.items() if len(values) > 1}
        if cache == "large":
            found["aa_ratio"][f"{case}, rewarm over warm"] = round(times["rewarm"]["mean"] / times["warm"]["mean"], 4)
    spreads = [abs(ratio - 1) for ratio in found["aa_ratio"].values()]
    found["noise_floor_pct"] = round(100 * max(spreads), 2) if spreads else None
    return found


def _times(parts: Sequence[Sequence[float]]) -> dict[str, Any]:
    values = [value for part in parts for value in part]
    rounded = {key: round(value, 4) if isinstance(value, float) else value
               for key, value in quantity(values, "ms", num_processes=len(parts)).items()}
    return {**rounded, "mean": round(mean(values), 4), "p95": round(nearest_rank(values=values, percent=95), 4)}


def variants(lines: Sequence[Line]) -> dict[str, Any]:
    """Hit tokens of the other questions: by tenant, by length of the shared prefix, by routing and replica."""
    tails = [line for line in of_kind(lines, "step") if line["name"].startswith(("tail ", "whole "))]
    routed = {name: {line["server"]: {"requests": line["num_requests"], "hit_tokens": counted(line)["hit_tokens"],
                                      "query_tokens": counted(line)["query_tokens"],
                                      "ttft_p50_ms": round(nearest_rank(values=line["ttft_ms"], percent=50), 3)
                                      if line["ttft_ms"] else None}
                     for line in steps_of(lines, name)} for name in ROUTINGS}
    totals = {name: {key: sum(part[key] or 0 for part in parts.values()) for key in ("hit_tokens", "query_tokens")}
              for name, parts in routed.items()}
    return {
        "tenant_hits": {name: counted(line)["hit_tokens"] for name in TENANTS for line in steps_of(lines, name)},
        "tail_hits": {line["name"]: counted(line)["hit_tokens"] for line in tails},
        "routing": routed,
        "routing_hit_pct": {name: round(100 * counts["hit_tokens"] / counts["query_tokens"], 3)
                            for name, counts in totals.items() if counts["query_tokens"]},
        "routing_skew": {name: round(max(counts) / mean(counts), 4) for name, parts in routed.items()
                         if (counts := [part["requests"] for part in parts.values()])},
    }  # fmt: skip


def misleads(found: Mapping[str, Any]) -> bool | None:
    """Whether the lifetime rate hides what the phases show; None with one cache only.

    It does when the caches differ by less than half as much in it as in the phase that matters (revisit), and it stands
    more than 50 points above a phase without any hit (pollution).
    """
    lifetime, phases = found["lifetime_pct"], found["hit_pct"]
    if len(lifetime) < 2:
        return None
    gap = abs(phases["default"]["revisit"] - phases["1 GiB"]["revisit"])
    return bool(abs(lifetime["default"] - lifetime["1 GiB"]) < gap / 2
                and all(lifetime[case] - min(phases[case].values()) > 50 for case in lifetime))


def is_difference(lines: Sequence[Line]) -> bool:
    """Counters only grow, and the differences of consecutive pages add up to the difference of the outermost ones."""
    servers = {line["server"] for line in of_kind(lines, "step")}
    for server in servers:
        steps = [line for line in of_kind(lines, "step") if line["server"] == server]
        for name in COUNTED.values():
            totals = [steps[0]["before"][name], *(line["after"][name] for line in steps)]
            if None in totals or sorted(totals) != totals:
                return False
            if sum(line["pair"][name] for line in steps) != totals[-1] - totals[0]:
                return False
        if steps[-1]["after"]["prefix_cache_queries"] == steps[-1]["pair"]["prefix_cache_queries"]:
            return False  # a cumulative counter has grown before
    return bool(servers)


def samples(lines: Sequence[Line]) -> dict[str, Any]:
    """Every TTFT for `RunRecord.samples`: `ttft <cache> <phase>`, one list a start."""
    return {
        f"ttft {CASES[cache]} {name}": {"unit": "ms", "values": [[round(value, 3) for value in line["ttft_ms"]]
                                                                for line in found]}
        for cache in CASES for name in PHASES if (found := steps_of(lines, name, cache=cache))
    }  # fmt: skip


def lifecycle(lines: Sequence[Line], drill: Mapping[str, Any]) -> dict[str, bool]:
    """What the run says of ending a server.

    Returns: server_lifecycle: every server was seen ready, its counters were kept step by step, nothing of it was left,
        and a stand-in that ignores SIGTERM was gone after SIGKILL of its group; lifecycle_why: the engine is a process
        of its own below the server, and such a child lives on when only its parent is killed.
    """
    ends, ready = of_kind(lines, "end"), {line["server"] for line in of_kind(lines, "server")}
    gone = bool(ends) and {line["server"] for line in ends} == ready and not any(line["num_left"] for line in ends)
    return {
        "server_lifecycle": gone and drill["term_ignored"] and not drill["left_after_group_kill"],
        "lifecycle_why": all(line["num_processes"] > 1 for line in ends) and bool(ends) and drill["child_survived"]
        and not drill["left_after_group_kill"],
    }

"""What the loads of the decode lab came to: steps in which the whole batch decodes, single prompts, the server's page.

In: results of requests and pages of the server. Out: plain dicts, times in milliseconds.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any

from labkit.analyze.load_results import Result
from labkit.analyze.prometheus import parse_metrics
from labkit.analyze.vllm_metrics import pair_summary
from labkit.analyze.vllm_server_log import parse_server_log
from labkit.calc.gemm_time import fit_line
from labkit.records import quantity

SIMULATED = re.compile(r"Simulating MoE routing using an? (\w+) (?:routing )?strategy")
EDGE_S = 1e-6
"""Slack at the ends of the window: stamps are added up from gaps."""
Window = dict[str, Any]


@dataclass(slots=True, kw_only=True)
class Point:
    """All loads of one kind on one server."""

    kind: str
    """`decode` or `ttft`."""
    size: int
    """Sequences of the batch, or tokens of the prompt."""
    prompt_tokens: int
    output_tokens: int
    rounds: list[list[Result]] = field(default_factory=list)
    pages: tuple[str, str] = ("", "")
    """Metrics before the first and after the last."""


@dataclass(slots=True, kw_only=True)
class Served:
    """One server's life."""

    name: str
    """`<model> <mode>`."""
    startup_s: float
    log: str
    page: str
    """Metrics when it was ready."""
    client_lag_s: float = 0.0
    """How late the client's loop woke, 99th percentile, the worst load."""
    points: list[Point] = field(default_factory=list)


def together(results: Sequence[Result]) -> Window:
    """The part of a load in which every request decodes: from the last first token to the first last one.

    Before it prompts of others are taken in, after it the batch is smaller.

    Args:
        results: requests sent at once, all good.

    Returns: {"gaps_s": gaps of each stream inside it, "streams_left_out": those with a chunk of more than one token,
        whose gaps are not of tokens, "num_steps": steps inside it, by the stream with most chunks}.
    """
    good = [result for result in results if result.success and result.ttft_s is not None]
    stamps = [list(accumulate(result.gaps_s, initial=result.sent_s + (result.ttft_s or 0.0))) for result in good]
    if not stamps or len(good) < len(results):
        return {"gaps_s": [], "streams_left_out": 0, "num_steps": 0}
    begin, end = max(line[0] for line in stamps) - EDGE_S, min(line[-1] for line in stamps) + EDGE_S
    inside = [[b - a for a, b in pairwise(line) if a >= begin and b <= end] for line in stamps]
    gaps = [found for result, found in zip(good, inside) if result.one_token_a_chunk]
    return {"gaps_s": gaps, "streams_left_out": len(inside) - len(gaps), "num_steps": max(map(len, inside))}


def start_facts(served: Served) -> dict[str, Any]:
    """What a server says of itself when it is ready, from its log and from its page.

    Returns: startup_s, client_lag_ms, log_tokens, page_tokens, page_blocks, page_block_size, model_load_gib,
        simulated_routing (None where the source does not say).
    """
    log, labels = parse_server_log(served.log), _cache_config(served.page)
    blocks, block = (_whole(labels.get(name)) for name in ("num_gpu_blocks", "block_size"))
    simulated = SIMULATED.search(served.log)
    return {
        "startup_s": round(served.startup_s, 1), "client_lag_ms": round(1e3 * served.client_lag_s, 2),
        "log_tokens": log["kv_cache_tokens"], "model_load_gib": log["model_load_gib"],
        "page_blocks": blocks, "page_block_size": block,
        "page_tokens": blocks * block if blocks and block else None,
        "simulated_routing": simulated[1] if simulated else None}


def _cache_config(page: str) -> dict[str, str]:
    samples, _ = parse_metrics(page)
    series = samples.get("vllm:cache_config_info") or samples.get("vllm_cache_config_info") or {}
    return dict(next(iter(series), ()))


def _whole(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdigit() else None


def results(served: Sequence[Served], predicted: Mapping[str, Any]) -> dict[str, Any]:
    """Everything a record publishes of the servers.

    Args:
        served: in order.
        predicted: {"servers": {name: as `labkit.analyze.decode_prediction.server_prediction`}}.

    Returns: "server" {name: start_facts}, "capacity_tokens" {name: by the page}, "itl_ms" {name: {batch: quantity}},
        "ttft_ms" {name: {prompt tokens: quantity}}, "server_prefill_ms" {name: {prompt tokens: mean}}, "num_steps"
        {name: {batch: steps of the whole batch, all rounds}}, "residual_pct" and "over_floor_ms", each {"itl",
        "ttft"}, "fit" {name: {"fixed_ms", "gb_per_s"} of a line of ITL against bytes}, "requests", "counters" {name:
        {point: client and server totals}}, "streams_left_out".
    Raises: ValueError naming the point at which no step of the whole batch was seen.
    """
    found: dict[str, Any] = {
        "server": {one.name: start_facts(one) for one in served}, "itl_ms": {}, "ttft_ms": {}, "num_steps": {},
        "server_prefill_ms": {}, "counters": {}, "streams_left_out": 0}
    for one in served:
        for point in one.points:
            label = f"{point.kind} {point.size}"
            found["counters"].setdefault(one.name, {})[label] = totals(point)
            if point.kind == "ttft":
                times = [1e3 * r.ttft_s for part in point.rounds for r in part if r.ttft_s is not None]
                if times:
                    found["ttft_ms"].setdefault(one.name, {})[str(point.size)] = quantity(times, "ms", num_processes=1)
                spent = pair_summary(*point.pages).get("prefill") or {}
                found["server_prefill_ms"].setdefault(one.name, {})[str(point.size)] = (
                    None if spent.get("mean_s") is None else 1e3 * spent["mean_s"])
                continue
            windows = [together(part) for part in point.rounds]
            gaps = [1e3 * gap for window in windows for stream in window["gaps_s"] for gap in stream]
            if not gaps:
                raise ValueError(f"{one.name}, batch {point.size}: no step in which the whole batch decodes")
            found["itl_ms"].setdefault(one.name, {})[str(point.size)] = quantity(gaps, "ms", num_processes=1)
            found["num_steps"].setdefault(one.name, {})[str(point.size)] = sum(
                window["num_steps"] for window in windows)
            found["streams_left_out"] += sum(window["streams_left_out"] for window in windows)
    found["capacity_tokens"] = {name: facts["page_tokens"] for name, facts in found["server"].items()}
    return {**found, **distances(found, predicted["servers"]), "fit": fits(found["itl_ms"], predicted["servers"])}


def totals(point: Point) -> dict[str, Any]:
    """Requests and tokens of a point as the client and as the server counted them."""
    every = [result for part in point.rounds for result in part]
    page = pair_summary(*point.pages)
    return {
        "requests": len(every), "failed": sum(not result.success for result in every),
        "failures": sorted({str(result.error) for result in every if not result.success}),
        "client": {"prompt_tokens": sum(result.prompt_tokens or 0 for result in every),
                   "generation_tokens": sum(result.output_tokens or 0 for result in every),
                   "requests_finished": sum(result.success for result in every)},
        "asked": {"prompt_tokens": len(every) * point.prompt_tokens,
                  "generation_tokens": len(every) * point.output_tokens, "requests_finished": len(every)},
        "server": {name: page.get(name) for name in ("prompt_tokens", "generation_tokens", "requests_finished")},
        "preemptions": page.get("preemptions"), "hits": page.get("prefix_cache_hits"), "page_error": page.get("error")}


def distances(found: Mapping[str, Any], predicted: Mapping[str, Any]) -> dict[str, Any]:
    """Measured median against the prediction: residual in percent, and milliseconds over the roofline's floor."""
    out: dict[str, Any] = {"residual_pct": {}, "over_floor_ms": {}}
    for short, key, kind in (("itl", "itl_ms", "decode"), ("ttft", "ttft_ms", "ttft")):
        for name, by_size in found[key].items():
            for size, seen in by_size.items():
                told = predicted[name][kind][size]
                out["residual_pct"].setdefault(short, {}).setdefault(name, {})[size] = round(
                    100 * (seen["value"] / told["predicted_ms"] - 1), 2)
                out["over_floor_ms"].setdefault(short, {}).setdefault(name, {})[size] = round(
                    seen["value"] - told["floor_ms"], 4)
    return out


def fits(itl_ms: Mapping[str, Any], predicted: Mapping[str, Any]) -> dict[str, Any]:
    """A line of ITL against the bytes of a step, for each server: what a step costs beside its bytes, and their rate.

    None for a server with fewer than two batches, and a rate of None where more bytes take no more time.
    """
    out: dict[str, Any] = {}
    for name, by_batch in itl_ms.items():
        moved = [predicted[name]["decode"][batch]["bytes"] for batch in by_batch]
        if len(set(moved)) < 2:
            out[name] = None
            continue
        line = fit_line(x=[x / 1e9 for x in moved], y=[seen["value"] for seen in by_batch.values()])
        out[name] = {"fixed_ms": line["intercept"],
                     "gb_per_s": 1e3 / line["slope"] if line["slope"] > 0 else None}
    return out


def samples(served: Sequence[Served]) -> dict[str, Any]:
    """For `RunRecord.samples`: TTFT of every single prompt; ITL of each round's first stream, a step for each value.

    All streams of a batch get their token from the same step, so one of them stands for the batch.
    """
    out: dict[str, Any] = {}
    for one in served:
        for point in one.points:
            if point.kind == "ttft":
                values = [[_short(r.ttft_s) for r in part if r.ttft_s is not None] for part in point.rounds]
            else:
                values = [[_short(gap) for gap in next(iter(together(part)["gaps_s"]), [])] for part in point.rounds]
            out[f"{one.name} {point.kind} {point.size}"] = {"unit": "ms", "values": values}
    return out


def _short(seconds: float) -> float:
    return float(f"{1e3 * seconds:.5g}")

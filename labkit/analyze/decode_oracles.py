"""What must hold for a run of the decode lab. Times are not judged, but for one: no step beats the data sheet."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from labkit.analyze.decode_prediction import draws
from labkit.calc.moe_experts_read import experts_distribution
from labkit.records import Oracle

LOAD_TOLERANCE = 0.03
"""Of the weights' bytes: buffers beside the parameters, and the absorbed products of a latent."""
LEAST_LOAD_GIB = 0.5
"""Below it the log's two digits say nothing."""


def oracles(params: Mapping[str, Any], results: Mapping[str, Any], predicted: Mapping[str, Any]) -> list[Oracle]:
    """The oracles of one run.

    Args:
        params: as recorded.
        results: of `labkit.analyze.decode_roofline.results`.
        predicted: {"servers", "rates", "tensor_parameters"}.
    """
    servers, facts = predicted["servers"], results["server"]
    capacity = {name: told["capacity_tokens"] for name, told in servers.items()}
    points = {f"{name}, {label}": found for name, by_label in results["counters"].items()
              for label, found in by_label.items()}  # fmt: skip
    wanted = len(servers) * (len(params["batches"]) + len(params["prompt_tokens"]))
    return [
        _equal("servers_measured", "servers that were measured", list(servers), list(facts)),
        _equal("capacity_by_log", "tokens of the KV cache as each server's log prints them", capacity,
               {name: found["log_tokens"] for name, found in facts.items()}),
        _equal("capacity_by_page", "blocks x block size on each server's metrics page", capacity,
               {name: found["page_tokens"] for name, found in facts.items()}),
        _equal("block_size_kept", "tokens of a block on each page, as asked for",
               {name: told["block_size"] for name, told in servers.items()},
               {name: found["page_block_size"] for name, found in facts.items()}),
        _equal("points_measured", "points of all servers", wanted, len(points)),
        _equal("none_failed", "requests that failed, with their reasons", {},
               {name: found["failures"] for name, found in points.items() if found["failed"]}),
        _equal("exact_tokens", "points whose tokens are as many as were asked for", list(points),
               [name for name, found in points.items() if found["client"] == found["asked"]]),
        _equal("server_counts_alike", "points at which the server counted the client's tokens and requests",
               list(points), [name for name, found in points.items() if found["server"] == found["client"]]),
        _equal("nothing_shared_or_evicted", "prefix hits and preemptions", (0, 0),
               tuple(sum(found[name] or 0 for found in points.values()) for name in ("hits", "preemptions"))),
        _batches(params, results),
        _equal("parameters_two_ways", "parameters: closed form against the sum over every tensor of the model folder",
               predicted["tensor_parameters"], {name: told["parameters"] for name, told in servers.items()}),
        *_experts(params, predicted), *(_routing(predicted, facts) if params["device"] == "cuda" else []),
        *_weights(predicted, facts), *_roof(predicted, results),
    ]


def _batches(params: Mapping[str, Any], results: Mapping[str, Any]) -> Oracle:
    """Each batch decoded together for at least half of its tokens, in every round."""
    least = params["rounds"] * (params["output_tokens"] // 2)
    short = {f"{name}, batch {batch}": steps for name, by_batch in results["num_steps"].items()
             for batch, steps in by_batch.items() if steps < least}  # fmt: skip
    return _equal("batch_together", f"batches that were whole for fewer than {least} steps", {}, short)


def _experts(params: Mapping[str, Any], predicted: Mapping[str, Any]) -> list[Oracle]:
    """Touched experts by the closed form, and by a Markov chain over their number that does not use it."""
    worst, count = 0.0, 0
    for told in predicted["servers"].values():
        for batch, point in told["decode"].items():
            if point["experts_read"] is None:
                continue
            count_drawn, each = draws(int(batch), told["top_k"], may_repeat=params["draws_may_repeat"])
            chance = experts_distribution(num_tokens=count_drawn, top_k=each, num_experts=told["num_experts"])
            worst = max(worst, abs(sum(n * p for n, p in enumerate(chance)) - point["experts_read"]))
            count += 1
    if not count:
        return []
    return [Oracle(name="experts_two_ways", passed=worst <= 1e-9, expected=0, seen=worst, tolerance=1e-9,
                   detail=f"mean number of experts that a batch touches, closed form against a chain, {count} batches")]


def _routing(predicted: Mapping[str, Any], facts: Mapping[str, Any]) -> list[Oracle]:
    """Dummy weights route in no particular way; the prediction's uniform routing has to be asked for, and is logged."""
    asked = {name: "uniform_random" for name, told in predicted["servers"].items() if told["num_experts"]}
    if not asked:
        return []
    return [_equal("routing_uniform", "strategy of routing that the log of each server with experts names", asked,
                   {name: facts[name]["simulated_routing"] for name in asked if name in facts})]


def _weights(predicted: Mapping[str, Any], facts: Mapping[str, Any]) -> list[Oracle]:
    """Memory that the engine says its weights take, where the log's digits can tell."""
    found = []
    for name, told in predicted["servers"].items():
        expected, seen = told["weights_bytes"] / 2**30, facts.get(name, {}).get("model_load_gib")
        if expected >= LEAST_LOAD_GIB and seen is not None:
            slack = round(LOAD_TOLERANCE * expected, 4)
            found.append(Oracle(name=f"weights_loaded {name}", passed=abs(seen - expected) <= slack,
                                expected=round(expected, 4), seen=seen, tolerance=slack,
                                detail="GiB of weights by the log"))
    return found


def _roof(predicted: Mapping[str, Any], results: Mapping[str, Any]) -> list[Oracle]:
    """No step moves its bytes faster than the data sheet's memory: else fewer bytes were read than predicted."""
    peak = predicted["rates"].get("datasheet_bytes_per_s")
    if not peak:
        return []
    beaten = {}
    for name, by_batch in results["itl_ms"].items():
        for batch, seen in by_batch.items():
            least = 1e3 * predicted["servers"][name]["decode"][batch]["bytes"] / peak
            if seen["value"] < least:
                beaten[f"{name}, batch {batch}"] = {"least_ms": round(least, 4), "seen_ms": seen["value"]}
    return [_equal("under_the_roof", "batches whose step is faster than its bytes at the data sheet's bandwidth", {},
                   beaten)]


def _equal(name: str, detail: str, expected: Any, seen: Any) -> Oracle:
    return Oracle(name=name, passed=seen == expected, expected=expected, seen=seen, detail=detail)

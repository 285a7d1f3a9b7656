"""Results of the preemption lab from the lines of its rounds: counts, steps, times, and what they say together.

In: lines of labkit.analyze.preemption_lines, the run's parameters and prediction. Out: plain JSON for the record.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean
from typing import Any

from labkit.analyze.load_results import spread
from labkit.analyze.preemption_lines import steps_of
from labkit.analyze.preemption_plan import config_of, contrast, point_labels
from labkit.analyze.vllm_iterations import recomputed_tokens, replay
from labkit.calc.preemption_prediction import round_prediction
from labkit.records import quantity

Lines = Sequence[dict[str, Any]]
CURVES = ("kv_cache_usage", "running", "waiting")


def rounds_of(lines: Lines, *, purpose: str | None = None, label: str | None = None) -> list[dict[str, Any]]:
    """Lines of rounds: `purpose` is `cold`, `point`, `plan` or `stagger`."""
    return [line for line in lines if line["kind"] == "round" and purpose in (None, line["purpose"])
            and label in (None, line["label"])]


def good(line: dict[str, Any]) -> list[dict[str, Any]]:
    """Requests of a round that ended as asked."""
    return [request for request in line["requests"] if request["success"]]


def replay_of(line: dict[str, Any], params: dict[str, Any], predicted: dict[str, Any]) -> dict[str, Any]:
    """The model on the arrivals that a round's steps show; {"error"} when they cannot be read.

    Adds recomputed_seen (tokens that the engine computed more than once, by its own log).
    """
    shape = {"num_requests": line["num_requests"], "prompt_tokens": params["prompt_tokens"],
             "output_tokens": line["output_tokens"]}
    steps = steps_of(line)
    try:
        found = replay(steps, config_of(params, predicted["blocks"][line["cache"]]), **shape)
    except ValueError as error:
        return {"error": str(error), "num_steps": len(steps)}
    return {**found, "recomputed_seen": recomputed_tokens(steps, **shape)}


def results(lines: Lines, params: dict[str, Any], predicted: dict[str, Any]) -> dict[str, Any]:
    """Everything the record keeps.

    Keys by point where not said otherwise: count (preemptions), recomputed_tokens, num_steps (each round), peak_kv (%,
    sampled), peak_kv_step (%, after each step, by the log), peak_running_waiting (sampled), throughput (tokens/s,
    prompt and output), ttft, tpot (ms) and e2el (s): means of a round, the spread is over rounds; requests (spread over
    requests); arrivals (first round); on_arrivals (the model's preemptions and tokens again on them, each round);
    kv_tokens. Of the whole run: released, cold_ttft, ratios, implicit_throttle, plan, stagger, steps_compared,
    steps_different, usage_different, startup_s.
    """
    labels = point_labels(params)
    found: dict[str, Any] = {name: {} for name in (
        "count", "recomputed_tokens", "num_steps", "peak_kv", "peak_kv_step", "peak_running_waiting", "throughput",
        "ttft", "tpot", "e2el", "requests", "arrivals", "on_arrivals", "kv_tokens")}
    replays = {id(line): replay_of(line, params, predicted) for line in rounds_of(lines)}
    servers = {line["cache"]: line for line in lines if line["kind"] == "server"}
    for label, (cache, _) in labels.items():
        rounds = rounds_of(lines, purpose="point", label=label)
        if not rounds or not any(good(line) for line in rounds):
            continue
        found["kv_tokens"][label] = servers[cache]["kv_cache_tokens"] if cache in servers else None
        found["count"][label] = max(line["counts"]["preemptions"] or 0 for line in rounds)
        found["recomputed_tokens"][label] = max(replays[id(line)].get("recomputed_seen", -1) for line in rounds)
        found["num_steps"][label] = [len(line["steps"]) for line in rounds]
        found["arrivals"][label] = replays[id(rounds[0])].get("arrivals")
        found["on_arrivals"][label] = [[replays[id(line)].get(name) for name in ("preemptions", "recomputed_tokens")]
                                       for line in rounds]
        found |= {name: found[name] | {label: value} for name, value in _peaks(rounds).items()}
        found |= {name: found[name] | {label: value} for name, value in _times(rounds, params).items()}
    return {
        **found, "released": sorted({line["how"] for line in rounds_of(lines, purpose="point")}),
        "ratios": ratios(found, params), "implicit_throttle": implicit_throttle(lines, params, predicted, replays),
        "cold_ttft": _cold(lines, found, params),
        "plan": {"quiet_concurrency": predicted["plan"]["quiet_concurrency"], "preemptions": {
            str(line["concurrency"]): line["counts"]["preemptions"] for line in rounds_of(lines, purpose="plan")}},
        "stagger": [{"gap_ms": line["gap_ms"], "preemptions": line["counts"]["preemptions"],
                     "model": replays[id(line)].get("preemptions"), "arrivals": replays[id(line)].get("arrivals")}
                    for line in rounds_of(lines, purpose="stagger")],
        "steps_compared": sum(len(line["steps"]) for line in rounds_of(lines)),
        "steps_different": sum(seen.get("num_different", seen["num_steps"]) for seen in replays.values()),
        "usage_different": sum(seen.get("num_usage_different") or 0 for seen in replays.values()),
        "startup_s": {f"{line['cache']} start {line['start']}": line["startup_s"] for line in lines
                      if line["kind"] == "server"},
    }


def _peaks(rounds: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Highest values of the gauges over all rounds of a point; None where nothing was sampled."""
    seen = {name: [sample[name] for line in rounds for sample in line["samples"] if sample.get(name) is not None]
            for name in CURVES}
    logged = [step.usage_pct for line in rounds for step in steps_of(line) if step.usage_pct is not None]
    usage = max(seen["kv_cache_usage"], default=None)
    return {"peak_kv": None if usage is None else 100 * usage, "peak_kv_step": max(logged, default=None),
            "peak_running_waiting": [max(seen[name], default=None) for name in ("running", "waiting")]}


def _times(rounds: Sequence[dict[str, Any]], params: dict[str, Any]) -> dict[str, Any]:
    """A round gives one number each, as a benchmark prints it; requests are spread out beside."""
    tokens = params["prompt_tokens"] + params["output_tokens"]
    num_processes = len({line["start"] for line in rounds})
    means = {name: [factor * mean(values) for line in rounds if (values := [
        request[f"{name}_s"] for request in good(line) if request[f"{name}_s"] is not None])]
        for name, factor in (("ttft", 1e3), ("tpot", 1e3), ("e2el", 1.0))}
    means["throughput"] = [len(good(line)) * tokens / line["wall_s"] for line in rounds]
    units = {"ttft": "ms", "tpot": "ms", "e2el": "s", "throughput": "tokens/s"}
    every = [request for line in rounds for request in good(line)]
    return {**{name: quantity(means[name], unit, num_processes=num_processes) for name, unit in units.items()},
            "requests": {name: spread([r[name] for r in every if r[name] is not None])
                         for name in ("ttft_s", "tpot_s", "e2el_s")}}


def ratios(found: dict[str, Any], params: dict[str, Any]) -> dict[str, float]:
    """The small cache against the large one: throughput_pct, tpot_slower_pct, ttft_lower_pct; empty without both."""
    small, large = contrast(params)
    if small not in found["ttft"] or large not in found["ttft"]:
        return {}
    value = lambda name, label: found[name][label]["value"]  # noqa: E731
    return {"throughput_pct": 100 * value("throughput", small) / value("throughput", large),
            "tpot_slower_pct": 100 * (value("tpot", small) / value("tpot", large) - 1),
            "ttft_lower_pct": 100 * (1 - value("ttft", small) / value("ttft", large))}


def implicit_throttle(
    lines: Lines, params: dict[str, Any], predicted: dict[str, Any], replays: dict[int, dict[str, Any]],
) -> dict[str, bool]:
    """The report's explanation, part by part, from the engine's steps alone; empty without both caches.

    fewer_running: requests in a step, on average. recomputes: tokens computed twice. longer_decode: steps of the round.
    earlier_first_token: steps until the first token, on average over requests.
    """
    one = []
    for label in contrast(params):
        rounds = rounds_of(lines, purpose="point", label=label)
        if not rounds or "error" in replays[id(rounds[0])]:
            return {}
        line, seen, steps = rounds[0], replays[id(rounds[0])], steps_of(rounds[0])
        model = round_prediction(
            config_of(params, predicted["blocks"][line["cache"]]), concurrency=1, arrivals=seen["arrivals"],
            num_requests=line["num_requests"], prompt_tokens=params["prompt_tokens"],
            output_tokens=line["output_tokens"], step_ms=1, token_us=0)
        one.append({"running": mean(s.context_requests + s.generation_requests for s in steps), "steps": len(steps),
                    "twice": seen["recomputed_seen"], "first": mean(model["first_steps"])})
    small, large = one
    return {"fewer_running": small["running"] < large["running"],
            "recomputes": small["twice"] > 0 and large["twice"] == 0,
            "longer_decode": small["steps"] > large["steps"], "earlier_first_token": small["first"] < large["first"]}


def _cold(lines: Lines, found: dict[str, Any], params: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Mean TTFT (ms) of the same prompts as a server's very first load, and later, by cache."""
    seen: dict[str, dict[str, float]] = {}
    for label in contrast(params):
        cache = point_labels(params)[label][0]
        first = [request["ttft_s"] for line in rounds_of(lines, purpose="cold") if line["cache"] == cache
                 for request in good(line)]
        if first and label in found["ttft"]:
            warm = found["ttft"][label]["value"]
            seen[cache] = {"first_load_ms": 1e3 * mean(first), "later_ms": warm,
                           "ratio": 1e3 * mean(first) / warm if warm else 0.0}
    return seen


def samples(lines: Lines, params: dict[str, Any]) -> dict[str, Any]:
    """Samples for the record: times of every request, [rounds][requests]; curves of each point's first round."""
    found: dict[str, Any] = {}
    for label in point_labels(params):
        rounds = rounds_of(lines, purpose="point", label=label)
        for name in ("ttft_s", "tpot_s", "e2el_s", "sent_s"):
            if rounds:
                found[f"{name} {label}"] = {"unit": "s", "values": [
                    [None if r[name] is None else round(r[name], 6) for r in line["requests"]] for line in rounds]}
        curve = [s for line in rounds[:1] for s in line["samples"] if s.get("kv_cache_usage") is not None]
        if curve:
            found[f"curve {label}"] = {"unit": "t_s; kv_cache_usage; running; waiting", "values": [
                [round(s["t_s"], 3) for s in curve], *([round(s[name] or 0, 5) for s in curve] for name in CURVES)]}
    return found

"""Oracles of the preemption lab: every count by at least two ways that do not share code."""

from __future__ import annotations

from typing import Any

from labkit.analyze.preemption import Lines, rounds_of
from labkit.analyze.preemption_lines import steps_of
from labkit.analyze.preemption_plan import point_labels
from labkit.calc.capacity_plan import printed_concurrency
from labkit.records import Oracle

TOLERANCE_PCT = 0.01
"""Of a gauge printed with many digits against a ratio of blocks."""


def oracles(params: dict[str, Any], lines: Lines, results: dict[str, Any], predicted: dict[str, Any]) -> list[Oracle]:
    """Every check of a run.

    Args:
        params: of the run, as JSON.
        lines: of its rounds and servers.
        results: of `labkit.analyze.preemption.results`.
        predicted: written before the run.
    """
    labels = list(point_labels(params))
    every = rounds_of(lines)
    planned = _planned(params)
    points = {label: rounds_of(lines, purpose="point", label=label) for label in labels}
    held = all(line["how"].startswith("held") for line in every if line["purpose"] != "stagger")
    whence = "predicted before the run" if held else "by the model on the arrivals that the log shows: nobody held them"
    told = {name: {label: [predicted["points"][label][name]] * len(rounds) if held else [
        seen[place] for seen in results["on_arrivals"].get(label, [])] for label, rounds in points.items()}
        for place, name in enumerate(("preemptions", "recomputed_tokens"))}
    return [
        _equal("rounds that were run", planned,
               {purpose: len(rounds_of(lines, purpose=purpose)) for purpose in planned}),
        _equal("requests that failed or have another number of tokens", 0, sum(
            not (r["success"] and r["prompt_tokens"] == params["prompt_tokens"]
                 and r["output_tokens"] == line["output_tokens"]) for line in every for r in line["requests"]),
            f"of {sum(len(line['requests']) for line in every)}, by what the client received"),
        _equal("requests answered", sum(line["num_requests"] for line in every),
               sum(len(line["requests"]) for line in every)),
        _equal("preemptions by the engine's counter, each round", told["preemptions"],
               {label: [line["counts"]["preemptions"] for line in rounds] for label, rounds in points.items()}, whence),
        _equal("tokens computed again by the engine's log", {
            label: max(values, default=None) for label, values in told["recomputed_tokens"].items()},
            results["recomputed_tokens"], f"all tokens of all steps, less what each request needs; {whence}"),
        *([_equal("steps of rounds whose requests were all released together", {
            label: [predicted["points"][label]["num_steps"]] * len(points[label]) for label in _together(params)},
            {label: results["num_steps"].get(label) for label in _together(params)}, whence)] if held else []),
        _equal("steps in which the engine and the model differ", 0, results["steps_different"],
               f"of {results['steps_compared']}: requests and tokens of each, prompts and generation apart; the model "
               "is given the arrivals that the log shows"),
        *([_equal("steps after which the use of the cache differs from the model", 0, results["usage_different"],
                  "to the log's one decimal")] if _has_usage(every) else []),
        _equal("steps missing in the log", 0, sum(line["num_lost_steps"] for line in every), "its numbers rise by one"),
        _most("sampled peaks of the cache's use (%)", {
            label: predicted["points"][label]["peak_kv_pct"] for label in labels}, results["peak_kv"]),
        _equal("peaks of running requests, sampled", {
            label: predicted["points"][label]["peak_running"] for label in labels},
            {label: seen[0] for label, seen in results["peak_running_waiting"].items()}),
        _equal("tokens of the cache by the server's log", {
            label: predicted["tokens"][cache] for label, (cache, _) in point_labels(params).items()},
            results["kv_tokens"], "blocks x block size"),
        _equal("maximum concurrency as the server's log prints it", {
            cache: round(printed_concurrency(num_blocks=blocks, block_tokens=params["block_size"],
                                             max_model_len=params["max_model_len"]), 2)
            for cache, blocks in predicted["blocks"].items()},
            {line["cache"]: line["max_concurrency"] for line in lines if line["kind"] == "server"}),
        *_counters(every),
        *_plan(lines, predicted, held=held),
    ]


def _planned(params: dict[str, Any]) -> dict[str, int]:
    starts = params["num_starts"]
    return {"cold": 2 * starts, "point": len(point_labels(params)) * params["rounds"] * starts,
            "plan": 2 if params["plan_waves"] else 0,
            "stagger": len(params["stagger_ms"]) * params["stagger_rounds"]}


def _together(params: dict[str, Any]) -> list[str]:
    """Points whose requests are all released at once: nobody waits for a place, so no arrival is left to chance."""
    return [label for label, (_, concurrency) in point_labels(params).items() if concurrency >= params["num_requests"]]


def _has_usage(every: Lines) -> bool:
    return any(step.usage_pct is not None for line in every for step in steps_of(line)[:1])


def _counters(every: Lines) -> list[Oracle]:
    """Counters against what the client received, and against each other."""
    good = lambda line: [r for r in line["requests"] if r["success"]]  # noqa: E731
    return [
        _equal("rounds whose two pages of metrics are of one life of the server", len(every),
               sum(line["page_error"] is None for line in every),
               "; ".join(dict.fromkeys(line["page_error"] for line in every if line["page_error"]))),
        _equal("requests finished, prompt and generation tokens by the counters",
               [[len(good(line)), sum(r["prompt_tokens"] for r in good(line)),
                 sum(r["output_tokens"] for r in good(line))] for line in every],
               [[line["counts"][name] for name in ("requests_finished", "prompt_tokens", "generation_tokens")]
                for line in every], "expected: what the client received"),
        _equal("identities of the counters that do not hold", [], [
            check["name"] for line in every for check in line["checks"] if not check["passed"]],
            f"{sum(len(line['checks']) for line in every)} checked"),
    ]


def _plan(lines: Lines, predicted: dict[str, Any], *, held: bool) -> list[Oracle]:
    """The planner's number on the engine: quiet there, and, if they come together, not quiet one above."""
    rounds = {line["concurrency"]: line["counts"]["preemptions"] for line in rounds_of(lines, purpose="plan")}
    quiet = predicted["plan"]["quiet_concurrency"]
    if not rounds:
        return []
    above = rounds.get(quiet + 1)
    at = _equal("preemptions at the planner's concurrency", 0, rounds.get(quiet), f"concurrency {quiet}")
    return [at] if not held else [
        at,
        Oracle(name="preemptions at one above the planner's concurrency", passed=bool(above), expected="more than 0",
               seen=above, detail=f"concurrency {quiet + 1}"),
    ]


def _equal(name: str, expected: Any, seen: Any, detail: str = "") -> Oracle:
    return Oracle(name=name, passed=expected == seen, expected=expected, seen=seen, detail=detail)


def _most(name: str, bound: dict[str, float], seen: dict[str, float | None]) -> Oracle:
    """Sampled peaks: above 0, and never above what the model says is the highest."""
    def fits(label: str) -> bool:
        value = seen.get(label)
        return value is not None and 0 < value <= bound[label] + TOLERANCE_PCT

    return Oracle(name=name, passed=bool(bound) and all(fits(label) for label in bound), expected=bound, seen=seen,
                  tolerance=TOLERANCE_PCT, detail="above 0 and at most the model's highest: a sample can miss a peak")


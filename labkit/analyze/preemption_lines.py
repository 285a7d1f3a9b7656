"""What a preemption round leaves behind as one line of JSON, and the lines of a run read back.

A line holds what was seen, not what it means: requests with their times, counters between two pages, samples of the
gauges, and every step of the engine. labkit.analyze.preemption makes results of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from labkit.analyze.load_results import read_result
from labkit.analyze.vllm_iterations import Iteration, find_lone_prompt, num_lost, parse_iterations
from labkit.analyze.vllm_metrics import page_summary, pair_summary
from labkit.analyze.vllm_server_log import parse_server_log

LINES = "rounds.jsonl"
MARKER_TOKENS = 3
"""Prompt of the request that marks the end of a load in the log."""
_COUNTS = ("preemptions", "prompt_tokens", "generation_tokens", "requests_finished", "prompt_tokens_by_source")
_STEP = ("index", "context_requests", "context_tokens", "generation_requests", "generation_tokens", "elapsed_ms",
         "usage_pct")


def num_finished(page: str) -> int:
    """Requests that have ended since the server's start, by its page; -1 when the page cannot be used."""
    found = page_summary(page).get("requests_finished")
    return -1 if found is None else int(found)


def marker_finder(*, num_requests: int, prompt_tokens: int, output_tokens: int) -> Callable[[str], int]:
    """A function that finds the step of the marker, a request of MARKER_TOKENS for one token, behind a load's steps.

    Args:
        num_requests: of the load.
        prompt_tokens: of each.
        output_tokens: of each.

    Returns: piece of log -> where that line begins; -1 when it is not there. Tokens tell it from a step of the load:
        those that every request needs stand before it. They do not tell where the load ends, since a preempted request
        computes more.
    """
    needed = num_requests * (prompt_tokens + output_tokens - 1)
    return lambda text: find_lone_prompt(text, num_tokens=MARKER_TOKENS, after_tokens=needed)


def round_line(
    plan: Sequence[Any], answers: Sequence[Any], *, started_s: float, ended_s: float, released_s: float,
    lag_p99_s: float, how: str, before: str, after: str, samples: Sequence[dict[str, Any]], log_text: str,
    **about: Any,
) -> dict[str, Any]:
    """One round as plain JSON. Times are seconds from the release.

    Args:
        plan: requests (`labkit.launch.load_plan.Request`).
        answers: what was seen of each (`labkit.launch.load_client.Answer`).
        started_s: when the load began, same clock as the stamps.
        ended_s: when it had ended.
        released_s: when the requests that were held were released; times of those sent before count from here.
        lag_p99_s: of the client's own loop.
        how: they were released.
        before: page of metrics.
        after: page of metrics.
        samples: of the gauges, `t_s` on the same clock.
        log_text: what the server said meanwhile.
        about: the round's name, concurrency and so on, kept as they are.
    """
    requests = []
    for answer in answers:
        held = answer.planned_s is None and answer.sent_s < released_s
        result = read_result(
            answer.pieces, index=answer.index, label="", sent_s=released_s if held else answer.sent_s,
            started_s=released_s, planned_s=answer.planned_s, output_tokens=plan[answer.index].output_tokens,
            error=answer.error)
        requests.append({name: getattr(result, name) for name in (
            "index", "success", "error", "prompt_tokens", "output_tokens", "sent_s", "ttft_s", "tpot_s", "e2el_s")})
    pair = pair_summary(before, after)
    steps = parse_iterations(log_text)
    return {
        "kind": "round", **about, "how": how, "held_s": released_s - started_s, "wall_s": ended_s - released_s,
        "lag_p99_s": lag_p99_s, "requests": requests,
        "page_error": None if pair["valid"] else pair["error"], "checks": pair.get("checks", []),
        "counts": {name: pair.get(name) for name in _COUNTS},
        "samples": [{**sample, "t_s": sample["t_s"] - released_s} for sample in samples],
        "num_lost_steps": num_lost(steps), "steps": [[getattr(step, name) for name in _STEP] for step in steps],
    }


def server_line(log_text: str, *, startup_s: float, **about: Any) -> dict[str, Any]:
    """What a server said of itself when it was ready.

    Args:
        log_text: its log.
        startup_s: how long it took.
        about: which server, kept as it is.
    """
    facts = parse_server_log(log_text)
    return {"kind": "server", **about, "startup_s": startup_s, **{name: facts[name] for name in (
        "engine_version", "kv_cache_tokens", "kv_cache_blocks", "max_concurrency", "model_len", "model_load_gib")}}


def steps_of(line: dict[str, Any]) -> list[Iteration]:
    """The engine's steps in a round's line."""
    return [Iteration(**dict(zip(_STEP, values))) for values in line["steps"]]


def read_lines(run_dir: Path) -> list[dict[str, Any]]:
    """Every line of a run; empty when nothing was written yet.

    Raises: ValueError naming the line that is no JSON object.
    """
    path, found = run_dir / LINES, []
    if not path.is_file():
        return []
    for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            line = json.loads(text)
        except ValueError:
            line = None
        if not isinstance(line, dict) or "kind" not in line:
            raise ValueError(f"{LINES}: line {number} is no object with a kind")
        found.append(line)
    return found


def settings(argv: Sequence[str], lines: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What the points were really run with, where it can be seen: the server's command line, its answers, the samples.

    Args:
        argv: command line of a server.
        lines: of the run.

    Returns: eager, prefix_cache, max_num_seqs, max_num_batched_tokens; requests, prompt, output (the one number that
        all points agree on, else None), ignore_eos (no answer ended early); poll_ms (median time between samples).
    """
    after = lambda name: int(argv[list(argv).index(name) + 1]) if name in argv else None  # noqa: E731
    points = [line for line in lines if line["kind"] == "round" and line["purpose"] == "point"]
    every = [request for line in points for request in line["requests"]]
    gaps = [1e3 * (b["t_s"] - a["t_s"]) for line in points for a, b in pairwise(line["samples"])]

    def only(values: list[Any]) -> Any:
        return values[0] if len(set(values)) == 1 else None

    return {
        "eager": "--enforce-eager" in argv, "prefix_cache": "--enable-prefix-caching" in argv,
        "max_num_seqs": after("--max-num-seqs"), "max_num_batched_tokens": after("--max-num-batched-tokens"),
        "requests": only([len(line["requests"]) for line in points]),
        "prompt": only([request["prompt_tokens"] for request in every]),
        "output": only([request["output_tokens"] for request in every]),
        "ignore_eos": bool(every) and all(request["success"] for request in every),
        "poll_ms": median(gaps) if gaps else None}

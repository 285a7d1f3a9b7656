"""Lines of a prefix-cache run from what was seen: a server's start, a load with the pages around it, a server's end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from labkit.analyze.load_results import read_result, summarize
from labkit.analyze.prefix_cache import COUNTED
from labkit.analyze.prometheus import label_of, parse_metrics
from labkit.analyze.vllm_metrics import page_summary, pair_summary
from labkit.analyze.vllm_server_log import parse_server_log

KEPT = (*COUNTED.values(), "prompt_tokens", "prompt_tokens_cached", "requests_finished", "prefix_cache_hit_rate",
        "prompt_tokens_by_source", "valid", "error", "checks")
"""Of a pair of pages; the histograms are in the pages themselves."""


def num_finished(page: str) -> int:
    """Requests that a page says have ended since the server's start; 0 for a page that cannot be read."""
    return int(page_summary(page).get("requests_finished") or 0)


def server_line(server: str, *, log: str, page: str, block_size: int, startup_s: float, version: str) -> dict[str, Any]:
    """A server that is ready.

    Args:
        server: name; without its number it is the name of its cache.
        log: text of its log.
        page: its first metrics page.
        block_size: asked for, tokens.
        startup_s: from its start to its first good answer, seconds.
        version: of vLLM.

    Returns: kv_cache_tokens as the log says; where it does not say, the page's number of blocks times the block size.
    """
    tokens = parse_server_log(log)["kv_cache_tokens"]
    if tokens is None and (blocks := blocks_on(page)) is not None:
        tokens = blocks * block_size
    return {"kind": "server", "server": server, "cache": server.rstrip("0123456789"), "block_size": block_size,
            "kv_cache_tokens": tokens, "startup_s": startup_s, "vllm": version}


def blocks_on(page: str) -> int | None:
    """KV blocks of the label that vLLM's `cache_config_info` has; None without one."""
    samples, _ = parse_metrics(page)
    labels = next(iter(samples.get("vllm:cache_config_info", {})), None)
    text = label_of(labels, "num_gpu_blocks") if labels is not None else None
    return int(text) if text and text.isdigit() else None


def step_line(
    server: str, name: str, *, plan: Sequence[Any], load: Any, before: str, after: str
) -> dict[str, Any]:
    """A load: what the client saw, and the difference of the pages.

    Args:
        server: name.
        name: of the step.
        plan: requests as sent (`prompt_ids`, `output_tokens`, `label`).
        load: answers with their stamps, as labkit.launch.load_client gives them.
        before: page of just before.
        after: page of just after.
    """
    results = [read_result(answer.pieces, index=answer.index, label=plan[answer.index].label, sent_s=answer.sent_s,
                           started_s=load.started_s, planned_s=answer.planned_s, error=answer.error,
                           output_tokens=plan[answer.index].output_tokens) for answer in load.answers]
    wall_s = load.ended_s - load.started_s
    told = summarize(results, wall_s=wall_s, lag_p99_s=load.lag_p99_s)
    pair, pages = pair_summary(before, after), [page_summary(before), page_summary(after)]
    return {
        "kind": "step", "server": server, "cache": server.rstrip("0123456789"), "name": name,
        "num_requests": len(plan), "num_failed": len(plan) - (told["num_requests"] - told["num_failed"]),
        "failures": told["failures"], "wall_s": wall_s, "client_lag_p99_s": load.lag_p99_s,
        "sent_prompt_tokens": sum(len(request.prompt_ids) for request in plan),
        "usage_prompt_tokens": sum(result.prompt_tokens or 0 for result in results),
        "ttft_ms": [round(result.ttft_s * 1e3, 4) for result in results if result.ttft_s is not None],
        "output_tokens_per_s": told["output_tokens_per_s"],
        "pair": {key: pair.get(key) for key in KEPT},
        "before": _totals(pages[0]), "after": _totals(pages[1]),
    }  # fmt: skip


def _totals(page: Mapping[str, Any]) -> dict[str, Any]:
    return {name: page.get(name) for name in COUNTED.values()}


def told(line: Mapping[str, Any]) -> str:
    """A step in one line, for whoever waits for it."""
    hits, queries = line["pair"]["prefix_cache_hits"], line["pair"]["prefix_cache_queries"]
    failed = f", {line['num_failed']} failed" if line["num_failed"] else ""
    return f"{line['server']} {line['name']}: {hits} of {queries} tokens hit, {line['wall_s']:.1f} s{failed}"

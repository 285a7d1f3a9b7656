"""The preemption lab before it runs: its points and their names, every prediction, the rounds in their order.

In: parameters as JSON. Out: plain JSON. Nothing here has seen a run.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from labkit.calc.capacity_plan import serving_plan
from labkit.calc.kv_cache import capacity_blocks
from labkit.calc.preemption_prediction import preemptions_by_gap, round_prediction
from labkit.calc.scheduler import SchedulerConfig

GAPS = (0, 1, 2, 4, 6, 8, 12, 16, 20, 24, 32, 40)
"""Steps between arrivals for which the model tells its preemptions."""


def label_of(gib: int, concurrency: int) -> str:
    """Name of a point, as the report writes it."""
    return f"{gib} GiB / {concurrency}"


def point_labels(params: dict[str, Any]) -> dict[str, tuple[str, int]]:
    """Label -> (cache, concurrency) of the points, in order."""
    small, large = params["cache_gib"]
    return {label_of(small, c): (f"{small} GiB", c) for c in params["small_concurrency"]} | {
        label_of(large, c): (f"{large} GiB", c) for c in params["large_concurrency"]}


def contrast(params: dict[str, Any]) -> tuple[str, str]:
    """Labels of the small and the large cache at the highest concurrency that both were run with."""
    shared = max(set(params["small_concurrency"]) & set(params["large_concurrency"]))
    small, large = params["cache_gib"]
    return label_of(small, shared), label_of(large, shared)


def config_of(params: dict[str, Any], num_blocks: int) -> SchedulerConfig:
    """The engine as the model knows it."""
    return SchedulerConfig(
        num_blocks=num_blocks, block_size=params["block_size"], max_num_seqs=params["max_num_seqs"],
        max_num_batched_tokens=params["max_num_batched_tokens"], enable_prefix_caching=False)


def prediction(params: dict[str, Any], *, kv_bytes_per_token: float) -> dict[str, Any]:
    """Everything that is predicted before a run.

    Args:
        params: of the run, as JSON.
        kv_bytes_per_token: of its model.

    Returns: blocks and tokens by cache; points by label (see `round_prediction`); plan (see `serving_plan`) with
        preemptions by concurrency; by_gap (preemptions when requests come that many steps apart); ratios.
    """
    shape = {name: int(params[name]) for name in ("prompt_tokens", "output_tokens")}
    costs = {name: float(params[name]) for name in ("step_ms", "token_us", "request_us")}
    given = params["num_blocks"] or [
        capacity_blocks(cache_bytes=gib << 30, kv_bytes_per_token=kv_bytes_per_token, block_tokens=params["block_size"])
        for gib in params["cache_gib"]]
    blocks = dict(zip([f"{gib} GiB" for gib in params["cache_gib"]], given))
    small = config_of(params, given[0])

    def one(num_blocks: int, concurrency: int, num_requests: int) -> dict[str, Any]:
        return round_prediction(
            config_of(params, num_blocks), concurrency=concurrency, num_requests=num_requests,
            prompt_tokens=shape["prompt_tokens"], output_tokens=shape["output_tokens"], step_ms=costs["step_ms"],
            token_us=costs["token_us"], request_us=costs["request_us"])

    points = {label: one(blocks[cache], concurrency, params["num_requests"])
              for label, (cache, concurrency) in point_labels(params).items()}
    waves = params["plan_waves"] or 1
    plan = serving_plan(
        kv_bytes_per_token=kv_bytes_per_token, num_blocks=given[0], block_tokens=params["block_size"], **shape,
        max_model_len=params["max_model_len"], max_num_seqs=params["max_num_seqs"],
        max_num_batched_tokens=params["max_num_batched_tokens"], waves=waves)
    quiet = plan["quiet_concurrency"]
    few, many = (points[label] for label in contrast(params))
    return {
        "blocks": blocks, "tokens": {cache: n * params["block_size"] for cache, n in blocks.items()},
        "kv_bytes_per_token": kv_bytes_per_token, "points": points,
        "plan": {**plan, "preemptions": {str(c): one(given[0], c, waves * c)["preemptions"] for c in (quiet, quiet + 1)
                                         if c}},
        "by_gap": preemptions_by_gap(small, num_requests=params["num_requests"], gaps=GAPS, **shape),
        "ratios": {"throughput_pct": 100 * few["tokens_per_s"] / many["tokens_per_s"],
                   "tpot_slower_pct": 100 * (few["tpot_s"] / many["tpot_s"] - 1),
                   "ttft_lower_pct": 100 * (1 - few["ttft_s"] / many["ttft_s"])},
    }


def rounds(params: dict[str, Any], predicted: dict[str, Any], *, start: int) -> Iterator[dict[str, Any]]:
    """The rounds of one pair of servers, in order.

    Args:
        params: of the run, as JSON.
        predicted: of `prediction`.
        start: number of the pair, from 0 on.

    Yields: purpose (`cold`, `point`, `plan`, `stagger`), label, cache, concurrency, num_requests, output_tokens, start,
        repeat, gap_ms.
    """
    caches = list(predicted["blocks"])
    common = {"start": start, "repeat": 0, "gap_ms": None, "output_tokens": params["output_tokens"]}
    for cache in caches:
        yield {**common, "purpose": "cold", "label": f"{cache} cold", "cache": cache, "output_tokens": 2,
               "concurrency": params["num_requests"], "num_requests": params["num_requests"]}
    for repeat in range(params["rounds"]):
        for label, (cache, concurrency) in point_labels(params).items():
            yield {**common, "purpose": "point", "label": label, "cache": cache, "concurrency": concurrency,
                   "num_requests": params["num_requests"], "repeat": repeat}
    if start == 0 and params["plan_waves"]:
        for concurrency in (predicted["plan"]["quiet_concurrency"], predicted["plan"]["quiet_concurrency"] + 1):
            yield {**common, "purpose": "plan", "label": f"{caches[0]} / {concurrency}", "cache": caches[0],
                   "concurrency": concurrency, "num_requests": params["plan_waves"] * concurrency}
    for gap_ms in params["stagger_ms"] if start == 0 else ():
        for repeat in range(params["stagger_rounds"]):
            yield {**common, "purpose": "stagger", "label": f"{caches[0]} every {gap_ms:g} ms", "cache": caches[0],
                   "concurrency": None if gap_ms else params["num_requests"], "gap_ms": gap_ms, "repeat": repeat,
                   "num_requests": params["num_requests"]}

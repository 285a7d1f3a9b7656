"""Unit costs of a step from the rounds without a preemption, and what they say about the round with preemptions.

Three numbers make the model's times: a fixed part of a step, one for each request that decodes, one for every other
token. Each mean time of a round is linear in them, with coefficients from the scheduler model. So three measured means
of quiet rounds give the three numbers, and nothing of the round that preempts goes into them: that one is the test.
The time of a step in the engine's log is no help on a GPU, where it ends before the kernels do.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from labkit.analyze.preemption_plan import config_of, contrast, point_labels
from labkit.calc.preemption_prediction import round_prediction

COSTS = ("step_ms", "request_us", "token_us")
METRICS = {"throughput": ("tokens_per_s", 1.0), "ttft": ("ttft_s", 1e3), "tpot": ("tpot_s", 1e3),
           "e2el": ("e2el_s", 1.0)}
"""Result -> (its name in a prediction, factor from the prediction's unit)."""


def used_points(params: dict[str, Any]) -> list[tuple[str, str]]:
    """(result, point) of the three means that the costs are read from; empty without two quiet points.

    TPOT with few and with many requests in a step, and TTFT, all of rounds without a preemption.
    """
    _, large = contrast(params)
    few = [label for label, (cache, count) in point_labels(params).items()
           if cache.startswith(f"{params['cache_gib'][0]} ") and count < point_labels(params)[large][1]]
    return [("tpot", few[0]), ("tpot", large), ("ttft", large)] if few else []


def calibrate(
    params: dict[str, Any], predicted: dict[str, Any], results: Mapping[str, Any],
) -> dict[str, float] | None:
    """Unit costs from three means of a run, none below 0; None when the means are not there.

    Args:
        params: of the run, as JSON.
        predicted: before it.
        results: of it; only the three means of `used_points` are looked at.
    """
    used = used_points(params)
    if not used or any(label not in results[name] for name, label in used):
        return None
    rows, right = [], []
    for name, label in used:
        ours, factor = METRICS[name]
        rows.append([factor * _round(params, predicted, label, {cost: float(cost == unit) for cost in COSTS})[ours]
                     for unit in COSTS])
        right.append(results[name][label]["value"])
    solved = _solve(rows, right)
    if solved is None or solved[1] < 0:  # within the noise a request costs nothing: two numbers from the last two means
        pair = _solve([[row[0], row[2]] for row in rows[1:]], right[1:])
        solved = [pair[0], 0.0, pair[1]] if pair else None
    if solved is None or solved[2] < 0:  # nor does a prompt token
        solved = [right[1] / rows[1][0], 0.0, 0.0]
    return dict(zip(COSTS, solved))


def times_with(
    params: dict[str, Any], predicted: dict[str, Any], label: str, costs: Mapping[str, float],
) -> dict[str, float]:
    """Times of a point with given costs, in the units of the results: throughput, ttft, tpot, e2el."""
    seen = _round(params, predicted, label, costs)
    return {name: factor * seen[ours] for name, (ours, factor) in METRICS.items()}


def _round(
    params: dict[str, Any], predicted: dict[str, Any], label: str, costs: Mapping[str, float]) -> dict[str, Any]:
    cache, concurrency = point_labels(params)[label]
    return round_prediction(
        config_of(params, predicted["blocks"][cache]), concurrency=concurrency, num_requests=params["num_requests"],
        prompt_tokens=params["prompt_tokens"], output_tokens=params["output_tokens"],
        step_ms=costs["step_ms"], request_us=costs["request_us"], token_us=costs["token_us"])


def _solve(rows: list[list[float]], right: list[float]) -> list[float] | None:
    """Linear equations by elimination; None where they have no one answer."""
    table = [[*row, value] for row, value in zip(rows, right)]
    size = len(table)
    for column in range(size):
        best = max(range(column, size), key=lambda row: abs(table[row][column]))
        if abs(table[best][column]) < 1e-12:
            return None
        table[column], table[best] = table[best], table[column]
        for row in range(size):
            if row != column:
                factor = table[row][column] / table[column][column]
                table[row] = [a - factor * b for a, b in zip(table[row], table[column])]
    return [table[row][size] / table[row][row] for row in range(size)]

"""Softmax-weighted sums in pieces: the running state (m, l, O), and the merge of finished pieces by log-sum-exp.

In: scores of one query, one value row for each key. Out: outputs, states, statistics.

    python -m labkit calc online_softmax attention_row scores=[0.0,4.0] values=[[1.0],[0.0]]
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any

from labkit.calc._require import require_int, require_number, require_numbers

MAX_KEYS = 100_000


def attention_row(*, scores: Sequence[float], values: Sequence[Sequence[float]]) -> dict[str, Any]:
    """Attention output of one query in two passes: the oracle of the functions below.

    Args:
        scores: one for each key, at least one, finite.
        values: one row for each key, all equally long.

    Returns: {"output": [d], "lse": log-sum-exp of the scores}.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: scores are already scaled; double precision.
    Source: softmax(s) V, shifted by the largest score.

    >>> attention_row(scores=[0.0, 0.0], values=[[1.0], [3.0]])["output"]
    [2.0]
    """
    scores, values = _check(scores, values)
    top = max(scores)
    weights = [math.exp(score - top) for score in scores]
    total = math.fsum(weights)
    output = [math.fsum(w * v for w, v in zip(weights, column)) / total for column in zip(*values)]
    return {"output": output, "lse": top + math.log(total)}


def tile_state(*, scores: Sequence[float], values: Sequence[Sequence[float]]) -> dict[str, Any]:
    """State of one tile of keys: largest score, sum of shifted exponentials, unnormalised output.

    Args:
        scores: one for each key of the tile, at least one, finite.
        values: one row for each key, all equally long.

    Returns: {"max": m, "sum": l, "output": O [d]}, with output / sum the tile's attention.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: as `attention_row`.
    Source: Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018; interview question 2.

    >>> tile_state(scores=[1.0], values=[[5.0]])
    {'max': 1.0, 'sum': 1.0, 'output': [5.0]}
    """
    scores, values = _check(scores, values)
    top = max(scores)
    weights = [math.exp(score - top) for score in scores]
    output = [sum(w * v for w, v in zip(weights, column)) for column in zip(*values)]
    return {"max": top, "sum": sum(weights), "output": output}


def merge_states(*, first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """State of two sets of keys together: both are brought to the larger maximum, then added.

    Args:
        first: as `tile_state` returns it; {"max": None, ...} is the empty state.
        second: likewise, output equally long.

    Returns: {"max", "sum", "output"}.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: the two sets have no key in common.
    Source: m' = max(m1, m2), l' and O' = sum of e^(m - m') x old; interview questions 2 and 4.

    >>> merge_states(first={"max": 0.0, "sum": 1.0, "output": [2.0]}, second={"max": 0.0, "sum": 3.0, "output": [4.0]})
    {'max': 0.0, 'sum': 4.0, 'output': [6.0]}
    """
    for name, state in (("first", first), ("second", second)):
        if not isinstance(state, dict) or set(state) != {"max", "sum", "output"}:
            raise ValueError(f"{name}={state!r}: expected max, sum and output")
    if first["max"] is None:
        return second
    if second["max"] is None:
        return first
    if len(first["output"]) != len(second["output"]):
        raise ValueError(f"second: output of {len(second['output'])} numbers: expected {len(first['output'])}")
    top = max(require_number("first", first["max"]), require_number("second", second["max"]))
    a, b = math.exp(first["max"] - top), math.exp(second["max"] - top)
    output = [a * x + b * y for x, y in zip(first["output"], second["output"])]
    return {"max": top, "sum": a * first["sum"] + b * second["sum"], "output": output}


def tiled_attention_row(
    *, scores: Sequence[float], values: Sequence[Sequence[float]], tile_tokens: int
) -> dict[str, Any]:
    """Attention output of one query, tile after tile, never holding all scores.

    Args:
        scores: one for each key, at least one, finite.
        values: one row for each key, all equally long.
        tile_tokens: keys of a tile, >= 1.

    Returns: {"output": [d], "lse"}, as `attention_row` up to rounding.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: as `attention_row`.
    Source: `tile_state` and `merge_states`, Dao et al., "FlashAttention", 2022.

    >>> tiled_attention_row(scores=[0.0, 0.0, 0.0], values=[[1.0], [3.0], [5.0]], tile_tokens=2)["output"]
    [3.0]
    """
    scores, values = _check(scores, values)
    step = require_int("tile_tokens", tile_tokens, least=1)
    state: dict[str, Any] = {"max": None, "sum": 0.0, "output": []}
    for i in range(0, len(scores), step):
        state = merge_states(first=state, second=tile_state(scores=scores[i : i + step], values=values[i : i + step]))
    return {"output": [x / state["sum"] for x in state["output"]], "lse": state["max"] + math.log(state["sum"])}


def merge_lse(*, lses: Sequence[float], outputs: Sequence[Sequence[float]]) -> dict[str, Any]:
    """Attention output from finished pieces: each already normalised, weighted by its log-sum-exp.

    Args:
        lses: one for each piece, at least one, finite.
        outputs: one row for each piece, all equally long.

    Returns: {"output": [d], "lse"}.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: the pieces have no key in common and cover all keys.
    Source: o = sum e^(LSE_s - LSE) o_s, the same softmax over pieces; interview questions 2 and 7.

    >>> merge_lse(lses=[0.0, 0.0], outputs=[[1.0], [3.0]])["output"]
    [2.0]
    """
    return attention_row(scores=lses, values=outputs)


def tiling_error(
    *, num_keys: int, head_dim: int = 8, tile_tokens: int, spread: float = 6.0, seed: int = 1
) -> float:
    """Largest difference between tiled and two-pass attention on random scores and values.

    Args:
        num_keys: 1 to 100000.
        head_dim: width of a value row, >= 1.
        tile_tokens: keys of a tile, >= 1.
        spread: standard deviation of the scores, >= 0.
        seed: of the random numbers.

    Returns: absolute difference; rounding only.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: double precision, values of size 1.
    Source: `tiled_attention_row` against `attention_row`.

    >>> max(tiling_error(num_keys=97, tile_tokens=t) for t in (1, 5, 16, 97)) < 1e-12
    True
    """
    scores, values = _draw(num_keys, head_dim, spread, seed)
    tiled = tiled_attention_row(scores=scores, values=values, tile_tokens=tile_tokens)["output"]
    return max(abs(a - b) for a, b in zip(tiled, attention_row(scores=scores, values=values)["output"]))


def split_merge_error(
    *, num_keys: int, num_splits: int, head_dim: int = 1, interleaved: bool = False, reverse: bool = False,
    weighted: bool = True, spread: float = 5.0, seed: int = 2,
) -> float:
    """Largest difference between merged pieces and two-pass attention on random scores and values.

    Args:
        num_keys: 1 to 100000.
        num_splits: pieces, 1 to num_keys.
        head_dim: width of a value row, >= 1.
        interleaved: piece r holds keys r, r + splits, ...; else neighbouring keys.
        reverse: merge the pieces last to first.
        weighted: by log-sum-exp; False averages the pieces, which is wrong.
        spread: standard deviation of the scores, >= 0.
        seed: of the random numbers.

    Returns: absolute difference; rounding only if `weighted`.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: double precision, values of size 1.
    Source: `merge_lse` against `attention_row`.

    >>> split_merge_error(num_keys=64, num_splits=4) < 1e-12 < split_merge_error(
    ...     num_keys=64, num_splits=4, weighted=False)
    True
    """
    scores, values = _draw(num_keys, head_dim, spread, seed)
    if require_int("num_splits", num_splits, least=1) > num_keys:
        raise ValueError(f"num_splits={num_splits!r}: expected at most num_keys={num_keys}")
    pieces = []
    for r in range(num_splits):
        part = slice(r, None, num_splits)
        if not interleaved:
            part = slice(r * num_keys // num_splits, (r + 1) * num_keys // num_splits)
        pieces.append(attention_row(scores=scores[part], values=values[part]))
    pieces = pieces[::-1] if reverse else pieces
    lses = [piece["lse"] if weighted else 0.0 for piece in pieces]
    merged = merge_lse(lses=lses, outputs=[piece["output"] for piece in pieces])["output"]
    return max(abs(a - b) for a, b in zip(merged, attention_row(scores=scores, values=values)["output"]))


def _draw(num_keys: int, head_dim: int, spread: float, seed: int) -> tuple[list[float], list[list[float]]]:
    if require_int("num_keys", num_keys, least=1) > MAX_KEYS:
        raise ValueError(f"num_keys={num_keys!r}: expected at most {MAX_KEYS}")
    width, scale = require_int("head_dim", head_dim, least=1), require_number("spread", spread, least=0)
    draw = random.Random(seed)
    scores = [draw.gauss(0, 1) * scale for _ in range(num_keys)]
    return scores, [[draw.gauss(0, 1) for _ in range(width)] for _ in range(num_keys)]


def _check(scores: Sequence[float], values: Sequence[Sequence[float]]) -> tuple[list[float], list[list[float]]]:
    found = require_numbers("scores", scores)
    if len(values) != len(found):
        raise ValueError(f"values: {len(values)} rows: expected {len(found)}, one for each of scores")
    rows = [require_numbers("values", row) for row in values]
    if len({len(row) for row in rows}) != 1:
        raise ValueError("values: rows of different lengths: expected equal ones")
    return found, rows

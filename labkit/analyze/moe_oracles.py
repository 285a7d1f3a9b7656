"""Was an expert-parallel run right? Checks of its first process against the split, the ids and a second computation.

Independent of each other: column sums of the planned traffic matrix, the token ids that arrived and came back, every
output row against its expert computed on the token's own rank, and what the profiler counted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from labkit.analyze.ddp_rank_files import of_kind
from labkit.records import Oracle

EPSILON = {"fp32": 2.0**-24, "fp16": 2.0**-11, "bf16": 2.0**-8}
"""Unit roundoff of each type."""


def row_bound(*, dtype: str, hidden: int, ffn: int) -> float:
    """How far two computations of one expert row may be apart, relative to the row's norm.

    Two matrix products and an activation, each rounded to the type; sums of K terms in float32 or better are off by
    about sqrt(K) u of float32. Both computations round, hence the 2, and a single row may be twice a mean one.

    Args:
        dtype: fp32, fp16 or bf16.
        hidden: terms of the first sums.
        ffn: terms of the second.

    Returns: a ratio. A row of another token is off by about 1.4.

    >>> round(row_bound(dtype="fp16", hidden=1024, ffn=4096), 4)
    0.0059
    """
    summed = math.sqrt(max(hidden, ffn)) * EPSILON["fp32"]
    return 4 * (3 * EPSILON[dtype] + 2 * summed)


def moe_oracles(rows: list[dict[str, Any]], seen: Mapping[str, Any], predicted: Mapping[str, Any], *,
                cases: Sequence[str], bound: float, calls: Mapping[str, int],
                dedup: Mapping[str, Any]) -> list[Oracle]:
    """Every check of a run.

    Args:
        rows: of every rank of the first process.
        seen: `labkit.analyze.moe_results.structure`.
        predicted: values of the prediction: received_rows, splits, dedup_distinct_ranks, dedup_tolerance.
        cases: labels.
        bound: `row_bound`.
        calls: `labkit.analyze.moe_results.calls_per_step`.
        dedup: `labkit.analyze.moe_results.dedup`.
    """
    num_ranks = len(seen["received"][cases[0]])
    tokens = {case: num_ranks * sum(predicted["splits"][case]) for case in cases}
    checks = {case: of_kind(rows, "case", case=case) for case in cases}
    found = [
        _equal("rows received as predicted, every rank", {case: predicted["received_rows"][case] for case in cases},
               seen["received"]),
        _equal("traffic matrix as planned", {case: [predicted["splits"][case]] * num_ranks for case in cases},
               seen["matrix"], "gathered before anything is sent: unmatched splits hang or overwrite"),
        _equal("token ids come back in place", {case: 0 for case in cases}, seen["ids_wrong"],
               "compared element by element on every rank"),
        _equal("every id arrives exactly once",
               {case: [count * (count - 1) // 2, count] for case, count in tokens.items()},
               {case: [sum(row["ids_sum"] for row in of), sum(row["ids_distinct"] for row in of)]
                for case, of in checks.items()}, "sum of all ids, and number of different ones, over ranks"),
        Oracle(name="every output row is its own expert's", expected=0.0, seen=seen["out_rel_diff"], tolerance=bound,
               passed=max(seen["out_rel_diff"].values()) <= bound
               and all(row["out_norm"] > 0 for of in checks.values() for row in of),
               detail="worst row against the same expert computed on the token's own rank, relative to the row"),
        _equal("all-to-alls in one step", [3, 1], [calls["all_to_alls"], calls["ranks_agree"]],
               "counts, dispatch and combine, as the profiler saw them on every rank"),
    ]
    if dedup:
        mean, allowed = predicted["dedup_distinct_ranks"], predicted["dedup_tolerance"]
        found += [
            Oracle(name="one row per rank gives the same output", expected=0.0, seen=dedup["rel_diff"],
                   tolerance=bound, passed=0 <= dedup["rel_diff"] <= bound,
                   detail="against one row per token-expert pair, both through real exchanges"),
            Oracle(name="ranks of a token as the formula says", expected=mean, seen=dedup["distinct_ranks"],
                   tolerance=allowed, passed=abs(dedup["distinct_ranks"] - mean) <= allowed,
                   detail="tolerance: six standard errors of the mean"),
        ]
    return found


def _equal(name: str, expected: Any, seen: Any, detail: str = "") -> Oracle:
    return Oracle(name=name, passed=expected == seen, expected=expected, seen=seen, detail=detail)

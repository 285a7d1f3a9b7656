"""Was a DDP run right? Checks of its first process against predictions and independent computations.

Independent of each other: the reducer's own log, torch's profiler, the closed form in `labkit.calc.ddp`, digests of
every rank's gradients, and gradients of one process without DDP.
"""

from __future__ import annotations

import math
from typing import Any

from labkit.analyze.ddp_rank_files import of_kind
from labkit.analyze.ddp_results import VARIANTS, Process, collectives_seen
from labkit.records import Oracle

UNIT_ROUNDOFF_FP32 = 2.0**-24


def rounding_bound(*, num_layers: int, hidden: int, vocab_size: int, num_tokens: int) -> float:
    """How far two float32 computations of the same gradient may be apart, relative to its norm.

    A gradient passes through at most D matrix products one after the other (6 a block and 2 at the ends, forward and
    backward), each a sum of at most K terms. Rounding errors behave as random, so a sum of K terms is off by about
    sqrt(K) u, and D of them in a row by D sqrt(K) u, with u = 2**-24.

    Args:
        num_layers: blocks.
        hidden: width.
        vocab_size: terms of the longest sum over the vocabulary.
        num_tokens: tokens of the whole batch: terms of the sums over tokens.

    Returns: a ratio. Real errors are far smaller; a lost sample, a missing division or a stale gradient is far larger.
    Source: Higham and Mary, "A new approach to probabilistic rounding error analysis", SISC 41(5), 2019.

    >>> round(rounding_bound(num_layers=12, hidden=768, vocab_size=32000, num_tokens=128), 5)
    0.00158
    """
    num_products = 2 * (6 * num_layers + 2)
    num_terms = max(4 * hidden, vocab_size, num_tokens)
    return num_products * math.sqrt(num_terms) * UNIT_ROUNDOFF_FP32


def ddp_oracles(first: Process, *, predicted: dict[str, Any], world_size: int, bound: float,
                loopback_bytes: dict[str, float]) -> list[Oracle]:
    """Every check of a run.

    Args:
        first: the process that checked.
        predicted: values of the prediction.
        world_size: ranks.
        bound: `rounding_bound` of this model and batch.
        loopback_bytes: see `ddp_results.loopback_seen`; empty on a GPU.
    """
    found = [*_bucket_oracles(first, predicted), *_collective_oracles(first, predicted, world_size),
             *_gradient_oracles(first, world_size, bound)]
    if loopback_bytes and world_size > 1:
        least = {case: predicted["wire_bytes_per_rank"][case] for case in loopback_bytes}
        found.append(Oracle(
            name="loopback carried at least the predicted bytes", expected=least, seen=loopback_bytes,
            passed=all(loopback_bytes[case] >= least[case] for case in least),
            detail="counter of the interface, shared with the rest of the host: a lower bound can be checked"))
    return found


def _equal(name: str, expected: Any, seen: Any, detail: str = "") -> Oracle:
    return Oracle(name=name, passed=expected == seen, expected=expected, seen=seen, detail=detail)


def _bucket_oracles(first: Process, predicted: dict[str, Any]) -> list[Oracle]:
    """The reducer's log against the prediction; the log is asked, never inferred from the cap."""
    logs = {row["case"]: row for row in of_kind(first.rows, "reducer", rank=0)}
    found = [
        _equal(f"{stage} buckets as predicted, every size in order", predicted[f"{prefix}bucket_sizes_bytes"],
               {case: log[f"{stage}_bucket_sizes_bytes"] for case, log in logs.items()})
        for stage, prefix in (("initial", "initial_"), ("rebuilt", ""))
    ]
    orders = {tuple(log["ready_order"]) for log in logs.values() if log["ready_order"]}
    if orders:
        found.append(_equal("gradients become ready in the predicted order", [predicted["ready_order"]],
                            [list(order) for order in orders]))
    return found


def _collective_oracles(first: Process, predicted: dict[str, Any], world_size: int) -> list[Oracle]:
    """The trace against the reducer's log, call by call and byte by byte, on every rank."""
    logs = {row["case"]: row["rebuilt_bucket_sizes_bytes"] for row in of_kind(first.rows, "reducer", rank=0)}
    accum = logs[predicted["accum_case"]]
    passes = {**dict.fromkeys(logs, 1), **{case: predicted["accum_synchronised"][case] for case in VARIANTS}}
    buckets = {case: logs.get(case, accum) for case in passes}
    traces = {case: first.traces[case] for case in passes}
    counts = {case: [passes[case] * len(buckets[case])] * world_size for case in passes}
    found = [
        _equal("all-reduces in the trace equal buckets in the reducer's log", counts,
               {case: collectives_seen(facts, world_size=world_size) for case, facts in traces.items()},
               "by case and rank; buckets times synchronised backward passes"),
        _equal("all-reduce calls in the trace file equal that count", counts,
               {case: facts["calls"] for case, facts in traces.items()}),
        _equal("no_sync around one half of a micro-step", predicted["no_sync_partial_collectives"],
               {scope: collectives_seen(first.traces[f"trap {scope}"], world_size=world_size)[0]
                for scope in ("forward", "backward")},
               "DDP arms its reducer in forward: around backward alone no_sync changes nothing"),
    ]
    if world_size > 1:
        found.append(_equal(
            "bytes of those all-reduces equal the buckets' bytes",
            {case: [passes[case] * sum(buckets[case])] * world_size for case in passes},
            {case: facts["bytes"] for case, facts in traces.items()}))
    return found


def _gradient_oracles(first: Process, world_size: int, bound: float) -> list[Oracle]:
    """Gradients, losses and weights: equal where they must be equal, close where only rounding may differ."""
    checks = of_kind(first.rows, "gradients")
    cases = list(dict.fromkeys(row["case"] for row in checks))
    num_parameters = len(first.row("setup")["parameters"])
    ends = of_kind(first.rows, "end")
    differing = {case: sorted({n for row in checks if row["case"] == case for n in row["names_differing"]})
                 for case in cases}
    vs_reference = {row["case"]: row["vs_reference"]["worst_rel_diff"] for row in checks if row["rank"] == 0}
    vs_big = {row["case"]: row["vs_other"]["worst_rel_diff"] for row in checks if row["rank"] == 0 and row["vs_other"]}
    losses = {case: sum(row["loss"] for row in checks if row["case"] == case) / world_size for case in cases}
    references = {row["samples_per_rank"]: row["loss"] for row in of_kind(first.rows, "reference")}
    wanted = {row["case"]: references[len(row["sample_ids"])] for row in checks if row["rank"] == 0}
    worst_loss = max(abs(losses[case] / wanted[case] - 1) for case in cases)
    return [
        _equal("gradients bitwise equal on all ranks", {case: [] for case in cases}, differing,
               "tensors whose SHA-256 differs between ranks"),
        _equal("every parameter's gradient was compared", dict.fromkeys(cases, [num_parameters] * world_size),
               {case: [row["num_compared"] for row in checks if row["case"] == case] for case in cases}),
        _close("gradients equal one process on the whole batch", vs_reference, bound,
               "worst tensor: |difference| / |reference|; the reference runs without DDP"),
        _close("accumulated gradients equal one big micro-step", vs_big, bound,
               "worst tensor against m8a1, from the same weights and samples"),
        Oracle(name="loss equals one process on the whole batch", passed=worst_loss <= bound, expected=0.0,
               seen=worst_loss, tolerance=bound, detail="mean over ranks; largest relative difference over cases"),
        _equal("weights equal on all ranks and unmoved by the timed steps", [[[], []]] * world_size,
               [[row["weights_moved"], row["weights_differing"]] for row in ends],
               "the timed optimizer steps have learning rate 0, so that all cases start from one model"),
    ]


def _close(name: str, seen: dict[str, float], bound: float, detail: str) -> Oracle:
    """Passes when there is something to compare and all of it is within the bound."""
    return Oracle(name=name, passed=bool(seen) and max(seen.values()) <= bound, expected=0.0, seen=seen,
                  tolerance=bound, detail=detail)

"""Pipeline parallelism: bubbles of schedules, micro-batches in flight, and the same counted on a timeline.

In: stages p, micro-batches m, chunks v. Out: shares of the ideal time, counts.

    python -m labkit calc pipeline bubble_ratio 1f1b num_stages=8 num_micro_batches=32
"""

from __future__ import annotations

from labkit.calc._require import require_choice, require_int, require_number

SCHEDULES = ("gpipe", "1f1b", "interleaved", "zb_h1")


def bubble_ratio(schedule: str, *, num_stages: int, num_micro_batches: int, num_chunks: int = 1) -> float:
    """Idle time of a stage over its ideal compute time.

    Args:
        schedule: gpipe, 1f1b, interleaved or zb_h1.
        num_stages: p >= 1.
        num_micro_batches: m >= 1 (interleaved: a multiple of p).
        num_chunks: v, model parts on each stage, >= 1; for interleaved.

    Returns: ratio; share of the whole step is ratio / (1 + ratio).
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: equal stages, transfers free; zb_h1 with forward, input-gradient and weight-gradient equally long.
    Source: (p - 1) / m, / (v m), / (3 m); Narayanan et al., 2021, Qi et al., 2023; extra interview question 12.

    >>> [bubble_ratio(s, num_stages=8, num_micro_batches=32, num_chunks=4) for s in ("1f1b", "interleaved")]
    [0.21875, 0.0546875]
    """
    require_choice("schedule", schedule, SCHEDULES)
    p = require_int("num_stages", num_stages, least=1)
    m, v = require_int("num_micro_batches", num_micro_batches, least=1), require_int("num_chunks", num_chunks, least=1)
    if schedule == "interleaved" and m % p:
        raise ValueError(f"num_micro_batches={num_micro_batches!r}: expected a multiple of num_stages={num_stages}")
    return (p - 1) / (m * {"interleaved": v, "zb_h1": 3}.get(schedule, 1))


def micro_batches_in_flight(schedule: str, *, num_stages: int, num_micro_batches: int, stage: int = 0) -> int:
    """Micro-batches whose activations a stage holds at most.

    Args:
        schedule: gpipe or 1f1b.
        num_stages: p >= 1.
        num_micro_batches: m >= 1.
        stage: 0 is the first, below p.

    Returns: micro-batches.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: no recomputation.
    Source: m, and min(m, p - stage); extra interview question 13.

    >>> [micro_batches_in_flight(s, num_stages=8, num_micro_batches=64) for s in ("gpipe", "1f1b")]
    [64, 8]
    """
    require_choice("schedule", schedule, ("gpipe", "1f1b"))
    p, m = require_int("num_stages", num_stages, least=1), require_int("num_micro_batches", num_micro_batches, least=1)
    if require_int("stage", stage, least=0) >= p:
        raise ValueError(f"stage={stage!r}: expected less than num_stages={num_stages}")
    return m if schedule == "gpipe" else min(m, p - stage)


def simulated_step(
    schedule: str, *, num_stages: int, num_micro_batches: int, forward_s: float = 1.0, backward_s: float = 2.0
) -> dict[str, float]:
    """Step time of a schedule by playing it, operation by operation.

    Args:
        schedule: gpipe or 1f1b.
        num_stages: p, 1 to 64.
        num_micro_batches: m, 1 to 1024.
        forward_s: of one micro-batch on one stage, seconds, > 0.
        backward_s: likewise, > 0.

    Returns: {"step_s", "ideal_s": m (forward + backward), "bubble_ratio", "most_in_flight": on the first stage}.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: transfers free, each stage does its operations in the schedule's order.
    Source: simulation of the dependencies; the oracle of `bubble_ratio`.

    >>> simulated_step("1f1b", num_stages=4, num_micro_batches=8)["bubble_ratio"]
    0.375
    """
    require_choice("schedule", schedule, ("gpipe", "1f1b"))
    p, m = require_int("num_stages", num_stages, least=1), require_int("num_micro_batches", num_micro_batches, least=1)
    if p > 64 or m > 1024:
        raise ValueError(f"num_stages={p}, num_micro_batches={m}: expected at most 64 and 1024")
    forward = require_number("forward_s", forward_s, above=0)
    backward = require_number("backward_s", backward_s, above=0)
    todo = [_order(schedule, p, m, stage) for stage in range(p)]
    done: dict[tuple[str, int, int], float] = {}
    free, held, most = [0.0] * p, 0, 0
    while any(todo):
        for stage in range(p):
            while todo[stage]:
                kind, batch = todo[stage][0]
                before = ("f", stage - 1, batch) if kind == "f" else ("b", stage + 1, batch)
                outside = before[1] < 0 or before[1] == p
                needed = ("f", stage, batch) if kind == "b" and outside else before
                if not (kind == "f" and outside) and needed not in done:
                    break
                start = max(free[stage], 0.0 if kind == "f" and outside else done[needed])
                free[stage] = done[kind, stage, batch] = start + (forward if kind == "f" else backward)
                todo[stage].pop(0)
                if stage == 0:
                    held += 1 if kind == "f" else -1
                    most = max(most, held)
    step, ideal = max(free), m * (forward + backward)
    return {"step_s": step, "ideal_s": ideal, "bubble_ratio": step / ideal - 1, "most_in_flight": most}


def _order(schedule: str, p: int, m: int, stage: int) -> list[tuple[str, int]]:
    """Operations of one stage in their order: all forward first, or warm-up and then one forward, one backward."""
    warm = m if schedule == "gpipe" else min(m, p - 1 - stage)
    order = [("f", i) for i in range(warm)]
    for i in range(m - warm):
        order += [("f", warm + i), ("b", i)]
    return order + [("b", i) for i in range(m - warm, m)]

"""Speculative decoding: tokens per verification, speed-up, best draft length, and what the acceptance rule gives.

In: acceptance alpha, draft length gamma, cost of a draft token. Out: tokens, ratios, probabilities.

    python -m labkit calc speculative best_draft_length acceptance=0.8 draft_cost=0.05
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from labkit.calc._require import require_choice, require_fraction, require_int, require_number, require_numbers


def tokens_per_pass(*, acceptance: float, draft_tokens: int) -> float:
    """Expected tokens of one verification: the accepted drafts and one token of the target's own.

    Args:
        acceptance: alpha, chance that a drafted token is accepted, 0 to 1.
        draft_tokens: gamma >= 0.

    Returns: tokens, 1 to gamma + 1.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: independent acceptances, the first refusal ends the run.
    Source: (1 - alpha^(gamma + 1)) / (1 - alpha); Leviathan et al., 2023; extra interview question 20.

    >>> round(tokens_per_pass(acceptance=0.8, draft_tokens=4), 4), tokens_per_pass(acceptance=0.85, draft_tokens=1)
    (3.3616, 1.85)
    """
    alpha = require_fraction("acceptance", acceptance)
    return math.fsum(alpha**i for i in range(require_int("draft_tokens", draft_tokens, least=0) + 1))


def speedup(*, acceptance: float, draft_tokens: int, draft_cost: float) -> float:
    """Tokens per unit of time over plain decoding.

    Args:
        acceptance: alpha, 0 to 1.
        draft_tokens: gamma >= 0.
        draft_cost: time of one draft token over that of a target pass, >= 0.

    Returns: ratio, below 1 where drafting does not pay.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: verifying gamma + 1 tokens costs as much as decoding one: true while decode is memory-bound.
    Source: E / (gamma c + 1); extra interview question 20.

    >>> round(speedup(acceptance=0.8, draft_tokens=8, draft_cost=0.05), 2)
    3.09
    """
    cost = require_number("draft_cost", draft_cost, least=0)
    return tokens_per_pass(acceptance=acceptance, draft_tokens=draft_tokens) / (draft_tokens * cost + 1)


def best_draft_length(*, acceptance: float, draft_cost: float, most: int = 64) -> dict[str, Any]:
    """Draft length with the largest speed-up.

    Args:
        acceptance: alpha, 0 to 1.
        draft_cost: as `speedup`.
        most: longest length tried, >= 0.

    Returns: {"draft_tokens", "speedup"}; 0 tokens where drafting does not pay.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: as `speedup`.
    Source: maximum of `speedup`; extra interview question 20.

    >>> best_draft_length(acceptance=0.8, draft_cost=0.05)["draft_tokens"]
    8
    """
    found = [
        speedup(acceptance=acceptance, draft_tokens=length, draft_cost=draft_cost)
        for length in range(require_int("most", most, least=0) + 1)
    ]
    best = max(range(len(found)), key=lambda length: found[length])
    return {"draft_tokens": best, "speedup": found[best]}


def overhead_share(*, acceptance: float, draft_tokens: int = 1, measured_speedup: float) -> float:
    """What drafting and verifying cost, from a measured speed-up.

    Args:
        acceptance: alpha, 0 to 1.
        draft_tokens: gamma >= 0.
        measured_speedup: > 0.

    Returns: extra time per pass as a fraction of a plain pass.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: as `tokens_per_pass`.
    Source: E / speed-up - 1; interview question 8.

    >>> [round(100 * overhead_share(acceptance=a, measured_speedup=1.8), 1) for a in (0.85, 0.9)]
    [2.8, 5.6]
    """
    tokens = tokens_per_pass(acceptance=acceptance, draft_tokens=draft_tokens)
    return tokens / require_number("measured_speedup", measured_speedup, above=0) - 1


def output_distribution(*, target: Sequence[float], draft: Sequence[float], rule: str = "residual") -> list[float]:
    """Distribution of the token that accept-or-resample gives, by adding up both ways.

    Args:
        target: p, probabilities that sum to 1.
        draft: q, equally many, sum 1.
        rule: on refusal draw from "residual" (positive part of p - q, normalised) or from the "target" itself (wrong).

    Returns: probabilities; equal to the target's under the residual rule.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: accepted with chance min(1, p / q).
    Source: min(p, q) + (1 - sum min(p, q)) r; Leviathan et al., 2023; extra interview question 21.

    >>> [round(x, 9) for x in output_distribution(target=[0.5, 0.3, 0.2], draft=[0.2, 0.2, 0.6])]
    [0.5, 0.3, 0.2]
    """
    require_choice("rule", rule, ("residual", "target"))
    p, q = require_numbers("target", target, least=0), require_numbers("draft", draft, least=0)
    if len(p) != len(q):
        raise ValueError(f"draft: {len(q)} probabilities: expected {len(p)}, as many as target")
    for name, values in (("target", p), ("draft", q)):
        if abs(math.fsum(values) - 1) > 1e-9:
            raise ValueError(f"{name}={values!r}: expected probabilities with the sum 1")
    accepted = [min(a, b) for a, b in zip(p, q)]
    refused = 1 - math.fsum(accepted)
    again = [max(a - b, 0.0) for a, b in zip(p, q)] if rule == "residual" else p
    total = math.fsum(again)
    return [a + (refused * r / total if total else 0.0) for a, r in zip(accepted, again)]

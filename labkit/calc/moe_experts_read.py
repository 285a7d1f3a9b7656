"""How many different experts a batch of tokens touches in one layer: their weights are what a decode step reads.

In: tokens, experts of a token, experts of a layer. Out: experts.

    python -m labkit calc moe_experts_read expected_experts num_tokens=32 top_k=8 num_experts=128
"""

from __future__ import annotations

import math
import random

from labkit.calc._require import require_int


def expected_experts(*, num_tokens: int, top_k: int, num_experts: int) -> float:
    """Mean number of experts with at least one token, when every token picks different experts at random.

    Args:
        num_tokens: tokens of the batch, >= 0.
        top_k: different experts of one token, 1 to num_experts.
        num_experts: routed experts of the layer, >= 1.

    Returns: experts, not rounded.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: all experts equally likely, tokens independent. A real router is more skewed and touches fewer.
    Source: linearity of the mean, E (1 - (1 - k / E)^T).

    >>> [round(expected_experts(num_tokens=t, top_k=8, num_experts=128), 2) for t in (1, 8, 32)]
    [8.0, 51.62, 111.77]
    """
    require_int("num_tokens", num_tokens)
    _check(top_k, num_experts)
    return num_experts * (1 - (1 - top_k / num_experts) ** num_tokens)


def experts_distribution(*, num_tokens: int, top_k: int, num_experts: int) -> list[float]:
    """Probability of each number of touched experts, token by token.

    A token whose k experts hold j new ones moves the count from n to n + j; j is hypergeometric.

    Args:
        num_tokens: tokens of the batch, 0 to 100000.
        top_k: different experts of one token, 1 to num_experts.
        num_experts: routed experts of the layer, >= 1.

    Returns: probabilities of 0, 1, ... num_experts experts; they sum to 1.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: as `expected_experts`, whose closed form this does not use.
    Source: Markov chain over the count; hypergeometric draws without replacement.

    >>> [round(p, 4) for p in experts_distribution(num_tokens=2, top_k=1, num_experts=2)]
    [0.0, 0.5, 0.5]
    """
    if require_int("num_tokens", num_tokens) > 10**5:
        raise ValueError(f"num_tokens={num_tokens!r}: expected at most 100000")
    _check(top_k, num_experts)
    ways = math.comb(num_experts, top_k)
    steps = [
        [math.comb(num_experts - n, j) * math.comb(n, top_k - j) / ways for j in range(top_k + 1)]
        for n in range(num_experts + 1)]
    chance = [1.0] + [0.0] * num_experts
    for _ in range(num_tokens):
        after = [0.0] * (num_experts + 1)
        for n, p in enumerate(chance):
            if p:
                for j, q in enumerate(steps[n]):
                    if q:
                        after[n + j] += p * q
        if after == chance:  # all touched, or nothing changes any more
            break
        chance = after
    return chance


def sampled_experts(*, num_tokens: int, top_k: int, num_experts: int, num_trials: int = 400, seed: int = 0) -> float:
    """The same mean, by drawing.

    Args:
        num_tokens: tokens of the batch, 0 to 100000.
        top_k: different experts of one token, 1 to num_experts.
        num_experts: routed experts of the layer, >= 1.
        num_trials: batches drawn, 1 to 100000.
        seed: of the random numbers.

    Returns: mean number of touched experts.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: as `expected_experts`.
    Source: Monte Carlo.

    >>> abs(sampled_experts(num_tokens=8, top_k=8, num_experts=128) - 51.62) < 1
    True
    """
    _check(top_k, num_experts)
    for name, value, least in (("num_tokens", num_tokens, 0), ("num_trials", num_trials, 1)):
        if require_int(name, value, least=least) > 10**5:
            raise ValueError(f"{name}={value!r}: expected at most 100000")
    draw, seen = random.Random(seed), 0
    for _ in range(num_trials):
        touched: set[int] = set()
        for _ in range(num_tokens):
            touched.update(draw.sample(range(num_experts), top_k))
        seen += len(touched)
    return seen / num_trials


def _check(top_k: int, num_experts: int) -> None:
    if require_int("top_k", top_k, least=1) > require_int("num_experts", num_experts, least=1):
        raise ValueError(f"top_k={top_k!r}: expected at most num_experts={num_experts}")

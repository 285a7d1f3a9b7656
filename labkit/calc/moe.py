"""Mixture of experts: rows per expert, how many ranks or tokens it takes, hot experts, dropped tokens.

In: experts E, experts per token k, ranks P, local tokens B. Out: rows, ranks, tokens, shares.

    python -m labkit calc moe rows_per_expert num_tokens=512 top_k=8 num_experts=256
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any

from labkit.calc._require import require_int, require_number, require_numbers


def rows_per_expert(*, num_tokens: int, top_k: int, num_experts: int, num_instances: int | None = None) -> float:
    """Mean rows of one expert's matrix product under uniform routing.

    Args:
        num_tokens: raw tokens of the whole expert-parallel group (ranks x local tokens), >= 0.
        top_k: routed experts of one token, 1 to num_experts.
        num_experts: routed experts of a layer, >= 1.
        num_instances: expert copies, replicas included, >= num_experts; None: one of each.

    Returns: rows, not rounded.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: every expert (and every replica) is equally likely; shared experts not counted.
    Source: k T / E, assignments over experts; interview questions 1 and 9.

    >>> rows_per_expert(num_tokens=512, top_k=8, num_experts=256)
    16.0
    """
    require_int("num_tokens", num_tokens, least=0)
    _check_routing(top_k, num_experts)
    instances = num_experts if num_instances is None else require_int("num_instances", num_instances, least=num_experts)
    return top_k * num_tokens / instances


def tokens_for_rows(*, rows: float, top_k: int, num_experts: int, num_ranks: int = 1) -> float:
    """Tokens that give an expert this many rows: of the group, or of each rank.

    Args:
        rows: wanted mean rows of an expert, > 0.
        top_k: routed experts of one token, 1 to num_experts.
        num_experts: routed experts of a layer, >= 1.
        num_ranks: ranks that share the tokens, >= 1; 1 gives the tokens of the group.

    Returns: tokens, not rounded.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: as `rows_per_expert`.
    Source: E M / (k P); interview question 1.

    >>> tokens_for_rows(rows=333, top_k=8, num_experts=256)
    10656.0
    >>> [tokens_for_rows(rows=333, top_k=8, num_experts=256, num_ranks=p) for p in (32, 64)]
    [333.0, 166.5]
    """
    require_number("rows", rows, above=0)
    _check_routing(top_k, num_experts)
    return num_experts * rows / (top_k * require_int("num_ranks", num_ranks, least=1))


def ranks_for_rows(*, rows: float, local_tokens: int, top_k: int, num_experts: int) -> dict[str, Any]:
    """Expert-parallel size that gives an expert this many rows, and whether it can exist at all.

    More ranks bring more tokens, so rows grow with the group, but only while a rank holds at least one whole expert.
    Past P = E every further rank holds a replica and shares its rows: rows stop at k x local tokens.

    Args:
        rows: wanted mean rows of an expert, > 0.
        local_tokens: tokens of one rank, >= 1.
        top_k: routed experts of one token, 1 to num_experts.
        num_experts: routed experts of a layer, >= 1.

    Returns: {"ranks": by the formula, not rounded, "reachable", "most_rows": the ceiling k x local tokens,
        "local_tokens_needed": at P = E, rounded up}.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: as `rows_per_expert`; experts are not split over ranks (tensor-parallel experts lift the ceiling).
    Source: E M / (k B) with P <= E; interview question 9 and erratum E02.

    >>> ranks_for_rows(rows=16, local_tokens=16, top_k=8, num_experts=256)["ranks"]
    32.0
    >>> ranks_for_rows(rows=333, local_tokens=16, top_k=8, num_experts=256)
    {'ranks': 666.0, 'reachable': False, 'most_rows': 128, 'local_tokens_needed': 42}
    """
    require_int("local_tokens", local_tokens, least=1)
    ranks = tokens_for_rows(rows=rows, top_k=top_k, num_experts=num_experts) / local_tokens
    return {
        "ranks": ranks, "reachable": ranks <= num_experts, "most_rows": top_k * local_tokens,
        "local_tokens_needed": math.ceil(rows / top_k),
    }


def rows_per_instance(*, num_ranks: int, local_tokens: int, top_k: int, num_experts: int, redundant: int = 0) -> float:
    """Mean rows of one expert copy at this group size, replicas included where ranks outnumber experts.

    Args:
        num_ranks: P >= 1.
        local_tokens: tokens of one rank, >= 0.
        top_k: routed experts of one token, 1 to num_experts.
        num_experts: routed experts of a layer, >= 1.
        redundant: further copies, >= 0.

    Returns: rows, not rounded.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: at least one copy on every rank, replicas share evenly.
    Source: k P B / max(E + redundant, P); interview question 9.

    >>> [rows_per_instance(num_ranks=p, local_tokens=16, top_k=8, num_experts=256) for p in (32, 256, 666)]
    [16.0, 128.0, 128.0]
    """
    require_int("num_ranks", num_ranks, least=1)
    require_int("local_tokens", local_tokens, least=0)
    copies = max(require_int("num_experts", num_experts, least=1) + require_int("redundant", redundant), num_ranks)
    return rows_per_expert(
        num_tokens=num_ranks * local_tokens, top_k=top_k, num_experts=num_experts, num_instances=copies
    )


def expert_copies(*, num_experts: int, num_ranks: int, redundant_per_rank: int = 0) -> dict[str, float]:
    """Experts on a rank and expert copies in the group.

    Args:
        num_experts: routed experts of a layer, >= 1.
        num_ranks: P >= 1.
        redundant_per_rank: copies on each rank beside its share, >= 0.

    Returns: {"per_rank": copies on a rank, not rounded, "copies": in the group}.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: experts divide evenly where the share is used as a count; the shared expert is not counted.
    Source: E / P + r and E + r P; interview question 9.

    >>> expert_copies(num_experts=256, num_ranks=32, redundant_per_rank=1)
    {'per_rank': 9.0, 'copies': 288}
    """
    experts, ranks = require_int("num_experts", num_experts, least=1), require_int("num_ranks", num_ranks, least=1)
    extra = require_int("redundant_per_rank", redundant_per_rank, least=0)
    return {"per_rank": experts / ranks + extra, "copies": experts + extra * ranks}


def layout_gpus(*, tensor_parallel: int, data_parallel: int, gpus_per_node: int = 8) -> dict[str, int]:
    """GPUs and nodes of a tensor-parallel x data-parallel attention layout.

    Args:
        tensor_parallel: ranks of one replica, >= 1.
        data_parallel: replicas, >= 1.
        gpus_per_node: >= 1.

    Returns: {"gpus", "nodes": whole nodes}.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: one rank per GPU.
    Source: TP x DP; interview question 9, the units of the DeepSeek-V3 technical report.

    >>> layout_gpus(tensor_parallel=4, data_parallel=80)
    {'gpus': 320, 'nodes': 40}
    """
    gpus = require_int("tensor_parallel", tensor_parallel, least=1)
    gpus *= require_int("data_parallel", data_parallel, least=1)
    return {"gpus": gpus, "nodes": -(-gpus // require_int("gpus_per_node", gpus_per_node, least=1))}


def load_imbalance_ratio(*, loads: Sequence[float]) -> float:
    """How much longer a layer takes than its mean load says: the slowest rank or expert decides.

    Args:
        loads: rows (or seconds) of each expert or rank, >= 0, not all zero.

    Returns: largest / mean, >= 1.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: time proportional to load, everyone waits for the last.
    Source: by definition; interview questions 9 and 11.

    >>> load_imbalance_ratio(loads=[160, 96, 128, 128])
    1.25
    """
    found = require_numbers("loads", loads, least=0)
    if not any(found):
        raise ValueError(f"loads={loads!r}: expected at least one above 0")
    return max(found) * len(found) / math.fsum(found)


def coupled_step_s(*, times_s: Sequence[float]) -> dict[str, float]:
    """Step time of ranks that meet at every layer, beside the mean they would have on their own.

    Args:
        times_s: attention time of each data-parallel rank, seconds, >= 0.

    Returns: {"coupled_s": the slowest, "mean_s"}.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: one barrier, the expert layer itself not counted; idle ranks join with dummy work.
    Source: by definition of a barrier; interview question 9, erratum E07.

    >>> coupled_step_s(times_s=[0.01, 0.01, 0.04])
    {'coupled_s': 0.04, 'mean_s': 0.02}
    """
    found = require_numbers("times_s", times_s, least=0)
    return {"coupled_s": max(found), "mean_s": math.fsum(found) / len(found)}


def hottest_load(
    *, num_tokens: int, top_k: int, num_experts: int, num_ranks: int = 1, num_trials: int = 200, seed: int = 0
) -> dict[str, float]:
    """Rows of the hottest expert and of the hottest rank under perfectly random routing, by simulation.

    Args:
        num_tokens: tokens of the group, 0 to 100000.
        top_k: different experts of one token, 1 to num_experts.
        num_experts: routed experts, >= 1.
        num_ranks: ranks with equally many neighbouring experts, a divisor of num_experts.
        num_trials: repetitions, 1 to 10000.
        seed: of the random numbers.

    Returns: {"expert": mean of the largest expert load, "rank": mean of the largest rank load}, rows.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: experts of a token drawn without replacement, all alike; real routers are more skewed.
    Source: Monte Carlo; interview question 9.

    >>> hottest_load(num_tokens=4, top_k=2, num_experts=2, num_trials=3)
    {'expert': 4.0, 'rank': 8.0}
    """
    _check_routing(top_k, num_experts)
    for name, value, least, most in (("num_tokens", num_tokens, 0, 10**5), ("num_trials", num_trials, 1, 10**4)):
        if require_int(name, value, least=least) > most:
            raise ValueError(f"{name}={value!r}: expected at most {most}")
    if num_experts % require_int("num_ranks", num_ranks, least=1):
        raise ValueError(f"num_ranks={num_ranks!r}: expected a divisor of num_experts={num_experts}")
    draw, width, experts, ranks = random.Random(seed), num_experts // num_ranks, 0, 0
    for _ in range(num_trials):
        rows = [0] * num_experts
        for _ in range(num_tokens):
            for expert in draw.sample(range(num_experts), top_k):
                rows[expert] += 1
        experts += max(rows)
        ranks += max(sum(rows[i : i + width]) for i in range(0, num_experts, width))
    return {"expert": experts / num_trials, "rank": ranks / num_trials}


def dropped_share(*, num_tokens: int, top_k: int, num_experts: int, capacity_factor: float) -> float:
    """Expected share of assignments above an expert's capacity under random routing.

    Args:
        num_tokens: tokens of the batch, 1 to 20000.
        top_k: experts of one token, 1 to num_experts.
        num_experts: routed experts, >= 1.
        capacity_factor: capacity over mean load, >= 0.

    Returns: a fraction in [0, 1].
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: an expert's load is binomial (T, k / E); the capacity need not be whole.
    Source: E[(X - C)+] / E[X]; extra interview question 37.

    >>> [round(100 * dropped_share(num_tokens=512, top_k=8, num_experts=256, capacity_factor=c), 2) for c in (1, 1.25)]
    [9.77, 2.19]
    """
    if require_int("num_tokens", num_tokens, least=1) > 20000:
        raise ValueError(f"num_tokens={num_tokens!r}: expected at most 20000")
    _check_routing(top_k, num_experts)
    chance, factor = top_k / num_experts, require_number("capacity_factor", capacity_factor, least=0)
    mean = num_tokens * chance
    if chance == 1:
        return max(0.0, 1 - factor)

    def log_pmf(n: int) -> float:
        ways = math.lgamma(num_tokens + 1) - math.lgamma(n + 1) - math.lgamma(num_tokens - n + 1)
        return ways + n * math.log(chance) + (num_tokens - n) * math.log1p(-chance)

    over = range(math.floor(factor * mean) + 1, num_tokens + 1)
    return math.fsum((n - factor * mean) * math.exp(log_pmf(n)) for n in over) / mean


def _check_routing(top_k: int, num_experts: int) -> None:
    if require_int("top_k", top_k, least=1) > require_int("num_experts", num_experts, least=1):
        raise ValueError(f"top_k={top_k!r}: expected at most num_experts={num_experts}")

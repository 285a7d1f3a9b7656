"""What a DDP run of the report's TinyGPT will do: buckets, collectives and bytes of every case, in closed form.

In: sizes of the model, bucket caps, ranks, samples. Out: plain values by case. A case is a bucket cap ("25 MiB") or one
of the accumulation variants, all with the same samples: m8a1 (one big micro-step), m1a8-no_sync (one sample a
micro-step, reduced once), m1a8-sync-every (reduced in every micro-step).

    python -m labkit calc ddp_prediction ddp_prediction world_size=2
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from labkit.calc._require import require_int
from labkit.calc.ddp import (
    bucket_sizes_bytes,
    collectives_per_step,
    gradient_bytes,
    num_parameters,
    wire_bytes_per_rank,
)
from labkit.calc.tinygpt import tinygpt_parameters

VARIANTS = ("m8a1", "m1a8-no_sync", "m1a8-sync-every")
MIB = 2**20


def in_case_order(*, cases: Iterable[str]) -> list[str]:
    """Cases as tables and figures show them: caps by size, then the accumulation variants, then anything else.

    Args:
        cases: names, e.g. the keys of a record, which JSON keeps in alphabetical order.

    Returns: the same names.
    Assumes: caps are written "<number> MiB".
    Source: the order of the report's tables in sections 3.4 and 3.5.

    >>> in_case_order(cases=["100 MiB", "m1a8-no_sync", "25 MiB", "m8a1"])
    ['25 MiB', '100 MiB', 'm8a1', 'm1a8-no_sync']
    """
    def place(case: str) -> tuple[int, float, str]:
        if case in VARIANTS:
            return (1, VARIANTS.index(case), case)
        return (0, float(case.removesuffix(" MiB")), case) if case.endswith(" MiB") else (2, 0.0, case)

    return sorted(cases, key=place)


def gradient_ready_order(*, names: Sequence[str]) -> list[str]:
    """The order in which a backward pass finishes the gradients of TinyGPT.

    The reverse of registration, except that of one LayerNorm the weight comes before the bias. A tied token table is
    used first and last; its gradient is complete only after both uses, so it is last.

    Args:
        names: parameter names in registration order, as `tinygpt_parameters` gives them.

    Returns: the same names, first ready first.
    Assumes: modules are used in the order in which they are registered.
    Source: `prev_iteration_grad_ready_order_indices` in the reducer's log of torch 2.13, compared in every run.

    >>> gradient_ready_order(names=["tok.weight", "ln1.weight", "ln1.bias", "qkv.weight", "qkv.bias"])
    ['qkv.bias', 'qkv.weight', 'ln1.weight', 'ln1.bias', 'tok.weight']
    """
    order: list[str] = []
    for name in reversed(names):
        module, _, kind = name.rpartition(".")
        is_norm_weight = kind == "weight" and module.rpartition(".")[2].startswith("ln")
        order.insert(len(order) - (is_norm_weight and order[-1:] == [f"{module}.bias"]), name)
    return order


def ddp_prediction(
    *, caps_mib: Sequence[float] = (1, 4, 25, 100), accum_cap_mib: float = 25, world_size: int = 8,
    samples_per_rank: int = 8, num_layers: int = 12, hidden: int = 768, vocab_size: int = 32000,
    num_positions: int = 512, tied: bool = True, linear_bias: bool = False,
) -> dict[str, Any]:
    """Buckets, collectives and bytes of every case of the DDP lab.

    Args:
        caps_mib: DDP's `bucket_cap_mb`, given explicitly, MiB.
        accum_cap_mib: cap of the accumulation variants, one of `caps_mib`.
        world_size: ranks, >= 1.
        samples_per_rank: samples a rank uses in one optimizer step of the accumulation variants, >= 1.
        num_layers: as `tinygpt_parameters`, like the five arguments after it.
        hidden: width.
        vocab_size: rows of the token table.
        num_positions: rows of the position table.
        tied: the head is the token table.
        linear_bias: Linear layers of the blocks have a bias.

    Returns: by cap: bucket_sizes_bytes (rebuilt, in fill order), initial_bucket_sizes_bytes, bucket_count,
        bucket_max_mib, collectives_per_step; by variant: accum_synchronised (reduced backward passes),
        accum_collectives; by cap and variant: wire_bytes_per_rank (bytes a rank sends in a step); by half of a
        micro-step that alone is under `no_sync` ("forward", "backward"): no_sync_partial_collectives; and
        num_parameters, gradient_bytes, ready_order (indices of parameters), accum_case.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: float32 gradients, ring all-reduce.
    Source: `labkit.calc.ddp`; report sections 3.4 to 3.6.

    >>> found = ddp_prediction(world_size=8)
    >>> found["bucket_count"], found["accum_collectives"]["m1a8-sync-every"]
    ({'1 MiB': 50, '4 MiB': 37, '25 MiB': 13, '100 MiB': 4}, 104)
    """
    require_int("samples_per_rank", samples_per_rank, least=1)
    if accum_cap_mib not in caps_mib:
        raise ValueError(f"accum_cap_mib={accum_cap_mib!r}: expected one of caps_mib={list(caps_mib)!r}")
    parameters = tinygpt_parameters(
        num_layers=num_layers, hidden=hidden, vocab_size=vocab_size, num_positions=num_positions, tied=tied,
        linear_bias=linear_bias)
    names = [name for name, _ in parameters]
    order = gradient_ready_order(names=names)
    caps = {f"{cap:g} MiB": cap for cap in caps_mib}
    rebuilt = {case: bucket_sizes_bytes(parameters=parameters, bucket_cap_mib=cap, ready_order=order)
               for case, cap in caps.items()}
    accum = rebuilt[f"{accum_cap_mib:g} MiB"]
    num_micro = {case: 1 if case == "m8a1" else samples_per_rank for case in VARIANTS}
    scope = {case: "both" if case == "m1a8-no_sync" else "none" for case in VARIANTS}
    synchronised = {case: 1 if scope[case] == "both" else num_micro[case] for case in VARIANTS}
    wire = {case: wire_bytes_per_rank(sizes_bytes=sizes, world_size=world_size) for case, sizes in rebuilt.items()}
    wire |= {case: wire_bytes_per_rank(sizes_bytes=accum, world_size=world_size, num_synchronised=count)
             for case, count in synchronised.items()}
    return {
        "num_parameters": num_parameters(parameters=parameters),
        "gradient_bytes": gradient_bytes(parameters=parameters),
        "ready_order": [names.index(name) for name in order],
        "bucket_sizes_bytes": rebuilt,
        "initial_bucket_sizes_bytes": {
            case: bucket_sizes_bytes(parameters=parameters, bucket_cap_mib=cap, stage="initial")
            for case, cap in caps.items()},
        "bucket_count": {case: len(sizes) for case, sizes in rebuilt.items()},
        "bucket_max_mib": {case: max(sizes) / MIB for case, sizes in rebuilt.items()},
        "collectives_per_step": {case: collectives_per_step(num_buckets=len(s)) for case, s in rebuilt.items()},
        "accum_case": f"{accum_cap_mib:g} MiB",
        "accum_synchronised": synchronised,
        "accum_collectives": {
            case: collectives_per_step(
                num_buckets=len(accum), num_micro_steps=num_micro[case], no_sync_scope=scope[case])
            for case in VARIANTS},
        "no_sync_partial_collectives": {"forward": 0, "backward": len(accum)},
        "wire_bytes_per_rank": wire,
    }


def train_flop_per_token(*, num_layers: int, hidden: int, vocab_size: int, seq_tokens: int) -> int:
    """FLOP of forward and backward for one token of TinyGPT: matrix products and causal attention only.

    Args:
        num_layers: blocks, >= 0.
        hidden: width, >= 1.
        vocab_size: columns of the head, >= 1.
        seq_tokens: sequence length, >= 1.

    Returns: FLOP: 6 per weight of a Linear (12 hidden^2 a block, and the head), and 6 hidden seq_tokens a block for the
        scores and the weighted sum, half of them masked.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: a multiply-add is 2 FLOP, backward costs twice the forward, a causal kernel skips the masked half.
    Source: Kaplan et al., "Scaling Laws for Neural Language Models", 2020, table 1, times 3 for forward and backward.

    >>> train_flop_per_token(num_layers=12, hidden=768, vocab_size=32000, seq_tokens=512) / 1e6
    685.375488
    """
    for name, value in (("num_layers", num_layers), ("hidden", hidden), ("vocab_size", vocab_size),
                        ("seq_tokens", seq_tokens)):
        require_int(name, value, least=0 if name == "num_layers" else 1)
    weights = 12 * num_layers * hidden**2 + vocab_size * hidden
    return 6 * weights + 6 * num_layers * hidden * seq_tokens

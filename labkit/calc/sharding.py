"""ZeRO and FSDP: memory and traffic of each stage, and the peak that wrapping and prefetching set.

In: parameters, ranks, stage, bytes per element. Out: bytes.

    python -m labkit calc sharding model_state_bytes num_parameters=7500000000 num_ranks=64 stage=2
"""

from __future__ import annotations

from labkit.calc._require import require_int, require_number


def model_state_bytes(
    *, num_parameters: int, num_ranks: int, stage: int, parameter_bytes: float = 2, gradient_bytes: float = 2,
    optimizer_bytes: float = 12,
) -> float:
    """Bytes of parameters, gradients and optimizer state on one rank.

    Args:
        num_parameters: of the model, >= 1.
        num_ranks: N that shard, >= 1.
        stage: 0 (nothing sharded, as DDP), 1 (optimizer), 2 (and gradients), 3 (and parameters, as FSDP).
        parameter_bytes: of one working parameter, > 0.
        gradient_bytes: of one gradient, > 0.
        optimizer_bytes: of the state of one parameter, >= 0; 12 is an FP32 copy and two Adam moments.

    Returns: bytes.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: mixed-precision Adam by default; activations, buffers and gathered units not counted.
    Source: Rajbhandari et al., "ZeRO", 2020, section 3; extra interview question 4.

    >>> [model_state_bytes(num_parameters=7_500_000_000, num_ranks=64, stage=s) / 1e9 for s in (0, 1, 2, 3)]
    [120.0, 31.40625, 16.640625, 1.875]
    """
    psi, n = require_int("num_parameters", num_parameters, least=1), require_int("num_ranks", num_ranks, least=1)
    parts = (
        (require_number("optimizer_bytes", optimizer_bytes, least=0), 1),
        (require_number("gradient_bytes", gradient_bytes, above=0), 2),
        (require_number("parameter_bytes", parameter_bytes, above=0), 3),
    )
    level = _check_stage(stage)
    return psi * sum(size / n if level >= first else size for size, first in parts)


def step_traffic_bytes(
    *, num_parameters: int, stage: int, bytes_per_element: float = 2, num_ranks: int | None = None,
    num_gathers: int = 2,
) -> float:
    """Bytes that one rank sends in one optimizer step.

    Args:
        num_parameters: of the model, >= 1.
        stage: 0 to 3, as `model_state_bytes`.
        bytes_per_element: of gradients and parameters on the wire, > 0.
        num_ranks: N >= 1, for the exact (N - 1) / N; None: the limit of many ranks.
        num_gathers: parameter gathers of a stage 3 step, >= 1; 2: forward and backward, 3 with recomputation.

    Returns: bytes; 2 psi, 2 psi, 2 psi and 3 psi elements.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: ring collectives, one micro-batch; gradient accumulation at stage 2 and 3 reduces each time.
    Source: Rajbhandari et al., "ZeRO", 2020, section 7; extra interview question 5.

    >>> [step_traffic_bytes(num_parameters=7_000_000_000, stage=s) / 1e9 for s in (0, 2, 3)]
    [28.0, 28.0, 42.0]
    """
    passes = 2 if _check_stage(stage) < 3 else 1 + require_int("num_gathers", num_gathers, least=1)
    share = 1.0 if num_ranks is None else 1 - 1 / require_int("num_ranks", num_ranks, least=1)
    size = require_number("bytes_per_element", bytes_per_element, above=0)
    return passes * require_int("num_parameters", num_parameters, least=1) * size * share


def fsdp_peak_bytes(
    *, num_parameters: int, num_ranks: int, num_units: int, units_alive: int = 2, state_bytes: float = 16,
    parameter_bytes: float = 2,
) -> float:
    """Peak model memory of a rank: its shard of everything and the units that are gathered at a time.

    Args:
        num_parameters: of the model, >= 1.
        num_ranks: N that shard, >= 1.
        num_units: equal wrapped units, >= 1; 1: only the root is wrapped.
        units_alive: gathered at a time, >= 1: the current one and prefetched ones; never more than there are.
        state_bytes: of one parameter in the shard, > 0; 16: 2 + 2 + 12.
        parameter_bytes: of a gathered parameter, > 0.

    Returns: bytes.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: equal units; gathered gradients and activations not counted.
    Source: 16 psi / N + alive x b psi / units; extra interview question 6.

    >>> [fsdp_peak_bytes(num_parameters=7_000_000_000, num_ranks=8, num_units=u) / 1e9 for u in (1, 32)]
    [28.0, 14.875]
    """
    psi, n = require_int("num_parameters", num_parameters, least=1), require_int("num_ranks", num_ranks, least=1)
    units = require_int("num_units", num_units, least=1)
    alive = min(require_int("units_alive", units_alive, least=1), units)
    gathered = alive * require_number("parameter_bytes", parameter_bytes, above=0) * psi / units
    return psi * require_number("state_bytes", state_bytes, above=0) / n + gathered


def _check_stage(stage: int) -> int:
    if require_int("stage", stage, least=0) > 3:
        raise ValueError(f"stage={stage!r}: expected 0, 1, 2 or 3")
    return stage

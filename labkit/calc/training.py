"""Training steps: gradient buckets and accumulation, activations, FLOP and MFU, tensor-parallel traffic.

In: gradient bytes, micro-batches, shapes, rates. Out: bytes, shares, seconds.

    python -m labkit calc training mfu tokens_per_s=1000 num_parameters=70e9 peak_flop_per_s=989.5e12
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from labkit.calc._require import require_choice, require_int, require_number, require_numbers
from labkit.calc.collectives import ring_bytes_per_rank


def exposed_comm_s(*, gradient_bytes: float, bucket_bytes: float, alpha_s: float, bytes_per_s: float) -> float:
    """Communication that no backward pass hides, as a function of the bucket size.

    Args:
        gradient_bytes: G >= 0.
        bucket_bytes: b > 0.
        alpha_s: latency of one bucket's all-reduce, seconds, >= 0.
        bytes_per_s: at which a bucket is reduced, > 0.

    Returns: seconds: latency of all buckets, and the last bucket after backward has ended.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: latencies add up and are not hidden (communication-bound); the last bucket starts when backward ends.
    Source: alpha G / b + alpha + b / BW; extra interview question 1.

    >>> round(1e3 * exposed_comm_s(gradient_bytes=2e9, bucket_bytes=100e6, alpha_s=100e-6, bytes_per_s=100e9), 6)
    3.1
    """
    bucket = require_number("bucket_bytes", bucket_bytes, above=0)
    alpha = require_number("alpha_s", alpha_s, least=0)
    latencies = alpha * require_number("gradient_bytes", gradient_bytes, least=0) / bucket
    return latencies + alpha + bucket / require_number("bytes_per_s", bytes_per_s, above=0)


def best_bucket_bytes(*, gradient_bytes: float, alpha_s: float, bytes_per_s: float) -> float:
    """Bucket size with the least exposed communication.

    Args:
        gradient_bytes: G >= 0.
        alpha_s: as `exposed_comm_s`.
        bytes_per_s: as `exposed_comm_s`.

    Returns: bytes.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: as `exposed_comm_s`.
    Source: sqrt(alpha G BW), the minimum of `exposed_comm_s`; extra interview question 1.

    >>> round(best_bucket_bytes(gradient_bytes=2e9, alpha_s=100e-6, bytes_per_s=100e9) / 1e6, 1)
    141.4
    """
    product = require_number("gradient_bytes", gradient_bytes, least=0) * require_number("alpha_s", alpha_s, least=0)
    return math.sqrt(product * require_number("bytes_per_s", bytes_per_s, above=0))


def no_sync_saved_share(*, num_micro_steps: int) -> float:
    """All-reduce traffic that accumulating without synchronisation saves.

    Args:
        num_micro_steps: k, micro-batches of one optimizer step, >= 1.

    Returns: a fraction in [0, 1).
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: forward and backward both inside no_sync, the last micro-batch outside.
    Source: (k - 1) / k; extra interview question 2.

    >>> no_sync_saved_share(num_micro_steps=8)
    0.875
    """
    steps = require_int("num_micro_steps", num_micro_steps, least=1)
    return (steps - 1) / steps


def accumulated_loss(*, losses: Sequence[float], num_tokens: Sequence[int]) -> dict[str, float]:
    """Loss of an accumulated batch: over all tokens, and the mean of the micro-batches' means.

    Args:
        losses: mean loss of each micro-batch.
        num_tokens: of each micro-batch, >= 0, not all zero.

    Returns: {"token_mean", "mean_of_means"}; they differ where lengths differ.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: the loss is a mean over tokens.
    Source: sum n l / sum n; extra interview question 3.

    >>> accumulated_loss(losses=[1.0, 3.0], num_tokens=[10, 990])
    {'token_mean': 2.98, 'mean_of_means': 2.0}
    """
    found = require_numbers("losses", losses)
    tokens = [require_int("num_tokens", n, least=0) for n in num_tokens]
    if len(tokens) != len(found) or not sum(tokens):
        raise ValueError(f"num_tokens={list(num_tokens)!r}: expected one for each of losses, not all zero")
    weighted = math.fsum(loss * n for loss, n in zip(found, tokens))
    return {"token_mean": weighted / sum(tokens), "mean_of_means": math.fsum(found) / len(found)}


def activation_bytes_per_layer(
    *, seq_tokens: int, micro_batch: int, hidden: int, num_heads: int, recompute: str = "none", tensor_parallel: int = 1
) -> float:
    """Activations that one transformer layer keeps for its backward pass.

    Args:
        seq_tokens: s >= 1.
        micro_batch: b >= 1.
        hidden: h >= 1.
        num_heads: a >= 1.
        recompute: none, selective (attention scores) or full (only the layer's input is kept).
        tensor_parallel: t >= 1, with sequence parallelism: everything is divided by t.

    Returns: bytes.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: 16-bit activations, dropout masks of one byte, GELU MLP of 4 h, scores stored (no FlashAttention).
    Source: s b h (34 + 5 a s / h); Korthikanti et al., 2022; extra interview question 14.

    >>> [activation_bytes_per_layer(seq_tokens=4096, micro_batch=1, hidden=8192, num_heads=64, recompute=r) / 2**30
    ...  for r in ("none", "selective", "full")]
    [6.0625, 1.0625, 0.0625]
    """
    s, b = require_int("seq_tokens", seq_tokens, least=1), require_int("micro_batch", micro_batch, least=1)
    h, a = require_int("hidden", hidden, least=1), require_int("num_heads", num_heads, least=1)
    require_choice("recompute", recompute, ("none", "selective", "full"))
    factor = {"none": 34 + 5 * a * s / h, "selective": 34, "full": 2}[recompute]
    return s * b * h * factor / require_int("tensor_parallel", tensor_parallel, least=1)


def flop_per_token(
    *, num_parameters: float, num_layers: int = 0, hidden: int = 0, seq_tokens: int = 0, recompute: bool = False
) -> float:
    """Training work of one token.

    Args:
        num_parameters: active ones (of a mixture of experts: those a token uses), > 0.
        num_layers: L >= 0; 0 leaves attention out.
        hidden: heads x head width, >= 0.
        seq_tokens: s >= 0.
        recompute: one more forward pass (hardware FLOP, for HFU).

    Returns: FLOP.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: backward costs twice forward; attention without the causal half.
    Source: 6 N + 12 L h s, times 4/3 with recomputation; extra interview questions 15 and 16.

    >>> flop_per_token(num_parameters=70e9), flop_per_token(num_parameters=3.0, recompute=True)
    (420000000000.0, 24.0)
    """
    work = 6 * require_number("num_parameters", num_parameters, above=0)
    work += 12 * require_int("num_layers", num_layers) * require_int("hidden", hidden) * require_int(
        "seq_tokens", seq_tokens
    )
    return work * 4 / 3 if recompute else work


def mfu(
    *, tokens_per_s: float, num_parameters: float, peak_flop_per_s: float, num_layers: int = 0, hidden: int = 0,
    seq_tokens: int = 0, recompute: bool = False,
) -> float:
    """Model FLOP utilisation of a device (with recompute: hardware FLOP utilisation).

    Args:
        tokens_per_s: of one device, >= 0.
        num_parameters: as `flop_per_token`.
        peak_flop_per_s: dense peak of the dtype, > 0.
        num_layers: as `flop_per_token`.
        hidden: as `flop_per_token`.
        seq_tokens: as `flop_per_token`.
        recompute: as `flop_per_token`.

    Returns: a fraction.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: as `flop_per_token`.
    Source: tokens/s x FLOP / peak; extra interview questions 15 and 16.

    >>> round(100 * mfu(tokens_per_s=1000, num_parameters=70e9, peak_flop_per_s=989.5e12), 1)
    42.4
    """
    work = flop_per_token(
        num_parameters=num_parameters, num_layers=num_layers, hidden=hidden, seq_tokens=seq_tokens, recompute=recompute
    )
    return require_number("tokens_per_s", tokens_per_s, least=0) * work / require_number(
        "peak_flop_per_s", peak_flop_per_s, above=0
    )


def tensor_parallel_bytes(
    *, seq_tokens: int, micro_batch: int, hidden: int, tensor_parallel: int, num_layers: int = 1,
    bytes_per_element: float = 2, all_reduces: int = 4,
) -> float:
    """Bytes that one rank sends for tensor parallelism, forward and backward.

    Args:
        seq_tokens: s >= 1.
        micro_batch: b >= 1.
        hidden: h >= 1.
        tensor_parallel: t >= 1.
        num_layers: >= 1.
        bytes_per_element: > 0.
        all_reduces: of one layer, >= 0; 4: two forward, two backward. Reduce-scatter and all-gather move the same.

    Returns: bytes.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: rings; recomputation would add two all-reduces.
    Source: 4 x 2 (t - 1) / t s b h e; Shoeybi et al., 2019; extra interview question 17.

    >>> tensor_parallel_bytes(seq_tokens=4096, micro_batch=1, hidden=8192, tensor_parallel=8) / 2**20
    448.0
    """
    size = require_number("bytes_per_element", bytes_per_element, above=0)
    for name, value in (("seq_tokens", seq_tokens), ("micro_batch", micro_batch), ("hidden", hidden)):
        size *= require_int(name, value, least=1)
    one = ring_bytes_per_rank("all_reduce", size_bytes=size, world_size=tensor_parallel)
    return require_int("all_reduces", all_reduces) * require_int("num_layers", num_layers, least=1) * one


def loader_workers(*, batch: int, sample_s: float, step_s: float) -> int:
    """Loader processes that keep up with the training steps.

    Args:
        batch: samples of one step, >= 1.
        sample_s: time to prepare one, seconds, >= 0.
        step_s: time of a step, seconds, > 0.

    Returns: processes, rounded up, at least 1.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: samples in parallel without contention.
    Source: B t / T; extra interview question 54.

    >>> loader_workers(batch=64, sample_s=0.02, step_s=0.25)
    6
    """
    busy = require_int("batch", batch, least=1) * require_number("sample_s", sample_s, least=0)
    return max(1, math.ceil(busy / require_number("step_s", step_s, above=0) * (1 - 1e-12)))

"""Is a product right? Two checks against float64, made outside every timed region.

Integers. Both operands hold -1, 0 and 1. Every partial sum is an integer of at most K < 2^13, so it is exact in FP32
and also in the 14-bit accumulators of FP8 matrix units, in any order. The result must be float64's, rounded once to the
output's dtype: equal bits, no tolerance.

Normal numbers. Products of BF16 operands are exact in FP32, those of FP32 operands cost one rounding more. Any order of
summation in FP32 errs by at most gamma_K sum|a||b|, gamma_n = n u / (1 - n u), u = 2^-24. Matrix units of a GPU cut off
instead of rounding and drop low bits when they align: u = 2^-22 there. Rounding to the output adds v|c|, v = 2^-8 for
BF16. FP8 matrix units keep too few bits for such a bound to say anything, so there the whole result is judged:
||C - C64|| / ||C64|| at most 2^-8 + 2 (K / 32) 2^-13, one truncation of the accumulator for every 32 products.
"""

from __future__ import annotations

from typing import Any

import torch

OUTPUT_ROUNDOFF = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8}
FP8_STEP_PRODUCTS = 32
"""Products that one FP8 matrix instruction adds to its accumulator."""


def reference(a: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """A (M, K) times W (N, K) transposed, in float64, shape (M, N)."""
    return wide(a) @ wide(w).t()


def term_sizes(a: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Sum of |a||b| of each element of the product, in float64, shape (M, N)."""
    return wide(a).abs() @ wide(w).abs().t()


def wide(tensor: torch.Tensor) -> torch.Tensor:
    """The same numbers in float64; by way of FP32, which every narrower dtype converts to."""
    return tensor.float().double()


def accumulation_bound(k: int, *, on_gpu: bool) -> float:
    """gamma_K: error of any summation of K products over the sum of their sizes."""
    unit = 2.0**-22 if on_gpu else 2.0**-24
    return (k + 1) * unit / (1 - (k + 1) * unit)


def fp8_norm_bound(k: int) -> float:
    """Largest allowed ||C - C64|| / ||C64|| for FP8 operands and a BF16 result."""
    return 2.0**-8 + 2 * (k / FP8_STEP_PRODUCTS) * 2.0**-13


def wrong_integers(out: torch.Tensor, expected: torch.Tensor) -> int:
    """Elements that differ from the float64 product, rounded once to the output's dtype; operands hold integers."""
    return int((out != expected.to(out.dtype)).sum())


def judge_normal(
    out: torch.Tensor, expected: torch.Tensor, sizes: torch.Tensor, *, k: int, is_fp8: bool, on_gpu: bool
) -> dict[str, Any]:
    """Errors of a product of normal numbers.

    Args:
        out: the result, (M, N).
        expected: of `reference`.
        sizes: of `term_sizes`.
        k: length of the sums.
        is_fp8: operands are FP8: the result is judged as a whole.
        on_gpu: matrix units may truncate.

    Returns: num_bad (elements beyond the bound or not finite; for FP8 1 if the whole result is), bound_used (largest
    error / bound), norm_rel_err (of the whole result).
    """
    error = (out.double() - expected).abs()
    norm = (error.square().sum() / expected.square().sum()).sqrt().nan_to_num(nan=1e300, posinf=1e300).item()
    if is_fp8:
        used = norm / fp8_norm_bound(k)
        return {"num_bad": int(not used <= 1), "bound_used": used, "norm_rel_err": norm}
    bound = accumulation_bound(k, on_gpu=on_gpu) * sizes
    bound += OUTPUT_ROUNDOFF[out.dtype] * (expected.abs() + bound)
    used = (error / bound).nan_to_num(nan=1e300, posinf=1e300)
    return {"num_bad": int((~(used <= 1)).sum()), "bound_used": used.max().item(), "norm_rel_err": norm}

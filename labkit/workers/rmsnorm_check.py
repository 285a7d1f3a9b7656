"""Is the kernel right? A float64 reference, an error bound derived from the dtype, poisoned buffers and canaries.

The bound. u = 2^-24 is FP32's unit roundoff, v that of the output (2^-11 fp16, 2^-8 bf16); inputs are exact.
Squares of 8- or 11-bit significands are exact in FP32, so the sum of n non-negative squares errs only by its additions:
relatively at most d*u for a summation tree of depth d. At least one warp shares a row, so no thread adds more than n/32
terms before a tree of at most 32 levels: d <= n/32 + 32. The mean adds at most 4u (approximate division) and eps u;
rsqrt halves what it gets and adds at most 2.2u (approximate unit, 2^-22.9). Two multiplications add u each. So before
the last rounding the relative error is below

    delta = (d/2 + 7) u,        and        |y - y64| <= |y64| (delta + v (1 + delta)) + eta

with eta half of fp16's smallest subnormal (2^-25), or for bf16 what FP32 subnormals flushed to zero can lose,
2^-126 (1 + max|w|) / sqrt(eps).
Triton's interpreter truncates FP32 to bf16 where a GPU rounds to nearest; `stores_round_to_nearest` finds out, and v is
doubled where it truncates.

FP32 inputs have no cast at the end (v = 0), but their squares are rounded: one u more in the sum.

The sum of squares must stay below FP32's largest number: always so for fp16, |x| < 1.8e19 / sqrt(n) for bf16.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

OUTPUT_ROUNDOFF = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8, torch.float32: 0.0}
"""Of the cast at the end; FP32 has none."""
SENTINEL = {torch.float16: 0x7E5A, torch.bfloat16: 0x7FDA, torch.float32: 0x7FC5A5A5}
"""Bits of a NaN that no kernel makes: an output element that still holds them was never written."""
BITS = {torch.float16: torch.int16, torch.bfloat16: torch.int16, torch.float32: torch.int32}
GUARD = 256
"""Elements of guard band before and after an output (a multiple of 16 bytes)."""
CHUNK_ELEMENTS = 2**25


def reference(x: torch.Tensor, w: torch.Tensor, *, eps: float) -> torch.Tensor:
    """RMSNorm in float64 of the given (rows, hidden) and (hidden,) tensors, not rounded back."""
    x64 = x.double()
    return x64 * torch.rsqrt(x64.square().mean(dim=-1, keepdim=True) + eps) * w.double()


@cache
def stores_round_to_nearest(dtype: torch.dtype, device: str) -> bool:
    """Whether Triton's FP32 store into `dtype` rounds 1 + 1.75 ulp up (to nearest) on this device, or truncates it."""
    from labkit.workers.rmsnorm_kernels import cast_kernel

    if dtype == torch.float32:
        return True
    ulp = 2 * OUTPUT_ROUNDOFF[dtype]
    source = torch.tensor([1 + 1.75 * ulp], dtype=torch.float32, device=device)
    target = torch.zeros(1, dtype=dtype, device=device)
    cast_kernel[(1,)](source, target)
    return target.item() == 1 + 2 * ulp


def error_bound(expected: torch.Tensor, w: torch.Tensor, *, eps: float) -> torch.Tensor:
    """Largest allowed |output - expected| per element (module docstring), for outputs of w's dtype and device."""
    hidden = expected.shape[-1]
    delta = ((hidden / 32 + 32 + (w.dtype == torch.float32)) / 2 + 7) * 2.0**-24
    roundoff = OUTPUT_ROUNDOFF[w.dtype] * (1 if stores_round_to_nearest(w.dtype, str(w.device)) else 2)
    eta = 2.0**-25 if w.dtype == torch.float16 else 2.0**-126 * (1 + w.double().abs().max().item()) * eps**-0.5
    return expected.abs() * (delta + roundoff * (1 + delta)) + eta


def compare(out: torch.Tensor, x: torch.Tensor, w: torch.Tensor, *, eps: float) -> dict[str, Any]:
    """Errors of `out` against float64, in row chunks so that large tensors fit.

    Returns: max_abs_err, max_rel_err (element-wise, where |expected| > 2^-14), norm_rel_err (of the whole tensor),
    bound_used (largest error / bound; over 1 is wrong), num_bad (elements beyond the bound or not finite).
    """
    rows, hidden = x.shape
    worst = {"max_abs_err": 0.0, "max_rel_err": 0.0, "bound_used": 0.0}
    square_err = square_ref = 0.0
    num_bad = 0
    step = max(1, CHUNK_ELEMENTS // hidden)
    for first in range(0, rows, step):
        expected = reference(x[first : first + step], w, eps=eps)
        error = (out[first : first + step].double() - expected).abs()
        used = error / error_bound(expected, w, eps=eps)
        bad = ~(used <= 1.0)  # also true for NaN
        num_bad += int(bad.sum())
        finite = error.nan_to_num(nan=float("inf")).clamp(max=1e300)
        large = expected.abs() > 2.0**-14
        relative = torch.where(large, finite / expected.abs().clamp(min=2.0**-14), torch.zeros_like(finite))
        worst["max_abs_err"] = max(worst["max_abs_err"], finite.max().item())
        worst["max_rel_err"] = max(worst["max_rel_err"], relative.max().item())
        worst["bound_used"] = max(worst["bound_used"], used.nan_to_num(nan=1e300, posinf=1e300).max().item())
        square_err += finite.clamp(max=1e150).square().sum().item()
        square_ref += expected.square().sum().item()
    norm = (square_err / square_ref) ** 0.5 if square_ref else 0.0
    return {**worst, "norm_rel_err": norm, "num_bad": num_bad}


def make_inputs(
    rows: int, hidden: int, dtype: torch.dtype, *, device: str, generator: torch.Generator, row_stride: int = 0,
    offset: int = 0,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Fresh random x ~ N(0, 1) of (rows, hidden) and w ~ U(0.5, 1.5); optional row stride and misaligned start."""
    stride = row_stride or hidden
    flat = torch.empty(offset + rows * stride, dtype=dtype, device=device)
    step = max(1, CHUNK_ELEMENTS)
    for first in range(0, flat.numel(), step):
        part = flat[first : first + step]
        part.copy_(torch.randn(part.numel(), generator=generator, device=device))
    w = (torch.rand(hidden, generator=generator, device=device) + 0.5).to(dtype)
    return flat.as_strided((rows, hidden), (stride, 1), offset), w


class PoisonedOutput:
    """A (rows, hidden) output inside guard bands, every element set to a sentinel NaN before the kernel runs."""

    def __init__(
        self, rows: int, hidden: int, dtype: torch.dtype, *, device: str, row_stride: int = 0, offset: int = 0
    ) -> None:
        self.stride = row_stride or hidden
        self.start = GUARD + offset
        self.flat = torch.empty(self.start + rows * self.stride + GUARD, dtype=dtype, device=device)
        self.out = self.flat.as_strided((rows, hidden), (self.stride, 1), self.start)
        self.poison()

    def poison(self) -> None:
        """Fill everything, guard bands included, with the sentinel."""
        self.flat.view(BITS[self.flat.dtype]).fill_(SENTINEL[self.flat.dtype])

    def unwritten(self) -> int:
        """Output elements that still hold the sentinel's bits."""
        return int((self.out.view(BITS[self.flat.dtype]) == SENTINEL[self.flat.dtype]).sum())

    def guards_touched(self) -> int:
        """Elements outside the output (guard bands and the gaps between strided rows) that were changed."""
        changed = self.flat.view(BITS[self.flat.dtype]) != SENTINEL[self.flat.dtype]
        return int(changed.sum()) - int(
            (self.out.view(BITS[self.flat.dtype]) != SENTINEL[self.flat.dtype]).sum()
        )


Kernel = Callable[..., Any]


def check_case(
    kernel: Kernel, rows: int, hidden: int, dtype: torch.dtype, *, device: str, generator: torch.Generator,
    eps: float, row_stride: int = 0, offset: int = 0, scale: float = 1.0,
) -> dict[str, Any]:  # fmt: skip
    """Run `kernel(x, w, eps=, out=)` once on fresh inputs into a poisoned buffer and judge it.

    Returns: the errors of `compare` plus unwritten, guards_touched, input_changed (counts, all must be 0).
    """
    x, w = make_inputs(rows, hidden, dtype, device=device, generator=generator, row_stride=row_stride, offset=offset)
    if scale != 1.0:
        x.mul_(scale)
    before = x.clone() if x.numel() <= CHUNK_ELEMENTS else None
    target = PoisonedOutput(rows, hidden, dtype, device=device, row_stride=row_stride, offset=offset)
    kernel(x, w, eps=eps, out=target.out)
    seen = compare(target.out, x, w, eps=eps)
    seen["unwritten"] = target.unwritten()
    seen["guards_touched"] = target.guards_touched()
    seen["input_changed"] = int((before != x).sum()) if before is not None else None
    return seen


def check_canaries(
    kernel: Kernel, hidden: int, dtype: torch.dtype, *, device: str, generator: torch.Generator, eps: float
) -> dict[str, Any]:
    """Rows with a NaN, +inf, -inf, only zeros, the largest finite and the smallest numbers, among ordinary rows.

    Returns: rows_wrong, a list of row descriptions where the output differs from what float64 gives; must be empty.
    A NaN row is all NaN; an infinite row is 0 except NaN at the infinity; a zero row is 0; all else is in the bound.
    """
    largest = 65504.0 if dtype == torch.float16 else 1e15
    tiny = torch.finfo(dtype).smallest_normal / 2
    special = {1: "nan", 3: "inf", 5: "-inf", 7: "zero", 9: "largest", 11: "tiny"}
    rows = 13
    x, w = make_inputs(rows, hidden, dtype, device=device, generator=generator)
    at = hidden // 3
    x[1, at], x[3, at], x[5, hidden - 1] = float("nan"), float("inf"), -float("inf")
    x[7], x[9], x[11] = 0.0, largest, tiny
    target = PoisonedOutput(rows, hidden, dtype, device=device)
    kernel(x, w, eps=eps, out=target.out)
    expected = reference(x, w, eps=eps)
    bound = error_bound(expected, w, eps=eps)
    wrong = []
    for row in range(rows):
        got, want = target.out[row].double(), expected[row]
        same_nan = torch.equal(got.isnan(), want.isnan())
        overflow = want.abs() > torch.finfo(dtype).max  # rounds to infinity, in both
        close = ((got - want).abs() <= bound[row]) | want.isnan() | (overflow & got.isinf())
        if not (same_nan and bool(close.all())):
            wrong.append(special.get(row, "ordinary") + f" (row {row})")
    return {"rows_wrong": wrong, "unwritten": target.unwritten(), "guards_touched": target.guards_touched()}

"""Is the backward pass right? float64 gradients, bounds derived from the formats, exact sums, special values.

With u = 2^-24, v the roundoff of the output's dtype, d = n/32 + 32 as in rmsnorm_check, and r, x^ = x r, g = dy w,
m = mean(g x^), S = mean |g x^|. First order in u, so every bound is widened by 1 %:

- r comes from the forward pass with a relative error of at most dr = (d/2 + 5.5) u, x^ with dh = dr + u.
- m is off by at most (dh + (d + 6) u) S: product of rounded g and x^, a sum of depth d, division by n.
- dx = r (g - x^ m):  r (u |g| + |x^| (err(m) + (dh + u) |m|)) + (dr + 2u) |dx|, then the cast: v (|dx| + all that).
- dweight = sum over rows of dy x^, each term off by dh + u, the sum by D u of sum |dy x^| when no term passes through
  more than D additions; then the cast.

That sum of magnitudes makes the bound of dweight wide for many rows. So there is a second check without rounding:
small integers for x and dy, r = 1, and sums below 2^24 leave nothing to round before the cast. One row lost or taken
twice changes the result.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from labkit.workers import rmsnorm_check as check

U = 2.0**-24
WIDEN = 1.01
Backward = Callable[..., Any]
"""`f(dy, x, w, rstd, dx=, dw=)`, as rmsnorm_grad.rmsnorm_backward."""
SPECIAL = ("x nan", "x inf", "x -inf", "x zero", "x largest", "x tiny", "dy nan", "dy inf", "dy zero")


def gradients(
    dy: torch.Tensor, x: torch.Tensor, w: torch.Tensor, *, eps: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """dx, the terms dy x^ of dweight, and r, all float64 of (rows, hidden), (rows, hidden) and (rows, 1)."""
    dy64, x64, w64 = dy.double(), x.double(), w.double()
    r = torch.rsqrt(x64.square().mean(dim=-1, keepdim=True) + eps)
    normed, g = x64 * r, dy64 * w64
    return r * (g - normed * (g * normed).mean(dim=-1, keepdim=True)), dy64 * normed, r


def dx_bound(dy: torch.Tensor, x: torch.Tensor, w: torch.Tensor, *, eps: float) -> torch.Tensor:
    """Largest allowed |dx - dx64| per element, for outputs of x's dtype and device (module docstring)."""
    dx, terms, r = gradients(dy, x, w, eps=eps)
    hidden = x.shape[-1]
    d = hidden / 32 + 32
    dr = (d / 2 + 5.5) * U
    dh = dr + U
    normed, g = (x.double() * r).abs(), (dy.double() * w.double()).abs()
    products = terms * w.double()
    m, s = products.mean(dim=-1, keepdim=True).abs(), products.abs().mean(dim=-1, keepdim=True)
    before = r * (U * g + normed * ((dh + (d + 6) * U) * s + (dh + U) * m)) + (dr + 2 * U) * dx.abs()
    before = WIDEN * before
    return before + _cast(x) * (dx.abs() + before) + _eta(x, w, hidden=hidden, eps=eps)


def dw_bound(
    sums: torch.Tensor, magnitudes: torch.Tensor, x: torch.Tensor, w: torch.Tensor, *, eps: float, depth: int
) -> torch.Tensor:
    """Largest allowed |dweight - sums| per column.

    Args:
        sums: float64 sum over rows of dy x^.
        magnitudes: that of |dy x^|.
        x: gives length, dtype and device.
        w: the weight.
        eps: of the forward pass.
        depth: most additions that one term passes through.
    """
    dh = ((x.shape[-1] / 32 + 32) / 2 + 6.5) * U
    before = WIDEN * (dh + U + depth * U) * magnitudes
    return before + _cast(x) * (sums.abs() + before) + _eta(x, w, hidden=x.shape[-1], eps=eps)


def _cast(x: torch.Tensor) -> float:
    nearest = check.stores_round_to_nearest(x.dtype, str(x.device))
    return check.OUTPUT_ROUNDOFF[x.dtype] * (1 if nearest else 2)


def _eta(x: torch.Tensor, w: torch.Tensor, *, hidden: int, eps: float) -> float:
    """What underflow can lose: half of fp16's smallest subnormal, or FP32 subnormals flushed to zero on the way."""
    if x.dtype == torch.float16:
        return 2.0**-25
    return 2.0**-126 * (1 + w.double().abs().max().item()) * (2 + hidden**0.5) * eps**-0.5


def compare_gradients(
    dx: torch.Tensor, dw: torch.Tensor, dy: torch.Tensor, x: torch.Tensor, w: torch.Tensor, *, eps: float, depth: int,
    max_elements: int | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Errors of dx and dweight against float64, in row chunks so that large tensors fit.

    Args:
        dx: to judge.
        dw: to judge.
        dy: gradient of the output.
        x: input.
        w: weight.
        eps: of the forward pass.
        depth: as for `dw_bound`.
        max_elements: compare only about so many elements of dx (all rows still go into dweight's sums), None: all.

    Returns: dx_bound_used, dw_bound_used (largest error / bound), num_bad (elements beyond, or not finite),
    dx_max_abs_err, dw_max_abs_err, dx_rel_err, dw_rel_err (2-norm of the error over that of the gradient).
    """
    rows, hidden = x.shape
    step = max(1, check.CHUNK_ELEMENTS // 2 // hidden)
    chunks = list(range(0, rows, step))
    every = max(1, rows * hidden // max_elements) if max_elements else 1
    sums, magnitudes = torch.zeros(2, hidden, dtype=torch.float64, device=x.device)
    worst = {"dx_bound_used": 0.0, "dx_max_abs_err": 0.0}
    square_err = square_ref = 0.0
    num_bad = 0
    for index, first in enumerate(chunks):
        part = slice(first, first + step)
        want, terms, _ = gradients(dy[part], x[part], w, eps=eps)
        sums += terms.sum(dim=0)
        magnitudes += terms.abs().sum(dim=0)
        if index % every and index != len(chunks) - 1:
            continue
        error = (dx[part].double() - want).abs()
        used = error / dx_bound(dy[part], x[part], w, eps=eps)
        num_bad += int((~(used <= 1.0)).sum())
        finite = error.nan_to_num(nan=float("inf")).clamp(max=1e150)
        worst["dx_max_abs_err"] = max(worst["dx_max_abs_err"], finite.max().item())
        worst["dx_bound_used"] = max(worst["dx_bound_used"], used.nan_to_num(nan=1e300, posinf=1e300).max().item())
        square_err += finite.square().sum().item()
        square_ref += want.square().sum().item()
    error = (dw.double() - sums).abs()
    used = error / dw_bound(sums, magnitudes, x, w, eps=eps, depth=depth)
    finite = error.nan_to_num(nan=float("inf")).clamp(max=1e150)
    return {
        **worst, "dw_bound_used": used.nan_to_num(nan=1e300, posinf=1e300).max().item(),
        "num_bad": num_bad + int((~(used <= 1.0)).sum()), "dw_max_abs_err": finite.max().item(),
        "dx_rel_err": (square_err / square_ref) ** 0.5 if square_ref else 0.0,
        "dw_rel_err": (finite.norm() / sums.norm()).item() if sums.any() else 0.0,
    }  # fmt: skip


def make_case(
    rows: int, hidden: int, dtype: torch.dtype, *, device: str, generator: torch.Generator, eps: float,
    row_stride: int = 0, offset: int = 0, scale: float = 1.0,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    """Fresh dy ~ N(0, 1), x ~ N(0, scale^2), w ~ U(0.5, 1.5), and r of float64 cast to FP32."""
    like = {"device": device, "generator": generator, "row_stride": row_stride, "offset": offset}
    x, w = check.make_inputs(rows, hidden, dtype, **like)
    dy, _ = check.make_inputs(rows, hidden, dtype, **like)
    if scale != 1.0:
        x.mul_(scale)
    rstd = torch.empty(rows, dtype=torch.float32, device=device)
    step = max(1, check.CHUNK_ELEMENTS // hidden)
    for first in range(0, rows, step):
        part = x[first : first + step].double()
        rstd[first : first + step] = torch.rsqrt(part.square().mean(dim=-1) + eps)
    return dy, x, w, rstd


def check_gradients(
    backward: Backward, rows: int, hidden: int, dtype: torch.dtype, *, device: str, generator: torch.Generator,
    eps: float, depth: int, row_stride: int = 0, offset: int = 0, scale: float = 1.0,
) -> dict[str, Any]:  # fmt: skip
    """Run `backward` twice on fresh inputs into poisoned buffers and judge it.

    Returns: the errors of `compare_gradients`, and counts that must be 0: unwritten, guards_touched, input_changed,
    bits_changed (elements of dx and dweight that the second call gave otherwise).
    """
    dy, x, w, rstd = make_case(rows, hidden, dtype, device=device, generator=generator, eps=eps, row_stride=row_stride,
                               offset=offset, scale=scale)  # fmt: skip
    before = [t.clone() for t in (dy, x, w, rstd)] if x.numel() <= check.CHUNK_ELEMENTS else []
    dx = check.PoisonedOutput(rows, hidden, dtype, device=device, row_stride=row_stride, offset=offset)
    dw = check.PoisonedOutput(1, hidden, dtype, device=device)
    backward(dy, x, w, rstd, dx=dx.out, dw=dw.out[0])
    seen = compare_gradients(dx.out, dw.out[0], dy, x, w, eps=eps, depth=depth)
    first = dx.out.clone(), dw.out.clone()
    seen["unwritten"] = dx.unwritten() + dw.unwritten()
    seen["guards_touched"] = dx.guards_touched() + dw.guards_touched()
    backward(dy, x, w, rstd, dx=dx.out, dw=dw.out[0])
    bits = check.BITS[dtype]
    seen["bits_changed"] = sum(int((a.view(bits) != b.view(bits)).sum()) for a, b in zip(first, (dx.out, dw.out)))
    seen["input_changed"] = sum(int((a != b).sum()) for a, b in zip(before, (dy, x, w, rstd)))
    return seen


def check_exact_sums(
    backward: Backward, rows: int, hidden: int, dtype: torch.dtype, *, device: str, generator: torch.Generator
) -> dict[str, Any]:
    """Sums of integers in dweight: x and dy from -1, 0, 1 and r = 1, so that every sum is exact. num_bad must be 0."""
    x, dy = (torch.randint(-1, 2, (rows, hidden), generator=generator, device=device).to(dtype) for _ in range(2))
    w = torch.ones(hidden, dtype=dtype, device=device)
    rstd = torch.ones(rows, dtype=torch.float32, device=device)
    dw = torch.empty_like(w)
    backward(dy, x, w, rstd, dx=torch.empty_like(x), dw=dw)
    want = torch.zeros(hidden, dtype=torch.int64, device=device)
    for first in range(0, rows, 4096):
        want += (x[first : first + 4096].int() * dy[first : first + 4096].int()).sum(dim=0)
    return {"num_bad": int((dw != want.to(torch.float32).to(dtype)).sum())}


def check_special(
    backward: Backward, hidden: int, dtype: torch.dtype, *, device: str, generator: torch.Generator, eps: float,
    depth: int,
) -> dict[str, Any]:  # fmt: skip
    """One special row among ordinary ones, each kind of SPECIAL in turn.

    Returns: rows_wrong, the kinds where dx or dweight is not NaN, infinite or in the bound just where float64 is; must
    be empty.
    """
    largest = {torch.float16: 65504.0, torch.bfloat16: 1e15, torch.float32: 1e15}[dtype]
    tiny = torch.finfo(dtype).smallest_normal / 2
    values = {"nan": float("nan"), "inf": float("inf"), "-inf": -float("inf")}
    wrong = []
    for kind in SPECIAL:
        dy, x, w, _ = make_case(3, hidden, dtype, device=device, generator=generator, eps=eps)
        name, _, what = kind.partition(" ")
        target = x if name == "x" else dy
        if what in values:
            target[1, hidden // 3] = values[what]
        else:
            target[1] = {"zero": 0.0, "largest": largest, "tiny": tiny}[what]
        rstd = torch.rsqrt(x.double().square().mean(dim=-1) + eps).float()
        dx, dw = torch.zeros_like(x), torch.zeros_like(w)
        backward(dy, x, w, rstd, dx=dx, dw=dw)
        want, terms, _ = gradients(dy, x, w, eps=eps)
        sums, magnitudes = terms.sum(dim=0), terms.abs().sum(dim=0)
        if not (_alike(dx, want, dx_bound(dy, x, w, eps=eps))
                and _alike(dw, sums, dw_bound(sums, magnitudes, x, w, eps=eps, depth=depth))):  # fmt: skip
            wrong.append(kind)
    return {"rows_wrong": wrong}


def _alike(got: torch.Tensor, want: torch.Tensor, bound: torch.Tensor) -> bool:
    """NaN where float64 is, infinite where float64 is or overflows the dtype, else within the bound."""
    overflow = want.abs() > torch.finfo(got.dtype).max
    close = (got.double() - want).abs() <= bound
    same = want.isnan() | (got.double() == want) | (overflow & got.isinf()) | close
    return torch.equal(got.isnan(), want.isnan()) and bool(same.all())

"""Check the backward pass and the two-pass kernels, on a GPU or in Triton's interpreter, and write lines.

Lines, by "kind": grad_check (a shape against float64, with poisoned outputs), grad_exact (sums of integers),
grad_canary (NaN, infinity, zeros and more), grad_refusal (what must be refused, and how).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

Case = tuple[str, str, Callable[[], dict[str, Any]], dict[str, Any]]
"""Kind and name of a check, what runs it, and what else its line says."""


def gradient_cases(params: dict[str, Any], device: str) -> Iterator[Case]:
    """Widths in every dtype, the shapes to be timed, each kernel by name, long rows, special values, empty tensors."""
    generator = torch.Generator(device=device)
    generator.manual_seed(params["seed"] + 4242 + int(os.environ.get("RANK", "0")))
    common = {"device": device, "generator": generator, "eps": params["eps"]}
    yield from widths_cases(params["widths"], 3 if device == "cpu" else 517, common)
    yield from shapes_cases(params, common)
    yield from settings_cases(common)
    yield from wide_cases(params["wide_widths"], 2 if device == "cpu" else 9, common)
    yield from special_cases(common)
    yield from refusal_cases(device)


def through_autograd(
    dy: torch.Tensor, x: torch.Tensor, w: torch.Tensor, rstd: torch.Tensor, *, eps: float, dx: torch.Tensor,
    dw: torch.Tensor,
) -> None:  # fmt: skip
    """The whole way a user goes: forward with its own statistics, then autograd; gradients copied into dx and dw."""
    from labkit.workers.rmsnorm_grad import rmsnorm

    with torch.enable_grad():
        x, w = x.detach().requires_grad_(), w.detach().requires_grad_()
        found = torch.autograd.grad(rmsnorm(x, w, eps=eps), (x, w), dy)
    dx.copy_(found[0])
    dw.copy_(found[1])


def widths_cases(widths: list[int], rows: int, common: dict[str, Any]) -> Iterator[Case]:
    """Every width and dtype through autograd: so what the forward kernels keep of each row is judged, too."""
    from labkit.workers import rmsnorm_grad_check as check
    from labkit.workers.rmsnorm_bench import DTYPES

    for hidden in widths:
        for name, dtype in DTYPES.items():
            # Any order of the sum over rows and programs is allowed for.
            run = partial(through_autograd, eps=common["eps"])
            told = {"shape": f"{rows}x{hidden} {name}", "rows_checked": rows}
            yield "grad_check", "autograd", partial(check.check_gradients, run, rows, hidden, dtype, depth=rows + 200,
                                                    **common), told  # fmt: skip


def shapes_cases(params: dict[str, Any], common: dict[str, Any]) -> Iterator[Case]:
    """The shapes that are timed: dx and dweight of every row, and exact sums of integers over them."""
    from labkit.workers import rmsnorm_grad_check as check
    from labkit.workers.rmsnorm_bench import parse_shape
    from labkit.workers.rmsnorm_grad import rmsnorm_backward

    for text in params["backward_shapes"]:
        rows, hidden, dtype = parse_shape(text)
        used = min(rows, params["max_rows"]) if params["max_rows"] else rows
        told = {"shape": text, "rows_checked": used}
        yield "grad_check", "backward", partial(check.check_gradients, rmsnorm_backward, used, hidden, dtype,
                                                depth=used, **common), told  # fmt: skip
        place = {"device": common["device"], "generator": common["generator"]}
        yield "grad_exact", "backward", partial(check.check_exact_sums, rmsnorm_backward, used, hidden, dtype,
                                                **place), told  # fmt: skip


def settings_cases(common: dict[str, Any]) -> Iterator[Case]:
    """Each kernel shape of the backward pass by name, whatever the rule would pick."""
    from labkit.workers import rmsnorm_grad as grad
    from labkit.workers import rmsnorm_grad_check as check
    from labkit.workers.rmsnorm_fast import num_multiprocessors

    cases = [
        (grad.GradConfig("grad", 256, num_warps=4, rows=4, per_sm=2, group=1), 13, 200, {}),
        (grad.GradConfig("grad", 256, num_warps=4, rows=2, stages=2, per_sm=2, keep_w=False), 13, 200, {}),
        (grad.GradConfig("grad", 512, num_warps=4, stages=3, per_sm=2), 7, 500, {"row_stride": 512}),
        (grad.GradConfig("grad", 512, num_warps=4, per_sm=2), 7, 333, {"offset": 3}),
        (grad.GradConfig("shifted", 256, num_warps=4, per_sm=4, group=8), 11, 263, {}),
        (grad.GradConfig("shifted", 512, num_warps=4, stages=2, per_sm=4), 11, 400, {"row_stride": 403}),
    ]
    sms = num_multiprocessors(torch.empty(0, device=common["device"]))
    for config, rows, hidden, extra in cases:
        for name, dtype in (("fp16", torch.float16), ("bf16", torch.bfloat16)):
            run = partial(grad.rmsnorm_backward, config=config)
            depth = grad.sum_depth(config, rows=rows, elem_bytes=2, num_sms=sms)
            told = {"shape": f"{rows}x{hidden} {name}", "case": config.label(), "rows_checked": rows}
            yield "grad_check", config.kind, partial(check.check_gradients, run, rows, hidden, dtype, depth=depth,
                                                     **common, **extra), told  # fmt: skip


def wide_cases(widths: list[int], rows: int, common: dict[str, Any]) -> Iterator[Case]:
    """Rows past one program's limit, and short ones so that every way of alignment is met: forward and backward."""
    from labkit.workers import rmsnorm_check, rmsnorm_wide
    from labkit.workers import rmsnorm_grad_check as check

    small = rmsnorm_wide.WideConfig(block=512, chunks=2, num_warps=4, grad_block=1024, grad_warps=4, per_sm=2)
    cases: list[tuple[int, int, torch.dtype, rmsnorm_wide.WideConfig | None, dict[str, Any]]] = [
        (rows, hidden, dtype, None, {}) for hidden in widths for dtype in (torch.float16, torch.bfloat16)
    ]
    cases += [(4, 1502, torch.float16, small, {}), (3, 1501, torch.bfloat16, small, {}),
              (3, 1504, torch.float32, small, {}), (3, 1503, torch.bfloat16, small, {"row_stride": 1512}),
              (4, 1030, torch.float16, small, {"offset": 1})]  # fmt: skip
    for rows, hidden, dtype, config, extra in cases:
        told: dict[str, Any] = {"shape": f"{rows}x{hidden} {str(dtype).removeprefix('torch.')}", "rows_checked": rows}
        told |= {"case": "small blocks"} if config else {}
        forward = partial(rmsnorm_wide.rmsnorm_wide, config=config)
        yield "grad_check", "wide forward", partial(rmsnorm_check.check_case, forward, rows, hidden, dtype, **common,
                                                    **extra), told  # fmt: skip
        backward = partial(_wide_backward, config=config)
        yield "grad_check", "wide backward", partial(check.check_gradients, backward, rows, hidden, dtype,
                                                     depth=rows + 200, **common, **extra), told  # fmt: skip


def _wide_backward(dy: torch.Tensor, x: torch.Tensor, w: torch.Tensor, rstd: torch.Tensor, **given: Any) -> None:
    from labkit.workers.rmsnorm_wide import run_wide_grad

    run_wide_grad(dy, x, w, rstd, given["dx"], given["dw"], config=given["config"])


def special_cases(common: dict[str, Any]) -> Iterator[Case]:
    """NaN, infinity, zeros, the largest and the smallest numbers, in one pass and in two."""
    from labkit.workers import rmsnorm_grad_check as check
    from labkit.workers import rmsnorm_wide
    from labkit.workers.rmsnorm_bench import DTYPES
    from labkit.workers.rmsnorm_grad import rmsnorm_backward

    small = rmsnorm_wide.WideConfig(block=32, chunks=1, num_warps=1, grad_block=64, grad_warps=1, per_sm=2)
    cases = [("backward", rmsnorm_backward, 64, name) for name in DTYPES]
    cases += [("backward", rmsnorm_backward, 67, "bf16")]
    cases += [("wide backward", partial(_wide_backward, config=small), 67, name) for name in ("fp16", "fp32")]
    for what, kernel, hidden, name in cases:
        yield "grad_canary", what, partial(check.check_special, kernel, hidden, DTYPES[name], depth=200,
                                           **common), {"hidden": hidden, "dtype": name}  # fmt: skip


def refusal_cases(device: str) -> Iterator[Case]:
    """An empty tensor has no mean: forward and backward must say so, naming x."""
    from labkit.workers import rmsnorm_grad as grad
    from labkit.workers.rmsnorm_fast import rmsnorm_fast
    from labkit.workers.rmsnorm_wide import rmsnorm_wide

    for shape in ((0, 64), (3, 0)):
        x, w = torch.empty(shape, device=device), torch.empty(shape[1], device=device)
        rstd = torch.empty(shape[0], device=device)
        calls = {
            "rmsnorm": partial(grad.rmsnorm, x, w), "fast": partial(rmsnorm_fast, x, w),
            "wide": partial(rmsnorm_wide, x, w), "backward": partial(grad.rmsnorm_backward, x, x, w, rstd),
        }  # fmt: skip
        for name, call in calls.items():
            yield "grad_refusal", name, partial(_refuses, call, f"x={shape}"), {"shape": str(shape)}


def _refuses(call: Callable[[], Any], start: str) -> dict[str, Any]:
    try:
        call()
    except ValueError as error:
        return {"num_bad": int(not str(error).startswith(start))}
    return {"num_bad": 1}

"""Backward RMSNorm: which kernel and settings for a shape, the wrapper that launches it, and the autograd function.

    from labkit.workers.rmsnorm_grad import rmsnorm
    y = rmsnorm(x, w)          # forward by the fast kernels, which keep 1 / rms of each row; y.backward(dy) works

Import this only after TRITON_INTERPRET is set or left alone: Triton reads it once.
"""

# pyright: reportArgumentType=false, reportCallIssue=false
# (Triton's annotations describe the compiler's values, not what a caller passes)
from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
import triton

from labkit.workers import rmsnorm_grad_kernels as kernels
from labkit.workers import rmsnorm_wide as wide
from labkit.workers.rmsnorm_fast import VECTOR_BYTES, grid_of, num_multiprocessors, refuse_empty, rmsnorm_fast

ONE_PASS_HIDDEN = 16384
"""Longest row whose x, dy, weight and sums one program can hold in registers."""

SUM_TALL = 128
"""Partial sums that are added at once, at most; a power of two."""


@dataclass(frozen=True, slots=True)
class GradConfig:
    """Settings of one backward kernel: compile-time constants, or what sets the grid."""

    kind: str
    """`grad` or `shifted`: see rmsnorm_grad_kernels."""
    block: int
    """Columns a tile holds, a power of two."""
    num_warps: int
    rows: int = 1
    """Rows of a tile (grad)."""
    stages: int = 1
    """Tiles in flight; 1 loads straight into registers."""
    per_sm: int = 4
    """Programs per multiprocessor. More than fit at once balance the load, and make more partial sums."""
    group: int = 0
    """Programs that share a contiguous block of rows; 0: every program walks the whole tensor."""
    keep_w: bool = True
    """Hold the weight in registers (grad)."""

    def label(self) -> str:
        """Short name for tables, e.g. `grad b8192 w16 s2 p4 g1`."""
        text = f"{self.kind} b{self.block} w{self.num_warps}" + (f" r{self.rows}" if self.rows > 1 else "")
        return f"{text} s{self.stages} p{self.per_sm} g{self.group}" + ("" if self.keep_w else " again")

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON form of this configuration."""
        return asdict(self)


def choose_grad(*, rows: int, hidden: int, elem_bytes: int, is_aligned: bool, num_sms: int) -> GradConfig:
    """The backward kernel's configuration for a shape; arguments as for `rmsnorm_fast.choose`."""
    vector = VECTOR_BYTES // elem_bytes
    block = triton.next_power_of_2(hidden)
    if not is_aligned and hidden >= vector:
        whole = triton.next_power_of_2(hidden // vector * vector)
        # Two vectors a thread, programs that share blocks of rows: 82 % of copy_ at 4,095 columns, 67 % without the
        # loads that run a row ahead.
        warps = min(16, max(1, whole // (32 * 2 * vector)))
        return GradConfig("shifted", whole, num_warps=warps, stages=3, per_sm=max(4, 64 // warps), group=vector)
    # One vector a thread up to 4,096 columns leaves registers for 32 warps on a multiprocessor: 91 to 96 % of copy_
    # from 768 to 8,192 columns; two vectors a thread lose 2 to 9 % there.
    warps, keep_w = min(16, max(1, block // (32 * vector))), block < 16384
    # Three tiles in flight: 93 % at 8,192 columns; with two it is 69 %, with one 75 %. They must fit in shared memory,
    # with the weight where it is read again: at 16,384 columns that gives 73 %, against 58 % with spilled registers.
    stages = 3 if (2 if keep_w else 3) * block * elem_bytes * 2 <= 200 * 1024 else 2
    return GradConfig("grad", block, num_warps=warps, stages=stages, per_sm=max(2, 32 // warps), keep_w=keep_w)


def fits_grad(config: GradConfig, *tensors: torch.Tensor) -> bool:
    """Whether a configuration computes the right thing for these x, dy and dx."""
    x, hidden = tensors[0], tensors[0].shape[1]
    if config.kind == "grad":
        return config.block >= hidden
    vector = VECTOR_BYTES // x.element_size()
    is_on_grid = all(t.data_ptr() % VECTOR_BYTES == 0 and t.stride(0) == x.stride(0) for t in tensors)
    return (is_on_grid and hidden >= vector and config.block >= hidden // vector * vector
            and config.group % vector == 0)  # fmt: skip


def default_grad(dy: torch.Tensor, x: torch.Tensor, dx: torch.Tensor) -> GradConfig:
    """The rule's configuration for these tensors; one that is right whatever their strides where none is fast."""
    rows, hidden = x.shape
    row_bytes = [t.stride(0) * x.element_size() for t in (dy, x, dx)]
    is_aligned = all(value % VECTOR_BYTES == 0 for value in (*row_bytes, *(t.data_ptr() for t in (dy, x, dx))))
    config = choose_grad(rows=rows, hidden=hidden, elem_bytes=x.element_size(), is_aligned=is_aligned,
                         num_sms=num_multiprocessors(x))  # fmt: skip
    if fits_grad(config, x, dy, dx):
        return config
    return GradConfig("grad", triton.next_power_of_2(hidden), num_warps=8, per_sm=2)


def grad_programs(config: GradConfig, *, rows: int, elem_bytes: int, num_sms: int) -> tuple[int, int]:
    """Programs that the configuration launches for this many rows, and `each` of `rows_of_program`."""
    multiple = VECTOR_BYTES // elem_bytes if config.kind == "shifted" else 1
    return grid_of(triton.cdiv(rows, config.rows), num_sms * config.per_sm, multiple=multiple, group=config.group)


def padded(hidden: int) -> int:
    """Length of a row of FP32 partial sums: rows start on 16-byte boundaries."""
    return triton.cdiv(hidden, 4) * 4


def sum_depth(config: GradConfig, *, rows: int, elem_bytes: int, num_sms: int) -> int:
    """Most additions that one term of dweight passes through: rows of a program, then the partial sums."""
    programs, each = grad_programs(config, rows=rows, elem_bytes=elem_bytes, num_sms=num_sms)
    of_program = max(each, triton.cdiv(triton.cdiv(rows, config.rows), programs)) + config.rows
    return of_program + triton.cdiv(programs, SUM_TALL) + SUM_TALL.bit_length()


def run_grad(
    config: GradConfig, dy: torch.Tensor, x: torch.Tensor, w: torch.Tensor, rstd: torch.Tensor, dx: torch.Tensor,
    dw: torch.Tensor, *, num_sms: int,
) -> None:  # fmt: skip
    """Launch one backward kernel and the sum of its partial sums."""
    rows, hidden = x.shape
    vector, part = VECTOR_BYTES // x.element_size(), padded(hidden)
    programs, each = grad_programs(config, rows=rows, elem_bytes=x.element_size(), num_sms=num_sms)
    parts = torch.empty((programs, part), dtype=torch.float32, device=x.device)
    if config.kind == "shifted":
        kernels.rmsnorm_grad_shifted[(programs,)](
            dy, x, w, rstd, dx, parts, x.stride(0), rows, each, HIDDEN=hidden, BLOCK=config.block,
            STAGES=config.stages, VEC=vector, GROUP=config.group, PART=part, num_warps=config.num_warps,
        )  # fmt: skip
    else:
        strides = dy.stride(0), x.stride(0), dx.stride(0)
        unit = vector if all(stride % vector == 0 for stride in strides) else 1
        kernels.rmsnorm_grad[(programs,)](
            dy, x, w, rstd, dx, parts, *(stride // unit for stride in strides), rows, each, HIDDEN=hidden, UNIT=unit,
            BLOCK=config.block, ROWS=config.rows, STAGES=config.stages, GROUP=config.group, KEEP_W=config.keep_w,
            PART=part, num_warps=config.num_warps,
        )  # fmt: skip
    sum_parts(parts, dw)


def sum_parts(parts: torch.Tensor, dw: torch.Tensor) -> None:
    """Add (programs, padded hidden) FP32 partial sums in a fixed order into dw, (hidden,)."""
    hidden = dw.shape[0]
    cols = 32 if hidden >= 4096 else 16
    if not parts.is_cuda:
        cols = 1024  # the interpreter takes milliseconds a program
    kernels.rmsnorm_grad_sum[(triton.cdiv(hidden, cols),)](
        parts, dw, parts.shape[0], HIDDEN=hidden, PART=parts.shape[1], COLS=cols,
        TALL=min(SUM_TALL, triton.next_power_of_2(parts.shape[0])), num_warps=4,
    )  # fmt: skip


def rmsnorm_backward(
    dy: torch.Tensor, x: torch.Tensor, w: torch.Tensor, rstd: torch.Tensor, *, dx: torch.Tensor | None = None,
    dw: torch.Tensor | None = None, config: GradConfig | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Gradients of RMSNorm: dx and dweight, without atomics, the same bits each time on the same GPU.

    Args:
        dy: (rows, hidden), gradient of the output, unit column stride.
        x: (rows, hidden), the input, of one dtype with dy and w: fp16, bf16 or fp32.
        w: (hidden,), the weight.
        rstd: (rows,) FP32, as the forward pass left it.
        dx: output like x; allocated if None.
        dw: output like w; allocated if None.
        config: settings to use instead of the chosen ones; without it, rows over ONE_PASS_HIDDEN take two passes.

    Returns: dx, dw. Raises: ValueError when the arguments do not fit together.
    """
    refuse_empty(x)
    dx = torch.empty_like(x) if dx is None else dx
    dw = torch.empty_like(w) if dw is None else dw
    if x.dim() != 2 or not x.shape == dy.shape == dx.shape or w.shape != x.shape[1:] or dw.shape != w.shape:
        raise ValueError(f"dy={tuple(dy.shape)}, x={tuple(x.shape)}, w={tuple(w.shape)}: expected (rows, hidden) "
                         "twice, (hidden,), and outputs like them")  # fmt: skip
    if any(t.stride(1) != 1 for t in (dy, x, dx)):
        raise ValueError(f"strides {dy.stride()}, {x.stride()}, {dx.stride()}: expected unit columns")
    if len({t.dtype for t in (dy, x, w, dx, dw)}) > 1 or rstd.dtype != torch.float32 or rstd.shape != x.shape[:1]:
        raise ValueError(f"dtypes {dy.dtype}, {x.dtype}, {w.dtype}, rstd {tuple(rstd.shape)} {rstd.dtype}: expected "
                         f"one dtype, and float32 of ({x.shape[0]},)")  # fmt: skip
    if config is None and x.shape[1] > ONE_PASS_HIDDEN:
        wide.run_wide_grad(dy, x, w, rstd, dx, dw)
        return dx, dw
    if config is None:
        config = default_grad(dy, x, dx)
        try:
            run_grad(config, dy, x, w, rstd, dx, dw, num_sms=num_multiprocessors(x))
        except triton.runtime.errors.OutOfResources:  # a GPU with less shared memory: no tiles in flight
            config = replace(config, stages=1, keep_w=True)
        else:
            return dx, dw
    elif not fits_grad(config, x, dy, dx):
        raise ValueError(f"config={config.label()!r}: does not fit hidden={x.shape[1]} with these strides and pointers")
    run_grad(config, dy, x, w, rstd, dx, dw, num_sms=num_multiprocessors(x))
    return dx, dw


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor, eps: float) -> torch.Tensor:
        refuse_empty(x)
        flat = x.reshape(-1, x.shape[-1])
        flat = flat if flat.stride(1) == 1 else flat.contiguous()
        y = torch.empty(flat.shape, dtype=x.dtype, device=x.device)
        rstd = torch.empty(flat.shape[0], dtype=torch.float32, device=x.device)
        if flat.shape[1] > wide.ONE_PROGRAM_HIDDEN:
            wide.rmsnorm_wide(flat, w, eps=eps, out=y, rstd=rstd)
        else:
            rmsnorm_fast(flat, w, eps=eps, out=y, rstd=rstd)
        ctx.save_for_backward(flat, w, rstd)
        return y.view(x.shape)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        x, w, rstd = ctx.saved_tensors
        dy = grads[0].reshape(x.shape)
        dy = dy if dy.stride(1) == 1 else dy.contiguous()
        dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        rmsnorm_backward(dy, x, w, rstd, dx=dx, dw=(dw := torch.empty_like(w)))
        return dx.view(grads[0].shape), dw, None


def rmsnorm(x: torch.Tensor, w: torch.Tensor, *, eps: float = 1e-6) -> torch.Tensor:
    """RMSNorm of the last dimension, differentiable once with respect to x and w.

    Args:
        x: (..., hidden), fp16, bf16 or fp32.
        w: (hidden,), the same dtype.
        eps: added to the mean square.

    Returns: (..., hidden). Raises: ValueError for an empty x, or shapes and dtypes that do not fit together.
    """
    found = _RMSNorm.apply(x, w, eps)
    assert isinstance(found, torch.Tensor)
    return found

"""RMSNorm of long rows in two passes, forward and backward: the wrappers of rmsnorm_wide_kernels."""

# pyright: reportArgumentType=false, reportCallIssue=false
# (Triton's annotations describe the compiler's values, not what a caller passes)
from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
import triton

from labkit.workers import rmsnorm_wide_kernels as kernels
from labkit.workers.rmsnorm_fast import VECTOR_BYTES, num_multiprocessors, refuse_empty

ONE_PROGRAM_HIDDEN = 65536
"""Longest row that one program takes as one block: the usual limit of one-row kernels."""
MAX_HIDDEN = 2**20
_ALIGNED, _COVERED, _CAREFUL = 0, 1, 2


@dataclass(frozen=True, slots=True)
class WideConfig:
    """Settings of the two-pass kernels; all are compile-time constants or set the grid."""

    block: int = 4096
    """Elements of a block, a power of two."""
    chunks: int = 2
    """Blocks of a split: what one program of the passes over single rows reads."""
    num_warps: int = 8
    grad_block: int = 2048
    """Columns of a program of the backward's second pass."""
    grad_warps: int = 4
    grad_stages: int = 1
    per_sm: int = 8
    """Programs of that pass for each multiprocessor, about."""

    def label(self) -> str:
        """Short name for tables."""
        return (f"wide b{self.block}x{self.chunks} w{self.num_warps} g{self.grad_block} w{self.grad_warps} "
                f"s{self.grad_stages} p{self.per_sm}")  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON form of this configuration."""
        return asdict(self)


INTERPRETED = WideConfig(block=16384, grad_block=16384)
"""The interpreter takes milliseconds a program, whatever it does: few large ones."""


def choose_wide(x: torch.Tensor) -> WideConfig:
    """The configuration for a tensor."""
    return WideConfig() if x.is_cuda else INTERPRETED


def mode(*tensors: torch.Tensor) -> int:
    """How vectors can be used on these (rows, hidden) tensors: ALIGNED, COVERED or CAREFUL of rmsnorm_wide_kernels."""
    rows, hidden = tensors[0].shape
    vector, stride = VECTOR_BYTES // tensors[0].element_size(), tensors[0].stride(0)
    if any(t.data_ptr() % VECTOR_BYTES for t in tensors):
        return _CAREFUL
    if hidden % vector == 0 and all(t.stride(0) % vector == 0 for t in tensors):
        return _ALIGNED
    # The last vector of the last row must end where the tensor does; a row must not be read beyond its neighbour.
    ends_whole = ((rows - 1) * stride + hidden) % vector == 0
    return _COVERED if ends_whole and all(t.stride(0) == stride for t in tensors) else _CAREFUL


def num_splits(hidden: int, split: int, *, vector: int, how: int) -> int:
    """Programs that share a row, `split` elements each; a covered row begins up to vector - 1 elements late."""
    return triton.cdiv(hidden + (vector - 1 if how == _COVERED else 0), split)


def _refuse(x: torch.Tensor) -> None:
    refuse_empty(x)
    if x.shape[1] > MAX_HIDDEN:
        raise ValueError(f"hidden={x.shape[1]}: expected at most {MAX_HIDDEN}")


def rmsnorm_wide(
    x: torch.Tensor, w: torch.Tensor, *, eps: float = 1e-6, out: torch.Tensor | None = None,
    rstd: torch.Tensor | None = None, config: WideConfig | None = None,
) -> torch.Tensor:  # fmt: skip
    """RMSNorm of the last dimension of a 2-D tensor in two passes; any row length up to MAX_HIDDEN.

    Args:
        x: (rows, hidden), fp16, bf16 or fp32, unit column stride.
        w: (hidden,), the same dtype.
        eps: added to the mean square.
        out: (rows, hidden) to write into; allocated if None.
        rstd: FP32 of (rows,), takes 1 / sqrt(...) of each row; allocated if None.
        config: settings to use instead of the chosen ones.

    Returns: `out`. Raises: ValueError when the arguments do not fit together.
    """
    _refuse(x)
    out = torch.empty_like(x) if out is None else out
    if x.dim() != 2 or out.shape != x.shape or w.shape != x.shape[1:] or x.stride(1) != 1 or out.stride(1) != 1:
        raise ValueError(f"x={tuple(x.shape)}, w={tuple(w.shape)}: expected (rows, hidden), (hidden,), unit columns")
    if not x.dtype == w.dtype == out.dtype:
        raise ValueError(f"dtypes {x.dtype}, {w.dtype}, {out.dtype}: expected one dtype")
    rows, hidden = x.shape
    rstd = torch.empty(rows, dtype=torch.float32, device=x.device) if rstd is None else rstd
    vector, how = VECTOR_BYTES // x.element_size(), mode(x, out)
    config = config or choose_wide(x)
    splits = num_splits(hidden, config.block * config.chunks, vector=vector, how=how)
    parts = torch.empty(rows * splits, dtype=torch.float32, device=x.device)
    fixed = {"HIDDEN": hidden, "SPLITS": splits, "BLOCK": config.block, "CHUNKS": config.chunks, "VEC": vector,
             "MODE": how, "num_warps": config.num_warps}  # fmt: skip
    kernels.rmsnorm_wide_squares[(rows * splits,)](x, parts, x.stride(0), **fixed)
    kernels.rmsnorm_wide_scale[(rows * splits,)](
        x, w, out, parts, rstd, x.stride(0), out.stride(0), rows, eps, LANES=triton.next_power_of_2(splits), **fixed
    )
    return out


def grad_groups(rows: int, blocks: int, *, vector: int, wanted: int) -> int:
    """Programs that share the rows of a column block, for about `wanted` in all: a multiple of VEC."""
    return triton.cdiv(min(rows, triton.cdiv(wanted, blocks)), vector) * vector


def run_wide_grad(
    dy: torch.Tensor, x: torch.Tensor, w: torch.Tensor, rstd: torch.Tensor, dx: torch.Tensor, dw: torch.Tensor, *,
    config: WideConfig | None = None,
) -> None:  # fmt: skip
    """Two passes for dx and dweight; arguments as for `rmsnorm_grad.rmsnorm_backward`, which checks them."""
    from labkit.workers.rmsnorm_grad import padded, sum_parts

    _refuse(x)
    config = config or choose_wide(x)
    (rows, hidden), vector, how = x.shape, VECTOR_BYTES // x.element_size(), mode(x, dy, dx)
    splits = num_splits(hidden, config.block * config.chunks, vector=vector, how=how)
    dots = torch.empty(rows * splits, dtype=torch.float32, device=x.device)
    fixed = {"HIDDEN": hidden, "SPLITS": splits, "VEC": vector, "MODE": how}
    kernels.rmsnorm_wide_dots[(rows * splits,)](
        dy, x, w, dots, dy.stride(0), x.stride(0), BLOCK=config.block, CHUNKS=config.chunks,
        num_warps=config.num_warps, **fixed,
    )  # fmt: skip
    blocks = num_splits(hidden, config.grad_block, vector=vector, how=how)
    groups = grad_groups(rows, blocks, vector=vector, wanted=num_multiprocessors(x) * config.per_sm)
    parts = torch.empty((groups, padded(hidden)), dtype=torch.float32, device=x.device)
    kernels.rmsnorm_wide_grad[(groups * blocks,)](
        dy, x, w, rstd, dots, dx, parts, dy.stride(0), x.stride(0), dx.stride(0), rows, groups, BLOCK=config.grad_block,
        BLOCKS=blocks, LANES=triton.next_power_of_2(splits), STAGES=config.grad_stages, PART=padded(hidden),
        num_warps=config.grad_warps, **fixed,
    )  # fmt: skip
    sum_parts(parts, dw)

"""The fast RMSNorm: which kernel and which settings for a shape, as data, and the two wrappers that call the kernels.

`rmsnorm_report` allocates its output in the wrapper as the V100 report did; `rmsnorm_fast` writes into `out` if given.
Import this only after TRITON_INTERPRET is set or left alone: Triton reads it once.
"""

# pyright: reportArgumentType=false, reportCallIssue=false
# (Triton's annotations describe the compiler's values, not what a caller passes)
from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
import triton

from labkit.workers import rmsnorm_kernels as kernels


@dataclass(frozen=True, slots=True)
class Config:
    """Settings of one fast kernel. Everything here is a compile-time constant or sets the grid."""

    kind: str
    """`tile`, `persistent`, `loop` or `shifted`: see rmsnorm_kernels."""
    block: int
    """Columns a tile holds, a power of two."""
    num_warps: int
    rows: int = 1
    """Rows of a tile (tile, persistent)."""
    stages: int = 1
    """Tiles in flight (persistent, shifted); 1 loads straight into registers."""
    per_sm: int = 4
    """Programs per multiprocessor of a persistent grid."""
    group: int = 0
    """Programs that share a contiguous block of rows (shifted); 0: every program walks the whole tensor."""
    late_w: bool = False
    """Load the weight after the reduction (tile)."""
    evict_x: str = "evict_first"
    evict_y: str = "evict_first"
    cache_y: str = ""
    """Cache modifier of the stores: '' or '.cs' (streaming)."""

    def label(self) -> str:
        """Short name for tables, e.g. `persistent b8192 w8 s3 p2`."""
        text = f"{self.kind} b{self.block} w{self.num_warps}"
        text += f" r{self.rows}" if self.rows > 1 else ""
        if self.kind in ("persistent", "shifted"):
            text += f" s{self.stages} p{self.per_sm}" + (f" g{self.group}" if self.group else "")
        text += " late" if self.late_w else ""
        evict = "".join(name[6:7] or "-" for name in (self.evict_x, self.evict_y))
        return f"{text} e{evict}{self.cache_y}"

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON form of this configuration."""
        return asdict(self)


VECTOR_BYTES = 16
"""Widest load or store of one thread."""


def choose(*, rows: int, hidden: int, elem_bytes: int, is_aligned: bool, num_sms: int) -> Config:
    """The fast kernel's configuration for a shape.

    Args:
        rows: number of rows.
        hidden: elements of a row.
        elem_bytes: 2 for fp16 and bf16.
        is_aligned: whether every row of input and output starts on a 16-byte boundary.
        num_sms: multiprocessors of the GPU (any positive number for the interpreter).

    Returns: a Config. The rules and where they come from are beside each line.
    """
    block = triton.next_power_of_2(hidden)
    vector = VECTOR_BYTES // elem_bytes
    if not is_aligned and vector <= hidden <= 16384 and rows >= 8 * num_sms:
        whole = triton.next_power_of_2(hidden // vector * vector)
        # Few warps, three tiles in flight, and far more programs than fit, each with few rows: 95 % of copy_ at 4,095
        # columns and 93 % at 769. As many programs as fit, which walk all rows, reach 89 and 88 %: a multiprocessor
        # that is served more slowly than the rest then decides.
        warps = min(16, max(1, whole // (32 * vector * (4 if whole >= 2048 else 2))))
        return Config("shifted", whole, num_warps=warps, stages=3, per_sm=max(16, 512 // warps), group=vector,
                      evict_x="", evict_y="")  # fmt: skip
    if block <= 1024:
        # Two rows of 768 a program, no cache hints: 99.6 % of copy_ at 131,072 rows; one hint costs up to 3 %.
        return Config("tile", block, rows=2, num_warps=2, late_w=True, evict_x="", evict_y="")
    # Two chunks a row, 16 bytes a thread: best or within 1 % of the best from 2,048 to 8,192, cold and replayed.
    # Keeping the row in registers instead loses 2 to 4 % there: fewer rows fit on a multiprocessor.
    chunk = min(block // 2, 8192)
    warps = min(16, chunk // (32 * vector))
    # A second chunk that is mostly masked leaves half of 16 warps idle: 5,000 columns go from 86 to 99 % with 8.
    return Config("loop", chunk, num_warps=max(1, warps // 2 if hidden < 2 * chunk else warps), evict_y="")


def run_config(
    config: Config, x: torch.Tensor, w: torch.Tensor, out: torch.Tensor, *, eps: float, num_sms: int,
    rstd: torch.Tensor | None = None,
) -> None:  # fmt: skip
    """Launch one fast kernel: x and out (rows, hidden) with unit column stride, w (hidden,), all of one dtype.

    `rstd`, FP32 of (rows,), takes 1 / sqrt(...) of each row if given.
    """
    keep = {"SAVE": rstd is not None}
    r = w if rstd is None else rstd
    rows, hidden = x.shape
    vector = VECTOR_BYTES // x.element_size()
    unit = vector if x.stride(0) % vector == 0 and out.stride(0) % vector == 0 else 1
    steps = x.stride(0) // unit, out.stride(0) // unit
    if config.kind == "tile":
        kernels.rmsnorm_tile[(triton.cdiv(rows, config.rows),)](
            x, w, out, r, *steps, rows, eps, HIDDEN=hidden, UNIT=unit, BLOCK=config.block, ROWS=config.rows, **keep,
            LATE_W=config.late_w, EVICT_X=config.evict_x, EVICT_Y=config.evict_y, CACHE_Y=config.cache_y,
            num_warps=config.num_warps,
        )  # fmt: skip
    elif config.kind == "persistent":
        kernels.rmsnorm_persistent[(min(triton.cdiv(rows, config.rows), num_sms * config.per_sm),)](
            x, w, out, r, *steps, rows, eps, HIDDEN=hidden, UNIT=unit, BLOCK=config.block, ROWS=config.rows, **keep,
            STAGES=config.stages, EVICT_X=config.evict_x, EVICT_Y=config.evict_y, CACHE_Y=config.cache_y,
            num_warps=config.num_warps,
        )  # fmt: skip
    elif config.kind == "loop":
        kernels.rmsnorm_loop[(rows,)](
            x, w, out, r, *steps, eps, HIDDEN=hidden, UNIT=unit, BLOCK=config.block, EVICT_Y=config.evict_y, **keep,
            CACHE_Y=config.cache_y, num_warps=config.num_warps,
        )  # fmt: skip
    elif config.kind == "shifted":
        grid, each = grid_of(rows, num_sms * config.per_sm, multiple=vector, group=config.group)
        kernels.rmsnorm_shifted[(grid,)](
            x, w, out, r, x.stride(0), rows, each, eps, HIDDEN=hidden, BLOCK=config.block, STAGES=config.stages,
            VEC=vector, GROUP=config.group, **keep, EVICT_X=config.evict_x, EVICT_Y=config.evict_y,
            CACHE_Y=config.cache_y, num_warps=config.num_warps,
        )  # fmt: skip
    else:
        raise ValueError(f"kind={config.kind!r}: expected tile, persistent, loop or shifted")


def grid_of(rows: int, wanted: int, *, multiple: int, group: int) -> tuple[int, int]:
    """Programs to launch and rows that each takes in `rows_of_program`, for about `wanted` programs.

    Args:
        rows: rows, or tiles of rows.
        wanted: programs to aim at.
        multiple: the grid is a multiple of this (GROUP 0), so that a program meets one alignment.
        group: GROUP of `rows_of_program`; 0 or a multiple of `multiple`.
    """
    if not group:
        return max(multiple, min(rows, wanted) // multiple * multiple), 0
    each = triton.cdiv(rows, max(group, wanted))
    return triton.cdiv(rows, group * each) * group, each


def fits(config: Config, x: torch.Tensor, out: torch.Tensor) -> bool:
    """Whether a configuration computes the right thing on these tensors (its assumptions hold)."""
    hidden = x.shape[1]
    if config.kind == "loop":
        return True
    if config.kind != "shifted":
        return config.block >= hidden
    vector = VECTOR_BYTES // x.element_size()
    bases_aligned = x.data_ptr() % VECTOR_BYTES == 0 and out.data_ptr() % VECTOR_BYTES == 0
    whole = hidden // vector * vector
    is_one_alignment = config.group % vector == 0
    return (bases_aligned and x.stride(0) == out.stride(0) and hidden >= vector and config.block >= whole
            and is_one_alignment)  # fmt: skip


def rows_aligned(x: torch.Tensor, out: torch.Tensor) -> bool:
    """Whether every row of both tensors starts on a 16-byte boundary."""
    row_bytes = (x.stride(0) * x.element_size(), out.stride(0) * out.element_size())
    return all(value % VECTOR_BYTES == 0 for value in (x.data_ptr(), out.data_ptr(), *row_bytes))


_SMS: dict[int, int] = {}


def num_multiprocessors(x: torch.Tensor) -> int:
    """Multiprocessors of the tensor's GPU; 2 for the interpreter, so that persistent grids really loop."""
    if not x.is_cuda:
        return 2
    index = x.device.index or 0
    if index not in _SMS:
        _SMS[index] = torch.cuda.get_device_properties(index).multi_processor_count
    return _SMS[index]


def rmsnorm_fast(
    x: torch.Tensor, w: torch.Tensor, *, eps: float = 1e-6, out: torch.Tensor | None = None,
    config: Config | None = None, rstd: torch.Tensor | None = None,
) -> torch.Tensor:
    """RMSNorm of the last dimension of a 2-D tensor, at memory speed.

    Args:
        x: (rows, hidden), fp16, bf16 or fp32, unit column stride, any row stride.
        w: (hidden,), the same dtype.
        eps: added to the mean square.
        out: (rows, hidden) to write into; allocated if None.
        config: settings to use instead of the chosen ones.
        rstd: FP32 of (rows,); takes 1 / sqrt(mean of squares + eps) of each row, for the backward pass.

    Returns: `out`. Raises: ValueError when the arguments do not fit together.
    """
    out = torch.empty_like(x) if out is None else out
    refuse_empty(x)
    if x.dim() != 2 or x.stride(1) != 1 or out.stride(1) != 1 or out.shape != x.shape or w.shape != x.shape[1:]:
        raise ValueError(f"x={tuple(x.shape)}, w={tuple(w.shape)}: expected (rows, hidden), (hidden,), unit columns")
    if not x.dtype == w.dtype == out.dtype:
        raise ValueError(f"dtypes {x.dtype}, {w.dtype}, {out.dtype}: expected one dtype")
    if rstd is not None and (rstd.shape != x.shape[:1] or rstd.dtype != torch.float32 or not rstd.is_contiguous()):
        raise ValueError(f"rstd={tuple(rstd.shape)} {rstd.dtype}: expected contiguous float32 of ({x.shape[0]},)")
    num_sms = num_multiprocessors(x)
    if config is None:
        config = choose(rows=x.shape[0], hidden=x.shape[1], elem_bytes=x.element_size(),
                        is_aligned=rows_aligned(x, out), num_sms=num_sms)  # fmt: skip
        if not fits(config, x, out):
            config = Config("loop", min(4096, triton.next_power_of_2(x.shape[1])), num_warps=8, evict_y="")
    elif not fits(config, x, out):
        raise ValueError(f"config={config.label()!r}: does not fit hidden={x.shape[1]} with these strides and pointers")
    run_config(config, x, w, out, eps=eps, num_sms=num_sms, rstd=rstd)
    return out


def refuse_empty(x: torch.Tensor) -> None:
    """Raises: ValueError when a tensor has no row or no column: a mean over nothing has no value."""
    if x.numel() == 0:
        raise ValueError(f"x={tuple(x.shape)}: expected at least one row and one column")


def rmsnorm_report(
    x: torch.Tensor, w: torch.Tensor, *, eps: float = 1e-6, out: torch.Tensor | None = None, block: int | None = None
) -> torch.Tensor:
    """The report's RMSNorm: one row a program, one block of the next power of two; allocates unless `out` is given."""
    out = torch.empty_like(x) if out is None else out
    rows, hidden = x.shape
    block = block or triton.next_power_of_2(hidden)
    kernels.rmsnorm_report[(rows,)](x, w, out, x.stride(0), out.stride(0), hidden, eps, BLOCK=block)
    return out

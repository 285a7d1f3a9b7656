"""Backward RMSNorm in Triton, one pass over the rows: dx, and partial sums of dweight for a second, small kernel.

With r = 1 / sqrt(mean(x^2) + eps) of a row, kept by the forward pass, x^ = x r and g = dy w:

    dx = r (g - x^ mean(g x^)),        dweight = sum over rows of dy x^

A row's x and dy are read once and stay on chip until its dx is written. dweight runs across rows: each program walks
its own rows with the sum in registers and writes it once, in FP32; `rmsnorm_grad_sum` adds the programs' sums in a
fixed order. No atomics, so the same inputs on the same GPU give the same bits.

`rmsnorm_grad` takes rows that start on 16-byte boundaries (any others, too, with UNIT 1, at 2 bytes a load);
`rmsnorm_grad_shifted` moves others in whole vectors, as `rmsnorm_shifted` does forward.
"""

# pyright: reportArgumentType=false, reportGeneralTypeIssues=false, reportCallIssue=false
# (Triton's annotations describe the compiler's values, not what a caller passes)
from __future__ import annotations

import triton
import triton.language as tl

from labkit.workers.rmsnorm_kernels import rows_of_program


@triton.jit(do_not_specialize=["rows", "each"])
def rmsnorm_grad(
    dy_ptr, x_ptr, w_ptr, rstd_ptr, dx_ptr, part_ptr, dy_step, x_step, dx_step, rows, each,
    HIDDEN: tl.constexpr, UNIT: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, STAGES: tl.constexpr,
    GROUP: tl.constexpr, KEEP_W: tl.constexpr, PART: tl.constexpr,
):  # fmt: skip
    """Tiles of ROWS whole rows; KEEP_W holds the weight in registers, otherwise each tile reads it again from cache.

    PART is the length of a row of partial sums: HIDDEN, rounded up so that every row of them is 16-byte aligned.
    """
    first, last, step = rows_of_program(tl.cdiv(rows, ROWS), each, GROUP)
    lane, cols = tl.arange(0, ROWS)[:, None], tl.arange(0, BLOCK)[None, :]
    in_row = cols < HIDDEN
    if KEEP_W:
        w = tl.load(w_ptr + cols, mask=in_row, other=0.0, eviction_policy="evict_last").to(tl.float32)
    sums = tl.zeros([ROWS, BLOCK], dtype=tl.float32)
    for tile in tl.range(first, last, step, num_stages=STAGES):
        row = tl.cast(tile, tl.int64) * ROWS + lane
        mask = (row < rows) & in_row
        x = tl.load(x_ptr + row * (x_step * UNIT) + cols, mask=mask, other=0.0).to(tl.float32)
        dy = tl.load(dy_ptr + row * (dy_step * UNIT) + cols, mask=mask, other=0.0).to(tl.float32)
        rstd = tl.load(rstd_ptr + row, mask=row < rows, other=0.0)
        if not KEEP_W:
            w = tl.load(w_ptr + cols, mask=in_row, other=0.0, eviction_policy="evict_last").to(tl.float32)
        normed, g = x * rstd, dy * w
        mean = tl.sum(g * normed, axis=1, keep_dims=True) / HIDDEN
        dx = (g - normed * mean) * rstd
        tl.store(dx_ptr + row * (dx_step * UNIT) + cols, dx.to(dx_ptr.dtype.element_ty), mask=mask)
        sums += dy * normed
    part_row = part_ptr + tl.program_id(0).to(tl.int64) * PART
    out = tl.arange(0, BLOCK)
    tl.store(part_row + out, tl.sum(sums, axis=0), mask=out < HIDDEN)


@triton.jit(do_not_specialize=["rows", "each"])
def rmsnorm_grad_shifted(
    dy_ptr, x_ptr, w_ptr, rstd_ptr, dx_ptr, part_ptr, stride, rows, each,
    HIDDEN: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr, VEC: tl.constexpr, GROUP: tl.constexpr,
    PART: tl.constexpr,
):  # fmt: skip
    """Rows off the 16-byte grid: whole vectors and 2 * VEC edge lanes; needs what `rmsnorm_shifted` does, of dy too."""
    first, last, step = rows_of_program(rows, each, GROUP)
    head = ((VEC - (tl.cast(first, tl.int64) * stride) % VEC) % VEC).to(tl.int32)
    whole = (HIDDEN - head) // VEC * VEC
    lanes, edge = tl.arange(0, BLOCK), tl.arange(0, 2 * VEC)
    in_whole = lanes < whole
    edge_cols = tl.where(edge < VEC, edge, head + whole + edge - VEC)
    in_edge = tl.where(edge < VEC, edge < head, edge_cols < HIDDEN)
    w = tl.load(w_ptr + head + lanes, mask=in_whole, other=0.0, eviction_policy="evict_last").to(tl.float32)
    w_edge = tl.load(w_ptr + edge_cols, mask=in_edge, other=0.0).to(tl.float32)
    sums, sums_edge = tl.zeros([BLOCK], dtype=tl.float32), tl.zeros([2 * VEC], dtype=tl.float32)
    # What is too narrow for asynchronous copies is asked for one row ahead.
    begin, zeros = tl.cast(first, tl.int64) * stride, edge * 0
    has_row = in_edge & (first + zeros < last)
    x_next = tl.load(x_ptr + begin + edge_cols, mask=has_row, other=0.0)
    dy_next = tl.load(dy_ptr + begin + edge_cols, mask=has_row, other=0.0)
    rstd_next = tl.load(rstd_ptr + first, mask=first < last, other=0.0)
    for row in tl.range(first, last, step, num_stages=STAGES):
        start = tl.cast(row, tl.int64) * stride
        body = tl.multiple_of(start + head, VEC)
        x = tl.load(x_ptr + body + lanes, mask=in_whole, other=0.0).to(tl.float32)
        dy = tl.load(dy_ptr + body + lanes, mask=in_whole, other=0.0).to(tl.float32)
        x_edge, dy_edge, rstd = x_next.to(tl.float32), dy_next.to(tl.float32), rstd_next
        ahead, has_row = tl.cast(row + step, tl.int64) * stride, in_edge & (row + step + zeros < last)
        x_next = tl.load(x_ptr + ahead + edge_cols, mask=has_row, other=0.0)
        dy_next = tl.load(dy_ptr + ahead + edge_cols, mask=has_row, other=0.0)
        rstd_next = tl.load(rstd_ptr + row + step, mask=row + step < last, other=0.0)
        normed, g = x * rstd, dy * w
        normed_edge, g_edge = x_edge * rstd, dy_edge * w_edge
        mean = (tl.sum(g * normed, axis=0) + tl.sum(g_edge * normed_edge, axis=0)) / HIDDEN
        dx, dx_edge = (g - normed * mean) * rstd, (g_edge - normed_edge * mean) * rstd
        tl.store(dx_ptr + body + lanes, dx.to(dx_ptr.dtype.element_ty), mask=in_whole)
        tl.store(dx_ptr + start + edge_cols, dx_edge.to(dx_ptr.dtype.element_ty), mask=in_edge)
        sums += dy * normed
        sums_edge += dy_edge * normed_edge
    part_row = part_ptr + tl.program_id(0).to(tl.int64) * PART
    tl.store(part_row + head + lanes, sums, mask=in_whole)
    tl.store(part_row + edge_cols, sums_edge, mask=in_edge)


@triton.jit(do_not_specialize=["programs"])
def rmsnorm_grad_sum(
    part_ptr, dw_ptr, programs, HIDDEN: tl.constexpr, PART: tl.constexpr, COLS: tl.constexpr, TALL: tl.constexpr
):
    """Sum of COLS columns of dweight: the programs' partial sums added in a fixed order, TALL at a time, cast once."""
    cols = tl.program_id(0) * COLS + tl.arange(0, COLS)[None, :]
    tall = tl.arange(0, TALL)[:, None]
    sums = tl.zeros([TALL, COLS], dtype=tl.float32)
    for start in range(0, programs, TALL):
        at = start + tall
        mask = (at < programs) & (cols < HIDDEN)
        sums += tl.load(part_ptr + tl.cast(at, tl.int64) * PART + cols, mask=mask, other=0.0)
    out = tl.program_id(0) * COLS + tl.arange(0, COLS)
    tl.store(dw_ptr + out, tl.sum(sums, axis=0).to(dw_ptr.dtype.element_ty), mask=out < HIDDEN)

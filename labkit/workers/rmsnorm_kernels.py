"""Forward RMSNorm in Triton: the report's kernel, and the four shapes of a faster one.

y[row, :] = x[row, :] / sqrt(mean(x[row, :]^2) + eps) * w, reduced and scaled in FP32, stored in the input's dtype.

Every kernel takes row strides (the last dimension must be contiguous), so a slice of a wider tensor works. With SAVE
the fast ones also store 1 / sqrt(...) of each row in FP32 at rstd_ptr, which is what the backward pass needs.
`rmsnorm_report` is the V100 report's kernel. The others are bound by memory alone and differ in how they keep enough
bytes in flight: `rmsnorm_tile` (a few whole rows a program), `rmsnorm_persistent` (a fixed grid that walks rows, the
weight in registers), `rmsnorm_loop` (one row in chunks, read twice, the second time from cache) and `rmsnorm_shifted`
(rows that do not start on a 16-byte boundary, still moved in 16-byte vectors).

The compiler moves 16 bytes a load only where it can prove that they are aligned and masked together. It learns that a
run-time number is divisible by 16 or else nothing, so a hidden size of 5,000 would fall to 2-byte loads. Therefore the
fast kernels get HIDDEN as a constant and strides in units of UNIT elements: a product with UNIT is divisible by UNIT.

With TRITON_INTERPRET=1 in the environment before this import, the same kernels run on a CPU: correctness only.
"""

# pyright: reportArgumentType=false, reportGeneralTypeIssues=false, reportCallIssue=false
# (Triton's annotations describe the compiler's values, not what a caller passes)
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def empty_kernel(x_ptr):
    """Does nothing: its time is the launch floor."""
    pass


@triton.jit
def cast_kernel(x_ptr, y_ptr):
    """Stores one FP32 number in the output's dtype: shows how a store rounds here."""
    tl.store(y_ptr, tl.load(x_ptr).to(y_ptr.dtype.element_ty))


@triton.jit
def rows_of_program(rows, each, GROUP: tl.constexpr):
    """First row, end and step of this program, of `rows` in all; two orders.

    GROUP 0: program p takes p, p + P, p + 2P and so on, P programs in all. Otherwise GROUP programs share a contiguous
    block of GROUP * each rows and take turns in it: with more programs than fit on the GPU, blocks are begun in order,
    and a multiprocessor that is served faster takes more of them.
    """
    program = tl.program_id(0)
    first, last, step = program, rows, tl.num_programs(0)
    if GROUP > 0:
        begin = program // GROUP * (GROUP * each)
        first, last, step = begin + program % GROUP, tl.minimum(rows, begin + GROUP * each), GROUP
    return first, last, step


@triton.jit
def rmsnorm_report(x_ptr, w_ptr, y_ptr, x_stride, y_stride, hidden, eps, BLOCK: tl.constexpr):
    """One row a program; BLOCK is the next power of two of `hidden`, lanes past the row are masked."""
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BLOCK)
    mask = cols < hidden
    x = tl.load(x_ptr + row * x_stride + cols, mask=mask, other=0.0).to(tl.float32)
    rstd = tl.rsqrt(tl.sum(x * x, axis=0) / hidden + eps)
    w = tl.load(w_ptr + cols, mask=mask, other=0.0).to(tl.float32)
    tl.store(y_ptr + row * y_stride + cols, (x * rstd * w).to(y_ptr.dtype.element_ty), mask=mask)


@triton.jit
def rmsnorm_tile(
    x_ptr, w_ptr, y_ptr, rstd_ptr, x_step, y_step, rows, eps,
    HIDDEN: tl.constexpr, UNIT: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, LATE_W: tl.constexpr,
    SAVE: tl.constexpr, EVICT_X: tl.constexpr, EVICT_Y: tl.constexpr, CACHE_Y: tl.constexpr,
):  # fmt: skip
    """ROWS whole rows a program, held in registers between the reduction and the store: every byte is read once.

    LATE_W loads the weight after the reduction: fewer registers, so more rows in flight, for one more cache latency.
    """
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    cols = tl.arange(0, BLOCK)[None, :]
    mask = (row < rows) & (cols < HIDDEN)
    x = tl.load(x_ptr + row * (x_step * UNIT) + cols, mask=mask, other=0.0, eviction_policy=EVICT_X).to(tl.float32)
    if not LATE_W:
        w = tl.load(w_ptr + cols, mask=cols < HIDDEN, other=0.0, eviction_policy="evict_last").to(tl.float32)
    rstd = tl.rsqrt(tl.sum(x * x, axis=1, keep_dims=True) / HIDDEN + eps)
    if SAVE:
        tl.store(rstd_ptr + row, rstd, mask=row < rows)
    if LATE_W:
        w = tl.load(w_ptr + cols, mask=cols < HIDDEN, other=0.0, eviction_policy="evict_last").to(tl.float32)
    y = (x * rstd * w).to(y_ptr.dtype.element_ty)
    tl.store(y_ptr + row * (y_step * UNIT) + cols, y, mask=mask, eviction_policy=EVICT_Y, cache_modifier=CACHE_Y)


@triton.jit
def rmsnorm_persistent(
    x_ptr, w_ptr, y_ptr, rstd_ptr, x_step, y_step, rows, eps,
    HIDDEN: tl.constexpr, UNIT: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, STAGES: tl.constexpr,
    SAVE: tl.constexpr, EVICT_X: tl.constexpr, EVICT_Y: tl.constexpr, CACHE_Y: tl.constexpr,
):  # fmt: skip
    """A fixed grid walks the rows; STAGES tiles are in flight (asynchronous copies into shared memory when over 1)."""
    lane = tl.arange(0, ROWS)[:, None]
    cols = tl.arange(0, BLOCK)[None, :]
    w = tl.load(w_ptr + cols, mask=cols < HIDDEN, other=0.0, eviction_policy="evict_last").to(tl.float32)
    for first in tl.range(tl.program_id(0) * ROWS, rows, tl.num_programs(0) * ROWS, num_stages=STAGES):
        row = tl.cast(first, tl.int64) + lane
        mask = (row < rows) & (cols < HIDDEN)
        x = tl.load(x_ptr + row * (x_step * UNIT) + cols, mask=mask, other=0.0, eviction_policy=EVICT_X).to(tl.float32)
        rstd = tl.rsqrt(tl.sum(x * x, axis=1, keep_dims=True) / HIDDEN + eps)
        if SAVE:
            tl.store(rstd_ptr + row, rstd, mask=row < rows)
        y = (x * rstd * w).to(y_ptr.dtype.element_ty)
        tl.store(y_ptr + row * (y_step * UNIT) + cols, y, mask=mask, eviction_policy=EVICT_Y, cache_modifier=CACHE_Y)


@triton.jit
def rmsnorm_loop(
    x_ptr, w_ptr, y_ptr, rstd_ptr, x_step, y_step, eps,
    HIDDEN: tl.constexpr, UNIT: tl.constexpr, BLOCK: tl.constexpr, SAVE: tl.constexpr, EVICT_Y: tl.constexpr,
    CACHE_Y: tl.constexpr,
):  # fmt: skip
    """One row in chunks of BLOCK, twice: few registers, so many rows a multiprocessor; the second read hits cache."""
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BLOCK)
    x_row, y_row = x_ptr + row * (x_step * UNIT), y_ptr + row * (y_step * UNIT)
    squares = tl.zeros([BLOCK], dtype=tl.float32)
    for start in range(0, HIDDEN, BLOCK):
        mask = start + cols < HIDDEN
        x = tl.load(x_row + start + cols, mask=mask, other=0.0, eviction_policy="evict_last").to(tl.float32)
        squares += x * x
    rstd = tl.rsqrt(tl.sum(squares, axis=0) / HIDDEN + eps)
    if SAVE:
        tl.store(rstd_ptr + row, rstd)
    for start in range(0, HIDDEN, BLOCK):
        mask = start + cols < HIDDEN
        x = tl.load(x_row + start + cols, mask=mask, other=0.0, eviction_policy="evict_first").to(tl.float32)
        w = tl.load(w_ptr + start + cols, mask=mask, other=0.0, eviction_policy="evict_last").to(tl.float32)
        y = (x * rstd * w).to(y_ptr.dtype.element_ty)
        tl.store(y_row + start + cols, y, mask=mask, eviction_policy=EVICT_Y, cache_modifier=CACHE_Y)


@triton.jit(do_not_specialize=["rows", "each"])
def rmsnorm_shifted(
    x_ptr, w_ptr, y_ptr, rstd_ptr, stride, rows, each, eps,
    HIDDEN: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr, VEC: tl.constexpr, GROUP: tl.constexpr,
    SAVE: tl.constexpr, EVICT_X: tl.constexpr, EVICT_Y: tl.constexpr, CACHE_Y: tl.constexpr,
):  # fmt: skip
    """Rows whose first element is not 16-byte aligned, moved in aligned vectors of VEC elements.

    A row is `head` elements up to the first boundary, `whole` elements in whole vectors, and a tail; head and tail are
    shorter than a vector: 2 * VEC edge lanes hold both. Needs one stride for x and y, x_ptr and y_ptr 16-byte aligned,
    a grid (GROUP 0) or a GROUP that is a multiple of VEC, and BLOCK >= HIDDEN rounded down to whole vectors. A program
    then meets one alignment only (row * stride mod VEC repeats every VEC rows): its shifted weight stays in registers.
    """
    first, last, step = rows_of_program(rows, each, GROUP)
    head = ((VEC - (tl.cast(first, tl.int64) * stride) % VEC) % VEC).to(tl.int32)
    whole = (HIDDEN - head) // VEC * VEC
    lanes, edge = tl.arange(0, BLOCK), tl.arange(0, 2 * VEC)
    in_whole = lanes < whole
    edge_cols = tl.where(edge < VEC, edge, head + whole + edge - VEC)
    in_edge = tl.where(edge < VEC, edge < head, edge_cols < HIDDEN)
    w = tl.load(w_ptr + head + lanes, mask=in_whole, other=0.0, eviction_policy="evict_last").to(tl.float32)
    w_edge = tl.load(w_ptr + edge_cols, mask=in_edge, other=0.0).to(tl.float32)
    # Edges are too narrow for asynchronous copies, so those of the next row are asked for one row ahead.
    zeros = edge * 0
    has_row = in_edge & (first + zeros < last)
    x_next = tl.load(x_ptr + tl.cast(first, tl.int64) * stride + edge_cols, mask=has_row, other=0.0)
    for row in tl.range(first, last, step, num_stages=STAGES):
        start = tl.cast(row, tl.int64) * stride
        body = tl.multiple_of(start + head, VEC)
        x = tl.load(x_ptr + body + lanes, mask=in_whole, other=0.0, eviction_policy=EVICT_X).to(tl.float32)
        x_edge, ahead = x_next.to(tl.float32), tl.cast(row + step, tl.int64) * stride
        x_next = tl.load(x_ptr + ahead + edge_cols, mask=in_edge & (row + step + zeros < last), other=0.0)
        rstd = tl.rsqrt((tl.sum(x * x, axis=0) + tl.sum(x_edge * x_edge, axis=0)) / HIDDEN + eps)
        if SAVE:
            tl.store(rstd_ptr + row, rstd)
        y = (x * rstd * w).to(y_ptr.dtype.element_ty)
        tl.store(y_ptr + body + lanes, y, mask=in_whole, eviction_policy=EVICT_Y, cache_modifier=CACHE_Y)
        tl.store(y_ptr + start + edge_cols, (x_edge * rstd * w_edge).to(y_ptr.dtype.element_ty), mask=in_edge)

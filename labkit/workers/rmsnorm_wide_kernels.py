"""RMSNorm of rows too long for one program: several programs share a row, in two passes, forward and backward.

Pass 1 leaves one number for each row and split (a share of the row): the sum of squares forward, sum(dy w x) backward.
Pass 2 adds a row's numbers and writes y, or dx with partial sums of dweight. So x (backward: x and dy) is read twice.

Three ways to meet the 16-byte grid, MODE: ALIGNED, every row starts on it and has whole vectors; COVERED, rows start
anywhere, but the vectors that cover a row may all be read: the neighbours' elements in the first and last vector are
dropped, and those two are written element by element; CAREFUL, nothing is known, elements are masked one by one.
A program meets one alignment only: `lanes` count from the last boundary before the row, `shift` elements before it.
"""

# pyright: reportArgumentType=false, reportGeneralTypeIssues=false, reportCallIssue=false
# (Triton's annotations describe the compiler's values, not what a caller passes)
from __future__ import annotations

import triton
import triton.language as tl

ALIGNED, COVERED, CAREFUL = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)


@triton.jit
def shift_of_row(row, stride, VEC: tl.constexpr, MODE: tl.constexpr):
    """Elements of the previous row in this row's first vector."""
    shift = 0
    if MODE == COVERED:
        shift = (tl.cast(row, tl.int64) * stride % VEC).to(tl.int32)
    return shift


@triton.jit
def start_of_row(row, stride, shift, VEC: tl.constexpr, MODE: tl.constexpr):
    """Where a row's first vector begins; the compiler is told that it is on the 16-byte grid."""
    start = tl.cast(row, tl.int64) * stride
    if MODE == COVERED:  # not for the others: the compiler would fold `- 0` away, and the hint with it
        start = start - shift
    if MODE != CAREFUL:
        start = tl.multiple_of(start, VEC)
    return start


@triton.jit
def load_row(ptr, lanes, shift, HIDDEN: tl.constexpr, VEC: tl.constexpr, MODE: tl.constexpr):
    """Elements of a row in FP32, zero outside it; `ptr` is that of the row's first vector."""
    in_row = (lanes >= shift) & (lanes < shift + HIDDEN)
    if MODE == COVERED:
        covered = (shift + HIDDEN + VEC - 1) // VEC * VEC
        x = tl.where(in_row, tl.load(ptr + lanes, mask=lanes < covered, other=0.0), 0.0)
    else:
        x = tl.load(ptr + lanes, mask=lanes < HIDDEN, other=0.0)
    return x.to(tl.float32)


@triton.jit
def store_row(ptr, lanes, value, shift, HIDDEN: tl.constexpr, VEC: tl.constexpr, MODE: tl.constexpr):
    """Write a row's elements and nothing else."""
    if MODE == COVERED:
        begin, end = (shift + VEC - 1) // VEC * VEC, (shift + HIDDEN) // VEC * VEC
        is_whole = (lanes >= begin) & (lanes < end)
        in_row = (lanes >= shift) & (lanes < shift + HIDDEN)
        tl.store(ptr + lanes, value, mask=is_whole)
        tl.store(ptr + lanes, value, mask=in_row & ((lanes < begin) | (lanes >= end)))
    else:
        tl.store(ptr + lanes, value, mask=lanes < HIDDEN)


@triton.jit
def rmsnorm_wide_squares(
    x_ptr, part_ptr, stride, HIDDEN: tl.constexpr, SPLITS: tl.constexpr, BLOCK: tl.constexpr, CHUNKS: tl.constexpr,
    VEC: tl.constexpr, MODE: tl.constexpr,
):  # fmt: skip
    """Pass 1 forward: the sum of squares of one split, CHUNKS blocks long."""
    row, split = tl.program_id(0) // SPLITS, tl.program_id(0) % SPLITS
    shift = shift_of_row(row, stride, VEC, MODE)
    start = start_of_row(row, stride, shift, VEC, MODE)
    squares = tl.zeros([BLOCK], dtype=tl.float32)
    for chunk in tl.static_range(CHUNKS):
        lanes = (split * CHUNKS + chunk) * BLOCK + tl.arange(0, BLOCK)
        x = load_row(x_ptr + start, lanes, shift, HIDDEN, VEC, MODE)
        squares += x * x
    tl.store(part_ptr + tl.program_id(0), tl.sum(squares, axis=0))


@triton.jit(do_not_specialize=["rows"])
def rmsnorm_wide_scale(
    x_ptr, w_ptr, y_ptr, part_ptr, rstd_ptr, x_stride, y_stride, rows, eps,
    HIDDEN: tl.constexpr, SPLITS: tl.constexpr, LANES: tl.constexpr, BLOCK: tl.constexpr, CHUNKS: tl.constexpr,
    VEC: tl.constexpr, MODE: tl.constexpr,
):  # fmt: skip
    """Pass 2 forward. Rows run backwards: those that pass 1 read last may still be in the L2 cache."""
    row, split = rows - 1 - tl.program_id(0) // SPLITS, tl.program_id(0) % SPLITS
    at = tl.arange(0, LANES)
    total = tl.sum(tl.load(part_ptr + row * SPLITS + at, mask=at < SPLITS, other=0.0), axis=0)
    rstd = tl.rsqrt(total / HIDDEN + eps)
    if split == 0:
        tl.store(rstd_ptr + row, rstd)
    shift = shift_of_row(row, x_stride, VEC, MODE)
    x_start = start_of_row(row, x_stride, shift, VEC, MODE)
    y_start = start_of_row(row, y_stride, shift, VEC, MODE)
    for chunk in tl.static_range(CHUNKS):
        lanes = (split * CHUNKS + chunk) * BLOCK + tl.arange(0, BLOCK)
        x = load_row(x_ptr + x_start, lanes, shift, HIDDEN, VEC, MODE)
        in_row = (lanes >= shift) & (lanes < shift + HIDDEN)
        w = tl.load(w_ptr + lanes - shift, mask=in_row, other=0.0, eviction_policy="evict_last").to(tl.float32)
        store_row(y_ptr + y_start, lanes, (x * rstd * w).to(y_ptr.dtype.element_ty), shift, HIDDEN, VEC, MODE)


@triton.jit
def rmsnorm_wide_dots(
    dy_ptr, x_ptr, w_ptr, part_ptr, dy_stride, x_stride, HIDDEN: tl.constexpr, SPLITS: tl.constexpr,
    BLOCK: tl.constexpr, CHUNKS: tl.constexpr, VEC: tl.constexpr, MODE: tl.constexpr,
):  # fmt: skip
    """Pass 1 backward: sum(dy w x) of one split."""
    row, split = tl.program_id(0) // SPLITS, tl.program_id(0) % SPLITS
    shift = shift_of_row(row, x_stride, VEC, MODE)
    x_start = start_of_row(row, x_stride, shift, VEC, MODE)
    dy_start = start_of_row(row, dy_stride, shift, VEC, MODE)
    dots = tl.zeros([BLOCK], dtype=tl.float32)
    for chunk in tl.static_range(CHUNKS):
        lanes = (split * CHUNKS + chunk) * BLOCK + tl.arange(0, BLOCK)
        x = load_row(x_ptr + x_start, lanes, shift, HIDDEN, VEC, MODE)
        dy = load_row(dy_ptr + dy_start, lanes, shift, HIDDEN, VEC, MODE)
        in_row = (lanes >= shift) & (lanes < shift + HIDDEN)
        w = tl.load(w_ptr + lanes - shift, mask=in_row, other=0.0, eviction_policy="evict_last").to(tl.float32)
        dots += dy * w * x
    tl.store(part_ptr + tl.program_id(0), tl.sum(dots, axis=0))


@triton.jit(do_not_specialize=["rows", "groups"])
def rmsnorm_wide_grad(
    dy_ptr, x_ptr, w_ptr, rstd_ptr, dots_ptr, dx_ptr, part_ptr, dy_stride, x_stride, dx_stride, rows, groups,
    HIDDEN: tl.constexpr, SPLITS: tl.constexpr, LANES: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr,
    STAGES: tl.constexpr, VEC: tl.constexpr, MODE: tl.constexpr, PART: tl.constexpr,
):  # fmt: skip
    """Pass 2 backward: BLOCK columns of every `groups`-th row; dweight of these columns stays in registers.

    `groups` is a multiple of VEC, so that all rows of a program have one alignment.
    """
    group, block = tl.program_id(0) // BLOCKS, tl.program_id(0) % BLOCKS
    shift = shift_of_row(group, x_stride, VEC, MODE)
    lanes, at = block * BLOCK + tl.arange(0, BLOCK), tl.arange(0, LANES)
    in_row = (lanes >= shift) & (lanes < shift + HIDDEN)
    w = tl.load(w_ptr + lanes - shift, mask=in_row, other=0.0, eviction_policy="evict_last").to(tl.float32)
    sums = tl.zeros([BLOCK], dtype=tl.float32)
    for row in tl.range(group, rows, groups, num_stages=STAGES):
        x_start = start_of_row(row, x_stride, shift, VEC, MODE)
        dy_start = start_of_row(row, dy_stride, shift, VEC, MODE)
        dx_start = start_of_row(row, dx_stride, shift, VEC, MODE)
        x = load_row(x_ptr + x_start, lanes, shift, HIDDEN, VEC, MODE)
        dy = load_row(dy_ptr + dy_start, lanes, shift, HIDDEN, VEC, MODE)
        dots = tl.load(dots_ptr + row * SPLITS + at, mask=at < SPLITS, other=0.0)
        rstd = tl.load(rstd_ptr + row)
        normed = x * rstd
        dx = (dy * w - normed * (tl.sum(dots, axis=0) * rstd / HIDDEN)) * rstd
        store_row(dx_ptr + dx_start, lanes, dx.to(dx_ptr.dtype.element_ty), shift, HIDDEN, VEC, MODE)
        sums += dy * normed
    tl.store(part_ptr + tl.cast(group, tl.int64) * PART + lanes - shift, sums, mask=in_row)

"""One Triton kernel that runs a whole chain of elementwise steps on values held in registers."""

# pyright: reportArgumentType=false, reportGeneralTypeIssues=false, reportCallIssue=false
# (Triton's annotations describe the compiler's values, not what a caller passes)
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def chain_kernel(x_ptr, y_ptr, size, length, BLOCK: tl.constexpr):
    """Halve and add one in turn, `length` steps in all, halving first; one read and one write of each element."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < size
    x = tl.load(x_ptr + at, mask=mask)
    for _ in range(length // 2):
        x = x * 0.5
        x = x + 1.0
    if length % 2 == 1:
        x = x * 0.5
    tl.store(y_ptr + at, x, mask=mask)

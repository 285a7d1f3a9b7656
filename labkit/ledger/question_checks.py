"""Checks of interview claims that take more than one call: each function returns the claim's value as it is stated.

They only combine labkit.calc, C++ programs (labkit.ledger.compiled) and child processes; no formula lives here. A
ledger file names one by `by: program`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence

from labkit.calc import (
    eviction,
    floating_point,
    gemm,
    online_softmax,
    prefix_cache,
    projection,
    sigmoid,
    smt,
    summa,
    summation,
)
from labkit.ledger.compiled import compile_program
from labkit.ledger.schema import CannotRun

TIMEOUT_S = 30


def critical_rows_reach_the_ridge(
    shapes: Sequence[Sequence[int]], peak_flop_per_s: float, bytes_per_s: float
) -> bool:
    """Question 1: whether the intensity at M* rows is the ridge, for each (K, N); one row of bytes either way."""
    ridge = peak_flop_per_s / bytes_per_s
    for k, n in shapes:
        rows = gemm.critical_rows(k=k, n=n, ridge_flop_per_byte=ridge)
        if rows is None:  # such a product never reaches the ridge
            return False
        below, above = (gemm.gemm_intensity_flop_per_byte(m=int(rows) + i, n=n, k=k) for i in (0, 1))
        flop, moved = 2 * rows * k * n, 2 * (rows * k + k * n + rows * n)
        if not (below < ridge < above and abs(flop / moved - ridge) < 1e-9 * ridge):
            return False
    return True


def tiled_softmax_is_exact(num_keys: int, tiles: Sequence[int], tolerance: float) -> bool:
    """Question 2: whether tiles of every size give the two-pass result."""
    errors = (online_softmax.tiling_error(num_keys=num_keys, tile_tokens=tile) for tile in tiles)
    return all(error < tolerance for error in errors)


def split_merge_is_exact(num_keys: int, num_splits: int, tolerance: float) -> bool:
    """Question 2: whether splits merged by log-sum-exp, in both orders, give the whole result."""
    errors = (
        online_softmax.split_merge_error(num_keys=num_keys, num_splits=num_splits, reverse=reverse)
        for reverse in (False, True)
    )
    return all(error < tolerance for error in errors)


def block_key_carries_the_prefix(first: Sequence[int], second: Sequence[int], block_tokens: int) -> bool:
    """Question 3: whether an equal block after another one has another key, and after the same one the same key."""
    other = prefix_cache.shared_blocks(first=first, second=second, block_tokens=block_tokens)
    same = prefix_cache.shared_blocks(first=first, second=first, block_tokens=block_tokens)
    equal_blocks = list(first[block_tokens:]) == list(second[block_tokens:])
    return equal_blocks and other["anywhere"] == 0 and same["anywhere"] == len(first) // block_tokens


def mixed_score_ties(num_bytes: float, p_reuse: float, recompute_s: float, reload_s: Sequence[float]) -> bool:
    """Question 5: whether two blocks that tie under bytes / (probability * time) differ tenfold in value per byte."""
    mixed = [num_bytes / (p_reuse * recompute_s) for _ in reload_s]  # it does not know how else a block comes back
    first, second = (
        eviction.value_per_byte(num_bytes=num_bytes, p_reuse=p_reuse, recompute_s=recompute_s, reload_s=seconds)
        for seconds in reload_s
    )
    return mixed[0] == mixed[1] and abs(first / second - 10) < 1e-9


def received_whatever_the_panel(side: int, panel_widths: Sequence[int]) -> float:
    """Question 12: elements received by a server, in N^2, where every panel width gives the same; else -1."""
    runs = [summa.simulate(side=side, panel_width=width) for width in panel_widths]
    received = {elements for run in runs for elements in run["received_elements"]}
    same = len(received) == 1 and all(run["matches"] for run in runs)
    return received.pop() / side**2 if same else -1.0


def order_changes_bits(num_values: int, num_orders: int) -> list[bool | int]:
    """Question 16: [several results over shuffled serial sums, number of results of one fixed split]."""
    serial = summation.num_patterns("order", num_values=num_values, num_orders=num_orders)
    fixed = summation.num_patterns("splits", num_values=num_values, splits=[num_values] * num_orders)
    return [serial > 1, fixed]


def integers_do_not_care(values: Sequence[int], bits: int) -> list[bool]:
    """Question 16: [final sums equal, old values that the threads were given equal], forward against backward."""
    order = list(range(len(values)))
    one, two = (summation.wrapped_sum(values=values, order=o, bits=bits) for o in (order, order[::-1]))
    return [one["sum"] == two["sum"], one["old"] == two["old"]]


def compensation_is_no_order(num_values: int, num_orders: int, seed: int) -> list[bool]:
    """Question 16: [compensated sums err less, they still have more than one result over orders]."""
    ratio = summation.error_ratio(first="kahan", second="serial", num_values=num_values, seed=seed)
    results = summation.num_patterns(
        "order", num_values=num_values, num_orders=num_orders, method="kahan", seed=seed
    )
    return [ratio < 1, results > 1]


def literal_bits(x: float, y: float) -> list[float | str]:
    """Question 17: [x in FP32, its bits, the bits of x - y]."""
    after = floating_point.subtraction(x=x, y=y)
    return [after["x"], floating_point.float32_bits(value=x), after["bits"]]


def product_bits(factors: Sequence[float], y: float) -> list[float | str]:
    """Question 17: [product of two FP32 numbers, its bits, the bits of product - y]."""
    return literal_bits(floating_point.product(x=factors[0], y=factors[1]), y)


def moves_at_half_ulp(x: float, factors: Sequence[float], deltas: Sequence[float]) -> list[list[bool]]:
    """Question 17: whether each delta moves the literal, then the product."""
    numbers = (x, floating_point.product(x=factors[0], y=factors[1]))
    return [[floating_point.subtraction(x=number, y=d)["moved"] for d in deltas] for number in numbers]


def float32_range(x: float, y: float) -> list[float | bool]:
    """Question 17: [largest number, smallest normal number, both operands inside]."""
    limits = floating_point.float_limits(dtype="float32")
    inside = all(limits["min_normal"] < abs(operand) < limits["max"] for operand in (x, y))
    return [limits["max"], limits["min_normal"], inside]


def slots_follow_two_minus_u(num_cycles: int, utilisations: Sequence[float], tolerance: float) -> bool:
    """Question 21: whether a simulated pair of threads gains 2 - u and never more than min(2, 1/u)."""
    for u in utilisations:
        seen = smt.simulated_speedup(utilisation=u, num_cycles=num_cycles)
        random = smt.speedup_random_stalls(utilisation=u)
        if abs(seen - random) >= tolerance or seen > smt.speedup_bound(utilisation=u) + tolerance:
            return False
    return True


def residual_is_orthogonal(dims: Sequence[int], tolerance: float) -> bool:
    """Question 28: whether the residual of random projections is orthogonal to the line, in every dimension."""
    return all(projection.residual_dot(num_dims=num_dims) < tolerance for num_dims in dims)


def largest_derivative(start: float, stop: float, step: float) -> list[float]:
    """Question 29: [largest derivative of the sigmoid on a grid, where]."""
    grid = [start + i * step for i in range(round((stop - start) / step) + 1)]
    grid = [round(x, 9) for x in grid]
    found = max(grid, key=lambda x: sigmoid.sigmoid_derivative(x=x))
    return [sigmoid.sigmoid_derivative(x=found), found]


def cpp(name: str, refused_standard: str = "") -> dict[str, bool | int]:
    """Questions 22 to 26: what the compiler makes of data/claims/programs/<name>.cpp."""
    return compile_program(name, refused_standard=refused_standard)


def by_value_constructor() -> str:
    """Question 24: what the compiler makes of a constructor that takes its own type by value."""
    found = compile_program("q24_by_value_signature")
    return "rejected at compile time" if found == {"compiles": True, "refused": 1} else "accepted"


_SHARED = """
import ctypes, json, mmap, os
handle = os.memfd_create("view")
os.ftruncate(handle, 4096)
first, second = mmap.mmap(handle, 4096), mmap.mmap(handle, 4096)
apart = len({ctypes.addressof(ctypes.c_char.from_buffer(view)) for view in (first, second)}) == 2
child = os.fork()
if not child:
    mmap.mmap(handle, 4096)[:5] = b"child"
    os._exit(0)
os.waitpid(child, 0)
print(json.dumps([apart, first[:5] == b"child" and second[:5] == b"child"]))
"""
_PRIVATE = """
import ctypes, json, os
cell = ctypes.create_string_buffer(b"parent", 16)
read_end, write_end = os.pipe()
child = os.fork()
if not child:
    cell.value = b"child"
    os.write(write_end, json.dumps([ctypes.addressof(cell), cell.value.decode()]).encode())
    os._exit(0)
os.waitpid(child, 0)
address, text = json.loads(os.read(read_end, 200))
print(json.dumps([address == ctypes.addressof(cell), cell.value.decode(), text]))
"""


def one_memory_two_addresses() -> list[bool]:
    """Question 19: [two mappings of one memory file have two addresses, a forked child's write shows in both]."""
    return _fresh_interpreter(_SHARED)


def one_address_two_pages() -> list[bool | str]:
    """Question 19: [parent and child have the cell at one address, what the parent reads, what the child reads]."""
    return _fresh_interpreter(_PRIVATE)


def _fresh_interpreter(script: str) -> list:
    """Run a script that forks in an interpreter of its own: this one may hold threads and locks."""
    if not (hasattr(os, "fork") and hasattr(os, "memfd_create")):
        raise CannotRun("needs Linux (fork and memfd_create)")
    command = [sys.executable, "-I", "-S", "-c", script]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise CannotRun(f"child process: {error}") from None
    return json.loads(done.stdout)

"""RMSNorm forward, one row a program: bytes, predicted time, block size and masked lanes.

In: rows, hidden size, bytes per element. Out: bytes, seconds, bytes/s, elements.

    python -m labkit calc rmsnorm min_bytes rows=8192 hidden=8192
"""

from __future__ import annotations

from labkit.calc._require import require_int, require_number


def min_bytes(
    *, rows: int, hidden: int, bytes_in: float = 2, bytes_out: float | None = None, bytes_weight: float | None = None
) -> float:
    """Least traffic: read the input, write the output, read the weight once.

    Args:
        rows: rows of the input, >= 1.
        hidden: length of a row, >= 1.
        bytes_in: bytes per input element, > 0.
        bytes_out: bytes per output element; None: as the input.
        bytes_weight: bytes per weight element; None: as the input.

    Returns: bytes.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: each row stays on chip between the two passes over it; the weight stays in cache for all rows.
    Source: (2 rows hidden + hidden) elements, report section 7.3.

    >>> min_bytes(rows=8192, hidden=8192)
    268451840
    """
    require_int("rows", rows, least=1)
    require_int("hidden", hidden, least=1)
    out = bytes_in if bytes_out is None else bytes_out
    weight = bytes_in if bytes_weight is None else bytes_weight
    for name, value in (("bytes_in", bytes_in), ("bytes_out", out), ("bytes_weight", weight)):
        require_number(name, value, above=0)
    return rows * hidden * (bytes_in + out) + hidden * weight


def min_bytes_bytes_per_s(*, rows: int, hidden: int, time_s: float, bytes_per_element: float = 2) -> float:
    """Minimum-byte bandwidth: the least traffic over the measured time.

    Args:
        rows: rows of the input, >= 1.
        hidden: length of a row, >= 1.
        time_s: one call, > 0.
        bytes_per_element: bytes per element of input, output and weight, > 0.

    Returns: bytes per second: a model quantity, not a reading of the memory's counters.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: as `min_bytes`. Small shapes measure the launch, not the memory.
    Source: report section 7.3.

    >>> round(min_bytes_bytes_per_s(rows=8192, hidden=8192, time_s=333.3e-6) / 1e9, 1)
    805.4
    """
    return min_bytes(rows=rows, hidden=hidden, bytes_in=bytes_per_element) / require_number("time_s", time_s, above=0)


def predicted_time_s(*, num_bytes: float, bytes_per_s: float, launch_floor_s: float = 0.0) -> float:
    """Predicted time of a memory-bound kernel: a launch floor, then bytes at the measured copy bandwidth.

    Args:
        num_bytes: least traffic, >= 0.
        bytes_per_s: ceiling, best measured with a copy of the same size, bytes/s, > 0.
        launch_floor_s: time of the smallest call, seconds, >= 0.

    Returns: seconds.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: floor and transfer do not overlap (calls made back to back do overlap: then the larger one is the time).
    Source: two-parameter model t = t0 + bytes / B.

    >>> round(predicted_time_s(num_bytes=4e9, bytes_per_s=4e12, launch_floor_s=5e-6), 6)
    0.001005
    """
    require_number("num_bytes", num_bytes, least=0)
    require_number("launch_floor_s", launch_floor_s, least=0)
    return launch_floor_s + num_bytes / require_number("bytes_per_s", bytes_per_s, above=0)


def bytes_for_bandwidth(*, bytes_per_s: float, launch_floor_s: float, share: float) -> float:
    """Bytes a call must move before it reaches a share of the bandwidth in spite of the launch floor.

    Args:
        bytes_per_s: ceiling, bytes/s, > 0.
        launch_floor_s: time of the smallest call, seconds, >= 0.
        share: wanted fraction of the ceiling, 0 < share < 1.

    Returns: bytes.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: as `predicted_time_s`.
    Source: t0 + b / B = b / (share B), solved for b.

    >>> round(bytes_for_bandwidth(bytes_per_s=4e12, launch_floor_s=5e-6, share=0.5))
    20000000
    """
    require_number("bytes_per_s", bytes_per_s, above=0)
    require_number("launch_floor_s", launch_floor_s, least=0)
    if not 0 < require_number("share", share, above=0) < 1:
        raise ValueError(f"share={share!r}: expected a fraction between 0 and 1, both excluded")
    return launch_floor_s * bytes_per_s * share / (1 - share)


def block_size(*, hidden: int) -> int:
    """Lanes of a one-row program: Triton arrays have a power-of-two length.

    Args:
        hidden: length of a row, >= 1.

    Returns: the smallest power of two that is at least `hidden`.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: the whole row in one block.
    Source: `triton.next_power_of_2`; report section 7.2.

    >>> [block_size(hidden=h) for h in (768, 4096, 8192)]
    [1024, 4096, 8192]
    """
    return 1 << (require_int("hidden", hidden, least=1) - 1).bit_length()


def masked_share(*, hidden: int) -> float:
    """Share of a one-row program's lanes that are masked off.

    Args:
        hidden: length of a row, >= 1.

    Returns: a fraction in [0, 0.5).
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: as `block_size`. Masked lanes cost registers and issue slots, not memory traffic.
    Source: 1 - hidden / block.

    >>> masked_share(hidden=768), masked_share(hidden=4096)
    (0.25, 0.0)
    """
    return 1 - hidden / block_size(hidden=hidden)


def elements_per_thread(*, hidden: int, num_warps: int) -> float:
    """Row elements that one thread keeps in registers.

    Args:
        hidden: length of a row, >= 1.
        num_warps: warps of the program, >= 1.

    Returns: elements, masked lanes included; under 1 some threads hold copies.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: warps of 32 threads, the whole row in one block.
    Source: block / (32 warps); equal values give near-equal register counts, report section 14.2.

    >>> [elements_per_thread(hidden=8192, num_warps=w) for w in (1, 2, 4, 8)]
    [256.0, 128.0, 64.0, 32.0]
    """
    return block_size(hidden=hidden) / (32 * require_int("num_warps", num_warps, least=1))


def backward_min_bytes(*, rows: int, hidden: int, bytes_per_element: float = 2) -> float:
    """Least traffic of the backward pass: read x, dy, the row statistics and the weight, write dx and dweight.

    Args:
        rows: rows of the input, >= 1.
        hidden: length of a row, >= 1.
        bytes_per_element: bytes per element of x, dy, dx, weight and dweight, > 0; the statistics are FP32.

    Returns: bytes.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: each row of x and dy stays on chip until its dx is written. Partial sums of dweight are not in it: they
        belong to an algorithm, see `partial_sum_bytes`.
    Source: (3 rows hidden + 2 hidden) elements + 4 rows.

    >>> backward_min_bytes(rows=8192, hidden=8192)
    402718720
    """
    require_int("rows", rows, least=1)
    require_int("hidden", hidden, least=1)
    return (3 * rows * hidden + 2 * hidden) * require_number("bytes_per_element", bytes_per_element, above=0) + 4 * rows


def partial_sum_bytes(*, programs: int, hidden: int) -> int:
    """Traffic of dweight's partial sums: each program writes one FP32 row, a second kernel reads them all.

    Args:
        programs: programs that each keep a sum, >= 1.
        hidden: length of a row, >= 1.

    Returns: bytes, at the level of the L2 cache; how many of them reach memory depends on its size.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: rows of partial sums are not padded.
    Source: 2 x 4 bytes x programs x hidden.

    >>> round(partial_sum_bytes(programs=528, hidden=8192) / backward_min_bytes(rows=65536, hidden=8192), 4)
    0.0107
    """
    return 8 * require_int("programs", programs, least=1) * require_int("hidden", hidden, least=1)


def two_pass_bytes(*, rows: int, hidden: int, direction: str, bytes_per_element: float = 2) -> float:
    """Traffic of a row shared by several programs in two passes: x (backward: x and dy) is read once more.

    Args:
        rows: rows of the input, >= 1.
        hidden: length of a row, >= 1.
        direction: "forward" or "backward".
        bytes_per_element: bytes per element, > 0.

    Returns: bytes: about 3/2 of `min_bytes` forward, 5/3 of `backward_min_bytes` backward.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: nothing of the first pass is still in cache when the second one asks for it; the numbers that the passes
        exchange are few.
    Source: forward 3 rows hidden, backward 5 rows hidden elements, and the weight's and statistics' as in one pass.

    >>> round(two_pass_bytes(rows=1024, hidden=131072, direction="forward") / min_bytes(rows=1024, hidden=131072), 3)
    1.5
    """
    require_number("bytes_per_element", bytes_per_element, above=0)
    again = require_int("rows", rows, least=1) * require_int("hidden", hidden, least=1) * bytes_per_element
    if direction == "forward":
        return min_bytes(rows=rows, hidden=hidden, bytes_in=bytes_per_element) + again
    if direction == "backward":
        return backward_min_bytes(rows=rows, hidden=hidden, bytes_per_element=bytes_per_element) + 2 * again
    raise ValueError(f"direction={direction!r}: expected forward or backward")

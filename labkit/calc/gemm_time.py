"""Time of dense and grouped matrix products: a floor plus the slower of transfer and arithmetic; knee; steps of tiles.

In: rows, sizes, rates. Out: bytes, FLOP, seconds, rows.

    python -m labkit calc gemm_time predicted_time_s m=64 k=7168 n=4096 flop_per_s=8e14 bytes_per_s=4.3e12
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from labkit.calc._require import require_int, require_number, require_numbers
from labkit.calc.gemm import gemm_bytes, gemm_flop, tile_quantisation


def predicted_time_s(
    *, m: int, n: int, k: int, flop_per_s: float, bytes_per_s: float, launch_floor_s: float = 0.0,
    bytes_a: float = 2, bytes_b: float = 2, bytes_c: float = 2,
) -> float:  # fmt: skip
    """Time of one product: the launch floor, then the slower of its transfers and its arithmetic.

    Args:
        m: rows of A and C, >= 1.
        n: columns of B and C, >= 1.
        k: columns of A, rows of B, >= 1.
        flop_per_s: sustained arithmetic of this dtype, FLOP/s, > 0.
        bytes_per_s: sustained bandwidth, bytes/s, > 0.
        launch_floor_s: time of an empty call, seconds, >= 0.
        bytes_a: bytes per element of A, > 0.
        bytes_b: bytes per element of B, > 0.
        bytes_c: bytes per element of C, > 0.

    Returns: seconds.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: as `labkit.calc.gemm.gemm_bytes`; perfect overlap of transfers and arithmetic; no tiles, no waves.
    Source: roofline with a latency term; interview questions 1 and 14.

    >>> round(1e6 * predicted_time_s(m=1, n=4096, k=7168, flop_per_s=8e14, bytes_per_s=4.3e12, launch_floor_s=2e-6), 2)
    15.66
    """
    moved = gemm_bytes(m=m, n=n, k=k, bytes_a=bytes_a, bytes_b=bytes_b, bytes_c=bytes_c)
    arithmetic = gemm_flop(m=m, n=n, k=k) / require_number("flop_per_s", flop_per_s, above=0)
    transfer = moved / require_number("bytes_per_s", bytes_per_s, above=0)
    return require_number("launch_floor_s", launch_floor_s, least=0) + max(arithmetic, transfer)


def grouped_work(
    *, rows: Sequence[int], n: int, k: int, bytes_a: float = 2, bytes_b: float = 2, bytes_c: float = 2
) -> dict[str, Any]:
    """Operations and least traffic of a grouped product: one weight of N x K for each group, rows of its own.

    Args:
        rows: rows of each group; 0: an expert that no token chose, its weight is not read.
        n: columns of each weight, >= 1.
        k: rows of each weight, >= 1.
        bytes_a: bytes per element of the rows, > 0.
        bytes_b: bytes per element of the weights, > 0.
        bytes_c: bytes per element of the result, > 0.

    Returns: {"flop": FLOP, "bytes": bytes, "groups": groups with rows}.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: as `labkit.calc.gemm.gemm_bytes` for each group; offsets and scales not counted.
    Source: sum over the groups; interview question 1.

    >>> grouped_work(rows=[2, 0, 3], n=4, k=8)
    {'flop': 320, 'bytes': 248, 'groups': 2}
    """
    counts = [require_int(f"rows[{i}]", count) for i, count in enumerate(require_numbers("rows", rows, least=0))]
    used = [count for count in counts if count]
    widths: dict[str, Any] = {"bytes_a": bytes_a, "bytes_b": bytes_b, "bytes_c": bytes_c}
    return {
        "flop": sum(gemm_flop(m=count, n=n, k=k) for count in used),
        "bytes": sum(gemm_bytes(m=count, n=n, k=k, **widths) for count in used), "groups": len(used),
    }  # fmt: skip


def skewed_rows(*, total: int, groups: int, hot_share: float) -> list[int]:
    """Rows of each group when the first one takes a share and the others divide the rest evenly.

    Args:
        total: rows of all groups, >= 0.
        groups: >= 1.
        hot_share: share of the first group, 0 to 1.

    Returns: rows of each group, summing to `total`; the first is rounded down; the others differ by one at most.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: nothing about why one expert is hot.
    Source: by definition.

    >>> skewed_rows(total=64, groups=8, hot_share=0.5)
    [32, 4, 4, 4, 5, 5, 5, 5]
    """
    require_int("total", total)
    require_int("groups", groups, least=1)
    if not 0 <= require_number("hot_share", hot_share, least=0) <= 1:
        raise ValueError(f"hot_share={hot_share!r}: expected a share between 0 and 1")
    first = total if groups == 1 else int(total * hot_share)
    rest, others = total - first, groups - 1
    bounds = [rest * i // others for i in range(others + 1)] if others else []
    return [first, *sorted(b - a for a, b in pairwise(bounds))]


def fit_line(*, x: Sequence[float], y: Sequence[float]) -> dict[str, float]:
    """Least-squares line y = intercept + slope x.

    Args:
        x: positions, at least two different ones.
        y: values, as many.

    Returns: {"intercept": in the unit of y, "slope": unit of y per unit of x}.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: errors of y alike everywhere.
    Source: normal equations.

    >>> fit_line(x=[1, 2, 3], y=[5, 7, 9])
    {'intercept': 3.0, 'slope': 2.0}
    """
    require_numbers("x", x, least_count=2)
    require_numbers("y", y, least_count=2)
    if len(x) != len(y) or len(set(x)) < 2:
        raise ValueError(f"x={list(x)!r}, y={list(y)!r}: expected as many values, and two different positions")
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    slope = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y)) / sum((a - mean_x) ** 2 for a in x)
    return {"intercept": mean_y - slope * mean_x, "slope": slope}


def knee_rows(
    *, flat_intercept_s: float, flat_slope_s: float, steep_intercept_s: float, steep_slope_s: float
) -> float | None:
    """Rows at which two fitted lines of time against rows meet: the measured counterpart of M*.

    Args:
        flat_intercept_s: memory-bound line at zero rows, seconds.
        flat_slope_s: its slope, seconds per row.
        steep_intercept_s: compute-bound line at zero rows, seconds.
        steep_slope_s: its slope, seconds per row.

    Returns: rows; None if the second line is not steeper, or they meet at no positive number of rows.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: two regimes and nothing between them; a launch floor in both lines cancels.
    Source: a + b M = c + d M; interview question 1.

    >>> knee_rows(flat_intercept_s=10.0, flat_slope_s=0.0, steep_intercept_s=2.0, steep_slope_s=0.5)
    16.0
    """
    for name, value in (("flat_intercept_s", flat_intercept_s), ("flat_slope_s", flat_slope_s),
                        ("steep_intercept_s", steep_intercept_s), ("steep_slope_s", steep_slope_s)):  # fmt: skip
        require_number(name, value)
    if steep_slope_s <= flat_slope_s or flat_intercept_s <= steep_intercept_s:
        return None
    return (flat_intercept_s - steep_intercept_s) / (steep_slope_s - flat_slope_s)


def tile_waves(
    *, m: int, n: int, tile_m: int, tile_n: int, num_sms: int, tiles_per_sm: int = 1, splits: int = 1
) -> dict[str, Any]:
    """Tiles of C, waves of them over the SMs, and the work of the busiest SM.

    Args:
        m: rows of C, >= 1.
        n: columns of C, >= 1.
        tile_m: rows of a tile, >= 1.
        tile_n: columns of a tile, >= 1.
        num_sms: streaming multiprocessors, >= 1.
        tiles_per_sm: tiles resident on one of them, >= 1.
        splits: parts that K is cut into, >= 1.

    Returns: {"tiles": count, "waves": count, "elements": elements of C, padding included, that the busiest SM makes}.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: equal tiles, dealt out evenly; a tile that is partly empty costs as much as a full one.
    Source: tile and wave quantisation, NVIDIA Matrix Multiplication Background guide.

    >>> tile_waves(m=1024, n=4096, tile_m=128, tile_n=256, num_sms=132)
    {'tiles': 128, 'waves': 1, 'elements': 32768}
    >>> tile_waves(m=1025, n=4096, tile_m=128, tile_n=256, num_sms=132)["waves"]
    2
    """
    tiles = tile_quantisation(m=m, n=n, tile_m=tile_m, tile_n=tile_n)["num_tiles"] * require_int(
        "splits", splits, least=1)
    slots = require_int("num_sms", num_sms, least=1) * require_int("tiles_per_sm", tiles_per_sm, least=1)
    waves = -(-tiles // slots)
    return {"tiles": tiles, "waves": waves, "elements": waves * tiles_per_sm * tile_m * tile_n // splits}


def wave_steps(*, n: int, tile_m: int, tile_n: int, num_sms: int, largest_m: int) -> list[int]:
    """Rows M after which one more row starts another wave.

    Args:
        n: columns of C, >= 1.
        tile_m: rows of a tile, >= 1.
        tile_n: columns of a tile, >= 1.
        num_sms: streaming multiprocessors, >= 1.
        largest_m: rows to look at, >= 1.

    Returns: multiples of `tile_m` below `largest_m`, ascending.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: as `tile_waves`, one tile an SM.
    Source: as `tile_waves`.

    >>> wave_steps(n=7168, tile_m=128, tile_n=256, num_sms=132, largest_m=1536)
    [512, 1152]
    """
    require_int("largest_m", largest_m, least=1)
    waves = [tile_waves(m=m, n=n, tile_m=tile_m, tile_n=tile_n, num_sms=num_sms)["waves"]
             for m in range(tile_m, largest_m + tile_m, tile_m)]
    return [tile_m * (i + 1) for i, (a, b) in enumerate(pairwise(waves)) if b > a]

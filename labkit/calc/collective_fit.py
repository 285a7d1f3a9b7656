"""Latency and bandwidth from a sweep over sizes, tested on sizes that were not fitted; and where two fits cross.

In: sizes, times. Out: alpha, bandwidth, residuals, crossovers, model curves of algorithms and protocols.

    python -m labkit calc collective_fit fit_relative sizes_bytes='[1024,1048576]' times_s='[1e-5,2e-5]'
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from labkit.calc._require import require_choice, require_int, require_number
from labkit.calc.collective_choice import protocol_efficiency
from labkit.calc.collectives import COLLECTIVES, all_reduce_time_s

UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


def size_grid(*, min_bytes: int, max_bytes: int, factor: int = 4) -> list[int]:
    """Sizes of a sweep: the smallest, each times a factor, up to the largest.

    Args:
        min_bytes: first size, >= 1.
        max_bytes: last size that may appear, at least min_bytes.
        factor: >= 2.

    Returns: sizes in bytes, ascending.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: nothing.
    Source: nccl-tests, options -b, -e and -f.

    >>> size_grid(min_bytes=1024, max_bytes=2**18)
    [1024, 4096, 16384, 65536, 262144]
    """
    size = require_int("min_bytes", min_bytes, least=1)
    require_int("factor", factor, least=2)
    require_int("max_bytes", max_bytes, least=size)
    sizes = []
    while size <= max_bytes:
        sizes.append(size)
        size *= factor
    return sizes


def size_label(size_bytes: int) -> str:
    """A size as tables and records name it.

    Args:
        size_bytes: >= 0.

    Returns: a number and B, KiB, MiB or GiB; bytes where the number would need more than two decimals.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: nothing.
    Source: binary units, as in the options of nccl-tests.

    >>> size_label(65536), size_label(2**20), size_label(1000)
    ('64 KiB', '1 MiB', '1000 B')
    """
    require_int("size_bytes", size_bytes)
    for unit, factor in reversed(UNITS.items()):
        if factor > 1 and size_bytes >= factor and size_bytes % (factor // 4) == 0:
            return f"{size_bytes / factor:g} {unit}"
    return f"{size_bytes} B"


def label_bytes(label: str) -> int:
    """Bytes of a label of `size_label`.

    Args:
        label: e.g. "64 KiB".

    Returns: bytes.
    Raises: ValueError for another text.
    Assumes: nothing.
    Source: binary units.

    >>> label_bytes("64 KiB"), label_bytes("1000 B")
    (65536, 1000)
    """
    number, _, unit = label.partition(" ")
    if unit not in UNITS:
        raise ValueError(f"label={label!r}: expected a number and one of {', '.join(UNITS)}")
    return round(float(number) * UNITS[unit])


def total_wire_bytes(collective: str, *, size_bytes: float, world_size: int) -> float:
    """Fewest bytes that all ranks together must send, whatever the algorithm, if ranks do the adding.

    Args:
        collective: all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, reduce or send_recv (every rank sends
            S to its neighbour).
        size_bytes: S as nccl-tests counts it, >= 0.
        world_size: n >= 2.

    Returns: bytes: 2(n-1)S for all_reduce; (n-1)S for the others; n S for send_recv.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: no sum inside a switch; protocol flags and headers not counted.
    Source: each rank's contribution must reach the others; nccl-tests doc/PERFORMANCE.md, "Bus bandwidth".

    >>> total_wire_bytes("all_reduce", size_bytes=100, world_size=4)
    600.0
    """
    require_choice("collective", collective, COLLECTIVES)
    require_number("size_bytes", size_bytes, least=0)
    n = require_int("world_size", world_size, least=2)
    copies = {"all_reduce": 2 * (n - 1), "send_recv": n}.get(collective, n - 1)
    return float(copies * size_bytes)


def fit_relative(*, sizes_bytes: Sequence[float], times_s: Sequence[float]) -> dict[str, float]:
    """Latency and bandwidth by least squares on the relative error of t = alpha + S / B.

    Every size counts alike, whether its time is microseconds or milliseconds; plain least squares would see the
    largest message alone. A latency below zero, which no message has, is set to zero.

    Args:
        sizes_bytes: at least two different sizes, >= 0.
        times_s: one time for each size, seconds, > 0.

    Returns: {"alpha_s", "bytes_per_s"}; bytes_per_s is S over time, algorithm bandwidth for large S.
    Raises: ValueError naming the argument, the value got, what was expected; also when time does not grow with size.
    Assumes: one regime: one algorithm and protocol, latency that does not depend on size.
    Source: weighted least squares with weights 1 / t^2; Hockney's model.

    >>> fit = fit_relative(sizes_bytes=[0, 100, 200], times_s=[1.0, 2.0, 3.0])
    >>> round(fit["alpha_s"], 9), round(fit["bytes_per_s"], 9)
    (1.0, 100.0)
    """
    if len(sizes_bytes) != len(times_s):
        raise ValueError(f"times_s: {len(times_s)} values: expected {len(sizes_bytes)}, one for each of sizes_bytes")
    for size, time in zip(sizes_bytes, times_s):
        require_number("sizes_bytes", size, least=0)
        require_number("times_s", time, above=0)
    if len(set(sizes_bytes)) < 2:
        raise ValueError(f"sizes_bytes={list(sizes_bytes)!r}: expected at least two different sizes")
    x = [1 / time for time in times_s]
    y = [size / time for size, time in zip(sizes_bytes, times_s)]
    xx, yy = math.fsum(v * v for v in x), math.fsum(v * v for v in y)
    xy = math.fsum(a * b for a, b in zip(x, y))
    alpha = (math.fsum(x) * yy - math.fsum(y) * xy) / (xx * yy - xy * xy)
    slope = (math.fsum(y) * xx - math.fsum(x) * xy) / (xx * yy - xy * xy)
    if alpha < 0:
        alpha, slope = 0.0, math.fsum(y) / yy
    if slope <= 0:
        raise ValueError(f"times_s: slope {slope!r}: expected times that grow with size; use larger sizes")
    return {"alpha_s": alpha, "bytes_per_s": 1 / slope}


def hold_out(*, sizes_bytes: Sequence[float], times_s: Sequence[float]) -> dict[str, Any]:
    """Fit every second size, smallest and largest among them where the count allows, and predict the others.

    Args:
        sizes_bytes: at least four different sizes.
        times_s: one time for each size, seconds, > 0.

    Returns: {"alpha_s", "bytes_per_s", "fitted_bytes", "residual_pct": {size: 100 (seen - predicted) / predicted} of
        every size, "held_out_bytes", "worst_held_out_pct": largest absolute residual of a size that was not fitted,
        "median_held_out_pct"}.
    Raises: ValueError as `fit_relative`, and for fewer than four sizes.
    Assumes: as `fit_relative`.
    Source: `fit_relative` on the sizes at even places.

    >>> found = hold_out(sizes_bytes=[0, 1, 2, 3, 4], times_s=[1.0, 2.0, 3.0, 4.0, 5.0])
    >>> found["fitted_bytes"], found["held_out_bytes"], round(found["worst_held_out_pct"], 6)
    ([0, 2, 4], [1, 3], 0.0)
    """
    pairs = sorted(zip(sizes_bytes, times_s, strict=True))
    if len({size for size, _ in pairs}) < 4:
        raise ValueError(f"sizes_bytes={list(sizes_bytes)!r}: expected at least four different sizes")
    fitted, held = pairs[::2], pairs[1::2]
    fit = fit_relative(sizes_bytes=[size for size, _ in fitted], times_s=[time for _, time in fitted])
    residual = {
        size: 100 * (time / (fit["alpha_s"] + size / fit["bytes_per_s"]) - 1) for size, time in pairs}
    apart = sorted(abs(residual[size]) for size, _ in held)
    return {**fit, "fitted_bytes": [size for size, _ in fitted], "held_out_bytes": [size for size, _ in held],
            "residual_pct": residual, "worst_held_out_pct": apart[-1], "median_held_out_pct": apart[len(apart) // 2]}


def crossover_bytes(*, first: Mapping[str, float], second: Mapping[str, float]) -> float | None:
    """Size where two fitted lines cross.

    Args:
        first: {"alpha_s", "bytes_per_s"}.
        second: likewise.

    Returns: bytes above 0, or None: one is faster at every size.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: as `fit_relative`, outside of the sizes that were fitted too.
    Source: alpha_1 + S / B_1 = alpha_2 + S / B_2.

    >>> early, late = {"alpha_s": 1e-6, "bytes_per_s": 1e9}, {"alpha_s": 3e-6, "bytes_per_s": 2e9}
    >>> round(crossover_bytes(first=early, second=late))
    4000
    """
    for name, fit in (("first", first), ("second", second)):
        require_number(f"{name}['alpha_s']", fit["alpha_s"], least=0)
        require_number(f"{name}['bytes_per_s']", fit["bytes_per_s"], above=0)
    slopes = 1 / first["bytes_per_s"] - 1 / second["bytes_per_s"]
    if slopes == 0:
        return None
    size = (second["alpha_s"] - first["alpha_s"]) / slopes
    return size if size > 0 else None


def model_time_s(
    algorithm: str, protocol: str, *, size_bytes: float, world_size: int, alpha_s: float, bytes_per_s: float,
    latency_ratio: float = 1.0
) -> float:
    """All-reduce time of one algorithm with one protocol in the textbook model.

    Args:
        algorithm: "Ring" or "Tree".
        protocol: "LL", "LL128" or "Simple".
        size_bytes: S, >= 0.
        world_size: n >= 2.
        alpha_s: latency of one step with LL, seconds, >= 0.
        bytes_per_s: of a rank's link in one direction, > 0.
        latency_ratio: latency of a step with this protocol over that with LL, > 0.

    Returns: seconds.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: steps and bytes as `collectives.all_reduce_time_s`, but two ranks are a tree without a branch, so they send
        what a ring sends; a protocol only changes the latency of a step and the share of the bytes that are data.
    Source: `all_reduce_time_s` at the rate that `protocol_efficiency` leaves.

    >>> round(model_time_s("Ring", "LL", size_bytes=1e9, world_size=2, alpha_s=0, bytes_per_s=1e9), 6)
    2.0
    """
    require_choice("algorithm", algorithm, ("Ring", "Tree"))
    rate = require_number("bytes_per_s", bytes_per_s, above=0) * protocol_efficiency(protocol)
    return all_reduce_time_s(
        size_bytes=size_bytes, world_size=require_int("world_size", world_size, least=2), bytes_per_s=rate,
        alpha_s=require_number("alpha_s", alpha_s, least=0) * require_number("latency_ratio", latency_ratio, above=0),
        algorithm="ring" if world_size == 2 else algorithm.lower())

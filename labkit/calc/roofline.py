"""Roofline: the ridge, the attainable rate and the least time of a kernel on a device.

In: peak FLOP/s and bytes/s (of one dtype, dense, at one memory level), FLOP and bytes of a kernel.
Out: FLOP per byte, FLOP/s, seconds.

    python -m labkit calc roofline ridge_flop_per_byte peak_flop_per_s=9.895e14 bytes_per_s=3.35e12
"""

from __future__ import annotations

from labkit.calc._require import require_number


def ridge_flop_per_byte(*, peak_flop_per_s: float, bytes_per_s: float) -> float:
    """Arithmetic intensity at which a device stops being limited by memory.

    Args:
        peak_flop_per_s: peak rate of one dtype, dense unless the kernel is sparse, FLOP/s, > 0.
        bytes_per_s: peak bandwidth of the memory level that the intensity is counted at, bytes/s, > 0.

    Returns: FLOP per byte.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: compute and transfers overlap perfectly.
    Source: Williams, Waterman and Patterson, "Roofline", CACM 52(4), 2009.

    >>> round(ridge_flop_per_byte(peak_flop_per_s=989.5e12, bytes_per_s=3.35e12), 4)
    295.3731
    """
    require_number("peak_flop_per_s", peak_flop_per_s, above=0)
    require_number("bytes_per_s", bytes_per_s, above=0)
    return peak_flop_per_s / bytes_per_s


def intensity_flop_per_byte(*, num_flop: float, num_bytes: float) -> float:
    """Arithmetic intensity of a kernel.

    Args:
        num_flop: floating-point operations, a multiply-add counts 2, >= 0.
        num_bytes: bytes moved at the memory level that is looked at, > 0.

    Returns: FLOP per byte.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: bytes are counted at the same level as the bandwidth they will be compared with.
    Source: as `ridge_flop_per_byte`.

    >>> intensity_flop_per_byte(num_flop=12, num_bytes=8)
    1.5
    """
    require_number("num_flop", num_flop, least=0)
    require_number("num_bytes", num_bytes, above=0)
    return num_flop / num_bytes


def attainable_flop_per_s(*, intensity_flop_per_byte: float, peak_flop_per_s: float, bytes_per_s: float) -> float:
    """Upper bound of the rate of a kernel with this intensity.

    Args:
        intensity_flop_per_byte: FLOP per byte of the kernel, >= 0.
        peak_flop_per_s: peak rate, FLOP/s, > 0.
        bytes_per_s: peak bandwidth, bytes/s, > 0.

    Returns: FLOP/s, the smaller of the two roofs.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: compute and transfers overlap perfectly; no launch time.
    Source: as `ridge_flop_per_byte`.

    >>> attainable_flop_per_s(intensity_flop_per_byte=2, peak_flop_per_s=100.0, bytes_per_s=10.0)
    20.0
    """
    require_number("intensity_flop_per_byte", intensity_flop_per_byte, least=0)
    ridge_flop_per_byte(peak_flop_per_s=peak_flop_per_s, bytes_per_s=bytes_per_s)
    return min(peak_flop_per_s, intensity_flop_per_byte * bytes_per_s)


def time_floor_s(*, num_flop: float, num_bytes: float, peak_flop_per_s: float, bytes_per_s: float) -> float:
    """Least time of a kernel: neither its arithmetic nor its transfers can be faster.

    Args:
        num_flop: floating-point operations, >= 0.
        num_bytes: bytes that must be moved at least once, >= 0.
        peak_flop_per_s: peak rate, FLOP/s, > 0.
        bytes_per_s: peak bandwidth, bytes/s, > 0.

    Returns: seconds.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: perfect overlap; launch latency, tails and refetched bytes come on top.
    Source: as `ridge_flop_per_byte`.

    >>> time_floor_s(num_flop=100, num_bytes=30, peak_flop_per_s=100.0, bytes_per_s=10.0)
    3.0
    """
    require_number("num_flop", num_flop, least=0)
    require_number("num_bytes", num_bytes, least=0)
    ridge_flop_per_byte(peak_flop_per_s=peak_flop_per_s, bytes_per_s=bytes_per_s)
    return max(num_flop / peak_flop_per_s, num_bytes / bytes_per_s)


def limiting_roof(*, num_flop: float, num_bytes: float, peak_flop_per_s: float, bytes_per_s: float) -> str:
    """Which roof a kernel meets first.

    Args:
        num_flop: floating-point operations, >= 0.
        num_bytes: bytes that must be moved at least once, >= 0.
        peak_flop_per_s: peak rate, FLOP/s, > 0.
        bytes_per_s: peak bandwidth, bytes/s, > 0.

    Returns: "memory" or "compute" ("compute" exactly at the ridge).
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: as `time_floor_s`.
    Source: as `ridge_flop_per_byte`.

    >>> limiting_roof(num_flop=200, num_bytes=1, peak_flop_per_s=989.5e12, bytes_per_s=3.35e12)
    'memory'
    >>> limiting_roof(num_flop=200, num_bytes=1, peak_flop_per_s=312e12, bytes_per_s=2.039e12)
    'compute'
    """
    time_floor_s(num_flop=num_flop, num_bytes=num_bytes, peak_flop_per_s=peak_flop_per_s, bytes_per_s=bytes_per_s)
    return "memory" if num_bytes / bytes_per_s > num_flop / peak_flop_per_s else "compute"


def dense_flop_per_s(*, sparse_flop_per_s: float, sparsity_factor: float = 2.0) -> float:
    """Dense peak from a data sheet that prints the rate with structured sparsity.

    Args:
        sparse_flop_per_s: as printed, > 0.
        sparsity_factor: speed-up that the printed rate contains, >= 1; 2 for NVIDIA's 2:4 sparsity.

    Returns: FLOP/s.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: the footnote says "with sparsity"; check it, not all columns have it.
    Source: NVIDIA H100 data sheet, footnote; interview question 1.

    >>> dense_flop_per_s(sparse_flop_per_s=1979e12)
    989500000000000.0
    """
    factor = require_number("sparsity_factor", sparsity_factor, least=1)
    return require_number("sparse_flop_per_s", sparse_flop_per_s, above=0) / factor

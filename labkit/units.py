"""Units: SI inside, converted at the edge. GB is 1e9 bytes, GiB is 2**30 bytes, and the two never share a table."""

from __future__ import annotations

KB, MB, GB, TB = 1e3, 1e6, 1e9, 1e12
KIB, MIB, GIB = 2**10, 2**20, 2**30

_DECIMAL = ((TB, "TB"), (GB, "GB"), (MB, "MB"), (KB, "kB"))
_BINARY = ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB"))


def format_bytes(size_bytes: float, *, binary: bool = True) -> str:
    """Render a byte count for people, in binary (KiB, MiB, GiB) or decimal (kB, MB, GB, TB) units.

    >>> format_bytes(98304000)
    '93.75 MiB'
    >>> format_bytes(4.8e12, binary=False)
    '4.80 TB'
    """
    for factor, unit in _BINARY if binary else _DECIMAL:
        if abs(size_bytes) >= factor:
            return f"{size_bytes / factor:.2f} {unit}"
    return f"{size_bytes:.0f} B"


def format_seconds(time_s: float) -> str:
    """Render a duration for people with three significant digits: ns, us, ms, s or min.

    >>> format_seconds(0.0000234)
    '23.4 us'
    >>> format_seconds(75)
    '1 min 15 s'
    """
    if abs(time_s) >= 60:
        return f"{int(time_s // 60)} min {int(time_s % 60)} s"
    for factor, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if abs(time_s) >= factor:
            return f"{time_s / factor:.3g} {unit}"
    return f"{time_s / 1e-9:.3g} ns"

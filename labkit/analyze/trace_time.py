"""Trace timestamps (microseconds, as written) to integer nanoseconds, exactly.

Two ways that give the same answer. `fast_ns` reads doubles: below 2**43 us a double is closer to its three-decimal text
than half a nanosecond, so rounding the fraction recovers the text. Above that (epoch microseconds are near 2**50.6) it
is not, so `fast_ns` refuses and the caller decodes the numbers again as decimal text for `exact_ns`.
"""

from __future__ import annotations

import math
from decimal import ROUND_HALF_EVEN, Decimal, InvalidOperation
from typing import Any

import numpy as np
from numpy.typing import NDArray

DOUBLE_LIMIT_US = 2.0**43
"""Largest |ts| for which a double still identifies the nanosecond: its spacing there is 2**-10 us."""
NS_LIMIT = 2**61
"""Times beyond this (73 years) are damage, and sums of two must still fit an int64."""
MISSING = np.iinfo(np.int64).min
"""Marks a value that is no usable time."""


class NeedsExactText(Exception):
    """The doubles at hand cannot give exact ns; decode the numbers as decimal text."""


def fast_ns(us: NDArray[np.float64]) -> NDArray[np.int64]:
    """Times in us to int64 ns; `MISSING` where there is no finite number.

    Raises: NeedsExactText when a value is too large for a double to identify the nanosecond.

    >>> fast_ns(np.array([10.25, 5123527729520.461, np.nan])).tolist()[:2]
    [10250, 5123527729520461]
    """
    usable = np.isfinite(us)
    if not usable.all():
        us = np.where(usable, us, 0.0)
    if len(us) and max(us.max(), -us.min()) >= DOUBLE_LIMIT_US:
        raise NeedsExactText
    whole = np.floor(us)
    ns = (whole * 1000 + np.rint((us - whole) * 1000)).astype(np.int64)
    ns[~usable] = MISSING
    return ns


class Resolution:
    """What the written timestamps can resolve; fed by `exact_ns`."""

    def __init__(self) -> None:
        """Start with nothing seen."""
        self.num_doubles = 0
        self.num_finer = 0
        self.spacing_us = 0.0

    def see(self, text: Decimal) -> Decimal:
        """Note one large timestamp with a fraction; returns the value it stands for.

        A number printed from a double is either that double in full or its shortest text (`...160.2` for 160.25).
        Any other fraction proves that the writer knew more than a double holds.
        """
        nearest = float(text)
        if Decimal(nearest) == text or str(text) == repr(nearest):
            self.num_doubles += 1
            self.spacing_us = max(self.spacing_us, math.ulp(nearest))
            return Decimal(nearest)
        self.num_finer += 1
        return text

    def warning(self) -> str | None:
        """One line if the timestamps are doubles coarser than 1 ns, else None."""
        if self.num_doubles and not self.num_finer:
            return f"timestamp resolution {self.spacing_us:g} us"
        return None


def exact_ns(values: list[Any], resolution: Resolution | None = None) -> NDArray[np.int64]:
    """Times in us to int64 ns from decimal text (`decimal.Decimal`), integers or strings; `MISSING` if unusable.

    >>> exact_ns([Decimal("1712195495506160.123"), "7.5", 3, None, "x"]).tolist()[:3]
    [1712195495506160123, 7500, 3000]
    """
    return np.array([_one_exact_ns(v, resolution) for v in values], dtype=np.int64).reshape(-1)


def _one_exact_ns(value: Any, resolution: Resolution | None) -> int:
    if isinstance(value, str):
        try:
            number = Decimal(value.strip())
        except InvalidOperation:
            return MISSING
    elif isinstance(value, (int, float, Decimal)):
        number = Decimal(value)
    else:
        return MISSING
    if not number.is_finite() or abs(number) > NS_LIMIT // 1000:
        return MISSING
    if resolution is not None and isinstance(value, Decimal) and abs(number) >= DOUBLE_LIMIT_US:
        exponent = number.as_tuple().exponent
        if isinstance(exponent, int) and exponent < 0:
            number = resolution.see(number)
    return int((number * 1000).to_integral_value(ROUND_HALF_EVEN))

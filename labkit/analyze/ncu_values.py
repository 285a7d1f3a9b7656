"""Numbers and units as Nsight Compute prints them -> plain numbers in one unit.

Bytes become bytes (the tool's K, M, G are decimal), times nanoseconds, rates "per second", frequencies hertz; percent,
counts and ratios stay. Every generation of the tool spells units differently ("us", "usecond"), and the same metric may
change its unit from row to row.
"""

from __future__ import annotations

import math
import re

_TIME_NS = {
    "ns": 1.0, "nsecond": 1.0, "nsec": 1.0, "nanosecond": 1.0, "us": 1e3, "usecond": 1e3, "usec": 1e3, "µs": 1e3,
    "μs": 1e3, "microsecond": 1e3, "ms": 1e6, "msecond": 1e6, "msec": 1e6, "millisecond": 1e6, "s": 1e9, "second": 1e9,
    "sec": 1e9, "ps": 1e-3, "psecond": 1e-3, "minute": 60e9, "hour": 3600e9,
}
_PREFIX = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12, "p": 1e15,
           "ki": 2.0**10, "mi": 2.0**20, "gi": 2.0**30, "ti": 2.0**40}
_BYTE = re.compile(r"([kmgtp]i?)?(?:bytes?|b)", re.IGNORECASE)
_HERTZ = re.compile(r"([kmgt])?(?:hz|hertz)", re.IGNORECASE)
# Other counted things may carry a prefix too ("Kinst", "Mcycle"), but "Kernel" or "msg" must not be cut in two.
_COUNTED = re.compile(r"([KMGTP])?(insts?|cycles?|sectors?|requests?|warps?|threads?|blocks?|ops?|flops?|registers?)")
_PER_SECOND = re.compile(r"(.+?)/(\w+)")
_UNKNOWN = re.compile(
    r"\W*(nan|-?nan\(ind\)|n/?a|no data|<null>|null|none|-|inf|-inf|infinity|-infinity|not available|error)\W*",
    re.IGNORECASE)
_ENGLISH = re.compile(r"[+-]?(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d*)?(?:[eE][+-]?\d{1,4})?")
_COMMA = re.compile(r"[+-]?(?:\d{1,3}(?:\.\d{3})+|\d+)(?:,\d*)?(?:[eE][+-]?\d{1,4})?")
_SIGNS = r"[+-]?\d{1,3}(T\d{3}){2,}(D\d+)?|[+-]?\d{1,3}(T\d{3})+D\d+|[+-]?\d+D(\d{1,2}|\d{4,})|0D\d+"
# One group of three digits (1,234) says nothing: it is a thousand or a fraction.
_SAYS_COMMA, _SAYS_POINT = (
    re.compile(_SIGNS.replace("T", thousands).replace("D", point)) for thousands, point in ((r"\.", ","), (",", r"\.")))
_SPACES = re.compile(r"(?<=\d)[ \u00a0\u202f\u2009'’](?=\d{3})")
_WITH_INSTANCES = re.compile(r"([^()]*\d[^()]*?)\s+\(.*[;,].*\)", re.DOTALL)


def normal_unit(unit: str) -> tuple[float, str]:
    """Factor to multiply a value with, and the unit it then has.

    >>> normal_unit("Mbyte"), normal_unit("usecond"), normal_unit("Gbyte/second"), normal_unit("register/thread")
    ((1000000.0, 'byte'), (1000.0, 'ns'), (1000000000.0, 'byte/s'), (1.0, 'register/thread'))
    """
    unit = unit.strip()
    spelled = unit.lower() if unit.lower().endswith(("second", "sec", "minute", "hour")) else unit
    if spelled in _TIME_NS:
        return _TIME_NS[spelled], "ns"
    if match := _BYTE.fullmatch(unit):
        return _PREFIX[(match[1] or "").lower()], "byte"
    if match := _HERTZ.fullmatch(unit):
        return _PREFIX[(match[1] or "").lower()], "hz"
    if match := _COUNTED.fullmatch(unit):
        return _PREFIX[(match[1] or "").lower()], match[2]
    if (match := _PER_SECOND.fullmatch(unit)) and match[1].strip():
        factor, numerator = normal_unit(match[1])
        if (per := _TIME_NS.get(match[2])) is not None and numerator != "ns":
            return factor * 1e9 / per, f"{numerator}/s"
        return factor, f"{numerator}/{match[2]}"
    return 1.0, unit


def uses_decimal_comma(cells: list[str]) -> bool:
    """Whether these cells were printed under a locale that writes 1.234,5 for 1,234.5: some say so and none denies it.

    >>> uses_decimal_comma(["27.595.520", "65,77"]), uses_decimal_comma(["1,200", "32.45"])
    (True, False)
    """
    texts = [_SPACES.sub("", cell.strip()) for cell in cells]
    says, denies = (any(pattern.fullmatch(text) for text in texts) for pattern in (_SAYS_COMMA, _SAYS_POINT))
    return says and not denies


def parse_value(cell: str, *, decimal_comma: bool = False) -> float | str | None:
    """A cell as a number, as text (`CachePreferNone`), or None for nan, n/a and blanks.

    A number followed by its values per instance in parentheses gives the number alone.

    >>> parse_value("1,234.5"), parse_value("n/a"), parse_value("CachePreferNone"), parse_value("(256, 1, 1)")
    (1234.5, None, 'CachePreferNone', '(256, 1, 1)')
    """
    text = cell.strip()
    if not text or _UNKNOWN.fullmatch(text):
        return None
    number = _number(text, decimal_comma)
    if number is None and (match := _WITH_INSTANCES.fullmatch(text)):
        number = _number(match[1].strip(), decimal_comma)
    if number is None:
        return text
    return number if math.isfinite(number) else None


def _number(text: str, decimal_comma: bool) -> float | None:
    text = _SPACES.sub("", text)
    if len(text) > 60 or not any(c.isdigit() for c in text) or not text.isascii():
        return None
    if decimal_comma:
        return float(text.replace(".", "").replace(",", ".")) if _COMMA.fullmatch(text) else None
    return float(text.replace(",", "")) if _ENGLISH.fullmatch(text) else None

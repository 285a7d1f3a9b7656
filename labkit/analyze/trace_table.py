"""Integer columns that are filled by the million: compact arrays while they grow, numpy arrays once full."""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labkit.analyze.trace_time import MISSING, NS_LIMIT, NeedsExactText, Resolution, exact_ns, fast_ns

Ints = NDArray[np.int64]
_FLUSH_AT = 1 << 16
NO_NUMBER = -1


def whole_number(value: Any) -> int | None:
    """A whole number from JSON (number or text), or None.

    >>> whole_number("12"), whole_number(3.0), whole_number("x"), whole_number(None)
    (12, 3, None, None)
    """
    try:
        return int(value) if isinstance(value, str) or value == int(value) else None
    except (TypeError, ValueError, OverflowError, ArithmeticError):
        return None


class Codes(dict):
    """Numbers for values: the first value seen is 0, the next new one 1, ..."""

    def __missing__(self, key: Any) -> int:
        """Give a new value the next number."""
        self[key] = code = len(self)
        return code

    def number(self, values: list[Any]) -> list[int]:
        """The number of each value; an unhashable one is numbered by its text."""
        try:
            return list(map(self.__getitem__, values))
        except TypeError:
            return [self[_hashable(value)] for value in values]

    def number_rows(self, *columns: list[Any]) -> list[int]:
        """The number of each row of several columns."""
        try:
            return list(map(self.__getitem__, zip(*columns)))
        except TypeError:
            return [self[tuple(map(_hashable, row))] for row in zip(*columns)]


def _hashable(value: Any) -> Any:
    return value if isinstance(value, (str, int, float, type(None))) else repr(value)


class Table:
    """Equal-length columns `start` (ns), `dur` (ns, unless without) and others (codes and numbers).

    Rows without a usable start, or with an unusable or negative duration, are left out and counted.
    """

    def __init__(self, *others: str, exact: bool, has_dur: bool = True) -> None:
        """Columns by name; `exact` where times come as decimal text."""
        self.exact = exact
        self.length = 0
        self.num_without_time = 0
        self.num_negative = 0
        self.times = ("start", "dur") if has_dur else ("start",)
        self._others = others
        self._done: dict[str, list[Ints]] = {name: [] for name in (*self.times, *others)}
        self._start_filling()

    def _start_filling(self) -> None:
        self._us: dict[str, Any] = {name: [] if self.exact else array("d") for name in self.times}
        self._ints = {name: array("q") for name in self._others}

    def add(self, *, start: list[Any], dur: list[Any] | None = None, **others: list[Any]) -> None:
        """Add rows: times in us as decoded, the other columns whole numbers; what is none becomes NO_NUMBER.

        Raises: NeedsExactText when a time is no double.
        """
        self._add_times(self._us["start"], start)
        if dur is not None:
            self._add_times(self._us["dur"], dur)
        for name, values in others.items():
            self._add_ints(self._ints[name], values)

    def _add_ints(self, column: array, values: list[Any]) -> None:
        before = len(column)
        try:
            column.extend(values)
        except (TypeError, OverflowError):  # None, text, a fraction, more than 64 bits
            del column[before:]
            numbers = map(whole_number, values)
            column.extend(NO_NUMBER if n is None or abs(n) > NS_LIMIT else n for n in numbers)

    def _add_times(self, column: Any, values: list[Any]) -> None:
        before = len(column)
        try:
            column.extend(values)
        except TypeError:  # None, or a number written as text
            del column[before:]
            column.extend(_doubles(values))
        except OverflowError as err:
            raise NeedsExactText from err

    def is_due(self) -> bool:
        """Whether enough rows wait for a flush."""
        return len(self._us["start"]) >= _FLUSH_AT

    def flush(self, resolution: Resolution) -> None:
        """Turn what was added into ns. Raises: NeedsExactText."""
        if not len(self._us["start"]):
            return
        ns: dict[str, Ints] = {}
        for name, values in self._us.items():
            noted = resolution if name == "start" else None
            ns[name] = exact_ns(values, noted) if self.exact else fast_ns(np.frombuffer(values, dtype=np.float64))
        usable = (np.abs(ns["start"]) < NS_LIMIT) & (ns["start"] != MISSING)
        if "dur" in ns:
            usable &= (ns["dur"] != MISSING) & (ns["dur"] < NS_LIMIT)
            self.num_without_time += int((~usable).sum())
            forward = usable & (ns["dur"] >= 0)
            self.num_negative += int((usable & ~forward).sum())
            usable = forward
        keep = slice(None) if usable.all() else usable
        columns = ns | {name: np.frombuffer(values, dtype=np.int64) for name, values in self._ints.items()}
        for name, values in columns.items():
            self._done[name].append(values[keep])
        self.length += int(usable.sum())
        self._start_filling()

    def column(self, name: str) -> Ints:
        """One column of the flushed rows as one array."""
        parts = self._done[name]
        if len(parts) != 1:
            self._done[name] = parts = [np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)]
        return parts[0]


def _doubles(values: list[Any]) -> list[float]:
    try:
        numbers = np.array(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError) as err:
        raise NeedsExactText from err
    if numbers.ndim != 1:  # every value is a list
        raise NeedsExactText
    return numbers.tolist()

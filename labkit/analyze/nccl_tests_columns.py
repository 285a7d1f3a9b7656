"""Columns of a table of nccl-tests, by its header line: a version that adds a column is read like the others."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from labkit.analyze.kinds import UnreadableInput
from labkit.analyze.nccl_tests import SIDES

CELL = re.compile(r"[-+]?(?:\d+\.?\d*(?:e[-+]?\d+)?|\.\d+|nan|inf|n/?a)\*?$", re.IGNORECASE)
_NAMES = {"bytes": "size", "n": "count", "op": "redop", "cputime": "time", "#wrong": "wrong", "errors": "wrong",
          "error": "max_error", "res": "max_error", "delta": "max_error", "#bitdiff": "bitdiff", "i_min": "iter_min_us",
          "i_max": "iter_max_us", "i_p99": "iter_p99_us", "i_cv%": "iter_cv_pct"}
_PLAIN = 13
"""Columns of most versions, taken where the header was cut off."""
_CHOSEN = {"algo": "algorithm", "algorithm": "algorithm", "proto": "protocol", "protocol": "protocol",
           "channels": "num_channels", "nchannels": "num_channels", "#channels": "num_channels"}


@dataclass
class Layout:
    """What the columns of a table are."""

    leading: list[str] = field(default_factory=lambda: ["size", "count", "type", "redop", "root"])
    side: list[str] = field(default_factory=lambda: ["time", "algbw", "busbw", "wrong"])
    num_sides: int = 2
    sides: tuple[str, ...] = SIDES
    after: list[str] = field(default_factory=list)
    """Columns behind both sides: what rccl-tests says it chose (-A 1)."""
    is_cpu_time: bool = False
    time_scale: float = 1.0
    """Factor to us; version 1 prints ms."""

    @property
    def num_cells(self) -> int:
        return len(self.leading) + self.num_sides * len(self.side)


def table_columns(header: str) -> dict[str, Any]:
    """What a header line of nccl-tests says about its table: the leading columns and those of one side.

    >>> table_columns("#  size  count  type  redop  root  time  algbw  busbw #wrong  time  algbw  busbw #wrong")
    {'leading': ['size', 'count', 'type', 'redop', 'root'], 'side': ['time', 'algbw', 'busbw', 'wrong'], 'num_sides': 2}
    """
    layout = layout_of(header)
    if layout is None:
        raise UnreadableInput(f"header={header!r}: expected columns size, time, algbw and busbw")
    return {"leading": layout.leading, "side": layout.side, "num_sides": layout.num_sides}


def layout_of(line: str) -> Layout | None:
    """Columns by a header line; None for another comment."""
    names = [name.lower() for name in line.lstrip(" #").split()]
    if line.lstrip().startswith("#wrong"):
        return None
    names = [re.sub(r"\(.*\)$", "", name) for name in names]
    starts = [i for i, name in enumerate(names) if name in ("time", "cputime")]
    if "busbw" not in names or not starts or not {"size", "bytes"} & set(names[: starts[0]]):
        return None
    end = next((i for i, name in enumerate(names) if name in ("timestamp", "%y-%m-%d")), len(names))
    chosen = [i for i, name in enumerate(names) if name in _CHOSEN and i > starts[-1]]
    end = min([end, *chosen])
    length = (starts[1] if len(starts) > 1 else end) - starts[0]
    side = [_NAMES.get(name, name) for name in names[starts[0] : starts[0] + length]]
    return Layout(leading=[_NAMES.get(name, name) for name in names[: starts[0]]], side=side,
                   num_sides=len(starts), after=[_CHOSEN[names[i]] for i in chosen],
                  is_cpu_time=names[starts[0]] == "cputime",
                   time_scale=1e3 if names[:2] == ["bytes", "n"] and "(us)" not in line else 1.0)


def guessed_layout(cells: list[str]) -> Layout:
    """Columns of a row without a header, by their number: 13, or 12 with a redop or a root before the times."""
    words = sum(1 for cell in cells[2:5] if not CELL.match(cell))
    if len(cells) >= _PLAIN or len(cells) < 12:
        return Layout()
    return Layout(leading=["size", "count", "type", "redop" if words > 1 else "root"])

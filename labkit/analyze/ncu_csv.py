"""`ncu --csv`: hardware counters of GPU kernels, in both layouts of the tool.

Raw page: one row a kernel, one column a metric, and a second header row that holds the units. Details page and old
versions: one row a metric, its unit beside it. Both come after banner lines, with thousands separators and units that
change from row to row. A file without kernels is an answer too: `kernels` [] and the cause in `error`.

    python -m labkit analyze ncu_csv counters.csv
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from typing import Any

from labkit.analyze import ncu_messages
from labkit.analyze.kinds import UnreadableInput, clean_text
from labkit.analyze.ncu_text import text_rows
from labkit.analyze.ncu_values import normal_unit, parse_value, uses_decimal_comma
from labkit.analyze.smi import plain_text

KNOWN = {
    "id": "id", "process id": "process_id", "process name": "process", "host name": "host", "kernel name": "name",
    "context": "context", "stream": "stream", "block size": "block", "grid size": "grid", "device": "device",
    "cc": "cc", "invocations": "invocations", "section name": "section", "metric name": "metric",
    "metric unit": "unit", "metric value": "value", "average": "value", "minimum": "minimum", "maximum": "maximum",
    "rule name": "", "rule type": "", "rule description": "", "estimated speedup type": "", "estimated speedup": "",
    "kernel time": "", "device name": "",
}
"""Columns that are no metrics, in lower case, and the key each has in a kernel's answer ('' for those left out)."""
_WHOLE = ("id", "process_id", "context", "stream", "device", "invocations")
MOST_JOINED_LINES = 40
MOST_KERNELS = 100_000


def parse_ncu_csv(text: str) -> dict[str, Any]:
    """Kernels and their metrics.

    Times are nanoseconds, under the metric's name with `_ns` behind it; bytes are bytes, whatever the row's unit; a
    metric without a value is None. Without a units row a number stays as printed and its unit is None.

    Args:
        text: what `ncu --csv` printed, or its `--log-file`; other programs' lines in between are passed over. The page
            for people to read, without `--csv`, is read too where the text holds no table with a Kernel Name column.

    Returns: `kernels`, each with `name`, `id`, `block`, `grid`, `cc`, `device`, `stream`, `metrics` {name: value} and
        `units` {name: unit}; `error` (None, or why there are none or some are missing), `available` (kernel names the
        tool lists when its filter matched none), `messages`, `num_ignored_lines`.
    Raises: UnreadableInput when the text holds neither a table nor anything that this tool says.
    """
    lines = plain_text(clean_text(text)).split("\n")
    if not any(line.strip() for line in lines):
        raise UnreadableInput("the file is empty, expected the output of: ncu --csv --page raw")
    records, rest = _records(lines)
    told = ncu_messages.read_messages(rest)
    tables, ignored = _tables(records)
    kernels: list[dict[str, Any]] = []
    for table in tables:
        found, dropped = _long(table) if table.is_long else _wide(table)
        kernels += found[: MOST_KERNELS - len(kernels)]
        ignored += dropped
    if not tables:
        kernels = _from_text(lines)
    if not tables and not kernels and not told["is_ncu"] and told["error"] is None:
        raise UnreadableInput("no table with a Kernel Name column found, expected the output of: ncu --csv --page raw")
    for kernel in kernels:
        if (passes := told["passes"].get(str(kernel.get("id")))) is not None:
            kernel["passes"] = passes
    error, detail = told["error"], told["error_detail"]
    if error is None and ignored and tables:
        error, detail = f"{ignored} row(s) of the table are cut or damaged and were left out", None
    if error is None and not kernels:
        error = ncu_messages.NOT_IN_TEXT if told["passes"] or told["report"] else ncu_messages.NO_KERNELS
    result = {"kernels": kernels, "error": error, "available": told["available"], "messages": told["messages"],
              "num_ignored_lines": ignored}
    if told["report"] and not kernels:
        result["report"] = told["report"]
    if detail:
        result["error_detail"] = detail
    if told["unknown_metrics"]:
        result["unknown_metrics"] = told["unknown_metrics"]
    if error == ncu_messages.NO_PERMISSION:
        result["remedy"] = ncu_messages.ADMIN_CHANGE
    return result


class _Table:
    """Header of one table and its rows."""

    def __init__(self, header: list[str]) -> None:
        self.titles = [title.strip() for title in header]
        self.keys = [KNOWN.get(title.lower()) for title in self.titles]
        self.is_long = "metric" in self.keys and "value" in self.keys
        self.rows: list[list[str]] = []

    def meta(self, row: list[str]) -> dict[str, str]:
        """The row's cells that are no metrics, by key."""
        return {key: cell.strip() for key, cell in zip(self.keys, row) if key}


def _records(lines: list[str]) -> tuple[list[tuple[str, bool]], list[str]]:
    """Lines that may be rows of a table (joined where a quoted cell holds a line break), and all the others."""
    records: list[tuple[str, bool]] = []
    rest: list[str] = []
    at = 0
    while at < len(lines):
        line = lines[at]
        at += 1
        if ncu_messages.BANNER.fullmatch(line) or not any(mark in line for mark in ",;\t|"):
            rest.append(line)
            continue
        joined, used = line, 0
        while joined.count('"') % 2 and used < MOST_JOINED_LINES and at + used < len(lines):
            following = lines[at + used]
            if ncu_messages.BANNER.fullmatch(following) or re.match(r'"\d+"[,;\t|]"', following):
                break
            joined += "\n" + following
            used += 1
        if joined.count('"') % 2 == 0:
            at += used
            records.append((joined, True))
        else:
            records.append((line, False))  # a quote that never closes: a cut row, or another program's line
        if not records[-1][0].lstrip().startswith('"'):
            rest.append(line)
    return records, rest


def _tables(records: list[tuple[str, bool]]) -> tuple[list[_Table], int]:
    """Tables in order, and how many rows belong to none of their shapes."""
    tables: list[_Table] = []
    ignored, delimiter = 0, ","
    for record, is_whole in records:
        if (found := _header(record)) is not None:
            delimiter, header = found
            tables.append(_Table(header))
        elif tables:
            cells = _split(record, delimiter, len(tables[-1].titles)) if is_whole else None
            if cells is not None and _fits(tables[-1], cells):
                tables[-1].rows.append(cells)
            elif record.lstrip().startswith('"') or re.match(r"\s*\d+[,;\t|]\d+", record):
                ignored += 1
    return tables, ignored


def _header(record: str) -> tuple[str, list[str]] | None:
    """Delimiter and titles, if this is a header row."""
    if "kernel name" not in record.lower():
        return None
    for delimiter in (",", ";", "\t", "|"):
        try:
            cells = next(csv.reader([record], delimiter=delimiter, skipinitialspace=True), [])
        except csv.Error:
            continue
        titles = [cell.strip().lower() for cell in cells]
        if len(cells) > 1 and "kernel name" in titles and sum(title in KNOWN for title in titles) >= 2:
            return delimiter, cells
    return None


def _split(record: str, delimiter: str, num_cells: int) -> list[str] | None:
    try:
        cells = next(csv.reader(record.split("\n") if "\n" not in record else _with_breaks(record),
                                delimiter=delimiter, skipinitialspace=True), [])
    except csv.Error:
        return None
    if len(cells) > num_cells and '"' not in record:
        # Without quotes the commas inside (256, 1, 1) or f<a, b>(c) part nothing.
        outside, depth, start = [], 0, 0
        for i, char in enumerate(record):
            depth = max(0, depth + (char in "(<") - (char in ")>"))
            if char == delimiter and not depth:
                outside.append(record[start:i])
                start = i + 1
        outside.append(record[start:])
        return outside if len(outside) == num_cells else None
    return cells


def _with_breaks(record: str) -> Iterator[str]:
    yield from (part + "\n" for part in record.split("\n"))


def _fits(table: _Table, cells: list[str]) -> bool:
    if table.is_long:
        return max(i for i, key in enumerate(table.keys) if key in ("metric", "value", "name")) < len(cells) <= len(
            table.titles)
    return len(cells) == len(table.titles)


def _kernel(meta: dict[str, str]) -> dict[str, Any]:
    kernel: dict[str, Any] = {"name": re.sub(r"\s*\n\s*", " ", meta.get("name", ""))}
    for key in ("id", "process_id", "block", "grid", "cc", "device", "stream", "context", "invocations"):
        cell = meta.get(key)
        if cell is None:
            continue
        if key in ("block", "grid"):
            numbers = re.findall(r"\d{1,10}", cell.replace(",", " ") if "(" in cell else cell)
            kernel[key] = [int(number) for number in numbers[:3]] or None
        elif key in _WHOLE and re.fullmatch(r"[\d,.]{1,15}", cell) and cell.replace(",", "").isdigit():
            kernel[key] = int(cell.replace(",", ""))
        else:
            kernel[key] = cell or None
    return {**kernel, "metrics": {}, "units": {}}


def _put(kernel: dict[str, Any], name: str, cell: str, unit: str | None, decimal_comma: bool) -> None:
    """Add one metric in its normal unit.

    A name that is there already (another section's) keeps its first value; in another unit it is another metric, which
    has the unit in its name: the details page calls both a percentage and a rate Memory Throughput.
    """
    value = parse_value(cell, decimal_comma=decimal_comma)
    factor, normal = normal_unit(unit) if unit is not None else (1.0, None)
    if isinstance(value, float):
        value = float(f"{value * factor:.15g}")  # 32.45 us are 32450 ns, not 32450.000000000004
        value = value if abs(value) < 1e300 else None
    key = f"{name}_ns" if normal == "ns" else name
    if key in kernel["metrics"] and kernel["units"][key] != normal and value is not None:
        key = f"{name} [{normal}]"
    if name and key not in kernel["metrics"]:
        kernel["metrics"][key] = value
        kernel["units"][key] = normal


def _wide(table: _Table) -> tuple[list[dict[str, Any]], int]:
    """One row a kernel; the first row without a kernel name holds the units."""
    units: list[str] | None = None
    kernels, ignored = [], 0
    metrics = [i for i, key in enumerate(table.keys) if key is None and ":" not in table.titles[i]]
    named = [row for row in table.rows if table.meta(row).get("name")]
    decimal_comma = uses_decimal_comma([row[i] for row in named for i in metrics])
    for row in table.rows:
        meta = table.meta(row)
        if not meta.get("name"):
            ignored += units is not None or bool(kernels)
            if units is None and not kernels:
                units = [cell.strip() for cell in row]
            continue
        kernel = _kernel(meta)
        for i in metrics:
            _put(kernel, table.titles[i], row[i], units[i] if units else None, decimal_comma)
        if units is None:
            kernel["units_missing"] = True
        kernels.append(kernel)
    return kernels, ignored


def _long(table: _Table) -> tuple[list[dict[str, Any]], int]:
    """One row a metric; rows of one kernel share process and id, or follow each other where there is no id."""
    kernels: dict[Any, dict[str, Any]] = {}
    has_unit = "unit" in table.keys
    decimal_comma = uses_decimal_comma([table.meta(row).get("value", "") for row in table.rows])
    run, ignored = 0, 0
    for row in table.rows:
        meta = table.meta(row)
        if not meta.get("name"):
            ignored += 1
            continue
        place: Any = (meta.get("process_id"), meta.get("id"), meta["name"])
        if not meta.get("id"):
            place = (*place, meta.get("block"), meta.get("grid"))
            last = kernels.get((*place, run))
            name, unit = meta.get("metric", ""), normal_unit(meta.get("unit", ""))[1]
            if last is not None and (f"{name}_ns" if unit == "ns" else name) in last["metrics"] and not meta.get(
                    "section"):
                run += 1  # the metric comes again: the next launch of the same kernel
            place = (*place, run)
        kernel = kernels.setdefault(place, _kernel(meta))
        if meta.get("metric"):  # a rule's row names no metric
            _put(kernel, meta["metric"], meta.get("value", ""), meta.get("unit", "") if has_unit else None,
                 decimal_comma)
    return list(kernels.values()), ignored


def _from_text(lines: list[str]) -> list[dict[str, Any]]:
    """Kernels of the page for people, numbered in order; its progress lines count from 0 in the same way."""
    rows = list(text_rows(lines))
    decimal_comma = uses_decimal_comma([value for *_, value in rows])
    kernels: dict[str, dict[str, Any]] = {}
    for meta, _, name, unit, value in rows:
        if len(kernels) == MOST_KERNELS and meta["id"] not in kernels:
            break
        kernel = kernels.setdefault(meta["id"], _kernel(meta))
        if name:
            _put(kernel, name, value, unit, decimal_comma)
    return list(kernels.values())

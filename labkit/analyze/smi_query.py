"""Output of nvidia-smi --query-gpu=... --format=csv: one row a GPU, or many where it was asked again and again.

A value the driver will not tell is None, with its reason, and never a zero that looks measured.
"""

from __future__ import annotations

import csv
import re
from typing import Any

from labkit.analyze.kinds import UnreadableInput
from labkit.analyze.smi import UNKNOWN_CELL, plain_text, tool_failure
from labkit.analyze.smi_lines import by_source

_SHORT_NAMES = {
    "power.draw": "power",
    "clocks.current.sm": "sm",
    "clocks.sm": "sm",
    "clocks.current.memory": "mem",
    "clocks.mem": "mem",
    "clocks.current.graphics": "graphics",
    "clocks.gr": "graphics",
    "clocks.max.sm": "sm_max",
    "clocks.max.memory": "mem_max",
    "clocks.max.mem": "mem_max",
    "mig.mode.current": "mig",
    "mig.mode.pending": "mig_pending",
    "pci.bus_id": "bus_id",
    "gpu_bus_id": "bus_id",
    "gpu_name": "name",
    "gpu_uuid": "uuid",
}
_UNIT_SUFFIX = {"mib": "mib", "w": "w", "mhz": "mhz", "%": "pct", "ms": "ms", "us": "us", "s": "s", "c": "c"}


def parse_query(text: str) -> dict[str, Any]:
    """GPUs of `nvidia-smi --query-gpu=... --format=csv` (with or without `nounits`).

    Returns: `gpus`, one object each: `index`, `name`, and the other columns as `<name>_<unit>` (`memory_total_mib`,
    `power_w`, `sm_mhz`, ...), of a GPU that was asked several times the last row, and `source` (the label in front of
    its line, if any); a value the driver does not give is None and its reason is in `unavailable`. Clocks and
    power are those of the moment of the query, not of a run. Without a driver: `gpus` [] and `error`.

    Raises: UnreadableInput when there is no header line.
    """
    lines = [(source, line) for source, line in by_source(plain_text(text), _is_query_header) if line.strip()]
    place = next((i for i, (_, line) in enumerate(lines) if _is_query_header(line)), None)
    if place is None:
        failure = tool_failure(plain_text(text))
        if failure is None:
            raise UnreadableInput("no CSV header found, expected: nvidia-smi --query-gpu=index,name,... --format=csv")
        return {"gpus": [], "error": failure[0], "error_detail": failure[1]}
    header = lines[place][1].strip()
    columns = [_column(title) for title in _split(header)]
    if {"pid", "process_name"} & {name for name, _ in columns}:
        raise UnreadableInput("rows of processes, expected rows of GPUs: nvidia-smi --query-gpu=index,name,...")
    gpus: dict[Any, dict[str, Any]] = {}
    ignored: list[str] = []
    for source, line in lines[place + 1 :]:
        cells = _split(line)
        if line.strip() == header:
            continue
        if len(cells) != len(columns):
            ignored.append(line.strip()[:120])
            continue
        gpu = {"source": source} if source else {}
        gpu |= _query_row(columns, cells)
        gpus[_who(gpu) or len(gpus)] = gpu
    result: dict[str, Any] = {"gpus": list(gpus.values()), "taken": "at the moment of the query, not during a run"}
    if len({gpu.get("timestamp") for gpu in gpus.values()}) > 1 and not all(map(_who, gpus.values())):
        result["note"] = "no column tells the GPUs apart: a GPU may be listed once for each time it was asked"
    failure = tool_failure("\n".join(ignored))
    if failure is not None:
        result |= {"error": failure[0], "error_detail": failure[1]}
    return result | ({"ignored_lines": ignored[:10]} if ignored else {})


def _who(gpu: dict[str, Any]) -> tuple[Any, ...] | None:
    """What names a GPU among all machines of a file; None without a column that does."""
    for key in ("uuid", "bus_id", "index"):
        if gpu.get(key) is not None:
            return gpu.get("source"), key, gpu[key], gpu.get("index"), gpu.get("name")
    return None


def _split(line: str) -> list[str]:
    try:
        return [cell.strip() for cell in next(csv.reader([line], skipinitialspace=True))]
    except (csv.Error, StopIteration):
        return [cell.strip() for cell in line.split(",")]


def _is_query_header(line: str) -> bool:
    names = [re.sub(r"\s*\[.*\]$", "", cell) for cell in _split(line)]
    known = ("index", "name", "uuid", "timestamp", "count", "gpu_name", "gpu_uuid", "driver_version", "pstate")
    dotted = [re.fullmatch(r"[a-z_]+(\.[a-z_0-9]+)+", name) for name in names]
    return any(name in known for name in names) or (bool(names) and all(dotted))


def _column(title: str) -> tuple[str, str]:
    """(key without unit, unit) of a header cell such as `memory.total [MiB]`."""
    match = re.fullmatch(r"(.*?)\s*\[(.*)\]", title)
    name, unit = (match[1], match[2]) if match else (title, "")
    return _SHORT_NAMES.get(name, re.sub(r"\W+", "_", name).strip("_")), _unit(unit)


def _unit(text: str) -> str:
    text = text.strip().lower()
    return _UNIT_SUFFIX.get(text, re.sub(r"\W+", "_", text).strip("_"))


def _query_row(columns: list[tuple[str, str]], cells: list[str]) -> dict[str, Any]:
    gpu: dict[str, Any] = {}
    unavailable: dict[str, str] = {}
    for (name, unit), cell in zip(columns, cells):
        number = re.fullmatch(r"(-?\d{1,15}(?:\.\d{1,15})?)\s*([A-Za-z%/]*)", cell)
        unit = unit or (_unit(number[2]) if number else "")
        key = f"{name}_{unit}" if unit else name
        if key in gpu:
            key = f"{key}_{len(gpu)}"
        if UNKNOWN_CELL.match(cell) or not cell:
            gpu[key] = None
            unavailable[key] = cell.strip("[] ")
        elif name in ("name", "uuid", "serial", "driver_version", "vbios_version", "compute_cap", "bus_id"):
            gpu[key] = cell
        elif number:
            gpu[key] = float(number[1]) if "." in number[1] else int(number[1])
        else:
            gpu[key] = cell
    return gpu | ({"unavailable": unavailable} if unavailable else {})

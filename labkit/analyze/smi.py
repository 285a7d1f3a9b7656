"""Output of nvidia-smi: `topo -m`, `topo -p2p`, and `--query-gpu=... --format=csv`.

A machine without a driver, or a value the driver will not tell, is an answer too: `error`, None, never a crash and
never a zero that looks measured. Keys that stand for GPUs are texts ("0", "0-1"), as in JSON.
"""

from __future__ import annotations

import csv
import re
from typing import Any

from labkit.analyze.kinds import UnreadableInput

_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\[(?:\d{1,3})(?:;\d{1,3})*m")
_TITLES = ("CPU Affinity", "NUMA Affinity", "GPU NUMA ID")
_GPU = re.compile(r"^GPU\s?(\d+)$")
_NVLINK = re.compile(r"^NV(\d+)$")
_UNKNOWN_CELL = re.compile(
    r"^\[?\s*(N/?A|Not Supported|Not Available|Insufficient Permissions?|Unknown Error|Unknown|No Permissions?"
    r"|GPU is lost|Requested functionality has been deprecated)\s*\]?$",
    re.IGNORECASE,
)
_FAILURES = (
    "NVIDIA-SMI has failed",
    "Failed to initialize NVML",
    "No devices were found",
    "NVIDIA-SMI couldn't find",
    "Unable to determine the device handle",
    "Insufficient Permissions",
    "command not found",
    "No such file or directory",
    "not recognized as an internal or external command",
    "is not supported",
    "not a valid",
    "is not recognized",
)
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


def plain_text(text: str) -> str:
    """Without terminal colours (nvidia-smi underlines its header even into a pipe) and carriage returns."""
    return _ANSI.sub("", text).replace("\r\n", "\n").replace("\r", "\n")


def tool_failure(text: str) -> tuple[str, str] | None:
    """(short reason, full line) if the tool said that it could not answer, else None.

    >>> tool_failure("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.")[0]
    'NVIDIA-SMI has failed'
    """
    for line in text.splitlines():
        for reason in _FAILURES:
            if reason.lower() in line.lower():
                return reason, line.strip()
    return None


def _cells(line: str) -> list[str]:
    """Cells of a matrix line: tab-separated as the tool prints it, or space-padded (old drivers, pasted text)."""
    if "\t" in line:
        return [cell.strip() for cell in line.rstrip("\n").split("\t")]
    for title in _TITLES:
        line = line.replace(title, title.replace(" ", "\x00"))
    return ["", *line.split()] if line[:1] in " \t" else line.split()


def _matrix(text: str) -> tuple[list[str], list[tuple[str, list[str]]]] | None:
    """Column titles and (row name, cells) of the first matrix whose header names a GPU."""
    header: list[str] | None = None
    rows: list[tuple[str, list[str]]] = []
    for line in plain_text(text).splitlines():
        cells = [cell.replace("\x00", " ") for cell in _cells(line)]
        filled = [cell for cell in cells if cell]
        if header is None:
            if any(_GPU.match(cell) for cell in filled) and "X" not in filled:
                header = filled
            continue
        if not filled:
            if rows:
                break
            continue
        while cells and not cells[0]:
            cells = cells[1:]
        if cells[0] not in header:
            break
        rows.append((cells[0], cells[1:]))
    return (header, rows) if header is not None else None


def _number_of(name: str) -> str | None:
    match = _GPU.match(name)
    return str(int(match[1])) if match else None


def _value(cell: str) -> int | str | None:
    """A NUMA cell: a number, a range as text, or None for N/A and blanks."""
    if not cell or _UNKNOWN_CELL.match(cell):
        return None
    return int(cell) if re.fullmatch(r"\d{1,9}", cell) else cell


def _affinities(titles: list[str], cells: list[str]) -> dict[str, str]:
    """Cells behind the matrix by column title. The tool prints an extra tab before `GPU NUMA ID`."""
    if len(cells) > len(titles) and "GPU NUMA ID" in titles and len(cells) >= 2 and not cells[-2]:
        cells = cells[:-2] + cells[-1:]
    if len(cells) > len(titles):
        cells = [cell for cell in cells if cell] or cells
    return dict(zip(titles, cells))


def parse_topo(text: str) -> dict[str, Any]:
    """GPU links of `nvidia-smi topo -m`.

    Returns: `gpus` (count), `nics` (as the header names them), `links` ("0-1" -> "NV18", "PIX", "SYS", ...),
    `nvlink_count` ("0-1" -> 18; 0 where the path is not NVLink), `nic_links` ("0-mlx5_0" -> "PIX"), `nic_names`
    (from the NIC legend), `cpu_affinity`, `numa` and `gpu_numa_id` by GPU (None if not given). Without a driver:
    `gpus` 0 and `error`.

    Raises: UnreadableInput when the text holds neither a matrix nor a known failure.
    """
    matrix = _matrix(text)
    if matrix is None:
        failure = tool_failure(plain_text(text))
        if failure is None:
            raise UnreadableInput("no GPU matrix found, expected the output of: nvidia-smi topo -m")
        return {"gpus": 0, "nics": [], "links": {}, "error": failure[0], "error_detail": failure[1]}
    header, rows = matrix
    devices = [cell for cell in header if cell not in _TITLES]
    titles = [cell for cell in header if cell in _TITLES]
    gpus = [name for name in devices if _GPU.match(name)]
    result: dict[str, Any] = {"gpus": len(gpus), "nics": [name for name in devices if name not in gpus]}
    for key in ("links", "nvlink_count", "nic_links", "cpu_affinity", "numa", "gpu_numa_id"):
        result[key] = {}
    for name, cells in rows:
        number = _number_of(name)
        if number is None:
            continue  # a NIC's row repeats what the GPUs' rows say
        behind = _affinities(titles, cells[len(devices) :])
        result["cpu_affinity"][number] = behind.get("CPU Affinity") or None
        if _UNKNOWN_CELL.match(behind.get("CPU Affinity", "")):
            result["cpu_affinity"][number] = None
        result["numa"][number] = _value(behind.get("NUMA Affinity", ""))
        result["gpu_numa_id"][number] = _value(behind.get("GPU NUMA ID", ""))
        for other, link in zip(devices, cells):
            _add_link(result, number, other, link)
    result["nic_names"] = dict(re.findall(r"^\s*(NIC\d+): (\S+)", plain_text(text), re.MULTILINE))
    if len(rows) < len(devices):
        result["error"] = f"matrix is cut: {len(rows)} of {len(devices)} rows"
    return result


def _add_link(result: dict[str, Any], number: str, other: str, link: str) -> None:
    if not link or link == "X":
        return
    peer = _number_of(other)
    if peer is None:
        result["nic_links"][f"{number}-{other}"] = link
        return
    low, high = sorted((int(number), int(peer)))
    nvlink = _NVLINK.match(link)
    result["links"].setdefault(f"{low}-{high}", link)
    result["nvlink_count"].setdefault(f"{low}-{high}", int(nvlink[1]) if nvlink else 0)


def parse_topo_p2p(text: str) -> dict[str, Any]:
    """Peer access of `nvidia-smi topo -p2p r` (or w, n, a, p).

    Returns: `gpus` (count), `p2p` ("0-1" -> "OK", "GNS", "CNS", ...), `one_way` (pairs whose two directions differ,
    as [forward, backward]). Without a driver: `gpus` 0 and `error`. Raises: UnreadableInput.
    """
    matrix = _matrix(text)
    if matrix is None:
        failure = tool_failure(plain_text(text))
        if failure is None:
            raise UnreadableInput("no GPU matrix found, expected the output of: nvidia-smi topo -p2p r")
        return {"gpus": 0, "p2p": {}, "error": failure[0], "error_detail": failure[1]}
    header, rows = matrix
    gpus = [name for name in header if _GPU.match(name)]
    seen: dict[tuple[int, int], str] = {}
    for name, cells in rows:
        number = _number_of(name)
        for other, status in zip(header, cells):
            peer = _number_of(other)
            if number is not None and peer is not None and status and status != "X":
                seen[int(number), int(peer)] = status
    pairs = sorted({(min(pair), max(pair)) for pair in seen})
    one_way = {
        f"{low}-{high}": [seen.get((low, high)), seen.get((high, low))]
        for low, high in pairs
        if seen.get((low, high)) != seen.get((high, low))
    }
    p2p = {f"{low}-{high}": seen.get((low, high), seen.get((high, low))) for low, high in pairs}
    return {"gpus": len(gpus), "p2p": p2p, "one_way": one_way}


def parse_query(text: str) -> dict[str, Any]:
    """GPUs of `nvidia-smi --query-gpu=... --format=csv` (with or without `nounits`).

    Returns: `gpus`, one object each: `index`, `name`, and the other columns as `<name>_<unit>` (`memory_total_mib`,
    `power_w`, `sm_mhz`, ...); a value the driver does not give is None and its reason is in `unavailable`. Clocks and
    power are those of the moment of the query, not of a run. Without a driver: `gpus` [] and `error`.

    Raises: UnreadableInput when there is no header line.
    """
    lines = [line for line in plain_text(text).splitlines() if line.strip()]
    place = next((i for i, line in enumerate(lines) if _is_query_header(line)), None)
    if place is None:
        failure = tool_failure(plain_text(text))
        if failure is None:
            raise UnreadableInput("no CSV header found, expected: nvidia-smi --query-gpu=index,name,... --format=csv")
        return {"gpus": [], "error": failure[0], "error_detail": failure[1]}
    columns = [_column(title) for title in _split(lines[place])]
    gpus: dict[Any, dict[str, Any]] = {}
    ignored: list[str] = []
    for line in lines[place + 1 :]:
        cells = _split(line)
        if line.strip() == lines[place].strip():
            continue
        if len(cells) != len(columns):
            ignored.append(line.strip()[:120])
            continue
        gpu = _query_row(columns, cells)
        gpus[gpu.get("index", len(gpus)) if gpu.get("index") is not None else f"row {len(gpus)}"] = gpu
    result: dict[str, Any] = {"gpus": list(gpus.values()), "taken": "at the moment of the query, not during a run"}
    failure = tool_failure("\n".join(ignored))
    if failure is not None:
        result |= {"error": failure[0], "error_detail": failure[1]}
    return result | ({"ignored_lines": ignored[:10]} if ignored else {})


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
    return _SHORT_NAMES.get(name, re.sub(r"\W+", "_", name).strip("_")), _UNIT_SUFFIX.get(unit.strip().lower(), "")


def _query_row(columns: list[tuple[str, str]], cells: list[str]) -> dict[str, Any]:
    gpu: dict[str, Any] = {}
    unavailable: dict[str, str] = {}
    for (name, unit), cell in zip(columns, cells):
        number = re.fullmatch(r"(-?\d{1,15}(?:\.\d{1,15})?)\s*([A-Za-z%]*)", cell)
        unit = unit or (_UNIT_SUFFIX.get(number[2].lower(), "") if number else "")
        key = f"{name}_{unit}" if unit else name
        if key in gpu:
            key = f"{key}_{len(gpu)}"
        if _UNKNOWN_CELL.match(cell) or not cell:
            gpu[key] = None
            unavailable[key] = cell.strip("[] ")
        elif name in ("name", "uuid", "serial", "driver_version", "vbios_version", "compute_cap", "bus_id"):
            gpu[key] = cell
        elif number:
            gpu[key] = float(number[1]) if "." in number[1] else int(number[1])
        else:
            gpu[key] = cell
    return gpu | ({"unavailable": unavailable} if unavailable else {})

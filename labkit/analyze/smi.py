"""Output of nvidia-smi: `topo -m` and `topo -p2p` (`smi_query` reads `--query-gpu`).

A machine without a driver, or a value the driver will not tell, is an answer too: `error`, None, never a crash and
never a zero that looks measured. Keys that stand for GPUs are texts ("0", "0-1"), as in JSON.
"""

from __future__ import annotations

import re
from typing import Any

from labkit.analyze.kinds import UnreadableInput
from labkit.analyze.smi_lines import of_first_source

_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\[(?:\d{1,3})(?:;\d{1,3})*m")
_TITLES = ("CPU Affinity", "NUMA Affinity", "GPU NUMA ID")
_GPU = re.compile(r"^GPU\s?(\d+)$")
_NVLINK = re.compile(r"^NV(\d+)$")
_LINK = re.compile(r"^(?:X|N/A|[A-Z][A-Z0-9]{1,5})$")
_WORD = r"(?:NODE|SYS|PHB|PXB|PIX|PSB|SOC|NV\d{1,2}|X)"
_GLUED = re.compile(rf"{_WORD}{{2,}}$")
"""Cells that touch: a tab turned into no space at all where a cell filled its column."""
UNKNOWN_CELL = re.compile(
    r"^\[?\s*(N/?A|Not Supported|Not Available|Insufficient Permissions?|Unknown Error|Unknown|No Permissions?"
    r"|GPU is lost|Requested functionality has been deprecated)\s*\]?$|^\[.*\]$",
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
    cells = [part for cell in line.split() for part in (re.findall(_WORD, cell) if _GLUED.match(cell) else [cell])]
    return ["", *cells] if line[:1] in " \t" else cells


def _is_header(line: str) -> bool:
    cells = [cell for cell in _cells(line) if cell]
    return any(_GPU.match(cell) for cell in cells) and "X" not in cells


def _matrix(text: str) -> tuple[list[str], list[tuple[str, list[str]]]] | None:
    """Column titles and (row name, cells) of the first matrix whose header names a GPU."""
    header: list[str] | None = None
    places: dict[str, int] = {}
    rows: list[tuple[str, list[str]]] = []
    for line in of_first_source(plain_text(text), _is_header):
        cells = [cell.replace("\x00", " ") for cell in _cells(line)]
        filled = [cell for cell in cells if cell]
        if header is None:
            if _is_header(line):
                header, places = filled, {title: line.index(title) for title in _TITLES if title in line}
            continue
        if not filled:
            if rows:
                break
            continue
        while cells and not cells[0]:
            cells = cells[1:]
        if cells[0] not in header:
            break
        rows.append((cells[0], cells[1:] if "\t" in line else _placed(line, cells[1:], len(header), places)))
    return (header, rows) if header is not None else None


def _placed(line: str, cells: list[str], num_columns: int, places: dict[str, int]) -> list[str]:
    """Cells of a space-padded row of which some behind the links are blank: by where they stand under their titles."""
    num_links = num_columns - len(places)
    behind = cells[num_links:]
    if not behind or len(cells) >= num_columns:
        return cells
    titles = sorted(places, key=lambda title: places[title])
    found = {title: "" for title in titles}
    starts = [match.start() for match in re.finditer(r"\S+", line)][-len(behind):]
    for start, cell in zip(starts, behind):
        found[max((title for title in titles if places[title] <= start + 1), key=lambda title: places[title],
                  default=titles[0])] = cell
    return cells[:num_links] + [found[title] for title in titles]


def _number_of(name: str) -> str | None:
    match = _GPU.match(name)
    return str(int(match[1])) if match else None


def _value(cell: str) -> int | str | None:
    """A NUMA cell: a number, a range as text, or None for N/A and blanks."""
    if not cell or UNKNOWN_CELL.match(cell):
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
        if UNKNOWN_CELL.match(behind.get("CPU Affinity", "")):
            result["cpu_affinity"][number] = None
        result["numa"][number] = _value(behind.get("NUMA Affinity", ""))
        result["gpu_numa_id"][number] = _value(behind.get("GPU NUMA ID", ""))
        for other, link in zip(devices, cells):
            _add_link(result, number, other, link)
    result["nic_names"] = dict(
        re.findall(r"^\s*(NIC\d+): (\S+)", "\n".join(of_first_source(plain_text(text), _is_header)), re.MULTILINE))
    if len(rows) < len(devices):
        result["error"] = f"matrix is cut: {len(rows)} of {len(devices)} rows"
    return result


def _add_link(result: dict[str, Any], number: str, other: str, link: str) -> None:
    if link == "X" or not _LINK.match(link):
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
        if seen.get((low, high), seen.get((high, low))) != seen.get((high, low), seen.get((low, high)))
    }
    p2p = {f"{low}-{high}": seen.get((low, high), seen.get((high, low))) for low, high in pairs}
    cut = {"error": f"matrix is cut: {len(rows)} of {len(gpus)} rows"} if len(rows) < len(gpus) else {}
    return {"gpus": len(gpus), "p2p": p2p, "one_way": one_way, **cut}

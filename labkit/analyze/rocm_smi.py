"""Output of `rocm-smi --showtopo` (and its parts: --showtopoweight, --showtopohops, --showtopotype, --showtoponuma)."""

from __future__ import annotations

import json
import re
from typing import Any

from labkit.analyze.kinds import UnreadableInput
from labkit.analyze.smi import plain_text
from labkit.analyze.smi_lines import of_first_source

_SECTION = re.compile(
    r"^[=\s-]*(Weight|Hops|Link Type|Link accessibility|Access|Numa Nodes?)\b[^=]*[=\s-]*$", re.IGNORECASE
)
_OTHER_SECTION = re.compile(r"^\s*={4,}[^=]*={2,}\s*$")
_PAIR = re.compile(r"\(Topology\) (Weight|Hops|Link type) between DRM devices (\d+) and (\d+)", re.IGNORECASE)
_GPU = re.compile(r"^GPU\[?(\d+)\]?$")
_NUMA = re.compile(r"^GPU\s?\[?(\d+)\]?\s*:\s*\(Topology\)\s*Numa (Node|Affinity)\s*:\s*(\S+)", re.IGNORECASE)
_FAILURES = (
    "ROCk module is NOT loaded",
    "Driver not initialized",
    "No AMD GPUs",
    "No GPUs",
    "rocm-smi: command not found",
    "command not found",
    "Unable to detect any",
    "not found",
    "Permission denied",
)


def parse_rocm_topo(text: str) -> dict[str, Any]:
    """GPU links of `rocm-smi --showtopo`, also with `--json`.

    Returns: `gpus` (count), `vendor`, `links` ("0-1" -> "XGMI" or "PCIE"), `hops` and `weight` ("0-1" -> number; None
    where the tool gives none), `accessible` ("0-1" -> bool, if printed), `numa` and `numa_affinity` by GPU (None for
    -1, which means no node). Weights are relative costs, not bandwidths. Without a driver: `gpus` 0 and `error`.

    Raises: UnreadableInput when the text holds none of the tables and no known failure.
    """
    tables: dict[str, dict[str, str]] = {"weight": {}, "hops": {}, "link type": {}, "access": {}}
    numa: dict[str, dict[str, int | None]] = {"node": {}, "affinity": {}}
    gpus: set[int] = set()
    section, columns = "", list[int]()
    lines = _lines_of_json(text) or of_first_source(plain_text(text), lambda line: bool(_SECTION.match(line)))
    for line in lines:
        heading = _SECTION.match(line)
        if heading:
            section, columns = heading[1].lower(), []
            section = "access" if section.startswith("link access") else section
            continue
        if _OTHER_SECTION.match(line):
            section, columns = "", []
            continue
        where = _NUMA.match(line.strip())
        if where:
            value = int(where[3]) if re.fullmatch(r"-?\d{1,6}", where[3]) else -1
            gpus.add(int(where[1]))
            numa[where[2].lower()][str(int(where[1]))] = value if value >= 0 else None
            continue
        cells = line.split()
        numbers = [int(match[1]) for cell in cells if (match := _GPU.match(cell))]
        if section not in tables or not numbers:
            continue
        gpus.update(numbers)
        if len(numbers) == len(cells) and not (len(cells) == 1 and columns):
            columns = numbers
        elif _GPU.match(cells[0]):
            for other, cell in zip(columns, cells[1:]):
                if other != numbers[0]:
                    low, high = sorted((numbers[0], other))
                    tables[section].setdefault(f"{low}-{high}", cell)
    if not gpus:
        lines = [line.strip() for line in text.splitlines()]
        failure = next((line for line in lines if any(reason.lower() in line.lower() for reason in _FAILURES)), None)
        if failure is None:
            raise UnreadableInput("no topology table found, expected the output of: rocm-smi --showtopo")
        return {"gpus": 0, "vendor": "amd", "links": {}, "error": failure}
    pairs = sorted({pair for table in tables.values() for pair in table}, key=lambda p: [int(n) for n in p.split("-")])
    result: dict[str, Any] = {
        "gpus": len(gpus),
        "vendor": "amd",
        "links": {pair: _link(tables["link type"].get(pair)) for pair in pairs},
        "hops": {pair: _whole(tables["hops"].get(pair)) for pair in pairs},
        "weight": {pair: _whole(tables["weight"].get(pair)) for pair in pairs},
        "numa": {str(gpu): numa["node"].get(str(gpu)) for gpu in sorted(gpus)},
        "numa_affinity": {str(gpu): numa["affinity"].get(str(gpu)) for gpu in sorted(gpus)},
    }
    if tables["access"]:
        result["accessible"] = {pair: cell.lower() == "true" for pair, cell in tables["access"].items()}
    return result


def _lines_of_json(text: str) -> list[str]:
    """What `--json` tells, as lines of the tables; [] if the text holds no such object."""
    start = text.find("{")
    try:
        value = json.JSONDecoder().raw_decode(text[start:])[0] if start >= 0 else None
    except (ValueError, RecursionError):
        return []
    lines: list[str] = []
    for card, facts in (value.items() if isinstance(value, dict) else ()):
        for key, cell in (facts.items() if isinstance(facts, dict) else ()):
            if pair := _PAIR.match(key):
                lines += [f"== {pair[1]} ==", f"GPU{pair[2]} GPU{pair[3]}", f"GPU{pair[2]} 0 {cell}"]
            elif found := re.fullmatch(r"card(\d+)", card):
                lines.append(f"GPU[{found[1]}] : {key}: {cell}")
    return lines


def _link(cell: str | None) -> str | None:
    return None if cell is None or cell.upper() in ("N/A", "UNKNOWN", "UNDEFINED") else cell.upper()


def _whole(cell: str | None) -> int | None:
    return int(cell) if cell is not None and re.fullmatch(r"\d{1,9}", cell) else None

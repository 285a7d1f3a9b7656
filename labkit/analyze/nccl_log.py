"""NCCL's own log (NCCL_DEBUG=INFO, NCCL_DEBUG_SUBSYS=INIT,ENV,GRAPH,TUNING): what it chose, and over which paths.

    python -m labkit analyze nccl_log nccl.log

The pair of algorithm and protocol comes from the tuner's line for each call. It is never read from a kernel's name:
`ncclDevKernel_AllReduce_Sum_f32_RING_LL` is the name of one kernel that runs all of them. The log is written for NCCL's
developers and changes with versions; lines that fit none of the known forms are left alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from labkit.analyze.kinds import UnreadableInput, clean_text
from labkit.analyze.nccl_tests_lines import unwrapped
from labkit.analyze.smi import plain_text

ALGORITHMS = ("Tree", "Ring", "CollNetDirect", "CollNetChain", "NVLS", "NVLSTree", "PAT")
"""By the number that versions before 2.23 print; the third was CollNet before 2.14."""
PROTOCOLS = ("LL", "LL128", "Simple")
COLLECTIVES = {"AllReduce": "all_reduce", "AllGather": "all_gather", "ReduceScatter": "reduce_scatter",
               "Broadcast": "broadcast", "Reduce": "reduce", "AllToAll": "all_to_all", "AlltoAll": "all_to_all"}
_CHOICE = re.compile(
    r"(?:\b(\w+)(?: \[\w+\])?:\s*)?(?<!\d)(\d+) Bytes -> Algo (\S+) proto (\S+)"
    r"(?: time (\d+(?:\.\d+)?))?(?: channel\{Lo\.\.Hi\}=\{(\d+)\.\.(\d+)\})?")
_KERNEL = re.compile(r"(\w+) \[Symmetric\]:\s*(\d+) Bytes -> Kernel (\S+)(?: nchannels (\d+))?")
_VIA = re.compile(r"Channel (\d+)(?:/\d+)? : (\d+)\[[^\]]*\] -> (\d+)\[[^\]]*\](?: \[\w+\])? via "
                  r"(direct shared memory|\S+(?: pointer)?)")
_ENV = re.compile(  # to the end, or to where another process wrote into the line
    r"\b((?:NCCL|RCCL)_\w+) set (?:by environment )?to (\S.*?)"
    r"(?=\.[\w-]+:\d+:\d+ \[|\s\S+:\d+:\d+ \[|\s*$)")
_TOLD = re.compile(r"\b[NR]CCL (?:INFO|WARN|TRACE|ABORT|VERSION|version)\b")
_VERSION = re.compile(r"\b[NR]CCL version\s*:?\s*(\d+\.\d+\.\d+)")
_RING = re.compile(r"(?:Channel|Ring) (\d+)(?:/(\d+))? :(?: +\d+)+\s*$")
_COUNTS = re.compile(r"(\d+) coll channels(?:, (\d+) \w+ channels)*")
_SUBSYSTEMS = {
    "INIT": re.compile(r"Init (?:START|COMPLETE)|ncclCommInitRank\w* comm"),
    "ENV": re.compile(r"set by environment to"),
    "GRAPH": re.compile(
        r"\bTrees \[0\]|Channel \d+/\d+ :(?: +\d+)+\s*$|Pattern \d+, crossNic|=== System :|Ring \d+ : \d+ ->"),
    "TUNING": re.compile(r"Bytes -> (?:Algo|Kernel) |Max NThreads *\|"),
}


def parse_log(text: str) -> dict[str, Any]:
    """What one or more ranks of NCCL (or RCCL) logged.

    Returns: `nccl_version`, `subsystems` (of INIT, ENV, GRAPH, TUNING: those with a line here), `environ` (settings it
    says it took), `choices` (a row for each different call: collective, size_bytes, algorithm, protocol, num_channels,
    time_us (its own estimate), num_lines), `chosen` (collective -> size in bytes -> "Ring+LL", or None where calls of
    one size went several ways), `model` (collective -> "Ring+LL" -> latency_us, bandwidth_gb_per_s; 0 is switched off),
    `transports` ("0-1" -> paths), `num_ring_channels`, `warnings`.

    Raises: UnreadableInput when no line is NCCL's.
    """
    lines = [line for line in unwrapped(plain_text(clean_text(text))) if line.strip()]
    told = [line for line in lines if re.search(r"\b[NR]CCL\b", line)]
    if not any(map(_TOLD.search, told)):
        raise UnreadableInput("no line of NCCL found, expected a log made with NCCL_DEBUG=INFO")
    version = next((found[1] for line in told if (found := _VERSION.search(line))), None)
    choices = _choices(told, version)
    rings = [int(found[2] or int(found[1]) + 1) for line in told if (found := _RING.search(line))]
    return {
        "nccl_version": version,
        "subsystems": [name for name, pattern in _SUBSYSTEMS.items() if any(map(pattern.search, told))],
        "environ": {found[1]: found[2].rstrip(".") for line in told if (found := _ENV.search(line))},
        "choices": choices, "chosen": chosen(choices), "model": _model(told), "transports": _transports(told),
        "num_ring_channels": max(rings, default=None) or _counted(told),
        "warnings": list(dict.fromkeys(_bare(line) for line in told if "CCL WARN" in line))[:10],
    }


def chosen(choices: Iterable[dict[str, Any]]) -> dict[str, dict[str, str | None]]:
    """Collective -> size in bytes -> the pair it ran with; None where calls of one size ran with different ones."""
    found: dict[str, dict[str, str | None]] = {}
    for choice in choices:
        pair = "+".join(part for part in (choice["algorithm"], choice["protocol"]) if part)
        sizes = found.setdefault(choice["collective"] or "unknown", {})
        size = str(choice["size_bytes"])
        sizes[size] = pair if sizes.get(size, pair) == pair else None
    return found


def _choices(lines: list[str], version: str | None) -> list[dict[str, Any]]:
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    for line in lines:
        row: dict[str, Any] | None = None
        if found := _CHOICE.search(line):
            low, high = found[6], found[7]
            row = {"collective": COLLECTIVES.get(found[1] or "", found[1]), "size_bytes": int(found[2]),
                   "algorithm": algorithm_name(found[3], version=version), "protocol": protocol_name(found[4]),
                   "num_channels": int(high) - int(low) + 1 if low is not None else None,
                   "time_us": float(found[5]) if found[5] else None}
        elif found := _KERNEL.search(line):
            row = {"collective": COLLECTIVES.get(found[1], found[1]), "size_bytes": int(found[2]),
                   "algorithm": f"Symmetric {found[3]}", "protocol": None,
                   "num_channels": int(found[4]) if found[4] else None, "time_us": None}
        if row is not None:
            rows.setdefault(tuple(row.values()), row | {"num_lines": 0})["num_lines"] += 1
    return list(rows.values())


def algorithm_name(told: str, *, version: str | None = None) -> str:
    """Name of an algorithm as the log has it: a number, RING, Ring or COLLNET_DIRECT.

    Args:
        told: the word behind "Algo".
        version: of NCCL, for the number 2.

    >>> algorithm_name("1"), algorithm_name("NVLS_TREE"), algorithm_name("2", version="2.10.3")
    ('Ring', 'NVLSTree', 'CollNet')
    """
    if told.isdigit():
        old = version is not None and tuple(map(int, version.split(".")[:2])) < (2, 14)
        return "CollNet" if old and told == "2" else ALGORITHMS[int(told)] if int(told) < len(ALGORITHMS) else told
    return next((name for name in ALGORITHMS if name.lower() == told.replace("_", "").lower()), told)


def protocol_name(told: str) -> str:
    """Name of a protocol as the log has it: a number, SIMPLE or Simple.

    >>> protocol_name("2"), protocol_name("SIMPLE"), protocol_name("LL128")
    ('Simple', 'Simple', 'LL128')
    """
    if told.isdigit() and int(told) < len(PROTOCOLS):
        return PROTOCOLS[int(told)]
    return next((name for name in PROTOCOLS if name.lower() == told.lower()), told)


def _model(lines: list[str]) -> dict[str, dict[str, dict[str, float]]]:
    """The latency and bandwidth table of rank 0: one block of columns (old), or one for each few algorithms."""
    model: dict[str, dict[str, dict[str, float]]] = {}
    algorithms: list[str] = []
    columns: list[str] = []
    for line in lines:
        if "|" not in line:
            continue
        head, *cells = [cell.strip() for cell in _bare(line).split("|")]
        cells = [cell for cell in cells if cell]
        if head.startswith("Latency/AlgBw"):
            columns = ["+".join(part.strip() for part in cell.split("/")) for cell in cells]
        elif head == "Algorithm":
            algorithms = [algorithm_name(cell) for cell in cells]
            columns = [f"{algorithm}+{protocol}" for algorithm in algorithms for protocol in PROTOCOLS]
        elif head == "Protocol" and algorithms and len(cells) % len(algorithms) == 0:
            each = len(cells) // len(algorithms)
            columns = [f"{algorithms[i // each]}+{protocol_name(cell)}" for i, cell in enumerate(cells)]
        elif head in COLLECTIVES and columns:
            for column, cell in zip(columns, cells):
                if found := re.fullmatch(r"(-?\d+(?:\.\d+)?)/\s*(-?\d+(?:\.\d+)?)", cell):
                    model.setdefault(COLLECTIVES[head], {})[column] = {
                        "latency_us": float(found[1]), "bandwidth_gb_per_s": float(found[2])}
    return model


def _transports(lines: list[str]) -> dict[str, list[str]]:
    found: dict[str, set[str]] = {}
    for line in lines:
        if via := _VIA.search(line):
            low, high = sorted((int(via[2]), int(via[3])))
            found.setdefault(f"{low}-{high}", set()).add(via[4])
    return {pair: sorted(paths) for pair, paths in sorted(found.items())}


def _counted(lines: list[str]) -> int | None:
    counts = [int(found[1]) for line in lines if (found := _COUNTS.search(line))]
    return max(counts, default=None)


def _bare(line: str) -> str:
    """A line without time, host, process and rank in front."""
    return re.sub(r"^.*?[NR]CCL (?:INFO|WARN|TRACE) ", "", line).strip()

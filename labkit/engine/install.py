"""Install vLLM into `.engines/vllm` from a complete pinned lock; nothing is resolved, nothing else is downloaded.

The CPU build where there is no GPU, the CUDA build where there is one. A second call on a finished engine does no work,
a call after an interruption goes on where pip stopped.

    python -m labkit engine install
"""

from __future__ import annotations

import hashlib
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from labkit import bootstrap
from labkit.engine.find import ENGINE_PYTHON, Engine, EngineMissing, find_engine
from labkit.paths import DATA, ROOT

FOLDER = ENGINE_PYTHON.parents[1]
STAMP = FOLDER / ".labkit-engine"
LOG = ROOT / "build" / "engine.log"
DISK_BYTES = {"cpu": 5 * 10**9, "cuda": 20 * 10**9}
"""Free space an installation needs, unpacked wheels and pip's own copies."""


def install(device: str, *, log: Callable[[str], None]) -> Engine:
    """Install the engine for `device`, or find that it is there.

    Args:
        device: `cpu` or `cuda`.
        log: told what is being done.

    Raises: EngineMissing, one line, when the disk is too small, a package is refused, or the result does not fit.
    """
    lock = DATA / "locks" / f"vllm_{device}.txt"
    wanted = hashlib.sha256(lock.read_bytes() + f"{sys.version_info[:2]} {ROOT}".encode()).hexdigest()
    if STAMP.is_file() and STAMP.read_text() == wanted and ENGINE_PYTHON.exists():
        return find_engine(device)
    FOLDER.parent.mkdir(exist_ok=True)
    LOG.parent.mkdir(exist_ok=True)
    free = shutil.disk_usage(FOLDER.parent).free
    if free < DISK_BYTES[device]:
        raise EngineMissing(f"{free / 1e9:.1f} GB free on the disk, expected {DISK_BYTES[device] / 1e9:.0f} GB for "
                            f"vLLM, {device} build")
    STAMP.unlink(missing_ok=True)
    if not _fits(lock):  # the other build: its packages would stay beside these
        shutil.rmtree(FOLDER, ignore_errors=True)
    try:
        bootstrap.make_venv(FOLDER, system_site=False)
    except SystemExit as error:
        raise EngineMissing(str(error)) from None
    (FOLDER / "made-from").write_text(lock.name)
    log(f"installing vLLM, {device} build: {sum('==' in line for line in lock.read_text().splitlines())} pinned "
        "packages (2-6 minutes)")
    where = f"the last lines of {LOG.relative_to(ROOT)} say why"
    if not bootstrap.pip("install", "--no-deps", "--no-input", "-r", str(lock), python=ENGINE_PYTHON, log_file=LOG):
        raise EngineMissing(f"a package of vLLM's {device} build was refused; {where}; run it again to resume")
    if device == "cpu" and not bootstrap.install_torch_cpu(python=ENGINE_PYTHON, log_file=LOG):
        raise EngineMissing(f"torch for vLLM's cpu build was refused; {where}")
    engine = find_engine(device)
    STAMP.write_text(wanted)
    log(f"vLLM {engine.version} with torch {engine.torch} is in {FOLDER.relative_to(ROOT)}")
    return engine


def _fits(lock: Path) -> bool:
    """Whether what is there, if anything, was made from this lock."""
    made_from = FOLDER / "made-from"
    return not FOLDER.exists() or (made_from.is_file() and made_from.read_text() == lock.name)

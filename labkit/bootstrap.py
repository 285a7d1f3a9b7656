"""Set up `.venv` from the pinned lock, with nothing but a Python 3.11 or 3.12: `python3 labkit/bootstrap.py`.

Standard library only; run by the Makefile, imported by labkit.engine.install alone. It is idempotent and resumes: a
second call on a finished environment does no work, a call after an interruption goes on where pip stopped.

torch: on a machine without a GPU the CPU build is taken from whatever index or folder pip is configured with, else from
PyTorch's own CPU index. On a GPU host a torch >= 2.11 that is already there is used, else the CUDA build is installed.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
LOCK = ROOT / "data" / "locks" / "lab.txt"
LOG = ROOT / "build" / "setup.log"
STAMP = VENV / ".labkit-setup"
SUPPORTED = ((3, 11), (3, 12))
TORCH, TRITON = "2.13.0", "3.9.0"
TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
HAS_TORCH = (
    "import importlib.metadata as m; v = m.version('torch').split('.'); assert (int(v[0]), int(v[1])) >= (2, 11)"
)


def stop(message: str) -> None:
    sys.exit(f"setup: {message}")


def say(message: str) -> None:
    print(f"setup: {message}", file=sys.stderr, flush=True)


def quiet(argv: list[str]) -> bool:
    """Run a probe; True if it exits 0."""
    try:
        return subprocess.run(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=120).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def reexec_with_supported_python() -> None:
    """Go on under python3.12 or python3.11 when this interpreter is another one."""
    if sys.version_info[:2] in SUPPORTED:
        return
    for name in ("python3.12", "python3.11"):
        found = shutil.which(name)
        if found and quiet([found, "-c", "import sys"]):
            os.execv(found, [found, __file__])
    stop(f"python3 is {sys.version.split()[0]}; expected Python 3.11 or 3.12 (set PYTHON=/path/to/python3.11)")


def has_gpu() -> bool:
    """True when an NVIDIA driver answers; LABKIT_CPU=1 overrides it."""
    return os.environ.get("LABKIT_CPU") != "1" and quiet(["nvidia-smi", "-L"])


def pip(*arguments: str, python: Path = PYTHON, log_file: Path = LOG) -> bool:
    """Run pip in an environment, output to a log; True if it exits 0."""
    with open(log_file, "a", encoding="utf-8") as log:
        log.write(f"\n$ pip {' '.join(arguments)}\n")
        log.flush()
        argv = [str(python), "-m", "pip", "--disable-pip-version-check", *arguments]
        return subprocess.run(argv, stdout=log, stderr=log).returncode == 0


def make_venv(venv: Path = VENV, *, system_site: bool) -> None:
    """Create an environment, or keep a working one of the same kind."""
    config = venv / "pyvenv.cfg"
    same = config.is_file() and f"include-system-site-packages = {str(system_site).lower()}" in config.read_text()
    if same and quiet([str(venv / "bin" / "python"), "-m", "pip", "--version"]):
        return
    say(f"creating {venv.relative_to(ROOT)}")
    argv = [sys.executable, "-m", "venv", "--clear", *(["--system-site-packages"] if system_site else []), str(venv)]
    if quiet(argv):
        return
    if os.geteuid() == 0 and shutil.which("apt-get"):
        version = f"{sys.version_info[0]}.{sys.version_info[1]}"
        say(f"this Python lacks its venv module: installing python{version}-venv")
        quiet(["apt-get", "update"])
        if quiet(["apt-get", "install", "-y", f"python{version}-venv"]) and quiet(argv):
            return
    stop("this Python cannot make a virtual environment; on Debian or Ubuntu: sudo apt-get install python3-venv")


def install_torch(*, gpu: bool) -> str:
    """Install torch and Triton; returns one line saying what is there."""
    if quiet([str(PYTHON), "-c", HAS_TORCH]):
        return "torch is there"
    if gpu:
        # With dependencies: the CUDA libraries are separate wheels that this torch pins itself.
        if pip("install", "--no-input", f"torch=={TORCH}"):
            return f"torch {TORCH}, CUDA build"
        stop(f"torch {TORCH} (CUDA build) was refused; the last lines of {LOG.relative_to(ROOT)} say why")
    if not install_torch_cpu():
        stop(
            f"no torch=={TORCH}+cpu: neither pip's configured indexes and folders nor PyTorch's CPU index has it for "
            f"Python {sys.version_info[0]}.{sys.version_info[1]}; see {LOG.relative_to(ROOT)}"
        )
    if not pip("install", "--no-deps", "--no-input", f"triton=={TRITON}"):
        stop(f"triton=={TRITON} was refused; see {LOG.relative_to(ROOT)}")
    return f"torch {TORCH}, CPU build"


def install_torch_cpu(*, python: Path = PYTHON, log_file: Path = LOG) -> bool:
    """The CPU build of torch, from where pip is told to look or from the own index of PyTorch; True if it is there."""
    common = ("install", "--no-deps", "--no-input", f"torch=={TORCH}+cpu")
    return any(pip(*common, *extra, python=python, log_file=log_file)
               for extra in ((), ("--index-url", TORCH_CPU_INDEX)))


def fingerprint(*, gpu: bool, system_site: bool) -> str:
    """What a finished environment was made from; a change of any of these runs the set-up again."""
    parts = [LOCK.read_bytes(), (ROOT / "pyproject.toml").read_bytes(), Path(__file__).read_bytes()]
    parts.append(f"{sys.version_info[:2]} gpu={gpu} system_site={system_site} root={ROOT}".encode())
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


def main() -> None:
    reexec_with_supported_python()
    gpu = has_gpu()
    # A GPU host that already carries a fitting torch keeps it: the drivers and NCCL were chosen together.
    system_site = gpu and quiet([sys.executable, "-c", HAS_TORCH])
    wanted = fingerprint(gpu=gpu, system_site=system_site)
    if STAMP.is_file() and STAMP.read_text() == wanted and PYTHON.exists():
        return
    LOG.parent.mkdir(exist_ok=True)
    make_venv(system_site=system_site)
    say(f"installing {sum('==' in line for line in LOCK.read_text().splitlines())} pinned packages (1-3 minutes)")
    if not pip("install", "--no-deps", "--no-input", "-r", str(LOCK)):
        stop(f"a pinned package was refused; the last lines of {LOG.relative_to(ROOT)} say why; run it again to resume")
    say("installing torch and Triton")
    say(install_torch(gpu=gpu))
    if not pip("install", "--no-deps", "--no-input", "--no-build-isolation", "-e", str(ROOT)):
        stop(f"labkit itself did not install; see {LOG.relative_to(ROOT)}")
    if not system_site and not pip("check"):
        stop(f"the packages do not fit together; see {LOG.relative_to(ROOT)}")
    STAMP.write_text(wanted)
    say("done")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        stop("interrupted; run it again to resume")

"""Where a run came from: code, software, hardware and settings, without anything that names a person or a machine.

    environment = collect(result.argv)        # for RunRecord.environment

Variables are stored through an allow-list; secrets and paths inside their values are replaced.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from labkit import machine
from labkit.paths import ROOT
from labkit.records import is_secret, public_argv, public_text

ALLOWED_PREFIXES = ("NCCL_", "RCCL_", "TORCH_", "PYTORCH_", "TRITON_", "GLOO_", "LABKIT_", "VLLM_", "FI_", "UCX_")
ALLOWED_NAMES = frozenset({
    "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "CUDA_LAUNCH_BLOCKING", "CUDA_DEVICE_MAX_CONNECTIONS",
    "CUDA_MODULE_LOADING", "HIP_VISIBLE_DEVICES", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "KMP_AFFINITY",
    "OMP_PROC_BIND", "OMP_PLACES", "PYTHONHASHSEED", "CUBLAS_WORKSPACE_CONFIG",
})
_PATH = re.compile(r"(?<![\w.$~/<])~?/[\w.@+-]+(?:/[\w.@+-]*)*|~(?=/|$)")
REDACTED = "<redacted>"


def collect(argv: Sequence[str] = (), *, run_dir: Path | None = None) -> dict[str, Any]:
    """The `environment` of a record.

    Args:
        argv: the command that measured; the interpreter becomes `python`, paths become relative.
        run_dir: the run's directory, `$RUN_DIR` in the command.

    Returns: {"git": {commit, dirty, source_sha256}, "software": {name: version}, "hardware": {tag, num_gpus, gpus,
    cpu, topology, driver_version, cuda_version, system, gpu_note}, "environ": {name: value}, "command": [...]}. Unknown
    is None; outside a git checkout dirty is None and commit is what `LABKIT_GIT_COMMIT` names, if anything. Never fails
    on a strange machine.
    """
    here = machine.detect()
    found = here.to_json()
    git = git_state(ROOT)
    if git["commit"] is None:
        git |= named_commit(os.environ)
    return {
        "git": {**git, "source_sha256": source_sha256(ROOT / "labkit")},
        "software": {"python": here.python_version, **here.software},
        "hardware": {
            "tag": here.tag, "num_gpus": here.num_gpus, "gpus": found["gpus"], "cpu": found["cpu"],
            "topology": found["links"], "driver_version": here.driver_version, "cuda_version": here.cuda_version,
            "system": here.system, "gpu_note": here.gpu_note,
        },
        "environ": allowed_environ(os.environ),
        "command": public_argv(argv, run_dir=run_dir),
    }


def git_state(root: Path) -> dict[str, Any]:
    """{"commit": hex, "dirty": bool} of the checkout at `root`; both None where `root` is not the top of one.

    Dirty counts changed and untracked files, but not ignored ones: an untracked worker is code that ran.
    """
    unknown = {"commit": None, "dirty": None}
    git = ["git", "--no-optional-locks", "-C", str(root)]
    top, problem = machine.tool_output([*git, "rev-parse", "--show-toplevel", "HEAD"])
    lines = top.splitlines()
    # A copy of the project inside another repository must not be given that repository's commit.
    if problem or len(lines) != 2 or Path(lines[0]).resolve() != root.resolve():
        return unknown
    status, problem = machine.tool_output([*git, "status", "--porcelain"])
    return {"commit": lines[1], "dirty": None if problem else bool(status.strip())}


def named_commit(environ: Mapping[str, str]) -> dict[str, Any]:
    """{"commit": hex} from `LABKIT_GIT_COMMIT`, for a host that got the files without the repository; {} if unset.

    It is what the operator said; `source_sha256` beside it is what ran, and can be held against that commit.
    """
    named = environ.get("LABKIT_GIT_COMMIT", "")
    return {"commit": named} if re.fullmatch(r"[0-9a-f]{40}", named) else {}


def source_sha256(package: Path) -> str:
    """SHA-256 over the names and contents of a package's Python and YAML files.

    It identifies the code where there is no git, for example on a GPU host that got a copy of the files.
    """
    digest = hashlib.sha256()
    files = (path for path in package.rglob("*") if path.suffix in (".py", ".yaml") and path.is_file())
    for path in sorted(files, key=lambda path: path.relative_to(package).as_posix()):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(package).as_posix()}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()


def allowed_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that can change a result, by allow-list, with secrets and paths taken out of their values.

    >>> allowed_environ({"NCCL_ALGO": "Ring", "HOME": "/home/ann", "VLLM_API_KEY": "x", "TORCH_HOME": "/home/ann/t"})
    {'NCCL_ALGO': 'Ring', 'TORCH_HOME': '<path>', 'VLLM_API_KEY': '<redacted>'}
    """
    return {
        name: public_setting(name, value) for name, value in sorted(environ.items())
        if name in ALLOWED_NAMES or name.startswith(ALLOWED_PREFIXES)
    }


def public_setting(name: str, value: str) -> str:
    """A variable's value as it may be published: `<redacted>` for a secret, `<path>` for each absolute path."""
    if is_secret(name, value):
        return REDACTED
    value = public_text(_PATH.sub("<path>", value))
    return value.encode("utf-8", "replace").decode()  # bytes that are not UTF-8 arrive as lone surrogates

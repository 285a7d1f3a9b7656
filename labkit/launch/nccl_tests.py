"""Find and run a program of nccl-tests; JSON output where it can, text otherwise.

    program = find_program("all_reduce_perf")       # NCCL_TESTS_HOME, its build folder, PATH
    run_nccl_tests(program, run_dir=run_dir / "p0-Ring+LL", num_gpus=2, min_bytes=1024, max_bytes=2**28, ...)

The program writes the whole environment into its JSON: a record gets it only after
`labkit.analyze.nccl_tests_json.without_secrets`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from labkit.launch.supervise import run_program


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramRun:
    """How one start of a program ended."""

    argv: list[str]
    exitcode: int | None
    timed_out: bool
    wall_s: float
    text: Path
    """What it printed."""
    json: Path | None
    """Its JSON file; None where this version writes none."""


def find_program(name: str) -> Path | None:
    """A program of nccl-tests: in $NCCL_TESTS_HOME, its `build` folder, or on PATH; None if there is none.

    Args:
        name: e.g. "all_reduce_perf".
    """
    home = os.environ.get("NCCL_TESTS_HOME")
    for folder in (Path(home), Path(home, "build")) if home else ():
        if os.access(folder / name, os.X_OK) and (folder / name).is_file():
            return folder / name
    found = shutil.which(name)
    return Path(found) if found else None


def writes_json(program: Path) -> bool:
    """Whether this version has option -J (2.17.3 and newer), by its own help text."""
    try:
        told = subprocess.run([program, "--help"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return "-J" in told.stdout + told.stderr


def run_nccl_tests(
    program: Path, *, run_dir: Path, num_gpus: int, min_bytes: int, max_bytes: int, factor: int, num_warmup: int,
    num_iterations: int, env: Mapping[str, str], timeout_s: float, with_json: bool
) -> ProgramRun:
    """Run one program on the GPUs of this machine, one process with a thread for all; never raises for its failure.

    Args:
        program: from `find_program`.
        run_dir: new folder for what it writes.
        num_gpus: ranks.
        min_bytes: smallest size.
        max_bytes: largest size.
        factor: from size to size.
        num_warmup: calls before timing.
        num_iterations: timed calls, launched in a row; the program tells their mean.
        env: added to the inherited environment.
        timeout_s: deadline.
        with_json: from `writes_json`.
    """
    run_dir.mkdir(parents=True)
    out = run_dir / "out.json"
    argv = [str(program), "-g", str(num_gpus), "-b", str(min_bytes), "-e", str(max_bytes), "-f", str(factor),
            "-w", str(num_warmup), "-n", str(num_iterations), "-c", "1", *(["-J", str(out)] if with_json else [])]
    ended = run_program(argv, run_dir=run_dir, timeout_s=timeout_s, env=dict(env))
    return ProgramRun(argv=argv, exitcode=ended.exitcode, timed_out=ended.timed_out, wall_s=ended.wall_s,
                      text=ended.log, json=out if out.is_file() else None)

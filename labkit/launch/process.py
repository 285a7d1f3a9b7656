"""Start a worker as one process, and what every launcher shares: worker names, threads, results.

    launch_worker("rmsnorm_sweep", run_dir=run_dir / "p0", timeout_s=300)

starts `python -m labkit.workers.rmsnorm_sweep --run-dir <run_dir>/p0`. For several ranks see labkit.launch.torchrun.
"""

from __future__ import annotations

import difflib
import os
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from labkit.launch.errors import WorkerError, first_failure, read_error_file
from labkit.launch.supervise import GRACE_S, LOG_NAME, Ended, LaunchError, Progress, run_program
from labkit.paths import ROOT
from labkit.units import format_seconds

__all__ = ["GRACE_S", "LOG_NAME", "Ended", "LaunchError", "LaunchResult", "Progress", "launch_worker", "run_program"]
WORKERS = ROOT / "labkit" / "workers"


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchResult:
    """A program that ended with exit code 0."""

    argv: list[str]
    wall_s: float
    """Start of the program to the end of its last process, seconds."""
    log: Path
    ended: list[str] = field(default_factory=list)
    """Names of processes that the program left running and that had to be ended."""
    shm_removed: list[str] = field(default_factory=list)
    """Names of shared-memory files that the program left and that were deleted."""


def launch_worker(
    worker: str,
    *,
    run_dir: Path,
    timeout_s: float,
    args: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    progress: Progress | None = None,
    grace_s: float = GRACE_S,
) -> LaunchResult:
    """Run one worker process: `python -m labkit.workers.<worker> --run-dir <run_dir>`.

    Args:
        worker: name of a module in labkit/workers, or a dotted module name.
        run_dir: existing folder that holds params.json.
        timeout_s: deadline of the whole run, seconds.
        args: further arguments of the worker.
        env: added to the environment; OMP_NUM_THREADS defaults to the number of usable cores.
        progress: called with each line of output.
        grace_s: seconds between SIGTERM and SIGKILL.

    Raises: ValueError for a bad argument; LaunchError if the worker fails, is killed or runs past the deadline.
    """
    run_dir = check_run_dir(run_dir)
    argv = [sys.executable, "-m", worker_module(worker), "--run-dir", str(run_dir), *args]
    with tempfile.TemporaryDirectory(prefix="labkit-") as scratch:
        error_file = Path(scratch) / "error.json"
        env = {"TORCHELASTIC_ERROR_FILE": str(error_file), **thread_env(1, env), **(env or {})}
        ended = run_program(argv, run_dir=run_dir, timeout_s=timeout_s, env=env, progress=progress, grace_s=grace_s)
        told = read_error_file(error_file, rank=None)
    if ended.timed_out:
        raise LaunchError(
            f"{worker}: timed out after {format_seconds(timeout_s)}; last line: {ended.tail.last_line(None) or 'none'}",
            log_path=ended.log, exitcode=ended.exitcode, error=ended.tail.last_line(None), timed_out=True)
    if ended.exitcode != 0:
        found = first_failure([told] if told else [WorkerError(exitcode=ended.exitcode)], ended.tail)
        raise LaunchError(
            f"{worker} failed ({describe_exit(ended.exitcode)}): {found.error}; see {LOG_NAME}", log_path=ended.log,
            exitcode=ended.exitcode, error=found.error, traceback=found.traceback)
    return LaunchResult(argv=argv, wall_s=ended.wall_s, log=ended.log, ended=ended.ended,
                        shm_removed=ended.shm_removed)


def worker_module(worker: str) -> str:
    """Module name of a worker; raises ValueError with the close name for one that labkit/workers does not have."""
    if "." in worker:
        return worker
    known = sorted(path.stem for path in WORKERS.glob("*.py") if not path.stem.startswith("_"))
    if worker not in known:
        close = difflib.get_close_matches(worker, known, n=1, cutoff=0.5)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise ValueError(f"worker={worker!r}: no such module in labkit/workers{hint} (known: {', '.join(known)})")
    return f"labkit.workers.{worker}"


def check_run_dir(run_dir: Path) -> Path:
    """The absolute run directory; raises ValueError unless it exists and holds params.json."""
    run_dir = Path(run_dir).resolve()
    if not (run_dir / "params.json").is_file():
        raise ValueError(f"run_dir={str(run_dir)!r}: expected a folder that holds params.json")
    return run_dir


def thread_env(num_procs: int, env: Mapping[str, str] | None) -> dict[str, str]:
    """OMP_NUM_THREADS so that `num_procs` processes share the usable cores; nothing if the user has set it."""
    if "OMP_NUM_THREADS" in os.environ or "OMP_NUM_THREADS" in (env or {}):
        return {}
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return {"OMP_NUM_THREADS": str(max(1, cores // num_procs))}


def describe_exit(exitcode: int | None) -> str:
    """An exit code for people.

    >>> describe_exit(3), describe_exit(-9)
    ('exit code 3', 'killed by SIGKILL')
    """
    if exitcode is None:
        return "exit code unknown"
    if exitcode >= 0:
        return f"exit code {exitcode}"
    try:
        return f"killed by {signal.Signals(-exitcode).name}"
    except ValueError:
        return f"killed by signal {-exitcode}"

"""Start a worker on several ranks with torchrun, and say which rank failed first if one does.

    launch_torchrun("ddp_steps", run_dir=run_dir / "p0", num_procs=2, timeout_s=300)

starts `python -m torch.distributed.run --standalone --nproc-per-node=2 ... -m labkit.workers.ddp_steps --run-dir ...`.
Several launches at once do not collide: `--standalone` takes a free port.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from labkit.launch.errors import LogTail, WorkerError, failure_table, first_failure, read_error_file
from labkit.launch.process import (
    GRACE_S,
    LOG_NAME,
    Ended,
    LaunchError,
    LaunchResult,
    Progress,
    check_run_dir,
    describe_exit,
    run_program,
    thread_env,
    worker_module,
)
from labkit.units import format_seconds

LOG_DIR = "torchrun"
"""Folder in the run directory where torchrun keeps each rank's output while it runs."""


def launch_torchrun(
    worker: str,
    *,
    run_dir: Path,
    num_procs: int,
    timeout_s: float,
    args: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    progress: Progress | None = None,
    nnodes: int = 1,
    node_rank: int | None = None,
    rdzv_endpoint: str | None = None,
    rdzv_id: str | None = None,
    grace_s: float = GRACE_S,
) -> LaunchResult:
    """Run `labkit/workers/<worker>.py` on `num_procs` ranks of this machine and wait for the end.

    The output of all ranks goes to `run_dir/log.txt`, each line with `[rank<k>]:` in front. After a failure
    `rank<k>.error.json` holds what `@record` wrote for rank k. When this returns or raises, no process, port or
    shared-memory file of the run is left.

    Args:
        worker: name of a module in labkit/workers, or a dotted module name.
        run_dir: existing folder that holds params.json; the worker gets it as --run-dir.
        num_procs: ranks on this machine, >= 1.
        timeout_s: deadline of the whole run, start-up included, seconds. A hung collective ends here.
        args: further arguments of the worker.
        env: added to the inherited environment; OMP_NUM_THREADS defaults to usable cores / num_procs.
        progress: called with each line of output.
        nnodes: machines that take part; the same call is made on each of them.
        node_rank: this machine's index, for `nnodes` > 1.
        rdzv_endpoint: "host:port" of the rendezvous, needed for `nnodes` > 1.
        rdzv_id: name of the job, the same on all machines.
        grace_s: seconds between SIGTERM and SIGKILL when the run must stop.

    Raises: ValueError for a bad argument; LaunchError naming the rank that failed first and its error, or, past the
        deadline, the last line of each rank.
    """
    if num_procs < 1:
        raise ValueError(f"num_procs={num_procs}: expected at least 1")
    run_dir = check_run_dir(run_dir)
    argv = [
        sys.executable, "-m", "torch.distributed.run",
        *_rendezvous(nnodes, node_rank=node_rank, endpoint=rdzv_endpoint, job=rdzv_id),
        f"--nproc-per-node={num_procs}", "--max-restarts=0", f"--log-dir={run_dir / LOG_DIR}", "--tee=3",
        "-m", worker_module(worker), "--run-dir", str(run_dir), *args,
    ]
    # The agent waits this long for a rank that ignores SIGTERM after another one has failed.
    defaults = {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str(max(1, int(grace_s))), **thread_env(num_procs, env)}
    forced = {"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "[rank${rank}]:"}
    log_dir = run_dir / LOG_DIR
    try:
        ended = run_program(argv, run_dir=run_dir, timeout_s=timeout_s, env={**defaults, **(env or {}), **forced},
                            progress=progress, grace_s=grace_s)
        if ended.timed_out:
            raise _timed_out(worker, ended, timeout_s=timeout_s, num_procs=num_procs)
        if ended.exitcode != 0:
            errors = _error_files(log_dir, run_dir, first_rank=(node_rank or 0) * num_procs)
            raise _failed(worker, ended, errors, num_procs=num_procs)
    finally:
        shutil.rmtree(log_dir, ignore_errors=True)
    return LaunchResult(argv=argv, wall_s=ended.wall_s, log=ended.log, ended=ended.ended,
                        shm_removed=ended.shm_removed)


def _rendezvous(nnodes: int, *, node_rank: int | None, endpoint: str | None, job: str | None) -> list[str]:
    if nnodes < 1:
        raise ValueError(f"nnodes={nnodes}: expected at least 1")
    if nnodes > 1 and not endpoint:
        raise ValueError(f"rdzv_endpoint={endpoint!r}: expected 'host:port' because nnodes={nnodes}")
    if nnodes == 1 and not endpoint:
        return ["--standalone"]
    options = [f"--nnodes={nnodes}", "--rdzv-backend=c10d", f"--rdzv-endpoint={endpoint}"]
    if node_rank is not None:
        options.append(f"--node-rank={node_rank}")
    return [*options, f"--rdzv-id={job or 'labkit'}"]


def _error_files(log_dir: Path, run_dir: Path, *, first_rank: int) -> list[WorkerError]:
    """Errors of the ranks of this machine; the files are kept in the run directory."""
    found = []
    for path in sorted(log_dir.glob("*/attempt_*/*/error.json")):
        rank = first_rank + int(path.parent.name)
        if (error := read_error_file(path, rank=rank)) is not None:
            found.append(error)
            shutil.copy2(path, run_dir / f"rank{rank}.error.json")
    return found


def _failed(worker: str, ended: Ended, errors: list[WorkerError], *, num_procs: int) -> LaunchError:
    """Blame one rank; without a word from any rank, torchrun itself failed."""
    known = [*errors, *failure_table(ended.tail)]
    cause = first_failure(known or [WorkerError(exitcode=ended.exitcode)], ended.tail)
    who = f"{worker}: rank {cause.rank} failed" if cause.rank is not None else f"{worker}: torchrun failed"
    hint = ""
    if cause.is_witness and num_procs > 1:
        # The rank that went away was stopped by the agent before its own exit code was seen.
        hint = f" (another rank went away; last lines: {_last_lines(ended.tail, num_procs, without=cause.rank)})"
    return LaunchError(
        f"{who} ({describe_exit(cause.exitcode)}): {cause.error}{hint}; see {LOG_NAME}", log_path=ended.log,
        rank=cause.rank, exitcode=cause.exitcode, error=cause.error, traceback=cause.traceback)


def _timed_out(worker: str, ended: Ended, *, timeout_s: float, num_procs: int) -> LaunchError:
    """Name the last line of each rank: the one that stopped first is often visible there."""
    last = _last_lines(ended.tail, num_procs)
    return LaunchError(
        f"{worker}: timed out after {format_seconds(timeout_s)}; last lines: {last}", log_path=ended.log,
        exitcode=ended.exitcode, error=last, timed_out=True)


def _last_lines(tail: LogTail, num_procs: int, *, without: int | None = None) -> str:
    ranks = sorted({*(rank for rank in tail.lines if rank is not None), *range(num_procs)} - {without})
    shown = [f"rank {rank}: {tail.last_line(rank)[:120] or 'no output'}" for rank in ranks[:8]]
    return "; ".join([*shown, *(["..."] if len(ranks) > 8 else [])])

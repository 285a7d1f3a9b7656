"""Run a worker under Nsight Compute, and ask the tool what it can count.

The tool ends with exit code 0 when it may not read a counter, when no kernel matched and when it profiled nothing. So
its text is read (by `labkit.analyze.ncu_csv`, which the caller hands in) before anyone believes that something was
measured. GPU clocks are left as they are: this launcher never changes a card's settings.

    count_worker("counted_kernels", run_dir=run_dir / "cold", metrics=["dram__bytes_read.sum"], read=parse_ncu_csv,
                 timeout_s=300)
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.launch.process import check_run_dir, describe_exit, thread_env, worker_module
from labkit.launch.supervise import GRACE_S, LaunchError, Progress, run_program
from labkit.units import format_seconds

OUTPUT_NAME = "ncu.txt"
"""What the tool said and its table, in the run directory."""
CACHE_CONTROL = ("all", "none")
Reader = Callable[[str], Mapping[str, Any]]
"""Gives `error` (None, or one line), `unknown_metrics` and `remedy` where there is one; ValueError for other text."""
MOST_TRIES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class NcuOutput:
    """A run of the tool that has ended, however it ended."""

    argv: list[str]
    exitcode: int | None
    """The tool's; 0 says little."""
    wall_s: float
    text: str
    """Banner lines and table."""
    last_line: str
    """Last line that the profiled program wrote; '' if none."""


def find_ncu() -> str | None:
    """Path of `ncu` on PATH or where CUDA and Nsight Compute are installed without being on it; None if absent."""
    cuda = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH") or "/usr/local/cuda"
    places = os.pathsep.join([os.environ.get("PATH", os.defpath), str(Path(cuda) / "bin")])
    if found := shutil.which("ncu", path=places):
        return found
    installed = sorted(Path("/opt/nvidia/nsight-compute").glob("*/ncu"))
    return str(installed[-1]) if installed and os.access(installed[-1], os.X_OK) else None


def ncu_argv(
    program: Sequence[str], *, ncu: str, metrics: Sequence[str], output: Path, cache_control: str = "all",
    kernel_name: str = "", whole_run: bool = False,
) -> list[str]:
    """Command line that counts `metrics` of every kernel of a program, or of those between its profiler calls.

    Args:
        program: what to profile, with its arguments.
        ncu: the tool.
        metrics: full names, e.g. "dram__bytes_read.sum".
        output: file for the tool's lines and table; the program's own output does not get into it.
        cache_control: "all" empties the GPU's caches before every pass, "none" leaves them as the program had them.
        kernel_name: only kernels of this name, or `regex:...`; "" takes all.
        whole_run: also kernels outside cudaProfilerStart and cudaProfilerStop.

    Raises: ValueError for no metrics or an unknown cache control.
    """
    if not metrics:
        raise ValueError("metrics=[]: expected at least one name")
    if cache_control not in CACHE_CONTROL:
        raise ValueError(f"cache_control={cache_control!r}: expected one of {', '.join(CACHE_CONTROL)}")
    return [
        ncu, "--csv", "--page", "raw", "--print-units", "base", "--print-kernel-base", "function",
        "--clock-control", "none", "--cache-control", cache_control, "--target-processes", "all",
        "--profile-from-start", "on" if whole_run else "off",
        *(["--kernel-name", kernel_name] if kernel_name else []),
        "--log-file", str(output), "--metrics", ",".join(metrics), *program,
    ]


def profile_worker(
    worker: str, *, run_dir: Path, metrics: Sequence[str], timeout_s: float, cache_control: str = "all",
    kernel_name: str = "", args: Sequence[str] = (), env: Mapping[str, str] | None = None, ncu: str | None = None,
    progress: Progress | None = None, grace_s: float = GRACE_S,
) -> NcuOutput:
    """Run one worker process under `ncu`, in a process group of its own that does not outlive this call.

    Args:
        worker: as `launch_worker`.
        run_dir: existing folder that holds params.json; gets log.txt and ncu.txt.
        metrics: as `ncu_argv`.
        timeout_s: deadline of the whole run, seconds.
        cache_control: as `ncu_argv`.
        kernel_name: as `ncu_argv`.
        args: further arguments of the worker.
        env: added to the environment.
        ncu: path of the tool; looked up if not given.
        progress: called with each line of the worker.
        grace_s: seconds between SIGTERM and SIGKILL.

    Returns: what the tool said, whatever its exit code.
    Raises: ValueError for a bad argument; LaunchError if the tool is absent, cannot start or runs past the deadline.
    """
    run_dir = check_run_dir(run_dir)
    ncu = _tool(ncu, run_dir)
    program = [sys.executable, "-m", worker_module(worker), "--run-dir", str(run_dir), *args]
    output = run_dir / OUTPUT_NAME
    argv = ncu_argv(program, ncu=ncu, metrics=metrics, output=output, cache_control=cache_control,
                    kernel_name=kernel_name)
    return _run(argv, run_dir, output=output, what=f"ncu on {worker}", timeout_s=timeout_s,
                env={**thread_env(1, env), **(env or {})}, progress=progress, grace_s=grace_s)


def count_worker(
    worker: str, *, run_dir: Path, metrics: Sequence[str], read: Reader, timeout_s: float, cache_control: str = "all",
    env: Mapping[str, str] | None = None, ncu: str | None = None, progress: Progress | None = None,
) -> tuple[NcuOutput, list[str]]:
    """`profile_worker`, believed only if its text says so, and again without metrics that the tool does not know.

    Args:
        worker: as `profile_worker`.
        run_dir: as `profile_worker`.
        metrics: as `ncu_argv`.
        read: what makes sense of the text, `labkit.analyze.ncu_csv.parse_ncu_csv`.
        timeout_s: deadline of each try, seconds.
        cache_control: as `ncu_argv`.
        env: added to the environment.
        ncu: path of the tool; looked up if not given.
        progress: called with each line of the worker.

    Returns: the output, in which kernels were measured; the metrics that had to be left out.
    Raises: LaunchError with one line for each way to measure nothing, whatever the exit code.
    """
    asked, missing = list(metrics), []
    for attempt in range(MOST_TRIES):
        seen = profile_worker(worker, run_dir=run_dir, metrics=asked, timeout_s=timeout_s, env=env, ncu=ncu,
                              cache_control=cache_control, progress=progress)
        answer = _read(read, seen.text)
        bases = {name.split(".")[0] for name in answer.get("unknown_metrics", ())}
        unknown = [name for name in asked if name.split(".")[0] in bases]
        if not unknown or len(unknown) == len(asked) or attempt + 1 == MOST_TRIES:
            break
        asked, missing = [name for name in asked if name not in unknown], [*missing, *unknown]
    refuse(answer, run_dir, last_line=seen.last_line)
    return seen, missing


def refuse(answer: Mapping[str, Any], run_dir: Path, *, last_line: str = "") -> None:
    """Raise LaunchError if an answer has an error: its line, and what an administrator must change or what came last.

    Args:
        answer: from a Reader.
        run_dir: whose log.txt to name.
        last_line: of the profiled program.
    """
    if error := answer.get("error"):
        remedy = answer.get("remedy")
        more = f"; {remedy}" if remedy else f"; the program's last line: {last_line}" if last_line else ""
        raise LaunchError(f"ncu: {error}{more}", log_path=run_dir / "log.txt", error=error)


def _read(read: Reader, text: str) -> Mapping[str, Any]:
    try:
        return read(text)
    except ValueError as error:
        return {"error": f"its output cannot be read ({error})"}


def query_metrics(
    *, run_dir: Path, timeout_s: float = 60, ncu: str | None = None
) -> tuple[set[str], NcuOutput]:
    """Base names of the counters that the tool offers for this GPU, and what it said; see `query_answer`.

    Args:
        run_dir: existing folder; gets log.txt.
        timeout_s: deadline, seconds.
        ncu: path of the tool; looked up if not given.

    Returns: names such as "dram__bytes_read", empty when the tool lists none; its output, in which a refusal stands.
    Raises: LaunchError if the tool is absent, cannot start or runs past the deadline.
    """
    ncu = _tool(ncu, run_dir)
    seen = _run([ncu, "--query-metrics"], run_dir, output=None, what="ncu --query-metrics", timeout_s=timeout_s)
    return set(re.findall(r"^\s*([a-z][a-z0-9]*__\w+)", seen.text, re.MULTILINE)), seen


def query_answer(offered: set[str], seen: NcuOutput, *, read: Reader) -> dict[str, Any]:
    """How the tool answered a query: {"exit_code", "num_metrics", "error", "remedy"}, plain JSON.

    Args:
        offered: from `query_metrics`.
        seen: from `query_metrics`.
        read: as `count_worker`; only what the tool complains of is read with it, a list of names is not its business.

    Returns: `error` is None if it listed metrics, else one line.
    """
    says = "\n".join(line for line in seen.text.splitlines() if line.lstrip().startswith("=="))
    answer = _read(read, says) if says and not offered else {}
    error = None if offered else answer.get("error") or "it listed no metrics"
    return {"exit_code": seen.exitcode, "num_metrics": len(offered), "error": error, "remedy": answer.get("remedy")}


def supported(metrics: Sequence[str], offered: set[str]) -> tuple[list[str], list[str]]:
    """Split metrics into those the tool offers and those it does not; all count as offered if it listed nothing.

    Launch figures (`launch__...`, and occupancy derived from them) are not among the counters that it lists.

    >>> supported(["dram__bytes_read.sum", "lts__x.sum", "launch__grid_size"], {"dram__bytes_read"})
    (['dram__bytes_read.sum', 'launch__grid_size'], ['lts__x.sum'])
    """
    free = ("launch__", "sm__maximum_warps", "device__")
    known = [name for name in metrics if not offered or name.split(".")[0] in offered or name.startswith(free)]
    return known, [name for name in metrics if name not in known]


def _tool(ncu: str | None, run_dir: Path) -> str:
    ncu = ncu or find_ncu()
    if ncu is None:
        line = "ncu is not installed: expected NVIDIA Nsight Compute on PATH or in the CUDA folder"
        raise LaunchError(line, log_path=run_dir / "log.txt", error=line)
    return ncu


def _run(
    argv: list[str], run_dir: Path, *, output: Path | None, what: str, timeout_s: float,
    env: Mapping[str, str] | None = None, progress: Progress | None = None, grace_s: float = GRACE_S,
) -> NcuOutput:
    said: list[str] = []

    def relay(line: str) -> None:
        said.append(line)
        if progress is not None:
            progress(line)

    ended = run_program(argv, run_dir=run_dir, timeout_s=timeout_s, env=env, progress=relay, grace_s=grace_s)
    if ended.timed_out:
        line = ended.tail.last_line(None) or "none"
        raise LaunchError(f"{what}: timed out after {format_seconds(timeout_s)}; last line: {line}",
                          log_path=ended.log, exitcode=ended.exitcode, error=line, timed_out=True)
    try:
        text = output.read_bytes().decode("utf-8", "replace") if output is not None else ""
    except OSError:
        text = ""  # it stopped before it wrote anything: what it said is on its standard output
    # A failure to start is told on standard output, and so is everything by a tool too old for --log-file.
    if "Kernel Name" not in text:
        text = "\n".join([text, *said]) if text else "\n".join(said)
    if not text.strip() and ended.exitcode != 0:
        text = f"==ERROR== {what} ended with {describe_exit(ended.exitcode)} and said nothing\n"
    return NcuOutput(argv=argv, exitcode=ended.exitcode, wall_s=ended.wall_s, text=text,
                     last_line=next((line for line in reversed(said) if line.strip()), ""))

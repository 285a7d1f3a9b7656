"""What a Triton kernel costs an SM: registers, stack, shared memory and occupancy, on GPUs that need not be here.

parameters -> prediction -> `triton_compile` -> (on a GPU: `occupancy_driver`, `warp_sweep`) -> oracles -> record.

    python -m labkit run triton_resources --preset smoke      # compiles on any CPU with Triton
    python -m labkit run triton_resources --preset gpu1
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labkit.analyze import resource_oracles as oracles
from labkit.analyze import resource_plan as plan
from labkit.analyze import resource_times as times
from labkit.analyze import resources as analyze
from labkit.analyze.rmsnorm import read_lines
from labkit.conduct import Outcome, conduct, load_run, newest_records, oracle_table, own_profile, plain_params
from labkit.hardware import HardwareProfile
from labkit.launch.ncu import query_metrics
from labkit.launch.process import LaunchError, launch_worker
from labkit.launch.worker_dir import relay, worker_dir
from labkit.records import RunRecord

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

SLUG = "triton_resources"
TITLE = "Registers, spills and occupancy of a Triton kernel"
NEEDS = "smoke, cpu: Triton, no GPU (it compiles for six generations); gpu1: one CUDA GPU"
REPORT_TARGET = 70
"""The report's V100."""
KERNEL = "rmsnorm_report"


@dataclass(frozen=True, kw_only=True, slots=True)
class Params:
    """Settings of one run."""

    targets: tuple[int, ...] = (70, 80, 86, 89, 90, 100)
    """Compute capabilities to compile for, 70 for sm_70."""
    hidden: tuple[int, ...] = (4096, 8192)
    """Row lengths; the first for every target, the others for `long_targets`."""
    long_targets: tuple[int, ...] = (70, 90)
    bare_targets: tuple[int, ...] = (70, 90)
    """Targets for which the first row length is also compiled without knowing that addresses are divisible by 16."""
    num_warps: tuple[int, ...] = (1, 2, 4, 8, 16)
    jobs: int = 64
    """Compilers side by side, at most; never more than cores or targets."""
    device: str = "cpu"
    """`cpu`: compile only. `cuda`: also time the kernels and ask the driver."""
    rows: int = 8192
    """Rows of the timed input."""
    timed_hidden: tuple[int, ...] = (4096, 8192, 16384)
    num_processes: int = 3
    """Fresh processes that time, one after the other."""
    rounds: int = 20
    """Samples of each call in each process."""
    dial_warps: tuple[int, ...] = (4, 8)
    """num_warps whose machine code is also timed at fewer resident blocks."""
    dial_blocks: tuple[int, ...] = (1, 2, 3, 4, 6)
    driver_kernels: int = 256
    """Random kernels whose occupancy the driver is asked for."""
    launches: int = 4
    """Launches asked about for each of them."""
    block_us: float = 1.5
    """Predicted time of one block that does not queue for the memory, microseconds: two trips to memory and a sum."""
    launch_floor_us: float = 2.7
    """Predicted time of an empty kernel between two events, microseconds."""
    eps: float = 1e-6
    seed: int = 0
    timeout_s: float = 300
    """Deadline of each process, seconds."""

    def __post_init__(self) -> None:
        for name, least in (("jobs", 1), ("rows", 1), ("num_processes", 1), ("rounds", 1), ("driver_kernels", 0),
                            ("launches", 1), ("seed", 0)):  # fmt: skip
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ValueError(f"{name}={value!r}: expected a whole number, at least {least}")
        for name in ("block_us", "launch_floor_us", "eps", "timeout_s"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
                raise ValueError(f"{name}={value!r}: expected a positive number")
        for name in ("targets", "hidden", "num_warps", "timed_hidden"):
            if not getattr(self, name) or len(set(getattr(self, name))) < len(getattr(self, name)):
                raise ValueError(f"{name}={getattr(self, name)!r}: expected different numbers, at least one")
        for name in ("targets", "hidden", "timed_hidden", "dial_blocks"):
            if any(not isinstance(n, int) or isinstance(n, bool) or n < 1 for n in getattr(self, name)):
                raise ValueError(f"{name}={getattr(self, name)!r}: expected whole numbers, at least 1")
        if any(n not in (1, 2, 4, 8, 16, 32) for n in self.num_warps):
            raise ValueError(f"num_warps={self.num_warps!r}: expected powers of two up to 32")
        subsets = [("long_targets", "targets"), ("bare_targets", "targets")]
        subsets += [("dial_warps", "num_warps")] if self.device == "cuda" else []
        for name, among in subsets:
            if odd := sorted(set(getattr(self, name)) - set(getattr(self, among))):
                raise ValueError(f"{name}: {odd[0]!r}: expected one of {among}")
        if self.device not in ("cpu", "cuda"):
            raise ValueError(f"device={self.device!r}: expected cpu or cuda")


def cells(params: Params) -> list[dict[str, Any]]:
    """What is compiled; see `labkit.analyze.resource_plan.wanted_cells`."""
    return plan.wanted_cells(targets=params.targets, hidden=params.hidden, long_targets=params.long_targets,
                             bare_targets=params.bare_targets, num_warps=params.num_warps)  # fmt: skip


def predict(params: Params, *, hardware: HardwareProfile | None = None) -> dict[str, Any]:
    """What must come out, and what we guess, before anything is compiled.

    Args:
        params: cells, rows and the assumed times.
        hardware: profile of the GPU that will be timed, if any.

    Returns: by cell `row_registers` (the least that can be) and `registers`, `stack_bytes` (a line through the report's
    counts); `must_spill` by target; `occupancy_pct` and `naive_occupancy_pct` of the guessed registers by target; with
    a profile `hardware`, `ms` by cell (floor plus bytes over a copy's rate; nothing for occupancy) and `knee_blocks`
    (resident blocks that keep the memory busy) by row length.
    """
    out = plan.predicted_cells(cells(params))
    if hardware is None:
        return out
    rate, num_sms = _copy_rate(hardware), hardware.value("num_sms")
    out["hardware"] = hardware.name
    return out if rate is None or num_sms is None else out | plan.predicted_times(
        hidden=params.timed_hidden, num_warps=params.num_warps, rows=params.rows, bytes_per_s=rate,
        num_sms=int(num_sms), block_s=params.block_us * 1e-6, launch_floor_s=params.launch_floor_us * 1e-6)


def _copy_rate(hardware: HardwareProfile | None) -> float | None:
    """Bandwidth of a large copy measured on such a GPU, bytes/s."""
    found = hardware.measured.get("copy_bytes_per_s") if hardware else None
    return found.value if found else None


def run(
    params: Params, *, preset: str = "custom", run_id: str | None = None,
    progress: Callable[[str], None] | None = None,
) -> RunRecord:  # fmt: skip
    """Compile, measure where there is a GPU, check and publish; a failure gives a record with status `failed`.

    Raises: UsageError when this machine lacks the GPU; RecordError when the run directory cannot be used.
    """
    hardware = own_profile(params.device)
    return conduct(
        SLUG, params, preset=preset, run_id=run_id, predict=lambda: predict(params, hardware=hardware),
        measure=lambda run_dir, predicted, outcome: _measure(params, run_dir, predicted, outcome, hardware, progress))


def _measure(params: Params, run_dir: Path, predicted: dict[str, Any], outcome: Outcome,
             hardware: HardwareProfile | None, progress: Callable[[str], None] | None) -> None:  # fmt: skip
    """Each worker in turn; what is known so far is in the outcome before the next one starts."""
    content = {"cells": cells(params), "jobs": params.jobs}
    # The timing processes load from it what was compiled here, if they ask for exactly that.
    with tempfile.TemporaryDirectory(prefix="labkit-triton-") as cache:
        launch = partial(_launch, params=params, outcome=outcome, progress=progress)
        launch("triton_compile", run_dir / "compile", content, env={"LABKIT_NEW_TRITON_CACHE": cache})
        compiled = _judge_cubins(params, run_dir, predicted, outcome)
        if params.device == "cuda":
            _measure_gpu(params, run_dir, predicted, outcome, hardware, compiled, partial(
                launch, env={"TRITON_CACHE_DIR": cache, "TRITON_DEFAULT_FP_FUSION": "1"}))


def _judge_cubins(params: Params, run_dir: Path, predicted: dict[str, Any], outcome: Outcome) -> list[dict[str, Any]]:
    """Results and oracles of what was compiled; returns the cells."""
    wanted = cells(params)
    lines = analyze.read_jsonl(run_dir / "compile" / "rank0.jsonl")
    compiled = analyze.compiled_cells(lines, kernel=KERNEL)
    outcome.results |= analyze.compiled_results(lines, compiled, report_target=REPORT_TARGET)
    outcome.oracles += oracles.compile_oracles(compiled, asked=len(wanted), refused=len(outcome.results["refused"]))
    outcome.notes += _notes(params, outcome.results)
    outcome.results["registers_residual_pct"] = {
        target: times.residuals_pct(found, predicted["registers"])
        for target, found in outcome.results["by_target"]["registers"].items()
    }
    return compiled


def _measure_gpu(params: Params, run_dir: Path, predicted: dict[str, Any], outcome: Outcome,
                 hardware: HardwareProfile | None, compiled: list[dict[str, Any]],
                 launch: Callable[..., None]) -> None:  # fmt: skip
    """Ask the driver about random kernels, time the real ones, then ask Nsight Compute whether it may count."""
    plain = plain_params(params)
    if params.driver_kernels:
        launch("occupancy_driver", run_dir / "driver", plain)
        results, judged = oracles.driver_results(analyze.read_jsonl(run_dir / "driver" / "rank0.jsonl"))
        outcome.results |= results
        outcome.oracles += judged
    for process in range(params.num_processes):
        launch("warp_sweep", run_dir / f"p{process}", {**plain, "hidden": params.timed_hidden, "process": process})
    lines = read_lines(run_dir)
    device = next(line for line in lines if line["kind"] == "device")
    target = 10 * device["cc_major"] + device["cc_minor"]
    found, outcome.samples = times.timing_results(lines, rows=params.rows,
                                                  max_warps_per_sm=device["max_threads_per_sm"] // 32)  # fmt: skip
    rate, floor_s = _copy_rate(hardware), params.launch_floor_us * 1e-6
    spilled = times.with_spills(compiled, target=target, rows=params.rows, bytes_per_s=rate, launch_floor_s=floor_s)
    outcome.results |= found | {"gpu_target": f"sm_{target}", "knee_blocks": times.knee(found["dial_gb_per_s"]),
                                "gpu_refused": times.refusals(lines), "ms_with_spills": spilled,
                                "ms_residual_pct": times.residuals_pct(found["ms"], predicted.get("ms", {}))}
    outcome.notes += [f"{name}: not timed: {why}" for name, why in outcome.results["gpu_refused"].items()]
    outcome.oracles += oracles.sweep_oracles(lines, compiled, target=target)
    sheet = hardware.value("memory_bandwidth_bytes_per_s") if hardware else None
    outcome.oracles += oracles.rate_oracle(found["gb_per_s"], sheet)
    outcome.results["ncu_text"] = _probe_ncu(run_dir)


def _launch(worker: str, folder: Path, content: dict[str, Any], *, params: Params, outcome: Outcome,
            progress: Callable[[str], None] | None, env: dict[str, str]) -> None:  # fmt: skip
    worker_dir(folder, content)
    done = launch_worker(worker, run_dir=folder, timeout_s=params.timeout_s, env=env, progress=relay(progress))
    outcome.argv.append(done.argv)


def _probe_ncu(run_dir: Path) -> dict[str, Any]:
    """What Nsight Compute says when asked for its counters: the refusal's name, or that there is none."""
    folder = run_dir / "ncu"
    folder.mkdir()
    try:
        offered, seen = query_metrics(run_dir=folder, timeout_s=30)
    except (LaunchError, OSError) as error:  # the tool is no part of this measurement
        return {"text": str(error), "exit_code": "not run"}
    refused = "ERR_NVGPUCTRPERM" in seen.text
    text = "ERR_NVGPUCTRPERM" if refused else f"no refusal, {len(offered)} counters listed"
    return {"text": text, "exit_code": seen.exitcode}


def _notes(params: Params, results: dict[str, Any]) -> list[str]:
    told = ["Nothing is timed without a GPU: this run compiles only."] if params.device == "cpu" else []
    told += [f"{name}: not compiled: {reason}" for name, reason in results["refused"].items()]
    return told


def load(run_id: str, *, expect: Params | None = None) -> RunRecord:
    """A recorded run, local or committed; raises RecordError if there is none or its parameters differ."""
    return load_run(SLUG, run_id, expect=expect)


def recorded() -> list[RunRecord]:
    """The newest good committed record of each machine and preset."""
    return newest_records(SLUG)


def check(record: RunRecord) -> pd.DataFrame:
    """The oracles; raises RecordError naming those that failed, or the failure of the launch."""
    return oracle_table(record)


def table(record: RunRecord) -> pd.DataFrame:
    """One row a target and cell; the columns are those of `labkit.analyze.resource_tables.cell_table`."""
    from labkit.analyze.resource_tables import cell_table

    return cell_table(record)


def figures(record: RunRecord) -> dict[str, go.Figure]:
    """`registers` and `bounds` for every record; for a GPU's also `times` and `dial`."""
    from labkit.plots import resources as plots

    frame, source = table(record), f"{record.hardware_tag}, run {record.run_id}, {record.created_utc[:10]}"
    found = {"registers": plots.registers(frame, source=source), "bounds": plots.bounds(frame, source=source)}
    if record.results.get("ms"):
        found["times"] = plots.times(frame, source=source)
        found["dial"] = plots.dial(record.results, source=source)
    return found


def compare(records: list[RunRecord]) -> pd.DataFrame:
    """Predicted, these records and the 8x V100 report side by side; see `resource_tables.compare_table`."""
    from labkit.analyze.resource_tables import compare_table

    return compare_table(records)

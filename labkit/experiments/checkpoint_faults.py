"""Checkpoints that survive accidents: the manifest protocol, resumed runs bit by bit, and every fault we can make.

Example: `python -m labkit run checkpoint_faults --preset cpu`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labkit.calc import checkpoint_resume
from labkit.calc.checkpoint_prediction import checkpoint_prediction
from labkit.conduct import Outcome, conduct, load_run, newest_records, oracle_table, plain_params
from labkit.hardware import HardwareProfile
from labkit.launch.guard import SHM_PREFIXES, shm_files
from labkit.launch.process import LOG_NAME, LaunchError, launch_worker
from labkit.launch.torchrun import launch_torchrun
from labkit.launch.worker_dir import relay, worker_dir
from labkit.presets import require
from labkit.records import RunRecord

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

SLUG = "checkpoint_faults"
TITLE = "Checkpoints: resume bit by bit, and faults on purpose"
NEEDS = "torch; two CPU cores for up to 8 gloo ranks (smoke, cpu), or 2 or 8 GPUs (gpu2, gpu8)"
CONTROLS = checkpoint_resume.CONTROLS
PLAIN = "single-tensor AdamW"
"""The control that the others change in one setting."""
REPORTED = {"first_mismatch": "ckpt-first-mismatch", "diff_elements": "ckpt-diff-elements",
            "max_diff": "ckpt-max-diff", "fault_exit_time": "ckpt-fault-exit-time",
            "fault_straggler_time": "ckpt-fault-straggler-time"}
"""Result -> claim of the report that gives it, by control or as one figure in seconds."""
GPU_ENV = {"NCCL_NVLS_ENABLE": "0", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
"""NVLink multicast off, as in every lab; a fixed cuBLAS workspace, which deterministic algorithms ask for."""
NCCL_FAULT_ENV = {"TORCH_NCCL_DUMP_ON_TIMEOUT": "0", "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "250",
                  "TORCH_FR_BUFFER_SIZE": "0", "TORCH_NCCL_TRACE_BUFFER_SIZE": "0"}
"""Else torch 2.11 reports the timeout and then waits a minute for dumps: on two H200 the late rank came meanwhile, the
collective ended, and the job hung in the next one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Params:
    """What is asked of a run. Defaults are the report's model on CPU ranks."""

    world_sizes: tuple[int, ...] = (4, 2, 8)
    """Ranks of each resumed job, or (); the first also tries DCP, times saves and, above 2, answers the claims."""
    device: str = "cpu"
    """`cpu` (gloo) or `cuda` (NCCL)."""
    hidden: int = 1024
    inner: int = 2048
    controls: tuple[str, ...] = tuple(CONTROLS)
    """Names in `labkit.calc.checkpoint_resume.CONTROLS`; the report's five are always among them."""
    dropout: float = 0.1
    batch: int = 32
    """Samples of a rank and step."""
    learning_rate: float = 1e-3
    num_steps: int = 6
    save_step: int = 3
    skipping_rank: int = 3
    """Writes nothing in the partial save; the last rank where there are fewer."""
    num_processes: int = 1
    """Fresh launches that time saves."""
    num_cost_rounds: int = 3
    """Timed saves of each kind in each process; 0 leaves this out."""
    cost_sizes_mb: tuple[float, ...] = (50.0,)
    """State that rank 0 saves, MB (1e6 bytes)."""
    cost_saves: tuple[str, ...] = ("bare", "sha256", "blake2b", "fast", "async", "dcp", "dcp + manifest")
    """Kinds of save that are timed; `fast` is XXH3 where it is installed. Costs are relative to `bare`."""
    cost_budget_s: float = 15.0
    """Rounds of one size stop after this time."""
    num_faults: int = 200
    """Of the drill on the protocol, without torch."""
    kill_world_size: int = 4
    """Gloo ranks that are killed while they save; 0 leaves this out."""
    num_kills: int = -1
    """SIGKILLs; -1 tries every step of every rank's writer."""
    kill_straggler_timeout_s: float = 1.0
    """Group timeout of the straggler among these tries."""
    fault_world_size: int = 4
    fault_rank: int = 3
    is_exit_tried: bool = True
    """A job under torchrun with a rank that exits."""
    exit_step: int = 2
    exitcode: int = 17
    straggler_step: int = 3
    straggler_sleep_s: float = 0.0
    """The straggler under torchrun; 0 leaves it out."""
    group_timeout_s: float = 6.0
    """Of the straggler's process group."""
    num_elements: int = 2**20
    """Of each all-reduce in the jobs with faults."""
    seed: int = 0
    timeout_s: float = 300.0
    """Deadline of one launch."""

    def __post_init__(self) -> None:
        """Refuse what could not run, naming the argument."""
        for name in ("hidden", "inner", "batch", "num_processes", "num_elements", "fault_world_size", "exit_step",
                     "straggler_step", "exitcode"):
            require(getattr(self, name) >= 1, name, getattr(self, name), "at least 1")
        for name in ("num_cost_rounds", "cost_budget_s", "num_faults", "straggler_sleep_s", "seed", "skipping_rank",
                     "kill_straggler_timeout_s"):
            require(getattr(self, name) >= 0, name, getattr(self, name), "at least 0")
        require(self.device in ("cpu", "cuda"), "device", self.device, "cpu or cuda")
        worlds = self.world_sizes
        # Powers of two: DDP's division by the world size is then exact, as the predicted order of sums assumes.
        require(set(worlds) <= {2, 4, 8, 16} and len(set(worlds)) == len(worlds), "world_sizes", worlds,
                "different ones of 2, 4, 8 and 16")
        require(set(list(CONTROLS)[:5]) <= set(self.controls) <= set(CONTROLS), "controls", self.controls,
                f"the report's five, and any of {', '.join(list(CONTROLS)[5:])}")
        require(0 <= self.dropout < 1, "dropout", self.dropout, "0 or more, below 1")
        require(self.save_step >= 2, "save_step", self.save_step, "at least 2: buckets are rebuilt by then")
        require(self.num_steps > self.save_step, "num_steps", self.num_steps, f"above save_step={self.save_step}")
        require(self.num_kills >= -1, "num_kills", self.num_kills, "-1 (all) or more")
        require(self.kill_world_size == 0 or self.kill_world_size >= 2, "kill_world_size", self.kill_world_size,
                "0 or at least 2")
        known = type(self).__dataclass_fields__["cost_saves"].default
        require("bare" in self.cost_saves and set(self.cost_saves) <= set(known), "cost_saves", self.cost_saves,
                f"bare, and any of {', '.join(known[1:])}")
        require(bool(self.cost_sizes_mb) and min(self.cost_sizes_mb) > 0, "cost_sizes_mb", self.cost_sizes_mb,
                "sizes above 0")
        require(0 <= self.fault_rank < self.fault_world_size, "fault_rank", self.fault_rank,
                f"below fault_world_size={self.fault_world_size}")
        require(self.group_timeout_s > 0, "group_timeout_s", self.group_timeout_s, "above 0")
        require(self.straggler_sleep_s == 0 or self.straggler_sleep_s > self.group_timeout_s, "straggler_sleep_s",
                self.straggler_sleep_s, f"0, or above group_timeout_s={self.group_timeout_s}")
        require(self.timeout_s > 0, "timeout_s", self.timeout_s, "above 0")


def predict(params: Params, *, hardware: HardwareProfile | None = None) -> dict[str, Any]:
    """What will come out, by `labkit.calc.checkpoint_prediction`.

    Args:
        params: what will be run.
        hardware: not used: disks are not in a GPU's profile.
    """
    return checkpoint_prediction(
        world_sizes=params.world_sizes, hidden=params.hidden, inner=params.inner, save_step=params.save_step,
        sizes_mb=params.cost_sizes_mb, num_faults=params.num_faults)


def run(params: Params, *, preset: str = "custom", run_id: str | None = None,
        progress: Callable[[str], None] | None = None) -> RunRecord:
    """Predict, launch, check and publish; a failed launch or check is published as a failed record.

    Args:
        params: what to run.
        preset: name to keep in the record.
        run_id: name of the run; made from date, hardware and parameters if not given.
        progress: called with a line for people whenever a part is done.

    Raises: RecordError if the run directory exists or cannot be written.
    """
    return conduct(SLUG, params, preset=preset, run_id=run_id, predict=lambda: predict(params),
                   measure=lambda run_dir, predicted, outcome: _measure(params, run_dir, predicted, outcome, progress))


def _measure(params: Params, run_dir: Path, predicted: Mapping[str, Any], outcome: Outcome,
             progress: Callable[[str], None] | None) -> None:
    """Every launch in turn; what one has shown is in the outcome before the next one starts."""
    from labkit.analyze import checkpoint_faults, checkpoint_oracles
    from labkit.analyze.ddp_rank_files import read_ranks

    before, children = set(shm_files()), list[str]()

    def single(name: str, worker: str, values: dict[str, Any]) -> list[dict[str, Any]]:
        folder = worker_dir(run_dir / name, values)
        result = launch_worker(worker, run_dir=folder, timeout_s=params.timeout_s, progress=relay(progress, name))
        outcome.argv.append(result.argv)
        children.extend(result.ended)
        return read_ranks(folder)

    if params.num_faults:
        found = checkpoint_faults.drill_results(
            single("drill", "checkpoint_drill", {"num_faults": params.num_faults, "seed": params.seed}))
        outcome.results["drill"] = found
        outcome.oracles += checkpoint_oracles.drill_oracles(found, num_faults=params.num_faults)
    if params.kill_world_size:
        rows = single("kills", "checkpoint_kills", {
            "world_size": params.kill_world_size, "num_kills": params.num_kills, "seed": params.seed,
            "full_disk_ranks": [0, params.kill_world_size - 1],
            "straggler_timeout_s": params.kill_straggler_timeout_s})
        found = checkpoint_faults.kill_results(rows)
        outcome.results |= {"kills": found, "proto_atomic_file": found["files_as_expected"]}
        outcome.oracles += checkpoint_oracles.kill_oracles(found)
    if params.world_sizes:
        _measure_resume(params, run_dir, predicted, outcome, progress, children)
    _measure_faults(params, run_dir, outcome, progress)
    left = [name for name in set(shm_files()) - before if name.startswith(SHM_PREFIXES)]
    outcome.results["nothing_left"] = not children and not left
    outcome.oracles.append(checkpoint_oracles.leftover_oracle(children, left))
    outcome.notes.append("checkpoints lay in the file system of the run directory and were removed; MB are 1e6 bytes")


def _measure_resume(params: Params, run_dir: Path, predicted: Mapping[str, Any], outcome: Outcome,
                    progress: Callable[[str], None] | None, children: list[str]) -> None:
    """Resumed jobs of every world size, and further processes that only time saves."""
    from labkit.analyze import checkpoint_cost, checkpoint_oracles
    from labkit.analyze import checkpoint_resume as resumed
    from labkit.analyze.checkpoint_faults import dcp_results
    from labkit.analyze.ddp_rank_files import read_ranks

    main = params.world_sizes[0]
    launches = [(f"w{world}", world, True) for world in params.world_sizes]
    launches[1:1] = [(f"p{i}", main, False) for i in range(1, params.num_processes)]
    found: dict[int, dict[str, Any]] = {}
    orders: dict[int, dict[str, Any]] = {}
    controls = [[control, CONTROLS[control]] for control in params.controls]
    timed = []
    for name, world, is_resumed in launches:
        is_order_known = params.device == "cpu" or world == 2
        is_timed = world == main
        folder = worker_dir(run_dir / name, {
            **plain_params(params), "controls": controls if is_resumed else [],
            "is_dcp_tried": name == f"w{main}",
            "num_cost_rounds": params.num_cost_rounds if is_timed else 0,
            "spans": {PLAIN: checkpoint_resume.sum_order(
                control=PLAIN, world_size=world, hidden=params.hidden, inner=params.inner)}
            if is_order_known and is_resumed else {}})
        result = launch_torchrun(
            "checkpoint_resume", run_dir=folder, num_procs=world, timeout_s=params.timeout_s,
            env=GPU_ENV if params.device == "cuda" else None, progress=relay(progress, name))
        outcome.argv.append(result.argv)
        children.extend(result.ended)
        rows = read_ranks(folder)
        if is_timed:
            timed.append(rows)
        if is_resumed:
            found[world] = resumed.resume_results(rows, world_size=world)
            orders |= {world: order} if (order := resumed.order_results(rows)) else {}
            told = resumed.refused(rows)
            outcome.oracles.append(checkpoint_oracles.refusal_oracle(told, world_size=world))
        if is_resumed and world == main:
            outcome.results["dcp_scenarios"] = dcp_results(rows)
            outcome.oracles += checkpoint_oracles.dcp_oracles(outcome.results["dcp_scenarios"], world_size=world)
            if world > 2:
                outcome.results |= resumed.claim_results(
                    found[world], reported=list(CONTROLS)[:5], save_step=params.save_step, num_steps=params.num_steps,
                    order=orders.get(world, {}), told=told)
    costs, outcome.samples = checkpoint_cost.cost_results(timed)
    outcome.results |= {"by_world_size": resumed.by_world_size(found), **costs,
                        "order": {str(world): order for world, order in orders.items()}}
    known = {world: own for world, own in found.items() if params.device == "cpu" or world == 2}
    common = {"save_step": params.save_step, "num_steps": params.num_steps, "batch": params.batch}
    outcome.oracles += checkpoint_oracles.resume_oracles(found, predicted, is_order_known=known == found, **common)
    outcome.oracles += checkpoint_oracles.order_oracle(orders, is_required=bool(known))


def _measure_faults(params: Params, run_dir: Path, outcome: Outcome, progress: Callable[[str], None] | None) -> None:
    """Jobs under torchrun with a rank that exits, and one with a rank that is late."""
    from labkit.analyze import checkpoint_oracles

    rank = params.fault_rank
    if params.is_exit_tried:
        seen = _broken(params, run_dir / "exit", "exit", progress)
        outcome.results |= {
            "fault_exit_setting": {"rank": rank, "step": params.exit_step, "exitcode": params.exitcode},
            "fault_exit_seen": {name: seen[name] for name in ("error", "rank", "exitcode")},
            "fault_exit_time": seen["wall_s"],
            "detect_exit": seen["rank"] == rank and seen["before_timeout"]}
        outcome.oracles += checkpoint_oracles.exit_oracles(seen, rank=rank, exitcode=params.exitcode)
    if params.straggler_sleep_s:
        seen = _broken(params, run_dir / "straggler", "straggler", progress)
        outcome.results |= {
            "fault_straggler_setting": {"rank": rank, "sleep_s": params.straggler_sleep_s,
                                        "timeout_s": params.group_timeout_s},
            "fault_straggler_time": seen["wall_s"], "straggler_logs": seen["aligned"],
            "straggler_first_error_s": seen["first_error_s"], "straggler_had_to_be_ended": seen["had_to_be_ended"],
            "detect_hang": seen["missing"] == [rank] and seen["after_timeout"]}
        if seen["watchdog"] is not None:  # NCCL only; gloo gives no sequence number
            outcome.results["fault_straggler_seen"] = seen["watchdog"]
        outcome.oracles += checkpoint_oracles.straggler_oracles(seen, rank=rank)


def _broken(params: Params, folder: Path, fault: str, progress: Callable[[str], None] | None) -> dict[str, Any]:
    """Run a job that must fail; what torchrun, the group and the ranks' own logs said about it."""
    from labkit.analyze import checkpoint_faults
    from labkit.analyze.ddp_rank_files import read_ranks

    is_exit = fault == "exit"
    # Long for the exit: whoever notices it must not have waited for this.
    timeout_s = max(60.0, params.group_timeout_s) if is_exit else params.group_timeout_s
    worker_dir(folder, {
        "device": params.device, "num_elements": params.num_elements, "num_steps": params.straggler_step + 1,
        "fault": fault, "fault_rank": params.fault_rank, "exitcode": params.exitcode,
        "fault_step": params.exit_step if is_exit else params.straggler_step,
        "sleep_s": params.straggler_sleep_s, "group_timeout_s": timeout_s})
    started, failure = time.perf_counter(), None
    try:
        launch_torchrun("checkpoint_train", run_dir=folder, num_procs=params.fault_world_size, grace_s=5.0,
                        timeout_s=min(params.timeout_s, timeout_s + params.straggler_sleep_s + 40),
                        env={**GPU_ENV, **NCCL_FAULT_ENV} if params.device == "cuda" else None)
    except LaunchError as error:
        failure = error
    if progress is not None:
        progress(f"{fault}: {failure or 'nothing failed'}")
    return checkpoint_faults.job_facts(
        read_ranks(folder), (folder / LOG_NAME).read_text(encoding="utf-8", errors="replace"),
        world_size=params.fault_world_size, wall_s=time.perf_counter() - started, timeout_s=timeout_s,
        rank=failure.rank if failure else None, exitcode=failure.exitcode if failure else None,
        had_to_be_ended=failure is not None and failure.timed_out)


def load(run_id: str, *, expect: Params | None = None) -> RunRecord:
    """A recorded run; "" takes the newest good one. Raises RecordError if there is none or its parameters differ."""
    return load_run(SLUG, run_id, expect=expect)


def recorded() -> list[RunRecord]:
    """Committed good runs, the newest of each hardware and preset."""
    return newest_records(SLUG)


def check(record: RunRecord) -> pd.DataFrame:
    """The oracles of a run; raises RecordError naming those that failed."""
    return oracle_table(record)


def table(record: RunRecord) -> pd.DataFrame:
    """One row a world size and control; columns as in `labkit.analyze.checkpoint_tables.resume_frame`."""
    from labkit.analyze.checkpoint_tables import resume_frame

    return resume_frame(record)


def figures(record: RunRecord) -> dict[str, go.Figure]:
    """Figures by name: order, differing, save_ms (if timed), faults (if drilled)."""
    from labkit.plots import checkpoint as plots

    caption = f"{record.hardware_tag}, run {record.run_id}, {record.created_utc[:10]}"
    found = {"order": plots.order(
        checkpoint_resume.sum_order(control=PLAIN, world_size=4, hidden=record.params["hidden"],
                                    inner=record.params["inner"]), caption="derived from shapes; no run needed")}
    if any(int(world) > 2 for world in record.results.get("by_world_size", {})):
        found["differing"] = plots.differing(
            record.results["by_world_size"], record.prediction["values"]["reordered_elements"], caption=caption)
    if record.results.get("save_ms"):
        found["save_ms"] = plots.save_times(record.results["save_ms"], record.results["async_stall_ms"],
                                            caption=caption)
    if record.results.get("drill"):
        found["faults"] = plots.faults(record.results["drill"]["by_kind"], caption=caption)
    return found


def reported() -> dict[str, dict[str, Any]]:
    """Figures of the 8x V100 report as the ledger has them: result name -> control, or unit -> value."""
    from labkit.claims import report_figures

    return report_figures(REPORTED, single="s")


def compare(records: list[RunRecord]) -> pd.DataFrame:
    """Prediction, runs and report side by side; columns as in `labkit.analyze.checkpoint_tables.comparison`."""
    from labkit.analyze.checkpoint_tables import comparison

    return comparison(records, reported=reported())

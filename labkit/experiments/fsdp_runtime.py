"""FSDP's wrap tree at work: collectives, memory and time of a step by wrapping, prefetching and the gather limiter.

Example: `python -m labkit run fsdp_runtime --preset cpu`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labkit.calc.fsdp import fsdp_case
from labkit.calc.fsdp_prediction import exposed_by_case, fsdp_prediction
from labkit.calc.tinygpt import tinygpt_parameters
from labkit.conduct import Outcome, conduct, load_run, newest_records, oracle_table, own_profile, plain_params
from labkit.hardware import HardwareProfile
from labkit.launch.process import LaunchError
from labkit.launch.torchrun import launch_torchrun
from labkit.launch.worker_dir import relay, worker_dir
from labkit.paths import RECORDS, runs_root
from labkit.presets import require
from labkit.records import RunRecord, write_atomic

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

SLUG = "fsdp_runtime"
TITLE = "FSDP: wrapping, prefetch, limiter and shutdown"
NEEDS = "torch; two CPU cores (smoke, cpu: FSDP2 only, FSDP1 refuses a CPU), or 2 or 8 GPUs (gpu2, gpu8)"
TIMELINE = "timeline.json"
BASELINE = "alone"
"""Not sharded, no communication: what the step costs without FSDP."""
EXITS = ("ordered", "no_barrier", "no_destroy", "early")
REPORTED = {
    "collectives": "fsdp-collectives",
    "step_time_ms": "fsdp-step",
    "tokens_per_s": "fsdp-tokens",
    "allocated_peak_gib": "fsdp-alloc",
    "reserved_peak_gib": "fsdp-reserved",
    "comm_union_ms": "fsdp-union",
    "exposed_comm_ms": "fsdp-exposed",
    "overlap_pct": "fsdp-overlap",
}
"""Result name -> claim of the report that gives its figures by case."""
GPU_ENV = {"NCCL_NVLS_ENABLE": "0"}
"""NVLink multicast off: it needs rights that containers often lack, and would change what is compared."""
SHORT_FAREWELL = {"TORCH_NCCL_DUMP_ON_TIMEOUT": "0", "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "250"}
"""After a timeout torch waits a minute for other ranks to dump what they know; there is nothing to learn here."""
CPU_ENV = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "2000000000", "MALLOC_TOP_PAD_": "268435456"}
"""glibc keeps freed memory: else much of a CPU step is page faults for buffers that every gather gives back."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Params:
    """What is asked of a run. Defaults are the report's model on two CPU ranks."""

    cases: tuple[str, ...] = ("fsdp2 root+PRE", "fsdp2 block+PRE", "fsdp2 block+POST", "fsdp2 block+NONE")
    """As `labkit.calc.fsdp.fsdp_case` names them."""
    has_baseline: bool = False
    """Also time the model without sharding."""
    world_size: int = 2
    device: str = "cpu"
    """`cpu` (gloo) or `cuda` (NCCL)."""
    precision: str = "fp32"
    """Of gathered parameters and reduced gradients: `fp32`, or `fp16` (CUDA only). Training is checked in fp32."""
    num_layers: int = 12
    hidden: int = 768
    num_heads: int = 12
    vocab_size: int = 32000
    num_positions: int = 256
    seq_tokens: int = 16
    microbatch: int = 1
    """Samples per rank and step."""
    learning_rate: float = 3e-4
    num_check_steps: int = 3
    """Steps trained beside one process, in the first launch."""
    num_processes: int = 1
    """Fresh launches; the first one also checks."""
    num_profiled_processes: int = 1
    """The first of them also record a step of each case."""
    num_warmup_steps: int = 0
    num_timed_steps: int = 2
    exits: tuple[str, ...] = ("early",)
    """Ways to leave the job, each tried in a launch of its own: see `labkit.workers.group_exit`."""
    group_timeout_s: float = 10.0
    """How long a rank waits for one that has left, in those launches."""
    exit_elements: int = 4_000_000
    """Float32 elements of each rank in the gather before they leave."""
    seed: int = 1
    timeout_s: float = 600.0
    """Deadline of one launch."""

    def __post_init__(self) -> None:
        """Refuse what could not run, naming the argument."""
        for name in ("num_layers", "hidden", "num_heads", "vocab_size", "num_positions", "seq_tokens", "microbatch",
                     "num_check_steps", "num_processes", "num_profiled_processes", "num_timed_steps", "exit_elements"):
            require(getattr(self, name) >= 1, name, getattr(self, name), "at least 1")
        require(self.world_size >= 2, "world_size", self.world_size, "at least 2: one rank has nothing to shard")
        for name in ("num_warmup_steps", "seed"):
            require(getattr(self, name) >= 0, name, getattr(self, name), "at least 0")
        for name in ("timeout_s", "group_timeout_s", "learning_rate"):
            require(getattr(self, name) > 0, name, getattr(self, name), "above 0")
        for name, choices in (("device", ("cpu", "cuda")), ("precision", ("fp32", "fp16"))):
            require(getattr(self, name) in choices, name, getattr(self, name), " or ".join(choices))
        require(len(set(self.cases)) == len(self.cases) > 0, "cases", self.cases, "one or more different cases")
        for case in self.cases:
            plan = fsdp_case(name=case)
            require(plan["api"] == "fsdp2" or self.device == "cuda", "cases", case, "fsdp2 cases on a CPU")
        require(set(self.exits) <= set(EXITS), "exits", self.exits, f"some of {', '.join(EXITS)}")
        require(self.hidden % self.num_heads == 0, "num_heads", self.num_heads, f"a divisor of hidden={self.hidden}")
        require(self.seq_tokens <= self.num_positions, "seq_tokens", self.seq_tokens,
                f"at most num_positions={self.num_positions}")
        require(self.precision == "fp32" or self.device == "cuda", "precision", self.precision, "fp32 on a CPU")


def predict(params: Params, *, hardware: HardwareProfile | None = None) -> dict[str, Any]:
    """Everything that follows from the wrap tree, before anything runs.

    Args:
        params: what will be run.
        hardware: profile of the GPU; adds times that no step can beat where its measured ceilings are known.

    Returns: as `labkit.calc.fsdp_prediction.fsdp_prediction`, and by case comm_floor_ms, exposed_floor_ms and
        step_floor_ms, empty where a ceiling is unknown.
    """
    sizes = {name: getattr(params, name) for name in ("num_layers", "hidden", "vocab_size", "num_positions")}
    element_bytes = 2 if params.precision == "fp16" else 4
    found = fsdp_prediction(cases=params.cases, num_ranks=params.world_size, element_bytes=element_bytes, **sizes)
    known = {} if hardware is None else {name: field.value for name, field in hardware.measured.items()}
    busbw = known.get(f"all_reduce_busbw_{params.world_size}_gpus_bytes_per_s")
    flop_per_s = known.get("bf16_matmul_flop_per_s") if params.precision == "fp16" else None
    floors: dict[str, Any] = {"comm_floor_ms": {}, "exposed_floor_ms": {}, "step_floor_ms": {}}
    if busbw and flop_per_s:
        tokens, hidden = params.microbatch * params.seq_tokens, params.hidden
        floors = exposed_by_case(
            cases=params.cases, parameters=tinygpt_parameters(**sizes), num_ranks=params.world_size,
            element_bytes=element_bytes, busbw_bytes_per_s=busbw, num_layers=params.num_layers,
            block_s=tokens * (24 * hidden**2 + 2 * hidden * params.seq_tokens) / flop_per_s,
            head_s=tokens * 2 * hidden * params.vocab_size / flop_per_s)
    return {**found, **floors}


def run(params: Params, *, preset: str = "custom", run_id: str | None = None,
        progress: Callable[[str], None] | None = None) -> RunRecord:
    """Predict, launch, check and publish; a failed launch or check is published as a failed record.

    Args:
        params: what to run.
        preset: name to keep in the record.
        run_id: name of the run; made from date, hardware and parameters if not given.
        progress: called with a line for people whenever a case is done.

    Raises: RecordError if the run directory exists or cannot be written.
    """
    return conduct(
        SLUG, params, preset=preset, run_id=run_id,
        predict=lambda: predict(params, hardware=own_profile(params.device)),
        measure=lambda run_dir, predicted, outcome: _measure(params, run_dir, predicted, outcome, progress))


def _measure(params: Params, run_dir: Path, predicted: dict[str, Any], outcome: Outcome,
             progress: Callable[[str], None] | None) -> None:
    """Every launch, then results, samples and oracles."""
    from labkit.analyze import fsdp_oracles, fsdp_results
    from labkit.analyze.ddp_oracles import rounding_bound

    outcome.notes += _notes(params)
    processes, launches = [], []
    quiet = run_dir / ".quiet"
    with ThreadPoolExecutor(len(EXITS) + 1) as pool:
        # On a GPU host the small jobs run while the first launch starts and checks; it waits for them before it times.
        ways = params.exits if params.device == "cuda" else ()
        leaving = {how: pool.submit(_leave, params, run_dir / f"exit_{how}", how, progress) for how in ways}
        pool.submit(lambda: (wait(leaving.values()), quiet.touch()))
        for index in range(params.num_processes):
            launches.append(_launch(params, run_dir / f"p{index}", index, quiet, outcome, progress))
            processes.append(fsdp_results.read_process(run_dir / f"p{index}"))
    first, tokens = processes[0], params.world_size * params.microbatch * params.seq_tokens
    training = fsdp_results.training(first, world_size=params.world_size)
    loopback = fsdp_results.loopback_seen(processes, list(params.cases), world_size=params.world_size)
    outcome.results |= {
        "num_parameters": predicted["num_parameters"], "tokens_per_step": tokens,
        **fsdp_results.structure(first, world_size=params.world_size), **training,
        "loopback_bytes_per_rank": loopback, **fsdp_results.memory(processes), "launches": launches}
    for results, samples in (fsdp_results.timing(processes, tokens_per_step=tokens), fsdp_results.recorded(processes)):
        outcome.results |= results
        outcome.samples |= samples
    outcome.results |= fsdp_results.verdicts(outcome.results)
    outcome.oracles += fsdp_oracles.fsdp_oracles(
        first, predicted=predicted, world_size=params.world_size, loopback_bytes=loopback, training=training,
        bound=rounding_bound(num_layers=params.num_layers, hidden=params.hidden, vocab_size=params.vocab_size,
                             num_tokens=tokens))
    write_atomic(run_dir / TIMELINE, json.dumps({"cases": {
        case: {str(rank): ranks[rank]["timeline"] for rank in sorted({0, params.world_size - 1})}
        for case, ranks in first.traces.items()}}) + "\n")
    exits = {how: leaving[how].result() if how in leaving else
             _leave(params, run_dir / f"exit_{how}", how, progress) for how in params.exits}
    outcome.results |= {"exits": exits, **fsdp_results.exit_verdicts(launches, exits, world_size=params.world_size)}
    outcome.oracles += fsdp_oracles.exit_oracles(launches, exits, world_size=params.world_size)


def _launch(params: Params, folder: Path, index: int, quiet: Path, outcome: Outcome,
            progress: Callable[[str], None] | None) -> dict[str, Any]:
    """One fresh launch that times once `quiet` exists; cases are rotated so that none is always the first.

    Returns how it ended.
    """
    from labkit.analyze.job_exit import job_exit

    cases: list[dict[str, Any]] = [fsdp_case(name=case) for case in params.cases]
    cases += [{"name": BASELINE, "api": BASELINE}] * params.has_baseline
    turn = index % len(cases)
    worker_dir(folder, {
        **plain_params(params), "tied": True, "linear_bias": False, "is_checked": index == 0,
        "cases": cases[turn:] + cases[:turn], "is_profiled": index < params.num_profiled_processes,
        "quiet_file": f"../{quiet.name}"})
    done = launch_torchrun("fsdp_steps", run_dir=folder, num_procs=params.world_size, timeout_s=params.timeout_s,
                           env=CPU_ENV if params.device == "cpu" else GPU_ENV,
                           progress=relay(progress, f"process {index + 1}/{params.num_processes}"))
    outcome.argv.append(done.argv)
    return job_exit(folder, exitcode=0, ended=done.ended, shm_removed=done.shm_removed)


def _leave(params: Params, folder: Path, how: str, progress: Callable[[str], None] | None) -> dict[str, Any]:
    """One launch that ends as `how` says. It may fail: that is what is looked at."""
    from labkit.analyze.job_exit import job_exit

    worker_dir(folder, {"how": how, "device": params.device, "num_elements": params.exit_elements,
                        "group_timeout_s": params.group_timeout_s})
    try:
        done = launch_torchrun("group_exit", run_dir=folder, num_procs=params.world_size,
                               timeout_s=30 + 4 * params.group_timeout_s,
                               env={} if params.device == "cpu" else {**GPU_ENV, **SHORT_FAREWELL})
        found = job_exit(folder, exitcode=0, ended=done.ended, shm_removed=done.shm_removed)
    except LaunchError as error:
        found = job_exit(folder, exitcode=error.exitcode if error.exitcode is not None else 1, error=str(error))
    if progress is not None:
        progress(f"leaving {how}: exit code {found['exitcode']}, {', '.join(found['complaints']) or 'nothing logged'}")
    return found


def _notes(params: Params) -> list[str]:
    """What a reader of the record has to know."""
    return [f"{params.precision} on the wire; training is compared in fp32", "no loss scaling",
            "gloo sends a reduce-scatter as an all-reduce; FSDP1 does not run on a CPU" if params.device == "cpu" else
            "peaks of memory are those of the allocator since the case began, with what was in use before it"]


def load(run_id: str, *, expect: Params | None = None) -> RunRecord:
    """A recorded run, local or committed, "" the newest good one; RecordError if there is none or it is of others."""
    return load_run(SLUG, run_id, expect=expect)


def recorded() -> list[RunRecord]:
    """Committed good runs, the newest of each hardware and preset."""
    return newest_records(SLUG)


def table(record: RunRecord) -> pd.DataFrame:
    """One row a case; columns as in `labkit.analyze.fsdp_tables.cases_frame`."""
    from labkit.analyze.fsdp_tables import cases_frame

    return cases_frame(record)


def check(record: RunRecord) -> pd.DataFrame:
    """The oracles of a run: name, passed, expected, seen, tolerance, detail; RecordError names those that failed."""
    return oracle_table(record)


def figures(record: RunRecord) -> dict[str, go.Figure]:
    """schedule, collectives, time, and where there is data memory and timeline."""
    from labkit.plots import fsdp as plots

    caption = f"{record.hardware_tag}, run {record.run_id}, {record.created_utc[:10]}"
    found = {"schedule": plots.schedule(record.prediction["values"]["calls"], caption=caption),
             "collectives": plots.collectives(record.prediction["values"], record.results, caption=caption),
             "step_time": plots.step_time(record.results, name=record.hardware_tag, caption=caption)}
    if record.results["allocated_peak_gib"]:
        found["memory"] = plots.memory(record.results, record.prediction["values"], caption=caption)
    path = next((p for root in (runs_root(), RECORDS) if (p := root / SLUG / record.run_id / TIMELINE).is_file()), None)
    if path is not None:
        found["timeline"] = plots.timeline(json.loads(path.read_text(encoding="utf-8"))["cases"], caption=caption)
    return found


def reported() -> dict[str, dict[str, Any]]:
    """Figures of the 8x V100 report as the ledger has them: result name -> case -> value."""
    from labkit.claims import report_figures

    return report_figures(REPORTED)


def compare(records: list[RunRecord]) -> pd.DataFrame:
    """Prediction, runs and report side by side; columns as in `labkit.analyze.fsdp_tables.comparison`."""
    from labkit.analyze.fsdp_tables import comparison

    return comparison(records, reported=reported())

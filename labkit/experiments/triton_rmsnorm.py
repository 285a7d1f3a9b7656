"""RMSNorm in Triton: is the kernel right, how fast is it, and against what?

parameters -> prediction -> `rmsnorm_bench`, once for each fresh process -> record -> oracles -> tables and figures.

    python -m labkit run triton_rmsnorm --preset smoke      # a CPU: Triton's interpreter, correctness only
    python -m labkit run triton_rmsnorm --preset gpu1
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labkit import machine
from labkit.analyze import rmsnorm as analyze
from labkit.analyze import rmsnorm_oracles as oracles
from labkit.analyze import rmsnorm_parts as parts
from labkit.analyze import rmsnorm_times as times
from labkit.calc import rmsnorm as calc
from labkit.conduct import Outcome, conduct, load_run, oracle_table, own_profile, plain_params
from labkit.hardware import HardwareProfile, load_profile
from labkit.launch.process import LaunchError, launch_worker
from labkit.launch.torchrun import launch_torchrun
from labkit.launch.worker_dir import worker_dir
from labkit.presets import UsageError
from labkit.records import RecordError, RunRecord, list_runs, load_record

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

SLUG = "triton_rmsnorm"
TITLE = "RMSNorm in Triton: correct, and as fast as a copy"
NEEDS = "smoke, cpu: any CPU (interpreter, correctness only); gpu1, gpu2, gpu8: 1, 2, 8 CUDA GPUs"
REPORT_SHAPES = ("1024x768", "1024x4096", "1024x8192", "8192x768", "8192x4096", "8192x8192")
_SHAPE = re.compile(r"([1-9]\d{0,6})x([1-9]\d{0,6})( bf16| fp32)?")
_LISTS = ("backward_shapes", "wide_shapes")


@dataclass(frozen=True, kw_only=True, slots=True)
class Params:
    """Settings of one run."""

    shapes: tuple[str, ...] = REPORT_SHAPES
    """`rowsxhidden`, fp16 as in the report, or `rowsxhidden bf16`."""
    compile_shapes: tuple[str, ...] = ()
    """Shapes of any list for which `F.rms_norm` is also compiled afresh, with its backward pass."""
    backward_shapes: tuple[str, ...] = ()
    """Shapes whose gradients are checked, every row, and on a GPU timed."""
    wide_shapes: tuple[str, ...] = ()
    """Shapes of long rows for the two-pass kernels, timed on a GPU, forward and backward."""
    cache_shapes: tuple[str, ...] = ()
    """Of both lists: tuned by the first process, which leaves the winners in the shape cache for the others."""
    widths: tuple[int, ...] = ()
    """Row lengths whose gradients are checked in every dtype; with none, no gradient is checked."""
    wide_widths: tuple[int, ...] = ()
    """Row lengths past one program's limit, checked forward and backward in two passes."""
    device: str = "cpu"
    """`cpu`: Triton's interpreter, nothing is timed. `cuda`: a GPU."""
    max_rows: int = 0
    """Rows of each shape that are checked on a CPU, 0 for all: every row is computed alike."""
    num_processes: int = 1
    """Fresh processes one after the other."""
    num_gpus: int = 1
    """GPUs that run the same list at the same time, each on its own."""
    rounds: int = 20
    """Samples of each provider, shape and mode in each process."""
    launch_floor_us: float = 2.7
    """Predicted time of an empty kernel between two events, microseconds; measured on an H200 before this lab ran."""
    eps: float = 1e-6
    seed: int = 0
    timeout_s: float = 300
    """Deadline of each process, seconds."""

    def __post_init__(self) -> None:
        if not self.shapes:
            raise ValueError("shapes=(): expected at least one shape like '1024x768'")
        for name in ("shapes", *_LISTS):
            for text in getattr(self, name):
                if not isinstance(text, str) or not _SHAPE.fullmatch(text):
                    raise ValueError(f"{name}: {text!r}: expected rows x hidden like '1024x768' or '1024x768 bf16'")
            if len(set(getattr(self, name))) < len(getattr(self, name)):
                raise ValueError(f"{name}: expected each shape once")
        known = {"compile_shapes": {*self.shapes, *self.backward_shapes, *self.wide_shapes},
                 "cache_shapes": {*self.shapes, *self.backward_shapes}}  # fmt: skip
        for name, allowed in known.items():
            if unknown := sorted(set(getattr(self, name)) - allowed):
                raise ValueError(f"{name}: {unknown[0]!r}: expected a shape of the lists that are timed")
        for name in ("widths", "wide_widths"):
            for width in getattr(self, name):
                if not isinstance(width, int) or isinstance(width, bool) or not 1 <= width <= 2**20:
                    raise ValueError(f"{name}: {width!r}: expected row lengths from 1 to 1048576")
        if not self.widths and (self.wide_widths or self.backward_shapes or self.wide_shapes):
            raise ValueError("widths=(): expected row lengths; no gradient is timed that was not checked")
        if self.device not in ("cpu", "cuda"):
            raise ValueError(f"device={self.device!r}: expected cpu or cuda")
        for name, least in (("max_rows", 0), ("num_processes", 1), ("num_gpus", 1), ("rounds", 1), ("seed", 0)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ValueError(f"{name}={value!r}: expected a whole number, at least {least}")
        for name in ("launch_floor_us", "eps", "timeout_s"):
            if not isinstance(getattr(self, name), int | float) or not getattr(self, name) > 0:
                raise ValueError(f"{name}={getattr(self, name)!r}: expected a positive number")
        if self.device == "cpu" and (self.num_gpus > 1 or self.compile_shapes or self.wide_shapes or self.cache_shapes):
            raise ValueError("device='cpu': expected num_gpus=1 and no compile_shapes, wide_shapes or cache_shapes: "
                             "nothing is timed there")  # fmt: skip
        if self.device == "cuda" and self.max_rows:
            raise ValueError(f"max_rows={self.max_rows}: expected 0 on a GPU, which checks every row")


def sizes(shapes: tuple[str, ...]) -> dict[str, tuple[int, int, int]]:
    """Shape text -> rows, hidden, bytes per element."""
    found = {text: _SHAPE.fullmatch(text) for text in shapes}
    return {text: (int(m[1]), int(m[2]), 4 if m[3] == " fp32" else 2) for text, m in found.items() if m}


def structure(params: Params) -> dict[str, Any]:
    """What the shapes fix without a run; see `rmsnorm.structure` and `rmsnorm_parts.structure`."""
    return {**analyze.structure(sizes(params.shapes)),
            **parts.structure(sizes(params.backward_shapes), sizes(params.wide_shapes))}  # fmt: skip


def predict(params: Params, *, hardware: HardwareProfile | None = None) -> dict[str, Any]:
    """What must come out, before anything runs.

    Args:
        params: shapes and the launch floor.
        hardware: profile of the GPU; if not given, that of this machine's GPU when `device` is cuda.

    Returns: min_bytes by shape, block_size and masked_lane_pct by hidden size, kernels_per_call; the same bytes of the
    backward pass and of two passes, where shapes ask for them; with a profile also `hardware`, and `time_ms` by ceiling
    and shape (`part_time_ms` by ceiling, part and shape): launch floor + bytes / bandwidth, for the datasheet's
    bandwidth and for the copy measured on such a GPU.
    """
    hardware = hardware or own_profile(params.device)
    out = {**structure(params), "kernels_per_call": 1}
    if hardware is None:
        return out
    floor_s = params.launch_floor_us * 1e-6
    predicted = {
        name: {
            shape: 1e3 * calc.predicted_time_s(num_bytes=moved, bytes_per_s=rate, launch_floor_s=floor_s)
            for shape, moved in out["min_bytes"].items()
        }
        for name, rate in ceilings(hardware).items() if rate
    }  # fmt: skip
    out |= {"hardware": hardware.name, "launch_floor_ms": floor_s * 1e3, "time_ms": predicted}
    if params.backward_shapes or params.wide_shapes:
        out["part_time_ms"] = {name: parts.predicted_ms(out, bytes_per_s=rate, launch_floor_s=floor_s)
                               for name, rate in ceilings(hardware).items() if rate}  # fmt: skip
    return out


def ceilings(hardware: HardwareProfile | None) -> dict[str, float | None]:
    """Bandwidths of a GPU in bytes/s: `datasheet`, and `profile`, a copy measured on such a GPU; None where unknown."""
    if hardware is None:
        return {"datasheet": None, "profile": None}
    copy = hardware.measured.get("copy_bytes_per_s")
    return {"datasheet": hardware.value("memory_bandwidth_bytes_per_s"), "profile": copy.value if copy else None}


def run(
    params: Params, *, preset: str = "custom", run_id: str | None = None,
    progress: Callable[[str], None] | None = None,
) -> RunRecord:  # fmt: skip
    """Measure and publish. A failed launch or oracle gives a record with status `failed`.

    Raises: UsageError when this machine lacks the GPUs; RecordError when the run directory cannot be used.
    """
    here = machine.detect()
    if params.device == "cuda" and here.num_gpus < params.num_gpus:
        raise UsageError(f"{SLUG}: num_gpus={params.num_gpus} with device='cuda', but this machine has "
                         f"{here.num_gpus} GPUs; on a CPU use --preset smoke or cpu")  # fmt: skip
    return conduct(
        SLUG, params, preset=preset, run_id=run_id, predict=lambda: predict(params),
        measure=lambda run_dir, predicted, outcome: _measure(params, run_dir, predicted, outcome, progress),
    )  # fmt: skip


def _measure(
    params: Params, run_dir: Path, predicted: dict[str, Any], outcome: Outcome, progress: Callable[[str], None] | None
) -> None:
    try:
        _launch(params, run_dir, outcome, progress)
    finally:  # a process that fails leaves what the others measured
        _read(params, run_dir, predicted, outcome)


def _launch(params: Params, run_dir: Path, outcome: Outcome, progress: Callable[[str], None] | None) -> None:
    """Each process in turn; all share one shape cache."""
    env = {
        # One small kernel is compiled a shape: starting a pool of compilers would take longer than the compilation.
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        "TORCHINDUCTOR_VEC_ISA_OK": "1",  # no trial compilation of C++ for kernels that run on a GPU
        "LABKIT_CACHE_DIR": str(run_dir / "cache"),
    }
    for process in range(params.num_processes):
        if progress:
            progress(f"process {process + 1} of {params.num_processes}")
        folder = worker_dir(run_dir / f"p{process}", {**plain_params(params), "mode": "bench", "process": process})
        common = {"run_dir": folder, "timeout_s": params.timeout_s, "env": env, "progress": progress}
        try:
            if params.num_gpus > 1:
                done = launch_torchrun("rmsnorm_bench", num_procs=params.num_gpus, **common)
            else:
                done = launch_worker("rmsnorm_bench", **common)
        except LaunchError:
            outcome.notes.append(f"process {process} failed")
            raise
        outcome.argv.append(done.argv)


def _read(params: Params, run_dir: Path, predicted: dict[str, Any], outcome: Outcome) -> None:
    """Fill results, samples, oracles and notes from what the processes wrote."""
    plain, lines = plain_params(params), analyze.read_lines(run_dir)
    hardware = predicted.get("hardware")
    outcome.results = _results(params, lines, load_profile(hardware) if hardware else None, predicted)
    outcome.samples = {**analyze.all_samples(lines), **parts.part_samples(lines)}
    outcome.oracles = oracles.oracles(plain, lines, outcome.results)
    outcome.notes += oracles.notes(plain, lines)


def _results(
    params: Params, lines: analyze.Lines, hardware: HardwareProfile | None, predicted: dict[str, Any]
) -> dict[str, Any]:
    fixed = structure(params)
    moved = fixed["min_bytes"]
    out = {**fixed, **analyze.errors(lines, params.shapes), **parts.gradient_errors(lines, params.backward_shapes)}
    if params.device == "cpu":
        return out
    out |= times.timing_results(lines, params.shapes, moved)
    floor_ms = params.launch_floor_us / 1e3
    out["residual_pct"] = times.residuals(out, moved, floor_ms=floor_ms, ceilings=ceilings(hardware))
    if hardware and (rate := hardware.value("memory_bandwidth_bytes_per_s")):
        out["datasheet_gb_per_s"] = rate / 1e9
    out |= parts.part_results(lines, fixed)
    if found := parts.residuals(out, predicted.get("part_time_ms", {})):
        out["part_residual_pct"] = found
    return {**out, **times.card_spread(lines, params.shapes)}


def load(run_id: str, *, expect: Params | None = None) -> RunRecord:
    """A recorded run, local or committed; see `labkit.conduct.load_run`."""
    return load_run(SLUG, run_id, expect=expect)


def recorded() -> list[RunRecord]:
    """The newest good GPU record of each machine and preset, committed or local; empty if there is none."""
    newest: dict[tuple[str, str], RunRecord] = {}
    for path in list_runs(SLUG):
        try:
            record = load_record(path)
        except RecordError:
            continue
        if record.status == "ok" and record.params["device"] == "cuda":
            newest[record.hardware_tag, record.preset] = record
    return [newest[key] for key in sorted(newest)]


def table(record: RunRecord) -> pd.DataFrame:
    """One row a shape; the columns are those of `labkit.analyze.rmsnorm_tables.shape_table`."""
    from labkit.analyze.rmsnorm_tables import shape_table

    return shape_table(record)


def part_table(record: RunRecord, part: str) -> pd.DataFrame:
    """One row a shape of `backward`, `wide_forward` or `wide_backward`; see `rmsnorm_part_tables.part_table`."""
    from labkit.analyze.rmsnorm_part_tables import part_table

    return part_table(record, part)


def check(record: RunRecord) -> pd.DataFrame:
    """The oracles: name, passed, expected, seen, detail.

    Raises: RecordError naming the oracles that failed, or the failure of the launch.
    """
    return oracle_table(record).drop(columns="tolerance")


def figures(record: RunRecord) -> dict[str, go.Figure]:
    """`errors` for every record, `gradient_errors` where gradients were checked; for a GPU's also `bandwidth`,
    `speedups` and `residuals`, and `<part>` and `<part>_times` for each part that was timed.
    """
    from labkit.analyze.rmsnorm_part_tables import gradient_table, part_table
    from labkit.plots import rmsnorm as plots
    from labkit.plots import rmsnorm_parts

    frame, source = table(record), f"{record.hardware_tag}, run {record.run_id}, {record.created_utc[:10]}"
    found = {"errors": plots.errors(frame, source=source)}
    if "fast_ms" in frame:
        sheet = record.results.get("datasheet_gb_per_s")
        found["bandwidth"] = plots.bandwidth(frame, source=source, datasheet_gb_per_s=sheet)
        found["speedups"] = plots.speedups(frame, source=source)
        found["residuals"] = plots.residuals(frame, record.results["residual_pct"], source=source)
    if len(gradients := gradient_table(record)):
        found["gradient_errors"] = rmsnorm_parts.gradient_errors(gradients, source=source)
    for part in parts.PARTS:
        if len(frame := part_table(record, part)):
            goal = parts.COPY_GOAL if part == "backward" else None
            found[part] = rmsnorm_parts.share_of_copy(frame, part=part, source=source, goal=goal)
            found[f"{part}_times"] = rmsnorm_parts.part_times(frame, part=part, source=source)
    return found


def compare(records: list[RunRecord]) -> pd.DataFrame:
    """Predicted, these records and the 8x V100 report side by side; see `rmsnorm_tables.compare_table`."""
    from labkit.analyze.rmsnorm_tables import compare_table

    return compare_table(records)

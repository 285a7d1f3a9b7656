"""RMSNorm in Triton: is the kernel right, how fast is it, and against what?

parameters -> prediction -> `rmsnorm_bench`, once for each fresh process -> record -> oracles -> tables and figures.

    python -m labkit run triton_rmsnorm --preset smoke      # a CPU: Triton's interpreter, correctness only
    python -m labkit run triton_rmsnorm --preset gpu1
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labkit import machine
from labkit.analyze import rmsnorm as analyze
from labkit.analyze import rmsnorm_oracles as oracles
from labkit.analyze import rmsnorm_times as times
from labkit.calc import rmsnorm as calc
from labkit.hardware import HardwareProfile, load_profile, match_profile
from labkit.launch.process import LaunchError, launch_worker
from labkit.launch.torchrun import launch_torchrun
from labkit.paths import RECORDS, runs_root
from labkit.presets import UsageError
from labkit.provenance import collect
from labkit.records import (
    RecordError,
    RunRecord,
    describe_artifacts,
    list_runs,
    load_record,
    new_run_id,
    open_run_dir,
    publish,
    utc_now,
    write_json,
)

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

SLUG = "triton_rmsnorm"
TITLE = "RMSNorm in Triton: correct, and as fast as a copy"
NEEDS = "smoke, cpu: any CPU (interpreter, correctness only); gpu1, gpu2, gpu8: 1, 2, 8 CUDA GPUs"
REPORT_SHAPES = ("1024x768", "1024x4096", "1024x8192", "8192x768", "8192x4096", "8192x8192")
_SHAPE = re.compile(r"([1-9]\d{0,6})x([1-9]\d{0,5})( bf16)?")


@dataclass(frozen=True, kw_only=True, slots=True)
class Params:
    """Settings of one run."""

    shapes: tuple[str, ...] = REPORT_SHAPES
    """`rowsxhidden`, fp16 as in the report, or `rowsxhidden bf16`."""
    compile_shapes: tuple[str, ...] = ()
    """Shapes for which `F.rms_norm` is also compiled afresh; must be in `shapes`."""
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
        for text in self.shapes:
            if not isinstance(text, str) or not _SHAPE.fullmatch(text):
                raise ValueError(f"shapes: {text!r}: expected rows x hidden like '1024x768' or '1024x768 bf16'")
        if len(set(self.shapes)) < len(self.shapes):
            raise ValueError("shapes: expected each shape once")
        if unknown := sorted(set(self.compile_shapes) - set(self.shapes)):
            raise ValueError(f"compile_shapes: {unknown[0]!r}: expected one of shapes")
        if self.device not in ("cpu", "cuda"):
            raise ValueError(f"device={self.device!r}: expected cpu or cuda")
        for name, least in (("max_rows", 0), ("num_processes", 1), ("num_gpus", 1), ("rounds", 1), ("seed", 0)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ValueError(f"{name}={value!r}: expected a whole number, at least {least}")
        for name in ("launch_floor_us", "eps", "timeout_s"):
            if not isinstance(getattr(self, name), int | float) or not getattr(self, name) > 0:
                raise ValueError(f"{name}={getattr(self, name)!r}: expected a positive number")
        if self.device == "cpu" and (self.num_gpus > 1 or self.compile_shapes):
            raise ValueError("device='cpu': expected num_gpus=1 and no compile_shapes, nothing is timed there")
        if self.device == "cuda" and self.max_rows:
            raise ValueError(f"max_rows={self.max_rows}: expected 0 on a GPU, which checks every row")


def sizes(params: Params) -> dict[str, tuple[int, int, int]]:
    """Shape text -> rows, hidden, bytes per element."""
    found = {text: _SHAPE.fullmatch(text) for text in params.shapes}
    return {text: (int(m[1]), int(m[2]), 2) for text, m in found.items() if m}


def predict(params: Params, *, hardware: HardwareProfile | None = None) -> dict[str, Any]:
    """What must come out, before anything runs.

    Args:
        params: shapes and the launch floor.
        hardware: profile of the GPU; if not given, that of this machine's GPU when `device` is cuda.

    Returns: min_bytes by shape, block_size and masked_lane_pct by hidden size, kernels_per_call; with a profile also
    `hardware` and `time_ms` by ceiling and shape: launch floor + minimum bytes / bandwidth, for the datasheet's
    bandwidth and for the copy measured on such a GPU.
    """
    if hardware is None and params.device == "cuda":
        gpus = machine.detect().gpus
        name = match_profile(gpus[0].name) if gpus else None
        hardware = load_profile(name) if name else None
    out = {**analyze.structure(sizes(params)), "kernels_per_call": 1}
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
    return {**out, "hardware": hardware.name, "launch_floor_ms": floor_s * 1e3, "time_ms": predicted}


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
    plain = json.loads(json.dumps(asdict(params)))
    run_id = run_id or new_run_id(plain, hardware_tag=here.tag)
    run_dir = open_run_dir(SLUG, run_id, params=plain)
    created = utc_now()
    prediction = {"created_utc": created, "values": predict(params)}
    write_json(run_dir / "prediction.json", prediction)
    argvs, failure = _measure(params, plain, run_dir, progress)
    lines = analyze.read_lines(run_dir)
    hardware = prediction["values"].get("hardware")
    results = _results(params, lines, load_profile(hardware) if hardware else None)
    checked = oracles.oracles(plain, lines, results)
    record = RunRecord(
        experiment=SLUG, run_id=run_id, preset=preset, created_utc=created, finished_utc=utc_now(), params=plain,
        status="ok" if failure is None and all(o.passed for o in checked) else "failed", argv=argvs,
        environment=collect(argvs[-1] if argvs else (), run_dir=run_dir), prediction=prediction, results=results,
        samples=analyze.all_samples(lines), oracles=checked, failure=failure,
        artifacts=describe_artifacts(run_dir, _artifacts(run_dir)), notes=oracles.notes(plain, lines),
    )  # fmt: skip
    publish(record, run_dir)
    return record


def _measure(
    params: Params, plain: dict[str, Any], run_dir: Path, progress: Callable[[str], None] | None
) -> tuple[list[list[str]], dict[str, Any] | None]:
    """Launch each process; returns the commands and, of the first that fails, the failure."""
    argvs = []
    # One small kernel is compiled a shape: starting a pool of compilers would take longer than the compilation.
    env = {"TORCHINDUCTOR_COMPILE_THREADS": "1"}
    for process in range(params.num_processes):
        if progress:
            progress(f"process {process + 1} of {params.num_processes}")
        folder = run_dir / f"p{process}"
        folder.mkdir()
        write_json(folder / "params.json", {**plain, "mode": "bench", "process": process})
        try:
            if params.num_gpus > 1:
                done = launch_torchrun("rmsnorm_bench", run_dir=folder, num_procs=params.num_gpus,
                                       timeout_s=params.timeout_s, env=env, progress=progress)  # fmt: skip
            else:
                done = launch_worker("rmsnorm_bench", run_dir=folder, timeout_s=params.timeout_s, env=env,
                                     progress=progress)  # fmt: skip
        except LaunchError as error:
            return argvs, {"message": f"process {process}: {error}", "process": process, "rank": error.rank,
                           "exitcode": error.exitcode, "timed_out": error.timed_out}  # fmt: skip
        argvs.append(done.argv)
    return argvs, None


def _artifacts(run_dir: Path) -> list[str]:
    found = [run_dir / "params.json", run_dir / "prediction.json"]
    found += [path for pattern in ("p*/*.jsonl", "p*/*.json", "p*/log.txt") for path in run_dir.glob(pattern)]
    return [path.relative_to(run_dir).as_posix() for path in found]


def _results(params: Params, lines: analyze.Lines, hardware: HardwareProfile | None) -> dict[str, Any]:
    fixed = analyze.structure(sizes(params))
    moved = fixed["min_bytes"]
    out = {**fixed, **analyze.errors(lines, params.shapes)}
    if params.device == "cpu":
        return out
    out |= times.timing_results(lines, params.shapes, moved)
    floor_ms = params.launch_floor_us / 1e3
    out["residual_pct"] = times.residuals(out, moved, floor_ms=floor_ms, ceilings=ceilings(hardware))
    if hardware and (rate := hardware.value("memory_bandwidth_bytes_per_s")):
        out["datasheet_gb_per_s"] = rate / 1e9
    return {**out, **times.card_spread(lines, params.shapes)}


def load(run_id: str, *, expect: Params | None = None) -> RunRecord:
    """A recorded run, local or committed.

    Raises: RecordError if there is none, it is changed or incomplete, or its parameters are not those of `expect`.
    """
    found = [root / SLUG / run_id for root in (runs_root(), RECORDS) if run_id and (root / SLUG / run_id).is_dir()]
    if not found:
        raise RecordError(f"run_id={run_id!r}: {SLUG} has no such run")
    record = load_record(found[0])
    wanted = None if expect is None else json.loads(json.dumps(asdict(expect)))
    if wanted is not None and wanted != record.params:
        odd = sorted(k for k in {*wanted, *record.params} if wanted.get(k) != record.params.get(k))
        raise RecordError(f"run_id={run_id!r}: recorded with other parameters ({', '.join(odd)})")
    return record


def recorded() -> list[RunRecord]:
    """The newest good GPU record of each machine, committed or local, by hardware tag; empty if there is none."""
    newest: dict[str, RunRecord] = {}
    for path in list_runs(SLUG):
        try:
            record = load_record(path)
        except RecordError:
            continue
        if record.status == "ok" and record.params["device"] == "cuda":
            newest[record.hardware_tag] = record
    return [newest[tag] for tag in sorted(newest)]


def table(record: RunRecord) -> pd.DataFrame:
    """One row a shape; the columns are those of `labkit.analyze.rmsnorm_tables.shape_table`."""
    from labkit.analyze.rmsnorm_tables import shape_table

    return shape_table(record)


def check(record: RunRecord) -> pd.DataFrame:
    """The oracles: name, passed, expected, seen, detail.

    Raises: RecordError naming the oracles that failed, or the failure of the launch.
    """
    import pandas as pd

    if record.failure:
        raise RecordError(f"run {record.run_id} failed: {record.failure['message']}")
    if failed := [oracle for oracle in record.oracles if not oracle.passed]:
        told = "; ".join(f"{o.name}: expected {o.expected}, seen {o.seen} ({o.detail})" for o in failed)
        raise RecordError(f"run {record.run_id}: {told}")
    return pd.DataFrame([asdict(oracle) for oracle in record.oracles]).drop(columns="tolerance")


def figures(record: RunRecord) -> dict[str, go.Figure]:
    """`errors` for every record; for a GPU's also `bandwidth`, `speedups` and `residuals`."""
    from labkit.plots import rmsnorm as plots

    frame, source = table(record), f"{record.hardware_tag}, run {record.run_id}, {record.created_utc[:10]}"
    found = {"errors": plots.errors(frame, source=source)}
    if "fast_ms" in frame:
        sheet = record.results.get("datasheet_gb_per_s")
        found["bandwidth"] = plots.bandwidth(frame, source=source, datasheet_gb_per_s=sheet)
        found["speedups"] = plots.speedups(frame, source=source)
        found["residuals"] = plots.residuals(frame, record.results["residual_pct"], source=source)
    return found


def compare(records: list[RunRecord]) -> pd.DataFrame:
    """Predicted, these records and the 8x V100 report side by side; see `rmsnorm_tables.compare_table`."""
    from labkit.analyze.rmsnorm_tables import compare_table

    return compare_table(records)

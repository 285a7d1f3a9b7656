"""Hardware counters: what memory, caches and schedulers did while a kernel ran, and whether bytes over time told it.

parameters -> prediction -> unprofiled times, then Nsight Compute on the same kernels -> record -> oracles -> tables.

    python -m labkit run hw_counters --preset gpu1
    python -m labkit run hw_counters --preset smoke   # no GPU: host counters, and the recorded table read again
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labkit import machine
from labkit.analyze import hw_counters as analyze
from labkit.analyze import hw_counters_host as host
from labkit.analyze import hw_counters_oracles as oracles
from labkit.analyze import hw_counters_plan as planning
from labkit.analyze.hw_counters_results import collect
from labkit.analyze.ncu_csv import parse_ncu_csv
from labkit.calc.cache_traffic import first_touch_faults
from labkit.conduct import Outcome, conduct, load_run, newest_records, oracle_table, plain_params
from labkit.hardware import HardwareProfile, load_profile, match_profile
from labkit.launch.ncu import OUTPUT_NAME, count_worker, find_ncu, query_answer, query_metrics, refuse, supported
from labkit.launch.ncu_stand_ins import RIGHT, run_stand_ins
from labkit.launch.process import launch_worker
from labkit.launch.worker_dir import worker_dir
from labkit.paths import RECORDS
from labkit.presets import UsageError
from labkit.records import RunRecord

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

SLUG = "hw_counters"
TITLE = "Hardware counters: bytes, hits, occupancy and stalls"
NEEDS = "smoke, cpu: any machine (host counters, the recorded table); gpu1: a CUDA GPU, ncu and permission to count"
WORKER, HOST_WORKER = "counted_kernels", "host_counters"
Progress = Callable[[str], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Params:
    """Settings of one run."""

    device: str = "cpu"
    """`cpu`: host counters and the recorded table. `cuda`: Nsight Compute on a GPU."""
    rows: tuple[int, ...] = (512, 2048, 8192, 32768)
    """Rows of the copies and RMSNorms over which size is swept, fp16."""
    hidden: int = 8192
    compile_rows: tuple[int, ...] = (8192,)
    """Rows for which `F.rms_norm` is also compiled, and copied by the driver."""
    again_rows: tuple[int, ...] = (512, 1024, 1536, 2048, 8192)
    """Rows of the tensor that one launch copies several times."""
    warps: tuple[int, ...] = (1, 2, 4, 8, 16)
    """Warps a program of the report's kernel in the occupancy sweep."""
    warps_rows: int = 8192
    warps_hidden: tuple[int, ...] = (4096, 8192)
    products: tuple[str, ...] = ("4096x4096x7168", "1x4096x7168")
    """bf16 matrix products, `MxNxK`."""
    calls: int = 1
    """Counted calls of each kernel in each counted process, caches emptied before each."""
    num_processes: int = 1
    """Fresh processes that time the kernels without the profiler."""
    count_processes: int = 1
    """Fresh processes under Nsight Compute."""
    read_copies: float = 1.5
    """Lines of L2 that a line read takes: in two halves, half of the reads cross and are kept in both. A trial on an
    H200 suggested it: it saw one lookup and a half for each access."""
    rounds: int = 3
    """Unprofiled samples of each kernel in each process; on a CPU, mappings of each size."""
    touch_mib: tuple[int, ...] = (4, 64)
    """Sizes of the mappings that are written, MiB (CPU)."""
    launch_floor_us: float = 2.7
    """Time of an empty kernel between two events, microseconds, as in the RMSNorm lab."""
    eps: float = 1e-6
    seed: int = 0
    timeout_s: float = 240
    """Deadline of each process, seconds."""

    def __post_init__(self) -> None:
        if self.device not in ("cpu", "cuda"):
            raise ValueError(f"device={self.device!r}: expected cpu or cuda")
        for name in ("rows", "warps", "warps_hidden", "touch_mib", "products"):
            if not getattr(self, name):
                raise ValueError(f"{name}=(): expected at least one")
        for name in ("rows", "compile_rows", "again_rows", "warps", "warps_hidden", "touch_mib"):
            for value in getattr(self, name):
                _whole(f"{name}: {value!r}", value)
        for name in ("hidden", "warps_rows", "calls", "num_processes", "count_processes", "rounds"):
            _whole(f"{name}={getattr(self, name)!r}", getattr(self, name))
        for text in self.products:
            parts = text.split("x") if isinstance(text, str) else []
            if len(parts) != 3 or not all(part.isdigit() and int(part) for part in parts):
                raise ValueError(f"products: {text!r}: expected MxNxK like '4096x4096x7168'")
        for value in self.warps:
            if value & (value - 1) or value > 32:
                raise ValueError(f"warps: {value!r}: expected a power of two, at most 32")
        for name in ("read_copies", "launch_floor_us", "eps", "timeout_s"):
            if not isinstance(getattr(self, name), int | float) or not getattr(self, name) > 0:
                raise ValueError(f"{name}={getattr(self, name)!r}: expected a positive number")


def _whole(what: str, value: Any) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{what}: expected a whole number, at least 1")


def predict(params: Params, *, hardware: HardwareProfile | None = None) -> dict[str, Any]:
    """What the counters should say, before anything runs.

    Args:
        params: sizes.
        hardware: profile of the GPU; if not given, that of this machine's GPU, else the H200's.

    Returns: `min_bytes` by workload; bytes, hit shares and times by result name and workload (see
        `labkit.analyze.hw_counters_plan.predictions`) with `hardware` and `l2_bytes`; `page_faults` by size.
    """
    if hardware is None:
        gpus = machine.detect().gpus
        hardware = load_profile((match_profile(gpus[0].name) if gpus else None) or "h200")
    plain = plain_params(params)
    plan = planning.workloads(plain)
    copy, l2 = hardware.measured.get("copy_bytes_per_s"), hardware.value("l2_bytes")
    found = planning.predictions(plan, plain, l2_bytes=l2, bytes_per_s=copy.value if copy else None) if l2 else {}
    return {
        "hardware": hardware.name, "l2_bytes": l2, **found,
        "min_bytes": {name: spec.get("passes", 1) * (spec["read_bytes"] + spec["write_bytes"])
                      for name, spec in plan.items()},
        "page_faults": {f"{size} MiB": first_touch_faults(num_bytes=size * 2**20) for size in params.touch_mib},
    }  # fmt: skip


def run(
    params: Params, *, preset: str = "custom", run_id: str | None = None, progress: Progress | None = None
) -> RunRecord:
    """Measure and publish. A refusal, a failed process or a failed oracle gives a record with status `failed`.

    Raises: UsageError when `device` is cuda and this machine has no GPU; RecordError for the run directory.
    """
    if params.device == "cuda" and not machine.detect().num_gpus:
        raise UsageError(f"{SLUG}: device='cuda', but this machine has no GPU; use --preset smoke or cpu")
    measure = _measure_gpu if params.device == "cuda" else _measure_host
    return conduct(SLUG, params, preset=preset, run_id=run_id, predict=lambda: predict(params),
                   measure=lambda run_dir, predicted, outcome: measure(params, run_dir, predicted, outcome,
                                                                       progress or (lambda line: None)))  # fmt: skip


def _measure_gpu(
    params: Params, run_dir: Path, predicted: dict[str, Any], outcome: Outcome, progress: Progress
) -> None:
    plain = plain_params(params)
    plan = planning.workloads(plain)
    outcome.results |= {"counters": "not read", "min_bytes": predicted["min_bytes"]}
    folder = run_dir / "query"
    folder.mkdir()
    offered, told = query_metrics(run_dir=folder)
    outcome.results["ncu_query"] = query_answer(offered, told, read=parse_ncu_csv)
    (folder / "log.txt").unlink(missing_ok=True)  # thousands of lines that describe metrics
    refuse(outcome.results["ncu_query"], folder)
    timed = [spec for spec in plan.values() if spec["op"] not in planning.UNTIMED]
    counted = [spec for spec in plan.values() if spec["op"] not in planning.UNCOUNTED]
    metrics, missing = supported(analyze.metric_names(), offered)
    absent = {*missing} - {*analyze.OTHER_NAMES.values()}
    jobs = [(p, "count", counted) for p in range(params.count_processes)]
    jobs += [(p, "time", timed) for p in range(params.num_processes)]
    for process, mode, specs in jobs:
        progress(f"process {process + 1}: {mode}, {len(specs)} kernels")
        folder = worker_dir(run_dir / f"p{process}-{mode}",
                            {**plain, "mode": mode, "process": process, "workloads": specs})
        common: dict[str, Any] = {"run_dir": folder, "timeout_s": params.timeout_s, "env": _ENV, "progress": progress}
        if mode == "time":
            outcome.argv.append(launch_worker(WORKER, **common).argv)
            continue
        seen, dropped = count_worker(WORKER, metrics=metrics, read=parse_ncu_csv, **common)
        absent |= set(dropped)
        (folder / OUTPUT_NAME).unlink(missing_ok=True)
        table = analyze.public_table(seen.text, run_dir=run_dir)
        (folder / analyze.TABLE_NAME).write_text(table, encoding="utf-8")
        outcome.argv.append(seen.argv)
    outcome.notes += [f"ncu does not offer {name} here" for name in sorted(absent)]
    results, outcome.samples = collect(run_dir, plan)
    sheet = load_profile(predicted["hardware"]).value("memory_bandwidth_bytes_per_s")
    outcome.results |= {**results, "counters": "read", "datasheet_gb_per_s": sheet / 1e9 if sheet else None}
    outcome.results["residual_pct"] = planning.residuals_pct(results, _by_workload(predicted))
    outcome.oracles += oracles.gpu_oracles(outcome.results, plan, analyze.lines_of(run_dir, "check"))
    refused = analyze.lines_of(run_dir, "refusal")
    outcome.notes += [f"{line['name']}: {line['what']} refused: {line['error']}" for line in refused]


_ENV = {"TORCHINDUCTOR_COMPILE_THREADS": "1"}  # a pool of compilers would outlast its one small kernel


def _by_workload(predicted: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in predicted.items() if isinstance(value, dict) and name != "page_faults"}


def _measure_host(
    params: Params, run_dir: Path, predicted: dict[str, Any], outcome: Outcome, progress: Progress
) -> None:
    """Host counters, stand-ins for a tool that measures nothing, and the newest recorded table read again."""
    folder = worker_dir(run_dir / "host", {"touch_mib": list(params.touch_mib), "rounds": params.rounds})
    progress("host counters")
    outcome.argv.append(launch_worker(HOST_WORKER, run_dir=folder, timeout_s=params.timeout_s).argv)
    lines = analyze.read_lines(folder)
    outcome.results |= {"counters": "not on a CPU", **host.host_results(lines)}
    found, notes = host.host_oracles(outcome.results, lines)
    outcome.oracles += found
    progress("a tool that ends with exit code 0 and measured nothing")
    (run_dir / "stand_in").mkdir()
    texts = run_stand_ins(run_dir / "stand_in", worker=HOST_WORKER)
    answers = {name: parse_ncu_csv(text) for name, text in texts.items()}
    outcome.results |= host.refusal_results(answers, right=RIGHT)
    outcome.oracles += host.refusal_oracles(outcome.results)
    tool = "found, not used: this run is on a CPU" if find_ncu() else "not installed"
    outcome.notes += [f"no GPU counter was read in this run; ncu: {tool}", *notes]
    _replay(outcome, progress)


def _replay(outcome: Outcome, progress: Progress) -> None:
    """Recompute the newest committed GPU record from its files, and its oracles from that."""
    best = recorded()
    if not best:
        outcome.notes.append("no recorded GPU run is here yet, so no recorded table was read again")
        return
    record = best[-1]
    about = f"{record.run_id} on {record.hardware_tag}"
    progress(f"the table of run {about} again")
    plan = planning.workloads(record.params)
    outcome.results["replayed"] = {"run_id": record.run_id, "hardware": record.hardware_tag, "num_kernels": len(plan)}
    outcome.oracles += oracles.replay(record, RECORDS / SLUG / record.run_id, plan)
    outcome.notes.append(f"oracles named 'recorded' are about run {about}, not about this machine")


def load(run_id: str, *, expect: Params | None = None) -> RunRecord:
    """A recorded run, local or committed; "" is the newest good one. Raises: RecordError."""
    return load_run(SLUG, run_id, expect=expect)


def recorded() -> list[RunRecord]:
    """Committed good records with GPU counters, the newest of each hardware and preset."""
    return [record for record in newest_records(SLUG) if record.results.get("counters") == "read"]


def table(record: RunRecord) -> pd.DataFrame:
    """One row a kernel (GPU) or a mapping (CPU); columns as `labkit.analyze.hw_counters_tables` says."""
    from labkit.analyze import hw_counters_tables as tables

    return tables.kernel_table(record) if record.results.get("counters") == "read" else tables.host_table(record)


def check(record: RunRecord) -> pd.DataFrame:
    """The oracles. Raises: RecordError naming those that failed, or the failure of the launch."""
    return oracle_table(record)


def figures(record: RunRecord) -> dict[str, go.Figure]:
    """GPU: `traffic`, `retained`, `bandwidth`, `occupancy`, `stalls`. CPU: `faults`."""
    from labkit.plots import hw_counters as plots

    source = f"{record.hardware_tag}, run {record.run_id}, {record.created_utc[:10]}"
    if record.results.get("counters") == "read":
        return plots.gpu_figures(record.results, record.prediction["values"], table(record), source=source)
    return {"faults": plots.faults(table(record), source=source)} if record.results.get("page_faults") else {}


def compare(records: list[RunRecord]) -> pd.DataFrame:
    """Predicted, these records and the 8x V100 report side by side; see `hw_counters_tables.compare_table`."""
    from labkit.analyze.hw_counters_tables import compare_table

    return compare_table(records)

"""Matrix products over a sweep of rows: where does memory stop to limit, and what does one more row cost?

parameters -> prediction -> ceilings of this machine -> second prediction -> `gemm_bench`, once for each fresh process
-> record -> oracles -> tables and figures.

    python -m labkit run gemm_roofline --preset smoke       # a CPU: its own ceilings, quarter-size weights
    python -m labkit run gemm_roofline --preset gpu1
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labkit.analyze import gemm as analyze
from labkit.analyze import gemm_model as model
from labkit.analyze import gemm_oracles as oracles
from labkit.calc.gemm_time import skewed_rows
from labkit.conduct import Outcome, conduct, load_run, newest_records, oracle_table, own_profile, plain_params
from labkit.hardware import HardwareProfile
from labkit.launch.process import launch_worker
from labkit.launch.worker_dir import relay, worker_dir
from labkit.presets import require
from labkit.records import RunRecord, utc_now, write_json

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

SLUG = "gemm_roofline"
TITLE = "Matrix products on the roofline: rows, knee and waves"
NEEDS = "torch; smoke, cpu: any CPU; gpu1: a CUDA GPU (fp8 from compute capability 8.9 on)"
EXPERT_SHAPES = ("gate_up 7168x4096", "down 2048x7168")
"""K x N of a DeepSeek-V3 expert: gate and up projection fused, and down projection."""
_SHAPE = re.compile(r"[a-z][a-z0-9_]* ([1-9]\d{0,5})x([1-9]\d{0,5})")


@dataclass(frozen=True, kw_only=True, slots=True)
class Params:
    """Settings of one run."""

    shapes: tuple[str, ...] = EXPERT_SHAPES
    """`name KxN`; K below 8192, so that sums of K ones stay exact in every accumulator."""
    kinds: tuple[str, ...] = ("fp32", "fp32_linear", "bf16")
    """Of labkit.analyze.gemm_model.BYTES."""
    device: str = "cpu"
    """`cpu` or `cuda`."""
    rows: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128)
    """M of the sweep, weights not in cache."""
    warm_rows: tuple[int, ...] = (1, 8)
    """M timed on one weight again and again."""
    graph_rows: tuple[int, ...] = ()
    """M timed back to back in a replayed CUDA graph: the launch of one call hides behind the one before."""
    fine_rows: tuple[int, ...] = ()
    """M of pairs M, M + 1."""
    check_rows: tuple[int, ...] = (1, 5, 33)
    """M compared with float64."""
    num_experts: int = 2
    """Experts of a grouped product; 0: none."""
    grouped_kinds: tuple[str, ...] = ("fp32", "bf16")
    grouped_rows: tuple[int, ...] = (1, 16)
    """Mean rows of an expert; at least two numbers."""
    hot_share: float = 0.5
    """Share of all rows that the first expert gets in the skewed grouped product."""
    square: int = 1024
    """Side of the square product that is the arithmetic ceiling."""
    buffer_mib: int = 256
    """Buffer of copy and read."""
    num_processes: int = 1
    rounds: int = 10
    """Rounds over all points in each process."""
    calls: int = 2
    """Samples of a point of the sweep in a round."""
    few_calls: int = 1
    """Samples of every other point and ceiling in a round."""
    max_call_ms: float = 200.0
    """A point whose call takes longer is left out, and the larger ones of its case; 0: no limit."""
    num_threads: int = 0
    """Threads on a CPU; 0: all usable cores."""
    launch_floor_us: float = 2.7
    """Predicted time of an empty kernel between two events, microseconds; measured on an H200 before this lab ran."""
    seed: int = 0
    timeout_s: float = 300
    """Deadline of each process, seconds."""

    def __post_init__(self) -> None:
        """Refuse what could not run, naming the argument."""
        found = [_SHAPE.fullmatch(text) for text in self.shapes]
        require(bool(found) and all(found), "shapes", self.shapes, "texts like 'gate_up 7168x4096'")
        require(all(int(m[1]) < 8192 for m in found if m), "shapes", self.shapes, "K below 8192")
        require(len({text.split()[0] for text in self.shapes}) == len(self.shapes), "shapes", self.shapes,
                "a different name for each")
        for name in ("kinds", "grouped_kinds"):
            require(set(getattr(self, name)) <= set(model.BYTES), name, getattr(self, name),
                    f"some of {', '.join(model.BYTES)}")
        require(bool(self.kinds) and set(self.grouped_kinds) <= set(self.kinds), "grouped_kinds", self.grouped_kinds,
                "some of kinds")
        require(self.device in ("cpu", "cuda"), "device", self.device, "cpu or cuda")
        require(self.device == "cuda" or "fp8" not in self.kinds, "kinds", self.kinds, "no fp8 on a CPU")
        for name in ("rows", "graph_rows", "warm_rows", "fine_rows", "check_rows", "grouped_rows"):
            values = getattr(self, name)
            require(all(isinstance(m, int) and m >= 1 for m in values) and list(values) == sorted(set(values)), name,
                    values, "ascending whole numbers from 1 on")
        require(bool(self.rows) and bool(self.check_rows), "rows", self.rows, "at least one, in check_rows too")
        require(max(self.check_rows) <= max(self.rows), "check_rows", self.check_rows,
                "none above the largest of rows")
        require(not self.num_experts or len(self.grouped_rows) >= 2, "grouped_rows", self.grouped_rows,
                "at least two numbers")
        for name, least in (("num_experts", 0), ("square", 16), ("buffer_mib", 1), ("num_processes", 1), ("rounds", 1),
                            ("calls", 1), ("few_calls", 1), ("num_threads", 0), ("seed", 0)):  # fmt: skip
            value = getattr(self, name)
            require(isinstance(value, int) and value >= least, name, value, f"a whole number, at least {least}")
        require(0 <= self.hot_share <= 1, "hot_share", self.hot_share, "a share between 0 and 1")
        for name, least in (("max_call_ms", 0.0), ("launch_floor_us", 0.0), ("timeout_s", 1.0)):
            require(getattr(self, name) >= least, name, getattr(self, name), f"at least {least:g}")


def skews(params: Params) -> dict[str, list[int]]:
    """Mean rows of an expert -> rows of each in the skewed grouped product."""
    if not params.num_experts:
        return {}
    return {str(m): skewed_rows(total=m * params.num_experts, groups=params.num_experts, hot_share=params.hot_share)
            for m in params.grouped_rows}  # fmt: skip


def ceilings(hardware: HardwareProfile | None, *, launch_floor_us: float) -> dict[str, dict[str, Any]]:
    """Rates by name: `datasheet`, and `profile`, measured on such a card before; empty without a profile."""
    if hardware is None:
        return {}
    peaks = {kind: hardware.value(f"peak_{kind.split('_')[0]}_dense_flop_per_s") for kind in ("fp32", "bf16", "fp8")}
    copy, product = hardware.measured.get("copy_bytes_per_s"), hardware.measured.get("bf16_matmul_flop_per_s")
    floor = launch_floor_us * 1e-6
    return {
        "datasheet": {"bytes_per_s": hardware.value("memory_bandwidth_bytes_per_s"), "flop_per_s": peaks,
                      "floor_s": floor},
        "profile": {"bytes_per_s": copy.value if copy else None,
                    "flop_per_s": {"bf16": product.value} if product else {}, "floor_s": floor},
    }  # fmt: skip


def predict(params: Params, *, hardware: HardwareProfile | None = None) -> dict[str, Any]:
    """What must come out, before anything runs: work, M* and times under the ceilings known so far.

    Args:
        params: what will be run.
        hardware: profile of the GPU; if not given, that of this machine's GPU when `device` is cuda.

    Returns: as `labkit.analyze.gemm_model.prediction`; without a profile (a CPU) only flop and bytes are filled.
    """
    hardware = hardware or own_profile(params.device)
    known = ceilings(hardware, launch_floor_us=params.launch_floor_us)
    return model.prediction(model.cases(params.shapes, params.kinds), params.rows, known)


def run(
    params: Params, *, preset: str = "custom", run_id: str | None = None,
    progress: Callable[[str], None] | None = None,
) -> RunRecord:  # fmt: skip
    """Predict, measure the ceilings, predict again, sweep, check and publish.

    Raises: UsageError when this machine lacks the GPU; RecordError when the run directory cannot be used.
    """
    return conduct(
        SLUG, params, preset=preset, run_id=run_id, predict=lambda: predict(params),
        measure=lambda run_dir, predicted, outcome: _measure(params, run_dir, predicted, outcome, progress))


def _measure(
    params: Params, run_dir: Path, predicted: dict[str, Any], outcome: Outcome,
    progress: Callable[[str], None] | None,
) -> None:  # fmt: skip
    def launch(folder: str, mode: str, process: int) -> None:
        own = worker_dir(run_dir / folder, {
            **plain_params(params), "skewed_counts": skews(params), "mode": mode, "process": process})
        outcome.argv.append(launch_worker("gemm_bench", run_dir=own, timeout_s=params.timeout_s,
                                          progress=relay(progress)).argv)

    found = model.cases(params.shapes, params.kinds)
    launch("c0", "ceilings", 0)
    before = analyze.read_lines(run_dir, "c*")
    own = model.prediction(found, params.rows, {"this_machine": analyze.rates_of(analyze.ceilings(before))})
    write_json(run_dir / "prediction_from_ceilings.json", {"created_utc": utc_now(), "values": own})
    both = {key: {**predicted[key], **own[key]} for key in ("time_ms", "ridge_flop_per_byte")}
    both["mstar_rows"] = {case: {**predicted["mstar_rows"][case], **own["mstar_rows"][case]} for case in found}
    try:
        for process in range(params.num_processes):
            launch(f"p{process}", "sweep", process)
    finally:
        lines = analyze.read_lines(run_dir)
        outcome.notes += oracles.notes(plain_params(params), lines)
        outcome.samples |= analyze.samples(lines)
    outcome.results |= analyze.results(lines, before, found, predicted=both, num_experts=params.num_experts,
                                       skewed_counts=skews(params))  # fmt: skip
    outcome.results["predicted_ms"] = both["time_ms"]
    if why := oracles.why_not_judged(plain_params(params), outcome.results):
        outcome.notes.append(why)
    outcome.oracles += oracles.oracles(plain_params(params), lines, outcome.results, found)


def load(run_id: str, *, expect: Params | None = None) -> RunRecord:
    """A recorded run, local or committed; "" takes the newest good one.

    Raises: RecordError if there is none, it is changed or incomplete, or its parameters are not those of `expect`.
    """
    return load_run(SLUG, run_id, expect=expect)


def recorded() -> list[RunRecord]:
    """Committed good runs, the newest of each hardware and preset."""
    return newest_records(SLUG)


def table(record: RunRecord) -> pd.DataFrame:
    """One row a case and number of rows; the columns are those of `labkit.analyze.gemm_tables.points_table`."""
    from labkit.analyze.gemm_tables import points_table

    return points_table(record)


def check(record: RunRecord) -> pd.DataFrame:
    """The oracles: name, passed, expected, seen, tolerance, detail.

    Raises: RecordError naming the oracles that failed, or the failure of the launch.
    """
    return oracle_table(record)


def figures(record: RunRecord) -> dict[str, go.Figure]:
    """`time <shape>`, `rate`, `knees`, `residuals`; where there is data `steps` and `grouped`."""
    from labkit.plots import gemm as plots

    return plots.all_figures(record.results, table(record), shapes=record.params["shapes"],
                             source=f"{record.hardware_tag}, run {record.run_id}, {record.created_utc[:10]}")


def compare(records: list[RunRecord]) -> pd.DataFrame:
    """Ridge, M* and knee of each case: predicted and measured, one column a record."""
    from labkit.analyze.gemm_tables import compare_table

    return compare_table(records)

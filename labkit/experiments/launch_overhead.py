"""A chain of small operators: what does each launch cost, and who pays it, one by one, as a graph, or fused?

parameters -> prediction -> `launch_chain`, once for each fresh process -> record -> oracles -> tables and figures.

    python -m labkit run launch_overhead --preset smoke     # a CPU: dispatch of operators against one compiled loop
    python -m labkit run launch_overhead --preset gpu1
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labkit.analyze import launch_chain as analyze
from labkit.conduct import Outcome, conduct, load_run, newest_records, oracle_table, own_profile, plain_params
from labkit.hardware import HardwareProfile
from labkit.launch.process import launch_worker
from labkit.launch.worker_dir import relay, worker_dir
from labkit.presets import require
from labkit.records import RunRecord

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

SLUG = "launch_overhead"
TITLE = "Launch overhead: one by one, as a graph, as one kernel"
NEEDS = "torch; smoke, cpu: any CPU (g++ for the compiled chain); gpu1: a CUDA GPU"
COSTS = ("op_us", "node_us", "graph_us", "kernel_us", "compiled_us")
CPU_VARIANTS, GPU_VARIANTS = ("eager", "paired", "compiled"), ("eager", "paired", "graph", "kernel", "compiled")


@dataclass(frozen=True, kw_only=True, slots=True)
class Params:
    """Settings of one run."""

    device: str = "cpu"
    """`cpu` or `cuda`."""
    variants: tuple[str, ...] = CPU_VARIANTS
    """Of labkit.workers.launch_chain.MAKERS, `eager` among them; `graph` and `kernel` on a GPU only."""
    sizes: tuple[int, ...] = (16, 1024, 16384, 262144)
    """FP32 elements of the tensor."""
    lengths: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128)
    """Steps of the chain."""
    compile_lengths: tuple[int, ...] = (8, 128)
    """Lengths that are also compiled; each takes seconds."""
    compile_sizes: tuple[int, ...] = (16,)
    """Sizes that are also compiled."""
    num_threads: int = 1
    """Threads on the host."""
    num_processes: int = 1
    rounds: int = 20
    """Samples of each chain in each process."""
    op_us: float = 2.0
    """Assumed before the run: host time of one operator, microseconds."""
    node_us: float = 1.2
    """Assumed before the run: least time of a kernel in a graph, microseconds."""
    graph_us: float = 6.0
    """Assumed before the run: host time of launching a graph, microseconds."""
    kernel_us: float = 20.0
    """Assumed before the run: host time of launching a Triton kernel, microseconds."""
    compiled_us: float = 50.0
    """Assumed before the run: host time of calling a compiled function, microseconds."""
    elementwise_gb_per_s: float = 20.0
    """Assumed before the run where no profile says it: bytes read and written by an operator, 1e9 bytes/s."""
    seed: int = 0
    timeout_s: float = 300
    """Deadline of each process, seconds."""

    def __post_init__(self) -> None:
        """Refuse what could not run, naming the argument."""
        require(self.device in ("cpu", "cuda"), "device", self.device, "cpu or cuda")
        known = GPU_VARIANTS if self.device == "cuda" else CPU_VARIANTS
        require("eager" in self.variants and "paired" in self.variants and set(self.variants) <= set(known),
                "variants", self.variants, f"eager, paired and others of {', '.join(known)}")
        for name in ("sizes", "lengths", "compile_lengths", "compile_sizes"):
            values = getattr(self, name)
            require(all(isinstance(v, int) and v >= 1 for v in values) and list(values) == sorted(set(values)), name,
                    values, "ascending whole numbers from 1 on")
        require(bool(self.sizes), "sizes", self.sizes, "at least one")
        require(len(self.lengths) >= 2, "lengths", self.lengths, "at least two, or there is no slope")
        for name, whole in (("compile_lengths", self.lengths), ("compile_sizes", self.sizes)):
            require(set(getattr(self, name)) <= set(whole), name, getattr(self, name), f"some of {whole}")
        for name, least in (("num_threads", 1), ("num_processes", 1), ("rounds", 1), ("seed", 0)):
            value = getattr(self, name)
            require(isinstance(value, int) and value >= least, name, value, f"a whole number, at least {least}")
        for name in (*COSTS, "elementwise_gb_per_s", "timeout_s"):
            require(getattr(self, name) > 0, name, getattr(self, name), "above 0")


def predict(params: Params, *, hardware: HardwareProfile | None = None) -> dict[str, Any]:
    """Operators and times of each chain from the assumed costs, before anything runs.

    Args:
        params: what will be run.
        hardware: profile of the GPU; if not given, that of this machine's GPU when `device` is cuda.

    Returns: as `labkit.analyze.launch_chain.prediction`.
    """
    hardware = hardware or own_profile(params.device)
    copy = hardware.measured.get("copy_bytes_per_s") if hardware else None
    return analyze.prediction(
        sizes=params.sizes, lengths=params.lengths, variants=params.variants,
        costs_us={name.removesuffix("_us"): getattr(params, name) for name in COSTS},
        is_asynchronous=params.device == "cuda",
        bytes_per_s=float(copy.value) if copy and copy.value else params.elementwise_gb_per_s * 1e9)


def run(
    params: Params, *, preset: str = "custom", run_id: str | None = None,
    progress: Callable[[str], None] | None = None,
) -> RunRecord:  # fmt: skip
    """Predict, measure, check and publish.

    Raises: UsageError when this machine lacks the GPU; RecordError when the run directory cannot be used.
    """
    return conduct(
        SLUG, params, preset=preset, run_id=run_id, predict=lambda: predict(params),
        measure=lambda run_dir, predicted, outcome: _measure(params, run_dir, predicted, outcome, progress))


def _measure(
    params: Params, run_dir: Path, predicted: dict[str, Any], outcome: Outcome,
    progress: Callable[[str], None] | None,
) -> None:  # fmt: skip
    plain = plain_params(params)
    try:
        for process in range(params.num_processes):
            folder = run_dir / f"p{process}"
            worker_dir(folder, {**plain, "process": process})
            # A chain is one small kernel: starting a pool of compilers would take longer than the compilation.
            outcome.argv.append(launch_worker(
                "launch_chain", run_dir=folder, timeout_s=params.timeout_s, progress=relay(progress),
                env={"TORCHINDUCTOR_COMPILE_THREADS": "1"}).argv)
    finally:
        lines = analyze.read_lines(run_dir)
        outcome.samples |= analyze.samples(lines)
        outcome.notes += dict.fromkeys(
            f"{line['what']} (size {line.get('size')}, length {line.get('length')}): {line['error']}"
            for line in analyze.of_kind(lines, "refusal"))
    outcome.results |= analyze.results(lines, predicted, params.sizes, params.lengths,
                                       is_asynchronous=params.device == "cuda")  # fmt: skip
    outcome.oracles += analyze.oracles(plain, lines, outcome.results, predicted)


def load(run_id: str, *, expect: Params | None = None) -> RunRecord:
    """A recorded run, local or committed; "" takes the newest good one.

    Raises: RecordError if there is none, it is changed or incomplete, or its parameters are not those of `expect`.
    """
    return load_run(SLUG, run_id, expect=expect)


def recorded() -> list[RunRecord]:
    """Committed good runs, the newest of each hardware and preset."""
    return newest_records(SLUG)


def table(record: RunRecord) -> pd.DataFrame:
    """One row a chain; the columns are those of `labkit.analyze.launch_tables.chains_table`."""
    from labkit.analyze.launch_tables import chains_table

    return chains_table(record)


def check(record: RunRecord) -> pd.DataFrame:
    """The oracles: name, passed, expected, seen, tolerance, detail.

    Raises: RecordError naming the oracles that failed, or the failure of the launch.
    """
    return oracle_table(record)


def figures(record: RunRecord) -> dict[str, go.Figure]:
    """`by_length` (smallest size), `by_size` and `gain`."""
    from labkit.analyze.launch_tables import fit_table
    from labkit.plots import launch as plots

    source = f"{record.hardware_tag}, run {record.run_id}, {record.created_utc[:10]}"
    frame = table(record)
    return {"by_length": plots.by_length(frame, size=record.params["sizes"][0], source=source),
            "by_size": plots.by_size(fit_table(record), source=source), "gain": plots.gain(frame, source=source)}


def compare(records: list[RunRecord]) -> pd.DataFrame:
    """Costs assumed and measured, one column a record."""
    from labkit.analyze.launch_tables import compare_table

    return compare_table(records)

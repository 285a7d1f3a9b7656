"""DDP's gradient buckets: how many, how large, how many collectives a step, and what accumulation changes.

Example: `python -m labkit run ddp_buckets --preset cpu`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labkit.calc.ddp_prediction import VARIANTS, ddp_prediction, train_flop_per_token
from labkit.conduct import Outcome, conduct, load_run, newest_records, oracle_table, own_profile
from labkit.hardware import HardwareProfile
from labkit.launch.torchrun import launch_torchrun
from labkit.launch.worker_dir import relay, worker_dir
from labkit.paths import RECORDS, runs_root
from labkit.presets import require
from labkit.records import RunRecord, write_atomic

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

SLUG = "ddp_buckets"
TITLE = "DDP gradient buckets, accumulation and no_sync"
NEEDS = "torch; two CPU cores (smoke, cpu), or 1, 2 or 8 GPUs (gpu1, gpu2, gpu8)"
TIMELINE = "timeline.json"
REPORTED = {
    "bucket_count": ("ddp-bucket-count",),
    "bucket_max_mib": ("ddp-bucket-max",),
    "collectives_per_step": ("ddp-bucket-nccl-kernels",),
    "accum_collectives": ("ddp-accum-kernels",),
    "step_time_ms": ("ddp-bucket-step",),
    "tokens_per_s": ("ddp-bucket-tokens", "ddp-accum-tokens"),
    "comm_union_ms": ("ddp-bucket-union", "ddp-accum-union"),
    "exposed_comm_ms": ("ddp-bucket-exposed", "ddp-accum-exposed"),
    "overlap_pct": ("ddp-bucket-overlap",),
}
"""Result name -> claims of the report that give its figures by case."""
CPU_ENV = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "2000000000", "MALLOC_TOP_PAD_": "268435456"}
"""glibc keeps freed memory: else a third of a CPU step is page faults for buffers that every micro-step gives back."""
GPU_ENV = {"NCCL_NVLS_ENABLE": "0"}
"""NVLink multicast off: it needs rights that containers often lack, and would change what is compared."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Params:
    """What is asked of a run. Defaults are the report's model on two CPU ranks."""

    bucket_caps_mib: tuple[float, ...] = (1, 4, 25, 100)
    """DDP's bucket_cap_mb, given explicitly."""
    accum_cap_mib: float = 25
    """Cap of the accumulation cases; one of `bucket_caps_mib`."""
    world_size: int = 2
    device: str = "cpu"
    """`cpu` (gloo) or `cuda` (NCCL)."""
    precision: str = "fp32"
    """`fp32`, or `fp16`: autocast with loss scaling, CUDA only. Gradients are always checked in fp32."""
    num_layers: int = 12
    hidden: int = 768
    num_heads: int = 12
    vocab_size: int = 32000
    num_positions: int = 512
    tied: bool = True
    """The head is the token table."""
    linear_bias: bool = False
    seq_tokens: int = 16
    microbatch: int = 1
    """Samples per rank in the bucket sweep."""
    samples_per_rank: int = 8
    """Samples per rank and optimizer step in the accumulation cases."""
    optimizer: str = "adamw"
    """`adamw` (fused), or `none`: forward and backward only."""
    num_processes: int = 1
    """Fresh launches; the first one also checks."""
    num_warmup_steps: int = 0
    """Before the timed steps of each case, after the reducer has rebuilt its buckets."""
    num_timed_steps: int = 1
    num_accum_timed_steps: int = 1
    num_straggler_steps: int = 1
    straggler_sleep_ms: float = 300.0
    num_equivalence_steps: int = 0
    """Real optimizer steps with and without accumulation, compared; 0 leaves this out."""
    learning_rate: float = 3e-4
    """Of the equivalence steps; the timed steps have 0, so that every case starts from the same weights."""
    seed: int = 1
    timeout_s: float = 600.0
    """Deadline of one launch."""

    def __post_init__(self) -> None:
        """Refuse what could not run, naming the argument."""
        for name in ("world_size", "num_layers", "hidden", "num_heads", "vocab_size", "num_positions", "seq_tokens",
                     "microbatch", "samples_per_rank", "num_processes"):
            require(getattr(self, name) >= 1, name, getattr(self, name), "at least 1")
        for name in ("num_warmup_steps", "num_timed_steps", "num_accum_timed_steps", "num_straggler_steps",
                     "straggler_sleep_ms", "num_equivalence_steps", "seed"):
            require(getattr(self, name) >= 0, name, getattr(self, name), "at least 0")
        require(self.timeout_s > 0, "timeout_s", self.timeout_s, "above 0")
        for name, choices in (("device", ("cpu", "cuda")), ("precision", ("fp32", "fp16")),
                              ("optimizer", ("adamw", "none"))):
            require(getattr(self, name) in choices, name, getattr(self, name), " or ".join(choices))
        caps = self.bucket_caps_mib
        require(bool(caps) and all(cap > 0 for cap in caps) and len(set(caps)) == len(caps), "bucket_caps_mib", caps,
                "different caps above 0")
        require(self.accum_cap_mib in caps, "accum_cap_mib", self.accum_cap_mib, f"one of bucket_caps_mib {caps}")
        require(self.hidden % self.num_heads == 0, "num_heads", self.num_heads, f"a divisor of hidden={self.hidden}")
        require(self.seq_tokens <= self.num_positions, "seq_tokens", self.seq_tokens,
                f"at most num_positions={self.num_positions}")
        require(self.precision == "fp32" or self.device == "cuda", "precision", self.precision, "fp32 on a CPU")


def predict(params: Params, *, hardware: HardwareProfile | None = None) -> dict[str, Any]:
    """Everything that follows from parameter shapes and the reducer's rules, before anything runs.

    Args:
        params: what will be run.
        hardware: profile of the GPU; adds times that no step can beat where its measured ceilings are known.

    Returns: as `labkit.calc.ddp_prediction.ddp_prediction`, and comm_floor_ms and compute_floor_ms by case, empty where
        a ceiling is unknown.
    """
    prediction = ddp_prediction(
        caps_mib=params.bucket_caps_mib, accum_cap_mib=params.accum_cap_mib, world_size=params.world_size,
        samples_per_rank=params.samples_per_rank, **_model(params))
    known = {} if hardware is None else {name: field.value for name, field in hardware.measured.items()}
    busbw = known.get(f"all_reduce_busbw_{params.world_size}_gpus_bytes_per_s")
    flop_per_s = known.get("bf16_matmul_flop_per_s") if params.precision == "fp16" else None
    flop_per_token = train_flop_per_token(
        num_layers=params.num_layers, hidden=params.hidden, vocab_size=params.vocab_size, seq_tokens=params.seq_tokens)
    tokens = {case: count / params.world_size for case, count in tokens_per_step(params).items()}
    wire = prediction["wire_bytes_per_rank"]
    return {
        **prediction,
        "comm_floor_ms": {case: sent / busbw * 1e3 for case, sent in wire.items()} if busbw else {},
        "compute_floor_ms": {case: count * flop_per_token / flop_per_s * 1e3 for case, count in tokens.items()}
        if flop_per_s else {},
    }


def _model(params: Params) -> dict[str, Any]:
    names = ("num_layers", "hidden", "vocab_size", "num_positions", "tied", "linear_bias")
    return {name: getattr(params, name) for name in names}


def tokens_per_step(params: Params) -> dict[str, int]:
    """Case -> tokens of all ranks in one optimizer step."""
    sizes = {**{f"{cap:g} MiB": params.microbatch for cap in params.bucket_caps_mib},
             **dict.fromkeys(VARIANTS, params.samples_per_rank)}
    return {case: params.world_size * samples * params.seq_tokens for case, samples in sizes.items()}


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
    """Launch each process, read what its ranks wrote, and judge it."""
    from labkit.analyze.ddp_results import read_process

    outcome.notes += _notes(params)
    processes = []
    for index in range(params.num_processes):
        outcome.argv.append(_launch(params, run_dir / f"p{index}", index=index, progress=progress))
        processes.append(read_process(run_dir / f"p{index}"))
    _evaluate(params, processes, predicted, run_dir, outcome)


def _launch(params: Params, folder: Path, *, index: int, progress: Callable[[str], None] | None) -> list[str]:
    """One fresh launch of the worker; its caps are rotated so that no cap is always the first."""
    caps = list(params.bucket_caps_mib)
    worker_dir(folder, {
        **json.loads(json.dumps(asdict(params))), "is_checked": index == 0,
        "bucket_order_mib": caps[index % len(caps):] + caps[: index % len(caps)]})

    return launch_torchrun("ddp_steps", run_dir=folder, num_procs=params.world_size, timeout_s=params.timeout_s,
                           env=CPU_ENV if params.device == "cpu" else GPU_ENV,
                           progress=relay(progress, f"process {index + 1}/{params.num_processes}")).argv


def _evaluate(params: Params, processes: list[Any], predicted: dict[str, Any], run_dir: Path,
              outcome: Outcome) -> None:
    """Results, samples and oracles of the record, and the timeline beside it."""
    from labkit.analyze import ddp_oracles, ddp_results

    tokens = tokens_per_step(params)
    timed, timed_samples = ddp_results.timing(processes, tokens_per_step=tokens)
    traced, traced_samples = ddp_results.recorded(processes, list(tokens))
    loopback = ddp_results.loopback_seen(processes, list(tokens), world_size=params.world_size)
    ends = sorted({0, params.world_size - 1})
    write_atomic(run_dir / TIMELINE, json.dumps({"cases": {
        case: {str(rank): processes[0].traces[case]["timeline"][rank] for rank in ends} for case in tokens}}) + "\n")
    outcome.results |= {**ddp_results.structure(processes[0], world_size=params.world_size), **timed, **traced,
                        "tokens_per_step": tokens, "loopback_bytes_per_rank": loopback}
    outcome.samples |= {**timed_samples, **traced_samples}
    outcome.oracles += ddp_oracles.ddp_oracles(
        processes[0], predicted=predicted, world_size=params.world_size, loopback_bytes=loopback,
        bound=ddp_oracles.rounding_bound(
            num_layers=params.num_layers, hidden=params.hidden, vocab_size=params.vocab_size,
            num_tokens=max(tokens.values())))


def _notes(params: Params) -> list[str]:
    """What a reader of the record has to know."""
    notes = [f"{params.precision} steps; gradients are compared in fp32",
             "timed steps run AdamW with learning rate 0: the same arithmetic, weights that stay put"
             if params.optimizer == "adamw" else "steps without an optimizer: forward and backward only"]
    if params.world_size == 1:
        notes.append("one rank: compute without communication. All-reduces are counted as calls; it cannot show "
                     "overlap, waiting or bytes on a wire")
    return notes


def load(run_id: str, *, expect: Params | None = None) -> RunRecord:
    """A recorded run, local or committed; nothing is run.

    Args:
        run_id: name of the run; "" takes the newest good one.
        expect: parameters the run must have been made with.

    Raises: RecordError if there is no such run, it is incomplete or changed, or its parameters are others.
    """
    return load_run(SLUG, run_id, expect=expect)


def recorded() -> list[RunRecord]:
    """Committed good runs, the newest of each hardware and preset."""
    return newest_records(SLUG)


def table(record: RunRecord) -> pd.DataFrame:
    """One row a case; columns as in `labkit.analyze.ddp_tables.cases_frame`."""
    from labkit.analyze.ddp_tables import cases_frame

    return cases_frame(record)


def check(record: RunRecord) -> pd.DataFrame:
    """The oracles of a run: name, passed, expected, seen, tolerance, detail.

    Raises: RecordError naming the failed oracles, or what else went wrong.
    """
    return oracle_table(record)


def figures(record: RunRecord) -> dict[str, go.Figure]:
    """bucket_sizes, predicted_vs_seen, and where there is data tokens_per_s, transfer and timeline."""
    from labkit.analyze.ddp_tables import seen
    from labkit.plots import ddp as plots

    caption = f"{record.hardware_tag}, run {record.run_id}, {record.created_utc[:10]}"
    found = {"bucket_sizes": plots.bucket_sizes(record.results["bucket_sizes_bytes"], caption=caption),
             "predicted_vs_seen": plots.predicted_vs_seen(
                 record.prediction["values"], record.results, caption=caption)}
    if record.results["tokens_per_s"]:
        is_gpu = record.params["device"] == "cuda"
        found["tokens_per_s"] = plots.tokens_per_s(
            record.results["tokens_per_s"], quoted_rates=reported().get("tokens_per_s", {}) if is_gpu else None,
            name=record.hardware_tag, caption=caption)
    if record.params["device"] == "cuda" and record.params["world_size"] > 1:
        floors = record.prediction["values"].get("comm_floor_ms", {})
        found["transfer"] = plots.transfer(
            record.results["collectives_per_step"], seen(record)["comm_union_ms"], name=record.hardware_tag,
            floor_ms=max(floors.get(case, 0.0) for case in record.results["collectives_per_step"]) or None,
            caption=caption)
    path = next((p for root in (runs_root(), RECORDS) if (p := root / SLUG / record.run_id / TIMELINE).is_file()), None)
    # A timeline without `cases` is of the first records, with gaps closed: it would show a waiting GPU as busy.
    if path is not None and (cases := json.loads(path.read_text(encoding="utf-8")).get("cases")):
        found["timeline"] = plots.timeline(cases, caption=caption)
    return found


def reported() -> dict[str, dict[str, float]]:
    """Figures of the 8x V100 report as the ledger has them: result name -> case -> value."""
    from labkit.claims import report_figures

    return report_figures(REPORTED)


def compare(records: list[RunRecord]) -> pd.DataFrame:
    """Prediction, runs and report side by side; columns as in `labkit.analyze.ddp_tables.comparison`."""
    from labkit.analyze.ddp_tables import comparison

    return comparison(records, reported=reported())

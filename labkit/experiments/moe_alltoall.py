"""Expert-parallel dispatch and combine: uneven all-to-alls, what a hot expert costs, and where its time shows up.

Example: `python -m labkit run moe_alltoall --preset cpu`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labkit.calc import moe_all_to_all, moe_routing
from labkit.conduct import Outcome, conduct, load_run, newest_records, oracle_table, own_profile, plain_params
from labkit.hardware import HardwareProfile, load_profile, match_profile
from labkit.launch.torchrun import launch_torchrun
from labkit.launch.worker_dir import relay, worker_dir
from labkit.presets import require
from labkit.records import RunRecord

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

SLUG = "moe_alltoall"
TITLE = "Expert parallelism: dispatch, combine and the hot expert"
NEEDS = "torch; two CPU cores for 8 gloo ranks (smoke, cpu), or 2 or 8 GPUs (gpu2, gpu8)"
REPORTED = {"dispatch_ms": "moe-dispatch-ms", "expert_ms": "moe-expert-ms", "combine_ms": "moe-combine-ms",
            "step_ms": "moe-step-ms", "tokens_per_s": "moe-tokens", "max_mean": "moe-max-mean"}
"""Result -> claim of the report that gives it for `balanced` and `hot`."""
ELEMENT_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2}
GPU_ENV = {"NCCL_NVLS_ENABLE": "0"}
"""NVLink multicast off: it needs rights that containers often lack."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Params:
    """What is asked of a run. Defaults are the report's tokens on eight CPU ranks, with a narrow expert."""

    world_size: int = 8
    device: str = "cpu"
    """`cpu` (gloo) or `cuda` (NCCL)."""
    dtype: str = "fp32"
    """Of rows and weights: `fp32`, `fp16` or `bf16`."""
    tokens_per_rank: int = 4096
    hidden: int = 64
    """The report's is 1,024. Counts do not depend on it."""
    ffn: int = 256
    """The report's is 4,096."""
    hot_share: float = 0.75
    """Share of each source's tokens that goes to the expert of rank 0 in the case `hot`."""
    sweep_shares: tuple[float, ...] = ()
    """Further shares, each a case of its own."""
    large_tokens_per_rank: int = 0
    """Tokens of a rank in two further cases, `balanced, large` and `hot, large`; 0 leaves them out."""
    dedup_tokens: int = 256
    """Tokens of a rank in the top-k comparison; 0 leaves it out."""
    dedup_experts_per_rank: int = 4
    dedup_top_k: int = 4
    num_processes: int = 1
    """Fresh launches; the first one also checks."""
    num_warmup_steps: int = 1
    num_timed_steps: int = 3
    """Steps of each case as they come, and as many that meet before combine."""
    late_ms: float = 200.0
    """How late the last rank is in the waiting test."""
    num_late_repeats: int = 3
    bandwidth_tokens: tuple[int, ...] = ()
    """Tokens of a rank in the bandwidth sweep; GPUs only."""
    num_bandwidth_iterations: int = 20
    seed: int = 1
    timeout_s: float = 300.0
    """Deadline of one launch."""

    def __post_init__(self) -> None:
        """Refuse what could not run, naming the argument."""
        for name in ("world_size", "tokens_per_rank", "hidden", "ffn", "dedup_experts_per_rank", "dedup_top_k",
                     "num_processes", "num_timed_steps", "num_late_repeats", "num_bandwidth_iterations"):
            require(getattr(self, name) >= 1, name, getattr(self, name), "at least 1")
        for name in ("dedup_tokens", "large_tokens_per_rank", "num_warmup_steps", "seed"):
            require(getattr(self, name) >= 0, name, getattr(self, name), "at least 0")
        require(self.device in ("cpu", "cuda"), "device", self.device, "cpu or cuda")
        require(self.dtype in ELEMENT_BYTES, "dtype", self.dtype, "fp32, fp16 or bf16")
        for name in ("hot_share", "sweep_shares"):
            shares = getattr(self, name) if name == "sweep_shares" else (self.hot_share,)
            require(all(0 <= share <= 1 for share in shares), name, getattr(self, name), "shares between 0 and 1")
        require(self.timeout_s > 0 and self.late_ms > 0, "timeout_s, late_ms", (self.timeout_s, self.late_ms),
                "above 0")
        require(self.dedup_top_k <= self.world_size * self.dedup_experts_per_rank, "dedup_top_k", self.dedup_top_k,
                "at most the number of experts")
        require(not self.bandwidth_tokens or self.device == "cuda", "bandwidth_tokens", self.bandwidth_tokens,
                "none on a CPU")


def splits(params: Params) -> dict[str, list[int]]:
    """Case -> rows that each source sends to each rank: `balanced`, `hot`, the sweep (`25 % hot`), the large two."""
    shares: dict[str, float | None] = {"balanced": None, "hot": params.hot_share}
    shares |= {f"{100 * share:g} % hot": share for share in params.sweep_shares}
    sizes = dict.fromkeys(shares, params.tokens_per_rank)
    if params.large_tokens_per_rank:
        shares |= {"balanced, large": None, "hot, large": params.hot_share}
        sizes |= dict.fromkeys(("balanced, large", "hot, large"), params.large_tokens_per_rank)
    return {case: moe_routing.source_split(num_tokens=sizes[case], num_ranks=params.world_size, hot_share=share)
            for case, share in shares.items()}


def predict(params: Params, *, hardware: HardwareProfile | None = None) -> dict[str, Any]:
    """Rows, bytes and, where the hardware's measured rates are known, times that no step can beat.

    Args:
        params: what will be run.
        hardware: profile of the GPU.

    Returns: by case: "splits" (rows of one source), "received_rows", "max_mean", "fabric_bytes" (all ranks, dispatch),
        "busiest_port_bytes", "expert_gflop" (slowest rank), "floor_ms" (phase -> ms; empty without known rates),
        "step_vs_balanced" (compute alone: largest over mean rows). And "dedup_distinct_ranks", "dedup_tolerance",
        "dedup_saved_share", "calls_per_step", "question_example_mib" (the same function on question 11's numbers).
    """
    by_case = splits(params)
    matrices = {case: [split] * params.world_size for case, split in by_case.items()}
    received = {case: moe_routing.received_rows(splits=matrix) for case, matrix in matrices.items()}
    row_bytes = params.hidden * ELEMENT_BYTES[params.dtype]
    moved = {case: moe_routing.fabric_bytes(splits=matrix, row_bytes=row_bytes) for case, matrix in matrices.items()}
    return {
        "splits": by_case, "received_rows": received,
        "max_mean": {case: max(rows) * len(rows) / sum(rows) for case, rows in received.items()},
        "fabric_bytes": {case: found["fabric"] for case, found in moved.items()},
        "busiest_port_bytes": {case: found["busiest"] for case, found in moved.items()},
        "expert_gflop": {case: moe_routing.expert_flop(rows=max(rows), hidden=params.hidden, ffn=params.ffn) / 1e9
                         for case, rows in received.items()},
        "floor_ms": _floors(params, matrices, hardware), "calls_per_step": 3,
        **_dedup_prediction(params), "question_example_mib": question_example_mib(),
    }


def _floors(params: Params, matrices: Mapping[str, Any], hardware: HardwareProfile | None) -> dict[str, Any]:
    known = {} if hardware is None else {name: field.value for name, field in hardware.measured.items()}
    port, rate = known.get("peer_copy_bytes_per_s"), known.get("bf16_matmul_flop_per_s")
    if not port or not rate or params.dtype == "fp32":
        return {}
    found = {}
    for case, matrix in matrices.items():
        floor = moe_routing.step_floor_s(
            splits=matrix, hidden=params.hidden, ffn=params.ffn, element_bytes=ELEMENT_BYTES[params.dtype],
            link_bytes_per_s=port, flop_per_s=rate)
        found[case] = {name: 1e3 * floor[name] for name in ("dispatch", "expert", "combine", "step")}
    return found


def _dedup_prediction(params: Params) -> dict[str, float]:
    shape = {"num_experts": params.world_size * params.dedup_experts_per_rank, "num_ranks": params.world_size,
             "top_k": params.dedup_top_k}
    most = min(params.dedup_top_k, params.world_size)
    count = max(1, params.dedup_tokens * params.world_size)
    return {
        "dedup_distinct_ranks": moe_all_to_all.distinct_ranks(**shape),
        # A number between 1 and `most` has a standard deviation of at most half of that range.
        "dedup_tolerance": 6 * max(0, most - 1) / 2 / math.sqrt(count),
        "dedup_saved_share": moe_all_to_all.saved_by_rank_share(**shape),
    }


def question_example_mib() -> dict[str, float]:
    """Interview question 11: bytes of one rank and of the group for 16 tokens, top 8, width 7,168, 32 ranks; MiB."""
    shape: dict[str, Any] = {"local_tokens": 16, "top_k": 8, "hidden": 7168, "num_ranks": 32}
    bf16 = moe_all_to_all.group_bytes(**shape)
    fp8 = moe_all_to_all.group_bytes(**shape, dispatch_bytes=1)
    return {"rank_dispatch": moe_all_to_all.bytes_per_rank(**shape) / 2**20, "group_dispatch": bf16["dispatch"] / 2**20,
            "group_total": bf16["total"] / 2**20, "group_total_fp8_dispatch": fp8["total"] / 2**20}


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
    from labkit.analyze import moe_oracles, moe_results
    from labkit.analyze.ddp_rank_files import read_ranks

    outcome.notes += _notes(params)
    processes = []
    for index in range(params.num_processes):
        outcome.argv.append(_launch(params, run_dir / f"p{index}", index=index, progress=progress))
        processes.append(read_ranks(run_dir / f"p{index}"))
    first, cases = processes[0], list(predicted["splits"])
    seen = moe_results.structure(first, cases)
    calls, dedup = moe_results.calls_per_step(first), moe_results.dedup(first)
    outcome.oracles += moe_oracles.moe_oracles(
        first, seen, predicted, cases=cases, calls=calls, dedup=dedup,
        bound=moe_oracles.row_bound(dtype=params.dtype, hidden=params.hidden, ffn=params.ffn))
    timed, samples = moe_results.timing(
        processes, {case: params.world_size * sum(split) for case, split in predicted["splits"].items()})
    rates, rate_samples = moe_results.bandwidth(processes)
    late, kernels = moe_results.late(first), moe_results.kernel_lengths(first)
    is_home = not any(seen["ids_wrong"].values())
    loads = seen["received"]["hot"]
    factors = sorted({1.0, 1.25, 2.0, max(loads) / params.tokens_per_rank})
    capacity = {f"{f:g}": moe_routing.capacity_outcome(loads=loads, capacity_factor=f) for f in factors}
    outcome.samples |= samples | rate_samples
    outcome.results |= {
        "received": seen["received"], "received_balanced": seen["received"]["balanced"],
        "received_hot": seen["received"]["hot"], "max_mean": seen["max_mean"],
        "count_exchange": {"count_exchanges": calls["all_to_alls"] - 2}, "calls_per_step": calls["all_to_alls"],
        "combine_swap": is_home, "token_id_oracle": is_home, "oracle_moe": is_home,
        "ids_checked": sum(seen["ids_checked"].values()), "out_rel_diff": seen["out_rel_diff"],
        "fabric_bytes": {case: moe_routing.fabric_bytes(
            splits=matrix, row_bytes=params.hidden * ELEMENT_BYTES[params.dtype])["fabric"]
            for case, matrix in seen["matrix"].items()},
        "dedup": dedup, "late": late, "kernel_lengths": kernels, "capacity": capacity,
        "capacity_tradeoff": _trades(list(capacity.values())), **timed, **rates,
        **({"collective_includes_wait": late["includes_wait"]} if late else {}),
        **({"wait_in_combine": waits} if (waits := moe_results.waits_in_combine(timed)) is not None else {}),
        **({"kernel_length_misread": kernels["is_misread"]} if kernels else {}),
    }


def _trades(steps: list[dict[str, float]]) -> bool:
    """Whether more capacity dropped less and computed and padded more, at every step from the smallest to none."""
    pairs = list(pairwise(steps))
    return bool(pairs) and all(
        b["dropped_share"] <= a["dropped_share"] and b["max_rows"] >= a["max_rows"]
        and b["padded_share"] >= a["padded_share"] for a, b in pairs) and steps[-1]["dropped_share"] == 0


def _launch(params: Params, folder: Path, *, index: int, progress: Callable[[str], None] | None) -> list[str]:
    """One fresh launch; cases are rotated so that no case is always the first."""
    by_case = splits(params)
    order = list(by_case)
    shift = index % len(order)
    worker_dir(folder, {
        **plain_params(params), "splits": by_case, "case_order": order[shift:] + order[:shift],
        "is_checked": index == 0, "counted_case": "balanced"})

    return launch_torchrun("moe_dispatch", run_dir=folder, num_procs=params.world_size, timeout_s=params.timeout_s,
                           env=GPU_ENV if params.device == "cuda" else None,
                           progress=relay(progress, f"process {index + 1}/{params.num_processes}")).argv


def _notes(params: Params) -> list[str]:
    """What a reader of the record has to know."""
    notes = ["forward only; one expert a rank, one expert a token; phases are timed on each rank between "
             "synchronisations, from a common start"]
    if params.device == "cpu":
        notes.append("ranks share the CPU's cores: times show the order of events, not the speed of a network")
    if params.world_size < 8:
        notes.append(f"{params.world_size} ranks: the hottest one can hold at most {params.world_size} times the mean")
    return notes


def load(run_id: str, *, expect: Params | None = None) -> RunRecord:
    """A recorded run, local or committed; "" takes the newest good one. Raises RecordError as `conduct.load_run`."""
    return load_run(SLUG, run_id, expect=expect)


def recorded() -> list[RunRecord]:
    """Committed good runs, the newest of each hardware and preset."""
    return newest_records(SLUG)


def check(record: RunRecord) -> pd.DataFrame:
    """The oracles of a run. Raises: RecordError naming the failed ones, or what else went wrong."""
    return oracle_table(record)


def table(record: RunRecord) -> pd.DataFrame:
    """One row a case; columns as in `labkit.analyze.moe_tables.cases_frame`."""
    from labkit.analyze.moe_tables import cases_frame

    return cases_frame(record)


def reported() -> dict[str, dict[str, float]]:
    """Figures of the 8x V100 report as the ledger has them: result -> case -> value."""
    from labkit.claims import report_figures

    return report_figures(REPORTED)


def figures(record: RunRecord) -> dict[str, go.Figure]:
    """received, phases, wait_split, and where there is data skew, bandwidth and capacity."""
    from labkit.plots.moe import moe_figures

    gpus = record.environment.get("hardware", {}).get("gpus") or []
    profile = match_profile(str(gpus[0].get("name"))) if gpus and record.params["device"] == "cuda" else None
    link = load_profile(profile).value("link_one_way_bytes_per_s") if profile else None
    return moe_figures(record.results, name=record.hardware_tag, link_gb_per_s=link / 1e9 if link else None,
                       caption=f"{record.hardware_tag}, run {record.run_id}, {record.created_utc[:10]}")


def compare(records: list[RunRecord]) -> pd.DataFrame:
    """Prediction, runs and report side by side; columns as in `labkit.analyze.moe_tables.comparison`."""
    from labkit.analyze.moe_tables import comparison

    return comparison(records, reported=reported())

"""Process groups of a mesh: which ranks form a group, where to put them, and what a wrong order of calls does.

Example: `python -m labkit run process_groups --preset cpu`.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labkit.calc import collective_schedule, mesh_mapping, mesh_prediction
from labkit.conduct import Outcome, conduct, load_run, newest_records, oracle_table, own_profile, plain_params
from labkit.hardware import HardwareProfile
from labkit.launch.process import launch_worker
from labkit.launch.torchrun import launch_torchrun
from labkit.launch.worker_dir import relay, worker_dir
from labkit.paths import CLAIMS
from labkit.presets import require
from labkit.records import RunRecord

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

SLUG = "process_groups"
TITLE = "Process groups: mapping, order and how to find the rank that left it"
NEEDS = "torch; two CPU cores for 8 gloo ranks (smoke, cpu), or 2 or 8 GPUs (gpu2, gpu8); two link classes need root"
REPORTED = {"tp_phase": "pg-tp-phase", "pp_phase": "pg-pp-phase", "dp_phase": "pg-dp-phase", "serial": "pg-serial",
            "concurrent": "pg-concurrent"}
"""Result -> claim of the report that gives it for both mappings, ms."""
INNERMOST_FIRST = {"tp_local": ("TP", "PP", "DP"), "tp_cross": ("PP", "DP", "TP")}
"""Order of the axes over the bits of a rank; nothing else differs between the mappings."""
WIRE_BURST_BYTES = 256 * 1024
"""What the shaped wire's token bucket lets through at once: as set in `labkit.workers.two_nodes`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Params:
    """What is asked of a run. Defaults are the report's mesh on eight CPU ranks, with a smaller payload."""

    tp: int = 2
    pp: int = 2
    dp: int = 2
    device: str = "cpu"
    """`cpu` (gloo) or `cuda` (NCCL)."""
    mappings: tuple[str, ...] = ("tp_local", "tp_cross")
    tp_calls: int = 4
    """All-reduces of a step on each axis; the report's are 4, 1, 1."""
    pp_calls: int = 1
    dp_calls: int = 1
    payload_mib: float = 1.0
    """Of each all-reduce, float32; the report's is 64."""
    num_processes: int = 1
    """Fresh launches; the first one also checks."""
    num_warmup: int = 1
    num_timed_steps: int = 3
    slow_link_mbit_per_s: float = 0.0
    """Rate of a wire between the two halves of the ranks, CPU only; 0 leaves it out."""
    slow_payload_mib: float = 0.5
    num_slow_steps: int = 2
    num_faults: int = 240
    """Random faults played in this process, a quarter of each kind."""
    fault_steps: int = 4
    """Steps of the schedules that are broken."""
    num_real_faults: int = 4
    """Faults played on real Gloo ranks as well; 0 leaves them out."""
    call_timeout_s: float = 4.0
    """Deadline of a call in a broken schedule, and of the one that is left out."""
    seed: int = 1
    timeout_s: float = 300.0
    """Deadline of one launch."""

    def __post_init__(self) -> None:
        """Refuse what could not run, naming the argument."""
        for name in ("tp", "pp", "dp", "num_processes", "num_timed_steps", "num_slow_steps", "fault_steps"):
            require(getattr(self, name) >= 1, name, getattr(self, name), "at least 1")
        for name in ("tp_calls", "pp_calls", "dp_calls", "num_warmup", "num_real_faults", "seed",
                     "slow_link_mbit_per_s"):
            require(getattr(self, name) >= 0, name, getattr(self, name), "at least 0")
        require(self.tp_calls >= 1, "tp_calls", self.tp_calls, "at least 1")
        require(self.world_size >= 2, "tp, pp, dp", (self.tp, self.pp, self.dp), "two ranks or more")
        for name in ("payload_mib", "slow_payload_mib", "call_timeout_s", "timeout_s"):
            require(getattr(self, name) > 0, name, getattr(self, name), "above 0")
        require(self.device in ("cpu", "cuda"), "device", self.device, "cpu or cuda")
        require(bool(self.mappings) and set(self.mappings) <= set(INNERMOST_FIRST), "mappings", self.mappings,
                " or ".join(INNERMOST_FIRST))
        require(self.num_faults >= 200, "num_faults", self.num_faults, "at least 200")
        require(not self.slow_link_mbit_per_s or (self.device == "cpu" and self.world_size % 2 == 0),
                "slow_link_mbit_per_s", self.slow_link_mbit_per_s, "0 on GPUs or with an odd number of ranks")

    @property
    def world_size(self) -> int:
        """Ranks of the mesh."""
        return self.tp * self.pp * self.dp

    @property
    def calls(self) -> dict[str, int]:
        """All-reduces of a step by axis."""
        return {"TP": self.tp_calls, "PP": self.pp_calls, "DP": self.dp_calls}

    def axes(self, mapping: str) -> list[list[Any]]:
        """[name, degree] of a mapping's axes, innermost first."""
        return [[axis, getattr(self, axis.lower())] for axis in INNERMOST_FIRST[mapping]]


def predict(params: Params, *, hardware: HardwareProfile | None = None) -> dict[str, Any]:
    """Groups, sums and the pair's values exactly; times of the report's machine from its own link measurements.

    Args:
        params: what will be run.
        hardware: profile of the GPU; adds the floor of a phase where its measured all-reduce rate is known.

    Returns: "groups" (mapping -> axis -> ranks), "creation_order", "num_groups", "order_values" (case -> tensor -> by
        rank), "v100_ms" (mapping -> phases, from section 4.4's rates), "v100_links_gb_per_s", "search" (see
        `mapping_search`), "slow_floor_ms" (mapping -> axis -> ms, axes that cross the wire), "floor_ms" (axis -> ms of
        a phase on this hardware).
    """
    groups = {mapping: mesh_mapping.mesh_groups(axes=params.axes(mapping)) for mapping in params.mappings}
    links = report_links() if CLAIMS.is_dir() else {}  # a GPU host may have been given the code without the ledger
    known = {} if hardware is None else {name: field.value for name, field in hardware.measured.items()}
    busbw = known.get(f"all_reduce_busbw_{params.world_size}_gpus_bytes_per_s")
    return {
        "groups": groups,
        "creation_order": {m: list(collective_schedule.group_members(groups=g)) for m, g in groups.items()},
        "num_groups": {mapping: sum(map(len, found.values())) for mapping, found in groups.items()},
        "order_values": mesh_prediction.pair_values(),
        "v100_ms": {mapping: mesh_prediction.report_step_ms(innermost_first=inner, links=links)
                    for mapping, inner in INNERMOST_FIRST.items()} if links else {},
        "v100_links_gb_per_s": {name: link["bytes_per_s"] / 1e9 for name, link in links.items()},
        "search": mapping_search() if links else {},
        "slow_floor_ms": {mapping: mesh_prediction.wire_floor_ms(
            groups=found, calls=params.calls, payload_bytes=params.slow_payload_mib * 2**20,
            bytes_per_s=params.slow_link_mbit_per_s * 1e6 / 8, burst_bytes=WIRE_BURST_BYTES)
            for mapping, found in groups.items()} if params.slow_link_mbit_per_s else {},
        "floor_ms": {"tp_phase": 1e3 * params.tp_calls * params.payload_mib * 2**20 / busbw}
        if busbw and params.world_size == params.tp == 2 else {},
    }


def report_links() -> dict[str, dict[str, float]]:
    """Rates of the report's links with four pairs at work, bytes/s of one pair.

    PIX and SYS come from section 4.4, another experiment than the one predicted. It has no PHB pair: that rate is taken
    from section 12.2's own PP phase, so the PHB phase of the local mapping is an input, not a prediction.
    """
    from labkit.claims import claim_value, get_claim

    together = get_claim("nccl-pair-together")
    phb_ms = claim_value(get_claim("pg-pp-phase"), "tp_local")
    return {"PIX": {"bytes_per_s": claim_value(together, "PIX") / 4 * 1e9},
            "PHB": {"bytes_per_s": 64 * 2**20 / (phb_ms / 1e3)},
            "SYS": {"bytes_per_s": claim_value(together, "SYS") / 4 * 1e9}}


def mapping_search(*, tp_calls: int = 4, pp_calls: int = 1, dp_calls: int = 1) -> dict[str, Any]:
    """All placements of the mesh on the report's machine, fastest first; see `mesh_prediction.search_summary`.

    Args:
        tp_calls: all-reduces of a step on the tensor-parallel axis.
        pp_calls: on the pipeline axis.
        dp_calls: on the data-parallel axis.
    """
    return deepcopy(_searched(tp_calls, pp_calls, dp_calls))


@lru_cache(maxsize=8)
def _searched(tp_calls: int, pp_calls: int, dp_calls: int) -> dict[str, Any]:
    return mesh_prediction.search_summary(
        calls={"TP": tp_calls, "PP": pp_calls, "DP": dp_calls}, links=report_links())


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
    return conduct(
        SLUG, params, preset=preset, run_id=run_id,
        predict=lambda: predict(params, hardware=own_profile(params.device)),
        measure=lambda run_dir, predicted, outcome: _measure(params, run_dir, predicted, outcome, progress))


def _measure(params: Params, run_dir: Path, predicted: dict[str, Any], outcome: Outcome,
             progress: Callable[[str], None] | None) -> None:
    from labkit.analyze import mesh_oracles, mesh_results
    from labkit.analyze.ddp_rank_files import of_kind, read_ranks
    from labkit.analyze.flight_recorder import analyze_flight_recorder

    processes = []
    for index in range(params.num_processes):
        outcome.argv.append(_launch(params, run_dir / f"p{index}", predicted, index=index, progress=progress))
        processes.append(read_ranks(run_dir / f"p{index}"))
    first = processes[0]
    cases, played = mesh_prediction.random_faults(
        num_cases=params.num_faults, num_steps=params.fault_steps, first_seed=1000 * params.seed)
    detection = mesh_results.detection(cases, played)
    real = _real_faults(params, run_dir / "faults", outcome, progress) if params.num_real_faults else None
    dumps = run_dir / "p0" / "flight"
    recorder = mesh_results.recorder_facts(analyze_flight_recorder([dumps])) if dumps.is_dir() else None
    refusals = {row["refusal"] for row in of_kind(first, "slow_link")}
    timed, samples = mesh_results.timing(processes, params.mappings, ("TP", "PP", "DP"))
    slow, slow_samples = mesh_results.timing(processes[:1], params.mappings, ("TP", "PP", "DP"), kind="slow_phase",
                                             prefix="slow_")
    twin, twin_samples = mesh_results.twin(processes)
    outcome.notes += _notes(params, refusals)
    outcome.oracles += mesh_oracles.mesh_oracles(
        first, predicted, detection=detection, real=real, recorder=recorder, is_cuda=params.device == "cuda",
        slow=slow, num_ranks=params.world_size)
    outcome.samples |= samples | slow_samples | twin_samples
    outcome.results |= timed | slow | twin | mesh_results.structure(first, params.mappings, outcome.oracles, real)
    outcome.results |= {"faults": detection, "real_faults": real, "recorder": recorder,
                        "slow_link_refusal": next(iter(refusals - {None}), None)}
    if len(slow.get("slow_serial", {})) == 2:
        local, cross = (slow["slow_serial"][mapping] for mapping in ("tp_local", "tp_cross"))
        outcome.results["mapping_is_critical_path"] = cross["p10"] > local["p90"]
    elif params.device == "cuda" and len(timed.get("serial", {})) == 2:
        local, cross = (timed["serial"][mapping] for mapping in ("tp_local", "tp_cross"))
        outcome.results["mapping_is_critical_path"] = cross["p10"] > local["p90"]


def _real_faults(params: Params, folder: Path, outcome: Outcome,
                 progress: Callable[[str], None] | None) -> dict[str, Any]:
    from labkit.analyze.mesh_results import real_faults

    cases, played = mesh_prediction.random_faults(
        num_cases=params.num_real_faults, num_steps=params.fault_steps, first_seed=1000 * params.seed + 504)
    worker_dir(folder, {
        "cases": [{"schedule": case["schedule"], "members": mesh_prediction.report_members()} for case in cases],
        "call_timeout_s": params.call_timeout_s, "num_at_once": 4,
        "case_deadline_s": 90 + 4 * params.call_timeout_s})
    outcome.argv.append(launch_worker("order_faults", run_dir=folder, timeout_s=params.timeout_s,
                                      progress=relay(progress, "faults")).argv)
    return real_faults(folder, cases, played)


def _launch(params: Params, folder: Path, predicted: dict[str, Any], *, index: int,
            progress: Callable[[str], None] | None) -> list[str]:
    """One fresh launch; mappings are rotated so that none is always the first."""
    order = list(params.mappings)
    shift = index % len(order)
    worker_dir(folder, {
        **plain_params(params), "calls": params.calls, "groups": predicted["groups"], "is_checked": index == 0,
        "mapping_order": order[shift:] + order[:shift], "missing_timeout_s": 1.0})
    env = {"TORCH_FR_BUFFER_SIZE": "4000", "TORCH_NCCL_TRACE_BUFFER_SIZE": "4000"}
    if params.device == "cuda":
        env["NCCL_NVLS_ENABLE"] = "0"  # multicast needs rights that containers often lack
    return launch_torchrun("mesh_groups", run_dir=folder, num_procs=params.world_size, timeout_s=params.timeout_s,
                           env=env, progress=relay(progress, f"process {index + 1}/{params.num_processes}")).argv


def _notes(params: Params, refusals: set[str | None]) -> list[str]:
    """What a reader of the record has to know."""
    notes = []
    if params.device == "cpu":
        notes.append("ranks share the CPU's cores and memory: without the slow wire all links are one class, and times "
                     "of the two mappings say nothing about links")
        told = next(iter(refusals - {None}), None)
        if params.slow_link_mbit_per_s:
            notes.append(f"two link classes: predicted only, this machine refuses ({told})" if told else
                         f"two link classes: loopback inside each half of the ranks, a wire shaped to "
                         f"{params.slow_link_mbit_per_s:g} Mbit/s between the halves")
    elif params.world_size < 8:
        notes.append(f"{params.world_size} GPUs with one link class: sums, order and recorder are shown; a mapping "
                     "cannot be")
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
    """One row a mapping and phase; columns as in `labkit.analyze.mesh_tables.phases_frame`."""
    from labkit.analyze.mesh_tables import phases_frame

    return phases_frame(record)


def reported() -> dict[str, dict[str, float]]:
    """Figures of the 8x V100 report as the ledger has them: result -> mapping -> ms."""
    from labkit.claims import report_figures

    return report_figures(REPORTED)


def figures(record: RunRecord) -> dict[str, go.Figure]:
    """mapping_search, detectors, report_phases, and where there is data slow_phases."""
    from labkit.plots.mesh import mesh_figures

    return mesh_figures(record.results, record.prediction["values"], reported=reported(),
                        caption=f"{record.hardware_tag}, run {record.run_id}, {record.created_utc[:10]}")


def compare(records: list[RunRecord]) -> pd.DataFrame:
    """Prediction, runs and report side by side; columns as in `labkit.analyze.mesh_tables.comparison`."""
    from labkit.analyze.mesh_tables import comparison

    return comparison(records, reported=reported())

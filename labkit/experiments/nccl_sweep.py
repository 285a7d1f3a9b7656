"""Collectives over sizes: which algorithm and protocol wins where, what channels and neighbours cost, who decides.

parameters -> prediction -> `collective_cells`, which forks fresh ranks for each cell -> record -> oracles -> page.

    python -m labkit run nccl_sweep --preset smoke      # two gloo ranks: data, bytes and procedure, no NCCL
    python -m labkit run nccl_sweep --preset gpu2
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labkit import machine
from labkit.analyze import collective_files as files
from labkit.analyze import collective_pairs as pairs
from labkit.analyze import collective_results as found
from labkit.analyze.collective_oracles import sweep_oracles
from labkit.analyze.collective_program import program_cell, split_plan
from labkit.calc.collective_choice import ring_tree_crossover_bytes
from labkit.calc.collective_fit import size_grid, size_label, total_wire_bytes
from labkit.calc.collective_plan import forced_env, parse_pairs, plan_cells
from labkit.calc.collectives import busbw_factor, num_steps
from labkit.conduct import Outcome, conduct, load_run, newest_records, oracle_table, own_profile
from labkit.hardware import HardwareProfile
from labkit.launch.nccl_tests import find_program, run_nccl_tests, writes_json
from labkit.launch.process import LaunchError, launch_worker
from labkit.launch.worker_dir import relay, worker_dir
from labkit.presets import require
from labkit.records import RunRecord

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

SLUG = "nccl_sweep"
TITLE = "NCCL: algorithms, protocols, channels and contention"
NEEDS = "torch; two CPU cores (smoke, cpu: gloo, no NCCL), or 2 or 8 CUDA GPUs (gpu2, gpu8)"
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "send_recv")
COMBOS = ("Ring+LL", "Ring+LL128", "Ring+Simple", "Tree+LL", "Tree+LL128", "Tree+Simple")
PROGRAM = "all_reduce_perf"
FORK_ENV = {"OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
"""The process that forks the ranks has one thread: a lock that another thread holds would never be released."""
GPU_ENV = {"NCCL_NVLS_ENABLE": "0"}
"""NVLink multicast off: it needs rights that containers often lack, and is neither ring nor tree."""
REPORTED = {"best_combo": "nccl-best-combo", "best_time": "nccl-best-time", "best_busbw": "nccl-best-busbw",
            "channel_busbw": "nccl-channel-busbw", "pair_alone": "nccl-pair-alone",
            "pair_together": "nccl-pair-together", "pair_slowdown_max": "nccl-pair-slowdown-max"}
"""Result name -> the report's claim that gives its figures."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Params:
    """What is asked of a run. Defaults are two CPU ranks."""

    device: str = "cpu"
    """`cpu` (gloo) or `cuda` (NCCL)."""
    world_size: int = 2
    collectives: tuple[str, ...] = COLLECTIVES
    """Run as the library chooses."""
    min_bytes: int = 1024
    max_bytes: int = 2**22
    factor: int = 4
    """Between sizes; below 4 the collectives other than all_reduce take every second size."""
    large_bytes: tuple[int, ...] = ()
    """Further sizes of the all-reduce that the library chooses itself."""
    combos: tuple[str, ...] = ()
    """Forced pairs of algorithm and protocol of the all-reduce, e.g. `Ring+LL`; CUDA only."""
    channels: tuple[int, ...] = ()
    """Forced numbers of channels, with Ring+Simple on `channel_bytes`; CUDA only."""
    channel_bytes: int = 2**28
    pair_sets: tuple[str, ...] = ()
    """Sets of disjoint pairs, e.g. `0-1 2-3`: each pair alone, then all of a set at once. On CUDA the numbers are
    GPUs."""
    pair_bytes: int = 2**20
    with_directions: bool = True
    """Send between ranks 0 and 1 one way, the other way, and both at once."""
    with_logs: bool = False
    """Log the library's choice for every size, untimed; CUDA only."""
    timing: str = "eager"
    """`eager`: calls one by one. `graph`: replayed from a CUDA graph. `both`: as the library chooses in both ways."""
    engine: str = "auto"
    """What times the all-reduce: `torch`, `nccl-tests` (it must be found), or `auto`: nccl-tests where it is found."""
    num_processes: int = 1
    """Fresh processes of each timed cell."""
    num_warmup: int = 2
    num_samples: int = 5
    """Samples of each size in each process."""
    cell_timeout_s: float = 60.0
    """Deadline of one cell; a forced cell that hangs is a recorded refusal."""
    timeout_s: float = 600.0
    """Deadline of the whole run."""

    def __post_init__(self) -> None:
        """Refuse what could not run, naming the argument."""
        for name, least in (("world_size", 2), ("min_bytes", 8), ("num_processes", 1), ("num_samples", 1),
                            ("factor", 2), ("num_warmup", 0), ("pair_bytes", 8), ("channel_bytes", 8)):
            require(getattr(self, name) >= least, name, getattr(self, name), f"at least {least}")
        require(self.max_bytes >= self.min_bytes, "max_bytes", self.max_bytes, f"at least min_bytes={self.min_bytes}")
        require(self.min_bytes % (4 * self.world_size) == 0, "min_bytes", self.min_bytes,
                "whole float32 elements of each rank")
        require(self.device in ("cpu", "cuda"), "device", self.device, "cpu or cuda")
        require(self.engine in ("auto", "torch", "nccl-tests"), "engine", self.engine, "auto, torch or nccl-tests")
        require(self.engine != "nccl-tests" or self.device == "cuda", "engine", self.engine, "torch on a CPU")
        require(self.timing in ("eager", "graph", "both"), "timing", self.timing, "eager, graph or both")
        require("all_reduce" in self.collectives and set(self.collectives) <= set(COLLECTIVES), "collectives",
                self.collectives, f"all_reduce and others of {', '.join(COLLECTIVES)}")
        for name in ("cell_timeout_s", "timeout_s"):
            require(getattr(self, name) > 0, name, getattr(self, name), "above 0")
        for combo in self.combos:
            forced_env(combo)
        for text in self.pair_sets:
            parse_pairs(text)
        require(all(number >= 1 for number in self.channels), "channels", self.channels, "numbers of at least 1")
        for name in ("combos", "channels", "with_logs"):
            require(not getattr(self, name) or self.device == "cuda", name, getattr(self, name),
                    "nothing on a CPU: gloo has neither algorithms to force nor a log of its choice")
        require(self.timing == "eager" or self.device == "cuda", "timing", self.timing, "eager on a CPU")

    @property
    def sizes_bytes(self) -> list[int]:
        """Sizes of the sweep."""
        return size_grid(min_bytes=self.min_bytes, max_bytes=self.max_bytes, factor=self.factor)


def planned_cells(params: Params) -> list[dict[str, Any]]:
    """Every cell of a run, as the worker takes it."""
    return plan_cells(
        world_size=params.world_size, sizes_bytes=params.sizes_bytes, collectives=params.collectives,
        factor=params.factor, large_bytes=params.large_bytes, combos=params.combos, channels=params.channels,
        channel_bytes=params.channel_bytes, pair_sets=params.pair_sets, pair_bytes=params.pair_bytes,
        with_directions=params.with_directions, with_logs=params.with_logs, num_processes=params.num_processes,
        num_warmup=params.num_warmup, num_samples=params.num_samples, timing=params.timing,
        timeout_s=params.cell_timeout_s, env=GPU_ENV if params.device == "cuda" else None)


def predict(params: Params, *, hardware: HardwareProfile | None = None) -> dict[str, Any]:
    """What follows from definitions before anything runs; times only as floors of the link.

    Args:
        params: what will be run.
        hardware: profile of the GPU, for `floor_us`.

    Returns: num_cells, combinations, sizes (labels), busbw_factor by collective, wire_bytes {collective: {size: fewest
        bytes of all ranks together}}, num_steps {Ring, Tree}, ring_tree_crossover_bytes (for two ranks 0 whatever the
        latency; else None, it needs one), floor_us {size: all-reduce at one direction of the link}.
    """
    n, labels = params.world_size, {size: size_label(size) for size in params.sizes_bytes}
    link = _link_bytes_per_s(hardware)
    return {
        "num_cells": len(planned_cells(params)), "combinations": list(params.combos), "sizes": list(labels.values()),
        "busbw_factor": {collective: busbw_factor(collective, world_size=n) for collective in params.collectives},
        "wire_bytes": {collective: {label: total_wire_bytes(collective, size_bytes=size, world_size=n)
                                    for size, label in labels.items()} for collective in params.collectives},
        "num_steps": {"Ring": num_steps("ring", world_size=n), "Tree": num_steps("tree", world_size=n)},
        "ring_tree_crossover_bytes": ring_tree_crossover_bytes(world_size=n, alpha_s=1.0, bytes_per_s=1.0)
        if n == 2 else None,
        "floor_us": {label: size * busbw_factor("all_reduce", world_size=n) / link * 1e6
                     for size, label in labels.items()} if link else {},
    }


def _link_bytes_per_s(hardware: HardwareProfile | None) -> float | None:
    return hardware.value("link_one_way_bytes_per_s") if hardware is not None else None


def run(params: Params, *, preset: str = "custom", run_id: str | None = None,
        progress: Callable[[str], None] | None = None) -> RunRecord:
    """Predict, run every cell, check and publish; a failed launch or check is published as a failed record.

    Args:
        params: what to run.
        preset: name to keep in the record.
        run_id: name of the run; made from date, hardware and parameters if not given.
        progress: called with a line for people whenever a cell is done.

    Raises: RecordError if the run directory exists or cannot be written.
    """
    here, hardware = machine.detect(), own_profile(params.device)
    return conduct(
        SLUG, params, preset=preset, run_id=run_id, predict=lambda: predict(params, hardware=hardware),
        measure=lambda run_dir, _, outcome: _measure(params, run_dir, outcome, progress, links=here.links,
                                                     link_bytes_per_s=_link_bytes_per_s(hardware)))


def _measure(params: Params, run_dir: Path, outcome: Outcome, progress: Callable[[str], None] | None, *,
             links: dict[str, str], link_bytes_per_s: float | None) -> None:
    folder, planned = run_dir / "sweep", planned_cells(params)
    program = find_program(PROGRAM) if params.device == "cuda" and params.engine != "torch" else None
    if params.engine == "nccl-tests" and program is None:
        raise LaunchError(f"engine='nccl-tests': no {PROGRAM} in $NCCL_TESTS_HOME or on PATH", log_path=folder)
    own, by_program = split_plan(planned) if program else (planned, [])
    worker_dir(folder, {"device": params.device, "cells": own})
    outcome.notes += _notes(params)
    outcome.argv.append(launch_worker("collective_cells", run_dir=folder, timeout_s=params.timeout_s, env=FORK_ENV,
                                      progress=relay(progress)).argv)
    cells = files.read_cells(folder)
    files.pack(folder)
    for plan in by_program:
        assert program is not None
        sizes = plan["sizes"]["all_reduce"]
        ran = run_nccl_tests(
            program, run_dir=folder / "nccl_tests" / plan["name"], num_gpus=params.world_size, env=plan["env"],
            min_bytes=min(sizes), max_bytes=max(sizes), factor=params.factor,
            num_warmup=params.num_warmup, num_iterations=params.num_samples, timeout_s=params.cell_timeout_s,
            with_json=writes_json(program))
        outcome.argv.append(ran.argv)
        cells[plan["name"]] = program_cell(plan, text=ran.text, json=ran.json, exitcode=ran.exitcode,
                                           timed_out=ran.timed_out, wall_s=ran.wall_s)
        if progress is not None:
            progress(f"{PROGRAM}, {plan['name']}: {cells[plan['name']].status}")
    outcome.results["engine"] = "nccl-tests" if program else "torch"
    fill_outcome(params, cells, outcome, planned=[*own, *by_program], links=links, link_bytes_per_s=link_bytes_per_s)


def fill_outcome(params: Params, cells: dict[str, files.Cell], outcome: Outcome, *, planned: list[dict[str, Any]],
                 links: dict[str, str], link_bytes_per_s: float | None) -> None:
    """Results, samples and oracles from the cells.

    Args:
        params: of the run.
        cells: as read.
        outcome: filled in place.
        planned: cells that were asked for.
        links: of the machine, "0-1" -> "NV18".
        link_bytes_per_s: one direction of the link between two GPUs; None if unknown.
    """
    times = found.gather_times(cells)
    swept = found.sweep_results(times, world_size=params.world_size)
    fitted = found.fits(times)
    eager = found.sweep_results(found.gather_times(cells, eager=True), world_size=params.world_size)["time_us"]
    winners = found.winners(swept["time_us"], params.combos)
    outcome.samples |= found.samples_of(times)
    answers = {
        **swept, **winners, **found.logged(cells), **found.channel_results(times, world_size=params.world_size),
        **found.values_checked(cells), **pairs.pair_results(cells, families=_families(params, links)),
        **pairs.direction_results(cells),
        "best_busbw": {label: swept["busbw_gb_per_s"][combo][label] for label, combo in winners["best_combo"].items()},
        "fit": fitted, "crossover_bytes": found.crossovers(fitted), "eager_time_us": eager.get(found.OWN, {}),
        "refused": {cell.name: cell.reason for cell in cells.values() if cell.status != "measured"},
        "refused_collectives": {name: why for cell in cells.values() for name, why in cell.refused.items()},
        "cell_wall_s": {cell.name: cell.wall_s for cell in cells.values()},
        "timing": sorted({row["timing"] for cell in cells.values() for row in cell.times if row["times_us"]}),
        "graph_error": next((row["graph_error"] for cell in cells.values() for row in cell.times
                             if row["graph_error"]), None),
    }
    # What this machine cannot answer is left out: an unknown is not an answer that differs.
    outcome.results |= {name: answer for name, answer in answers.items() if answer is not None}
    outcome.oracles += sweep_oracles(
        cells, planned=planned, results=outcome.results, world_size=params.world_size,
        link_gb_per_s=link_bytes_per_s / 1e9 if link_bytes_per_s else None)


def _families(params: Params, links: dict[str, str]) -> dict[str, str]:
    """Cell name of each set of pairs -> the link that all its pairs have, or the set itself."""
    names = {}
    for i, text in enumerate(params.pair_sets):
        kinds = {links.get("-".join(map(str, sorted(pair)))) for pair in parse_pairs(text)}
        kind = kinds.pop() if len(kinds) == 1 and params.device == "cuda" else None
        names[f"pairs{i}"] = kind if kind and kind not in names.values() else text
    return names


def _notes(params: Params) -> list[str]:
    """What a reader of the record has to know."""
    return [
        "time of a call: the slowest rank's, mean over the calls of a sample; the next call waits for the last one",
        "timed on zeros (a sum in place would grow without bound), checked on whole numbers afterwards",
        "all_reduce works in place: torch has no other; all_gather, reduce_scatter and all_to_all do not",
        *(["gloo on a CPU: its algorithm cannot be forced and is not NCCL's; two cores carry all ranks"]
          if params.device == "cpu" else ["one host: no network, no contention of switches or sockets beyond its own"]),
    ]


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
    """One row a case and size; columns as in `labkit.analyze.collective_tables.sweep_frame`."""
    from labkit.analyze.collective_tables import sweep_frame

    return sweep_frame(record)


def check(record: RunRecord) -> pd.DataFrame:
    """The oracles of a run; raises RecordError naming those that failed, or what else went wrong."""
    return oracle_table(record)


def figures(record: RunRecord) -> dict[str, go.Figure]:
    """Figures for which the record has data: bandwidth, pairs_by_size, fit, residuals, channels, pairs, directions."""
    from labkit.plots import collectives as plots

    return plots.all_figures(record.results, is_gpu=record.params["device"] == "cuda",
                             caption=f"{record.hardware_tag}, run {record.run_id}, {record.created_utc[:10]}")


def reported() -> dict[str, dict[str, Any]]:
    """Figures of the 8x V100 report as the ledger has them: result name -> case -> value."""
    from labkit.claims import report_figures

    return report_figures(REPORTED)


def compare(records: list[RunRecord]) -> pd.DataFrame:
    """Prediction, runs and report side by side; columns as in `labkit.analyze.collective_tables.comparison`."""
    from labkit.analyze.collective_tables import comparison

    return comparison(records, reported=reported())

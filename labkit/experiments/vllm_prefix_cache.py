"""vLLM's prefix cache under pollution: what hits, what is lost, and which of its rates tells.

parameters -> prediction by the scheduler model -> servers, each played its script -> record -> oracles -> tables.

    python -m labkit run vllm_prefix_cache --preset smoke      # a CPU, tiny model, real vLLM: the counters are exact
    python -m labkit run vllm_prefix_cache --preset gpu1
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labkit.analyze import prefix_cache as analyze
from labkit.analyze.prefix_cache_lines import num_finished, server_line, step_line, told
from labkit.analyze.prefix_cache_oracles import drill_oracle, oracles, trust
from labkit.analyze.vllm_server_log import first_cause
from labkit.calc.block_pool import MAX_BLOCKS
from labkit.calc.kv_cache import capacity_blocks, kv_bytes_per_token
from labkit.calc.prefix_hits import phase_hits
from labkit.calc.prefix_phases import ROUTINGS, Step, Workload
from labkit.calc.prefix_prediction import agent_trace_result, prediction, server_scripts
from labkit.calc.scheduler import SchedulerConfig
from labkit.conduct import Outcome, conduct, load_run, newest_records, oracle_table, plain_params, require_device
from labkit.engine.find import Engine, find_engine
from labkit.engine.find import missing as missing  # the batch asks a lab what it lacks
from labkit.engine.gpu_memory import memory_reader
from labkit.engine.model_folder import write_model_folder
from labkit.hardware import HardwareProfile
from labkit.launch.counted_load import CountedServer, processes_of, still_running
from labkit.launch.load_plan import Request
from labkit.launch.process import launch_worker
from labkit.launch.vllm_server import ServerSettings, vllm_servers
from labkit.launch.worker_dir import worker_dir
from labkit.models import load_model
from labkit.presets import require
from labkit.records import RunRecord

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

SLUG = "vllm_prefix_cache"
TITLE = "Prefix cache under pollution: what survives, and which rate tells"
NEEDS = "vLLM (labkit engine install); smoke, cpu: any CPU with 4 GB of memory; gpu1: a CUDA GPU with 80 GB"
LINES = "steps.jsonl"
LAG_NOTED_S = 0.05
REPORTED = {"cap_tokens": "prefix-cap-default", "ttft_cold": "prefix-ttft-cold", "ttft_warm": "prefix-ttft-warm",
            "ttft_revisit": "prefix-ttft-revisit", "ttft_rewarm": "prefix-ttft-rewarm",
            "revisit_warm_mean": "prefix-revisit-warm-mean", "revisit_warm_p95": "prefix-revisit-warm-p95",
            "throughput_ratio": "prefix-throughput-ratio", "lifetime_pct": "prefix-cumulative"}
"""Result -> claim of the ledger that gives the report's figure."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Params:
    """Settings of one run."""

    device: str = "cpu"
    """`cpu` or `cuda`."""
    model: str = "tiny-qwen2"
    """A file of data/models; weights are made up."""
    block_size: int = 32
    """Tokens a KV block; vLLM's CPU attention takes multiples of 32."""
    large_blocks: int = 7038
    """KV blocks of the large cache, where its bytes are not given."""
    small_blocks: int = 585
    """KV blocks of the small cache, where its bytes are not given."""
    large_cache_bytes: int = 0
    """Memory of the large cache; 0: `large_blocks`."""
    small_cache_bytes: int = 0
    """Memory of the small cache; 0: `small_blocks`."""
    starts: int = 2
    """Servers of each cache: two of one setting are the noise floor."""
    together: int = 2
    """Servers that run at the same time, two or more: two are replicas of each other."""
    num_requests: int = 48
    """Of each phase."""
    concurrency: int = 8
    num_anchors: int = 4
    prefix_tokens: int = 1024
    suffix_tokens: int = 32
    output_tokens: int = 16
    warmup_requests: int = 8
    """Prompts of their own, each sent twice before the first phase; they are part of the prediction, of no phase."""
    tenant_prompts: int = 8
    tail_lengths: tuple[int, ...] = (100, 1000, 1023, 1025, 1040, 1055, 1024)
    """Shared tokens of two prompts; the last one is also sent twice as a whole."""
    popularity: tuple[int, ...] = (18, 6, 6, 6, 4, 4, 2, 2)
    """Requests for each prefix in the routing variant."""
    trace_cache_tokens: tuple[int, ...] = (18720, 37440, 74896, 112320, 149760, 225200)
    """Sizes of the cache in the simulated agent trace."""
    max_model_len: int = 2048
    max_num_seqs: int = 32
    max_num_batched_tokens: int = 2048
    max_client_lag_s: float = 5.0
    """How late the client's own loop may wake (p99), or the run fails. On a CPU counters are judged and times are not,
    so it may be late there; from LAG_NOTED_S on the record says so."""
    ready_timeout_s: float = 300
    timeout_s: float = 900
    """Of each server's life, seconds."""
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse what could not run, naming the argument."""
        require(self.device in ("cpu", "cuda"), "device", self.device, "cpu or cuda")
        require(self.device == "cuda" or self.block_size % 32 == 0, "block_size", self.block_size,
                "a multiple of 32 on a CPU")
        for name, least in (("block_size", 1), ("large_blocks", 2), ("small_blocks", 2), ("large_cache_bytes", 0),
                            ("small_cache_bytes", 0), ("starts", 1), ("together", 2), ("num_requests", 2),
                            ("concurrency", 2), ("num_anchors", 1), ("prefix_tokens", 1), ("suffix_tokens", 1),
                            ("output_tokens", 1), ("warmup_requests", 0), ("tenant_prompts", 1), ("max_model_len", 1),
                            ("max_num_seqs", 1), ("max_num_batched_tokens", 1), ("seed", 0)):
            value = getattr(self, name)
            require(isinstance(value, int) and value >= least, name, value, f"a whole number, at least {least}")
        for name in ("large_blocks", "small_blocks"):
            require(getattr(self, name) <= MAX_BLOCKS, name, getattr(self, name), f"at most {MAX_BLOCKS}")
        require(self.num_anchors <= self.num_requests, "num_anchors", self.num_anchors, "at most num_requests")
        for name in ("tail_lengths", "popularity", "trace_cache_tokens"):
            values = getattr(self, name)
            require(bool(values) and all(isinstance(value, int) and value >= 1 for value in values), name, values,
                    "whole numbers from 1 on")
        longest = max(self.prefix_tokens, *self.tail_lengths) + self.suffix_tokens + self.output_tokens
        require(longest <= self.max_model_len, "max_model_len", self.max_model_len, f"at least {longest}")
        for name in ("max_client_lag_s", "ready_timeout_s", "timeout_s"):
            require(getattr(self, name) > 0, name, getattr(self, name), "above 0")


def workload(params: Params) -> Workload:
    """The shape of the requests."""
    return Workload(num_requests=params.num_requests, num_anchors=params.num_anchors, seed=params.seed,
                    prefix_tokens=params.prefix_tokens, suffix_tokens=params.suffix_tokens,
                    output_tokens=params.output_tokens, vocab_size=load_model(params.model).vocab_size)


def scripts(params: Params) -> dict[str, list[Step]]:
    """What each server is sent, in order."""
    return server_scripts(workload(params), starts=params.starts, concurrency=params.concurrency,
                          warmup_requests=params.warmup_requests, tenant_prompts=params.tenant_prompts,
                          tail_lengths=params.tail_lengths, popularity=params.popularity)


def configs(params: Params) -> dict[str, SchedulerConfig]:
    """Settings of the engines, `large` and `small`, for the model of the scheduler."""
    spec = load_model(params.model)
    each = kv_bytes_per_token(**spec.kv_cache_shape(), bytes_per_element=2)
    found = {}
    for cache in ("large", "small"):
        given = getattr(params, f"{cache}_cache_bytes")
        blocks = capacity_blocks(cache_bytes=given, kv_bytes_per_token=each, block_tokens=params.block_size)
        found[cache] = SchedulerConfig(
            num_blocks=blocks if given else getattr(params, f"{cache}_blocks"), block_size=params.block_size,
            max_num_seqs=params.max_num_seqs, max_num_batched_tokens=params.max_num_batched_tokens)
    return found


def predict(params: Params, *, hardware: HardwareProfile | None = None) -> dict[str, Any]:
    """Every counter of every step, by the model of the scheduler, before anything runs. No time is predicted.

    Args:
        params: what will be run.
        hardware: not needed: hits depend on blocks and order alone.

    Returns: as `labkit.calc.prefix_prediction.prediction`; `by_block_size`: hit tokens of the phases by block
        arithmetic for blocks of 16 and 32 tokens, the same capacity.
    """
    found, made = configs(params), workload(params)
    shape = {name: getattr(made, name) for name in (
        "num_requests", "num_anchors", "prefix_tokens", "suffix_tokens", "output_tokens")}
    others = {analyze.CASES[cache]: {
        str(size): phase_hits(block_tokens=size, num_blocks=config.num_blocks * config.block_size // size, **shape)
        for size in (16, 32)} for cache, config in found.items()}
    return {**prediction(scripts(params), found, made), "by_block_size": others}


def run(
    params: Params, *, preset: str = "custom", run_id: str | None = None,
    progress: Callable[[str], None] | None = None,
) -> RunRecord:  # fmt: skip
    """Predict, measure, check and publish.

    Raises: EngineMissing or UsageError when this machine lacks vLLM or the GPU; RecordError when the run directory
        cannot be used.
    """
    require_device(SLUG, params.device)  # before the engine: nobody needs a CUDA build without a GPU
    engine = find_engine(params.device)
    return conduct(
        SLUG, params, preset=preset, run_id=run_id, predict=lambda: predict(params),
        measure=lambda run_dir, predicted, outcome: _measure(params, engine, run_dir, predicted, outcome, progress))


def _measure(
    params: Params, engine: Engine, run_dir: Path, predicted: dict[str, Any], outcome: Outcome,
    progress: Callable[[str], None] | None,
) -> None:  # fmt: skip
    outcome.results["engine"] = engine.as_result()
    outcome.results["simulated_agent_trace"] = agent_trace_result(
        cache_tokens=params.trace_cache_tokens, block_tokens=16, seed=params.seed)
    outcome.results["drill"] = _drill(run_dir, progress)
    model = write_model_folder(load_model(params.model), run_dir / "model")
    played, names = scripts(params), list(scripts(params))
    try:
        for first in range(0, len(names), params.together):
            group = names[first : first + params.together]
            _run_group(params, engine, model, {name: played[name] for name in group}, run_dir, outcome, progress)
    finally:
        lines = analyze.read_lines(run_dir / LINES)
        outcome.samples |= analyze.samples(lines)
    outcome.oracles += trust(plain_params(params), lines)
    if not outcome.oracles[0].passed:
        return  # pages of two lives of a server: there are no differences to look at
    outcome.results |= analyze.results(lines)
    if (lag_ms := outcome.results["client_lag_p99_ms"]) > 1e3 * LAG_NOTED_S:
        outcome.notes.append(f"the client's own loop woke up to {lag_ms:.0f} ms late (p99 of the worst step): its "
                             "times may be too long by as much; the counters are the server's")
    outcome.oracles += [*oracles(lines, outcome.results, predicted), drill_oracle(outcome.results["drill"])]
    outcome.results |= analyze.lifecycle(lines, outcome.results["drill"])


def _drill(run_dir: Path, progress: Callable[[str], None] | None) -> dict[str, Any]:
    """What is left of a server when only its parent, or its whole group, is killed: with a stand-in, in a second."""
    folder = worker_dir(run_dir / "drill", {})
    launch_worker("orphan_drill", run_dir=folder, timeout_s=60, progress=progress)
    return dict(analyze.read_lines(folder / "rank0.jsonl")[0])


def _run_group(
    params: Params, engine: Engine, model: Path, played: Mapping[str, Sequence[Step]], run_dir: Path, outcome: Outcome,
    progress: Callable[[str], None] | None,
) -> None:  # fmt: skip
    """Start servers together, play each its script, see them gone."""

    def write(line: Mapping[str, Any]) -> None:
        with open(run_dir / LINES, "a", encoding="utf-8") as stream:
            stream.write(json.dumps(line, allow_nan=False) + "\n")

    settings = [_settings(params, name.rstrip("0123456789"), len(played)) for name in played]
    with vllm_servers(
        settings, engine_python=engine.python, model=model, run_dirs=[run_dir / name for name in played],
        explain=first_cause, timeout_s=params.timeout_s,
        ready_timeout_s=params.ready_timeout_s, gpu_memory=memory_reader(params.device), progress=progress,
    ) as servers:  # fmt: skip
        outcome.argv += [server.argv for server in servers]
        running = {name: processes_of(server.argv) for name, server in zip(played, servers)}
        counted = {name: CountedServer(
            name, server, pages=run_dir / name / "metrics.txt", num_finished=num_finished, timeout_s=params.timeout_s,
            max_lag_p99_s=params.max_client_lag_s) for name, server in zip(played, servers)}
        for name, server in zip(played, servers):
            write(server_line(name, log=server.log_text(), page=counted[name].page, version=engine.version,
                              block_size=params.block_size, startup_s=server.startup_s))
        _play(counted, played, write, progress)
    for name, processes in running.items():
        write({"kind": "end", "server": name, "num_processes": len(processes), "num_left": still_running(processes)})


def _settings(params: Params, cache: str, num_together: int) -> ServerSettings:
    given = getattr(params, f"{cache}_cache_bytes")
    # Only a check at the start: the cache's own size is given.
    extra = ("--gpu-memory-utilization", f"{0.8 / num_together:.2f}") if params.device == "cuda" else ()
    return ServerSettings(
        block_size=params.block_size, max_model_len=params.max_model_len, max_num_seqs=params.max_num_seqs,
        max_num_batched_tokens=params.max_num_batched_tokens, extra=extra, kv_cache_memory_bytes=given or None,
        num_blocks=None if given else getattr(params, f"{cache}_blocks"))


def _play(
    servers: Mapping[str, CountedServer], played: Mapping[str, Sequence[Step]], write: Callable[[dict[str, Any]], None],
    progress: Callable[[str], None] | None,
) -> None:  # fmt: skip
    """Phase by phase, the servers in turn, so that a machine that drifts drifts for all; replicas at the same time."""

    def send(name: str, step: Step) -> dict[str, Any]:
        plan = [Request(prompt_ids=job.prompt_ids, output_tokens=job.output_tokens, label=step.name,
                        extra={"cache_salt": job.salt} if job.salt else {}) for job in step.jobs]
        seen = servers[name].send(step.name, plan, concurrency=step.concurrency)
        return step_line(name, step.name, plan=plan, load=seen.load, before=seen.before, after=seen.after)

    alone = {name: [step for step in steps if step.name not in ROUTINGS] for name, steps in played.items()}
    for number in range(max(map(len, alone.values()))):
        for name, steps in alone.items():
            if number < len(steps):
                write(line := send(name, steps[number]))
                if progress:
                    progress(told(line))
    for routing in ROUTINGS:
        parts = {name: step for name, steps in played.items() for step in steps if step.name == routing}
        if parts:
            with ThreadPoolExecutor(len(parts)) as pool:
                for line in list(pool.map(send, parts, parts.values())):
                    write(line)


def load(run_id: str, *, expect: Params | None = None) -> RunRecord:
    """A recorded run, local or committed; "" takes the newest good one.

    Raises: RecordError if there is none, it is changed or incomplete, or its parameters are not those of `expect`.
    """
    return load_run(SLUG, run_id, expect=expect)


def recorded() -> list[RunRecord]:
    """Committed good runs, the newest of each hardware and preset."""
    return newest_records(SLUG)


def table(record: RunRecord) -> pd.DataFrame:
    """One row a cache and phase; the columns are those of `labkit.analyze.prefix_cache_tables.phases_table`."""
    from labkit.analyze.prefix_cache_tables import phases_table

    return phases_table(record)


def check(record: RunRecord) -> pd.DataFrame:
    """The oracles: name, passed, expected, seen, tolerance, detail.

    Raises: RecordError naming the oracles that failed, or the failure of the launch.
    """
    return oracle_table(record)


def figures(record: RunRecord) -> dict[str, go.Figure]:
    """`rates`, `ttft`, `tails`, `routing` of the run, and `agent_trace`, which is simulated."""
    from labkit.plots.prefix_cache import prefix_figures

    return prefix_figures(record.results, record.prediction["values"], block_size=record.params["block_size"],
                          source=f"{record.hardware_tag}, run {record.run_id}, {record.created_utc[:10]}")


def reported() -> dict[str, dict[str, Any]]:
    """Figures of the 8x V100 report as the ledger has them: result -> cache -> value."""
    from labkit.claims import claim_value, get_claim, report_figures

    found = report_figures(REPORTED, single="default")
    found["cap_tokens"]["1 GiB"] = get_claim("prefix-cap-small").value
    hits = {"default": get_claim("prefix-hit-default"), "1 GiB": get_claim("prefix-hit-small")}
    found["revisit_hit_tokens"] = {case: claim_value(claim, "hit") for case, claim in hits.items()}
    found["revisit_hit_pct"] = {case: claim_value(claim, "pct") for case, claim in hits.items()}
    found["query_tokens"] = {"each phase": get_claim("prefix-query-tokens").value}
    return found


def compare(records: list[RunRecord]) -> pd.DataFrame:
    """Prediction, runs and report side by side; columns as in `labkit.analyze.prefix_cache_tables.comparison`."""
    from labkit.analyze.prefix_cache_tables import comparison

    return comparison(records, reported=reported())

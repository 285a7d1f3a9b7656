"""A KV cache that runs full: which requests lose their place, what is computed twice, and what each metric makes of it.

parameters -> prediction (the scheduler model, exact) -> a small and a large vLLM server, rounds of requests released
together -> record -> oracles -> tables and figures.

    python -m labkit run vllm_preemption --preset smoke     # a CPU: the real engine with a two-layer model
    python -m labkit run vllm_preemption --preset gpu1
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labkit.analyze import preemption as analyze
from labkit.analyze import preemption_lines as reader
from labkit.analyze import preemption_plan as plan
from labkit.analyze.preemption_oracles import oracles
from labkit.analyze.vllm_metrics import gauges_now
from labkit.analyze.vllm_server_log import first_cause
from labkit.calc.block_pool import MAX_BLOCKS
from labkit.calc.kv_cache import kv_bytes_per_token
from labkit.conduct import Outcome, conduct, load_run, newest_records, oracle_table, plain_params, require_device
from labkit.engine.find import Engine, find_engine
from labkit.engine.find import missing as missing  # the batch asks a lab what it lacks
from labkit.engine.model_folder import write_model_folder
from labkit.hardware import HardwareProfile
from labkit.launch.load_plan import Request, random_prompt
from labkit.launch.observed_round import observe
from labkit.launch.process import LaunchError
from labkit.launch.vllm_server import ServerSettings, VllmServer, vllm_servers
from labkit.models import load_model
from labkit.presets import require
from labkit.records import RunRecord

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

SLUG = "vllm_preemption"
TITLE = "Preemption: when the KV cache runs full"
NEEDS = "vLLM (labkit engine install); smoke, cpu: any CPU; gpu1: a CUDA GPU"
REPORTED = {"kv_tokens": ("preempt-kv-tokens",), "count": ("preempt-count",), "peak_kv": ("preempt-peak-kv",),
            "peak_running_waiting": ("preempt-running-waiting",), "throughput": ("preempt-throughput",),
            "ttft": ("preempt-ttft",), "tpot": ("preempt-tpot",)}
"""Result name -> claims of the report that give its figures by point."""
RATIOS = {"throughput_pct": "preempt-66", "tpot_slower_pct": "preempt-tpot-11", "ttft_lower_pct": "preempt-ttft-11"}
Stop = Callable[[], bool]
OnSample = Callable[[dict[str, Any]], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Params:
    """Settings of one run. The load is the report's; on a CPU the caches hold as many tokens, in blocks of 32."""

    device: str = "cpu"
    """`cpu` or `cuda`."""
    model: str = "tiny-qwen2"
    """Of data/models; random weights."""
    cache_gib: tuple[int, ...] = (1, 4)
    """Names of the small and the large cache; on a GPU their sizes, GiB."""
    num_blocks: tuple[int, ...] = (585, 2340)
    """Blocks of each; empty: what their sizes give."""
    block_size: int = 32
    """Tokens a block."""
    small_concurrency: tuple[int, ...] = (8, 16)
    large_concurrency: tuple[int, ...] = (16,)
    num_requests: int = 16
    """Of a round."""
    prompt_tokens: int = 1024
    output_tokens: int = 512
    max_model_len: int = 2048
    max_num_seqs: int = 32
    max_num_batched_tokens: int = 2048
    num_starts: int = 1
    """Fresh pairs of servers."""
    rounds: int = 1
    """Of each point on each pair."""
    plan_waves: int = 1
    """Requests over concurrency in the two rounds that check the planner, on the first pair; 0: none."""
    stagger_ms: tuple[float, ...] = ()
    """Gaps between arrivals in rounds that nobody holds, on the first pair's small server; 0: sent at once."""
    stagger_rounds: int = 1
    """Of each gap."""
    period_s: float = 0.25
    """Between two looks at the gauges, seconds."""
    step_ms: float = 6.0
    """Assumed before the run: the fixed part of a step, ms."""
    token_us: float = 60.0
    """Assumed before the run: each prompt token, or token computed again, in a step, us."""
    request_us: float = 100.0
    """Assumed before the run: each request that decodes in a step, us."""
    seed: int = 0
    max_client_lag_s: float = 0.5
    """Of the client's own loop, p99: above it the run fails."""
    ready_timeout_s: float = 300.0
    timeout_s: float = 900.0
    """Life of a server, and of a request, seconds."""

    def __post_init__(self) -> None:
        """Refuse what could not run, naming the argument."""
        require(self.device in ("cpu", "cuda"), "device", self.device, "cpu or cuda")
        require(len(self.cache_gib) == 2 and 0 < self.cache_gib[0] < self.cache_gib[1], "cache_gib", self.cache_gib,
                "two sizes, the small one first")
        require(len(self.num_blocks) in (0, 2) and all(2 <= n <= MAX_BLOCKS for n in self.num_blocks), "num_blocks",
                self.num_blocks, f"one number for each cache, 2 to {MAX_BLOCKS}, or none")
        require(bool(self.num_blocks) or self.device == "cuda", "num_blocks", self.num_blocks,
                "numbers on a CPU, whose cache has another model's size")
        for name in ("small_concurrency", "large_concurrency"):
            values = getattr(self, name)
            require(bool(values) and all(1 <= c <= self.max_num_seqs for c in values), name, values,
                    f"some from 1 to max_num_seqs={self.max_num_seqs}")
        require(bool(set(self.small_concurrency) & set(self.large_concurrency)), "large_concurrency",
                self.large_concurrency, f"one that the small cache has too: {self.small_concurrency}")
        require(self.prompt_tokens + self.output_tokens <= self.max_model_len, "max_model_len", self.max_model_len,
                "at least prompt and output together")
        for name, least in (("block_size", 1), ("num_requests", 1), ("prompt_tokens", 1), ("output_tokens", 2),
                            ("max_num_batched_tokens", 1), ("num_starts", 1), ("rounds", 1), ("plan_waves", 0),
                            ("stagger_rounds", 1), ("seed", 0)):
            value = getattr(self, name)
            require(isinstance(value, int) and value >= least, name, value, f"a whole number, at least {least}")
        require(all(gap >= 0 for gap in self.stagger_ms), "stagger_ms", self.stagger_ms, "gaps of 0 or more")
        require(self.request_us >= 0, "request_us", self.request_us, "at least 0")
        for name in ("period_s", "step_ms", "token_us", "max_client_lag_s", "ready_timeout_s", "timeout_s"):
            require(getattr(self, name) > 0, name, getattr(self, name), "above 0")


def predict(params: Params, *, hardware: HardwareProfile | None = None) -> dict[str, Any]:
    """Counts of every round, exactly, and times from assumed unit costs; see `labkit.calc.preemption_prediction`.

    Returns: blocks and tokens by cache; points by label; plan (see `serving_plan`) with preemptions by concurrency;
        by_gap (preemptions when requests come that many steps apart); ratios, as in the results.
    """
    del hardware  # the counts need none
    return plan.prediction(plain_params(params), kv_bytes_per_token=kv_bytes_per_token(
        **load_model(params.model).kv_cache_shape()))


def run(
    params: Params, *, preset: str = "custom", run_id: str | None = None,
    progress: Callable[[str], None] | None = None, on_sample: OnSample | None = None, should_stop: Stop | None = None,
) -> RunRecord:  # fmt: skip
    """Predict, measure, check and publish.

    Args:
        params: settings.
        preset: name to keep in the record.
        run_id: name of the run; made if not given.
        progress: told what happens.
        on_sample: called from another thread with each sample of the gauges and the round's name, for a live view.
        should_stop: asked often; True ends the run, which is then published as failed.

    Raises: UsageError when this machine lacks engine or GPU; RecordError when the run directory cannot be used.
    """
    require_device(SLUG, params.device)  # before the engine: nobody needs a CUDA build without a GPU
    engine = find_engine(params.device)
    return conduct(
        SLUG, params, preset=preset, run_id=run_id, predict=lambda: predict(params),
        measure=lambda run_dir, predicted, outcome: _measure(
            params, run_dir, predicted, outcome, _Run(engine, progress or (lambda _: None), on_sample, should_stop)))


@dataclass(slots=True)
class _Run:
    engine: Engine
    progress: Callable[[str], None]
    on_sample: OnSample | None
    should_stop: Stop | None


def _measure(params: Params, run_dir: Path, predicted: dict[str, Any], outcome: Outcome, ask: _Run) -> None:
    plain = plain_params(params)
    outcome.results["engine"] = ask.engine.as_result()
    model = write_model_folder(load_model(params.model), run_dir / "model")
    try:
        for start in range(params.num_starts):
            names = [f"start{start}-{gib}gib" for gib in params.cache_gib]
            with vllm_servers(
                [_settings(params, which) for which in (0, 1)], engine_python=ask.engine.python, model=model,
                run_dirs=[run_dir / name for name in names], explain=first_cause, timeout_s=params.timeout_s,
                ready_timeout_s=params.ready_timeout_s, progress=ask.progress,
            ) as servers:
                outcome.argv += [server.argv for server in servers]
                by_cache = dict(zip(predicted["blocks"], servers))
                for cache, server in by_cache.items():
                    _write(run_dir, reader.server_line(server.log_text(), startup_s=server.startup_s, cache=cache,
                                                       start=start))
                for about in plan.rounds(plain, predicted, start=start):
                    _write(run_dir, _round(params, by_cache[about["cache"]], about, ask))
    finally:
        lines = reader.read_lines(run_dir)
        outcome.samples |= analyze.samples(lines, plain)
    outcome.results |= analyze.results(lines, plain, predicted)
    outcome.results["settings"] = reader.settings(outcome.argv[0], lines)
    outcome.oracles += oracles(plain, lines, outcome.results, predicted)


def _settings(params: Params, which: int) -> ServerSettings:
    on_gpu = params.device == "cuda"
    return ServerSettings(
        block_size=params.block_size, max_model_len=params.max_model_len, max_num_seqs=params.max_num_seqs,
        max_num_batched_tokens=params.max_num_batched_tokens, enable_prefix_caching=False, enforce_eager=True,
        num_blocks=params.num_blocks[which] if params.num_blocks else None,
        kv_cache_memory_bytes=None if params.num_blocks else params.cache_gib[which] << 30,
        gpu_index=0 if on_gpu else None,
        # One step at a time, each in the log. Two servers share a GPU: neither may ask for most of it.
        extra=("--no-async-scheduling", "--enable-logging-iteration-details",
               *(("--gpu-memory-utilization", "0.4") if on_gpu else ())))


def _round(params: Params, server: VllmServer, about: dict[str, Any], ask: _Run) -> dict[str, Any]:
    """One load on one server, as a line."""
    if ask.should_stop and ask.should_stop():
        raise LaunchError("stopped by the user", log_path=server.log)
    spec = load_model(params.model)
    seed = 1000 * params.seed + 100 * about["start"]
    requests = [Request(
        prompt_ids=random_prompt(params.prompt_tokens, seed=seed + number, vocab_size=spec.vocab_size),
        output_tokens=about["output_tokens"], at_s=about["gap_ms"] / 1e3 * number if about["gap_ms"] else None)
        for number in range(about["num_requests"])]
    marker = Request(prompt_ids=tuple(range(10, 10 + reader.MARKER_TOKENS)), output_tokens=1)
    on_sample = ask.on_sample
    seen = observe(
        server, requests, concurrency=about["concurrency"], held=about["purpose"] != "stagger",
        read_sample=gauges_now, num_finished=reader.num_finished, marker=marker, find_marker=reader.marker_finder(
            num_requests=len(requests), prompt_tokens=params.prompt_tokens, output_tokens=about["output_tokens"]),
        period_s=params.period_s, timeout_s=params.timeout_s, max_lag_p99_s=params.max_client_lag_s,
        on_sample=on_sample and (lambda sample: on_sample({**sample, "round": about["label"]})),
        should_stop=ask.should_stop)
    load = seen.release.load
    line = reader.round_line(
        requests, load.answers, started_s=load.started_s, ended_s=load.ended_s, released_s=seen.release.released_s,
        lag_p99_s=load.lag_p99_s, how=seen.release.how, before=seen.before, after=seen.after, samples=seen.samples,
        log_text=seen.log_text, **about)
    ask.progress(f"{about['label']}: {line['counts']['preemptions']} preemptions in {len(line['steps'])} steps, "
                 f"{line['wall_s']:.1f} s")
    return line


def _write(run_dir: Path, line: dict[str, Any]) -> None:
    with open(run_dir / reader.LINES, "a", encoding="utf-8") as out:
        print(json.dumps(line, allow_nan=False), file=out)


def load(run_id: str, *, expect: Params | None = None) -> RunRecord:
    """A recorded run, local or committed; "" takes the newest good one.

    Raises: RecordError if there is none, it is changed or incomplete, or its parameters are not those of `expect`.
    """
    return load_run(SLUG, run_id, expect=expect)


def recorded() -> list[RunRecord]:
    """Committed good runs, the newest of each hardware and preset."""
    return newest_records(SLUG)


def table(record: RunRecord) -> pd.DataFrame:
    """One row a point; the columns are those of `labkit.analyze.preemption_tables.points_table`."""
    from labkit.analyze.preemption_tables import points_table

    return points_table(record)


def check(record: RunRecord) -> pd.DataFrame:
    """The oracles: name, passed, expected, seen, tolerance, detail.

    Raises: RecordError naming the oracles that failed, or the failure of the launch.
    """
    return oracle_table(record)


def figures(record: RunRecord) -> dict[str, go.Figure]:
    """`kv_curve`, `requests`, `metrics` and `timeline`."""
    from labkit.analyze.preemption_costs import calibrate
    from labkit.plots import preemption as plots

    return plots.all_figures(
        record, source=f"{record.hardware_tag}, run {record.run_id}, {record.created_utc[:10]}",
        costs=calibrate(record.params, record.prediction["values"], record.results))


def reported() -> dict[str, dict[str, Any]]:
    """Figures of the 8x V100 report as the ledger has them: result name -> point -> value."""
    from labkit.claims import report_figures

    return report_figures(REPORTED)


def reported_ratios() -> dict[str, float]:
    """What the report says of the small cache against the large one, percent."""
    from labkit.claims import claim_value, get_claim

    return {name: claim_value(get_claim(claim)) for name, claim in RATIOS.items()}


def compare(records: list[RunRecord]) -> pd.DataFrame:
    """Predicted, each record, and the 8x V100 report side by side."""
    from labkit.analyze.preemption_tables import comparison

    return comparison(records, reported=reported())

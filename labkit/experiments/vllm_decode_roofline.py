"""Decode and prefill of three kinds of models on vLLM against their bytes and FLOP: dense, experts, latent attention.

parameters -> prediction -> one server a model and mode, its loads -> record -> oracles -> tables and figures.

    python -m labkit run vllm_decode_roofline --preset smoke     # a CPU: capacity and counts; times are overhead
    python -m labkit run vllm_decode_roofline --preset gpu1      # three models with dummy weights, nothing downloaded
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labkit.analyze import decode_oracles, decode_prediction
from labkit.analyze import decode_roofline as analyze
from labkit.analyze.load_results import Result, read_result
from labkit.analyze.vllm_metrics import pair_summary
from labkit.analyze.vllm_server_log import first_cause
from labkit.calc.decoder import DecoderShape
from labkit.conduct import (
    Outcome,
    conduct,
    load_run,
    newest_records,
    oracle_table,
    own_profile,
    plain_params,
    require_device,
)
from labkit.engine.find import Engine, find_engine
from labkit.engine.find import missing as missing  # the batch asks a lab what it lacks
from labkit.engine.gpu_memory import memory_reader
from labkit.engine.model_folder import model_config, write_model_folder
from labkit.engine.model_tensors import count_parameters
from labkit.hardware import HardwareProfile
from labkit.launch.load_plan import Request, random_prompt
from labkit.launch.server import send_to
from labkit.launch.vllm_server import ServerSettings, VllmServer, vllm_servers
from labkit.models import load_model
from labkit.presets import require
from labkit.records import RunRecord

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

SLUG = "vllm_decode_roofline"
TITLE = "Decode against the roofline: a dense model, one with experts, one with a latent"
NEEDS = "vLLM (labkit engine install); smoke, cpu: any CPU with tiny models; gpu1: a GPU with 140 GB"
UNIFORM_ROUTING = {"VLLM_MOE_ROUTING_SIMULATION_STRATEGY": "uniform_random"}
"""Dummy routers choose in no particular way, often all tokens alike; the prediction is about uniform routing. On a GPU
only: vLLM's CPU kernels for experts refuse the simulated choice (0.32: its indices are of another type)."""
Progress = Callable[[str], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Params:
    """Settings of one run."""

    device: str = "cpu"
    """`cpu` or `cuda`."""
    servers: tuple[str, ...] = ("tiny-qwen2 eager",)
    """`<model> <mode>`; mode `eager` launches every kernel, `graph` replays decode steps (a GPU only)."""
    at_once: int = 1
    """Servers that are up together; they are measured one after the other."""
    batches: tuple[int, ...] = (1, 8)
    """Sequences that decode together."""
    context_tokens: int = 256
    """Prompt of each of them."""
    output_tokens: int = 64
    """Of each of them."""
    rounds: int = 1
    """Loads of each batch."""
    prompt_tokens: tuple[int, ...] = (256, 1024)
    """Lengths of single prompts whose time to first token is taken."""
    prompt_repeats: int = 5
    """Prompts of each length, one after the other."""
    block_size: int = 32
    """Tokens of a KV block."""
    latent_block_size: int = 16
    """The same for models with latent attention: vLLM's CPU kernel for them takes 16 only."""
    cache_mib: int = 1024
    """Memory of the KV cache of each server; on a CPU whole GiB only, so vLLM takes them there."""
    max_num_batched_tokens: int = 8192
    """Tokens of a step at most; no single prompt is longer, so each is one step."""
    memory_share: float = 0.0
    """`--gpu-memory-utilization`, only a check of free memory here; 0: vLLM's own."""
    copy_gb_per_s: float = 10.0
    """Assumed where no profile of the device says it: bandwidth, 1e9 bytes/s."""
    gemm_tflop_per_s: float = 0.1
    """Assumed where no profile of the device says it: arithmetic, 1e12 FLOP/s."""
    launch_us: float = 10.0
    """Assumed: host time of calling one kernel by its module, microseconds."""
    step_us: float = 5000.0
    """Assumed: host time between two steps, microseconds: scheduling, sampling, two processes and a socket."""
    draws_may_repeat: bool = False
    """How the engine's uniform routing draws a token's experts: vLLM 0.26 independently, so that one may come twice;
    0.32 all different."""
    max_client_lag_s: float = 0.5
    """How late the client's own loop may wake on a GPU host (99th percentile). On a CPU it waits for the engine's
    threads; no time is judged there, and the lag is only written down."""
    seed: int = 0
    ready_timeout_s: float = 300
    timeout_s: float = 900
    """Deadline of each server's life, seconds."""

    def __post_init__(self) -> None:
        """Refuse what could not run, naming the argument."""
        require(self.device in ("cpu", "cuda"), "device", self.device, "cpu or cuda")
        modes = [decode_prediction.split_server(name) for name in self.servers]
        require(bool(modes) and len(set(modes)) == len(modes), "servers", self.servers, "at least one, no two alike")
        require(self.device == "cuda" or all(mode == "eager" for _, mode in modes), "servers", self.servers,
                "mode eager on a CPU, which has no graphs")
        for name in ("batches", "prompt_tokens"):
            values = getattr(self, name)
            require(bool(values) and all(isinstance(v, int) and v >= 1 for v in values)
                    and list(values) == sorted(set(values)), name, values, "ascending whole numbers from 1 on")
        for name, least in (("at_once", 1), ("context_tokens", 1), ("output_tokens", 8), ("rounds", 1), ("seed", 0),
                            ("prompt_repeats", 1), ("block_size", 1), ("latent_block_size", 1), ("cache_mib", 1),
                            ("max_num_batched_tokens", self.prompt_tokens[-1])):  # fmt: skip
            value = getattr(self, name)
            require(isinstance(value, int) and value >= least, name, value, f"a whole number, at least {least}")
        for name in ("copy_gb_per_s", "gemm_tflop_per_s", "launch_us", "step_us", "max_client_lag_s", "ready_timeout_s",
                     "timeout_s"):
            require(getattr(self, name) > 0, name, getattr(self, name), "above 0")
        require(self.device == "cuda" or self.cache_mib % 1024 == 0, "cache_mib", self.cache_mib,
                "a multiple of 1024 on a CPU")
        require(0 <= self.memory_share < 1, "memory_share", self.memory_share, "a share, 0 to below 1")

    def block_size_of(self, model: str) -> int:
        """Tokens of a KV block of this model."""
        return self.latent_block_size if load_model(model).is_mla else self.block_size


def predict(params: Params, *, hardware: HardwareProfile | None = None) -> dict[str, Any]:
    """Capacity, bytes, FLOP and times of every server, before any starts.

    Args:
        params: what will be run.
        hardware: profile of the GPU; if not given, that of this machine's GPU when `device` is cuda.

    Returns: "servers" {name: as `labkit.analyze.decode_prediction.server_prediction`, and "model", "num_experts",
        "top_k"}, "rates" (bytes_per_s, flop_per_s, datasheet_bytes_per_s, source), "tensor_parameters" {name: added up
        tensor by tensor}.
    """
    hardware = hardware or own_profile(params.device)
    seen = {name: hardware.measured[name].value for name in ("copy_bytes_per_s", "bf16_matmul_flop_per_s")
            if name in hardware.measured} if hardware else {}
    rates = {
        "bytes_per_s": float(seen.get("copy_bytes_per_s") or params.copy_gb_per_s * 1e9),
        "flop_per_s": float(seen.get("bf16_matmul_flop_per_s") or params.gemm_tflop_per_s * 1e12),
        "datasheet_bytes_per_s": hardware.value("memory_bandwidth_bytes_per_s") if hardware else None,
        "source": f"profile {hardware.name}" if hardware and len(seen) == 2 else "assumed"}
    servers, tensors = {}, {}
    for name in params.servers:
        model, mode = decode_prediction.split_server(name)
        spec = load_model(model)
        tensors[name] = count_parameters(model_config(spec))
        servers[name] = {"model": model, "num_experts": spec.num_experts, "top_k": spec.num_experts_per_token,
                         **decode_prediction.server_prediction(
                             DecoderShape(**spec.decoder_shape()), dtype=spec.dtype, mode=mode,
                             block_size=params.block_size_of(model), cache_bytes=params.cache_mib << 20,
                             batches=params.batches, context_tokens=params.context_tokens,
                             output_tokens=params.output_tokens, prompt_tokens=params.prompt_tokens, rates=rates,
                             launch_s=params.launch_us * 1e-6, step_s=params.step_us * 1e-6,
                             is_asynchronous=params.device == "cuda",
                             draws_may_repeat=params.draws_may_repeat)}
    return {"servers": servers, "rates": rates, "tensor_parameters": tensors}


def run(
    params: Params, *, preset: str = "custom", run_id: str | None = None, progress: Progress | None = None
) -> RunRecord:
    """Predict, measure, check and publish.

    Raises: UsageError when this machine lacks the GPU or the engine; RecordError when the run directory cannot be used.
    """
    require_device(SLUG, params.device)  # before the engine: nobody needs a CUDA build without a GPU
    engine = find_engine(params.device)
    return conduct(
        SLUG, params, preset=preset, run_id=run_id, predict=lambda: predict(params),
        measure=lambda run_dir, predicted, outcome: _measure(params, engine, run_dir, predicted, outcome, progress))


def _measure(
    params: Params, engine: Engine, run_dir: Path, predicted: dict[str, Any], outcome: Outcome,
    progress: Progress | None,
) -> None:  # fmt: skip
    outcome.results["engine"] = engine.as_result()
    served: list[analyze.Served] = []
    try:
        for first in range(0, len(params.servers), params.at_once):
            names = params.servers[first : first + params.at_once]
            folders = [write_model_folder(load_model(name.split()[0]), run_dir / "models" / name.split()[0])
                       for name in names]
            with vllm_servers(
                [_settings(params, name, folder) for name, folder in zip(names, folders)],
                engine_python=engine.python, model=folders[0], env=_environment(params), timeout_s=params.timeout_s,
                run_dirs=[run_dir / name.replace(" ", "-") for name in names], progress=progress,
                explain=first_cause, ready_timeout_s=params.ready_timeout_s, gpu_memory=memory_reader(params.device),
            ) as servers:
                outcome.argv += [server.argv for server in servers]
                for name, server in zip(names, servers):
                    served.append(_drive(params, name, server, progress))
    finally:
        outcome.samples |= analyze.samples(served)
    outcome.results |= analyze.results(served, predicted)
    outcome.oracles += decode_oracles.oracles(plain_params(params), outcome.results, predicted)


def _environment(params: Params) -> dict[str, str]:
    return UNIFORM_ROUTING if params.device == "cuda" else {"VLLM_CPU_KVCACHE_SPACE": str(params.cache_mib // 1024)}


def _settings(params: Params, name: str, folder: Path) -> ServerSettings:
    model, mode = decode_prediction.split_server(name)
    longest = max(params.context_tokens + params.output_tokens, params.prompt_tokens[-1] + 1)
    extra = ["--model", str(folder)]  # servers of several models may be up together: the last one counts
    if params.memory_share:
        extra += ["--gpu-memory-utilization", str(params.memory_share)]
    if mode == "graph":  # decode steps as whole graphs of exactly these batches, and no compiler to wait for
        extra += ["--compilation-config", json.dumps(
            {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY", "cudagraph_capture_sizes": list(params.batches)})]
    return ServerSettings(
        block_size=params.block_size_of(model), kv_cache_memory_bytes=params.cache_mib << 20,
        max_model_len=-(-longest // 64) * 64, max_num_seqs=params.batches[-1], enable_prefix_caching=False,
        max_num_batched_tokens=params.max_num_batched_tokens, enforce_eager=mode == "eager", extra=tuple(extra))


def _drive(params: Params, name: str, server: VllmServer, progress: Progress | None) -> analyze.Served:
    """Every load of one server: short ones first that nobody times, then batches, then single prompts."""
    served = analyze.Served(name=name, startup_s=server.startup_s, log="", page=server.scrape())
    vocab, seeds = load_model(name.split()[0]).vocab_size, iter(range(params.seed, params.seed + 10**6))

    def send(batch: int, prompt: int, output: int) -> list[Result]:
        plan = [Request(prompt_ids=random_prompt(prompt, seed=next(seeds), vocab_size=vocab), output_tokens=output)
                for _ in range(batch)]
        load = send_to(server, plan, concurrency=batch, timeout_s=params.timeout_s,
                       max_lag_p99_s=params.max_client_lag_s if params.device == "cuda" else math.inf)
        server.raise_if_dead()
        served.client_lag_s = max(served.client_lag_s, load.lag_p99_s)
        return [read_result(answer.pieces, index=answer.index, label=name, sent_s=answer.sent_s,
                            started_s=load.started_s, planned_s=None, output_tokens=output, error=answer.error)
                for answer in load.answers]

    def measure(point: analyze.Point, rounds: int, batch: int) -> None:
        before = server.scrape()
        point.rounds = [send(batch, point.prompt_tokens, point.output_tokens) for _ in range(rounds)]
        point.pages = (before, _settled(server, before, rounds * batch))
        served.points.append(point)
        if progress:
            progress(f"{name}: {point.kind} {point.size} done")

    for batch in params.batches:
        send(batch, params.context_tokens, 8)
    for batch in params.batches:
        measure(analyze.Point(kind="decode", size=batch, prompt_tokens=params.context_tokens,
                              output_tokens=params.output_tokens), params.rounds, batch)
    for prompt in params.prompt_tokens:
        send(1, prompt, 1)
        measure(analyze.Point(kind="ttft", size=prompt, prompt_tokens=prompt, output_tokens=1),
                params.prompt_repeats, 1)
    served.log = server.log_text()
    return served


def _settled(server: VllmServer, before: str, num_requests: int) -> str:
    """The metrics page once it counts these requests as finished: it is written a moment after their last token."""
    for _ in range(20):
        page = server.scrape()
        if pair_summary(before, page).get("requests_finished") == num_requests:
            break
        time.sleep(0.1)
    return page


def load(run_id: str, *, expect: Params | None = None) -> RunRecord:
    """A recorded run, local or committed; "" takes the newest good one.

    Raises: RecordError if there is none, it is changed or incomplete, or its parameters are not those of `expect`.
    """
    return load_run(SLUG, run_id, expect=expect)


def recorded() -> list[RunRecord]:
    """Committed good runs, the newest of each hardware and preset."""
    return newest_records(SLUG)


def table(record: RunRecord) -> pd.DataFrame:
    """One row a point; the columns are those of `labkit.analyze.decode_tables.points_table`."""
    from labkit.analyze.decode_tables import points_table

    return points_table(record)


def check(record: RunRecord) -> pd.DataFrame:
    """The oracles: name, passed, expected, seen, tolerance, detail.

    Raises: RecordError naming the oracles that failed, or the failure of the launch.
    """
    return oracle_table(record)


def figures(record: RunRecord) -> dict[str, go.Figure]:
    """`step_time`, `against_bytes`, `where_it_goes` (largest batch) and `prompt_time`."""
    from labkit.analyze.decode_tables import parts_table
    from labkit.plots import decode_roofline as plots

    source = f"{record.hardware_tag}, run {record.run_id}, {record.created_utc[:10]}"
    frame, rate = table(record), record.prediction["values"]["rates"]["bytes_per_s"]
    return {"step_time": plots.step_time(frame, source=source),
            "against_bytes": plots.against_bytes(frame, bytes_per_s=rate, source=source),
            "where_it_goes": plots.where_it_goes(
                parts_table(record), batch=record.params["batches"][-1], source=source),
            "prompt_time": plots.prompt_time(frame, source=source)}


def compare(records: Sequence[RunRecord]) -> pd.DataFrame:
    """Capacity and times predicted and measured, two columns a record."""
    from labkit.analyze.decode_tables import compare_table

    return compare_table(records)

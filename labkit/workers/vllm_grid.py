"""Send many small loads through the real engine, in one process, and write down its counters.

Runs under the interpreter of an engine (vLLM), not under labkit's: standard library, vLLM, and nothing else of labkit.

    <engine python> labkit/workers/vllm_grid.py --run-dir D

In: `D/params.json`: {"model": folder, "engines": [{"settings": {...}, "loads": [[{"prompt_ids", "output_tokens",
"salt"}]]}]}, settings named as in `labkit.calc.scheduler.SchedulerConfig`. Out: `D/rank0.jsonl`, one line a load with
its counters. All requests of a load are there before the first step; loads of one engine share its cache.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # the engine in this process: its scheduler can be looked at
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
COUNTERS = ("prefix_cache_queries", "prefix_cache_hits", "num_preemptions", "prompt_tokens")


def make_engine(model: str, settings: dict[str, Any]) -> Any:
    """An engine with the given settings, random weights, no tokenizer."""
    from vllm import LLM  # pyright: ignore[reportMissingImports]

    max_len = settings["block_size"] * (settings["num_blocks"] - 1)
    return LLM(
        model=model, skip_tokenizer_init=True, load_format="dummy", enforce_eager=True, disable_log_stats=False,
        async_scheduling=False, max_model_len=min(max_len, 4096), block_size=settings["block_size"],
        num_gpu_blocks_override=settings["num_blocks"], max_num_seqs=settings["max_num_seqs"],
        max_num_batched_tokens=settings["max_num_batched_tokens"],
        enable_prefix_caching=settings["enable_prefix_caching"]).llm_engine


def counters(engine: Any) -> dict[str, int]:
    """Totals since the engine's start."""
    found: dict[str, int] = dict.fromkeys(COUNTERS, 0)
    for metric in engine.get_metrics():
        name = metric.name.removeprefix("vllm:").removesuffix("_total")
        if name in found:
            found[name] += int(metric.value)
    return found


def run_load(engine: Any, load: list[dict[str, Any]], name: str) -> dict[str, Any]:
    """Every request in, then step by step to the end."""
    from vllm import SamplingParams  # pyright: ignore[reportMissingImports]

    before = counters(engine)
    for number, job in enumerate(load):
        prompt = {"prompt_token_ids": job["prompt_ids"]}
        if job.get("salt"):
            prompt["cache_salt"] = job["salt"]
        engine.add_request(f"{name}-{number}", prompt, SamplingParams(
            max_tokens=job["output_tokens"], temperature=0.0, ignore_eos=True, detokenize=False))
    steps, outputs = 0, dict[str, int]()
    with watched(engine.engine_core.engine_core.scheduler) as peaks:
        while engine.has_unfinished_requests():
            for answer in engine.step():
                if answer.finished:
                    outputs[answer.request_id] = len(answer.outputs[0].token_ids)
            steps += 1
    after = counters(engine)
    return {**{key: after[key] - before[key] for key in COUNTERS}, "num_steps": steps, **peaks,
            "num_done": len(outputs), "output_tokens": sum(outputs.values())}


@contextlib.contextmanager
def watched(scheduler: Any) -> Iterator[dict[str, Any]]:
    """The highest cache use and number of running requests, seen right after each scheduling.

    At the end of a step it would be too late: requests that ended have given their blocks back.
    """
    schedule = scheduler.schedule
    peaks: dict[str, Any] = {"peak_kv_usage": 0.0, "peak_running": 0}

    def look(*args: Any, **kwargs: Any) -> Any:
        output = schedule(*args, **kwargs)
        peaks["peak_kv_usage"] = max(peaks["peak_kv_usage"], scheduler.kv_cache_manager.usage)
        peaks["peak_running"] = max(peaks["peak_running"], len(scheduler.running))
        return output

    scheduler.schedule = look
    try:
        yield peaks
    finally:
        scheduler.schedule = schedule


def main() -> int:
    """Every engine in turn; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--run-dir", type=Path, required=True)
    run_dir = parser.parse_args().run_dir
    params = json.loads((run_dir / "params.json").read_text(encoding="utf-8"))
    import vllm  # pyright: ignore[reportMissingImports]

    with open(run_dir / "rank0.jsonl", "w", encoding="utf-8") as out:
        print(json.dumps({"kind": "engine", "vllm": vllm.__version__}), file=out, flush=True)
        for number, asked in enumerate(params["engines"]):
            begun = time.perf_counter()
            engine = make_engine(params["model"], asked["settings"])
            for index, load in enumerate(asked["loads"]):
                seen = run_load(engine, load, f"{number}-{index}")
                print(json.dumps({"kind": "load", "engine": number, "load": index, **seen}), file=out, flush=True)
            print(f"progress: engine {number + 1}/{len(params['engines'])}, {len(asked['loads'])} loads, "
                  f"{time.perf_counter() - begun:.0f} s", flush=True)
            engine.engine_core.shutdown()
            del engine
            gc.collect()
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Time the candidate configurations of the fast kernel: one run on a GPU is enough to choose, and the choice is data.

Run through rmsnorm_bench with mode `tune`: reads `tune_shapes` and `tune_rounds`, writes tune.json (every candidate of
every shape with its cold and graph-replay medians beside copy_, the report's kernel and torch.compile).
"""

from __future__ import annotations

import json
import os
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

import torch

from labkit.workers import rmsnorm_baselines as baselines
from labkit.workers import rmsnorm_check as check
from labkit.workers import rmsnorm_timing as timing
from labkit.workers.json_lines import JsonLines
from labkit.workers.rmsnorm_fast import Config, fits, rmsnorm_fast, rmsnorm_report


def candidates(hidden: int, *, vector: int = 8) -> list[Config]:
    """Configurations worth timing for a row length (elements of 2 bytes).

    A first sweep of 444 on an H200 had also persistent grids, cache hints of every kind and streaming stores. They won
    nowhere where rows are aligned, so they are not timed again.
    """
    block = 1 << (hidden - 1).bit_length()
    found: list[Config] = []
    for warps in (1, 2, 4, 8, 16, 32):
        for rows in (1, 2, 4, 8) if block <= 1024 else (1,):
            if 8 <= block * rows // (32 * warps) <= 64:
                found.append(Config("tile", block, num_warps=warps, rows=rows, late_w=True, evict_x="", evict_y=""))
    for chunk in (512, 1024, 2048, 4096, 8192):
        for per_thread in (4, 8, 16):
            warps = chunk // (32 * per_thread)
            if 2 * chunk <= block and 4 <= warps <= 32:
                found.append(Config("loop", chunk, num_warps=warps, evict_y=""))
    if hidden % vector:
        whole = 1 << (hidden // vector * vector - 1).bit_length()
        for per_thread in (8, 16, 32):
            warps = whole // (32 * per_thread)
            for stages in (1, 2, 3):
                for group in (0, vector):
                    for per_sm in (2, 4, 8, 16, 32, 64):
                        most = 64 if group == 0 else 256  # programs beyond those that fit balance the load
                        if 1 <= warps <= 16 and 16 <= per_sm * warps <= most:
                            for evict in ("evict_first", ""):
                                found.append(Config("shifted", whole, num_warps=warps, stages=stages, per_sm=per_sm,
                                                    group=group, evict_x=evict, evict_y=evict))  # fmt: skip
    return found


def warm_one(job: tuple[int, dict[str, Any]]) -> str:
    """Compile one configuration in this process (Triton's disk cache keeps it); returns an error line or ''."""
    hidden, values = job
    try:
        x = torch.zeros(1024, hidden, dtype=torch.bfloat16, device=timing.DEVICE)
        w = torch.zeros(hidden, dtype=torch.bfloat16, device=timing.DEVICE)
        rmsnorm_fast(x, w, out=torch.empty_like(x), config=Config(**values))
        torch.cuda.synchronize()
    except Exception as error:  # a candidate that does not compile here is left out
        return f"{type(error).__name__}: {str(error).strip()[:200]}".splitlines()[0]
    return ""


def tune(params: dict[str, Any], lines: JsonLines, run_dir: Path) -> None:
    """Compile every candidate in parallel, check each, time all of them interleaved, write tune.json."""
    from labkit.workers.rmsnorm_bench import parse_shape

    shapes = {text: parse_shape(text) for text in params["tune_shapes"]}
    jobs = [(hidden, asdict(config)) for hidden in sorted({hidden for _, hidden, _ in shapes.values()})
            for config in candidates(hidden)]  # fmt: skip
    began = time.perf_counter()
    broken: dict[tuple[int, str], str] = {}
    with ProcessPoolExecutor(max(1, min(14, (os.cpu_count() or 2) - 1)), mp_context=get_context("spawn")) as pool:
        for (hidden, values), error in zip(jobs, pool.map(warm_one, jobs, chunksize=4)):
            if error:
                broken[hidden, Config(**values).label()] = error
    print(f"{len(jobs)} candidates compiled in {time.perf_counter() - began:.1f} s, {len(broken)} refused", flush=True)
    l2_bytes = torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size
    flush = timing.Flush(l2_bytes)
    timing.spin_up()
    result: dict[str, Any] = {"refused": [[*key, error] for key, error in broken.items()], "shapes": {}}
    for text, (rows, hidden, dtype) in shapes.items():
        try:
            result["shapes"][text] = tune_shape(rows, hidden, dtype, params=params, l2_bytes=l2_bytes, flush=flush,
                                                broken={label for h, label in broken if h == hidden},
                                                with_compile=text in params["compile_shapes"])  # fmt: skip
            show(text, result["shapes"][text])
        except Exception as error:  # keep what the other shapes gave
            lines.refuse("tune", error, shape=text)
            print(f"{text}: {type(error).__name__}: {error}", flush=True)
        torch.cuda.empty_cache()
        (run_dir / "tune.json").write_text(json.dumps(result, allow_nan=False), encoding="utf-8")
    lines.write("tune", path="tune.json", wall_s=time.perf_counter() - began)


def tune_shape(
    rows: int, hidden: int, dtype: torch.dtype, *, params: dict[str, Any], l2_bytes: int, flush: timing.Flush,
    broken: set[str], with_compile: bool,
) -> dict[str, Any]:  # fmt: skip
    """Medians of every candidate for one shape: {"min_bytes", "rows": [{label, config, cold_ms, ...}]}."""
    eps, min_bytes = params["eps"], (2 * rows * hidden + hidden) * 2
    generator = torch.Generator(device=timing.DEVICE)
    generator.manual_seed(params["seed"])
    count = timing.num_buffers(min_bytes, l2_bytes=l2_bytes)
    pairs = [check.make_inputs(rows, hidden, dtype, device=timing.DEVICE, generator=generator) for _ in range(count)]
    xs, w = [x for x, _ in pairs], pairs[0][1]
    outs = [torch.empty_like(x) for x in xs]
    calls: dict[str, timing.Call] = {
        "copy": lambda i: outs[i % count].copy_(xs[i % count]),
        "copy again": lambda i: outs[i % count].copy_(xs[i % count]),
        "report": lambda i: rmsnorm_report(xs[i % count], w, eps=eps, out=outs[i % count]),
    }
    if with_compile:
        try:
            compiled = baselines.FreshCompile(xs[0], w, eps)
            calls["compile"] = lambda i: compiled(xs[i % count], w, eps)
        except Exception as error:  # tuning is still useful without this baseline
            print(f"compile refused: {error}", flush=True)
    configs: dict[str, Config] = {}
    bad: dict[str, int] = {}
    for config in candidates(hidden):
        label = config.label()
        if label in broken or not fits(config, xs[0], outs[0]):
            continue
        target = check.PoisonedOutput(min(rows, 2048), hidden, dtype, device=timing.DEVICE)
        rmsnorm_fast(xs[0][: target.out.shape[0]], w, eps=eps, out=target.out, config=config)
        seen = check.compare(target.out, xs[0][: target.out.shape[0]], w, eps=eps)
        bad[label] = seen["num_bad"] + target.unwritten() + target.guards_touched()
        configs[label] = config
        calls[label] = lambda i, config=config: rmsnorm_fast(
            xs[i % count], w, eps=eps, out=outs[i % count], config=config
        )
    timing.warm_up(calls, repeats=2)
    cold = timing.cold_samples(calls, rounds=params["tune_rounds"], flush=flush)
    per_sample = timing.calls_per_sample(min_bytes, l2_bytes=l2_bytes)
    graphs = {name: timing.capture(call, per_sample, is_rotating=True) for name, call in calls.items()}
    graph = timing.graph_samples(graphs, rounds=params["tune_rounds"], calls_in=dict.fromkeys(graphs, per_sample))
    rows_out = [
        {"label": name, "config": asdict(configs[name]) if name in configs else None, "num_bad": bad.get(name),
         "cold_ms": median(cold[name]), "graph_ms": median(graph[name]), "cold": [round(v, 6) for v in cold[name]]}
        for name in calls
    ]  # fmt: skip
    return {"min_bytes": min_bytes, "calls_per_sample": per_sample, "rows": rows_out}


def show(text: str, found: dict[str, Any], *, top: int = 7) -> None:
    """Print the best candidates of a shape beside the baselines: fraction of copy_, cold and by graph replay."""
    rows = {row["label"]: row for row in found["rows"]}
    copy = rows["copy"]
    print(f"\n{text}: copy_ cold {copy['cold_ms'] * 1e3:.1f} us, graph {copy['graph_ms'] * 1e3:.1f} us, "
          f"{found['min_bytes'] / copy['cold_ms'] / 1e9:.2f} TB/s cold", flush=True)  # fmt: skip
    cold = {label: copy["cold_ms"] / row["cold_ms"] for label, row in rows.items()}
    graph = {label: copy["graph_ms"] / row["graph_ms"] for label, row in rows.items()}
    ranked = sorted((label for label in rows if rows[label]["config"]), key=lambda name: -cold[name] - graph[name])
    for label in ["copy again", "report", "compile", *ranked[:top]]:
        if label in rows:
            bad = rows[label]["num_bad"]
            print(f"  {label:34s} cold {cold[label]:.3f}  graph {graph[label]:.3f}  bad {bad}", flush=True)

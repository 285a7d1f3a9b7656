"""Check and time RMSNorm kernels of the given shapes on this process's GPU, or check them on the CPU's interpreter.

    python -m labkit.workers.rmsnorm_bench --run-dir D        # reads D/params.json, writes D/rank<k>.jsonl

Modes: `bench` checks every shape against float64 and, on a GPU, times all providers; `tune` times the candidate
configurations and writes tune.json and grad_tune.json. Lines written, by "kind": device, check, canary, floor, timing,
profile, compile, recheck, refusal, tune, and those of rmsnorm_grad_bench and rmsnorm_grad_shape. Ranks are independent:
each uses its own GPU and there is no process group.
Exits non-zero when a check fails, after writing every line.
"""

from __future__ import annotations

import argparse
import json
import os
import time
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.elastic.multiprocessing.errors import record

from labkit.workers.json_lines import JsonLines

if TYPE_CHECKING:
    from labkit.workers.rmsnorm_grad_bench import Case

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}


def parse_shape(text: str) -> tuple[int, int, torch.dtype]:
    """`1024x768` (fp16, as in the report), `1024x768 bf16` or `1024x768 fp32` -> rows, hidden, dtype."""
    size, _, name = text.partition(" ")
    rows, hidden = (int(part) for part in size.split("x"))
    return rows, hidden, DTYPES[name or "fp16"]


def forward_cases(params: dict[str, Any], device: str) -> Iterator[Case]:
    """Every shape, both kernels: fresh inputs, poisoned output, float64 bound; then the edge cases and canaries."""
    from labkit.workers import rmsnorm_check as check
    from labkit.workers.rmsnorm_fast import rmsnorm_fast, rmsnorm_report

    generator = torch.Generator(device=device)
    generator.manual_seed(params["seed"] + int(os.environ.get("RANK", "0")))
    both = {"report": rmsnorm_report, "fast": rmsnorm_fast}
    common = {"device": device, "generator": generator, "eps": params["eps"]}
    for text in params["shapes"]:
        rows, hidden, dtype = parse_shape(text)
        used = min(rows, params["max_rows"]) if params["max_rows"] else rows
        for name, kernel in both.items():
            told = {"shape": text, "rows_checked": used}
            yield "check", name, partial(check.check_case, kernel, used, hidden, dtype, **common), told
    for case, (rows, hidden, name, extra) in edge_cases().items():
        told = {"shape": f"{rows}x{hidden} {name}", "case": case, "rows_checked": rows}
        for kernel_name, kernel in both.items():
            run = partial(check.check_case, kernel, rows, hidden, DTYPES[name], **common, **extra)
            yield "check", kernel_name, run, told
    for name, dtype in list(DTYPES.items())[:2]:
        for hidden in (64, 500):
            for kernel_name, kernel in both.items():
                run = partial(check.check_canaries, kernel, hidden, dtype, **common)
                yield "canary", kernel_name, run, {"hidden": hidden, "dtype": name}
    yield from config_cases(common)
    wide = partial(rmsnorm_report, block=4096)
    told = {"shape": "5x769 fp16", "case": "block four times too wide", "rows_checked": 5}
    yield "check", "report", partial(check.check_case, wide, 5, 769, torch.float16, **common), told


def edge_cases() -> dict[str, tuple[int, int, str, dict[str, Any]]]:
    """Name -> rows, hidden, dtype, options: what a shape table does not reach."""
    return {
        "one row": (1, 768, "fp16", {}),
        "one element": (3, 1, "fp16", {}),
        "odd hidden": (9, 769, "fp16", {}),
        "odd hidden, wide": (3, 4095, "bf16", {}),
        "prime hidden": (33, 257, "bf16", {}),
        "just over a block": (5, 2049, "fp16", {}),
        "rows in a wider tensor": (7, 640, "fp16", {"row_stride": 1024}),
        "rows in a wider tensor, odd stride": (7, 640, "bf16", {"row_stride": 643}),
        "misaligned start": (7, 512, "fp16", {"offset": 3}),
        "large magnitude: squares overflow fp16": (4, 1000, "fp16", {"scale": 8000.0}),
        "small magnitude: eps matters": (4, 1000, "bf16", {"scale": 1e-4}),
    }


def config_cases(common: dict[str, Any]) -> Iterator[Case]:
    """Each kernel shape of the fast kernel by name, aligned and odd, whatever `choose` would pick."""
    from labkit.workers import rmsnorm_check as check
    from labkit.workers.rmsnorm_fast import Config, rmsnorm_fast

    cases = [
        (Config("tile", 256, num_warps=4, rows=4), 11, 200, {}),
        (Config("persistent", 512, num_warps=4, rows=2, stages=2, per_sm=2), 19, 512, {}),
        (Config("persistent", 512, num_warps=4, rows=1, stages=3, per_sm=1), 19, 333, {"row_stride": 345}),
        (Config("loop", 128, num_warps=4, evict_y=""), 5, 700, {}),
        (Config("shifted", 512, num_warps=4, stages=2, per_sm=4), 37, 333, {}),
        (Config("shifted", 128, num_warps=4, per_sm=4, group=8), 21, 99, {}),
        (Config("shifted", 256, num_warps=4, per_sm=8), 23, 263, {}),
        (Config("shifted", 512, num_warps=4, per_sm=8), 23, 400, {"row_stride": 403}),
        (Config("loop", 256, num_warps=1, evict_y=""), 5, 520, {"row_stride": 536}),
    ]
    for config, rows, hidden, extra in cases:
        for name, dtype in list(DTYPES.items())[:2]:
            kernel = partial(rmsnorm_fast, config=config)
            run = partial(check.check_case, kernel, rows, hidden, dtype, **common, **extra)
            told = {"shape": f"{rows}x{hidden} {name}", "case": config.label(), "rows_checked": rows}
            yield "check", config.kind, run, told


@record
def main() -> None:
    """Entry point; see the module docstring."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--run-dir", type=Path, required=True)
    run_dir = parser.parse_args().run_dir
    params = json.loads((run_dir / "params.json").read_text(encoding="utf-8"))
    rank, local_rank = int(os.environ.get("RANK", "0")), int(os.environ.get("LOCAL_RANK", "0"))
    device = params["device"]
    if device == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported
        # The canary rows hold NaN and infinity on purpose.
        warnings.filterwarnings("ignore", category=RuntimeWarning, module="triton.runtime.interpreter")
    else:
        torch.cuda.set_device(local_rank)
    started = time.perf_counter()
    with open(run_dir / f"rank{rank}.jsonl", "w", encoding="utf-8") as stream, torch.no_grad():
        lines = JsonLines(stream)
        lines.write("device", rank=rank, **describe_device(device))
        if params["mode"] == "tune":
            from labkit.workers.rmsnorm_grad_tune import tune_backward
            from labkit.workers.rmsnorm_tune import tune

            if params.get("tune_shapes"):
                tune(params, lines, run_dir)
            tune_backward(params, lines, run_dir)
        else:
            if params["process"] == 0:  # later processes only time, and check what they timed
                if device == "cuda":
                    from labkit.workers.rmsnorm_baselines import warm_compiler
                    from labkit.workers.rmsnorm_warm import warm_in_parallel

                    print(f"warmed in {warm_in_parallel(run_dir, warm_compiler):.1f} s", flush=True)
                for kind, what, run, told in all_cases(params, device):
                    lines.judge_counts(kind, what, run(), **told)
                print(f"checks done after {time.perf_counter() - started:.1f} s", flush=True)
            if device == "cuda":
                from labkit.workers.rmsnorm_shape import time_shapes

                time_shapes(params, lines)
                if params["backward_shapes"] or params["wide_shapes"]:
                    from labkit.workers.rmsnorm_grad_shape import time_parts

                    time_parts(params, lines)
        lines.write("done", wall_s=time.perf_counter() - started)
    print(f"done after {time.perf_counter() - started:.1f} s", flush=True)
    if lines.failed:
        raise AssertionError(f"{len(lines.failed)} checks failed, first: {lines.failed[0]}")


def all_cases(params: dict[str, Any], device: str) -> Iterator[Case]:
    """Every check of a run, forward first; gradients where `widths` asks for them."""
    from labkit.workers.rmsnorm_grad_bench import gradient_cases

    yield from forward_cases(params, device)
    if params["widths"]:
        yield from gradient_cases(params, device)


def describe_device(device: str) -> dict[str, Any]:
    """Name, L2 size and multiprocessor count of the GPU; versions of torch and Triton."""
    import triton

    seen: dict[str, Any] = {"torch": torch.__version__, "triton": triton.__version__, "device": device}
    if device == "cuda":
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        seen |= {"name": properties.name, "index": torch.cuda.current_device(), "l2_bytes": properties.L2_cache_size,
                 "num_sms": properties.multi_processor_count, "cc": [properties.major, properties.minor]}  # fmt: skip
    return seen


if __name__ == "__main__":
    main()

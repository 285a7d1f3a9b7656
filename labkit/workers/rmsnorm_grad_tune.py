"""Time the candidate configurations of the backward pass and of the two-pass kernels on this GPU.

Run through rmsnorm_bench with mode `tune`: reads `grad_tune_shapes`, `wide_tune_shapes` and `tune_rounds`, prints a
table for each shape and writes grad_tune.json: every candidate with the median of calls after an L2 flush, beside copy_
of as many bytes.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

import torch

from labkit.workers import rmsnorm_grad as grad
from labkit.workers import rmsnorm_grad_check as check
from labkit.workers import rmsnorm_timing as timing
from labkit.workers import rmsnorm_wide as wide
from labkit.workers.json_lines import JsonLines
from labkit.workers.rmsnorm_fast import Config, rmsnorm_fast


def grad_candidates(hidden: int, *, vector: int = 8) -> list[grad.GradConfig]:
    """Backward configurations worth timing for a row length (elements of 2 bytes)."""
    found = []
    if hidden % vector:
        block = 1 << (hidden // vector * vector - 1).bit_length()
        shapes = [("shifted", 1, True)]
        groups = (0, vector)
    else:
        block = 1 << (hidden - 1).bit_length()
        tall = (1, 4) if block <= 1024 else (1, 2) if block == 2048 else (1,)
        shapes = [("grad", rows, keep) for rows in tall for keep in ((True, False) if block >= 8192 else (True,))]
        groups = (0, 1)
    for kind, rows, keep in shapes:
        for per_thread in (8, 16, 32):
            warps = block * rows // (32 * per_thread)
            if not 1 <= warps <= 32:
                continue
            for stages in (1, 2, 3):
                for group in groups:
                    for per_sm in (1, 2, 4, 8, 16, 32):
                        if 16 <= per_sm * warps <= (64 if group == 0 else 128):
                            found.append(grad.GradConfig(kind, block, num_warps=warps, rows=rows, stages=stages,
                                                         per_sm=per_sm, group=group, keep_w=keep))  # fmt: skip
    return found


def wide_candidates() -> list[wide.WideConfig]:
    """Two-pass configurations worth timing."""
    forward = [wide.WideConfig(block=block, chunks=chunks, num_warps=warps) for block in (2048, 4096, 8192)
               for chunks in (1, 2, 4) for warps in (4, 8, 16) if block // warps in (512, 1024)]  # fmt: skip
    backward = [wide.WideConfig(grad_block=b, grad_warps=b // (32 * per_thread), grad_stages=stages, per_sm=per_sm)
                for b in (1024, 2048, 4096) for per_thread in (8, 16) for stages in (1, 2, 3)
                for per_sm in (4, 8, 16)]  # fmt: skip
    return list(dict.fromkeys([wide.WideConfig(), *forward, *backward]))


def _compile(job: tuple[str, int, dict[str, Any]]) -> str:
    """Compile one configuration in this process (Triton's disk cache keeps it); returns an error line or ''."""
    kind, hidden, values = job
    try:
        x = torch.zeros(1024, hidden, dtype=torch.bfloat16, device=timing.DEVICE)
        w, rstd = torch.zeros_like(x[0]), torch.ones(1024, device=timing.DEVICE)
        if kind == "grad":
            grad.rmsnorm_backward(x, x, w, rstd, dx=torch.empty_like(x), config=grad.GradConfig(**values))
        else:
            config = wide.WideConfig(**values)
            wide.rmsnorm_wide(x, w, out=torch.empty_like(x), config=config)
            wide.run_wide_grad(x, x, w, rstd, torch.empty_like(x), torch.empty_like(w), config=config)
        torch.cuda.synchronize()
    except Exception as error:  # a candidate that does not compile here is left out
        return f"{type(error).__name__}: {str(error).strip()[:200]}".splitlines()[0]
    return ""


def tune_backward(params: dict[str, Any], lines: JsonLines, run_dir: Path) -> None:
    """Compile every candidate in parallel, check each, time all of them interleaved, write grad_tune.json."""
    from labkit.workers.rmsnorm_bench import parse_shape

    grads = {text: parse_shape(text) for text in params.get("grad_tune_shapes", [])}
    wides = {text: parse_shape(text) for text in params.get("wide_tune_shapes", [])}
    jobs = [("grad", hidden, config.to_dict()) for hidden in sorted({shape[1] for shape in grads.values()})
            for config in grad_candidates(hidden)]  # fmt: skip
    # Programs per multiprocessor only set the grid: nothing new to compile.
    jobs = list({json.dumps((kind, hidden, {**values, "per_sm": 0})): (kind, hidden, values)
                 for kind, hidden, values in jobs}.values())  # fmt: skip
    jobs += [("wide", hidden, config.to_dict()) for hidden in sorted({shape[1] for shape in wides.values()})
             for config in wide_candidates() if config.per_sm == 8]  # fmt: skip
    began = time.perf_counter()
    with ProcessPoolExecutor(max(1, min(14, (os.cpu_count() or 2) - 1)), mp_context=get_context("spawn")) as pool:
        errors = [error for error in pool.map(_compile, jobs, chunksize=2) if error]
    print(f"{len(jobs)} candidates compiled in {time.perf_counter() - began:.1f} s, {len(errors)} refused "
          f"{errors[:1]}", flush=True)  # fmt: skip
    flush = timing.Flush(torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size)
    timing.spin_up()
    result: dict[str, Any] = {}
    for text, (rows, hidden, dtype) in [*grads.items(), *wides.items()]:
        try:
            case = _Case(rows, hidden, dtype, params)
            for title, calls in (case.backward(), case.wide(), case.forward()):
                if (title == "backward") == (text in grads):
                    result[f"{title} {text}"] = _time(f"{title} {text}", calls, case, params, flush)
            del case
        except Exception as error:  # keep what the other shapes gave
            lines.refuse("tune", error, shape=text)
            print(f"{text}: {type(error).__name__}: {error}", flush=True)
        torch.cuda.empty_cache()
        (run_dir / "grad_tune.json").write_text(json.dumps(result, allow_nan=False), encoding="utf-8")
    lines.write("grad_tune", path="grad_tune.json", wall_s=time.perf_counter() - began)


class _Case:
    """Tensors of one shape and the calls of every candidate on them."""

    def __init__(self, rows: int, hidden: int, dtype: torch.dtype, params: dict[str, Any]) -> None:
        generator = torch.Generator(device=timing.DEVICE)
        generator.manual_seed(params["seed"])
        self.eps = params["eps"]
        self.dy, self.x, self.w, self.rstd = check.make_case(rows, hidden, dtype, device=timing.DEVICE,
                                                             generator=generator, eps=self.eps)  # fmt: skip
        self.out, self.dw = torch.empty_like(self.x), torch.empty_like(self.w)
        self.want, self.terms, _ = check.gradients(self.dy[:64], self.x[:64], self.w, eps=self.eps)

    def backward(self) -> tuple[str, dict[str, Callable[[], Any]]]:
        run = partial(grad.rmsnorm_backward, self.dy, self.x, self.w, self.rstd, dx=self.out, dw=self.dw)
        hidden = self.x.shape[1]
        if hidden > grad.ONE_PASS_HIDDEN:
            return "backward", {}
        return "backward", {c.label(): partial(run, config=c) for c in grad_candidates(hidden)
                            if grad.fits_grad(c, self.x, self.dy, self.out)}  # fmt: skip

    def wide(self) -> tuple[str, dict[str, Callable[[], Any]]]:
        return "two-pass backward", {
            c.label(): partial(wide.run_wide_grad, self.dy, self.x, self.w, self.rstd, self.out, self.dw, config=c)
            for c in wide_candidates()
        }

    def forward(self) -> tuple[str, dict[str, Callable[[], Any]]]:
        found: dict[str, Callable[[], Any]] = {
            c.label(): partial(wide.rmsnorm_wide, self.x, self.w, eps=self.eps, out=self.out, rstd=self.rstd, config=c)
            for c in wide_candidates() if c.grad_block == 2048 and c.grad_warps == 4 and c.per_sm == 8
        }  # fmt: skip
        for block, warps in ((8192, 32), (8192, 16), (4096, 16)):
            config = Config("loop", block, num_warps=warps, evict_y="")
            found[f"one program a row: {config.label()}"] = partial(
                rmsnorm_fast, self.x, self.w, eps=self.eps, out=self.out, config=config
            )
        return "two-pass forward", found

    def is_wrong(self, title: str) -> bool:
        """Of the last call: dx or y of 64 rows outside its bound."""
        if "forward" in title:
            from labkit.workers.rmsnorm_check import compare

            return compare(self.out[:64], self.x[:64], self.w, eps=self.eps)["num_bad"] > 0
        bound = check.dx_bound(self.dy[:64], self.x[:64], self.w, eps=self.eps)
        return not bool(((self.out[:64].double() - self.want).abs() <= bound).all())


def _time(
    title: str, calls: dict[str, Callable[[], Any]], case: _Case, params: dict[str, Any], flush: timing.Flush
) -> dict[str, Any]:
    """Medians of every call beside copy_, printed as a table, best first."""
    moves = 2 if "forward" in title else 3
    source = torch.empty(case.x.numel() * moves // 2, dtype=case.x.dtype, device=timing.DEVICE)
    target = torch.empty_like(source)
    bad = set()
    timed: dict[str, timing.Call] = {
        "copy": lambda _: target.copy_(source), "copy again": lambda _: target.copy_(source),
    }  # fmt: skip
    for name, call in calls.items():
        try:
            case.out.fill_(float("nan"))
            call()
            torch.cuda.synchronize()
        except Exception as error:  # too many registers, too much shared memory
            print(f"  {title}: {name}: {type(error).__name__}: {str(error)[:100]}", flush=True)
            continue
        if case.is_wrong(title):
            bad.add(name)
        timed[name] = lambda _, call=call: call()
    samples: dict[str, list[float]] = {}
    names = [name for name in timed if not name.startswith("copy")]
    for first in range(0, len(names), 10):  # few at a time: the host must stay ahead of the GPU
        part = {name: timed[name] for name in ("copy", "copy again", *names[first : first + 10])}
        for name, values in timing.cold_samples(part, rounds=params["tune_rounds"], flush=flush).items():
            samples.setdefault(name, []).extend(values)
    found = {name: median(values) for name, values in samples.items()}
    copy = found["copy"]
    moved = case.x.numel() * case.x.element_size() * moves
    print(f"\n{title}: copy_ of as many bytes {copy * 1e3:.1f} us, {moved / copy / 1e9:.2f} TB/s; "
          f"copy again {copy / found['copy again']:.3f}", flush=True)  # fmt: skip
    ranked = sorted((name for name in found if not name.startswith("copy")), key=lambda name: found[name])
    for name in [*ranked[:10], *ranked[-1:]]:
        print(f"  {name:46s} {found[name] * 1e3:9.1f} us  {copy / found[name]:.3f} of copy_"
              f"{'  WRONG' if name in bad else ''}", flush=True)  # fmt: skip
    return {"bytes": moved, "ms": {name: round(value, 6) for name, value in found.items()}, "wrong": sorted(bad)}

"""Real kernels for Nsight Compute to count, each after a marker kernel, or timed without it.

    python -m labkit.workers.counted_kernels --run-dir D        # reads D/params.json, writes D/rank0.jsonl

`workloads` is a list of {"name", "op", ...}: op copy, copy_evict_first, copy_again, memcpy, report, fast, native or
compile (with `rows`, `hidden`, for report `num_warps`, for copy_again `passes`), or gemm (with `m`, `n`, `k`). Modes:
`time` measures single calls after an L2 flush, and calls replayed back to back; `count` makes `calls` calls between
cudaProfilerStart and cudaProfilerStop. A marker, `empty_kernel`, goes before each workload whose number of kernels is
not ours to know, and before the one after it: the tool's table is cut there. Outputs are checked in every mode. Lines
written, by "kind": device, profiled, timing, check, refusal, done. Exits non-zero when a check fails.
"""

# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false
# (Triton's annotations describe the compiler's values, not what a caller passes)
from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch.distributed.elastic.multiprocessing.errors import record

from labkit.workers import rmsnorm_baselines as baselines
from labkit.workers import rmsnorm_check as check
from labkit.workers import rmsnorm_kernels as kernels
from labkit.workers import rmsnorm_timing as timing
from labkit.workers.json_lines import JsonLines
from labkit.workers.rmsnorm_bench import describe_device
from labkit.workers.rmsnorm_fast import num_multiprocessors, rmsnorm_fast
from labkit.workers.session import read_params

Call = Callable[[], torch.Tensor]
OWN = ("copy", "copy_evict_first", "copy_again", "report", "fast")
"""Ops that launch exactly one kernel of ours a call."""
COPY_BLOCK = 4096
PROGRAMS_PER_SM = 8
CALLS_IN_A_GRAPH = 8


@triton.jit
def copy_elements(x_ptr, y_ptr, num_elements, BLOCK: tl.constexpr, EVICT_X: tl.constexpr):
    """Copy x to y; EVICT_X may mark the lines that were read as the first to leave the cache."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = at < num_elements
    tl.store(y_ptr + at, tl.load(x_ptr + at, mask=mask, eviction_policy=EVICT_X), mask=mask)


@triton.jit
def copy_elements_again(x_ptr, y_ptr, num_elements, PASSES: tl.constexpr, BLOCK: tl.constexpr):
    """Copy x to y several times in one launch; loads pass by L1, so that only L2 can remember the pass before."""
    for _ in range(PASSES):
        for block in range(tl.program_id(0), tl.cdiv(num_elements, BLOCK), tl.num_programs(0)):
            at = tl.cast(block, tl.int64) * BLOCK + tl.arange(0, BLOCK)
            mask = at < num_elements
            tl.store(y_ptr + at, tl.load(x_ptr + at, mask=mask, cache_modifier=".cg"), mask=mask)


def again_call(x: torch.Tensor, out: torch.Tensor, passes: int) -> torch.Tensor:
    """`passes` copies in one launch of as many programs as the GPU holds at a time."""
    grid = (PROGRAMS_PER_SM * num_multiprocessors(x),)
    copy_elements_again[grid](x, out, x.numel(), PASSES=passes, BLOCK=COPY_BLOCK)
    return out


def copy_call(x: torch.Tensor, out: torch.Tensor, evict_x: str) -> torch.Tensor:
    """Copy with our kernel: `Tensor.copy_` is a memory copy of the driver, which the tool does not count."""
    copy_elements[(triton.cdiv(x.numel(), COPY_BLOCK),)](x, out, x.numel(), BLOCK=COPY_BLOCK, EVICT_X=evict_x)
    return out


def report_call(x: torch.Tensor, w: torch.Tensor, out: torch.Tensor, eps: float, num_warps: int) -> torch.Tensor:
    """The V100 report's RMSNorm kernel with a given number of warps a program."""
    rows, hidden = x.shape
    kernels.rmsnorm_report[(rows,)](x, w, out, x.stride(0), out.stride(0), hidden, eps,
                                    BLOCK=triton.next_power_of_2(hidden), num_warps=num_warps)  # fmt: skip
    return out


class Case:
    """One workload: its tensors, its call, and whether what the call wrote is right."""

    def __init__(self, spec: dict[str, Any], *, eps: float, generator: torch.Generator) -> None:
        self.spec, self.eps, self.op = spec, eps, spec["op"]
        device = str(generator.device)
        if self.op == "gemm":
            m, n, k = (spec[name] for name in "mnk")
            self.a = torch.randn(m, k, generator=generator, device=device).to(torch.bfloat16)
            # Laid out as a linear layer's weight: n rows of k.
            self.b = torch.randn(n, k, generator=generator, device=device).to(torch.bfloat16)
            self.out = torch.empty(m, n, dtype=torch.bfloat16, device=device)
        else:
            self.x, self.w = check.make_inputs(spec["rows"], spec["hidden"], torch.float16, device=device,
                                               generator=generator)  # fmt: skip
            self.out = torch.empty_like(self.x)
        self.call = self.make_call()

    def make_call(self) -> Call:
        """The workload as a function that gives its output."""
        if self.op == "gemm":
            return lambda: torch.matmul(self.a, self.b.t(), out=self.out)
        if self.op in ("copy", "copy_evict_first"):
            evict = "evict_first" if self.op == "copy_evict_first" else ""
            return lambda: copy_call(self.x, self.out, evict)
        if self.op == "copy_again":
            return lambda: again_call(self.x, self.out, self.spec["passes"])
        if self.op == "memcpy":
            return lambda: self.out.copy_(self.x)
        if self.op == "report":
            return lambda: report_call(self.x, self.w, self.out, self.eps, self.spec["num_warps"])
        if self.op == "fast":
            return lambda: rmsnorm_fast(self.x, self.w, eps=self.eps, out=self.out)
        if self.op == "native":
            return lambda: baselines.native(self.x, self.w, self.eps)
        if self.op == "compile":
            compiled = baselines.FreshCompile(self.x, self.w, self.eps)
            return lambda: compiled(self.x, self.w, self.eps)
        raise ValueError(f"op={self.op!r}: expected one of the ops in this module's docstring")

    def judge(self) -> dict[str, Any]:
        """Counts of wrong elements of one fresh output; a baseline's RMSNorm may round twice, so its count is shown."""
        self.out.fill_(float("nan"))
        out = self.call()
        if self.op == "gemm":
            rows = slice(0, min(16, self.a.shape[0]))
            wanted = self.a[rows].double() @ self.b.double().t()
            # One rounding to bf16 (half of 2^-8), and FP32 sums of k products of N(0, 1): 0.05 is far above them.
            bad = ~((out[rows].double() - wanted).abs() <= 2.0**-8 * wanted.abs() + 0.05)
            return {"num_bad": int(bad.sum()) + int(out.isnan().sum())}
        if self.op in ("copy", "copy_evict_first", "copy_again", "memcpy"):
            return {"num_bad": int((out != self.x).sum())}
        seen = check.compare(out, self.x, self.w, eps=self.eps)
        if self.op in ("native", "compile"):
            return {"baseline_num_bad": seen["num_bad"], "bound_used": seen["bound_used"], "num_bad": 0}
        return {"num_bad": seen["num_bad"], "bound_used": seen["bound_used"]}


def time_case(case: Case, *, rounds: int, flush: timing.Flush) -> dict[str, list[float]]:
    """Samples in ms: `cold`, one call after a flush; `steady`, one of many on the same buffers, by graph replay."""
    call: dict[str, timing.Call] = {"it": lambda _: case.call()}
    timing.warm_up(call)
    found = {"cold": timing.cold_samples(call, rounds=rounds, flush=flush)["it"]}
    graphs = {"it": timing.capture(call["it"], CALLS_IN_A_GRAPH, is_rotating=False)}
    found["steady"] = timing.graph_samples(graphs, rounds=rounds, calls_in={"it": CALLS_IN_A_GRAPH})["it"]
    return found


def count_case(case: Case, marker: torch.Tensor | None, *, calls: int, lines: JsonLines) -> None:
    """The marker if there is one, and then the calls, with nothing else between the profiler's start and stop."""
    for _ in range(3):
        case.call()
    torch.cuda.synchronize()
    lines.write("profiled", name=case.spec["name"], calls=calls, is_marked=marker is not None)
    torch.cuda.profiler.start()
    if marker is not None:
        kernels.empty_kernel[(1,)](marker)
    for _ in range(calls):
        case.call()
    torch.cuda.synchronize()
    torch.cuda.profiler.stop()


def run_cases(params: dict[str, Any], lines: JsonLines) -> None:
    """Every workload; one that cannot be made is refused and the next one runs."""
    # Split sums of a small product are added in FP32, not in bf16: then one error bound fits every kernel.
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    generator = torch.Generator(device=timing.DEVICE)
    generator.manual_seed(params["seed"] + params["process"])
    marker = torch.zeros(1, device=timing.DEVICE)
    kernels.empty_kernel[(1,)](marker)
    timing.spin_up()
    is_timing = params["mode"] == "time"
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    flush = timing.Flush(properties.L2_cache_size) if is_timing else None
    was_own = False
    for spec in params["workloads"]:
        began, name = time.perf_counter(), spec["name"]
        try:
            case = Case(spec, eps=params["eps"], generator=generator)
            case.call()
            torch.cuda.synchronize()
        except Exception as error:  # one workload (out of memory, a compiler that fails) must not lose the others
            lines.refuse("workload", error, name=name)
            continue
        if flush is None:
            is_own = case.op in OWN
            count_case(case, None if is_own and was_own else marker, calls=params["calls"], lines=lines)
            was_own = is_own
        else:
            try:
                for kind, values in time_case(case, rounds=params["rounds"], flush=flush).items():
                    lines.write("timing", name=name, mode=kind, ms=[round(value, 6) for value in values])
            except Exception as error:  # graph capture, say
                lines.refuse("timing", error, name=name)
        lines.judge_counts("check", name, case.judge())
        torch.cuda.synchronize()
        del case
        gc.collect()
        torch.cuda.empty_cache()
        print(f"{params['mode']}: {name} in {time.perf_counter() - began:.1f} s", flush=True)


@record
def main() -> None:
    """Entry point; see the module docstring."""
    run_dir, params = read_params()
    began = time.perf_counter()
    with open(run_dir / "rank0.jsonl", "w", encoding="utf-8") as stream, torch.no_grad():
        lines = JsonLines(stream)
        lines.write("device", **describe_device("cuda"))
        run_cases(params, lines)
        lines.write("done", wall_s=time.perf_counter() - began)
    if lines.failed:
        raise AssertionError(f"{len(lines.failed)} checks failed, first: {lines.failed[0]}")


if __name__ == "__main__":
    main()

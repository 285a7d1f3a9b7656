"""Time the report's RMSNorm kernel by num_warps on a GPU, and one machine code at fewer and fewer resident blocks.

    python -m labkit.workers.warp_sweep --run-dir D           # reads D/params.json, writes D/rank0.jsonl

Two experiments, each interleaved with a copy. `w1`, `w2`, ...: the kernel compiled for that many warps, as the report
did. Then `w4 b2`: the cubin of `w4`, launched with as much unused dynamic shared memory as leaves room for two blocks
on an SM: same code, same bytes, lower occupancy. Lines by "kind": device, kernel (the driver's view of each cubin),
dial, check, timing, refusal, done. Exits non-zero when an output is wrong. Needs CUDA.
"""

# pyright: reportArgumentType=false, reportCallIssue=false
# (Triton's annotations describe the compiler's values, not what a caller passes)
from __future__ import annotations

import argparse
import ctypes
import json
import os
import time
from pathlib import Path
from typing import Any

import torch
import triton

from labkit.workers import rmsnorm_check as check
from labkit.workers import rmsnorm_kernels as kernels
from labkit.workers import rmsnorm_timing as timing
from labkit.workers.cuda_driver import Driver, pack
from labkit.workers.json_lines import JsonLines

DTYPE = torch.float16


def shared_for_blocks(blocks: int, limits: dict[str, int]) -> int:
    """Dynamic shared memory with which an SM holds this many blocks and no more, bytes.

    >>> shared_for_blocks(2, {"shared_memory_per_sm_bytes": 233472, "reserved_shared_memory_bytes": 1024,
    ...                       "shared_memory_per_block_bytes": 232448})
    115712
    """
    share = limits["shared_memory_per_sm_bytes"] // blocks // 128 * 128 - limits["reserved_shared_memory_bytes"]
    return min(share, limits["shared_memory_per_block_bytes"])


class Sweep:
    """Buffers, kernels and calls of one row length."""

    def __init__(self, hidden: int, params: dict[str, Any], lines: JsonLines, driver: Driver, limits: dict[str, int],
                 l2_bytes: int) -> None:  # fmt: skip
        self.hidden, self.params, self.lines, self.driver, self.limits = hidden, params, lines, driver, limits
        self.rows, self.eps, self.block = params["rows"], params["eps"], triton.next_power_of_2(hidden)
        min_bytes = (2 * self.rows * hidden + hidden) * 2
        self.per_sample = timing.calls_per_sample(min_bytes, l2_bytes=l2_bytes)
        count = timing.num_buffers(min_bytes, l2_bytes=l2_bytes)
        generator = torch.Generator(device=timing.DEVICE)
        generator.manual_seed(params["seed"] + 1000 * params["process"])
        made = [check.make_inputs(self.rows, hidden, DTYPE, device=timing.DEVICE, generator=generator)
                for _ in range(count)]  # fmt: skip
        self.xs, self.w = [x for x, _ in made], made[0][1]
        self.targets = [check.PoisonedOutput(self.rows, hidden, DTYPE, device=timing.DEVICE) for _ in range(count)]
        self.calls: dict[str, timing.Call] = {}

    def add_copy(self, name: str) -> None:
        """A copy of the same buffers, to compare with."""
        xs, outs = self.xs, [target.out for target in self.targets]
        self.calls[name] = lambda i: outs[i % len(outs)].copy_(xs[i % len(xs)])

    def add_warps(self, num_warps: int) -> None:
        """The kernel for one num_warps, launched by Triton as the report did."""
        try:
            kernel: Any = self.launch(num_warps, 0)
            torch.cuda.synchronize()
            function, told = self.loaded(kernel)
            blocks, _ = self.driver.max_blocks(function, threads=32 * num_warps, dynamic_bytes=kernel.metadata.shared)
            self.lines.write("kernel", hidden=self.hidden, num_warps=num_warps, blocks_per_sm=blocks,
                             dynamic_shared_bytes=kernel.metadata.shared, registers=told["registers"],
                             local_bytes=told["local_bytes"], triton_registers=kernel.n_regs,
                             triton_spills=kernel.n_spills)  # fmt: skip
        except Exception as error:  # one setting that does not compile or launch must not lose the others
            self.lines.refuse("num_warps", error, hidden=self.hidden, num_warps=num_warps)
            return
        self.calls[f"w{num_warps}"] = lambda i: self.launch(num_warps, i)

    def loaded(self, kernel: Any) -> tuple[ctypes.c_void_p, dict[str, int]]:
        """A kernel's cubin loaded once more, so that its settings leave Triton's own alone; and its attributes."""
        function = self.driver.function(self.driver.load(kernel.asm["cubin"]), kernel.metadata.name)
        return function, self.driver.function_attributes(function)

    def launch(self, num_warps: int, index: int) -> Any:
        """One call through Triton; returns its compiled kernel."""
        x, out = self.xs[index % len(self.xs)], self.targets[index % len(self.xs)].out
        return kernels.rmsnorm_report[(self.rows,)](
            x, self.w, out, x.stride(0), out.stride(0), self.hidden, self.eps, BLOCK=self.block, num_warps=num_warps)

    def add_dial(self, num_warps: int) -> None:
        """One machine code at several numbers of resident blocks, launched by the driver; the last is its own."""
        kernel: Any = self.launch(num_warps, 0)
        torch.cuda.synchronize()
        own, threads = kernel.metadata.shared, 32 * num_warps
        function, _ = self.loaded(kernel)
        self.driver.allow_shared(function, self.limits["shared_memory_per_block_bytes"], carveout=True)
        most, _ = self.driver.max_blocks(function, threads=threads, dynamic_bytes=own)
        stream = torch.cuda.current_stream().cuda_stream
        packed = [self.arguments(i) for i in range(len(self.xs))]
        for blocks in [b for b in self.params["dial_blocks"] if b < most] + [most]:
            shared = own if blocks == most else max(own, shared_for_blocks(blocks, self.limits))
            seen, code = self.driver.max_blocks(function, threads=threads, dynamic_bytes=shared)
            name = f"w{num_warps} b{blocks}"
            self.lines.write("dial", name=name, hidden=self.hidden, num_warps=num_warps, blocks=blocks,
                             shared_bytes=shared, driver_blocks=seen, error=code)  # fmt: skip
            self.calls[name] = lambda i, shared=shared: self.driver.launch(
                function, blocks=self.rows, threads=threads, dynamic_bytes=shared, stream=stream,
                args=packed[i % len(packed)])

    def arguments(self, index: int) -> tuple[Any, list[Any]]:
        """Kernel arguments for the driver; the last two are scratch pointers that Triton adds, unused here."""
        x, out = self.xs[index], self.targets[index].out
        pointers = [ctypes.c_uint64(t.data_ptr()) for t in (x, self.w, out)]
        numbers = [ctypes.c_int32(n) for n in (x.stride(0), out.stride(0), self.hidden)]
        return pack([*pointers, *numbers, ctypes.c_float(self.eps), ctypes.c_uint64(0), ctypes.c_uint64(0)])

    def check_all(self) -> None:
        """Every call once into a poisoned output, against float64; outside the timed region."""
        for name, call in self.calls.items():
            if name.startswith("copy"):
                continue
            target = self.targets[0]
            target.poison()
            call(0)
            torch.cuda.synchronize()
            seen = check.compare(target.out, self.xs[0], self.w, eps=self.eps)
            seen |= {"unwritten": target.unwritten(), "guards_touched": target.guards_touched()}
            self.lines.judge_counts("check", name, seen, hidden=self.hidden)

    def time_all(self, flush: timing.Flush | None) -> None:
        """Stream samples of every call, cold ones too if there is a flush; each round starts at another call."""
        timing.warm_up(self.calls, repeats=20)
        rounds, counts = self.params["rounds"], dict.fromkeys(self.calls, self.per_sample)
        found = {"stream": timing.stream_samples(self.calls, rounds=rounds, per_sample=counts)}
        if flush is not None:
            found["cold"] = timing.cold_samples(self.calls, rounds=rounds, flush=flush)
        for mode, samples in found.items():
            for name, values in samples.items():
                self.lines.write("timing", mode=mode, name=name, hidden=self.hidden, ms=[round(v, 6) for v in values])


def run(params: dict[str, Any], lines: JsonLines) -> bool:
    """Both experiments for every row length, the first for all of them first; False if the second could not be done."""
    torch.cuda.set_device(0)
    properties = torch.cuda.get_device_properties(0)
    torch.empty(1, device=timing.DEVICE)  # makes the context that the driver calls use
    driver = Driver()
    limits = driver.device_attributes(driver.use_device(0))
    lines.write("device", name=properties.name, torch=torch.__version__, triton=triton.__version__,
                l2_bytes=properties.L2_cache_size, **limits)  # fmt: skip
    flush = timing.Flush(properties.L2_cache_size)
    timing.spin_up()
    common = (params, lines, driver, limits, properties.L2_cache_size)
    for hidden in params["hidden"]:
        sweep = Sweep(hidden, *common)
        for num_warps in params["num_warps"]:
            sweep.add_warps(num_warps)
        for name in ("copy", "copy_again"):
            sweep.add_copy(name)
        finish(sweep, flush)
    try:
        for hidden in params["hidden"] if params["dial_warps"] else ():
            sweep = Sweep(hidden, *common)
            for num_warps in params["dial_warps"]:
                sweep.add_dial(num_warps)
            sweep.add_copy("copy_dial")
            finish(sweep, None)
    except Exception as error:  # what was timed above stays good, whatever the driver thinks of these launches
        lines.refuse("dial", error)
        return False
    return True


def finish(sweep: Sweep, flush: timing.Flush | None) -> None:
    """Check every call of a sweep, time it, and give its memory back."""
    sweep.check_all()
    sweep.time_all(flush)
    print(f"progress: timed rows of {sweep.hidden}: {', '.join(sweep.calls)}", flush=True)
    sweep.calls.clear()
    torch.cuda.empty_cache()


def main() -> None:
    """Entry point; see the module docstring."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--run-dir", type=Path, required=True)
    run_dir = parser.parse_args().run_dir
    params = json.loads((run_dir / "params.json").read_text(encoding="utf-8"))
    began = time.perf_counter()
    with open(run_dir / "rank0.jsonl", "w", encoding="utf-8") as stream, torch.no_grad():
        lines = JsonLines(stream)
        is_whole = run(params, lines)
        lines.write("done", wall_s=time.perf_counter() - began)
    if not is_whole and not lines.failed:
        os._exit(0)  # after a failed launch even leaving would raise
        raise AssertionError(f"{len(lines.failed)} checks failed, first: {lines.failed[0]}")


if __name__ == "__main__":
    main()

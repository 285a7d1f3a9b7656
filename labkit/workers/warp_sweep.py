"""Time the report's RMSNorm kernel by num_warps on a GPU, and one machine code at fewer and fewer resident blocks.

    python -m labkit.workers.warp_sweep --run-dir D           # reads D/params.json, writes D/rank0.jsonl

Two experiments in one interleaved run, with a copy beside them. `w1`, `w2`, ...: the kernel compiled for that many
warps, as the report did. `w4 b2`: the cubin of `w4`, launched with as much unused dynamic shared memory as leaves room
for two blocks on an SM: same code, same bytes, lower occupancy. Lines by "kind": device, kernel (the driver's view of
each cubin), check, timing, refusal, done. Exits non-zero when an output is wrong. Needs CUDA.
"""

# pyright: reportArgumentType=false, reportCallIssue=false
# (Triton's annotations describe the compiler's values, not what a caller passes)
from __future__ import annotations

import argparse
import ctypes
import json
import time
from pathlib import Path
from typing import Any

import torch
import triton

from labkit.workers import rmsnorm_check as check
from labkit.workers import rmsnorm_kernels as kernels
from labkit.workers import rmsnorm_timing as timing
from labkit.workers.cuda_driver import Driver, DriverError, pack
from labkit.workers.rmsnorm_bench import Lines

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

    def __init__(self, hidden: int, params: dict[str, Any], lines: Lines, driver: Driver, limits: dict[str, int],
                 l2_bytes: int) -> None:  # fmt: skip
        self.hidden, self.params, self.lines, self.driver, self.limits = hidden, params, lines, driver, limits
        self.rows, self.eps, self.block = params["rows"], params["eps"], triton.next_power_of_2(hidden)
        self.min_bytes = (2 * self.rows * hidden + hidden) * 2
        self.per_sample = timing.calls_per_sample(self.min_bytes, l2_bytes=l2_bytes)
        count = timing.num_buffers(self.min_bytes, l2_bytes=l2_bytes)
        generator = torch.Generator(device=timing.DEVICE)
        generator.manual_seed(params["seed"] + 1000 * params["process"])
        made = [check.make_inputs(self.rows, hidden, DTYPE, device=timing.DEVICE, generator=generator)
                for _ in range(count)]  # fmt: skip
        self.xs, self.w = [x for x, _ in made], made[0][1]
        self.targets = [check.PoisonedOutput(self.rows, hidden, DTYPE, device=timing.DEVICE) for _ in range(count)]
        self.calls: dict[str, timing.Call] = {}
        for num_warps in params["num_warps"]:
            self.add_warps(num_warps)
        outs = [target.out for target in self.targets]
        for name in ("copy", "copy_again"):
            self.calls[name] = lambda i: outs[i % count].copy_(self.xs[i % count])

    def add_warps(self, num_warps: int) -> None:
        """The kernel for one num_warps, and its launches at fewer blocks."""
        try:
            kernel: Any = self.launch(num_warps, 0)
            torch.cuda.synchronize()
            module = self.driver.load(kernel.asm["cubin"])  # a second copy: its settings leave Triton's own alone
            function = self.driver.function(module, kernel.metadata.name)
            told = self.driver.function_attributes(function)
            blocks, _ = self.driver.max_blocks(function, threads=32 * num_warps, dynamic_bytes=kernel.metadata.shared)
            self.lines.write("kernel", hidden=self.hidden, num_warps=num_warps, blocks_per_sm=blocks,
                             dynamic_shared_bytes=kernel.metadata.shared, registers=told["registers"],
                             local_bytes=told["local_bytes"], triton_registers=kernel.n_regs,
                             triton_spills=kernel.n_spills)  # fmt: skip
        except Exception as error:  # one setting that does not compile or launch must not lose the others
            self.lines.refuse("num_warps", error, hidden=self.hidden, num_warps=num_warps)
            return
        self.calls[f"w{num_warps}"] = lambda i: self.launch(num_warps, i)
        if num_warps not in self.params["dial_warps"]:
            return
        for fewer in [b for b in self.params["dial_blocks"] if b < blocks] + [blocks]:
            try:
                self.add_dial(kernel, num_warps, fewer, is_whole=fewer == blocks)
            except (DriverError, AttributeError) as error:
                self.lines.refuse("dial", error, hidden=self.hidden, num_warps=num_warps, blocks=fewer)

    def launch(self, num_warps: int, index: int) -> Any:
        """One call through Triton; returns its compiled kernel."""
        x, out = self.xs[index % len(self.xs)], self.targets[index % len(self.xs)].out
        return kernels.rmsnorm_report[(self.rows,)](
            x, self.w, out, x.stride(0), out.stride(0), self.hidden, self.eps, BLOCK=self.block, num_warps=num_warps)

    def add_dial(self, kernel: Any, num_warps: int, blocks: int, *, is_whole: bool) -> None:
        """The same machine code with room for `blocks` blocks an SM, launched by the driver."""
        own = kernel.metadata.shared
        shared = own if is_whole else max(own, shared_for_blocks(blocks, self.limits))
        module = self.driver.load(kernel.asm["cubin"])
        function = self.driver.function(module, kernel.metadata.name)
        self.driver.allow_shared(function, self.limits["shared_memory_per_block_bytes"], carveout=True)
        seen, code = self.driver.max_blocks(function, threads=32 * num_warps, dynamic_bytes=shared)
        name = f"w{num_warps} b{blocks}"
        self.lines.write("dial", name=name, hidden=self.hidden, num_warps=num_warps, blocks=blocks, shared_bytes=shared,
                         driver_blocks=seen, error=code)  # fmt: skip
        stream = torch.cuda.current_stream().cuda_stream
        packed = [self.arguments(i) for i in range(len(self.xs))]

        def call(index: int) -> None:
            self.driver.launch(function, blocks=self.rows, threads=32 * num_warps, dynamic_bytes=shared,
                               stream=stream, args=packed[index % len(packed)])  # fmt: skip

        call(0)
        torch.cuda.synchronize()
        self.calls[name] = call

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
            self.lines.judge("check", name, seen, hidden=self.hidden)

    def time_all(self, flush: timing.Flush) -> None:
        """Stream and cold samples of every call, in rounds that start at another call each time."""
        timing.warm_up(self.calls, repeats=20)
        rounds, counts = self.params["rounds"], dict.fromkeys(self.calls, self.per_sample)
        stream = timing.stream_samples(self.calls, rounds=rounds, per_sample=counts)
        cold = timing.cold_samples(self.calls, rounds=rounds, flush=flush)
        for mode, samples in (("stream", stream), ("cold", cold)):
            for name, values in samples.items():
                self.lines.write("timing", mode=mode, name=name, hidden=self.hidden, ms=[round(v, 6) for v in values])


def run(params: dict[str, Any], lines: Lines) -> None:
    """Both experiments for every row length."""
    torch.cuda.set_device(0)
    properties = torch.cuda.get_device_properties(0)
    torch.empty(1, device=timing.DEVICE)  # makes the context that the driver calls use
    driver = Driver()
    limits = driver.device_attributes(driver.use_device(0))
    lines.write("device", name=properties.name, torch=torch.__version__, triton=triton.__version__,
                l2_bytes=properties.L2_cache_size, **limits)  # fmt: skip
    flush = timing.Flush(properties.L2_cache_size)
    timing.spin_up()
    for hidden in params["hidden"]:
        sweep = Sweep(hidden, params, lines, driver, limits, properties.L2_cache_size)
        sweep.check_all()
        sweep.time_all(flush)
        print(f"progress: timed hidden {hidden}: {len(sweep.calls)} calls", flush=True)
        del sweep
        torch.cuda.empty_cache()


def main() -> None:
    """Entry point; see the module docstring."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--run-dir", type=Path, required=True)
    run_dir = parser.parse_args().run_dir
    params = json.loads((run_dir / "params.json").read_text(encoding="utf-8"))
    began = time.perf_counter()
    with open(run_dir / "rank0.jsonl", "w", encoding="utf-8") as stream, torch.no_grad():
        lines = Lines(stream)
        run(params, lines)
        lines.write("done", wall_s=time.perf_counter() - began)
    if lines.failed:
        raise AssertionError(f"{len(lines.failed)} checks failed, first: {lines.failed[0]}")


if __name__ == "__main__":
    main()

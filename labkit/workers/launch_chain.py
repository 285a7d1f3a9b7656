"""Time a chain of small dependent operators three ways: one by one, as a CUDA graph, and as one fused kernel.

    python -m labkit.workers.launch_chain --run-dir D        # reads D/params.json, writes D/rank0.jsonl

The chain alternates x -> x / 2 and x -> x + 1 in FP32. Halving is exact, so a compiler that contracts the pair into one
multiply-add gives the same bits, and every variant must.

    eager     one operator a step, into given buffers: no allocation
    paired    one operator for two steps, 1 + x / 2
    graph     the eager chain captured once and replayed (CUDA)
    kernel    one Triton kernel that runs the whole chain in registers (CUDA)
    compiled  torch.compile of the chain: Inductor fuses it (needs g++ on a CPU)

Lines written, by "kind": device, exact, closed_form, ops, kernels, timing, compile_time, refusal, done. Exits non-zero
when a check fails, after writing every line.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.distributed.elastic.multiprocessing.errors import record
from torch.utils._python_dispatch import TorchDispatchMode

from labkit.workers.json_lines import JsonLines

HALF, ONE = torch.tensor(0.5), torch.tensor(1.0)
"""Constants as tensors without dimensions on the host: a Python number would be wrapped anew for every operator."""
Chain = Callable[[], torch.Tensor]
"""Runs a chain of fixed length on a fixed input; returns where the result is."""
SAMPLE_S = 1.0e-3
"""A sample repeats the chain until about this long."""
MAX_REPEATS = 200


class Buffers:
    """An input of given size and two buffers that steps alternate between."""

    def __init__(self, size: int, *, device: str, seed: int) -> None:
        generator = torch.Generator(device=device)
        generator.manual_seed(seed)
        self.size = size
        self.x = torch.randn(size, generator=generator, device=device)
        self.ping, self.pong = torch.empty_like(self.x), torch.empty_like(self.x)


def eager(buffers: Buffers, length: int) -> Chain:
    """One operator a step."""

    def run() -> torch.Tensor:
        source, target, spare = buffers.x, buffers.ping, buffers.pong
        for step in range(length):
            if step % 2 == 0:
                torch.mul(source, HALF, out=target)
            else:
                torch.add(source, ONE, out=target)
            source, target, spare = target, spare, target
        return source

    return run


def paired(buffers: Buffers, length: int) -> Chain:
    """One operator for two steps: 1 + x / 2 (a last single step is a halving)."""

    def run() -> torch.Tensor:
        source, target, spare = buffers.x, buffers.ping, buffers.pong
        for _ in range(length // 2):
            torch.add(ONE, source, alpha=0.5, out=target)
            source, target, spare = target, spare, target
        if length % 2:
            torch.mul(source, HALF, out=target)
            source = target
        return source

    return run


def plain_chain(x: torch.Tensor, length: int) -> torch.Tensor:
    """The chain as anybody would write it; what torch.compile gets."""
    for step in range(length):
        x = x * 0.5 if step % 2 == 0 else x + 1.0
    return x


def compiled(buffers: Buffers, length: int) -> Chain:
    """`plain_chain` through torch.compile, compiled before it is returned."""
    function = torch.compile(lambda x: plain_chain(x, length), dynamic=False, fullgraph=True)
    function(buffers.x)
    return lambda: function(buffers.x)


def graph(buffers: Buffers, length: int) -> Chain:
    """The eager chain as a CUDA graph."""
    chain = eager(buffers, length)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        chain()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        result = chain()

    def run() -> torch.Tensor:
        captured.replay()
        return result

    return run


def kernel(buffers: Buffers, length: int) -> Chain:
    """One Triton kernel for the whole chain."""
    from labkit.workers.launch_kernel import chain_kernel

    block = 1024
    grid = (-(-buffers.size // block),)
    launch: Any = chain_kernel[grid]

    def run() -> torch.Tensor:
        launch(buffers.x, buffers.ping, buffers.size, length, BLOCK=block)
        return buffers.ping

    return run


MAKERS: dict[str, Callable[[Buffers, int], Chain]] = {
    "eager": eager, "paired": paired, "graph": graph, "kernel": kernel, "compiled": compiled,
}  # fmt: skip


class CountOps(TorchDispatchMode):
    """Counts the operators that reach the dispatcher."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Count and pass on."""
        self.count += 1
        return func(*args, **(kwargs or {}))


def closed_form(x: torch.Tensor, length: int) -> torch.Tensor:
    """The chain's exact value in float64: x / 2^h + 2 (1 - 2^-p), halved once more if a halving is last.

    h halvings and p additions; after each pair the value is 1 + x / 2.
    """
    pairs = length // 2
    value = x.double() * 0.5**pairs + 2 * (1 - 0.5**pairs)
    return value * 0.5 if length % 2 else value


def closed_form_bound(x: torch.Tensor) -> torch.Tensor:
    """Largest |chain - closed_form|: each addition errs by at most 2^-24 (|x| + 2), each later halving halves that."""
    return 2 * 2.0**-24 * (x.double().abs() + 2)


def check(lines: JsonLines, made: dict[str, Chain], buffers: Buffers, length: int) -> None:
    """Every variant against eager, bit by bit, and eager against the exact value."""
    expected = made["eager"]().clone()
    error = (expected.double() - closed_form(buffers.x, length)).abs()
    bad = int((~(error <= closed_form_bound(buffers.x))).sum())
    where = {"size": buffers.size, "length": length}
    lines.judge("closed_form", bad, **where)
    for name, chain in made.items():
        if name != "eager":
            buffers.ping.fill_(float("nan"))
            buffers.pong.fill_(float("nan"))
            out = chain()
            wrong = int((out.view(torch.int32) != expected.view(torch.int32)).sum())
            lines.judge("exact", wrong, variant=name, **where)


def count_ops(lines: JsonLines, buffers: Buffers, length: int) -> None:
    """Operators that the two uncompiled variants dispatch."""
    for name in ("eager", "paired"):
        chain = MAKERS[name](buffers, length)
        with CountOps() as counter:
            chain()
        lines.write("ops", variant=name, length=length, count=counter.count)


def count_gpu_kernels(lines: JsonLines, made: dict[str, Chain], length: int) -> None:
    """GPU kernels of one call of each variant, by the profiler."""
    from labkit.workers.rmsnorm_kernels import empty_kernel
    from labkit.workers.rmsnorm_timing import count_kernels

    target = torch.zeros(1, device="cuda")
    calls = {name: (lambda _, chain=chain: chain()) for name, chain in made.items()}
    for name, seen in count_kernels(calls, lambda: empty_kernel[(1,)](target)).items():
        lines.write("kernels", variant=name, length=length, **seen)


class Bench:
    """All chains of one process, timed in rounds."""

    def __init__(self, params: dict[str, Any], lines: JsonLines) -> None:
        self.params, self.lines = params, lines
        self.is_gpu = params["device"] == "cuda"
        self.chains: dict[tuple[str, int, int], Chain] = {}
        for size in params["sizes"]:
            buffers = Buffers(size, device=params["device"], seed=params["seed"])
            for length in params["lengths"]:
                made = {name: chain for name in params["variants"] if (chain := self.make(name, buffers, length))}
                if params["process"] == 0:
                    check(lines, made, buffers, length)
                    if size == params["sizes"][0] and length == max(params["compile_lengths"] or params["lengths"]):
                        count_ops(lines, buffers, length)
                        self.kernels(made, length)
                self.chains |= {(name, size, length): chain for name, chain in made.items()}

    def make(self, name: str, buffers: Buffers, length: int) -> Chain | None:
        """A chain that has run once; None where it is not to be compiled, or cannot be made here."""
        if name == "compiled" and not (
            length in self.params["compile_lengths"] and buffers.size in self.params["compile_sizes"]
        ):
            return None
        began = time.perf_counter()
        try:
            chain = MAKERS[name](buffers, length)
            chain()
            self.synchronize()
        except Exception as error:  # no compiler, no Triton, no graphs: the others still say something
            self.lines.refuse(name, error, size=buffers.size, length=length)
            return None
        if name == "compiled":
            self.lines.write("compile_time", size=buffers.size, length=length, wall_s=time.perf_counter() - began)
        return chain

    def kernels(self, made: dict[str, Chain], length: int) -> None:
        """Count GPU kernels where there is a GPU and a profiler."""
        if self.is_gpu:
            try:
                count_gpu_kernels(self.lines, made, length)
            except Exception as error:
                self.lines.refuse("kernel count", error)

    def synchronize(self) -> None:
        """Wait for the GPU."""
        if self.is_gpu:
            torch.cuda.synchronize()

    def sample(self, chain: Chain, repeats: int) -> tuple[float, float]:
        """Wall time of one chain in a row of `repeats`, and the part in which the host issued it, microseconds."""
        self.synchronize()
        begin = time.perf_counter()
        for _ in range(repeats):
            chain()
        issued = time.perf_counter()
        self.synchronize()
        done = time.perf_counter()
        return 1e6 * (done - begin) / repeats, 1e6 * (issued - begin) / repeats

    def time(self) -> None:
        """Rounds over all chains; the number of repeats is fixed before the first round."""
        repeats = {}
        for key, chain in self.chains.items():
            self.sample(chain, 2)
            took_s = self.sample(chain, 3)[0] / 1e6
            repeats[key] = max(1, min(MAX_REPEATS, round(SAMPLE_S / took_s)))
        samples: dict[tuple[str, int, int], list[tuple[float, float]]] = {key: [] for key in self.chains}
        keys = list(self.chains)
        for number in range(self.params["rounds"]):
            at = number * len(keys) // self.params["rounds"]
            for key in keys[at:] + keys[:at]:
                samples[key].append(self.sample(self.chains[key], repeats[key]))
        for (name, size, length), found in samples.items():
            self.lines.write("timing", variant=name, size=size, length=length, repeats=repeats[name, size, length],
                             wall_us=[round(wall, 4) for wall, _ in found],
                             issue_us=[round(issue, 4) for _, issue in found])  # fmt: skip


@record
def main() -> None:
    """Entry point; see the module docstring."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--run-dir", type=Path, required=True)
    run_dir = parser.parse_args().run_dir
    params = json.loads((run_dir / "params.json").read_text(encoding="utf-8"))
    torch.set_num_threads(params["num_threads"])
    started = time.perf_counter()
    with open(run_dir / "rank0.jsonl", "w", encoding="utf-8") as stream, torch.no_grad():
        lines = JsonLines(stream)
        lines.write("device", device=params["device"], torch=torch.__version__, num_threads=torch.get_num_threads(),
                    name=torch.cuda.get_device_name(0) if params["device"] == "cuda" else None)
        bench = Bench(params, lines)
        print("progress: chains made and checked", flush=True)
        bench.time()
        lines.write("done", wall_s=time.perf_counter() - started)
    if lines.failed:
        raise AssertionError(f"{len(lines.failed)} checks failed, first: {lines.failed[0]}")


if __name__ == "__main__":
    main()

"""Time every provider on every shape on this GPU: the measured half of rmsnorm_bench."""

from __future__ import annotations

import time
from typing import Any

import torch

from labkit.workers import rmsnorm_baselines as baselines
from labkit.workers import rmsnorm_check as check
from labkit.workers import rmsnorm_kernels as kernels
from labkit.workers import rmsnorm_timing as timing
from labkit.workers.json_lines import JsonLines
from labkit.workers.rmsnorm_fast import Config, rmsnorm_fast, rmsnorm_report

COLD = ("report_out", "fast", "native", "composite", "compile", "liger", "copy", "copy_again")
"""Providers timed after a flush."""
GRAPH = ("report_out", "fast", "compile", "copy")
"""Providers timed by graph replay."""
WARM = ("fast", "copy")
"""Providers timed on one buffer that may stay in L2."""
HEAVY = ("composite",)
"""Providers several times slower than the rest: a quarter of the calls a sample."""


def time_shapes(params: dict[str, Any], lines: JsonLines) -> None:
    """The launch floor, then every shape of `params["shapes"]`; a shape that fails is refused and the next one runs."""
    from labkit.workers.rmsnorm_bench import parse_shape

    l2_bytes = torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size
    flush = timing.Flush(l2_bytes)
    timing.spin_up()
    launch_floor(lines, rounds=params["rounds"], flush=flush)
    for text in params["shapes"]:
        began = time.perf_counter()
        try:
            bench = ShapeBench(text, *parse_shape(text), params=params, l2_bytes=l2_bytes, lines=lines, flush=flush)
            bench.run(flush)
            del bench
        except Exception as error:  # one shape (out of memory, say) must not lose the others
            lines.refuse("shape", error, shape=text)
        torch.cuda.empty_cache()
        print(f"timed {text} in {time.perf_counter() - began:.1f} s", flush=True)


def launch_floor(lines: JsonLines, *, rounds: int, flush: timing.Flush) -> None:
    """Time of a kernel that does nothing: back to back, between two events, and as a graph node."""
    target = torch.zeros(1, device=timing.DEVICE)
    calls: dict[str, timing.Call] = {"empty": lambda _: kernels.empty_kernel[(1,)](target)}
    timing.warm_up(calls)
    count = {"empty": 96}
    found = {
        "stream": timing.stream_samples(calls, rounds=rounds, per_sample=count),
        "cold": timing.cold_samples(calls, rounds=rounds, flush=flush),
        "graph": timing.graph_samples(
            {"empty": timing.capture(calls["empty"], 96, is_rotating=True)}, rounds=rounds, calls_in=count
        ),
    }
    for mode, samples in found.items():
        lines.write("floor", mode=mode, ms=samples["empty"])


class ShapeBench:
    """Buffers and providers of one shape."""

    def __init__(
        self, text: str, rows: int, hidden: int, dtype: torch.dtype, *, params: dict[str, Any], l2_bytes: int,
        lines: JsonLines, flush: timing.Flush,
    ) -> None:  # fmt: skip
        self.text, self.params, self.lines, self.l2_bytes = text, params, lines, l2_bytes
        self.eps, self.rounds = params["eps"], params["rounds"]
        elem_bytes = torch.finfo(dtype).bits // 8
        self.min_bytes = (2 * rows * hidden + hidden) * elem_bytes
        self.per_sample = timing.calls_per_sample(self.min_bytes, l2_bytes=l2_bytes)
        count = timing.num_buffers(self.min_bytes, l2_bytes=l2_bytes)
        generator = torch.Generator(device=timing.DEVICE)
        generator.manual_seed(params["seed"] + 1000 * params["process"] + torch.cuda.current_device())
        device = timing.DEVICE
        pairs = [check.make_inputs(rows, hidden, dtype, device=device, generator=generator) for _ in range(count)]
        self.xs, self.w = [x for x, _ in pairs], pairs[0][1]
        self.targets = [check.PoisonedOutput(rows, hidden, dtype, device=device) for _ in range(count)]
        self.config = config = self.settings(flush)
        lines.write("shape", shape=text, min_bytes=self.min_bytes, calls_per_sample=self.per_sample, buffers=count,
                    l2_bytes=l2_bytes, config=config.to_dict(), config_label=config.label())  # fmt: skip
        self.compiled: baselines.FreshCompile | None = None
        self.calls = self.working(self.providers())

    def settings(self, flush: timing.Flush) -> Config:
        """Of the fast kernel: the rule's, or the cache's where the shape is to be tuned."""
        from labkit.workers.rmsnorm_autotune import forward_shortlist, tuned_setting

        x, out, w = self.xs[0], self.targets[0].out, self.w
        candidates = forward_shortlist(x, out)
        if self.text not in self.params["cache_shapes"]:
            return candidates[0]
        return tuned_setting(
            "forward", self.text, x, candidates,
            lambda config: lambda _: rmsnorm_fast(x, w, eps=self.eps, out=out, config=config),
            from_dict=Config, lines=self.lines, flush=flush,
        )  # fmt: skip

    def providers(self) -> dict[str, timing.Call]:
        """Every provider as a call of the rotating buffer index; `_out` and `fast` write into preallocated outputs."""
        xs, w, eps, outs, count = self.xs, self.w, self.eps, [t.out for t in self.targets], len(self.xs)
        calls: dict[str, timing.Call] = {
            "report": lambda i: rmsnorm_report(xs[i % count], w, eps=eps),
            "report_out": lambda i: rmsnorm_report(xs[i % count], w, eps=eps, out=outs[i % count]),
            "fast": lambda i: rmsnorm_fast(xs[i % count], w, eps=eps, out=outs[i % count], config=self.config),
            "fast_alloc": lambda i: rmsnorm_fast(xs[i % count], w, eps=eps),
            "native": lambda i: baselines.native(xs[i % count], w, eps),
            "composite": lambda i: baselines.composite(xs[i % count], w, eps),
            "copy": lambda i: outs[i % count].copy_(xs[i % count]),
            "copy_again": lambda i: outs[i % count].copy_(xs[i % count]),
        }
        liger = baselines.liger()
        if liger is not None:
            calls["liger"] = lambda i: liger(xs[i % count], w, eps)
        if self.text in self.params["compile_shapes"]:
            began = time.perf_counter()
            try:
                compiled = self.compiled = baselines.FreshCompile(xs[0], w, eps)
                calls["compile"] = lambda i: compiled(xs[i % count], w, eps)
                torch.cuda.synchronize()
                self.lines.write("compile_time", shape=self.text, wall_s=time.perf_counter() - began)
            except Exception as error:  # a baseline that cannot be built is a result, not the end of the run
                self.lines.refuse("compile", error, shape=self.text)
        return calls

    def working(self, calls: dict[str, timing.Call]) -> dict[str, timing.Call]:
        """The providers that can be called at all; the others are refused with their error."""
        good: dict[str, timing.Call] = {}
        for name, call in calls.items():
            try:
                call(0)
                torch.cuda.synchronize()
                good[name] = call
            except Exception as error:  # ours must work: their absence fails the run in the slice's oracles
                self.lines.refuse(name, error, shape=self.text)
        return good

    def run(self, flush: timing.Flush) -> None:
        """All modes, then the profile, then the outputs once more."""
        timing.warm_up(self.calls)
        fits_l2 = self.min_bytes <= self.l2_bytes
        for mode in ("stream", "cold", "graph", *(["warm"] if fits_l2 else [])):
            try:
                samples = getattr(self, mode)(flush)
            except Exception as error:  # a mode that fails (graph capture, say) leaves the others
                self.lines.refuse(f"mode {mode}", error, shape=self.text)
                continue
            for name, values in samples.items():
                self.lines.write("timing", shape=self.text, mode=mode, provider=name, ms=[round(v, 6) for v in values])
        names = self.profile() if self.params["process"] == 0 else {}
        if self.compiled is not None:
            state = self.compiled.state()
            seen = names.get("compile", {}).get("names")
            self.lines.write("compile", shape=self.text, **state, fell_back=baselines.fell_back(state, seen))
        self.recheck()

    def stream(self, flush: timing.Flush) -> dict[str, list[float]]:
        """Back-to-back loop over rotating buffers."""
        counts = {name: max(3, self.per_sample // 4) if name in HEAVY else self.per_sample for name in self.calls}
        return timing.stream_samples(self.calls, rounds=self.rounds, per_sample=counts)

    def cold(self, flush: timing.Flush) -> dict[str, list[float]]:
        """Single calls after an L2 flush."""
        calls = {name: self.calls[name] for name in COLD if name in self.calls}
        return timing.cold_samples(calls, rounds=self.rounds, flush=flush)

    def graph(self, flush: timing.Flush) -> dict[str, list[float]]:
        """The stream loop captured and replayed; also checks what the replayed graph of `fast` wrote."""
        names = [name for name in GRAPH if name in self.calls]
        graphs = {name: timing.capture(self.calls[name], self.per_sample, is_rotating=True) for name in names}
        found = timing.graph_samples(graphs, rounds=self.rounds, calls_in=dict.fromkeys(names, self.per_sample))
        if "fast" in graphs:
            self.targets[0].poison()
            graphs["fast"].replay()
            self.judge_target(0, "fast graph")
        return found

    def warm(self, flush: timing.Flush) -> dict[str, list[float]]:
        """One buffer again and again: small tensors stay in L2."""
        names = [name for name in WARM if name in self.calls]
        graphs = {name: timing.capture(self.calls[name], self.per_sample, is_rotating=False) for name in names}
        return timing.graph_samples(graphs, rounds=self.rounds, calls_in=dict.fromkeys(names, self.per_sample))

    def profile(self) -> dict[str, dict[str, Any]]:
        """Kernels per call of every provider, written as lines."""
        target = torch.zeros(1, device=timing.DEVICE)
        try:
            found = timing.count_kernels(self.calls, lambda: kernels.empty_kernel[(1,)](target))
        except Exception as error:  # no profiler on this machine: counts stay unknown
            self.lines.refuse("profile", error, shape=self.text)
            return {}
        for name, seen in found.items():
            self.lines.write("profile", shape=self.text, provider=name, **seen)
        return found

    def judge_target(self, index: int, what: str) -> None:
        """Compare one rotating output with float64 and write the verdict."""
        torch.cuda.synchronize()
        target = self.targets[index]
        seen = check.compare(target.out, self.xs[index], self.w, eps=self.eps)
        seen |= {"unwritten": target.unwritten(), "guards_touched": target.guards_touched()}
        self.lines.judge_counts("recheck", what, seen, shape=self.text)

    def recheck(self) -> None:
        """After the timing: our kernels once more into poisoned outputs; in the first process the baselines' errors."""
        for name in ("report_out", "fast"):
            for target in self.targets:
                target.poison()
            for index in range(len(self.targets)):
                self.calls[name](index)
            for index in {0, len(self.targets) - 1}:
                self.judge_target(index, name)
        for name in ("native", "composite", "compile", "liger") if self.params["process"] == 0 else ():
            if name in self.calls:
                out = self.calls[name](0)
                seen = check.compare(out, self.xs[0], self.w, eps=self.eps)  # type: ignore[arg-type]
                self.lines.write("baseline_error", shape=self.text, provider=name, **seen)
                del out

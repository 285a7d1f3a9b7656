"""Time the backward pass and the two-pass kernels on this GPU, beside the compiled, native and Liger's backward.

Parts: `backward` (rows of one program), `wide_forward` and `wide_backward` (several programs a row). Every call is
timed alone after an L2 flush, the host ahead; a copy of as many bytes is timed in every round. Lines: part_shape,
part_timing, part_profile, part_compile, part_baseline_error, cache, grad_recheck, compile_time, refusal.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from labkit.workers import rmsnorm_baselines as baselines
from labkit.workers import rmsnorm_check as check
from labkit.workers import rmsnorm_grad as grad
from labkit.workers import rmsnorm_grad_check as grad_check
from labkit.workers import rmsnorm_kernels as kernels
from labkit.workers import rmsnorm_timing as timing
from labkit.workers import rmsnorm_wide as wide
from labkit.workers.json_lines import JsonLines
from labkit.workers.rmsnorm_autotune import backward_shortlist, tuned_setting
from labkit.workers.rmsnorm_fast import num_multiprocessors

HEAD_START_CYCLES = 6_000_000
"""GPU spins this long before a round (about 3 ms): autograd takes the host longer than a plain call."""
RECHECK_ELEMENTS = 2**26
"""About so many elements of dx are compared after the timing; before it, all were."""


def time_parts(params: dict[str, Any], lines: JsonLines) -> None:
    """Every shape of `backward_shapes` and `wide_shapes`; a shape that fails is refused and the next one runs."""
    from labkit.workers.rmsnorm_bench import parse_shape

    l2_bytes = torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size
    flush = timing.Flush(l2_bytes)
    work = [("backward", text) for text in params["backward_shapes"]]
    work += [(part, text) for text in params["wide_shapes"] for part in ("wide_forward", "wide_backward")]
    for part, text in work:
        began = time.perf_counter()
        try:
            bench = PartBench(part, text, *parse_shape(text), params=params, lines=lines, flush=flush)
            bench.run()
            del bench
        except Exception as error:  # one shape (out of memory, say) must not lose the others
            lines.refuse(part, error, shape=text)
        torch.cuda.empty_cache()
        print(f"timed {part} {text} in {time.perf_counter() - began:.1f} s", flush=True)


class PartBench:
    """Tensors and providers of one part and shape."""

    def __init__(
        self, part: str, text: str, rows: int, hidden: int, dtype: torch.dtype, *, params: dict[str, Any],
        lines: JsonLines, flush: timing.Flush,
    ) -> None:  # fmt: skip
        self.part, self.text, self.params, self.lines, self.flush = part, text, params, lines, flush
        self.eps, self.is_forward = params["eps"], part == "wide_forward"
        device = timing.DEVICE
        generator = torch.Generator(device=device)
        generator.manual_seed(params["seed"] + 1000 * params["process"] + torch.cuda.current_device() + 77)
        self.dy, self.x, self.w, self.rstd = grad_check.make_case(rows, hidden, dtype, device=device,
                                                                  generator=generator, eps=self.eps)  # fmt: skip
        self.out = check.PoisonedOutput(rows, hidden, dtype, device=device)
        self.dw = check.PoisonedOutput(1, hidden, dtype, device=device)
        self.config = self.settings()
        self.copy_bytes = self.x.numel() * (2 if self.is_forward else 3) // 2 * 2 * self.x.element_size()
        self.compiled: baselines.FreshCompile | None = None
        label, parts = (self.config.label(), self.num_parts()) if self.config else (wide.choose_wide(self.x).label(), 0)
        lines.write("part_shape", part=part, shape=text, copy_bytes=self.copy_bytes, config_label=label, programs=parts)
        self.calls = self.working(self.providers())

    def settings(self) -> grad.GradConfig | None:
        """Of the one-pass backward: the rule's, or the cache's where the shape is to be tuned."""
        if self.part != "backward":
            return None
        default = grad.default_grad(self.dy, self.x, self.out.out)
        if self.text not in self.params["cache_shapes"]:
            return default
        return tuned_setting(
            "backward", self.text, self.x, backward_shortlist(self.dy, self.x, self.out.out), self.ours,
            from_dict=grad.GradConfig, lines=self.lines, flush=self.flush,
        )  # fmt: skip

    def ours(self, config: grad.GradConfig | None) -> timing.Call:
        """Our kernels into the poisoned outputs."""
        if self.is_forward:
            return lambda _: wide.rmsnorm_wide(self.x, self.w, eps=self.eps, out=self.out.out, rstd=self.rstd)
        run = partial(grad.rmsnorm_backward, self.dy, self.x, self.w, self.rstd, dx=self.out.out, dw=self.dw.out[0])
        return lambda _: run(config=config)

    def num_parts(self) -> int:
        """Rows of partial sums of dweight."""
        assert self.config is not None
        return grad.grad_programs(self.config, rows=self.x.shape[0], elem_bytes=self.x.element_size(),
                                  num_sms=num_multiprocessors(self.x))[0]  # fmt: skip

    def providers(self) -> dict[str, Callable[[], timing.Call]]:
        """Name -> what makes the call; making it may fail, which refuses that provider."""
        source = torch.empty(self.copy_bytes // 2, dtype=torch.uint8, device=timing.DEVICE)
        target = torch.empty_like(source)
        copy: timing.Call = lambda _: target.copy_(source)  # noqa: E731
        found = {"ours": lambda: self.ours(self.config), "copy": lambda: copy, "copy_again": lambda: copy,
                 "native": lambda: self.baseline(baselines.native)}  # fmt: skip
        if (liger := baselines.liger()) is not None:
            found["liger"] = lambda: self.baseline(liger)
        if self.text in self.params["compile_shapes"]:
            found["compile"] = self.compile
        return found

    def baseline(self, function: Callable[..., torch.Tensor]) -> timing.Call:
        """A call of a function's forward pass, or of its backward pass through autograd, the graph kept."""
        if self.is_forward:
            return lambda _: function(self.x, self.w, self.eps)
        with torch.enable_grad():
            x, w = self.x.detach().requires_grad_(), self.w.detach().requires_grad_()
            y = function(x, w, self.eps)
        return lambda _: torch.autograd.grad(y, (x, w), self.dy, retain_graph=True)

    def compile(self) -> timing.Call:
        """`F.rms_norm` compiled afresh for this shape, with its backward pass."""
        began = time.perf_counter()
        if self.is_forward:
            self.compiled = baselines.FreshCompile(self.x, self.w, self.eps)
            call = self.baseline(self.compiled)
        else:
            with torch.enable_grad():
                x, w = self.x.detach().requires_grad_(), self.w.detach().requires_grad_()
                self.compiled = baselines.FreshCompile(x, w, self.eps, keeps_graph=True)
            y = self.compiled.output
            call: timing.Call = lambda _: torch.autograd.grad(y, (x, w), self.dy, retain_graph=True)  # noqa: E731
        call(0)
        torch.cuda.synchronize()
        self.lines.write("compile_time", part=self.part, shape=self.text, wall_s=time.perf_counter() - began)
        return call

    def working(self, made: dict[str, Callable[[], timing.Call]]) -> dict[str, timing.Call]:
        """The providers that can be called at all; the others are refused with their error."""
        good: dict[str, timing.Call] = {}
        for name, make in made.items():
            try:
                call = make()
                call(0)
                torch.cuda.synchronize()
                good[name] = call
            except Exception as error:  # ours must work: its absence fails the run in the slice's oracles
                self.lines.refuse(f"{self.part} {name}", error, shape=self.text)
        return good

    def run(self) -> None:
        """Times, the profile in the first process, then the outputs once more."""
        timing.warm_up(self.calls, repeats=2)
        samples = timing.cold_samples(self.calls, rounds=self.params["rounds"], flush=self.flush,
                                      head_start=HEAD_START_CYCLES)  # fmt: skip
        for name, values in samples.items():
            self.lines.write("part_timing", part=self.part, shape=self.text, provider=name,
                             ms=[round(value, 6) for value in values])  # fmt: skip
        names = self.profile() if self.params["process"] == 0 else {}
        if self.compiled is not None:
            state = self.compiled.state()
            seen = names.get("compile", {}).get("names")
            self.lines.write("part_compile", part=self.part, shape=self.text, **state,
                             fell_back=baselines.fell_back(state, seen))  # fmt: skip
        self.recheck()

    def profile(self) -> dict[str, dict[str, Any]]:
        """Kernels per call of every provider, written as lines."""
        target = torch.zeros(1, device=timing.DEVICE)
        try:
            found = timing.count_kernels(self.calls, lambda: kernels.empty_kernel[(1,)](target))
        except Exception as error:  # no profiler on this machine: counts stay unknown
            self.lines.refuse(f"{self.part} profile", error, shape=self.text)
            return {}
        for name, seen in found.items():
            self.lines.write("part_profile", part=self.part, shape=self.text, provider=name, **seen)
        return found

    def recheck(self) -> None:
        """After the timing: ours once more into poisoned outputs; the baselines' errors for comparison."""
        for target in (self.out, self.dw):
            target.poison()
        self.calls["ours"](0)
        torch.cuda.synchronize()
        if self.is_forward:
            some = slice(0, max(1, RECHECK_ELEMENTS // self.x.shape[1]))
            seen = check.compare(self.out.out[some], self.x[some], self.w, eps=self.eps)
        else:
            seen = self.compare(self.out.out, self.dw.out[0])
            seen["unwritten_dw"] = self.dw.unwritten()
        seen |= {"unwritten": self.out.unwritten() + seen.pop("unwritten_dw", 0),
                 "guards_touched": self.out.guards_touched()}  # fmt: skip
        self.lines.judge_counts("grad_recheck", self.part, seen, shape=self.text)
        if self.is_forward or self.params["process"]:
            return
        for name in ("native", "compile", "liger"):
            if name in self.calls:
                dx, dw = self.calls[name](0)  # type: ignore[misc]
                self.lines.write("part_baseline_error", part=self.part, shape=self.text, provider=name,
                                 **self.compare(dx, dw))  # fmt: skip

    def compare(self, dx: torch.Tensor, dw: torch.Tensor) -> dict[str, Any]:
        """Errors of gradients against float64, dx in part; any order of the sum over rows is allowed for."""
        return grad_check.compare_gradients(dx, dw, self.dy, self.x, self.w, eps=self.eps, depth=self.x.shape[0],
                                            max_elements=RECHECK_ELEMENTS)  # fmt: skip

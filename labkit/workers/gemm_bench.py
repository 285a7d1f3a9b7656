"""Measure this device's ceilings, or check and time dense and grouped products over a sweep of rows.

    python -m labkit.workers.gemm_bench --run-dir D        # reads D/params.json, writes D/rank0.jsonl

Modes: `ceilings` times copy, read, an empty call and one square product of each kind; `sweep` checks the products (in
process 0), then times every point in rounds, with the ceilings again in each round. Lines written, by "kind": device,
ceiling, count, exact, bound, timing, left_out, kernel, refusal, done. Exits non-zero when a check fails, after writing
every line.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.distributed.elastic.multiprocessing.errors import record

from labkit.workers import gemm_check as check
from labkit.workers.gemm_operands import Dense, Grouped, fill
from labkit.workers.gemm_timing import Call, Ceilings, Clock
from labkit.workers.json_lines import JsonLines

DEFAULT_CACHE_BYTES = 32 * 2**20
GRAPH_CALLS = 24
"""Calls in a replayed graph; more than the copies of any weight of the presets."""
CEILING_SAMPLES = 8
"""Samples of each ceiling before the sweep."""


def cache_bytes(device: str) -> int:
    """Size of the last cache before memory: L2 of a GPU, L3 of a CPU (32 MiB where the system does not say)."""
    if device == "cuda":
        return torch.cuda.get_device_properties(0).L2_cache_size
    path = Path("/sys/devices/system/cpu/cpu0/cache/index3/size")
    try:
        text = path.read_text().strip()
        return int(text.rstrip("KMkm")) * (2**20 if text[-1] in "Mm" else 2**10)
    except (OSError, ValueError):
        return DEFAULT_CACHE_BYTES


def describe(device: str) -> dict[str, Any]:
    """What the times depend on: versions, threads or multiprocessors, cache."""
    seen: dict[str, Any] = {"device": device, "torch": torch.__version__, "cache_bytes": cache_bytes(device),
                            "num_threads": torch.get_num_threads()}  # fmt: skip
    if device == "cuda":
        properties = torch.cuda.get_device_properties(0)
        seen |= {"name": properties.name, "num_sms": properties.multi_processor_count}
    return seen


def make_ceilings(params: dict[str, Any], clock: Clock, lines: JsonLines) -> Ceilings:
    """The ceilings of this device; a kind that cannot be multiplied here is refused."""
    device, side, products = params["device"], params["square"], {}
    for kind in params["kinds"]:
        try:
            square = Dense(f"square {side}x{side}", kind, max_rows=side, device=device, cache_bytes=1,
                           seed=params["seed"], copies=1)  # fmt: skip
            square.load()
            square.call(side, 0)
            clock.synchronize()
            products[kind] = lambda index, square=square: square.call(side, index)
        except Exception as error:  # a dtype without a product here is a result
            lines.refuse(f"square product {kind}", error)
    found = Ceilings(clock, products, device=device, buffer_bytes=params["buffer_mib"] * 2**20, side=side)
    found.warm_up()
    return found


def sample_ceilings(ceilings: Ceilings, lines: JsonLines, count: int) -> None:
    """One line for each ceiling."""
    for found in ceilings.sample(count):
        lines.write("ceiling", **found)


def sustained(ceilings: Ceilings, lines: JsonLines, clock: Clock, *, seconds: float = 0.4) -> None:
    """Rate of square products without a pause on a GPU, whose clock may fall under load: mean of the second half."""
    for kind, call in ceilings.products.items():
        once = max(clock.samples(call, 3))
        half = max(2, int(seconds * 500 / once))
        begin, middle, end = (torch.cuda.Event(enable_timing=True) for _ in range(3))
        begin.record()
        for index in range(half):
            call(index)
        middle.record()
        for index in range(half):
            call(index)
        end.record()
        clock.synchronize()
        lines.write("ceiling", what=f"sustained {kind}", work=2.0 * ceilings.side**3,
                    ms=[middle.elapsed_time(end) / half])  # fmt: skip


class Sweep:
    """All points of one process: dense products cold, in a graph and warm, pairs one row apart, grouped products."""

    def __init__(self, params: dict[str, Any], clock: Clock, lines: JsonLines) -> None:
        self.params, self.clock, self.lines = params, clock, lines
        device, cache, seed = params["device"], cache_bytes(params["device"]), params["seed"]
        self.is_checked = params["process"] == 0
        most = max(params["rows"] + params["graph_rows"] + params["warm_rows"] + [m + 1 for m in params["fine_rows"]])
        self.dense: list[Dense] = []
        self.groups: list[Grouped] = []
        for shape in params["shapes"]:
            for kind in params["kinds"]:
                product = self.attempt("product", Dense, shape, kind, max_rows=most, device=device,
                                       cache_bytes=cache, seed=seed)  # fmt: skip
                self.dense += [product] if product else []
                if kind in params["grouped_kinds"] and params["num_experts"]:
                    grouped = self.attempt(
                        "grouped product", Grouped, shape, kind, num_experts=params["num_experts"],
                        max_rows=max(params["grouped_rows"]), device=device, cache_bytes=cache, seed=seed)
                    self.groups += [grouped] if grouped else []

    def attempt(self, what: str, make: Any, shape: str, kind: str, **options: Any) -> Any:
        """A product that can be called at all; otherwise a refusal and None."""
        try:
            product = make(shape, kind, **options)
            if isinstance(product, Dense):
                fill(product.weights[0], product.generator, integers=True)
                product.call(1, 0)
            self.clock.synchronize()
            return product
        except Exception as error:  # one kind that is missing must not lose the others
            self.lines.refuse(what, error, case=f"{shape.split()[0]} {kind}")
            return None

    def check(self, *, integers: bool) -> None:
        """Fresh integers, which are checked only, or the normal numbers that are there and will be timed."""
        for product in self.dense:
            if integers:
                product.load(integers=True)
            a, w = product.operands(max(self.params["check_rows"]), 0)
            expected, sizes = check.reference(a, w), None if integers else check.term_sizes(a, w)
            for rows in self.params["check_rows"]:
                out = product.result(rows, 0)
                some = None if sizes is None else sizes[:rows]
                self.judge(product, out, expected[:rows], some, rows=rows, mode="dense")
        for group in self.groups:
            if integers:
                group.load(integers=True)
            for mode, counts, call in self.group_calls(group, self.params["grouped_rows"][1:2]):
                try:
                    out = call(0)
                except Exception as error:
                    self.lines.refuse(mode, error, case=group.case)
                    continue
                parts = group.parts(counts, group.weights[0])
                expected = torch.cat([check.reference(a, w) for a, w in parts])
                sizes = None if integers else torch.cat([check.term_sizes(a, w) for a, w in parts])
                self.judge(group, out, expected, sizes, rows=sum(counts), mode=mode)

    def judge(
        self, product: Dense | Grouped, out: torch.Tensor, expected: torch.Tensor, sizes: torch.Tensor | None,
        **where: Any,
    ) -> None:  # fmt: skip
        """Compare a result with float64: integers bit by bit, normal numbers (those with sizes) within the bound."""
        where |= {"case": product.case, "elements": out.numel()}
        if sizes is None:
            self.lines.judge("exact", check.wrong_integers(out, expected), **where)
        else:
            seen = check.judge_normal(out, expected, sizes, k=product.k, is_fp8=product.kind == "fp8",
                                      on_gpu=self.clock.is_gpu)  # fmt: skip
            self.lines.judge("bound", **seen, **where)

    def count(self) -> None:
        """FLOP by PyTorch's own counter and bytes of the very tensors, for one number of rows of each case."""
        from torch.utils.flop_counter import FlopCounterMode

        rows = self.params["check_rows"][-1]
        for product in self.dense:
            with FlopCounterMode(display=False) as counter:
                product.call(rows, 0)
            self.lines.write("count", case=product.case, rows=rows, flop=counter.get_total_flops() or None,
                             bytes=product.bytes_of_call(rows))  # fmt: skip

    def points(self) -> Iterator[tuple[dict[str, Any], Call, int, int]]:
        """Every point that is timed: what it is, its call, operators of a call, samples in a round."""
        params = self.params
        for product in self.dense:
            where = {"case": product.case}
            call = lambda rows, product=product: lambda index: product.call(rows, index)  # noqa: E731
            for rows in params["rows"]:
                yield {**where, "mode": "cold", "rows": rows}, call(rows), 1, params["calls"]
            for rows in params["graph_rows"] if self.clock.is_gpu else []:
                replay = self.attempt_graph(product, rows)
                if replay:
                    yield {**where, "mode": "graph", "rows": rows}, replay, 2, params["few_calls"]
            for rows in params["warm_rows"]:
                yield {**where, "mode": "warm", "rows": rows}, call(rows), 1, params["few_calls"]
            for rows in [m + extra for m in params["fine_rows"] for extra in (0, 1)]:
                yield {**where, "mode": "fine", "rows": rows}, call(rows), 1, params["few_calls"]
        for group in self.groups:
            for mode, counts, call in self.group_calls(group, params["grouped_rows"]):
                ops = len(counts) if mode == "loop" else 2
                rows = sum(counts) // len(counts)
                yield {"case": group.case, "mode": mode, "rows": rows}, call, ops, params["few_calls"]

    def attempt_graph(self, product: Dense, rows: int) -> Call | None:
        """A captured row of calls, or a refusal."""
        try:
            return product.graph(rows, GRAPH_CALLS)
        except Exception as error:
            self.lines.refuse("graph", error, case=product.case, rows=rows)
            return None

    def group_calls(self, group: Grouped, rows: list[int]) -> Iterator[tuple[str, list[int], Call]]:
        """Each grouped mode for each number of rows an expert: mode, rows of each expert, call."""
        for each in rows:
            even = [each] * group.num_experts
            skewed = self.params["skewed_counts"][str(each)]
            yield "grouped", even, group.grouped(even)
            yield "skewed", skewed, group.grouped(skewed)
            yield "loop", even, group.loop(even)

    def affordable(self) -> list[tuple[dict[str, Any], Call, int, int]]:
        """The points that work and do not take longer than allowed; the others are written down and left out."""
        kept, limit, over = [], self.params["max_call_ms"], {}
        for where, call, ops, count in self.points():
            key = (where["case"], where["mode"])
            if over.get(key, where["rows"] + 1) <= where["rows"]:
                self.lines.write("left_out", ms=None, **where)
                continue
            try:
                call(0)
                took = self.clock.one(call)
            except Exception as error:  # a mode that is missing here (grouped FP8, say) leaves the others
                self.lines.refuse(where["mode"], error, case=where["case"], rows=where["rows"])
                continue
            if limit and took > limit:
                over[key] = where["rows"]
                self.lines.write("left_out", ms=took, **where)
            else:
                kept.append((where, call, ops, count))
        return kept

    def time(self, ceilings: Ceilings) -> None:
        """Rounds over all points, each starting elsewhere, so that a drift of the machine hits every point alike."""
        points = self.affordable()
        for number in range(self.params["rounds"]):
            sample_ceilings(ceilings, self.lines, self.params["few_calls"])
            at = number * len(points) // max(1, self.params["rounds"])
            for where, call, ops, count in points[at:] + points[:at]:
                ms = self.clock.samples(call, count, num_ops=ops, is_warm=where["mode"] == "warm")
                if where["mode"] == "graph":
                    ms = [round(value / GRAPH_CALLS, 6) for value in ms]
                self.lines.write("timing", round=number, ms=ms, **where)
            print(f"progress: round {number + 1} of {self.params['rounds']}", flush=True)

    def kernels(self) -> None:
        """Names of the GPU kernels of each dense point."""
        from labkit.workers.rmsnorm_kernels import empty_kernel
        from labkit.workers.rmsnorm_timing import count_kernels

        target = torch.zeros(1, device="cuda")
        for product in self.dense:
            rows = sorted({*self.params["rows"], *(m + i for m in self.params["fine_rows"] for i in (0, 1))})
            calls = {str(m): (lambda index, m=m, product=product: product.call(m, index)) for m in rows}
            found = count_kernels(calls, lambda: empty_kernel[(1,)](target))
            for m, seen in found.items():
                self.lines.write("kernel", case=product.case, rows=int(m), names=seen["names"])


def run_sweep(params: dict[str, Any], clock: Clock, lines: JsonLines) -> None:
    """Check, count, time, and name the kernels."""
    sweep = Sweep(params, clock, lines)
    if sweep.is_checked:
        sweep.check(integers=True)
    for product in [*sweep.dense, *sweep.groups]:
        product.load()
    if sweep.is_checked:
        sweep.check(integers=False)
        sweep.count()
        print("progress: checks done", flush=True)
    ceilings = make_ceilings(params, clock, lines)
    sweep.time(ceilings)
    if clock.is_gpu:
        sustained(ceilings, lines, clock)
        if sweep.is_checked:
            try:
                sweep.kernels()
            except Exception as error:  # no profiler or no Triton: names stay unknown
                lines.refuse("kernel names", error)


@record
def main() -> None:
    """Entry point; see the module docstring."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--run-dir", type=Path, required=True)
    run_dir = parser.parse_args().run_dir
    params = json.loads((run_dir / "params.json").read_text(encoding="utf-8"))
    if params["num_threads"]:
        torch.set_num_threads(params["num_threads"])
    # Partial sums in FP32: otherwise a product whose K is split may add BF16 numbers.
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    clock, started = Clock(params["device"]), time.perf_counter()
    with open(run_dir / "rank0.jsonl", "w", encoding="utf-8") as stream, torch.no_grad():
        lines = JsonLines(stream)
        lines.write("device", **describe(params["device"]))
        if params["mode"] == "ceilings":
            sample_ceilings(make_ceilings(params, clock, lines), lines, CEILING_SAMPLES)
        else:
            run_sweep(params, clock, lines)
        lines.write("done", wall_s=time.perf_counter() - started)
    if lines.failed:
        raise AssertionError(f"{len(lines.failed)} checks failed, first: {lines.failed[0]}")


if __name__ == "__main__":
    main()

"""Times of single calls, in milliseconds: between two events on a GPU that is kept busy, by the clock on a CPU.

On a GPU the host must run ahead, or a sample is the host's time: the device spins while the calls are enqueued.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

Call = Callable[[int], Any]
"""One call; the argument counts up and selects the rotating buffers."""
SPIN_CYCLES_PER_OP = 120_000
"""The GPU spins about 60 us for every operator that will be enqueued, several times what the host needs for one."""
MAX_SAMPLES = 64
"""Pairs of events that are kept: an event is made when first recorded, which takes longer than a small product."""


class Clock:
    """Samples of calls on one device; the index of the rotating buffers goes on from sample to sample."""

    def __init__(self, device: str) -> None:
        self.is_gpu = device == "cuda"
        self.index = 0
        self.pairs: list[tuple[Any, Any]] = []
        if self.is_gpu:
            self.pairs = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True))
                          for _ in range(MAX_SAMPLES)]  # fmt: skip
            for pair in self.pairs:
                for event in pair:
                    event.record()
            torch.cuda.synchronize()

    def samples(self, call: Call, count: int, *, num_ops: int = 1, is_warm: bool = False) -> list[float]:
        """`count` times of one call each, after one more that is dropped.

        Args:
            call: what to time.
            count: samples.
            num_ops: operators that a call enqueues.
            is_warm: always the same buffers, so that a cache may hold them.
        """
        take = self._gpu if self.is_gpu else self._cpu
        found = take(call, count + 1, num_ops=num_ops, is_warm=is_warm)
        return [round(ms, 6) for ms in found[1:]]

    def _next(self, is_warm: bool) -> int:
        self.index += 1
        return 0 if is_warm else self.index

    def _cpu(self, call: Call, count: int, *, num_ops: int, is_warm: bool) -> list[float]:
        found = []
        for _ in range(count):
            index = self._next(is_warm)
            begin = time.perf_counter()
            call(index)
            found.append((time.perf_counter() - begin) * 1e3)
        return found

    def _gpu(self, call: Call, count: int, *, num_ops: int, is_warm: bool) -> list[float]:
        pairs = self.pairs[:count]
        if len(pairs) < count:
            raise ValueError(f"count={count}: expected at most {MAX_SAMPLES} samples at a time")
        torch.cuda.synchronize()
        torch.cuda._sleep(SPIN_CYCLES_PER_OP * (num_ops + 1) * count)
        for begin, end in pairs:
            index = self._next(is_warm)
            begin.record()
            call(index)
            end.record()
        torch.cuda.synchronize()
        return [begin.elapsed_time(end) for begin, end in pairs]

    def one(self, call: Call) -> float:
        """Time of a single call by the host's clock, ms, device waited for: to decide whether a point is affordable."""
        self.synchronize()
        begin = time.perf_counter()
        call(self._next(False))
        self.synchronize()
        return (time.perf_counter() - begin) * 1e3

    def synchronize(self) -> None:
        """Wait for the GPU; nothing to wait for on a CPU."""
        if self.is_gpu:
            torch.cuda.synchronize()


class Ceilings:
    """What this device can do: copy, read, one square product of each kind, and an empty call."""

    def __init__(self, clock: Clock, products: dict[str, Call], *, device: str, buffer_bytes: int, side: int) -> None:
        self.clock, self.products, self.side = clock, products, side
        self.source = torch.ones(buffer_bytes // 4, dtype=torch.float32, device=device)
        self.target = torch.zeros_like(self.source)
        self.total = torch.zeros((), dtype=torch.float32, device=device)
        self.tiny = torch.zeros(1, device=device)

    def calls(self) -> dict[str, tuple[Call, float]]:
        """Name -> the call, and the bytes (copy, read) or FLOP (products) that it stands for."""
        flop = 2.0 * self.side**3
        return {
            "floor": (lambda _: self.tiny.add_(1), 0.0),
            "copy": (lambda _: self.target.copy_(self.source), 2.0 * self.source.nbytes),
            "read": (lambda _: torch.sum(self.source, dim=0, out=self.total), float(self.source.nbytes)),
            **{f"gemm {kind}": (call, flop) for kind, call in self.products.items()},
        }

    def warm_up(self, *, tiny_calls: int = 100, calls: int = 3) -> None:
        """Call everything before the first sample: the first launches of a process take the host many times longer."""
        for name, (call, _) in self.calls().items():
            for index in range(tiny_calls if name == "floor" else calls):
                call(index)
        self.clock.synchronize()
        self.clock.samples(self.calls()["floor"][0], MAX_SAMPLES - 1)

    def sample(self, count: int) -> list[dict[str, object]]:
        """`count` samples of each: [{"what", "work", "ms": [...]}]."""
        return [{"what": name, "work": work, "ms": self.clock.samples(call, count)}
                for name, (call, work) in self.calls().items()]

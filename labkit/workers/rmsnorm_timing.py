"""Timing on a GPU, four ways, every provider measured in every round so that each ratio has its baseline beside it.

- stream: a loop of calls, inputs rotated over more than 4x the L2 cache, time per call. What a program sees: the host's
  launch cost is in it when the host is slower than the GPU.
- cold: one call between two events after the L2 was refilled with clean lines of another buffer, the host ahead.
- graph: the stream loop captured once and replayed: the GPU's time without the host's.
- warm: a replayed graph over one buffer: what L2 gives a small tensor.
Needs CUDA. All times are milliseconds per call.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

Call = Callable[[int], object]
"""One call; the argument counts up and selects the rotating buffer."""
DEVICE = "cuda"
HEAD_START_CYCLES = 60_000
"""GPU spins this long (about 30 us) before a stream sample, so that its first launch is not waited for."""
COLD_HEAD_START_CYCLES = 2_000_000
"""The same before a round of cold samples (about 1 ms): the host enqueues the whole round meanwhile."""


def rotated(names: list[str], by: int) -> list[str]:
    """The names starting at position `by` (modulo): a drift then hits every provider alike."""
    at = by % len(names)
    return names[at:] + names[:at]


def calls_per_sample(min_bytes: int, *, l2_bytes: int) -> int:
    """Calls of one stream sample: about 1.5 ms of GPU time, 4 to 96, and enough to walk 4x the L2 cache."""
    by_time = int(1.5e-3 / (min_bytes / 3e12 + 5e-6))
    return max(4, min(96, max(by_time, -(-4 * l2_bytes // min_bytes))))


def num_buffers(min_bytes: int, *, l2_bytes: int) -> int:
    """Input/output pairs to rotate over: more than 4x the L2 cache in all, at least 2."""
    return max(2, min(96, -(-4 * l2_bytes // min_bytes) + 1))


class Flush:
    """Fills L2 with clean lines of a buffer four times its size, by reading."""

    def __init__(self, l2_bytes: int) -> None:
        self.buffer = torch.ones(4 * l2_bytes // 4, dtype=torch.float32, device=DEVICE)
        self.total = torch.zeros((), dtype=torch.float32, device=DEVICE)

    def __call__(self) -> None:
        torch.sum(self.buffer, dim=0, out=self.total)


def warm_up(calls: Mapping[str, Call], *, repeats: int = 5) -> None:
    """Call everything a few times and wait: compilation, caches and clocks stay out of the samples."""
    for call in calls.values():
        for index in range(repeats):
            call(index)
    torch.cuda.synchronize()


def stream_samples(calls: Mapping[str, Call], *, rounds: int, per_sample: Mapping[str, int]) -> dict[str, list[float]]:
    """`rounds` samples a provider of a back-to-back loop, in ms per call; one more round before them is dropped.

    That first round is slower: up to three times where it replays a graph, which is then sent to the GPU.
    """
    samples: dict[str, list[float]] = {name: [] for name in calls}
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    for round_index in range(rounds + 1):
        for name in rotated(list(calls), round_index):
            call, count = calls[name], per_sample[name]
            torch.cuda.synchronize()
            torch.cuda._sleep(HEAD_START_CYCLES)
            begin.record()
            for index in range(count):
                call(index)
            end.record()
            end.synchronize()
            samples[name].append(begin.elapsed_time(end) / count)
    return {name: values[1:] for name, values in samples.items()}


def cold_samples(
    calls: Mapping[str, Call], *, rounds: int, flush: Callable[[], object], head_start: int = COLD_HEAD_START_CYCLES
) -> dict[str, list[float]]:
    """`rounds` samples a provider of one call after `flush`, in ms; one more round before them is dropped.

    The GPU spins `head_start` cycles before each round, so that the host stays ahead of it.
    """
    samples: dict[str, list[float]] = {name: [] for name in calls}
    pairs = {name: (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for name in calls}
    for round_index in range(rounds + 1):
        torch.cuda.synchronize()
        torch.cuda._sleep(head_start)
        for name in rotated(list(calls), round_index):
            begin, end = pairs[name]
            flush()
            begin.record()
            calls[name](round_index)
            end.record()
        torch.cuda.synchronize()
        for name, (begin, end) in pairs.items():
            samples[name].append(begin.elapsed_time(end))
    return {name: values[1:] for name, values in samples.items()}


def capture(call: Call, count: int, *, is_rotating: bool) -> torch.cuda.CUDAGraph:
    """A CUDA graph of `count` calls, rotating over the buffers or staying on the first one."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for index in range(3):
            call(index)
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for index in range(count):
            call(index if is_rotating else 0)
    return graph


def graph_samples(
    graphs: Mapping[str, torch.cuda.CUDAGraph], *, rounds: int, calls_in: Mapping[str, int]
) -> dict[str, list[float]]:
    """`rounds` samples a provider of one replay, divided by the calls it holds: ms per call."""
    replays: dict[str, Call] = {name: (lambda _, graph=graph: graph.replay()) for name, graph in graphs.items()}
    samples = stream_samples(replays, rounds=rounds, per_sample=dict.fromkeys(graphs, 1))
    return {name: [value / calls_in[name] for value in values] for name, values in samples.items()}


def spin_up(seconds: float = 0.3) -> None:
    """Keep the GPU busy for a moment, so that the first samples do not run at idle clocks."""
    left, right = (torch.empty(64 * 2**20, dtype=torch.uint8, device=DEVICE) for _ in range(2))
    deadline = time.perf_counter() + seconds
    while time.perf_counter() < deadline:
        for _ in range(50):
            left.copy_(right)
        torch.cuda.synchronize()


def count_kernels(calls: Mapping[str, Call], separator: Callable[[], object]) -> dict[str, dict[str, Any]]:
    """What one call of each provider launches, by the profiler, in one profile.

    Args:
        calls: the providers, already warm.
        separator: launches one kernel whose name holds `empty_kernel`; it parts the providers in the trace.

    Returns: name -> {"kernels": n, "memory_ops": n, "names": [...]}. Raises: RuntimeError when the parts do not add up.
    """
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], acc_events=True) as trace:
        for call in calls.values():
            call(0)
            torch.cuda.synchronize()
            separator()
            torch.cuda.synchronize()
    on_gpu = [event for event in (trace.events() or []) if event.device_type.name == "CUDA"]
    parts: list[list[str]] = [[]]
    for event in sorted(on_gpu, key=lambda event: event.time_range.start):
        if "empty_kernel" in event.name:
            parts.append([])
        elif not event.name.startswith(("ProfilerStep", "Activity Buffer")):
            parts[-1].append(event.name)
    if len(parts) != len(calls) + 1 or parts[-1]:
        raise RuntimeError(f"the profiler saw {len(parts) - 1} separators, expected {len(calls)}")
    return {name: describe_launches(part) for name, part in zip(calls, parts)}


def describe_launches(names: list[str]) -> dict[str, Any]:
    """GPU activity names of one call -> kernels and memory operations counted apart, names shortened."""
    memory_ops = [name for name in names if name.startswith(("Memcpy", "Memset"))]
    return {"kernels": len(names) - len(memory_ops), "memory_ops": len(memory_ops),
            "names": sorted({name[:100] for name in names})}  # fmt: skip

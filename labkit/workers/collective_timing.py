"""Time a prepared call: many calls in a row for each sample, from a common start, on this rank's clock.

On a GPU the clock is CUDA events, and the calls are replayed from a CUDA graph where that works: launched one by one
from Python, a small collective takes as long as its launch. On a CPU it is the host's clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from labkit.workers.collective_calls import Call

Barrier = Callable[[], None]


def calls_per_sample(size_bytes: int, *, is_cuda: bool) -> int:
    """Calls in a row for one sample: enough that the clock's grain and the start do not show.

    One number for all sizes that are latency: with twenty up to 256 KiB and ten above, six pairs had a step there.
    """
    for limit, num_calls in ((2**22, 10), (2**26, 4)) if is_cuda else ((2**16, 10), (2**20, 3)):
        if size_bytes <= limit:
            return num_calls
    return 1


def time_call(call: Call, *, device: torch.device, barrier: Barrier, num_warmup: int, num_samples: int,
              wanted: str = "eager", common_start: bool = True) -> dict[str, Any]:
    """Samples of one call.

    Args:
        call: from `collective_calls.prepare`.
        device: of its buffers.
        barrier: returns when all ranks that run this have reached it.
        num_warmup: calls before the first sample.
        num_samples: samples; 0 for none.
        wanted: `graph` or `eager`, on CUDA.
        common_start: wait for the others before each sample; False: only before the first.

    Returns: {"times_us": [one for each sample: time of a call], "starts_s": [host clock], "num_calls", "timing",
        "graph_error": why it is not a graph, "loopback_bytes": of all timed calls, on a CPU}.
    """
    num_calls = calls_per_sample(call.size_bytes, is_cuda=device.type == "cuda")
    for _ in range(num_warmup):
        call.run()
    synchronize(device)
    if device.type != "cuda":
        return _on_cpu(call, barrier, num_samples, num_calls, common_start=common_start)
    graph, why = _capture(call, num_calls, device) if wanted == "graph" and num_samples else (None, None)

    timing = "graph" if graph is not None else "eager"
    run = graph.replay if graph is not None else (lambda: _repeat(call, num_calls))
    times, starts = [], []
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for i in range(num_samples):
        synchronize(device)
        if common_start or i == 0:
            barrier()
        run()  # not timed: both GPUs leave it together, and the next launch is queued before it ends
        starts.append(time.monotonic())
        begin.record()
        run()
        end.record()
        synchronize(device)
        times.append(begin.elapsed_time(end) * 1e3 / num_calls)
    barrier()
    del run, graph  # a communicator cannot be closed while a graph holds it
    synchronize(device)
    return {"times_us": times, "starts_s": starts, "num_calls": num_calls, "timing": timing, "graph_error": why,
            "loopback_bytes": None}


def _repeat(call: Call, num_calls: int) -> None:
    for _ in range(num_calls):
        call.run()


def _on_cpu(call: Call, barrier: Barrier, num_samples: int, num_calls: int, *, common_start: bool) -> dict[str, Any]:
    times, starts = [], []
    barrier()
    carried = loopback_bytes()
    barrier()  # nobody sends before all have read the counter
    for i in range(num_samples):
        if common_start and i:
            barrier()
        start = time.monotonic()
        _repeat(call, num_calls)
        times.append((time.monotonic() - start) * 1e6 / num_calls)
        starts.append(start)
    barrier()
    carried = loopback_bytes() - carried
    return {"times_us": times, "starts_s": starts, "num_calls": num_calls, "timing": "eager", "graph_error": None,
            "loopback_bytes": carried}


def _capture(call: Call, num_calls: int, device: torch.device) -> tuple[torch.cuda.CUDAGraph | None, str | None]:
    """A graph of `num_calls` calls, or why there is none."""
    try:
        stream = torch.cuda.Stream(device)
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            call.run()
        torch.cuda.current_stream(device).wait_stream(stream)
        synchronize(device)
        graph = torch.cuda.CUDAGraph()
        # The library's watchdog thread asks about events meanwhile: only this thread must not.
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            for _ in range(num_calls):
                call.run()
        synchronize(device)
        return graph, None
    except RuntimeError as error:
        return None, str(error).splitlines()[0][:200]


def synchronize(device: torch.device) -> None:
    """Wait for the device; nothing to wait for on a CPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def loopback_bytes() -> int:
    """Bytes that this host's loopback interface has carried since boot (0 where it does not count)."""
    try:
        lines = Path("/proc/net/dev").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((int(line.split(":")[1].split()[0]) for line in lines if line.strip().startswith("lo:")), 0)

"""Send a plan of requests to an OpenAI-style server and stamp every byte that comes back.

Bytes are stamped first and parsed after the run. A client that parses between two reads stamps what waited behind its
own parsing: with 512 streams on two cores that alone is most of a second. What a stream means is decided in
`labkit.analyze.load_results`, from the stamps.

One connection a request, closed by the server at the end: the end of a stream is the end of the connection, whatever
its framing, and nothing has to be parsed to see it.
"""

from __future__ import annotations

import gc
import json
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from labkit.launch.load_plan import Request
from labkit.launch.stamp_loop import Answer, StampLoop

__all__ = ["Answer", "Load", "LoadClientError", "send_load"]

MAX_LAG_P99_S = 0.05
"""A loop that wakes later than this stamps late: its times would be the client's own."""
MAX_CLOCK_SET_S = 0.001


class LoadClientError(RuntimeError):
    """The load could not be applied, or the client was too slow to be believed; the message is one line."""


@dataclass(slots=True, kw_only=True)
class Load:
    """One run of a plan."""

    answers: list[Answer]
    started_s: float
    ended_s: float
    loop_lag_s: list[float]
    """How late the client's own loop woke, every TICK_S."""
    cpu_s: float
    """Processor time of this process during the run, the client's and whatever else it did."""
    stamped_by: str = "client"
    """"kernel": when the bytes arrived at this machine; "client": when they were read."""

    @property
    def lag_p99_s(self) -> float:
        """99th percentile (nearest rank) of the loop's lag."""
        ordered = sorted(self.loop_lag_s)
        return ordered[-(-len(ordered) * 99 // 100) - 1] if ordered else 0.0


def send_load(
    plan: Sequence[Request], *, host: str, port: int, model: str, concurrency: int | None = None,
    timeout_s: float = 600.0, path: str = "/v1/completions", should_stop: Callable[[], bool] | None = None,
    max_lag_p99_s: float = MAX_LAG_P99_S, watch: Callable[[Sequence[Answer]], None] | None = None,
) -> Load:
    """Run a plan to its end; works inside a notebook too, where a loop is running already.

    Args:
        plan: requests in order. With `at_s` each is sent at its time (open loop), without when a place is free.
        host: of the server, a name or an address.
        port: of the server.
        model: name the server serves.
        concurrency: requests in flight at most; required for a closed loop. In an open loop it would turn the plan
            into another one, so there it is refused.
        timeout_s: of one request, from its sending.
        path: of the completion endpoint.
        should_stop: asked often; when it says True no further request is sent and those in flight are given up.
        max_lag_p99_s: the loop's lag above which no result is given.
        watch: given the answers before anything is sent: another thread sees in them what has come so far.

    Returns: what was seen of every request that was sent, in the plan's order.
    Raises: ValueError for a plan that cannot be run; LoadClientError when the host has no address, or the client's own
        loop was too late too often.
    """
    if not plan:
        raise ValueError("plan: expected at least one request")
    is_open = plan[0].at_s is not None
    if any((request.at_s is not None) != is_open for request in plan):
        raise ValueError("plan: expected at_s for every request or for none")
    if is_open == (concurrency is not None):
        raise ValueError(f"concurrency={concurrency!r}: expected a number in a closed loop, none in an open one")
    if concurrency is not None and concurrency < 1:
        raise ValueError(f"concurrency={concurrency}: expected at least 1")
    payloads = [_payload(request, host=host, port=port, model=model, path=path) for request in plan]
    answers = [Answer(index=index, planned_s=None) for index in range(len(plan))]
    if watch is not None:
        watch(answers)
    given_up = threading.Event()
    asked = should_stop or (lambda: False)
    try:
        loop = StampLoop(payloads, answers, host=host, port=port, timeout_s=timeout_s,
                         should_stop=lambda: given_up.is_set() or asked())
    except OSError as error:
        raise LoadClientError(f"host={host!r}: {error.strerror or error}") from None
    times = None if concurrency is not None else [request.at_s or 0.0 for request in plan]
    load = _in_own_thread(lambda: _run(loop, times, concurrency), given_up)
    if load.lag_p99_s > max_lag_p99_s:
        raise LoadClientError(f"the client's own loop woke {load.lag_p99_s * 1e3:.0f} ms late (p99, expected at most "
                              f"{max_lag_p99_s * 1e3:.0f}): its times would not be the server's; use fewer streams")
    return load


def _payload(request: Request, *, host: str, port: int, model: str, path: str) -> bytes:
    body = json.dumps(request.body(model), separators=(",", ":")).encode()
    head = (f"POST {path} HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/json\r\n"
            f"Accept: text/event-stream\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n")
    return head.encode() + body


def _in_own_thread(work: Callable[[], Load], given_up: threading.Event) -> Load:
    """Ctrl-C reaches the caller between two instructions of the loop, never inside it; then the load is given up."""
    found: list[Load] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            found.append(work())
        except BaseException as error:
            failed.append(error)
        finally:
            ended.set()

    ended = threading.Event()
    thread = threading.Thread(target=run, name="load-client", daemon=True)
    thread.start()
    try:
        ended.wait()  # not join: interrupted once, Python 3.11 takes the thread for ended
    except BaseException:
        given_up.set()
        ended.wait(5.0)
        raise
    finally:
        thread.join(timeout=1.0)
    if failed:
        raise failed[0]
    return found[0]


def _run(loop: StampLoop, times: Sequence[float] | None, concurrency: int | None) -> Load:
    gc.collect()
    gc.freeze()  # a collection over everything that was ever imported would stamp late
    begun, cpu = time.perf_counter(), time.process_time()
    try:
        if concurrency is not None:
            loop.run_closed(concurrency)
        else:
            loop.run_open(times or [], begun)
    finally:
        ended, cpu = time.perf_counter(), time.process_time() - cpu
        gc.unfreeze()
        clock_set_s = loop.close()
    if loop.num_by_kernel and clock_set_s > MAX_CLOCK_SET_S:
        raise LoadClientError(f"the system's clock was set by {clock_set_s * 1e3:.0f} ms during the load: its stamps "
                              "cannot be used; run it again")
    return Load(answers=[answer for answer in loop.answers if answer.sent_s or answer.error], started_s=begun,
                ended_s=ended, loop_lag_s=loop.lags, cpu_s=cpu,
                stamped_by="client" if loop.num_by_client else "kernel")

"""Send a plan of requests to an OpenAI-style server and stamp every byte that comes back.

Bytes are stamped first and parsed after the run. A client that parses between two reads stamps what waited behind its
own parsing: with 512 streams on two cores that alone is most of a second. What a stream means is decided in
`labkit.analyze.load_results`, from the stamps.

One connection a request, closed by the server at the end: the end of a stream is the end of the connection, whatever
its framing, and nothing has to be parsed to see it.
"""

from __future__ import annotations

import asyncio
import gc
import json
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from labkit.launch.load_plan import Request

LAG_PERIOD_S = 0.01
MAX_LAG_P99_S = 0.05
"""A loop that wakes later than this stamps late: its times would be the client's own."""


class LoadClientError(RuntimeError):
    """The load could not be applied, or the client was too slow to be believed; the message is one line."""


@dataclass(slots=True, kw_only=True)
class Answer:
    """Everything that was seen of one request. Times are seconds of `time.perf_counter`."""

    index: int
    planned_s: float | None
    """When it was to be sent; None in a closed loop."""
    sent_s: float = 0.0
    """When its bytes were handed to the system, before anything could come back."""
    ended_s: float = 0.0
    pieces: list[tuple[float, bytes]] = field(default_factory=list)
    """(time, bytes) as they arrived, HTTP header and framing included."""
    error: str | None = None
    """Of the connection: refused, reset, timed out. What the server said stands in the pieces."""


@dataclass(slots=True, kw_only=True)
class Load:
    """One run of a plan."""

    answers: list[Answer]
    started_s: float
    ended_s: float
    loop_lag_s: list[float]
    """How late the client's own loop woke, every LAG_PERIOD_S."""
    cpu_s: float
    """Processor time of this process during the run, the client's and whatever else it did."""

    @property
    def lag_p99_s(self) -> float:
        """99th percentile (nearest rank) of the loop's lag."""
        ordered = sorted(self.loop_lag_s)
        return ordered[-(-len(ordered) * 99 // 100) - 1] if ordered else 0.0


class _Stream(asyncio.Protocol):
    """One connection: send, then stamp."""

    def __init__(self, answer: Answer, payload: bytes, done: asyncio.Future[None]) -> None:
        self.answer, self.payload, self.done = answer, payload, done
        self.append, self.clock = answer.pieces.append, time.perf_counter
        self.transport: asyncio.BaseTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.answer.sent_s = self.clock()
        transport.write(self.payload)  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        self.append((self.clock(), data))

    def connection_lost(self, exc: Exception | None) -> None:
        self.answer.ended_s = self.clock()
        if exc is not None:
            self.answer.error = f"{type(exc).__name__}: {exc}"
        if not self.done.done():
            self.done.set_result(None)


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
    Raises: ValueError for a plan that cannot be run; LoadClientError when the client's own loop was too late too often.
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
    target = (host, port, timeout_s, should_stop or (lambda: False))
    answers = [Answer(index=index, planned_s=None) for index in range(len(plan))]
    if watch is not None:
        watch(answers)
    load = _in_own_loop(lambda: _run(plan, payloads, answers, concurrency, target))
    if load.lag_p99_s > max_lag_p99_s:
        raise LoadClientError(f"the client's own loop woke {load.lag_p99_s * 1e3:.0f} ms late (p99, expected at most "
                              f"{max_lag_p99_s * 1e3:.0f}): its times would not be the server's; use fewer streams")
    return load


def _payload(request: Request, *, host: str, port: int, model: str, path: str) -> bytes:
    body = json.dumps(request.body(model), separators=(",", ":")).encode()
    head = (f"POST {path} HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/json\r\n"
            f"Accept: text/event-stream\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n")
    return head.encode() + body


def _in_own_loop(make: Callable[[], object]) -> Load:
    """Run a coroutine to its end in a thread of its own; an error or Ctrl-C reaches the caller."""
    found: list[Load] = []
    failed: list[BaseException] = []

    def work() -> None:
        try:
            found.append(asyncio.run(make()))  # type: ignore[arg-type]
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=work, name="load-client", daemon=True)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return found[0]


async def _run(plan: Sequence[Request], payloads: Sequence[bytes], answers: list[Answer], concurrency: int | None,
               target: tuple[str, int, float, Callable[[], bool]]) -> Load:
    lags: list[float] = []
    watch = asyncio.create_task(_watch_lag(lags))
    gc.collect()
    gc.freeze()  # a collection over everything that was ever imported would stamp late
    begun, cpu = time.perf_counter(), time.process_time()
    try:
        if concurrency is None:
            await _open_loop(plan, payloads, answers, begun, target)
        else:
            await _closed_loop(payloads, answers, concurrency, target)
    finally:
        ended = time.perf_counter()
        gc.unfreeze()
        watch.cancel()
    return Load(answers=[answer for answer in answers if answer.sent_s or answer.error], started_s=begun,
                ended_s=ended, loop_lag_s=lags, cpu_s=time.process_time() - cpu)


async def _watch_lag(lags: list[float]) -> None:
    while True:
        due = time.perf_counter() + LAG_PERIOD_S
        await asyncio.sleep(LAG_PERIOD_S)
        lags.append(max(0.0, time.perf_counter() - due))


async def _closed_loop(payloads: Sequence[bytes], answers: list[Answer], concurrency: int,
                       target: tuple[str, int, float, Callable[[], bool]]) -> None:
    waiting = iter(range(len(payloads)))

    async def place() -> None:
        for index in waiting:  # shared: each place takes the next request of the plan
            if target[3]():
                return
            await _one(answers[index], payloads[index], target)

    await asyncio.gather(*(place() for _ in range(min(concurrency, len(payloads)))))


async def _open_loop(plan: Sequence[Request], payloads: Sequence[bytes], answers: list[Answer], begun: float,
                     target: tuple[str, int, float, Callable[[], bool]]) -> None:
    running = []
    for index in sorted(range(len(plan)), key=lambda i: (plan[i].at_s or 0.0, i)):
        due = begun + (plan[index].at_s or 0.0)
        while not target[3]() and (wait := due - time.perf_counter()) > 0:
            await asyncio.sleep(min(wait, 0.1))
        if target[3]():
            break
        answers[index].planned_s = due
        running.append(asyncio.create_task(_one(answers[index], payloads[index], target)))
    await asyncio.gather(*running)


async def _one(answer: Answer, payload: bytes, target: tuple[str, int, float, Callable[[], bool]]) -> None:
    """Send one request and wait for its end, its deadline, or the wish to stop."""
    host, port, timeout_s, should_stop = target
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()
    deadline = time.perf_counter() + timeout_s
    try:
        connecting = loop.create_connection(lambda: _Stream(answer, payload, done), host, port)
        transport, _ = await asyncio.wait_for(connecting, timeout_s)
    except (OSError, TimeoutError) as error:
        answer.ended_s = time.perf_counter()
        answer.error = f"{type(error).__name__}: {error or f'no connection within {timeout_s:g} s'}"
        return
    while not done.done():
        left = deadline - time.perf_counter()
        if left <= 0 or should_stop():
            answer.error = "stopped" if left > 0 else f"no end within {timeout_s:g} s"
            transport.abort()
        await asyncio.wait([done], timeout=min(max(left, 0.01), 0.25))

"""Hold a server's scheduler, let requests come in, and release them into one step.

HTTP requests that are sent at once still reach the scheduler one by one, some steps apart. `POST /pause?mode=keep`
(vLLM from early 2026 on, with VLLM_SERVER_DEV_MODE=1) stops the scheduler while requests are still taken in; after
`POST /resume` its first step sees all of them. The engine reads its messages in the order in which the API server sent
them, so it is enough that the API server has passed every request on before it is told to resume.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from labkit.launch.load_client import Answer, Load
from labkit.launch.load_plan import Request
from labkit.launch.server import Server, send_to
from labkit.launch.supervise import LaunchError

SETTLE_S = 0.3
"""After the last answer has begun: the API server begins an answer just before it passes the request on."""
HEADER_TIMEOUT_S = 10.0
POLL_S = 0.01
HELD = "held by /pause, released by /resume"


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """A load whose first requests were released together, or as nearly so as the server allowed."""

    load: Load
    released_s: float
    """When they were released, `time.perf_counter`. Times of requests sent before count from here."""
    how: str
    """HELD, or why they were not held."""


def send_together(
    server: Server, plan: Sequence[Request], *, concurrency: int, settle_s: float = SETTLE_S,
    header_timeout_s: float = HEADER_TIMEOUT_S, should_stop: Callable[[], bool] | None = None, **options: Any,
) -> Release:
    """Run a plan in a closed loop, its first `concurrency` requests in the scheduler's queue before its first step.

    Args:
        server: whose scheduler is held.
        plan: requests in order.
        concurrency: requests in flight at most; so many are released together.
        settle_s: seconds between the last answer's first bytes and the release.
        header_timeout_s: seconds to wait for the answers to begin. A server that begins them only with a token is
            released after that, and `how` says so.
        should_stop: as for `send_load`.
        options: more arguments of `send_load`.

    Returns: what was seen, when it was released, and how.
    Raises: ValueError as `send_load`; LaunchError when the server died, does not go on after the pause, or the client
        was too slow to be believed.
    """
    status = server.post("/pause?mode=keep")
    if status != 200:
        server.raise_if_dead()
    is_held = status == 200
    answers: list[Sequence[Answer]] = []
    loads: list[Load] = []
    failed: list[BaseException] = []

    def work() -> None:
        try:
            loads.append(send_to(server, plan, concurrency=concurrency, should_stop=should_stop, watch=answers.append,
                                 **options))
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=work, name="held-load", daemon=True)
    how = HELD if is_held else f"sent at once: /pause answered {status or 'nothing'}"
    released_s = time.perf_counter()
    thread.start()
    if is_held:
        try:
            begun = _wait_for_answers(answers, min(concurrency, len(plan)), thread, header_timeout_s, should_stop)
            if not begun:
                how += f", before every answer had begun: waited {header_timeout_s:g} s"
            time.sleep(settle_s)
        finally:
            released_s = time.perf_counter()
            status = server.post("/resume")
    if is_held and status != 200:
        server.raise_if_dead()
        raise LaunchError(f"the server does not go on after a pause: /resume answered {status or 'nothing'}",
                          log_path=server.log)
    thread.join()
    if failed:
        raise failed[0]
    return Release(load=loads[0], released_s=released_s, how=how)


def _wait_for_answers(answers: list[Sequence[Answer]], count: int, thread: threading.Thread, timeout_s: float,
                      should_stop: Callable[[], bool] | None) -> bool:
    """Until the first bytes of `count` answers are there; False when the time is over or nothing can come."""
    deadline = time.perf_counter() + timeout_s
    while time.perf_counter() < deadline and thread.is_alive() and not (should_stop and should_stop()):
        if answers and sum(bool(answer.pieces) for answer in answers[0]) >= count:
            return True
        time.sleep(POLL_S)
    return False

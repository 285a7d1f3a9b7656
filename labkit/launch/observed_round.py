"""One load on one server, seen from all sides: the client's stamps, two pages of metrics, samples in between, the log.

A log comes late, by nobody knows how much: after the load one small request more is sent, the marker, and what stands
before the line of its step is the load's, whole. This layer reads no formats: the caller says how many requests a page
has counted, and where the marker's line begins.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from labkit.launch.load_plan import Request
from labkit.launch.metrics_sampler import Sample, sampled
from labkit.launch.release import Release, send_together
from labkit.launch.server import Server, send_to
from labkit.launch.supervise import LaunchError

SETTLE_S = 8.0
"""How long page and log may lag behind the last answer."""
POLL_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """A load and everything that was seen of it."""

    release: Release
    before: str
    after: str
    """Pages of metrics, the second when it had counted every request, or SETTLE_S later."""
    samples: list[Sample]
    log_text: str
    """What the server said meanwhile."""


def observe(
    server: Server, plan: Sequence[Request], *, concurrency: int | None, held: bool,
    read_sample: Callable[[str], Sample], num_finished: Callable[[str], int], marker: Request,
    find_marker: Callable[[str], int], period_s: float, timeout_s: float, max_lag_p99_s: float,
    on_sample: Callable[[Sample], None] | None = None, should_stop: Callable[[], bool] | None = None,
    settle_s: float = SETTLE_S,
) -> Observed:
    """Send a plan and look on.

    Args:
        server: where to.
        plan: requests.
        concurrency: in flight at most; None for an open loop.
        held: the first `concurrency` requests are released together; else each goes as it comes.
        read_sample: page of metrics -> values of a sample.
        num_finished: page of metrics -> requests that have ended since the server's start.
        marker: request that is sent after the load; no page that is returned counts it.
        find_marker: piece of log -> where the line of the marker's step begins, -1 when it is not there.
        period_s: of the samples, seconds.
        timeout_s: of one request, seconds.
        max_lag_p99_s: of the client's own loop, seconds.
        on_sample: called with each sample as it comes.
        should_stop: asked often; True ends the load.
        settle_s: how long page and log may each lag behind, seconds; then they are taken as they are.

    Raises: ValueError for `held` without a concurrency; LaunchError when the server died, has no page, or the client
        was too slow to be believed.
    """
    if held and concurrency is None:
        raise ValueError("held=True: expected a concurrency: so many are released together")
    options: dict[str, Any] = {"timeout_s": timeout_s, "max_lag_p99_s": max_lag_p99_s, "should_stop": should_stop}
    said, before = len(server.log_text()), server.scrape()
    with sampled(server.scrape, read=read_sample, period_s=period_s, on_sample=on_sample) as samples:
        if held and concurrency is not None:
            release = send_together(server, plan, concurrency=concurrency, **options)
        else:
            load = send_to(server, plan, concurrency=concurrency, **options)
            release = Release(load=load, released_s=load.started_s, how="each as it came")
    server.raise_if_dead()
    wanted, deadline = num_finished(before) + len(plan), time.monotonic() + settle_s
    while num_finished(after := server.scrape()) < wanted and time.monotonic() < deadline:
        _pause(server, should_stop)
    send_to(server, [marker], concurrency=1, timeout_s=timeout_s, max_lag_p99_s=max_lag_p99_s)
    deadline = time.monotonic() + settle_s
    # The next load's first page must count the marker already.
    while ((end := find_marker(told := server.log_text()[said:])) < 0 or num_finished(server.scrape()) <= wanted) \
            and time.monotonic() < deadline:
        _pause(server, should_stop)
    return Observed(release=release, before=before, after=after, samples=samples,
                    log_text=told[:end] if end >= 0 else told)


def _pause(server: Server, should_stop: Callable[[], bool] | None) -> None:
    if should_stop and should_stop():
        raise LaunchError("stopped by the user", log_path=server.log)
    time.sleep(POLL_S)

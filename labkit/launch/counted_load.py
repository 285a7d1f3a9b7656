"""Send a load to a vLLM server between two looks at its metrics page.

The page after a load is the page before the next one, so that a request from anybody else cannot fall between two pages
unseen. This layer reads no formats: `num_finished` tells how many requests a page says have ended.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from labkit.launch.load_client import Load
from labkit.launch.load_plan import Request
from labkit.launch.server import Server, send_to

SETTLE_S = 10.0
"""The engine counts a request just after its last byte is sent: a page of that moment may lack it."""
POLL_S = 0.05
GUARD = "labkit.launch.guard"


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedLoad:
    """A load and the pages around it."""

    load: Load
    before: str
    after: str


def send_counted(
    server: Server, plan: Sequence[Request], *, before: str, num_finished: Callable[[str], int],
    concurrency: int | None, timeout_s: float, max_lag_p99_s: float, settle_s: float = SETTLE_S,
) -> CountedLoad:
    """Send a plan, then wait until the server's page has counted all of it.

    Args:
        server: where to.
        plan: requests.
        before: page of just before.
        num_finished: text of a page -> requests that have ended since the server's start.
        concurrency: in flight at most; None for an open loop.
        timeout_s: of one request, seconds.
        max_lag_p99_s: of the client's own loop, seconds.
        settle_s: how long a page may lag behind, seconds; then the last one is taken, and the counts will not agree.

    Raises: LaunchError when the server died, has no page, or the client was too slow to be believed.
    """
    wanted = num_finished(before) + len(plan)
    load = send_to(server, plan, concurrency=concurrency, timeout_s=timeout_s, max_lag_p99_s=max_lag_p99_s)
    server.raise_if_dead()
    deadline = time.monotonic() + settle_s
    while num_finished(after := server.scrape()) < wanted and time.monotonic() < deadline:
        time.sleep(POLL_S)
    return CountedLoad(load=load, before=before, after=after)


class CountedServer:
    """A server and its last metrics page; every page is kept in a file."""

    def __init__(
        self, name: str, server: Server, *, pages: Path, num_finished: Callable[[str], int], timeout_s: float,
        max_lag_p99_s: float,
    ) -> None:
        """Take the first page.

        Args:
            name: of the server.
            server: where to.
            pages: file that the pages are appended to.
            num_finished: as `send_counted`.
            timeout_s: as `send_counted`.
            max_lag_p99_s: as `send_counted`.
        """
        self.name, self.server, self._pages, self._num_finished = name, server, pages, num_finished
        self._timeout_s, self._max_lag_p99_s = timeout_s, max_lag_p99_s
        self.page = server.scrape()
        self._keep("the start")

    def _keep(self, moment: str) -> None:
        with open(self._pages, "a", encoding="utf-8") as stream:
            stream.write(f"# page of {self.name} after {moment}\n{self.page}\n")

    def send(self, step: str, plan: Sequence[Request], *, concurrency: int | None) -> CountedLoad:
        """Play one step; the page after it is the page before the next.

        Args:
            step: what it is called.
            plan: requests.
            concurrency: in flight at most; None for an open loop.
        """
        seen = send_counted(self.server, plan, before=self.page, num_finished=self._num_finished,
                            concurrency=concurrency, timeout_s=self._timeout_s, max_lag_p99_s=self._max_lag_p99_s)
        self.page = seen.after
        self._keep(step)
        return seen


def processes_of(argv: Sequence[str]) -> list[psutil.Process]:
    """Everything that runs below the guard that this process started for a command line; none if there is no guard.

    By the guard and not by the names of the processes: an engine may give itself another title.
    """
    found: list[psutil.Process] = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error, ValueError):
            words = process.cmdline()
            if GUARD in words and json.loads(words[-1]).get("argv") == list(argv):
                found += process.children(recursive=True)
    return found


def still_running(processes: Sequence[psutil.Process]) -> int:
    """How many of these processes, the very same ones, exist and are no zombies."""
    count = 0
    for process in processes:
        with contextlib.suppress(psutil.Error):
            count += process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return count

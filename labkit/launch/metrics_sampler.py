"""Look at a server's metrics several times a second beside a running load.

A gauge is what it was at the moment of a scrape: a peak between two scrapes is not seen. Counters miss nothing.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

PERIOD_S = 0.25
Sample = dict[str, Any]


@contextlib.contextmanager
def sampled(
    scrape: Callable[[], str], *, read: Callable[[str], Sample], period_s: float = PERIOD_S,
    on_sample: Callable[[Sample], None] | None = None,
) -> Iterator[list[Sample]]:
    """Scrape while the block runs; the list is filled when it ends.

    Args:
        scrape: gives the text of a page; whatever it raises becomes the sample's `error`.
        read: a page as values. Called after the run, so that parsing takes no time from a client in this process;
            with `on_sample` at once.
        period_s: from scrape to scrape, seconds, > 0. A scrape that takes longer is followed at once, and none is made
            up for it.
        on_sample: called from the sampling thread with each sample; what it raises is ignored, the run goes on.

    Yields: a list, empty until the end, then [{"t_s": `time.perf_counter` when the page was there, "scrape_s": how
        long it took, and what `read` gave or "error"}].
    Raises: ValueError for a period of 0 or less.
    """
    if not period_s > 0:
        raise ValueError(f"period_s={period_s!r}: expected seconds above 0")
    pages: list[tuple[float, float, str | Sample]] = []
    ended = threading.Event()

    def work() -> None:
        due = time.perf_counter()
        while True:
            begun = time.perf_counter()
            page: str | Sample
            try:
                page = scrape()
            except Exception as error:
                page = {"error": f"{type(error).__name__}: {error}"}
            now = time.perf_counter()
            if on_sample is not None:
                page = _read(page, read)
                with contextlib.suppress(Exception):
                    on_sample({"t_s": now, "scrape_s": now - begun, **page})
            pages.append((now, now - begun, page))
            due = max(due + period_s, now)
            if ended.wait(due - now):
                return

    thread = threading.Thread(target=work, name="metrics-sampler", daemon=True)
    samples: list[Sample] = []
    thread.start()
    try:
        yield samples
    finally:
        ended.set()
        thread.join(timeout=30.0)
        samples += [{"t_s": when, "scrape_s": took, **_read(page, read)} for when, took, page in list(pages)]


def _read(page: str | Sample, read: Callable[[str], Sample]) -> Sample:
    if not isinstance(page, str):
        return page
    try:
        return read(page)
    except ValueError as error:
        return {"error": str(error)}

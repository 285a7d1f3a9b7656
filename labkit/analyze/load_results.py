"""What a load test came to: TTFT, TPOT, ITL and E2EL of each request, from the stamps of its bytes.

Definitions (the glossary has them for readers), all from the moment the request was sent:
TTFT until the first chunk with text; E2EL until the last; TPOT = (E2EL - TTFT) / (output tokens - 1);
ITL the gaps between chunks, given where each chunk holds one token (else they are gaps of chunks, and called so).
A request that failed has no times: it enters no average, it is counted with its reason.
"""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from labkit.analyze.sse import read_stream
from labkit.calc.statistics import nearest_rank

QUANTILES = {"p10": 10, "p50": 50, "p90": 90, "p99": 99}


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One request. Times in seconds; None where the request failed or has too few tokens."""

    index: int
    label: str
    success: bool
    error: str | None
    status: int | None
    sent_s: float
    """From the start of the load."""
    queued_s: float | None
    """How much later than planned it was sent; None in a closed loop."""
    prompt_tokens: int | None
    output_tokens: int | None
    ttft_s: float | None = None
    e2el_s: float | None = None
    tpot_s: float | None = None
    gaps_s: tuple[float, ...] = ()
    """Between chunks with text."""
    one_token_a_chunk: bool = False


def split_body(pieces: Sequence[tuple[float, bytes]]) -> tuple[int | None, bytes, list[int], list[float], bool]:
    """HTTP header and framing taken off, and for each part of the body when it came.

    Args:
        pieces: (time, bytes) as received.

    Returns: status (None without a header), body, ends (offset in the body where each part ends), times (when that
        part was complete), whole (the framing says that nothing is missing).
    """
    raw = b"".join(data for _, data in pieces)
    arrived, total = [], 0
    for _, data in pieces:
        total += len(data)
        arrived.append(total)
    when = lambda offset: pieces[bisect.bisect_left(arrived, offset)][0]  # noqa: E731
    head_end = raw.find(b"\r\n\r\n")
    if not raw.startswith(b"HTTP/") or head_end < 0:
        return None, raw, [], [], False
    head = raw[:head_end].decode("latin-1")
    status = int(head.split(None, 2)[1]) if head.split(None, 2)[1:2] and head.split(None, 2)[1].isdigit() else None
    fields = {name.strip().lower(): value.strip() for name, _, value in
              (line.partition(":") for line in head.split("\r\n")[1:])}
    start = head_end + 4
    if "chunked" not in fields.get("transfer-encoding", "").lower():
        body, ends, times = raw[start:], [], []
        for (time_s, _), end in zip(pieces, arrived):
            if end > start:
                ends.append(end - start)
                times.append(time_s)
        length = fields.get("content-length", "")
        return status, body, ends, times, not length.isdigit() or len(body) >= int(length)
    parts, ends, times, done = [], [], [], 0
    while (line_end := raw.find(b"\r\n", start)) >= 0:
        try:
            size = int(raw[start:line_end].split(b";")[0], 16)
        except ValueError:
            break
        if size == 0:
            return status, b"".join(parts), ends, times, True
        end = line_end + 2 + size
        if end > len(raw):
            break
        parts.append(raw[line_end + 2 : end])
        done += size
        ends.append(done)
        times.append(when(end))
        start = end + 2
    return status, b"".join(parts), ends, times, False


def read_result(
    pieces: Sequence[tuple[float, bytes]], *, index: int, label: str, sent_s: float, started_s: float,
    planned_s: float | None, output_tokens: int, error: str | None = None,
) -> Result:
    """One request from its stamps.

    Args:
        pieces: (time, bytes) as received; header and framing included.
        index: in the plan.
        label: of the request.
        sent_s: when it was sent, on the clock of the pieces.
        started_s: when the load began, same clock.
        planned_s: when it was to be sent, same clock; None in a closed loop.
        output_tokens: asked for; another number is a failure.
        error: of the connection.
    """
    status, body, ends, times, whole = split_body(pieces)
    stream = read_stream(body.decode("utf-8", "replace"))
    why = _failure(stream, status=status, error=error, whole=whole, wanted=output_tokens)
    common: dict[str, Any] = dict(
        index=index, label=label, success=why is None, error=why, status=status, sent_s=sent_s - started_s,
        queued_s=None if planned_s is None else sent_s - planned_s, prompt_tokens=stream["prompt_tokens"],
        output_tokens=stream["completion_tokens"])
    if why is not None:
        return Result(**common)
    stamps = _chunk_times(body, ends, times)
    first, last = stamps[0], stamps[-1]
    tokens = stream["completion_tokens"] or len(stamps)
    return Result(
        **common, ttft_s=first - sent_s, e2el_s=last - sent_s,
        tpot_s=(last - first) / (tokens - 1) if tokens > 1 else None,
        gaps_s=tuple(b - a for a, b in pairwise(stamps)), one_token_a_chunk=tokens == len(stamps))


def _failure(stream: dict[str, Any], *, status: int | None, error: str | None, whole: bool, wanted: int) -> str | None:
    """Why a request counts as failed, or None; what the server said comes before what followed from it."""
    if status is not None and status != 200:
        return f"HTTP {status}: {stream['error'] or 'no message'}"
    if status is None and error is None:
        return "no HTTP answer"
    if stream["error"] and not (error and stream["error"].startswith(("the stream was cut", "no event"))):
        return stream["error"]
    if error:
        return error
    if not whole:
        return "the stream was cut: its framing has no end"
    if stream["completion_tokens"] is not None and stream["completion_tokens"] != wanted:
        return f"{stream['completion_tokens']} output tokens, asked for {wanted}"
    if not stream["content_chunks"]:
        return "no text in the stream"
    return None


def _chunk_times(body: bytes, ends: list[int], times: list[float]) -> list[float]:
    """When each event with text was complete. Events may share a part, or be cut over several."""
    stamps, start = [], 0
    while start < len(body):
        cut, step = _event_end(body, start)
        event = read_stream(body[start:cut].decode("utf-8", "replace"))
        if event["content_chunks"]:
            stamps.append(times[min(bisect.bisect_left(ends, cut), len(times) - 1)])
        start = cut + step
    return stamps


def _event_end(body: bytes, start: int) -> tuple[int, int]:
    """Where the event that begins at `start` ends, and how long the blank line behind it is."""
    found = [(at, len(mark)) for mark in (b"\n\n", b"\r\n\r\n", b"\r\r") if (at := body.find(mark, start)) >= 0]
    return min(found, default=(len(body), 0))


def summarize(results: Sequence[Result], *, wall_s: float, lag_p99_s: float) -> dict[str, Any]:
    """Figures of a load test.

    Args:
        results: every request.
        wall_s: first sending to last end, seconds.
        lag_p99_s: of the client's own loop.

    Returns: num_requests, num_failed, failures (reason -> count), ttft_s, tpot_s, itl_s, e2el_s (each p10, p50, p90,
        p99, mean and n by nearest rank, None without a sample), gaps_are_of ("tokens" or "chunks"), output tokens and
        requests per second of the good ones, client_lag_p99_s, queued_p99_s.
    """
    good = [result for result in results if result.success]
    failures = Counter(str(result.error) for result in results if not result.success)
    queued = [result.queued_s for result in results if result.queued_s is not None]
    tokens = sum(result.output_tokens or len(result.gaps_s) + 1 for result in good)
    return {
        "num_requests": len(results), "num_failed": len(results) - len(good), "failures": dict(failures.most_common()),
        **{name: spread([value for result in good if (value := getattr(result, name)) is not None])
           for name in ("ttft_s", "tpot_s", "e2el_s")},
        "itl_s": spread([gap for result in good for gap in result.gaps_s]),
        "gaps_are_of": "tokens" if good and all(result.one_token_a_chunk for result in good) else "chunks",
        "output_tokens_per_s": tokens / wall_s if wall_s > 0 else None,
        "requests_per_s": len(good) / wall_s if wall_s > 0 else None,
        "client_lag_p99_s": lag_p99_s, "queued_p99_s": spread(queued)["p99"] if queued else None,
    }


def spread(values: Sequence[float]) -> dict[str, Any]:
    """Nearest-rank quantiles, mean and n; None for all but n without a sample. A p99 of under 100 samples is the max.

    >>> spread([1.0, 2.0, 3.0])
    {'n': 3, 'mean': 2.0, 'p10': 1.0, 'p50': 2.0, 'p90': 3.0, 'p99': 3.0}
    """
    n = len(values)
    return {"n": n, "mean": sum(values) / n if n else None,
            **{name: nearest_rank(values=values, percent=q) if n else None for name, q in QUANTILES.items()}}

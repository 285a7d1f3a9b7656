"""Prometheus and OpenMetrics text to numbers, about twenty times as fast as the reference parser.

A page is scraped several times a second beside a load client, on the same cores; that is why this is not a library's
parser. A property test compares the two.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from functools import lru_cache

Labels = tuple[tuple[str, str], ...]
Series = dict[Labels, float]

_LINE = re.compile(
    r'([a-zA-Z_:][a-zA-Z0-9_:]*\s*(?:\{(?:[^"}]|"(?:[^"\\]|\\.)*")*\})?)'  # name, labels
    r"\s+(\S+)(?:\s+-?[\d.]+)?(?:\s+#.*)?\s*$"  # value, time stamp, exemplar
)
_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL = re.compile(r'\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*(?:,|$)')
_ESCAPE = re.compile(r"\\(.)")
_UNESCAPED = {"n": "\n", '"': '"', "\\": "\\"}


class NotPrometheus(ValueError):
    """Text that is no page of metrics; the message is one line."""


def parse_metrics(text: str) -> tuple[dict[str, Series], int]:
    """Every sample of a page.

    Args:
        text: the body of a scrape, Prometheus text or OpenMetrics.

    Returns: name -> labels (sorted pairs) -> value, NaN and infinities included; and how many lines were no sample
        (a cut last line, damage). Time stamps and exemplars are dropped. A repeated series keeps its last value.
    Raises: NotPrometheus when no line is a sample: an HTML error page, JSON, an empty body.
    """
    found: dict[str, Series] = {}
    num_odd = 0
    for line in text.splitlines():
        if not line or line[0] == "#" or line.lstrip()[:1] == "#":
            continue
        key, _, number = line.rpartition(" ")
        name, labels = _series(key)
        if labels is None:  # a time stamp, an exemplar, or damage
            key, number = _parts(line)
            name, labels = _series(key)
        value = _number(number)
        if value is None or labels is None:
            num_odd += bool(line.strip())
            continue
        series = found.get(name)
        if series is None:
            series = found[name] = {}
        series[labels] = value
    if not found:
        if num_odd:
            raise NotPrometheus("not Prometheus text")
        raise NotPrometheus("not Prometheus text: an empty page" if not text.strip() else "not one sample on the page")
    return found, num_odd


@lru_cache(maxsize=1 << 14)
def _series(key: str) -> tuple[str, Labels | None]:
    """Name and labels; None for labels where the text is no series. The same texts come back with every scrape."""
    name, brace, rest = key.strip().partition("{")
    if _NAME.fullmatch(name.rstrip()) is None or (brace and not rest.endswith("}")):
        return name, None
    return name.rstrip(), _labels(rest[:-1]) if brace else ()


def _parts(line: str) -> tuple[str, str]:
    """Series and value of any line that is a sample; empty texts if it is none."""
    match = _LINE.match(line)
    return (match[1], match[2]) if match else ("", "")


def _number(text: str) -> float | None:
    try:
        return float(text)  # also NaN, +Inf and -Inf as both formats write them
    except ValueError:
        return None


def _labels(text: str) -> Labels | None:
    """Sorted pairs, or None for text that is no label list."""
    pairs, position = [], 0
    while position < len(text):
        match = _LABEL.match(text, position)
        if match is None:
            return None if text[position:].strip(" ,") else tuple(sorted(pairs))
        value = match[2]
        if "\\" in value:
            value = _ESCAPE.sub(lambda found: _UNESCAPED.get(found[1], found[0]), value)
        pairs.append((match[1], value))
        position = match.end()
    return tuple(sorted(pairs))


def label_of(labels: Labels, name: str) -> str | None:
    """The value of one label, or None."""
    return next((value for key, value in labels if key == name), None)


def total(series: Series) -> float | None:
    """Sum over label sets, of the values that are finite; None without one, and where the sum is none."""
    values = [value for value in series.values() if math.isfinite(value)]
    found = sum(values)
    return found if values and math.isfinite(found) else None


def bucket_counts(series: Iterable[tuple[Labels, float]]) -> tuple[list[tuple[float, float]], str | None]:
    """Observations by histogram bucket, of all label sets together.

    Args:
        series: the cumulative `_bucket` samples, or their differences between two scrapes.

    Returns: [(upper edge, observations in the bucket)] in order, infinity last; and why they cannot be used, or None.
    """
    by_source: dict[Labels, dict[float, float]] = {}
    for labels, value in series:
        edge = _number(label_of(labels, "le") or "")
        if edge is None or math.isnan(edge):
            return [], "a bucket has no edge"
        rest = tuple(pair for pair in labels if pair[0] != "le")
        by_source.setdefault(rest, {})[edge] = value
    edges = {tuple(sorted(buckets)) for buckets in by_source.values()}
    if len(edges) > 1:
        return [], "the engines' buckets have different edges"
    if not edges or next(iter(edges))[-1:] != (math.inf,):
        return [], "the bucket +Inf is missing"
    order = next(iter(edges))
    cumulative = [sum(buckets[edge] for buckets in by_source.values()) for edge in order]
    counts = [value - before for before, value in zip([0.0, *cumulative], cumulative)]
    if any(not math.isfinite(count) or count < 0 for count in counts):
        return [], "bucket counts fall where they must rise"
    return list(zip(order, counts)), None


def quantile(buckets: list[tuple[float, float]], q: float) -> tuple[float, float | None] | None:
    """A quantile as far as a histogram tells it.

    Args:
        buckets: as from `bucket_counts`.
        q: 0 < q <= 1.

    Returns: (upper edge of its bucket, value interpolated in the bucket as PromQL does); the value is None when it lies
        above the last finite edge, and the edge is then that one; None without observations.

    >>> quantile([(0.01, 10), (0.1, 80), (float("inf"), 10)], 0.9)
    (0.1, 0.1)
    >>> quantile([(0.01, 10), (0.1, 70), (1.0, 15), (float("inf"), 5)], 0.99)
    (1.0, None)
    """
    count = sum(number for _, number in buckets)
    if count <= 0:
        return None
    below, lower = 0.0, 0.0
    for edge, number in buckets:
        if below + number >= q * count and number > 0:
            if math.isinf(edge):
                break
            return edge, lower + (edge - lower) * (q * count - below) / number
        below, lower = below + number, edge if math.isfinite(edge) else lower
    return lower, None

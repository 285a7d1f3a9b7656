"""vLLM's metrics page: one scrape, or what happened between two, for every release from 0.6 on.

Names changed from release to release, and 0.9 to 0.11 export old and new ones with the same values: each quantity is
read from the newest name that is there, never summed over names. Counters are summed over engines and models.
"""

from __future__ import annotations

import math
import re
from typing import Any

from labkit.analyze.prometheus import (
    Labels,
    NotPrometheus,
    Series,
    bucket_counts,
    label_of,
    parse_metrics,
    quantile,
    total,
)

COUNTERS = {
    "prefix_cache_queries": ("prefix_cache_queries", "gpu_prefix_cache_queries"),
    "prefix_cache_hits": ("prefix_cache_hits", "gpu_prefix_cache_hits"),
    "external_prefix_cache_queries": ("external_prefix_cache_queries",),
    "external_prefix_cache_hits": ("external_prefix_cache_hits",),
    "preemptions": ("num_preemptions",),
    "prompt_tokens": ("prompt_tokens",),
    "generation_tokens": ("generation_tokens",),
    "prompt_tokens_cached": ("prompt_tokens_cached",),
    "prompt_tokens_recomputed": ("prompt_tokens_recomputed",),
    "requests_finished": ("request_success",),
}
"""Our name -> names without `vllm:` and `_total`, the newest first."""
GAUGES = {
    "kv_cache_usage": ("kv_cache_usage_perc", "gpu_cache_usage_perc"),
    "running": ("num_requests_running",),
    "waiting": ("num_requests_waiting",),
}
HISTOGRAMS = {
    "ttft": ("time_to_first_token_seconds",),
    "itl": ("inter_token_latency_seconds", "time_per_output_token_seconds"),
    "tpot": ("request_time_per_output_token_seconds",),
    "e2el": ("e2e_request_latency_seconds",),
    "queue": ("request_queue_time_seconds",),
    "prefill": ("request_prefill_time_seconds",),
    "decode": ("request_decode_time_seconds",),
}
SOURCES = "prompt_tokens_by_source"
START = "process_start_time_seconds"
_PREFIX = re.compile(r"^(?:ray_)?vllm[:_]")
_OF_V1 = ("kv_cache_usage_perc", "engine_sleep_state")
_OF_V0 = ("gpu_prefix_cache_hit_rate", "cpu_prefix_cache_hit_rate", "cpu_cache_usage_perc", "num_requests_swapped",
          "avg_prompt_throughput_toks_per_s", "avg_generation_throughput_toks_per_s")
"""Gauges that only one of the two engines has."""
_QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}


class Page:
    """One scrape. `error` says why it cannot be used (None: it can)."""

    def __init__(self, text: str) -> None:
        """Read the text of a scrape; never raises."""
        self.error: str | None = None
        self.num_odd_lines = 0
        self._samples: dict[str, Series] = {}
        self.process_start: Series = {}
        try:
            samples, self.num_odd_lines = parse_metrics(text)
        except NotPrometheus as error:
            self.error = str(error)
            return
        self.process_start = samples.get(START, {})
        # OpenMetrics writes vllm_ for vllm:, Ray puts its name before either; a counter has _total behind it, or not.
        self._samples = {_PREFIX.sub("", name): series for name, series in samples.items() if _PREFIX.match(name)}
        if not self._samples:
            self.error = "no vLLM metric on the page"

    def series(self, names: tuple[str, ...], *, suffixes: tuple[str, ...] = ("",)) -> Series:
        """The newest of several names that is there; empty without one."""
        for name in names:
            for suffix in suffixes:
                if name + suffix in self._samples:
                    return self._samples[name + suffix]
        return {}

    def counter(self, quantity: str) -> Series:
        """Series of a counter by our name for it."""
        return self.series(COUNTERS[quantity], suffixes=("_total", ""))

    def gauge(self, quantity: str) -> Series:
        """Series of a gauge by our name for it, without the marks that say not measured."""
        return {labels: value for labels, value in self.series(GAUGES[quantity]).items() if value >= 0}

    def buckets(self, quantity: str) -> Series:
        """Cumulative bucket series of a histogram by our name for it."""
        return self.series(HISTOGRAMS[quantity], suffixes=("_bucket",))

    def sums(self, quantity: str) -> Series:
        """Sum series of a histogram."""
        return self.series(HISTOGRAMS[quantity], suffixes=("_sum",))

    def observations(self, quantity: str) -> Series:
        """Count series of a histogram."""
        return self.series(HISTOGRAMS[quantity], suffixes=("_count",))

    def sources(self) -> Series:
        """Prompt tokens by where they came from."""
        return self.series((SOURCES,), suffixes=("_total", ""))

    @property
    def engine_version(self) -> str | None:
        """`v0` or `v1`: the first engine had a hit-rate gauge and a CPU swap space, and no counter of hits.

        None where the page, or the piece of it, has nothing that only one of them writes. The second one numbers its
        engines; a gateway that collects pages may set that label to a name.
        """
        if self.counter("prefix_cache_queries") or self.series(_OF_V1) or any(map(str.isdigit, self.engines)):
            return "v1"
        return "v0" if self.series(_OF_V0) else None

    @property
    def models(self) -> set[str]:
        """Values of the label `model_name`."""
        found = {label_of(labels, "model_name") for series in self._samples.values() for labels in series}
        return {name for name in found if name is not None}

    @property
    def engines(self) -> list[str]:
        """Values of the label `engine`, in order."""
        found = {label_of(labels, "engine") for series in self._samples.values() for labels in series}
        return sorted((name for name in found if name is not None), key=lambda name: (len(name), name))


def page_summary(text: str) -> dict[str, Any]:
    """One scrape as plain values: totals since the server's start, gauges of this moment.

    Returns: valid, error (None if valid), engine_version (None: cannot be told), engines, and each counter and gauge
        (None where the page has none): kv_cache_usage is a fraction, the largest of the engines; the others are sums.
    """
    page = Page(text)
    if page.error:
        return {"valid": False, "error": page.error}
    return {
        "valid": True, "error": None, "engine_version": page.engine_version, "engines": page.engines,
        "num_odd_lines": page.num_odd_lines,
        **{name: _whole(total(page.counter(name))) for name in COUNTERS},
        **_gauges(page),
        "process_start_s": next(filter(math.isfinite, page.process_start.values()), None),
    }


def gauges_now(text: str) -> dict[str, float | int | None]:
    """What a sampler wants of a page: gauges of this moment and three totals since the server's start.

    Returns: running, waiting (requests), kv_cache_usage (0 to 1), hit_tokens, query_tokens, preemptions; None where the
        page has none.
    Raises: ValueError when the page cannot be used.
    """
    page = Page(text)
    if page.error:
        raise ValueError(page.error)
    totals = {"hit_tokens": "prefix_cache_hits", "query_tokens": "prefix_cache_queries", "preemptions": "preemptions"}
    return {**_gauges(page), **{ours: _whole(total(page.counter(name))) for ours, name in totals.items()}}


def pair_summary(before_text: str, after_text: str) -> dict[str, Any]:
    """What happened between two scrapes of one server.

    Returns: valid, error; counters as differences (None where there is no such counter), gauges of the second scrape,
        prefix_cache_hit_rate of this interval (hits / queries, None without queries), prompt_tokens_by_source,
        histograms with count, mean_s and quantiles as far as their buckets tell, checks, and engine_version.
        A restart, another server, or a page that cannot be used or is cut off, gives valid False and no number: a
        difference across a restart is not one, and zero would be a lie.
    """
    before, after = Page(before_text), Page(after_text)
    for name, page in (("first", before), ("second", after)):
        if page.error:
            return {"valid": False, "error": f"{name} scrape: {page.error}"}
    if (why := restart(before, after)) is not None:
        return {"valid": False, "error": f"server restarted between scrapes ({why})"}
    if (why := _strangers(before, after)) is not None:
        return {"valid": False, "error": why}
    counts = {name: _whole(_delta(before.counter(name), after.counter(name))) for name in COUNTERS}
    sources = _by_source(before, after)
    return {
        "valid": True, "error": None, "engine_version": after.engine_version, "engines": after.engines,
        "num_odd_lines": before.num_odd_lines + after.num_odd_lines, **counts,
        "prefix_cache_hit_rate": _rate(counts["prefix_cache_hits"], counts["prefix_cache_queries"]),
        "prompt_tokens_by_source": sources, **_gauges(after),
        **{name: found for name in HISTOGRAMS if (found := _histogram(before, after, name)) is not None},
        "checks": _checks(counts, sources),
    }


def restart(before: Page, after: Page) -> str | None:
    """Why the two pages cannot be of one life of the server, or None.

    The start time is of the process that answers: with several API servers behind one port each has its own, and then
    only counters decide.
    """
    reasons = []
    shared = before.process_start.keys() & after.process_start.keys()
    if any(abs(before.process_start[key] - after.process_start[key]) > 0.5 for key in shared):
        reasons.append(f"{START} changed")
    went_down = went_away = False
    for name in COUNTERS:
        first, second = before.counter(name), after.counter(name)
        went_down |= any(second[key] < value for key, value in first.items() if key in second)
        went_away |= bool(second) and any(value > 0 for key, value in first.items() if key not in second)
    reasons += ["counters went down"] * went_down + ["counters went away"] * went_away
    return ", ".join(reasons) or None


def _strangers(before: Page, after: Page) -> str | None:
    """Why two pages cannot be compared although no counter fell, or None."""
    first, second = before.models, after.models
    if first and second and not first & second:
        return f"the scrapes are of different models ({', '.join(sorted(first))}; {', '.join(sorted(second))})"
    lacking = [name for name in COUNTERS if (total(before.counter(name)) or 0) > 0 and not after.counter(name)]
    return f"second scrape lacks {', '.join(lacking)}: cut off, restarted, or of another server" if lacking else None


def _delta(before: Series, after: Series) -> float | None:
    """Growth of a counter over all its series; one that was not there yet began at 0."""
    return total({labels: value - before.get(labels, 0.0) for labels, value in after.items()})


def _whole(value: float | None) -> float | int | None:
    return int(value) if value is not None and value == int(value) else value


def _rate(part: float | None, whole: float | None) -> float | None:
    rate = part / whole if part is not None and whole else None
    return rate if rate is not None and math.isfinite(rate) else None


def _gauges(page: Page) -> dict[str, float | int | None]:
    usage = [value for value in page.gauge("kv_cache_usage").values() if math.isfinite(value)]
    return {"kv_cache_usage": max(usage, default=None),
            **{name: _whole(total(page.gauge(name))) for name in ("running", "waiting")}}


def _by_source(before: Page, after: Page) -> dict[str, Any] | None:
    by_name: dict[str, Series] = {}
    for labels, value in after.sources().items():
        by_name.setdefault(label_of(labels, "source") or "unknown", {})[labels] = value
    found = {name: _whole(_delta(before.sources(), series)) for name, series in sorted(by_name.items())}
    return {name: value for name, value in found.items() if value is not None} or None


def _histogram(before: Page, after: Page, name: str) -> dict[str, Any] | None:
    series, first = after.buckets(name), before.buckets(name)
    spent = _delta(before.sums(name), after.sums(name))
    if not series:  # a page filtered to sums and counts
        count = _delta(before.observations(name), after.observations(name))
        return None if count is None else {"count": _whole(count), "mean_s": _rate(spent, count)}
    growth: list[tuple[Labels, float]] = [(labels, value - first.get(labels, 0.0)) for labels, value in series.items()]
    buckets, why = bucket_counts(growth)
    if why:
        return {"count": None, "error": why}
    count = sum(number for _, number in buckets)
    found: dict[str, Any] = {"count": _whole(count), "mean_s": _rate(spent, count)}
    for label, q in _QUANTILES.items():
        seen = quantile(buckets, q)
        if seen is None:
            found[label] = None
        elif seen[1] is None:
            found[label] = f"above {seen[0]} s (overflow bucket)"
        else:
            found |= {f"{label}_upper_s": seen[0], f"{label}_interp_s": seen[1]}
    return found


def _checks(counts: dict[str, Any], sources: dict[str, Any] | None) -> list[dict[str, Any]]:
    """Identities of the counters themselves: a page that breaks one counts something else than its names say."""
    found = []
    if counts["prefix_cache_queries"] is not None and counts["prefix_cache_hits"] is not None:
        found.append(("hits are at most queries", counts["prefix_cache_hits"] <= counts["prefix_cache_queries"],
                      counts["prefix_cache_queries"], counts["prefix_cache_hits"]))
    if sources and counts["prompt_tokens"] is not None:
        seen = sum(sources.values())
        found.append(("sources sum to prompt tokens", seen == counts["prompt_tokens"], counts["prompt_tokens"], seen))
    return [{"name": name, "passed": passed, "expected": expected, "seen": seen}
            for name, passed, expected, seen in found]

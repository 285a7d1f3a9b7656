"""A vLLM server's log of any release: did it get ready, with how much KV cache, and if not, why not."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from labkit.analyze.kinds import UnreadableInput
from labkit.analyze.vllm_log_causes import find_death, find_failure
from labkit.analyze.vllm_log_lines import Line, log_lines

_WHOLE = r"(\d[\d,]{0,20})"
_NUMBER = r"(\d{1,15}(?:\.\d+)?)"
_VERSION = r"(\d+\.\d+[\w.+]*)"
_FACTS: tuple[tuple[str, re.Pattern[str], Callable[[str], Any]], ...] = (
    ("port", re.compile(
        r"(?:Starting vLLM (?:API )?server.*? on|Uvicorn running on) "
        r"(?:\w+://\S*:(\d{1,5})\b|socket \('[^']*', (\d{1,5})\b)"), int),
    ("engine_version", re.compile(
        rf"LLM engine \(v{_VERSION}|vLLM (?:API )?server version {_VERSION}|[█▀▄]\s+version\s+{_VERSION}"), str),
    ("model_load_gib", re.compile(
        rf"(?:Model loading took|Loading model weights took(?: in total)?) {_NUMBER}\s?Gi?B"),
     lambda text: _plain(text, float)),
    ("model_len", re.compile(rf"Maximum concurrency for {_WHOLE} tokens per request"), lambda text: _plain(text, int)),
)
"""Key, where it stands, how it is read: the first time counts. Old releases write GB and mean GiB."""
_CAPACITY: tuple[tuple[str, re.Pattern[str], type], ...] = (
    ("kv_cache_tokens", re.compile(rf"KV cache size: {_WHOLE} tokens"), int),
    ("kv_cache_blocks", re.compile(rf"(?:^|# )\w+ blocks: {_WHOLE}"), int),
    ("max_concurrency", re.compile(rf"Maximum concurrency for [\d,]+ tokens per request: {_NUMBER}x"), float),
)
"""Said once by each engine, or once by each of its workers: an engine has what the worker with the least has."""
_TELLS = re.compile(r"vLLM|cache_config_info|LLM engine|Uvicorn|took|KV cache size|blocks: |concurrency|version")
"""In every line with a fact, and in few others."""
_CONFIGURED_LEN = re.compile(r"LLM engine \(v.*\bmax_seq_len=(\d+)")
_BLOCKS_OF_ALL = re.compile(rf"cache_config_info with initialization after num_gpu_blocks is: {_WHOLE}")
"""Said for each engine, with the sum over them."""
_START = re.compile(r"vLLM (?:API )?server version |[█▀▄]\s+version\s")
_STATS = re.compile(
    r"(?:Engine (?P<engine>\d+): |(?P<all>\d+) Engines? Aggregated: )?"
    r"Avg prompt throughput: (?P<prompt_tps>\d+(?:\.\d+)?) tokens/s, "
    r"Avg generation throughput: (?P<gen_tps>\d+(?:\.\d+)?) tokens/s, Running: (?P<running>\d+) reqs, "
    r"(?:Swapped: \d+ reqs, )?(?:Waiting|Pending): (?P<waiting>\d+) reqs")
_USAGE = re.compile(r"KV cache usage: (\d+(?:\.\d+)?)%")
_HIT_RATE = re.compile(r"Prefix cache hit rate: (?:GPU: )?(-?\d+(?:\.\d+)?)%")
_READY = ("Application startup complete", "vLLM gRPC server started on")


def parse_server_log(text: str) -> dict[str, Any]:
    """Facts of a server's start and its last statistics.

    Args:
        text: the log: colours, process tags, levels and wrappings of any kind, or none of them.

    Returns: of the last start in the log: ready; port, engine_version, model_load_gib, model_len (None where the log
        does not say), kv_cache_tokens, kv_cache_blocks, max_concurrency (of one engine, the smallest where the log
        has several); engines (what each data-parallel engine said: engine, those three, last_stats; empty where no line
        tells engines apart); last_stats of the newest statistics line (engine: None for all together, running, waiting,
        kv_usage_pct, prompt_tps, gen_tps, prefix_hit_pct: of the last 1,000 requests, not of the run); if it did not
        get ready: cause (the first error that is no consequence of another), exit_expected (something failed: the
        process ends by itself); if it did and died later: crash, the cause of that; num_errors (lines of that level).
        Of the whole log: num_starts (0: the log begins later), earlier_causes (one for each earlier start, or None).
    """
    lines = log_lines(text)
    *earlier, last = _starts(lines)
    telling = [line for line in last if _TELLS.search(line.text)]
    found: dict[str, Any] = {"ready": _ready_at(last) is not None, **_facts(telling), **_capacity(telling)}
    failure = find_failure(last)
    failed = not found["ready"]
    return {
        **found, "last_stats": _last_stats(last), "engines": _engines(last),
        "cause": failure.cause if failed else None, "exit_expected": failed and failure.seen,
        "crash": None if failed else find_death(last[_ready_at(last):]),
        "num_errors": sum(line.level in ("ERROR", "CRITICAL") for line in last),
        "num_starts": sum(_is_start(line) for line in lines),
        "earlier_causes": [_how_it_ended(start) for start in earlier],
    }


def read_server_log(text: str) -> dict[str, Any]:
    """As `parse_server_log`, for a file that may be another.

    Raises: UnreadableInput when no line is one that a vLLM server, or a failed try to start one, writes.
    """
    found = parse_server_log(text)
    if "vllm" not in text.lower() and not any(found.values()):
        raise UnreadableInput("no line of a vLLM server's log")
    return found


def first_cause(text: str) -> str | None:
    """The first error of a log that is no consequence of another, also after the server had been ready; or None."""
    return find_failure(log_lines(text)).cause


def _starts(lines: Sequence[Line]) -> list[Sequence[Line]]:
    """The log cut where a server says its version: a container that restarts writes on in the same file."""
    cuts = [number for number, line in enumerate(lines) if _is_start(line)][1:]
    return [lines[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(lines)])]


def _is_start(line: Line) -> bool:
    return "version" in line.text and _START.search(line.text) is not None


def _how_it_ended(lines: Sequence[Line]) -> str | None:
    ready = _ready_at(lines)
    return find_failure(lines).cause if ready is None else find_death(lines[ready:])


def _ready_at(lines: Sequence[Line]) -> int | None:
    return next((number for number, line in enumerate(lines) if any(words in line.text for words in _READY)), None)


def _facts(lines: Sequence[Line]) -> dict[str, Any]:
    found: dict[str, Any] = {key: None for key, _, _ in _FACTS}
    configured = None
    for line in lines:
        for key, pattern, convert in _FACTS:
            if found[key] is None and (match := pattern.search(line.text)):
                found[key] = convert(next(group for group in match.groups() if group is not None))
        if configured is None and (match := _CONFIGURED_LEN.search(line.text)):
            configured = int(match[1])
    return {**found, "model_len": found["model_len"] or configured}


def _capacity(lines: Sequence[Line]) -> dict[str, Any]:
    found: dict[str, list[Any]] = {key: [] for key, _, _ in _CAPACITY}
    for line in lines:
        for key, pattern, kind in _CAPACITY:
            if match := pattern.search(line.text):
                found[key].append(_plain(match[1], kind))
    least = {key: min(values, default=None) for key, values in found.items()}
    blocks = [match[1] for line in lines if (match := _BLOCKS_OF_ALL.search(line.text))]
    if least["kv_cache_blocks"] is None and len(blocks) == 1:
        least["kv_cache_blocks"] = _plain(blocks[0], int)
    return least


def _engines(lines: Sequence[Line]) -> list[dict[str, Any]]:
    """What each engine said, by the tags of its lines and the numbers in statistics lines."""
    tagged: dict[int, list[Line]] = {}
    stats: dict[int, tuple[str, re.Match[str]]] = {}
    for line in lines:
        if line.engine is not None:
            tagged.setdefault(line.engine, []).append(line)
        if "throughput" in line.text and (match := _STATS.search(line.text)) and match["engine"]:
            stats[int(match["engine"])] = line.text, match
    numbers = sorted(tagged.keys() | stats.keys())
    if len(numbers) == 1 and not tagged:  # a lone engine has a number in its statistics only
        tagged = {numbers[0]: [*lines]}
    return [{"engine": number, **_capacity(tagged.get(number, ())),
             "last_stats": _stats(*stats[number]) if number in stats else None} for number in numbers]


def _last_stats(lines: Sequence[Line]) -> dict[str, Any] | None:
    hits = None  # the first engine writes the hit rate on a line of its own, behind the others
    for line in reversed(lines):
        if "throughput" in line.text and (match := _STATS.search(line.text)):
            found = _stats(line.text, match)
            return found if hits is None else {**found, "prefix_hit_pct": hits}
        if line.text.startswith("Prefix cache hit rate: GPU:"):
            hits = _hit_pct(line.text)
    return None


def _stats(text: str, match: re.Match[str]) -> dict[str, Any]:
    usage = _USAGE.search(text)
    return {
        "engine": None if match["all"] else int(match["engine"] or 0),
        "running": int(match["running"]), "waiting": int(match["waiting"]),
        "prompt_tps": float(match["prompt_tps"]), "gen_tps": float(match["gen_tps"]),
        "kv_usage_pct": float(usage[1]) if usage else None, "prefix_hit_pct": _hit_pct(text),
    }


def _hit_pct(text: str) -> float | None:
    """None where there is none, and where it is off: -1."""
    hits = _HIT_RATE.search(text)
    return float(hits[1]) if hits and float(hits[1]) >= 0 else None


def _plain(text: str, kind: type) -> Any:
    return kind(text.replace(",", ""))

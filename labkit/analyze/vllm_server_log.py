"""A vLLM server's log of any release: did it get ready, with how much KV cache, and if not, why not."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_TAG = re.compile(r"^\((\w+?)(?:_[\w-]+)? pid=(\d+)\)\s?")
_LEVEL = re.compile(r"^(INFO|WARNING|ERROR|CRITICAL|DEBUG)\s+[\d-]+ [\d:.]+ (?:\[[^\]]*\]\s?)?")
_EXCEPTION = re.compile(r"^((?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Exit|Interrupt|Refused))(?:: (.*))?$")
_NUMBER = r"([\d,]+(?:\.\d+)?)"
_FACTS: tuple[tuple[str, re.Pattern[str], Callable[[str], Any]], ...] = (
    ("port", re.compile(r"(?:Starting vLLM (?:API )?server.*? on|Uvicorn running on) \S*?:(\d+)\b"), int),
    ("engine_version", re.compile(
        r"(?:LLM engine \(v|vLLM API server version |vLLM server version )(\d+\.\d+[\w.+]*)"), str),
    ("model_load_gib", re.compile(
        rf"(?:Model loading took|Loading model weights took) {_NUMBER} G(?:i?)B"), lambda text: _plain(text, float)),
    ("kv_cache_tokens", re.compile(rf"KV cache size: {_NUMBER} tokens"), lambda text: _plain(text, int)),
    ("kv_cache_blocks", re.compile(rf"# (?:GPU|cuda|\w+) blocks: {_NUMBER}"), lambda text: _plain(text, int)),
    ("model_len", re.compile(rf"Maximum concurrency for {_NUMBER} tokens per request"), lambda text: _plain(text, int)),
    ("max_concurrency", re.compile(rf"Maximum concurrency for [\d,]+ tokens per request: {_NUMBER}x"),
     lambda text: _plain(text, float)),
)
"""Key, where it stands, how it is read. Old releases write GB and mean GiB."""
_STATS = re.compile(
    r"(?:Engine (?P<engine>\d+): )?Avg prompt throughput: (?P<prompt_tps>[\d.]+) tokens/s, "
    r"Avg generation throughput: (?P<gen_tps>[\d.]+) tokens/s, Running: (?P<running>\d+) reqs, "
    r"(?:Swapped: \d+ reqs, )?(?:Waiting|Pending): (?P<waiting>\d+) reqs")
_USAGE = re.compile(r"(?:GPU|CPU)? ?KV cache usage: ([\d.]+)%")
_HIT_RATE = re.compile(r"Prefix cache hit rate: (?:GPU: )?(-?[\d.]+)%")
_READY = "Application startup complete"
_KNOWN_CAUSES = (
    (re.compile(r"(CUDA|HIP|XPU) out of memory", re.IGNORECASE), lambda found: f"{found[1]} out of memory"),
    (re.compile(r"address already in use", re.IGNORECASE), lambda _: "address already in use"),
    (re.compile(r"No available memory for the cache blocks"), lambda _: "no memory left for the KV cache"),
    (re.compile(r"max(?:imum)? seq(?:uence)? len\w* \(?\d+.*KV cache", re.IGNORECASE),
     lambda found: found.string.split(": ", 1)[-1]),
)
_CONSEQUENCES = ("Engine core initialization failed", "See root cause above", "Engine process failed to start",
                 "EngineCore failed to start", "EngineDeadError", "WorkerProc initialization failed")
"""What a process says when another one has failed: never the cause."""


def parse_server_log(text: str) -> dict[str, Any]:
    """Facts of a server's start and its last statistics.

    Args:
        text: the log: colours, process tags and levels of any release, or none of them.

    Returns: ready; port, engine_version, model_load_gib, kv_cache_tokens, kv_cache_blocks, model_len, max_concurrency
        (None where the log does not say); last_stats of the newest statistics line (engine, running, waiting,
        kv_usage_pct, prompt_tps, gen_tps, prefix_hit_pct: of the last 1,000 requests, not of the run); and if it did
        not get ready: cause (the first error that is no consequence of another), exit_expected (there is a cause: the
        process ends by itself); num_errors.
    """
    found: dict[str, Any] = {"ready": False, **{key: None for key, _, _ in _FACTS}, "last_stats": None}
    cause, num_errors = None, 0
    lines = [_bare(raw) for raw in text.splitlines()]
    for number, (line, level) in enumerate(lines):
        if _READY in line:
            found["ready"] = True
        for key, pattern, convert in _FACTS:
            if found[key] is None and (match := pattern.search(line)):
                found[key] = convert(match[1])
        if "throughput" in line and (match := _STATS.search(line)):
            found["last_stats"] = _stats(line, match)
        num_errors += level in ("ERROR", "CRITICAL")
        if cause is None:
            cause = _cause(line, *(after for after, _ in lines[number + 1 : number + 2]))
    failed = not found["ready"]
    return {**found, "cause": cause if failed else None, "exit_expected": failed and cause is not None,
            "num_errors": num_errors}


def first_cause(text: str) -> str | None:
    """The first error of a log that is no consequence of another, also after the server had been ready; or None."""
    lines = [_bare(raw)[0] for raw in text.splitlines()]
    return next((cause for line, after in zip(lines, [*lines[1:], ""]) if (cause := _cause(line, after))), None)


def _bare(raw: str) -> tuple[str, str | None]:
    """A line without colours, process tag, level and place; and its level."""
    line = _TAG.sub("", _ANSI.sub("", raw).strip()).strip()
    match = _LEVEL.match(line)
    return (line[match.end():].strip(), match[1]) if match else (line, None)


def _cause(line: str, after: str = "") -> str | None:
    """The cause that a line names; `after` is the next line, which says what pydantic found wrong."""
    if any(words in line for words in _CONSEQUENCES):
        return None
    match = _EXCEPTION.match(line)
    is_error = match is not None or "rror" in line
    for pattern, name in _KNOWN_CAUSES:
        if is_error and (known := pattern.search(line)):
            return name(known)
    if match is None:
        return None
    return f"{line}: {after}"[:300] if "validation error" in line and after.startswith("Value error") else line[:300]


def _stats(line: str, match: re.Match[str]) -> dict[str, Any]:
    usage, hits = _USAGE.search(line), _HIT_RATE.search(line)
    return {
        "engine": int(match["engine"] or 0), "running": int(match["running"]), "waiting": int(match["waiting"]),
        "prompt_tps": float(match["prompt_tps"]), "gen_tps": float(match["gen_tps"]),
        "kv_usage_pct": float(usage[1]) if usage else None,
        "prefix_hit_pct": float(hits[1]) if hits and float(hits[1]) >= 0 else None,
    }


def _plain(text: str, kind: type) -> Any:
    return kind(text.replace(",", ""))

"""Results of `vllm bench serve`, one or several in a file, with what cannot be believed in them."""

from __future__ import annotations

import json
import math
import re
from typing import Any

from labkit.analyze.kinds import clean_text
from labkit.analyze.vllm_bench_table import HEADING, table_results

_PLACES = ("first", "second", "third")
_KEPT = ("date", "backend", "model_id", "num_prompts", "request_rate", "burstiness", "max_concurrency", "duration",
         "completed", "failed", "total_input_tokens", "total_output_tokens", "request_throughput", "request_goodput",
         "output_throughput", "total_token_throughput")
_OTHER_NAMES = {"request_goodput": "request_goodput:", "total_token_throughput": "total_throughput",
                "total_input_tokens": "total_input", "total_output_tokens": "total_output", "model_id": "model"}
"""What another version or SGLang's bench_serving calls the same figure."""
_TIME = re.compile(r"(mean|median|std|min|max|p\d{1,3}(?:\.\d{1,6})?)_(ttft|tpot|itl|e2el|e2e_latency)_ms")


class NotBenchResults(ValueError):
    """Text that holds no result; the message is one line."""


def parse_bench_results(text: str) -> dict[str, Any]:
    """Every result of a file.

    Args:
        text: one JSON object, a list of them, or several one after the other as `--append-result` writes them; or
            output with the printed table, one or several.

    Returns: records (how many), usable (all of them), reason (the first why not), all (each result: the figures as
        written, None for infinity and NaN and for what is not there; success_fraction; usable and reason), and the
        first three again as first, second, third. Figures have vLLM's names whatever tool wrote them (e2el for SGLang's
        e2e_latency); `failed` is counted from the recorded errors where the file does not say.
    Raises: NotBenchResults.
    """
    results = [_one(raw) for raw in _objects(text)]
    if not results:
        raise NotBenchResults("no result in it, expected the JSON of vllm bench serve")
    reason = next((result["reason"] for result in results if not result["usable"]), None)
    return {"records": len(results), "usable": reason is None, "reason": reason, "all": results,
            **dict(zip(_PLACES, results))}


def _objects(text: str) -> list[dict[str, Any]]:
    if HEADING in text and not text.lstrip("\ufeff \t\r\n").startswith(("{", "[{")):
        return table_results(text)
    decoder, position, found = json.JSONDecoder(strict=False), 0, []
    while (position := _skip(text, position)) < len(text):
        try:
            value, position = decoder.raw_decode(text, position)
        except (ValueError, RecursionError):
            line = text.count("\n", 0, position) + 1
            if found:  # cut while it was appended to: what stands before is whole
                found.append({"_cut_line": line})
                break
            raise NotBenchResults(f"no JSON at line {line}, expected the JSON of vllm bench serve") from None
        found += value if isinstance(value, list) else [value]
    if any(not isinstance(value, dict) for value in found):
        raise NotBenchResults("not every result is a JSON object")
    if found and not any("completed" in value or "duration" in value for value in found):
        raise NotBenchResults("neither 'completed' nor 'duration' in it, expected the JSON of vllm bench serve")
    return found


def _skip(text: str, position: int) -> int:
    while position < len(text) and text[position] in " \t\r\n,\ufeff":
        position += 1
    return position


def _one(raw: dict[str, Any]) -> dict[str, Any]:
    if "_cut_line" in raw:
        return {"usable": False, "reason": f"cut off at line {raw['_cut_line']}"}
    result = {name: _finite(raw.get(name, raw.get(_OTHER_NAMES.get(name, name)))) for name in _KEPT}
    for name in ("completed", "failed", "num_prompts"):  # a table that went through floats
        result[name] = int(result[name]) if _is_whole(result[name]) else result[name]
    result |= _times(raw)
    if result["failed"] is None:
        result["failed"] = _recorded_errors(raw, result["completed"])
    completed, failed, asked = result["completed"], result["failed"], result["num_prompts"]
    whole = completed + failed if _is_count(completed) and _is_count(failed) else asked
    known = _is_count(completed) and _is_count(whole) and whole >= max(completed, 1)
    result["success_fraction"] = completed / whole if known else None
    result["reason"] = _doubt(raw, completed)
    return {**result, "usable": result["reason"] is None}


def _times(raw: dict[str, Any]) -> dict[str, Any]:
    """Every statistic of a time in it, by vLLM's name for it."""
    found = ((match, raw[name]) for name in raw if (match := _TIME.fullmatch(name)))
    return {f"{match[1]}_{match[2].replace('e2e_latency', 'e2el')}_ms": _finite(value) for match, value in found}


def _recorded_errors(raw: dict[str, Any], completed: Any) -> int | None:
    """How many requests have an error text, if the file lists one text a request and the rest are the completed."""
    errors = raw.get("errors")
    if not isinstance(errors, list) or not errors or not all(isinstance(error, str | None) for error in errors):
        return None
    failed = sum(bool(error) for error in errors)
    return failed if _is_count(completed) and completed + failed == len(errors) else None


def _doubt(raw: dict[str, Any], completed: Any) -> str | None:
    """Why the figures must not be used, or None. Shares of failed requests are told apart, in success_fraction."""
    if not _is_count(completed):
        return "completed is missing"
    if completed == 0:
        return "no request completed: its averages are of nothing"
    times = _times(raw)
    firsts = [_finite(value) for value in raw["ttfts"]] if isinstance(raw.get("ttfts"), list) else []
    numbers = [value for value in [*times.values(), *firsts] if isinstance(value, int | float)]
    if any(value < 0 for value in numbers):
        return "a time is negative: two clocks were mixed"
    if any(times.get(name) == 0 for name in ("mean_ttft_ms", "median_ttft_ms")) or (firsts and min(
            (value for value in firsts if isinstance(value, int | float)), default=1) == 0):
        return "ttft 0.0 is a 'not measured' marker"
    outputs = raw.get("output_lens")
    if isinstance(outputs, list) and sum(value for value in outputs if _is_count(value)) == 0:
        return "no output token was counted"
    return None


def _finite(value: Any) -> Any:
    """Numbers as they are; infinity and NaN, written as numbers or as text, are None."""
    if isinstance(value, str) and value.strip().lower().lstrip("+-") in ("inf", "infinity", "nan"):
        return None
    if isinstance(value, str | list | dict):  # a text that no encoder takes, or what is no figure
        return clean_text(value)
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _is_whole(value: Any) -> bool:
    return isinstance(value, float) and value.is_integer()


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0

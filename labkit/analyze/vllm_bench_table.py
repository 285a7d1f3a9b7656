"""The table that `vllm bench serve` and SGLang's bench_serving print, as the JSON that they would have written."""

from __future__ import annotations

import re
from typing import Any

HEADING = "Serving Benchmark Result"
_ROWS = {
    "Successful requests": "completed", "Failed requests": "failed", "Backend": "backend",
    "Maximum request concurrency": "max_concurrency", "Max request concurrency": "max_concurrency",
    "Request rate configured (RPS)": "request_rate", "Traffic request rate": "request_rate",
    "Benchmark duration (s)": "duration", "Total input tokens": "total_input_tokens",
    "Total generated tokens": "total_output_tokens", "Request throughput (req/s)": "request_throughput",
    "Request goodput (req/s)": "request_goodput", "Output token throughput (tok/s)": "output_throughput",
    "Total token throughput (tok/s)": "total_token_throughput",
}
_BY_LABEL = {label.lower(): name for label, name in _ROWS.items()}
_CELL = re.compile(r"(?<![\w(])(?<!peak )(" + "|".join(map(re.escape, _ROWS)) + r"):\s+(\S+)\s*$", re.IGNORECASE)
# Two decimals are always printed: a figure that a cut has shortened is none.
_TIME = re.compile(r"\b(Mean|Median|Std|Min|Max|P\d{1,3}(?:\.\d{1,6})?) (TTFT|TPOT|ITL|E2EL|E2E Latency) \(ms\):\s+"
                   r"(-?\d+\.\d\d|nan|inf)\s*$")
_END = re.compile(r"={20,}\s*$")


def table_results(text: str) -> list[dict[str, Any]]:
    r"""One object for each table in a text, in order, with the names of the JSON; other lines may stand around it.

    Figures are as printed, rounded. The table does not say how many prompts were asked for, or which model it was.

    >>> table_results("== Serving Benchmark Result ==\nSuccessful requests:   8\nMean TTFT (ms):  9.50")
    [{'completed': 8, 'mean_ttft_ms': 9.5}]
    """
    found: list[dict[str, Any]] = []
    is_open = False
    for line in text.splitlines():
        if HEADING in line:
            found.append({})
            is_open = True
        elif _END.search(line):
            is_open = False
        elif is_open and (cell := _CELL.search(line)):
            found[-1].setdefault(_BY_LABEL[cell[1].lower()], _number(cell[2]))
        elif is_open and (cell := _TIME.search(line)):
            name = "e2el" if cell[2].startswith("E2E") else cell[2].lower()
            found[-1].setdefault(f"{cell[1].lower()}_{name}_ms", _number(cell[3]))
    return found


def _number(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text.replace(",", ""))
        except ValueError:
            continue
    return text

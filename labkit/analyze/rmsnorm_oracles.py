"""What must hold for an RMSNorm run, from the lines of its workers, and what a reader must be told beside it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from labkit.analyze.rmsnorm import Lines, of_kind, wrong_counts
from labkit.analyze.rmsnorm_grad_oracles import gradient_oracles
from labkit.records import Oracle

_COUNTED = {
    "num_bad": ("error_bound", "elements outside the float64 bound"),
    "unwritten": ("every_element_written", "elements that still hold the poison"),
    "guards_touched": ("nothing_else_written", "elements outside the output that changed"),
    "input_changed": ("input_unchanged", "input elements that changed"),
    "canary_rows_wrong": ("canaries", "wrong rows among those with NaN, infinity, zeros, huge and tiny numbers"),
}


def oracles(params: Mapping[str, Any], lines: Lines, results: Mapping[str, Any]) -> list[Oracle]:
    """The oracles of one run; the counts come from checks that the workers made outside every timed region.

    Args:
        params: as recorded.
        lines: of labkit.analyze.rmsnorm.read_lines.
        results: of the record.
    """
    num_shapes, num_ranks = len(params["shapes"]), params["num_processes"] * params["num_gpus"]
    found = [_equal(*_COUNTED[key], 0, count) for key, count in wrong_counts(lines).items()]
    found += [
        _equal("canaries_ran", "kernels, dtypes and sizes with special rows", 8 * params["num_gpus"],
               len(of_kind(lines, "canary", process=0))),
        _equal("shapes_right", "shapes where both kernels were checked and right", num_shapes,
               sum(results["within_bound"].values())),
        _equal("processes_ended", "processes, on each GPU, that reached their end", num_ranks,
               len(of_kind(lines, "done"))),
    ]  # fmt: skip
    found += gradient_oracles(params, lines, results)
    if params["device"] == "cpu":
        return found
    seen = of_kind(lines, "recheck", what="fast", passed=True)
    again = {(line["process"], line["rank"], line["shape"]) for line in seen}
    return [
        *found,
        _equal("shapes_timed", "shapes with times of fast and copy_", num_shapes, len(results["fast_ms"])),
        _equal("right_after_timing", "shapes, processes and GPUs with a good output after the timing",
               num_ranks * num_shapes, len(again)),
        _equal("one_kernel_a_call", "GPU kernels of one call of ours", 1, results.get("kernels_per_call")),
        *_not_faster_than_memory(lines, results),
    ]  # fmt: skip


def _not_faster_than_memory(lines: Lines, results: Mapping[str, Any]) -> list[Oracle]:
    """A time that is too good means that something was not waited for.

    What fits L2 may be unwritten when the clock stops; the rest must have passed through memory, at most at the
    datasheet's bandwidth. No oracle where that is unknown or every shape is small.
    """
    rate = results.get("datasheet_gb_per_s")
    l2_bytes = {line["shape"]: line["l2_bytes"] for line in of_kind(lines, "shape")}
    through = {
        shape: (results["min_bytes"][shape] - l2_bytes[shape]) / (time["value"] * 1e6)
        for shape, time in results["fast_ms"].items() if results["min_bytes"][shape] > 2 * l2_bytes[shape]
    }  # fmt: skip
    if not rate or not through:
        return []
    fastest = max(through, key=lambda shape: through[shape])
    return [Oracle(
        name="not_faster_than_memory", passed=through[fastest] <= rate, expected=f"at most {rate:.0f} GB/s",
        seen=round(through[fastest], 1), detail=f"{fastest}: minimum bytes less L2, over the time",
    )]  # fmt: skip


def _equal(name: str, detail: str, expected: Any, seen: Any) -> Oracle:
    return Oracle(name=name, passed=seen == expected, expected=expected, seen=seen, detail=detail)


def notes(params: Mapping[str, Any], lines: Lines) -> list[str]:
    """What could not be measured, once each, and what a CPU run does not show."""
    refused = of_kind(lines, "refusal")
    found = [f"{line['what']} ({line.get('shape', 'all shapes')}): {line['error']}" for line in refused]
    if params["device"] == "cpu":
        found.append("Triton's interpreter on a CPU: correctness only, nothing is timed")
    if params["max_rows"]:
        found.append(f"at most {params['max_rows']} rows of each shape were checked; every row is computed alike")
    return list(dict.fromkeys(found))

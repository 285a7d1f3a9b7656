"""What must hold for the backward pass, the two-pass kernels and the shape cache of an RMSNorm run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from labkit.analyze.rmsnorm import Lines, of_kind
from labkit.analyze.rmsnorm_parts import CHECKS, KERNELS
from labkit.records import Oracle

_DTYPES = 3
_COUNTED = {
    "num_bad": ("gradient_bound", "elements of dx, dweight or y outside the bound, or empty tensors let through"),
    "unwritten": ("every_gradient_written", "elements that still hold the poison"),
    "guards_touched": ("no_other_gradient_written", "elements outside the outputs that changed"),
    "input_changed": ("gradient_inputs_unchanged", "elements of dy, x, weight or statistics that changed"),
    "bits_changed": ("same_bits_twice", "elements that a second call on the same inputs gave otherwise"),
}


def gradient_oracles(params: Mapping[str, Any], lines: Lines, results: Mapping[str, Any]) -> list[Oracle]:
    """The oracles of the parts; none where the parameters ask for no gradients.

    Args:
        params: as recorded; records made before these parts existed lack their lists.
        lines: of labkit.analyze.rmsnorm.read_lines.
        results: of the record.
    """
    widths = params.get("widths", ())
    if not widths:
        return []
    checks = of_kind(lines, *CHECKS)
    gpus, ranks = params["num_gpus"], params["num_processes"] * params["num_gpus"]
    shapes, wide = params["backward_shapes"], params["wide_shapes"]
    exact, special = of_kind(lines, "grad_exact", passed=True), of_kind(lines, "grad_canary")
    passed = of_kind(lines, "grad_check", passed=True)
    ran = {kind: len([line for line in passed if line["what"] == kind and "case" not in line])
           for kind in ("autograd", "backward", "wide forward", "wide backward")}  # fmt: skip
    found = [
        _equal(name, detail, 0, sum(int(line.get(key) or 0) for line in checks))
        for key, (name, detail) in _COUNTED.items()
    ]
    found += [
        _equal("gradients_at_widths", "row lengths x dtypes right through autograd, on each GPU",
               _DTYPES * len(widths) * gpus, ran["autograd"]),
        _equal("gradients_of_shapes", "shapes whose dx and dweight are right in every row checked", len(shapes) * gpus,
               ran["backward"]),
        _equal("exact_sums", "shapes where dweight of integers is exact", len(shapes) * gpus, len(exact)),
        _equal("long_rows", "row lengths past one program x dtypes x directions right in two passes",
               4 * len(params["wide_widths"]) * gpus, ran["wide forward"] + ran["wide backward"]),
        _equal("gradient_canaries", "kernels, dtypes and sizes with special rows that went wrong", 0,
               sum(bool(line["rows_wrong"]) for line in special)),
        _equal("gradient_canaries_ran", "kernels, dtypes and sizes with special rows", 6 * gpus, len(special)),
        _equal("empty_refused", "calls with no row or no column refused by name", 8 * gpus,
               len(of_kind(lines, "grad_refusal", passed=True))),
    ]  # fmt: skip
    if params["device"] == "cpu":
        return found
    for part, wanted in (("backward", shapes), ("wide_forward", wide), ("wide_backward", wide)):
        if not wanted:
            continue
        again = of_kind(lines, "grad_recheck", what=part, passed=True)
        found += [
            _equal(f"{part}_timed", "shapes with times of ours and copy_", len(wanted),
                   len(results.get(f"{part}_ms", {}))),
            _equal(f"{part}_right_after_timing", "shapes, processes and GPUs with a good output after the timing",
                   ranks * len(wanted), len({(line["process"], line["rank"], line["shape"]) for line in again})),
            _equal(f"{part}_kernels_a_call", "GPU kernels of one call of ours", KERNELS[part],
                   results.get(f"{part}_kernels_per_call", {}).get("ours")),
        ]  # fmt: skip
    return [*found, *_cache(params, results), *_not_faster_than_memory(lines, results)]


def _cache(params: Mapping[str, Any], results: Mapping[str, Any]) -> list[Oracle]:
    """The first process tunes, the others find its choice; on several GPUs at once several may tune first."""
    if not params["cache_shapes"] or params["num_gpus"] > 1:
        return []
    by_process = {name: sum(found.values()) for name, found in results.get("cache_timings", {}).items()}
    first = by_process.pop("process 0", 0)
    return [
        Oracle(name="first_process_tunes", passed=first > 0, expected="more than 0", seen=first,
               detail="timings that filled the shape cache"),
        _equal("other_processes_do_not_tune", "timings by later processes, and how many asked the cache",
               [0, params["num_processes"] - 1], [sum(by_process.values()), len(by_process)]),
    ]  # fmt: skip


def _not_faster_than_memory(lines: Lines, results: Mapping[str, Any]) -> list[Oracle]:
    rate = results.get("datasheet_gb_per_s")
    l2 = max((line["l2_bytes"] for line in of_kind(lines, "device") if "l2_bytes" in line), default=None)
    if not rate or l2 is None:
        return []
    through = {
        f"{part} {shape}": (results[f"{part}_min_bytes"][shape] - l2) / (time["value"] * 1e6)
        for part in KERNELS for shape, time in results.get(f"{part}_ms", {}).items()
        if results[f"{part}_min_bytes"][shape] > 2 * l2
    }  # fmt: skip
    if not through:
        return []
    fastest = max(through, key=lambda name: through[name])
    return [Oracle(
        name="gradients_not_faster_than_memory", passed=through[fastest] <= rate, expected=f"at most {rate:.0f} GB/s",
        seen=round(through[fastest], 1), detail=f"{fastest}: minimum bytes less L2, over the time",
    )]  # fmt: skip


def _equal(name: str, detail: str, expected: Any, seen: Any) -> Oracle:
    return Oracle(name=name, passed=seen == expected, expected=expected, seen=seen, detail=detail)

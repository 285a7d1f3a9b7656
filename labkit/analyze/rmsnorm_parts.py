"""What the lines say about the backward pass and the two-pass kernels: errors, times, ratios, the shape cache.

Parts: `backward`, `wide_forward`, `wide_backward`. Results are named `<part>_...`, by shape. All times are of single
calls after an L2 flush. A ratio to the copy compares bandwidths: least bytes over time of ours, bytes over time of a
copy_ of nearly as many, measured in the same round.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from labkit.analyze.rmsnorm import Lines, of_kind
from labkit.calc import rmsnorm as calc
from labkit.records import quantity

PARTS = ("backward", "wide_forward", "wide_backward")
LARGE_BYTES = 256e6
COPY_GOAL = 0.90
"""Of the copy's bandwidth, for `backward` from LARGE_BYTES on."""
KERNELS = {"backward": 2, "wide_forward": 2, "wide_backward": 3}
"""GPU kernels of one call."""
CHECKS = ("grad_check", "grad_recheck", "grad_exact", "grad_canary", "grad_refusal")

Sizes = Mapping[str, tuple[int, int, int]]


def structure(backward: Sizes, wide: Sizes) -> dict[str, Any]:
    """What the shapes fix without a run: least bytes by part and shape; bytes of the two passes for wide rows.

    Args:
        backward: shape text -> rows, hidden, bytes per element.
        wide: the same, of rows longer than one program takes.
    """
    out: dict[str, Any] = {}
    if backward:
        out["backward_min_bytes"] = {text: _backward(size) for text, size in backward.items()}
    if wide:
        out["wide_forward_min_bytes"] = {
            text: int(calc.min_bytes(rows=r, hidden=h, bytes_in=b)) for text, (r, h, b) in wide.items()
        }
        out["wide_backward_min_bytes"] = {text: _backward(size) for text, size in wide.items()}
        for way in ("forward", "backward"):
            out[f"wide_{way}_two_pass_bytes"] = {
                text: int(calc.two_pass_bytes(rows=r, hidden=h, direction=way, bytes_per_element=b))
                for text, (r, h, b) in wide.items()
            }
    return out


def _backward(size: tuple[int, int, int]) -> int:
    rows, hidden, num_bytes = size
    return int(calc.backward_min_bytes(rows=rows, hidden=hidden, bytes_per_element=num_bytes))


def predicted_ms(fixed: Mapping[str, Any], *, bytes_per_s: float, launch_floor_s: float) -> dict[str, dict[str, float]]:
    """Predicted time by part and shape, ms: a launch floor for each kernel, then the bytes of that algorithm.

    Args:
        fixed: of `structure`.
        bytes_per_s: ceiling.
        launch_floor_s: of one kernel.
    """
    out: dict[str, dict[str, float]] = {}
    for part in PARTS:
        moved = fixed.get(f"{part}_two_pass_bytes") or fixed.get(f"{part}_min_bytes")
        if moved:
            out[part] = {
                shape: 1e3 * calc.predicted_time_s(num_bytes=num_bytes, bytes_per_s=bytes_per_s,
                                                   launch_floor_s=KERNELS[part] * launch_floor_s)
                for shape, num_bytes in moved.items()
            }  # fmt: skip
    return out


def gradient_errors(lines: Lines, shapes: Sequence[str]) -> dict[str, Any]:
    """Errors of dx and dweight against float64.

    Returns: by shape backward_bound_used {"dx", "dweight"} of ours, backward_baseline_bound_used by provider; by width
    gradient_bound_used (largest of the dtypes, through autograd); two_pass_widths checked; num_gradient_checks.
    """
    checks = of_kind(lines, *CHECKS)
    if not checks:
        return {}
    out: dict[str, Any] = {"num_gradient_checks": len(checks), "backward_bound_used": {"dx": {}, "dweight": {}}}
    names = {"dx": "dx_bound_used", "dweight": "dw_bound_used"}
    for shape in shapes:
        ours = [*of_kind(lines, "grad_check", what="backward", shape=shape),
                *of_kind(lines, "grad_recheck", what="backward", shape=shape)]  # fmt: skip
        for name, key in names.items():
            if ours:
                out["backward_bound_used"][name][shape] = max(line[key] for line in ours)
    widths: dict[str, dict[str, float]] = {}
    for line in of_kind(lines, "grad_check", what="autograd"):
        used = widths.setdefault(line["shape"].split()[0].split("x")[1], {"dx": 0.0, "dweight": 0.0})
        used |= {name: max(used[name], line[key]) for name, key in names.items()}
    out["gradient_bound_used"] = widths
    wide = [line["shape"] for line in of_kind(lines, "grad_check", what="wide backward") if "case" not in line]
    out["two_pass_widths"] = sorted({int(shape.split()[0].split("x")[1]) for shape in wide})
    others: dict[str, dict[str, dict[str, float]]] = {}
    for line in of_kind(lines, "part_baseline_error", part="backward"):
        others.setdefault(line["provider"], {})[line["shape"]] = {name: line[key] for name, key in names.items()}
    return {**out, "backward_baseline_bound_used": others} if others else out


def part_results(lines: Lines, fixed: Mapping[str, Any]) -> dict[str, Any]:
    """Every published time, ratio and bandwidth of the parts; a part that was not timed is left out.

    Args:
        lines: of labkit.analyze.rmsnorm.read_lines.
        fixed: of `structure`.
    """
    out: dict[str, Any] = {}
    for part in PARTS:
        least = fixed.get(f"{part}_min_bytes", {})
        timed = [shape for shape in least if _samples(lines, part, "ours", shape)
                 and _samples(lines, part, "copy", shape)]  # fmt: skip
        if timed:
            out |= {f"{part}_{name}": value for name, value in _one_part(lines, part, timed, least).items()}
    return {**out, **cache_results(lines)}


def _one_part(lines: Lines, part: str, timed: list[str], least: Mapping[str, int]) -> dict[str, Any]:
    told = {line["shape"]: line for line in of_kind(lines, "part_shape", part=part)}
    names = {"ms": "ours", "native_ms": "native", "compile_ms": "compile", "liger_ms": "liger", "copy_ms": "copy"}
    out: dict[str, Any] = {
        name: {s: _pooled(found.values()) for s in timed if (found := _samples(lines, part, provider, s))}
        for name, provider in names.items()
    }
    share = {shape: least[shape] / told[shape]["copy_bytes"] for shape in timed}
    out["copy_fraction"] = _ratios(lines, part, timed, "copy", "ours", share)
    for name in ("native", "compile", "liger"):
        out[f"speedup_{name}"] = _ratios(lines, part, timed, name, "ours")
        out[f"{name}_copy_fraction"] = _ratios(lines, part, timed, "copy", name, share)
    for name, provider in (("gb_per_s", "ours"), ("copy_gb_per_s", "copy"), ("compile_gb_per_s", "compile"),
                           ("liger_gb_per_s", "liger")):  # fmt: skip
        moved = {s: told[s]["copy_bytes"] for s in timed} if provider == "copy" else least
        out[name] = {
            s: _pooled([[moved[s] / (ms * 1e6) for ms in values] for values in found.values()], "GB/s")
            for s in timed if (found := _samples(lines, part, provider, s))
        }  # fmt: skip
    noise = _ratios(lines, part, timed, "copy_again", "copy")
    out["noise_floor_pct"] = {shape: abs(found["value"] - 1) * 100 for shape, found in noise.items()}
    out["config"] = {shape: told[shape]["config_label"] for shape in timed}
    programs = {shape: told[shape]["programs"] for shape in timed if told[shape]["programs"]}
    out["partial_sum_bytes"] = {s: calc.partial_sum_bytes(programs=n, hidden=int(s.split()[0].split("x")[1]))
                                for s, n in programs.items()}  # fmt: skip
    profiles = of_kind(lines, "part_profile", part=part)
    out["kernels_per_call"] = {name: max(line["kernels"] for line in of_kind(profiles, "part_profile", provider=name))
                               for name in dict.fromkeys(line["provider"] for line in profiles)}  # fmt: skip
    fell = of_kind(lines, "part_compile", part=part)
    out["compile_fell_back"] = {s: any(line["fell_back"] for line in of_kind(fell, "part_compile", shape=s))
                                for s in dict.fromkeys(line["shape"] for line in fell)}  # fmt: skip
    if part == "backward":
        out["goal_missed"] = {
            s: f"{100 * q['value']:.1f} % of copy_" for s, q in out["copy_fraction"].items()
            if least[s] >= LARGE_BYTES and q["value"] < COPY_GOAL
        }  # fmt: skip
    return {name: value for name, value in out.items() if value or name == "goal_missed"}


def residuals(
    results: Mapping[str, Any], predicted: Mapping[str, Mapping[str, Mapping[str, float]]]
) -> dict[str, dict[str, dict[str, float]]]:
    """Measured over predicted time minus one, in percent: {part: {ceiling: {shape: percent}}}.

    Args:
        results: with `<part>_ms`.
        predicted: ceiling name -> part -> shape -> ms, of `predicted_ms`.
    """
    out: dict[str, dict[str, dict[str, float]]] = {}
    for ceiling, by_part in predicted.items():
        for part, times in by_part.items():
            seen = results.get(f"{part}_ms", {})
            found = {shape: 100 * (seen[shape]["value"] / ms - 1) for shape, ms in times.items() if shape in seen}
            if found:
                out.setdefault(part, {})[ceiling] = found
    return out


def cache_results(lines: Lines) -> dict[str, Any]:
    """The shape cache, by `<direction> <shape>`: timings by process, what was chosen, its gain, each setting's time."""
    found = of_kind(lines, "cache")
    if not found:
        return {}
    timings: dict[str, dict[str, int]] = {}
    for line in found:
        of_process, name = timings.setdefault(f"process {line['process']}", {}), _tuned_name(line)
        of_process[name] = of_process.get(name, 0) + line["num_timings"]
    tuned = {_tuned_name(line): line for line in reversed(found)}
    return {
        "cache_timings": timings, "cache_chosen": {name: line["chosen"] for name, line in tuned.items()},
        "cache_gain_pct": {
            name: 100 * (line["ms"][line["default"]] / line["ms"][line["chosen"]] - 1)
            for name, line in tuned.items() if {line["default"], line["chosen"]} <= set(line["ms"])
        },
        "cache_ms": {name: line["ms"] for name, line in tuned.items()},
    }  # fmt: skip


def _tuned_name(line: Mapping[str, Any]) -> str:
    return f"{line['direction']} {line['shape']}"


def part_samples(lines: Lines) -> dict[str, Any]:
    """Every sample for `RunRecord.samples`: `<part> <provider> <shape>` -> unit and one list a process and rank."""
    out: dict[str, Any] = {}
    for line in of_kind(lines, "part_timing"):
        name = f"{line['part']} {line['provider']} {line['shape']}"
        values = out.setdefault(name, {"unit": "ms", "values": []})["values"]
        values.append([round(value, 5) for value in line["ms"]])
    return out


def _samples(lines: Lines, part: str, provider: str, shape: str) -> dict[tuple[int, int], list[float]]:
    found = of_kind(lines, "part_timing", part=part, provider=provider, shape=shape)
    return {(line["process"], line["rank"]): line["ms"] for line in found}


def _pooled(found: Any, unit: str = "ms") -> dict[str, Any]:
    parts = list(found)
    return quantity([value for part in parts for value in part], unit, num_processes=len(parts))


def _ratios(
    lines: Lines, part: str, shapes: Sequence[str], over: str, under: str, factor: Mapping[str, float] | None = None
) -> dict[str, Any]:
    """Quantities of factor * over / under, round by round."""
    out = {}
    for shape in shapes:
        first, second = (_samples(lines, part, name, shape) for name in (over, under))
        scale = factor[shape] if factor else 1.0
        found = [[scale * a / b for a, b in zip(first[at], second[at])] for at in first if at in second]
        if found:
            out[shape] = _pooled(found, "x")
    return out

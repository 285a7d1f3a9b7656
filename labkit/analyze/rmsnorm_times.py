"""What the lines of labkit.workers.rmsnorm_bench say about time: medians, ratios, bandwidths, flags, residuals.

Times are ms per call. Providers: `report` (the V100 report's kernel, output allocated inside), `report_out` (the same
into a given output), `fast`, `native`, `composite`, `compile`, `liger`, `copy` and `copy_again`.

Two clocks. `stream` is a loop of calls over rotating buffers, as the report timed: launch cost on the host is in it.
`cold` is one call between two events after an L2 flush, the host ahead: what the GPU needs. Ratios are paired by round.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from labkit.analyze.rmsnorm import Lines, of_kind
from labkit.calc import rmsnorm as calc
from labkit.records import quantity

LARGE_BYTES = 256e6
"""From here on the fast kernel is held to the copy and to torch.compile."""
COPY_GOAL = 0.97
HOST_BOUND_RATIO = 1.25
"""A loop this many times slower than the GPU alone waits for the host."""


def timing_results(lines: Lines, shapes: Sequence[str], min_bytes: Mapping[str, int]) -> dict[str, Any]:
    """Every published time, ratio, bandwidth and flag of a GPU run; a shape that was not timed is left out."""
    timing = of_kind(lines, "timing")
    providers = list(dict.fromkeys(line["provider"] for line in timing))
    timed = [s for s in shapes if samples(lines, "cold", "fast", s) and samples(lines, "cold", "copy", s)]
    by_mode = {
        f"{mode}_ms": {
            p: {s: _pooled(found) for s in timed if (found := samples(lines, mode, p, s))} for p in providers
        }
        for mode in ("stream", "cold", "graph", "warm")
    }
    by_mode = {mode: {p: times for p, times in found.items() if times} for mode, found in by_mode.items()}
    stream, cold = by_mode["stream_ms"], by_mode["cold_ms"]
    out: dict[str, Any] = {
        "time_ms": stream.get("report", {}), "native_ms": stream.get("native", {}),
        "composite_ms": stream.get("composite", {}),
        **{f"{name}_ms": cold.get(name, {}) for name in ("fast", "compile", "liger", "copy")},
        **by_mode, **_floors(lines),
        "speedup_native": _ratios(lines, timed, "stream", "native", "report"),
        "speedup_composite": _ratios(lines, timed, "stream", "composite", "report"),
        "speedup_native_gpu": _ratios(lines, timed, "cold", "native", "fast"),
        "speedup_compile": _ratios(lines, timed, "cold", "compile", "fast"),
        "copy_fraction": _ratios(lines, timed, "cold", "copy", "fast"),
        "min_bytes_gb_per_s": _bandwidths(lines, timed, "stream", "report", min_bytes),
        **{f"{name}_gb_per_s": _bandwidths(lines, timed, "cold", name, min_bytes)
           for name in ("fast", "report_out", "native", "compile", "copy")},
        "config": {line["shape"]: line["config_label"] for line in of_kind(lines, "shape")},
        **kernel_counts(lines), "flags": flags(lines, timed, min_bytes),
    }  # fmt: skip
    noise = _ratios(lines, timed, "cold", "copy_again", "copy")
    out["noise_floor_pct"] = {shape: abs(found["value"] - 1) * 100 for shape, found in noise.items()}
    out["goal_missed"] = goal_missed(out, min_bytes)
    return out


def samples(lines: Lines, mode: str, provider: str, shape: str) -> list[list[float]]:
    """Samples in ms, one list for each process and rank, in order."""
    return [line["ms"] for line in of_kind(lines, "timing", mode=mode, provider=provider, shape=shape)]


def _pooled(found: list[list[float]], unit: str = "ms") -> dict[str, Any]:
    return quantity([value for part in found for value in part], unit, num_processes=len(found))


def _ratios(lines: Lines, shapes: Sequence[str], mode: str, over: str, under: str) -> dict[str, Any]:
    """Quantities of over / under, round by round: both were measured within a few milliseconds."""
    out = {}
    for shape in shapes:
        first, second = (_by_part(lines, mode, name, shape) for name in (over, under))
        found = [[a / b for a, b in zip(first[part], second[part])] for part in first if part in second]
        if found:
            out[shape] = _pooled(found, "x")
    return out


def _by_part(lines: Lines, mode: str, provider: str, shape: str) -> dict[tuple[int, int], list[float]]:
    found = of_kind(lines, "timing", mode=mode, provider=provider, shape=shape)
    return {(line["process"], line["rank"]): line["ms"] for line in found}


def _bandwidths(lines: Lines, shapes: Sequence[str], mode: str, name: str, moved: Mapping[str, int]) -> dict[str, Any]:
    """Quantities of minimum bytes / time, GB/s."""
    return {
        shape: _pooled([[moved[shape] / (ms * 1e6) for ms in part] for part in found], "GB/s")
        for shape in shapes if (found := samples(lines, mode, name, shape))
    }  # fmt: skip


def _floors(lines: Lines) -> dict[str, Any]:
    """Time of a kernel that does nothing: in a loop (host), between two events, as a node of a replayed graph."""
    names = {"stream": "launch_floor_ms", "cold": "launch_floor_gpu_ms", "graph": "launch_floor_graph_ms"}
    found = {mode: [line["ms"] for line in of_kind(lines, "floor", mode=mode)] for mode in names}
    return {names[mode]: _pooled(parts) for mode, parts in found.items() if parts}


def kernel_counts(lines: Lines) -> dict[str, Any]:
    """Kernels of one call by the profiler: the largest of all shapes for ours and the baselines; names of native's."""
    profiles = of_kind(lines, "profile")
    if not profiles:
        return {}
    most: dict[str, int] = {}
    for line in profiles:
        most[line["provider"]] = max(most.get(line["provider"], 0), line["kernels"])
    return {
        "kernels_per_call": max(most.get(name, 0) for name in ("report", "report_out", "fast")),
        "native_kernels_per_call": most.get("native"), "composite_kernels_per_call": most.get("composite"),
        "compile_kernels_per_call": most.get("compile"),
        "native_kernel_names": sorted({name for line in of_kind(profiles, "profile", provider="native")
                                       for name in line["names"]}),
    }  # fmt: skip


def flags(lines: Lines, shapes: Sequence[str], min_bytes: Mapping[str, int]) -> dict[str, Any]:
    """What would mislead a reader of the times, by shape.

    Returns: {shape: {"host_bound": providers whose loop waits for the host, "l2_hot": the shape fits the L2 cache, so
    a loop over one buffer would measure that, "compile_fell_back": what ran was not one fresh compiled graph; None
    where it was not compiled}}.
    """
    out = {}
    for shape in shapes:
        host = []
        for name in dict.fromkeys(line["provider"] for line in of_kind(lines, "timing", mode="stream", shape=shape)):
            gpu = samples(lines, "cold", "report_out" if name == "report" else name, shape)
            loop = samples(lines, "stream", name, shape)
            if gpu and _pooled(loop)["value"] > HOST_BOUND_RATIO * _pooled(gpu)["value"]:
                host.append(name)
        l2_bytes = max((line["l2_bytes"] for line in of_kind(lines, "shape", shape=shape)), default=0)
        compiled = [line["fell_back"] for line in of_kind(lines, "compile", shape=shape)]
        out[shape] = {"host_bound": host, "l2_hot": min_bytes[shape] <= l2_bytes,
                      "compile_fell_back": any(compiled) if compiled else None}  # fmt: skip
    return out


def goal_missed(results: Mapping[str, Any], min_bytes: Mapping[str, int]) -> dict[str, list[str]]:
    """Shapes of at least LARGE_BYTES where the fast kernel stays under 97 % of copy_ or under torch.compile, and by how
    much. A tie is not under: the medians must differ by more than two copies of the same size do in this run.
    """
    out: dict[str, list[str]] = {}
    for shape, fraction in results["copy_fraction"].items():
        if min_bytes[shape] < LARGE_BYTES:
            continue
        slack = results["noise_floor_pct"].get(shape, 0.0) / 100
        if fraction["value"] < COPY_GOAL:
            out.setdefault(shape, []).append(f"{100 * fraction['value']:.1f} % of copy_")
        compiled = results["speedup_compile"].get(shape)
        if compiled and compiled["value"] < 1 - slack and not results["flags"][shape]["compile_fell_back"]:
            out.setdefault(shape, []).append(f"{compiled['value']:.3f} x torch.compile")
    return out


def residuals(
    results: Mapping[str, Any], min_bytes: Mapping[str, int], *, floor_ms: float, ceilings: Mapping[str, float | None]
) -> dict[str, dict[str, float]]:
    """Measured over predicted time of the fast kernel, minus one, in percent, for each ceiling and shape.

    Args:
        results: of `timing_results`.
        min_bytes: by shape.
        floor_ms: launch floor that the prediction used, ms.
        ceilings: name -> bytes/s; None is left out. `same_run` is added: this run's own floor and its largest copy.
    """
    own_floor = results.get("launch_floor_gpu_ms", {}).get("value", floor_ms)
    largest = max(results["copy_ms"], key=lambda shape: min_bytes[shape], default=None)
    best = None
    if largest is not None and results["copy_ms"][largest]["value"] > own_floor:
        best = min_bytes[largest] / ((results["copy_ms"][largest]["value"] - own_floor) / 1e3)
    models = {**{name: (floor_ms, rate) for name, rate in ceilings.items()}, "same_run": (own_floor, best)}
    return {
        name: {
            shape: 100 * (q["value"] / (calc.predicted_time_s(
                num_bytes=min_bytes[shape], bytes_per_s=rate, launch_floor_s=floor / 1e3) * 1e3) - 1)
            for shape, q in results["fast_ms"].items()
        }
        for name, (floor, rate) in models.items() if rate
    }  # fmt: skip


def card_spread(lines: Lines, shapes: Sequence[str]) -> dict[str, Any]:
    """Slowest over fastest GPU, in percent above one, of the medians of `fast` and `copy`; empty for one GPU.

    Returns: {"card_spread_pct": {"fast": {shape: pct}, "copy": ...}, "fast_ms_by_gpu": {shape: {gpu: ms}}}.
    """
    gpus = sorted({line["rank"] for line in of_kind(lines, "timing")})
    if len(gpus) < 2:
        return {}
    middle: dict[str, dict[str, dict[str, float]]] = {name: {} for name in ("fast", "copy")}
    for name, by_shape in middle.items():
        for shape in shapes:
            parts = {gpu: samples(of_kind(lines, "timing", rank=gpu), "cold", name, shape) for gpu in gpus}
            if all(parts.values()):
                by_shape[shape] = {str(gpu): _pooled(found)["value"] for gpu, found in parts.items()}
    spread = {
        name: {s: 100 * (max(found.values()) / min(found.values()) - 1) for s, found in by_shape.items()}
        for name, by_shape in middle.items()
    }
    return {"card_spread_pct": spread, "fast_ms_by_gpu": middle["fast"]}

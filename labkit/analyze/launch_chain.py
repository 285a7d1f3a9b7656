"""What the lines of labkit.workers.launch_chain say: times of a chain, cost of a step, where work hides the launch.

In: the run directory of one run (`p<k>`). Out: plain dicts, times in microseconds of one chain.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from labkit.analyze.gemm import Lines, of_kind, read_lines
from labkit.calc import kernels
from labkit.calc.gemm_time import fit_line
from labkit.records import Oracle, quantity

__all__ = ["Lines", "of_kind", "oracles", "prediction", "read_lines", "results", "samples"]
HIDDEN_RATIO = 1.25
"""A chain of launches this close to the replayed graph does not wait for the host."""
STEPS_PER_OP = {"eager": 1, "paired": 2, "graph": 1}
"""Variants that run one operator for so many steps; the others run one for the whole chain."""


def prediction(
    *, sizes: Sequence[int], lengths: Sequence[int], variants: Sequence[str], costs_us: Mapping[str, float],
    bytes_per_s: float, is_asynchronous: bool,
) -> dict[str, Any]:  # fmt: skip
    """Times before anything runs, from a few unit costs and a bandwidth.

    A GPU works while the host issues the next operator: the slower of the two decides. On a CPU one thread does both,
    so they add up and nothing is ever hidden.

    Args:
        sizes: elements of the tensor, FP32.
        lengths: steps of the chain.
        variants: names of labkit.workers.launch_chain.MAKERS.
        costs_us: host time of one `op`, of launching one `graph`, one `kernel`, one `compiled` function; least GPU time
            of one `node` of a graph; microseconds.
        bytes_per_s: bandwidth of an elementwise operator.
        is_asynchronous: a GPU.

    Returns: {"ops": {variant: {length: operators}}, "time_us": {variant: {size: {length: us}}}, "hiding_elements": size
    from which launches are hidden, None on a CPU}.
    """
    ops = {name: {str(n): -(-n // STEPS_PER_OP[name]) if name in STEPS_PER_OP else 1 for n in lengths}
           for name in variants}  # fmt: skip
    time_us: dict[str, dict[str, dict[str, float]]] = {}
    for name in variants:
        for size in sizes:
            run_us = 8 * size / bytes_per_s * 1e6
            time_us.setdefault(name, {})[str(size)] = {
                str(n): _gpu_us(name, ops[name][str(n)], run_us=run_us, costs_us=costs_us) if is_asynchronous
                else ops[name][str(n)] * (costs_us["op" if name in STEPS_PER_OP else name] + run_us)
                for n in lengths}  # fmt: skip
    hiding = kernels.hiding_elements(launch_s=costs_us["op"] * 1e-6, bytes_per_s=bytes_per_s)
    return {"ops": ops, "time_us": time_us, "hiding_elements": hiding if is_asynchronous else None}


def _gpu_us(name: str, num_ops: int, *, run_us: float, costs_us: Mapping[str, float]) -> float:
    if name in ("eager", "paired"):
        return 1e6 * kernels.stream_time_s(num_kernels=num_ops, kernel_s=run_us * 1e-6, launch_s=costs_us["op"] * 1e-6)
    if name == "graph":
        node_s = max(run_us, costs_us["node"]) * 1e-6
        return max(costs_us["graph"], 1e6 * kernels.graph_time_s(num_kernels=num_ops, kernel_s=node_s))
    return max(costs_us[name], run_us)


def own_costs(time_us: Mapping[str, Any], sizes: Sequence[int], lengths: Sequence[int]) -> dict[str, Any] | None:
    """Unit costs of a run by itself, read off a handful of its chains; the model then gives all others.

    Args:
        time_us: variant -> size -> length -> quantity.
        sizes: elements, smallest first.
        lengths: steps, shortest first.

    Returns: {"costs_us": as `prediction` takes them, "bytes_per_s": of the longest eager chain of the largest size};
        a variant that did not run has no cost; None where there is no eager chain.
    """
    small, large, short, long = str(sizes[0]), str(sizes[-1]), str(lengths[0]), str(lengths[-1])
    eager = time_us.get("eager", {})
    if long not in eager.get(large, {}) or short not in eager.get(small, {}):
        return None
    costs = {"op": eager[small][short]["value"] / lengths[0], "node": 0.0}
    for name, by_size in time_us.items():
        if name not in ("eager", "paired") and by_size.get(small):
            costs[name] = by_size[small][min(by_size[small], key=int)]["value"]
    graph = time_us.get("graph", {}).get(small, {})
    if short in graph and long in graph:
        costs["node"] = max(0.0, (graph[long]["value"] - graph[short]["value"]) / (lengths[-1] - lengths[0]))
    work_us = eager[large][long]["value"] / lengths[-1]
    return {"costs_us": costs, "bytes_per_s": 8 * sizes[-1] / (work_us * 1e-6)}


def residuals(time_us: Mapping[str, Any], predicted: Mapping[str, Any]) -> dict[str, Any]:
    """Variant -> size -> length -> measured over predicted time, minus one, in percent."""
    return {
        name: {size: {n: round(100 * (q["value"] / predicted["time_us"][name][size][n] - 1), 2)
                      for n, q in by_length.items() if predicted["time_us"][name][size][n]}
               for size, by_length in by_size.items()} for name, by_size in time_us.items()
    }  # fmt: skip


def times(lines: Lines, what: str) -> dict[str, dict[str, dict[str, list[list[float]]]]]:
    """Variant -> size -> length -> samples of `wall_us` or `issue_us`, one list for each process."""
    out: dict[str, dict[str, dict[str, list[list[float]]]]] = {}
    for line in of_kind(lines, "timing"):
        by_length = out.setdefault(line["variant"], {}).setdefault(str(line["size"]), {})
        by_length.setdefault(str(line["length"]), []).append(line[what])
    return out


def fits(time_us: Mapping[str, Mapping[str, Mapping[str, dict[str, Any]]]]) -> dict[str, Any]:
    """Variant -> size -> {"fixed_us", "step_us"}: the line through the medians against the length of the chain.

    A variant with fewer than two lengths has no line.
    """
    out: dict[str, Any] = {}
    for name, by_size in time_us.items():
        for size, by_length in by_size.items():
            if len(by_length) >= 2:
                lengths = sorted(map(int, by_length))
                line = fit_line(x=lengths, y=[by_length[str(n)]["value"] for n in lengths])
                out.setdefault(name, {})[size] = {"fixed_us": line["intercept"], "step_us": line["slope"]}
    return out


def ratios(
    time_us: Mapping[str, Mapping[str, Mapping[str, dict[str, Any]]]]
) -> dict[str, dict[str, dict[str, float]]]:
    """Variant -> size -> length -> time of eager over time of the variant."""
    eager = time_us.get("eager", {})
    return {
        name: {size: {n: round(eager[size][n]["value"] / q["value"], 4) for n, q in by_length.items()
                      if n in eager.get(size, {})} for size, by_length in by_size.items()}
        for name, by_size in time_us.items() if name != "eager"
    }  # fmt: skip


def hidden_from(found: Mapping[str, Any]) -> int | None:
    """Smallest size from which on a step of the eager chain costs no more than HIDDEN_RATIO steps of the graph.

    Args:
        found: of `fits`.

    Returns: elements; None without a graph, or where launches stay visible at the largest size.
    """
    eager, graph = found.get("eager", {}), found.get("graph", {})
    sizes = sorted(map(int, set(eager) & set(graph)))
    hidden = [size for size in sizes
              if eager[str(size)]["step_us"] <= HIDDEN_RATIO * graph[str(size)]["step_us"]]  # fmt: skip
    return next((size for size in sizes if all(s in hidden for s in sizes if s >= size)), None)


def break_even(found: Mapping[str, Any], size: str) -> float | None:
    """Steps from which on the compiled chain is faster than eager at this size, by the two fitted lines; None where it
    is not known or never.
    """
    eager, compiled = found.get("eager", {}).get(size), found.get("compiled", {}).get(size)
    if not eager or not compiled or eager["step_us"] <= compiled["step_us"]:
        return None
    return max(0.0, (compiled["fixed_us"] - eager["fixed_us"]) / (eager["step_us"] - compiled["step_us"]))


def results(
    lines: Lines, predicted: Mapping[str, Any], sizes: Sequence[int], lengths: Sequence[int], *, is_asynchronous: bool
) -> dict[str, Any]:
    """Everything a record publishes of a run.

    Args:
        lines: of `read_lines`.
        predicted: of `prediction`.
        sizes: elements, smallest first.
        lengths: steps, shortest first.
        is_asynchronous: a GPU.
    """
    pooled = {
        what: {
            name: {size: {n: quantity([v for part in parts for v in part], "us", num_processes=len(parts))
                          for n, parts in by_length.items()} for size, by_length in by_size.items()}
            for name, by_size in times(lines, f"{what}_us").items()}
        for what in ("wall", "issue")
    }  # fmt: skip
    time_us, small = pooled["wall"], str(sizes[0])
    fitted, own, own_residuals = fits(time_us), own_costs(time_us, sizes, lengths), {}
    if own:
        again = prediction(sizes=sizes, lengths=lengths, variants=list(time_us), **own, is_asynchronous=is_asynchronous)
        own_residuals = residuals(time_us, again)
    return {
        "time_us": time_us,
        "issue_us": {name: {size: {n: q["value"] for n, q in by_length.items()} for size, by_length in by_size.items()}
                     for name, by_size in pooled["issue"].items()},
        "fit": fitted, "speedup": ratios(time_us),
        "op_us": fitted.get("eager", {}).get(small, {}).get("step_us"),
        "node_us": fitted.get("graph", {}).get(small, {}).get("step_us"),
        "hidden_from_elements": hidden_from(fitted),
        "break_even_steps": break_even(fitted, small),
        "residual_pct": residuals(time_us, predicted),
        "own_costs": own, "own_residual_pct": own_residuals,
        "ops": {line["variant"]: {str(line["length"]): line["count"]} for line in of_kind(lines, "ops")},
        "kernels": {line["variant"]: {str(line["length"]): line["kernels"]} for line in of_kind(lines, "kernels")},
        "compile_s": {f"{line['size']} {line['length']}": round(line["wall_s"], 3)
                      for line in of_kind(lines, "compile_time", process=0)},
        "num_threads": median([line["num_threads"] for line in of_kind(lines, "device")]),
    }  # fmt: skip


def samples(lines: Lines) -> dict[str, Any]:
    """Every wall time for `RunRecord.samples`: `<variant> <size> <length>`, one list a process."""
    return {
        f"{name} {size} {n}": {"unit": "us", "values": [[float(f"{v:.4g}") for v in part] for part in parts]}
        for name, by_size in times(lines, "wall_us").items() for size, by_length in by_size.items()
        for n, parts in by_length.items()
    }  # fmt: skip


def oracles(
    params: Mapping[str, Any], lines: Lines, results: Mapping[str, Any], predicted: Mapping[str, Any]
) -> list[Oracle]:
    """What must hold for one run.

    Args:
        params: as recorded.
        lines: of `read_lines`.
        results: of the record.
        predicted: of `prediction`.
    """
    exact, closed = of_kind(lines, "exact"), of_kind(lines, "closed_form")
    refused = {(line["what"], line["size"], line["length"]) for line in of_kind(lines, "refusal") if "size" in line}
    grid = [(size, n) for size in params["sizes"] for n in params["lengths"]]
    asked = {(name, size, n) for name in params["variants"] for size, n in grid
             if name != "compiled" or (n in params["compile_lengths"] and size in params["compile_sizes"])}  # fmt: skip
    timed = {(line["variant"], line["size"], line["length"]) for line in of_kind(lines, "timing", process=0)}
    counted = {name: found == {n: predicted["ops"][name][n] for n in found} for name, found in results["ops"].items()}
    small, lengths = str(params["sizes"][0]), sorted(params["lengths"])
    eager = results["time_us"].get("eager", {}).get(small, {})
    growth = eager[str(lengths[-1])]["value"] / eager[str(lengths[0])]["value"] if len(eager) > 1 else None
    return [
        _equal("same_bits", "elements of any variant that differ from the eager chain", 0,
               sum(line["num_bad"] for line in exact)),
        _equal("closed_form", "elements of the eager chain outside the bound around its exact value", 0,
               sum(line["num_bad"] for line in closed)),
        _equal("every_chain_checked", "chains compared with the exact value", len(grid), len(closed)),
        _equal("ops_dispatched", "uncompiled variants whose operators are as predicted", 2, sum(counted.values())),
        _equal("processes_ended", "processes that reached their end", params["num_processes"],
               len(of_kind(lines, "done"))),
        _equal("every_chain_accounted", "chains timed, or refused with their error", len(asked),
               len(asked & (timed | refused))),
        *([Oracle(name="longer_takes_longer", passed=growth > 1, expected="above 1", seen=round(growth, 2),
                  detail="time of the longest eager chain over the shortest, smallest tensor")] if growth else []),
        *_kernels(results, predicted),
    ]  # fmt: skip


def _kernels(results: Mapping[str, Any], predicted: Mapping[str, Any]) -> list[Oracle]:
    """Kernels of one call by the profiler, for every variant that was profiled."""
    return [
        _equal(f"kernels_{name}", "GPU kernels of one call", {n: predicted["ops"][name][n] for n in found}, found)
        for name, found in results["kernels"].items()
    ]


def _equal(name: str, detail: str, expected: Any, seen: Any) -> Oracle:
    return Oracle(name=name, passed=seen == expected, expected=expected, seen=seen, detail=detail)

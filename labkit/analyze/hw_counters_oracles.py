"""What must hold of counters if they are right: conservation, capacity, rules with another source, identities.

None of these asserts a speed. In: results of `labkit.analyze.hw_counters_results.collect`, the plan. Out: Oracles.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from labkit.analyze.hw_counters import GROUPS, lines_of
from labkit.analyze.hw_counters_results import COLD, Plan, collect
from labkit.records import Oracle, RunRecord

SLACK = 0.03
"""Counters of two units are read in different passes, and a kernel's edges are counted a little differently in each."""
TILE = 256
"""Sizes that this divides fit every tile that a library uses."""
FOREIGN_BYTES = 4e6
"""What else may be written back while a kernel runs: lines of the program around it and of the tool."""
SHORT_US = 10
"""A kernel this short runs differently from pass to pass; one of 5.5 us on an H200 differed by 11 %."""


def gpu_oracles(results: Mapping[str, Any], plan: Plan, checks: Iterable[Mapping[str, Any]]) -> list[Oracle]:
    """The oracles of a run with counters.

    Args:
        results: from `collect`.
        plan: workloads with their bytes.
        checks: the worker's `check` lines.
    """
    found = [_checks(list(checks)), _groups(results), _every_workload(results, plan), _capacity(results, plan),
             _reads(results, plan), _occupancy_rule(results), _achieved(results), _tensor(results, plan),
             _stalls(results), _bandwidth(results)]  # fmt: skip
    return [oracle for oracle in found if oracle is not None]


def _medians(results: Mapping[str, Any], name: str) -> dict[str, float]:
    return {key: entry["value"] for key, entry in results.get(name, {}).items()}


def _oracle(name: str, expected: str, wrong: dict[str, Any] | list[str], seen: Any, detail: str) -> Oracle:
    return Oracle(name=name, passed=not wrong, expected=expected, seen=wrong or seen, detail=detail)


def _checks(checks: list[Mapping[str, Any]]) -> Oracle:
    wrong = {check["what"]: check.get("num_bad") for check in checks if not check["passed"]}
    if not checks:
        wrong = {"checks": 0}
    return _oracle("outputs are right", "every output that was checked", wrong, f"{len(checks)} checked",
                   "float64, equality or an error bound; with counting and without")


def _groups(results: Mapping[str, Any]) -> Oracle:
    read = results.get("counters_read", [])
    return Oracle(name="the four kinds of counters that the report lacked were read", passed=read == list(GROUPS),
                  expected=list(GROUPS), seen=read, detail="a number for at least one kernel of each kind")


def _every_workload(results: Mapping[str, Any], plan: Plan) -> Oracle:
    lacking = [name for name, spec in plan.items() if spec["op"] != "memcpy" and name not in results["dram_read_bytes"]]
    return _oracle("every kernel was counted", "each workload has kernels in the table", lacking,
                   f"{len(results['dram_read_bytes'])} workloads", "a driver's memory copy is no kernel")


def _capacity(results: Mapping[str, Any], plan: Plan) -> Oracle:
    """Written bytes that memory did not see are in L2, so they fit in it.

    And none is written that was not there, unless a kernel spills registers or a product splits its sums: those write
    more than their output, which is what the counter is for.
    """
    l2, kept = results["device"].get("l2_bytes", 0), results.get("retained_write_bytes", {})
    spills = results.get("local_stores", {})
    wrong = {name: value for name, value in kept.items() if value > (1 + SLACK) * l2}
    for name, value in kept.items():
        least = -(SLACK * plan[name]["write_bytes"] + FOREIGN_BYTES)
        writes_more = plan[name]["op"] == "gemm" or spills.get(name, 0) > 0 or results["registers"].get(name) == 255
        if value < least and not writes_more:
            wrong[name] = value
    wrong = wrong if kept else {"compared": 0.0}
    most = max(kept.values(), default=0.0)
    return _oracle("written bytes that memory did not see fit in L2", f"between 0 and {l2} bytes", wrong,
                   f"{len(kept)} workloads, at most {most:.0f} bytes", "cold calls; conservation of bytes")


def _reads(results: Mapping[str, Any], plan: Plan) -> Oracle:
    """A cold kernel must fetch every byte that it reads at least once. The minimum is a lower bound, not a guess."""
    read = _medians(results, "dram_read_bytes")
    wrong = {name: read[name] for name in read if read[name] < (1 - SLACK) * plan[name]["read_bytes"]}
    wrong = wrong if read else {"compared": 0.0}
    ratios = [read[name] / plan[name]["read_bytes"] for name in read]
    return _oracle("a cold kernel reads at least its minimum from memory", "ratio of at least 1", wrong,
                   f"{min(ratios, default=0):.3f} to {max(ratios, default=0):.3f}", f"within {SLACK:.0%}")


def _occupancy_rule(results: Mapping[str, Any]) -> Oracle:
    """The tool's theoretical occupancy against ours from registers, threads and shared memory."""
    told, rule = results.get("theoretical_occupancy_pct", {}), results.get("rule_occupancy_pct", {})
    both = [name for name in told if name in rule and isinstance(told[name], int | float)]
    wrong = {name: [told[name], rule[name]] for name in both if abs(told[name] - rule[name]) > 0.1}
    if not both:
        wrong = {"compared": [0, 0]}
    return _oracle("theoretical occupancy is what our rule gives", "equal for every kernel", wrong,
                   f"{len(both)} equal", "labkit.calc.occupancy with the tool's registers, threads and shared memory")


def _achieved(results: Mapping[str, Any]) -> Oracle:
    achieved, told = _medians(results, "achieved_occupancy_pct"), results.get("theoretical_occupancy_pct", {})
    both = [name for name in achieved if isinstance(told.get(name), int | float)]
    wrong = {name: [achieved[name], told[name]] for name in both if not 0 < achieved[name] <= told[name] * (1 + SLACK)}
    if not both:
        wrong = {"compared": [0, 0]}
    return _oracle("achieved occupancy does not pass the theoretical one", "0 < achieved <= theoretical", wrong,
                   f"{len(both)} kernels", f"within {SLACK:.0%}")


def _tensor(results: Mapping[str, Any], plan: Plan) -> Oracle | None:
    """Tensor cores did exactly the product's operations if its tiles divide it, at least those if not, else none.

    Operations, not instructions: half-precision additions of ordinary kernels pass through the same pipe and are
    counted among its instructions.
    """
    done = results.get("tensor_flop", {})
    if not done:
        return None
    wrong: dict[str, Any] = {}
    for name, value in done.items():
        spec = plan[name]
        needed = 2 * spec["m"] * spec["n"] * spec["k"] if spec["op"] == "gemm" else 0
        is_exact = spec["op"] != "gemm" or not any(spec[size] % TILE for size in "mnk")
        if value != needed and (is_exact or value < needed):
            wrong[name] = [value, needed]
    products = {name: value for name, value in done.items() if plan[name]["op"] == "gemm"}
    return _oracle("tensor cores did the products' operations and nothing else", "2 M N K; 0 elsewhere", wrong,
                   products, f"{len(done)} kernels")


def _stalls(results: Mapping[str, Any]) -> Oracle:
    """Reasons add up: warps waiting for each, whenever an instruction is issued, are all the warps there are."""
    whole = _medians(results, "cycles_per_instruction")
    sums = {name: sum(reasons.values()) for name, reasons in results.get("stalls", {}).items() if name in whole}
    times_us = _medians(results, "ncu_time_us")
    bounds = {name: 0.25 if times_us.get(name, 0) < SHORT_US else 0.1 for name in sums}
    wrong = {name: [round(sums[name], 3), round(whole[name], 3)] for name in sums
             if abs(sums[name] - whole[name]) > bounds[name] * whole[name]}
    if not sums:
        wrong = {"compared": [0, 0]}
    return _oracle(
        "stall reasons add up to the cycles an instruction takes", "sum of reasons = cycles", wrong,
        f"{len(sums)} kernels", f"within 10 % (25 % below {SHORT_US} us): each reason is counted in its own pass")


def _bandwidth(results: Mapping[str, Any]) -> Oracle | None:
    """Counted bytes over the counted time cannot pass the datasheet's bandwidth."""
    sheet = results.get("datasheet_gb_per_s")
    if sheet is None:
        return None
    rates = results.get("dram_gb_per_s", {})
    wrong = {name: rate for name, rate in rates.items() if rate > sheet} if rates else {"compared": 0}
    return _oracle("counted bytes over time stay below the datasheet", f"at most {sheet:.0f} GB/s", wrong,
                   f"at most {max(rates.values(), default=0):.0f} GB/s", "cold calls under the tool")


def replay(record: RunRecord, run_dir: Path, plan: Plan) -> list[Oracle]:
    """A record computed once more from the files beside it: equal to the last digit, and its oracles from that.

    Args:
        record: with GPU counters.
        run_dir: its folder.
        plan: its workloads.
    """
    again = json.loads(json.dumps(collect(run_dir, plan)[0]))
    # A record may lack what a later version derives; what it has must come out, and every counter must be among it.
    odd = sorted(name for name in again if name in record.results and record.results[name] != again[name])
    odd += sorted(name for name in COLD if name in again and name not in record.results)
    compared = sum(name in record.results for name in again)
    found = [_oracle("recorded: the results follow from the table", "equal, every one", odd,
                     f"{compared} results equal", "parsed, cut at the markers and summed again")]  # fmt: skip
    sheet = record.results.get("datasheet_gb_per_s")
    for oracle in gpu_oracles({**again, "datasheet_gb_per_s": sheet}, plan, lines_of(run_dir, "check")):
        found.append(replace(oracle, name=f"recorded: {oracle.name}"))
    return found

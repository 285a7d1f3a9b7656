"""The part of the hardware counter lab that any machine runs: host counters, and a launcher that must not be fooled.

In: lines of `labkit.workers.host_counters`, answers of `parse_ncu_csv`. Out: results and Oracles.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from labkit.analyze.hw_counters import GROUPS, METRICS, groups_read, one_call
from labkit.calc.cache_traffic import first_touch_faults
from labkit.records import Oracle

SLACK_FAULTS = 8
"""Faults that the interpreter itself may take between two readings."""


def host_results(lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Page faults by size and reading, times a page, and which processor counters this machine gives.

    Returns: `page_faults` {size: {"predicted", "getrusage", "perf", "second"}}, `host_counters` {name: "read" or why
        not}, `host_rates` for those that were read: count per written byte, first and second time.
    """
    out: dict[str, Any] = {"page_faults": {}, "host_counters": {}, "host_rates": {}, "touch_ns_per_page": {}}
    for line in lines:
        if line["kind"] == "counter":
            out["host_counters"][line["name"]] = "read" if line["is_available"] else line["reason"]
    for size in dict.fromkeys(line["num_bytes"] for line in lines if line["kind"] == "touch"):
        found = [line for line in lines if line["kind"] == "touch" and line["num_bytes"] == size]
        middle, label = found[len(found) // 2], f"{size // 2**20} MiB"
        pages = first_touch_faults(num_bytes=size, page_bytes=middle["page_bytes"])
        worst = max(found, key=lambda line: abs(line["first"]["getrusage"] - pages))
        out["page_faults"][label] = {
            "predicted": pages, "getrusage": worst["first"]["getrusage"], "perf": worst["first"].get("page_faults"),
            "second": max(line["second"]["getrusage"] for line in found), "n": len(found),
        }  # fmt: skip
        times = sorted(line["first_s"] - line["second_s"] for line in found)
        out["touch_ns_per_page"][label] = 1e9 * times[len(times) // 2] / pages
        for name in middle["first"]:
            if name not in ("getrusage", "page_faults"):
                both = {when: middle[when][name] / size for when in ("first", "second")}
                out["host_rates"].setdefault(name, {})[label] = both
    return out


def host_oracles(results: Mapping[str, Any], lines: Sequence[Mapping[str, Any]]) -> tuple[list[Oracle], list[str]]:
    """Oracles of the host counters, and notes about what this machine does not count."""
    touched = [line for line in lines if line["kind"] == "touch"]
    wrong = [line["num_bytes"] for line in touched if not line["is_right"]]
    found = [Oracle(name="the memory holds what was written", passed=bool(touched) and not wrong,
                    expected="every mapping", seen=wrong or f"{len(touched)} mappings")]  # fmt: skip
    faults = results["page_faults"]
    notes = [f"{name} not counted here: {why}" for name, why in results["host_counters"].items() if why != "read"]
    if not any(entry["getrusage"] for entry in faults.values()):
        return found, [*notes, "this kernel counts no page faults, so the prediction of them was not checked"]
    odd = [size for size, entry in faults.items()
           if max(abs(entry["getrusage"] - entry["predicted"]), entry["second"]) > SLACK_FAULTS]  # fmt: skip
    found.append(Oracle(name="one page fault a page at the first write, none at the second", passed=not odd,
                        expected={size: entry["predicted"] for size, entry in faults.items()},
                        seen={size: entry["getrusage"] for size, entry in faults.items()},
                        tolerance=float(SLACK_FAULTS), detail="largest difference of all rounds"))  # fmt: skip
    both = {size: entry for size, entry in faults.items() if entry["perf"] is not None}
    if both:
        odd = {size: entry for size, entry in both.items() if abs(entry["perf"] - entry["getrusage"]) > SLACK_FAULTS}
        found.append(Oracle(name="two readings of the page faults agree", passed=not odd,
                            expected={size: entry["getrusage"] for size, entry in both.items()},
                            seen={size: entry["perf"] for size, entry in both.items()},
                            tolerance=float(SLACK_FAULTS), detail="getrusage and perf_event_open"))  # fmt: skip
    return found, notes


def refusal_results(answers: Mapping[str, Mapping[str, Any]], *, right: str) -> dict[str, Any]:
    """What was made of tools that measured nothing and ended with exit code 0, and of one that did measure.

    Args:
        answers: stand-in -> `parse_ncu_csv` of its output.
        right: the one that printed a table.

    Returns: `exit_0_refused` {stand-in: True}, `stand_in_errors` {stand-in: line or None}, `right_table_bytes`,
        `unreadable_without_permission`: which of the report's kinds of counters a refused run has no number for.
    """
    refused = {name: bool(answer["error"]) and not answer["kernels"] for name, answer in answers.items()}
    counted = [one_call([kernel]) for kernel in answers["no permission"]["kernels"]]
    lacking = set(groups_read(counted))
    kernels = answers[right]["kernels"]
    return {
        "exit_0_refused": {name: value for name, value in refused.items() if name != right},
        "right_table_accepted": not refused[right],
        "right_table_bytes": kernels[0]["metrics"].get(METRICS["dram_read_bytes"]) if kernels else None,
        "stand_in_errors": {name: answer["error"] for name, answer in answers.items()},
        "unreadable_without_permission": [name for name in GROUPS if name not in lacking],
    }


def refusal_oracles(results: Mapping[str, Any]) -> list[Oracle]:
    """Exit code 0 is not success; a right table is not refused; each cause has a line of its own."""
    causes = [error for error in results["stand_in_errors"].values() if error]
    return [
        Oracle(name="a tool that measured nothing is refused although it ended with exit code 0",
               passed=all(results["exit_0_refused"].values()) and results["right_table_accepted"],
               expected="refused, every one; the right table accepted", seen=results["exit_0_refused"],
               detail="stand-ins that print the tool's own text"),
        Oracle(name="each cause has its own line", passed=len(set(causes)) == len(causes) > 3, expected="all different",
               seen=causes),
    ]  # fmt: skip

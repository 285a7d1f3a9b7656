"""What the ranks of a process-group run left behind, as plain values: groups, sums, phase times, the swapped pair.

In: rows of `rank<k>.jsonl`, logs of the fault cases. Out: dicts by mapping and axis.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from labkit.analyze.collective_log import (
    SEQUENCE_FIELDS,
    TAG_FIELDS,
    diagnose,
    is_found,
    total_is_kept,
    wrong_sums,
)
from labkit.analyze.ddp_rank_files import of_kind
from labkit.analyze.kinds import UnreadableInput
from labkit.records import Oracle, quantity

Rows = list[dict[str, Any]]
DETECTORS = ("hang or error", "checksum of everything", "sequence log", "checksum of each tensor", "log with names")
"""What may notice a fault, weakest first."""


def groups_of(rows: Rows, mapping: str) -> dict[str, list[list[int]]]:
    """Groups of a mapping, put together from what each rank says it is a member of."""
    found: dict[str, list[list[int]]] = {}
    for row in of_kind(rows, "created", prefix=mapping):
        for axis, ranks in row["mine"].items():
            if ranks not in found.setdefault(axis, []):
                found[axis].append(ranks)
    return {axis: sorted(groups) for axis, groups in found.items()}


def creation_orders(rows: Rows) -> dict[str, list[list[Any]]]:
    """Prefix -> the different orders in which ranks made their groups; one of them when all agree."""
    found: dict[str, list[list[Any]]] = {}
    for row in of_kind(rows, "created"):
        if row["order"] not in found.setdefault(row["prefix"], []):
            found[row["prefix"]].append(row["order"])
    return found


def sums(rows: Rows) -> tuple[int, int]:
    """(groups and ranks whose first sum was looked at, those that are wrong); the form is recomputed here."""
    found = of_kind(rows, "sum")
    wrong = sum(row["value"] != [float(sum(rank + 1 for rank in row["ranks"]))] * 4 for row in found)
    return len(found), wrong


def wrong_in_phases(rows: Rows) -> tuple[int, int]:
    """(checks of a whole payload after a timed phase, elements that were wrong in them)."""
    found = [count for kind in ("phase", "slow_phase") for row in of_kind(rows, kind)
             for count in row["wrong"].values()]
    return len(found), sum(found)


def phase_ms(processes: Sequence[Rows], mapping: str, phase: str, *, kind: str = "phase") -> list[list[float]]:
    """Time of each sample, [process][sample], ms: the slowest rank's own.

    Over the slow wire it is from the first rank's start to the last one's end: one host has one clock.
    """
    found = []
    for rows in processes:
        by_index: dict[int, list[tuple[float, float]]] = {}
        for row in of_kind(rows, kind, mapping=mapping, phase=phase):
            start = row["start_s"] if kind == "slow_phase" else 0.0
            by_index.setdefault(row["index"], []).append((start, start + row["time_s"]))
        if by_index:
            found.append([1e3 * (max(end for _, end in ranks) - min(start for start, _ in ranks))
                          for _, ranks in sorted(by_index.items())])
    return found


def timing(processes: Sequence[Rows], mappings: Sequence[str], axes: Sequence[str], *, kind: str = "phase",
           prefix: str = "") -> tuple[dict[str, Any], dict[str, Any]]:
    """(results, samples): "<prefix>tp_phase" and so on, "<prefix>serial", "<prefix>concurrent", each by mapping, ms."""
    results: dict[str, Any] = {}
    samples: dict[str, Any] = {}
    for phase in (*axes, "serial", "concurrent"):
        name = prefix + (f"{phase.lower()}_phase" if phase in axes else phase)
        for mapping in mappings:
            found = phase_ms(processes, mapping, phase, kind=kind)
            if found:
                pooled = [time for times in found for time in times]
                results.setdefault(name, {})[mapping] = quantity(pooled, "ms", num_processes=len(found))
                samples[f"{name}.{mapping}"] = {"unit": "ms", "values": found}
    return results, samples


def twin(processes: Sequence[Rows]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Two groups over one pair of ranks: ({"twin_ms": {"in turn", "at once"}, "twin_ratio"}, samples)."""
    results: dict[str, Any] = {}
    samples: dict[str, Any] = {}
    for is_concurrent, name in ((False, "in turn"), (True, "at once")):
        found = []
        for rows in processes:
            by_index: dict[int, list[float]] = {}
            for row in of_kind(rows, "twin", is_concurrent=is_concurrent):
                by_index.setdefault(row["index"], []).append(1e3 * row["time_s"])
            if by_index:
                found.append([max(times) for _, times in sorted(by_index.items())])
        if found:
            pooled = [time for times in found for time in times]
            results.setdefault("twin_ms", {})[name] = quantity(pooled, "ms", num_processes=len(found))
            samples[f"twin_ms.{name}"] = {"unit": "ms", "values": found}
    if len(results.get("twin_ms", {})) == 2:
        results["twin_ratio"] = results["twin_ms"]["at once"]["value"] / results["twin_ms"]["in turn"]["value"]
    return results, samples


def order_values(rows: Rows, *, is_swapped: bool) -> dict[str, list[float]]:
    """Name -> what ranks 0 and 1 hold afterwards; several numbers of one rank would be listed one after the other."""
    found = sorted(of_kind(rows, "order", is_swapped=is_swapped), key=lambda row: row["rank"])
    return {name: [int(value) for row in found for value in row["values"][name]] for name in ("A", "B")}


def order_setup(rows: Rows) -> dict[str, Any]:
    """Ranks of the pair, and whether A and B have one shape on all of them: {"ranks", "shapes_equal"}."""
    found = of_kind(rows, "order")
    shapes = {tuple(shape) for row in found for shape in row["shapes"].values()}
    return {"ranks": len({row["rank"] for row in found}), "shapes_equal": len(shapes) == 1}


def detection(cases: Sequence[dict[str, Any]], played: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What each detector notices of faults whose place is known.

    Args:
        cases: faults as `labkit.calc.collective_schedule.inject_fault` makes them.
        played: what `play` gave for each.

    Returns: {"num_cases", "named_pct": cases in which the log with names gives exactly the rank and the call,
        "sequence_named_pct": the same for a log without names, "rank_only_pct": rank right whatever the place,
        "silent_pct": neither hang nor error, "noticed_pct": kind -> detector -> percent of its cases, "missed": cases
        that were not named}.
    """
    noticed: dict[str, dict[str, int]] = {}
    totals: dict[str, int] = {}
    named = sequence_named = rank_only = silent = 0
    missed = []
    for case, result in zip(cases, played, strict=True):
        logs, truth = result["logs"], {"rank": case["rank"], "index": case["index"]}
        with_names = diagnose(logs, fields=TAG_FIELDS)
        without = diagnose(logs, fields=SEQUENCE_FIELDS)
        is_loud = result["hang"] or result["error"]
        seen = (is_loud, not total_is_kept(logs), is_found(without, **truth), bool(wrong_sums(logs)),
                is_found(with_names, **truth))
        counts = noticed.setdefault(case["kind"], dict.fromkeys(DETECTORS, 0))
        totals[case["kind"]] = totals.get(case["kind"], 0) + 1
        for detector, is_seen in zip(DETECTORS, seen):
            counts[detector] += is_seen
        named += seen[4]
        sequence_named += seen[2]
        rank_only += without is not None and without["rank"] == case["rank"]
        silent += not is_loud
        if not seen[4]:
            missed.append({"kind": case["kind"], **truth, "found": with_names and [
                with_names["rank"], with_names["index"]]})
    count = max(1, len(cases))
    return {
        "num_cases": len(cases), "named_pct": 100 * named / count, "sequence_named_pct": 100 * sequence_named / count,
        "rank_only_pct": 100 * rank_only / count, "silent_pct": 100 * silent / count, "missed": missed,
        "noticed_pct": {kind: {name: 100 * hits / totals[kind] for name, hits in counts.items()}
                        for kind, counts in noticed.items()},
    }


def real_logs(folder: Path, number: int, num_ranks: int) -> list[list[dict[str, Any]]]:
    """Logs of one fault case that real ranks played, in the form of `collective_schedule.play`.

    Raises: UnreadableInput when a rank left no log or a line is not what the worker writes.
    """
    logs = []
    for rank in range(num_ranks):
        path = folder / f"case{number}_rank{rank}.jsonl"
        log: list[dict[str, Any]] = []
        try:
            for line in path.read_text(encoding="utf-8").splitlines():
                row = json.loads(line)
                event = row.pop("event")
                if event == "call":
                    log.append({**row, "tag": _tag(row["tensor"]), "state": "scheduled"})
                elif event == "done":
                    log[row["index"]] |= {"state": "completed", "values": row["values"]}
                elif event == "error":
                    log[row["index"]] |= {"state": "error", "error": row["error"]}
                else:
                    log.append({"end": True})
        except (OSError, ValueError, KeyError, IndexError) as error:
            raise UnreadableInput(f"{path.name}: {type(error).__name__}: expected one line a call and event") from None
        logs.append(log)
    return logs


def real_faults(folder: Path, cases: Sequence[dict[str, Any]], played: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Fault cases on real ranks: whether the diagnosis names them, and whether the values are the executor's.

    Returns: {"num_cases", "named": how many, "values_compared", "values_differing": completed calls that hold something
        else than the executor says, "aborted": ranks that a signal ended, "cases": [{"kind", "rank", "index",
        "found_rank", "found_index", "outcome"}, ...]}.
    Raises: UnreadableInput as `real_logs`.
    """
    outcome = {row["case"]: row["exit_codes"] for row in map(
        json.loads, (folder / "faults.jsonl").read_text(encoding="utf-8").splitlines())}
    rows, compared, differing, aborted = [], 0, 0, 0
    for number, (case, result) in enumerate(zip(cases, played, strict=True)):
        logs = real_logs(folder, number, len(case["schedule"]))
        found = diagnose(logs)
        for own, expected in zip(logs, result["logs"]):
            for entry, told in zip(own, expected):
                if entry.get("state") == told.get("state") == "completed":
                    compared += 1
                    differing += entry["values"] != [told["value"]]
        codes = outcome[number]
        aborted += sum(code < 0 for code in codes)
        states = {entry.get("state") for log in logs for entry in log if not entry.get("end")}
        rows.append({
            "kind": case["kind"], "rank": case["rank"], "index": case["index"],
            "found_rank": found and found["rank"], "found_index": found and found["index"],
            "outcome": "abort" if any(code < 0 for code in codes) else
            "error" if states - {"completed"} else "silent"})
    return {"num_cases": len(rows), "values_compared": compared, "values_differing": differing, "aborted": aborted,
            "named": sum((row["found_rank"], row["found_index"]) == (row["rank"], row["index"]) for row in rows),
            "cases": rows}


def structure(rows: Rows, mappings: Sequence[str], oracles: Sequence[Oracle],
              real: Mapping[str, Any] | None) -> dict[str, Any]:
    """Results without a time, under the names that the ledger asks for."""
    passed = {oracle.name: oracle.passed for oracle in oracles}
    groups = {mapping: groups_of(rows, mapping) for mapping in mappings}
    ordered, swapped = (order_values(rows, is_swapped=is_swapped) for is_swapped in (False, True))
    num_ordered, num_swapped = (len(of_kind(rows, "order", is_swapped=is_swapped)) for is_swapped in (False, True))
    sums_pass = passed["first sum of every group is the closed form"] and passed[
        "payload after every timed phase is the closed form"]
    found = {
        "new_group_order": passed["every rank made all groups in one order"],
        **{f"map_{mapping.removeprefix('tp_')}": found for mapping, found in groups.items()},
        "oracle": passed["first sum of every group is the closed form"], "oracle_pass": sums_pass,
        "order_setup": order_setup(rows),
        "ordered_result": {name: values[0] for name, values in ordered.items()},
        "swapped_result": {**{name: values[0] for name, values in swapped.items()}, "hang": num_swapped < num_ordered},
        "swapped_by_rank": swapped, "matching": swapped["A"] == swapped["B"] != ordered["A"],
    }
    if real is not None:
        # Silent with equal shapes (the pair, and swaps that real ranks finished), loud with unequal ones.
        loud = [case["outcome"] for case in real["cases"] if case["kind"] == "wrong_shape"]
        found["silent_corruption"] = found["matching"] and bool(loud) and "silent" not in loud
    return found


def recorder_facts(found: Mapping[str, Any]) -> dict[str, Any]:
    """What matters of the flight recorder's dumps: does it see the swap, does it name who left out a call.

    Args:
        found: `labkit.analyze.flight_recorder.analyze_flight_recorder`.

    Returns: {"ranks", "num_entries", "sees_swap": the swapped pair shows a mismatch, "missing_named": ranks that the
        group with the missing call lacks, "missing_seq"}.
    """
    desc = {name: group["desc"] for name, group in found["groups"].items()}
    by_desc = {desc[mismatch["group"]]: mismatch for mismatch in found["mismatches"]}
    missing = by_desc.get("missing")
    return {"ranks": len(found["ranks"]), "num_entries": sum(found["num_entries"].values()),
            "sees_swap": "pair" in by_desc, "missing_named": missing["missing_ranks"] if missing else [],
            "missing_seq": missing["seq"] if missing else None,
            "other_mismatches": sorted(set(by_desc) - {"pair", "missing"})}


def _tag(name: str) -> int:
    from labkit.calc.collective_schedule import tag_of

    return tag_of(name)

"""Was a process-group run right? Checks of the ranks' reports against closed forms, the plan and a second player.

Independent of each other: group membership by bits of the rank, sums worked out from ranks, the order of group
creation, the pair's four numbers, the in-process player against real ranks, the shaped wire's own rate.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from labkit.analyze import mesh_results
from labkit.records import Oracle

LEAST_NAMED_PCT = 95.0
"""Share of the injected faults whose rank and call must be named."""


def mesh_oracles(rows: list[dict[str, Any]], predicted: Mapping[str, Any], *, detection: Mapping[str, Any],
                 real: Mapping[str, Any] | None, recorder: Mapping[str, Any] | None, is_cuda: bool,
                 slow: Mapping[str, Any], num_ranks: int) -> list[Oracle]:
    """Every check of a run.

    Args:
        rows: of every rank of the first process.
        predicted: values of the prediction: groups, order_values, slow_floor_ms.
        detection: `mesh_results.detection`.
        real: `mesh_results.real_faults`; None where they were not played.
        recorder: `mesh_results.recorder_facts`; None where torch has no recorder.
        is_cuda: NCCL instead of Gloo.
        slow: results of the phases over the slow wire, empty where there is none.
        num_ranks: of the run.
    """
    orders = mesh_results.creation_orders(rows)
    num_sums, wrong_sums = mesh_results.sums(rows)
    num_checks, wrong = mesh_results.wrong_in_phases(rows)
    wanted_sums = num_ranks * sum(len(groups) for groups in predicted["groups"].values())
    values = {case: mesh_results.order_values(rows, is_swapped=case == "swapped") for case in ("ordered", "swapped")}
    found = [
        _equal("groups of every mapping as planned", predicted["groups"],
               {mapping: mesh_results.groups_of(rows, mapping) for mapping in predicted["groups"]},
               "put together from what each rank says it belongs to"),
        Oracle(name="every rank made all groups in one order", expected=1, seen=max(map(len, orders.values())),
               passed=bool(orders) and all(len(found) == 1 for found in orders.values())
               and _complete(rows, orders, num_ranks),
               detail="also the groups that it is not a member of"),
        _equal("first sum of every group is the closed form", [wanted_sums, 0], [num_sums, wrong_sums],
               "sum of rank + 1 over the members; once for each rank and axis"),
        Oracle(name="payload after every timed phase is the closed form", expected=0, seen=wrong,
               passed=num_checks > 0 and wrong == 0, detail=f"{num_checks} payloads compared element by element"),
        _equal("the pair's values, in order and swapped", predicted["order_values"], values,
               "A = 1000 + r, B = 2000 + r; both ranks"),
        Oracle(name="faults named by rank and call", expected=LEAST_NAMED_PCT, seen=detection["named_pct"],
               passed=detection["num_cases"] >= 200 and detection["named_pct"] >= LEAST_NAMED_PCT,
               detail=f"at least, percent of {detection['num_cases']} random faults"),
    ]
    if real is not None:
        found += [
            _equal("faults on real ranks named by rank and call", real["num_cases"], real["named"]),
            Oracle(name="real ranks hold what the in-process player says", expected=0, seen=real["values_differing"],
                   passed=real["values_compared"] > 0 and real["values_differing"] == 0,
                   detail=f"{real['values_compared']} completed calls compared"),
        ]
    if recorder is not None and not is_cuda:
        found.append(_equal("flight recorder names who left out a call", {"missing": [1], "others": []},
                            {"missing": recorder["missing_named"], "others": recorder["other_mismatches"]}))
    if slow:
        floors = predicted["slow_floor_ms"]
        seen = {mapping: {axis: slow[f"slow_{axis.lower()}_phase"][mapping]["p10"] for axis in floor}
                for mapping, floor in floors.items()}
        found.append(Oracle(
            name="no phase beats the slow wire", expected=floors, seen=seen,
            passed=bool(floors) and all(seen[mapping][axis] >= floor for mapping, found in floors.items()
                                        for axis, floor in found.items()),
            detail="p10; bytes of all crossing pairs, less what its bucket may burst, over the wire's rate"))
    return found


def _complete(rows: list[dict[str, Any]], orders: Mapping[str, Any], num_ranks: int) -> bool:
    """Whether every rank reported each set of groups."""
    from labkit.analyze.ddp_rank_files import of_kind

    return all(len({row["rank"] for row in of_kind(rows, "created", prefix=prefix)}) == num_ranks for prefix in orders)


def _equal(name: str, expected: Any, seen: Any, detail: str = "") -> Oracle:
    return Oracle(name=name, passed=expected == seen, expected=expected, seen=seen, detail=detail)

"""What the process-group lab predicts: phases on the report's machine, the placement search, floors of a slow wire.

In: rates of link classes, calls per step. Out: milliseconds, placements, faults to look for.

    python -m labkit calc mesh_prediction wire_floor_ms groups='{"TP":[[0,1]]}' calls='{"TP":1}' payload_bytes=1000 \
        bytes_per_s=1000
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from labkit.calc import collective_order, collective_schedule, mesh_mapping
from labkit.calc._require import require_int, require_number

MACHINE_LINKS = ("PIX", "PHB", "SYS")
"""Link classes of the report's machine: devices that differ in bit 0, 1, 2."""
CALLS = {"TP": 4, "PP": 1, "DP": 1}
"""All-reduces of the report's step."""
PAYLOAD_BYTES = 64 * 2**20


def pair_values() -> dict[str, dict[str, list[float]]]:
    """What the report's pair holds afterwards, with one order of calls and with two.

    Returns: {"ordered", "swapped": tensor -> value by rank}.
    Raises: nothing.
    Assumes: A = 1000 + r, B = 2000 + r, equal shapes.
    Source: report section 12.3, by `collective_order.reduced_by_position`.

    >>> pair_values()["swapped"]
    {'A': [3001, 3001], 'B': [3001, 3001]}
    """
    pair = {"A": [1000, 1001], "B": [2000, 2001]}
    orders = {"ordered": [["A", "B"], ["A", "B"]], "swapped": [["A", "B"], ["B", "A"]]}
    return {case: collective_order.reduced_by_position(orders=order, values=pair) for case, order in orders.items()}


def report_step_ms(*, innermost_first: Sequence[str], links: Mapping[str, Any]) -> dict[str, float]:
    """Phases of the report's step under one mapping.

    Args:
        innermost_first: axes from bit 0 to bit 2 of the rank.
        links: class -> {"bytes_per_s"} of one pair with all pairs at work.

    Returns: ms: "tp_phase", "pp_phase", "dp_phase", "serial", "concurrent_least", "concurrent_most".
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: 64 MiB, 4 : 1 : 1 calls, pairs; as `mesh_mapping.step_times`.
    Source: report sections 4.4 and 12.1.

    >>> one = {name: {"bytes_per_s": 2**26} for name in MACHINE_LINKS}
    >>> report_step_ms(innermost_first=["TP", "PP", "DP"], links=one)["serial"]
    6000.0
    """
    times = mesh_mapping.step_times(
        groups=mesh_mapping.mesh_groups(axes=[[axis, 2] for axis in innermost_first]), calls=CALLS,
        topology=mesh_mapping.bit_topology(links=MACHINE_LINKS), links=links, size_bytes=PAYLOAD_BYTES)
    return {**{f"{axis.lower()}_phase": 1e3 * times["phases"][axis] for axis in CALLS},
            **{name: 1e3 * times[name] for name in ("serial", "concurrent_least", "concurrent_most")}}


def search_summary(*, calls: Mapping[str, int], links: Mapping[str, Any], num_shown: int = 6) -> dict[str, Any]:
    """All placements of a 2 x 2 x 2 mesh on the report's machine, cut to what a page shows.

    Args:
        calls: axis -> all-reduces in a step, TP, PP and DP.
        links: class -> {"bytes_per_s"}.
        num_shown: entries from the front, >= 1; the two slowest are added.

    Returns: counts as `mesh_mapping.rank_mappings`, "shown": entries of its ranking, "all_serial_ms": of every class
        in order, "num_best": classes that share the first place.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: as `mesh_mapping.rank_mappings`.
    Source: exhaustive search.

    >>> found = search_summary(calls=CALLS, links={name: {"bytes_per_s": 2**26} for name in MACHINE_LINKS})
    >>> found["num_placements"], found["num_distinct"], set(found["all_serial_ms"])
    (40320, 5040, {6000.0})
    """
    shown = require_int("num_shown", num_shown, least=1)
    found = mesh_mapping.rank_mappings(
        axes=[[axis, 2] for axis in CALLS], calls=calls, links=links, size_bytes=PAYLOAD_BYTES,
        topology=mesh_mapping.bit_topology(links=MACHINE_LINKS))
    ranking = found["ranking"]
    best = ranking[0]["serial_s"] * (1 + 1e-12)
    return {**{name: value for name, value in found.items() if name != "ranking"},
            "shown": [*ranking[:shown], *ranking[max(shown, len(ranking) - 2):]],
            "all_serial_ms": [1e3 * entry["serial_s"] for entry in ranking],
            "num_best": sum(entry["serial_s"] <= best for entry in ranking)}


def wire_floor_ms(
    *, groups: Mapping[str, Sequence[Sequence[int]]], calls: Mapping[str, int], payload_bytes: float,
    bytes_per_s: float, burst_bytes: float = 0,
) -> dict[str, float]:
    """Time that one wire between the lower and the upper half of the ranks needs for each axis's phase.

    Args:
        groups: axis -> groups of ranks.
        calls: axis -> all-reduces in a step.
        payload_bytes: S of each, >= 0.
        bytes_per_s: of the wire in one direction, > 0.
        burst_bytes: what it lets through at once, >= 0.

    Returns: axis -> ms, for axes with pairs that cross the wire.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: pairs; an all-reduce of two sends S each way, so the pairs that cross share the wire; no headers.
    Source: calls x crossing pairs x S over the wire's rate.

    >>> wire_floor_ms(groups={"TP": [[0, 1], [2, 3]], "DP": [[0, 2], [1, 3]]}, calls={"TP": 4, "DP": 1},
    ...               payload_bytes=1000, bytes_per_s=1000)
    {'DP': 2000.0}
    """
    require_number("bytes_per_s", bytes_per_s, above=0)
    sent_each = require_number("payload_bytes", payload_bytes, least=0)
    spare = require_number("burst_bytes", burst_bytes, least=0)
    half = (1 + max(rank for found in groups.values() for group in found for rank in group)) // 2
    floors = {}
    for axis, found in groups.items():
        crossing = sum(min(group) < half <= max(group) for group in found if len(group) == 2)
        if crossing and calls.get(axis):
            floors[axis] = 1e3 * max(0.0, calls[axis] * crossing * sent_each - spare) / bytes_per_s
    return floors


def report_members() -> dict[str, list[int]]:
    """Groups of the report's mesh by name, in the order of creation.

    Returns: {"TP0": [0, 1], ...}, twelve of them.
    Raises: nothing.
    Assumes: TP innermost.
    Source: report section 12.1.

    >>> len(report_members()), report_members()["DP3"]
    (12, [3, 7])
    """
    return collective_schedule.group_members(groups=mesh_mapping.mesh_groups(axes=[[axis, 2] for axis in CALLS]))


def random_faults(*, num_cases: int, num_steps: int, first_seed: int) -> tuple[list[Any], list[Any]]:
    """Faults of every kind in turn in the report's program, and what playing each one gives.

    Args:
        num_cases: faults, >= 0.
        num_steps: of the program, >= 1.
        first_seed: of the first fault; the next has the next.

    Returns: (cases as `collective_schedule.inject_fault`, results of `collective_schedule.play`).
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: one fault a case; 2 x 2 x 2 ranks.
    Source: `collective_schedule`.

    >>> [case["kind"] for case in random_faults(num_cases=4, num_steps=1, first_seed=0)[0]]
    ['swapped_order', 'missing_call', 'wrong_shape', 'wrong_group']
    """
    groups = mesh_mapping.mesh_groups(axes=[[axis, 2] for axis in CALLS])
    schedule = collective_schedule.mesh_schedule(groups=groups, calls=CALLS, num_steps=num_steps)
    kinds, members = collective_schedule.FAULTS, report_members()
    cases = [collective_schedule.inject_fault(schedule=schedule, kind=kinds[i % len(kinds)], seed=first_seed + i)
             for i in range(require_int("num_cases", num_cases))]
    return cases, [collective_schedule.play(schedule=case["schedule"], members=members) for case in cases]

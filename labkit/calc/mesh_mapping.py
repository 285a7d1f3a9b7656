"""Process groups of a mesh of ranks, and which placement of the ranks on the devices makes a step shortest.

In: axes with their degrees (innermost first), a matrix of link classes, rates of the classes, calls per step. Out:
groups, seconds, all placements in order.

    python -m labkit calc mesh_mapping mesh_groups axes='[["TP",2],["PP",2],["DP",2]]'
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import permutations
from typing import Any

from labkit.calc._require import require_int, require_number

MOST_RANKS = 8
"""8! placements are looked at one by one; 9! would take minutes."""
Groups = dict[str, list[list[int]]]
Axes = Sequence[Sequence[Any]]


def mesh_groups(*, axes: Axes) -> Groups:
    """Groups along each axis of a mesh, in the order in which every rank has to create them.

    Args:
        axes: [name, degree] pairs, innermost first: ranks that differ by 1 are neighbours on the first axis.

    Returns: {axis: groups of ranks}, axes as given, groups by their first rank.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: rank = sum of coordinate x product of the degrees before it.
    Source: mixed-radix numbering; report section 12.1.

    >>> mesh_groups(axes=[["TP", 2], ["DP", 2]])
    {'TP': [[0, 1], [2, 3]], 'DP': [[0, 2], [1, 3]]}
    """
    named = _axes(axes)
    world = math.prod(named.values())
    found: Groups = {}
    stride = 1
    for name, degree in named.items():
        starts = [rank for rank in range(world) if rank // stride % degree == 0]
        found[name] = [[start + stride * i for i in range(degree)] for start in starts]
        stride *= degree
    return found


def bit_topology(*, links: Sequence[str]) -> list[list[str]]:
    """Link classes between devices of a machine built by halves: pairs, pairs of pairs, and so on.

    Args:
        links: class of devices that differ in bit 0 only, then of those whose highest different bit is 1, ...

    Returns: matrix [device][device] of class names; "X" on the diagonal, as `nvidia-smi topo -m` prints it.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: the highest bit in which two devices differ decides.
    Source: report section 12.1: PIX inside a pair, PHB inside a socket, SYS between sockets.

    >>> bit_topology(links=["PIX", "SYS"])[0]
    ['X', 'PIX', 'SYS', 'SYS']
    """
    if not links:
        raise ValueError("links=[]: expected at least one class")
    size = range(2 ** len(links))
    return [["X" if a == b else links[(a ^ b).bit_length() - 1] for b in size] for a in size]


def group_link(*, group: Sequence[int], topology: Sequence[Sequence[str]], links: Mapping[str, Any]) -> str:
    """Class of the slowest link inside a group: the one that a ring through all members cannot avoid.

    Args:
        group: devices, at least two.
        topology: matrix of class names.
        links: class -> {"bytes_per_s", ...}.

    Returns: class name.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: for more than two members, that every ring has to use the slowest class; true in a machine of halves.
    Source: a chain is as fast as its slowest link.

    >>> group_link(group=[0, 3], topology=bit_topology(links=["PIX", "SYS"]), links={"SYS": {"bytes_per_s": 1}})
    'SYS'
    """
    if len(group) < 2:
        raise ValueError(f"group={list(group)!r}: expected at least two devices")
    classes = {topology[a][b] for a in group for b in group if a != b}
    if missing := sorted(classes - set(links)):
        raise ValueError(f"links: no rate for {', '.join(missing)}")
    return min(classes, key=lambda name: (links[name]["bytes_per_s"], name))


def phase_time_s(
    *, groups: Sequence[Sequence[int]], topology: Sequence[Sequence[str]], links: Mapping[str, Any], size_bytes: float
) -> float:
    """Time of one all-reduce on all groups of an axis at once: that of the slowest group.

    Args:
        groups: devices of each group; groups of one device cost nothing.
        topology: matrix of class names.
        links: class -> {"bytes_per_s": of one pair, "shared_bytes_per_s": of all pairs of the class together (left
            out: they do not share), "latency_s": of one step (left out: 0)}.
        size_bytes: S, >= 0.

    Returns: seconds.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: ring, 2 (n-1)/n S over each link; groups of a class share its total evenly; classes do not disturb others.
    Source: Hockney's model; ring bytes as `collectives.ring_bytes_per_rank`.

    >>> pairs = [[0, 2], [1, 3]]
    >>> wire = {"SYS": {"bytes_per_s": 4, "shared_bytes_per_s": 4}}
    >>> phase_time_s(groups=pairs, topology=bit_topology(links=["PIX", "SYS"]), links=wire, size_bytes=8)
    4.0
    """
    require_number("size_bytes", size_bytes, least=0)
    real = [group for group in groups if len(group) > 1]
    classes = [group_link(group=group, topology=topology, links=links) for group in real]
    sharing = Counter(classes)
    worst = 0.0
    for group, name in zip(real, classes):
        rate = require_number(f"links[{name}]", links[name]["bytes_per_s"], above=0)
        if (total := links[name].get("shared_bytes_per_s")) is not None:
            rate = min(rate, require_number(f"links[{name}]", total, above=0) / sharing[name])
        n = len(group)
        steps = 2 * (n - 1) * require_number(f"links[{name}]", links[name].get("latency_s", 0.0), least=0)
        worst = max(worst, steps + 2 * (n - 1) / n * size_bytes / rate)
    return worst


def step_times(
    *, groups: Mapping[str, Sequence[Sequence[int]]], calls: Mapping[str, int], topology: Sequence[Sequence[str]],
    links: Mapping[str, Any], size_bytes: float,
) -> dict[str, Any]:
    """Predicted phases of a step: each axis's all-reduces, one after the other, and one of each axis at once.

    Args:
        groups: axis -> groups of devices.
        calls: axis -> all-reduces in a step, >= 0.
        topology: matrix of class names.
        links: as `phase_time_s`.
        size_bytes: of each all-reduce.

    Returns: seconds: "phases" by axis, "serial" (their sum), "concurrent_least" (one call of each axis, nothing
        shared between axes), "concurrent_most" (everything shared: one after the other).
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: as `phase_time_s`; no compute between the calls.
    Source: sum over axes of calls x time; report section 12.2.

    >>> mesh = mesh_groups(axes=[["TP", 2], ["DP", 2]])
    >>> step_times(groups=mesh, calls={"TP": 4, "DP": 1}, topology=bit_topology(links=["PIX", "SYS"]), size_bytes=4,
    ...            links={"PIX": {"bytes_per_s": 4}, "SYS": {"bytes_per_s": 1}})["phases"]
    {'TP': 4.0, 'DP': 4.0}
    """
    each = {axis: phase_time_s(groups=found, topology=topology, links=links, size_bytes=size_bytes)
            for axis, found in groups.items()}
    phases = {axis: require_int(f"calls[{axis}]", calls.get(axis, 0)) * time for axis, time in each.items()}
    return {"phases": phases, "serial": math.fsum(phases.values()), "concurrent_least": max(each.values(), default=0.0),
            "concurrent_most": math.fsum(each.values())}


def rank_mappings(
    *, axes: Axes, calls: Mapping[str, int], topology: Sequence[Sequence[str]], links: Mapping[str, Any],
    size_bytes: float,
) -> dict[str, Any]:
    """All placements of a mesh on a machine, without symmetric duplicates, by predicted step time.

    Two placements are the same if they give the same groups (coordinates of an axis may be renumbered), and alike if
    exchanging devices that the topology cannot tell apart turns one into the other: those cannot differ in time.

    Args:
        axes: as `mesh_groups`; at most 8 ranks, as many as the topology has devices.
        calls: axis -> all-reduces in a step.
        topology: matrix of class names, symmetric.
        links: as `phase_time_s`.
        size_bytes: of each all-reduce.

    Returns: {"num_placements": all, "num_distinct": with different groups, "num_alike": classes of those that the
        machine can tell apart, "ranking": [{"serial_s", "phases_s", "placement": device of each rank, "links": axis ->
        {class: groups}, "num_distinct"}, ...] fastest first, one entry a class}.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: as `step_times`.
    Source: exhaustive search; symmetric placements removed by the topology's own exchanges of devices.

    >>> found = rank_mappings(axes=[["TP", 2], ["DP", 2]], calls={"TP": 4, "DP": 1}, size_bytes=4,
    ...     topology=bit_topology(links=["PIX", "SYS"]), links={"PIX": {"bytes_per_s": 4}, "SYS": {"bytes_per_s": 1}})
    >>> found["num_placements"], found["num_distinct"], found["num_alike"], found["ranking"][0]["placement"]
    (24, 6, 3, [0, 1, 2, 3])
    """
    named = _axes(axes)
    world = math.prod(named.values())
    if world > MOST_RANKS or len(topology) != world:
        raise ValueError(f"axes={[list(axis) for axis in axes]!r}: expected the {len(topology)} devices of the "
                         f"topology, and at most {MOST_RANKS}")
    if any(topology[a][b] != topology[b][a] for a in range(world) for b in range(world)):
        raise ValueError("topology: expected a symmetric matrix")
    logical = mesh_groups(axes=axes)
    distinct: dict[Any, tuple[int, ...]] = {}
    # Renumbering the coordinates takes any rank to any other, so rank 0 may stay on device 0.
    for others in permutations(range(1, world)):
        distinct.setdefault(_key(logical, (0, *others)), (0, *others))
    exchanges = _exchanges(topology)
    left, ranking = dict(distinct), []
    while left:
        placement = next(iter(left.values()))
        orbit = {_key(logical, [swap[device] for device in placement]) for swap in exchanges}
        for key in orbit:
            left.pop(key, None)
        placed = {axis: [[placement[rank] for rank in group] for group in found] for axis, found in logical.items()}
        times = step_times(groups=placed, calls=calls, topology=topology, links=links, size_bytes=size_bytes)
        classes = {axis: dict(sorted(Counter(group_link(group=group, topology=topology, links=links)
                                             for group in found if len(group) > 1).items()))
                   for axis, found in placed.items()}
        ranking.append({"serial_s": times["serial"], "phases_s": times["phases"], "placement": list(placement),
                        "links": classes, "num_distinct": len(orbit)})
    ranking.sort(key=lambda entry: (entry["serial_s"], entry["placement"]))
    return {"num_placements": math.factorial(world), "num_distinct": len(distinct), "num_alike": len(ranking),
            "ranking": ranking}


def _key(logical: Groups, placement: Sequence[int]) -> Any:
    """The groups that a placement gives, without any order."""
    return tuple(frozenset(frozenset(placement[rank] for rank in group) for group in found)
                 for found in logical.values())


def _exchanges(topology: Sequence[Sequence[str]]) -> list[tuple[int, ...]]:
    """All renumberings of the devices that leave the matrix as it is, built device by device."""
    size = len(topology)
    partial: list[tuple[int, ...]] = [()]
    for device in range(size):
        partial = [(*start, image) for start in partial for image in range(size)
                   if image not in start and all(topology[device][other] == topology[image][start[other]]
                                                 for other in range(device))]
    return partial


def _axes(axes: Axes) -> dict[str, int]:
    found = {str(name): require_int(f"axes[{name}]", degree, least=1) for name, degree in axes}
    if not found or len(found) != len(axes):
        raise ValueError(f"axes={[list(axis) for axis in axes]!r}: expected at least one axis, each name once")
    return found

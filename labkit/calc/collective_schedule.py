"""Schedules of collectives on a mesh: made, broken on purpose, and played rank by rank.

A schedule is, for each rank, its list of calls. A call is {"step", "axis", "group", "op", "shape", "dtype", "tensor"}.
Playing matches calls as a communicator does, by their place in the group's sequence, and writes the log that each rank
would leave: what a program can know without looking at the others.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from labkit.calc._require import require_choice, require_int

FAULTS = ("swapped_order", "missing_call", "wrong_shape", "wrong_group")
Call = dict[str, Any]
Schedule = list[list[Call]]
MATCHED = ("op", "shape", "dtype")
"""What must agree between the members of a group; a name or a purpose is not sent, so it cannot be compared."""


def mesh_schedule(
    *, groups: Mapping[str, Sequence[Sequence[int]]], calls: Mapping[str, int], num_steps: int, num_elements: int = 64
) -> Schedule:
    """The same program on every rank: in each step some all-reduces on each axis, in one order.

    Args:
        groups: axis -> groups of ranks, as `mesh_mapping.mesh_groups`.
        calls: axis -> all-reduces in a step.
        num_steps: >= 1.
        num_elements: of the tensors of all axes but the last, which has half of it, >= 2.

    Returns: [rank][i] calls. Every tensor has its own name; shapes repeat, as they do in a real model.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: blocking all-reduces of float32.
    Source: the lab's own program; report section 12.1 for 4 : 1 : 1.

    >>> [call["tensor"] for call in mesh_schedule(groups={"TP": [[0, 1]]}, calls={"TP": 2}, num_steps=1)[0]]
    ['s0.TP.0', 's0.TP.1']
    """
    require_int("num_steps", num_steps, least=1)
    require_int("num_elements", num_elements, least=2)
    world = 1 + max(rank for found in groups.values() for group in found for rank in group)
    last = list(groups)[-1]
    program = [
        (step, axis, i) for step in range(num_steps) for axis in groups
        for i in range(require_int(f"calls[{axis}]", calls.get(axis, 0)))]
    return [
        [{"step": step, "axis": axis, "group": _name(axis, groups, rank), "op": "all_reduce",
          "shape": [num_elements // 2 if axis == last and len(groups) > 1 else num_elements], "dtype": "float32",
          "tensor": f"s{step}.{axis}.{i}"} for step, axis, i in program]
        for rank in range(world)]


def inject_fault(*, schedule: Schedule, kind: str, seed: int) -> dict[str, Any]:
    """Break one rank's program in one place.

    Args:
        schedule: [rank][i] calls; not changed.
        kind: swapped_order (two calls of a rank exchanged), missing_call, wrong_shape (one dimension longer or
            shorter) or wrong_group (the rank's group of another axis).
        seed: of the choice of rank and place.

    Returns: {"schedule": the broken one, "kind", "rank", "index": first place where the rank's program is not the
        others', "call": what should be there, "partner": the other place of a swap, or None}.
    Raises: ValueError naming the argument, the value got, what was expected; also when there is no such place.
    Assumes: two or more axes for wrong_group, two different calls for swapped_order.
    Source: the four mistakes of the issue; drawn evenly.

    >>> toy = mesh_schedule(groups={"TP": [[0, 1]]}, calls={"TP": 2}, num_steps=1)
    >>> inject_fault(schedule=toy, kind="missing_call", seed=0)["schedule"] != toy
    True
    """
    require_choice("kind", kind, FAULTS)
    draw = random.Random(f"{kind} {seed}")
    rank = draw.randrange(len(schedule))
    own = [dict(call) for call in schedule[rank]]
    index, partner = draw.randrange(len(own)), None
    if kind == "swapped_order":
        if len(own) < 2:
            raise ValueError(f"schedule: {len(own)} calls a rank: expected at least two to swap")
        index, partner = sorted(draw.sample(range(len(own)), 2))
        own[index], own[partner] = own[partner], own[index]
    elif kind == "missing_call":
        del own[index]
    elif kind == "wrong_shape":
        size = own[index]["shape"][0]
        own[index]["shape"] = [draw.choice([size - 1, size + 1, 2 * size])]
    else:
        others = sorted({(call["axis"], call["group"]) for call in own} - {(own[index]["axis"], own[index]["group"])})
        if not others:
            raise ValueError("schedule: one axis only: expected two or more for wrong_group")
        own[index]["axis"], own[index]["group"] = draw.choice(others)
    broken = [own if r == rank else list(calls) for r, calls in enumerate(schedule)]
    return {"schedule": broken, "kind": kind, "rank": rank, "index": index, "call": schedule[rank][index],
            "partner": partner}


def tensor_value(name: str, rank: int) -> int:
    """What a rank puts into every element of a tensor: different for each tensor and rank, small enough to sum exactly.

    Args:
        name: of the tensor.
        rank: whose copy.

    Returns: an integer below 2**16.
    Raises: nothing.
    Assumes: fewer than 256 ranks, so that sums stay below 2**24 and are exact in float32.
    Source: CRC-32 of the name; the idea of the report's 1000 + r and 2000 + r.

    >>> tensor_value("A", 1) - tensor_value("A", 0)
    1
    """
    return zlib.crc32(name.encode()) % 251 * 256 + rank


def play(*, schedule: Schedule, members: Mapping[str, Sequence[int]]) -> dict[str, Any]:
    """Run a schedule of blocking collectives, values included, until all ranks are done or none can go on.

    Args:
        schedule: [rank][i] calls.
        members: group -> its ranks.

    Returns: {"logs": by rank, "hang": some rank waits for ever, "error": some call was refused}. A log entry is the
        call with "seq" (its place in the group, from 1), "tag" (checksum of the tensor's name), "state" ("completed",
        "scheduled", "error"), and for completed ones "value" (what every element holds) and "expected" (what the
        members' copies of this tensor add up to). A rank that came to its end adds {"end": True}.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: what does not agree in operation, shape or type is refused on all members, as Gloo does; NCCL may hang.
    Source: matching by sequence number within a communicator; report section 12.3.

    >>> both = [[dict(step=0, axis="P", group="P", op="all_reduce", shape=[4], dtype="float32", tensor=name)
    ...          for name in order] for order in ("AB", "BA")]
    >>> played = play(schedule=both, members={"P": [0, 1]})
    >>> played["hang"], played["logs"][0][0]["value"] == played["logs"][0][0]["expected"]
    (False, False)
    """
    world = len(schedule)
    at, stopped = [0] * world, [False] * world
    counts: list[dict[str, int]] = [{} for _ in range(world)]
    logs: list[list[dict[str, Any]]] = [[] for _ in range(world)]
    waiting: dict[int, dict[str, Any]] = {}
    moved = True
    while moved:
        moved = False
        for rank in range(world):
            if stopped[rank] or rank in waiting or at[rank] >= len(schedule[rank]):
                continue
            call = schedule[rank][at[rank]]
            if rank not in members.get(call["group"], ()):
                raise ValueError(f"members[{call['group']}]: expected rank {rank}, which calls it, among them")
            seq = counts[rank][call["group"]] = counts[rank].get(call["group"], 0) + 1
            waiting[rank] = _entry(call, seq, "scheduled")
            logs[rank].append(waiting[rank])
            moved = True
        for name, ranks in members.items():
            arrived = [waiting.get(rank) for rank in ranks]
            if any(entry is None or entry["group"] != name for entry in arrived):
                continue
            entries = [entry for entry in arrived if entry is not None]
            if len({entry["seq"] for entry in entries}) > 1:
                raise AssertionError("members of a group are at different places of its sequence")
            agrees = all(entry[key] == entries[0][key] for entry in entries for key in MATCHED)
            total = sum(tensor_value(entry["tensor"], rank) for entry, rank in zip(entries, ranks))
            for entry, rank in zip(entries, ranks):
                entry["state"] = "completed" if agrees else "error"
                if agrees:
                    entry["value"] = total
                    entry["expected"] = sum(tensor_value(entry["tensor"], other) for other in ranks)
                    at[rank] += 1
                else:
                    stopped[rank] = True
                del waiting[rank]
            moved = True
    for rank in range(world):
        if at[rank] >= len(schedule[rank]):
            logs[rank].append({"end": True})
    return {"logs": logs, "hang": bool(waiting), "error": any(stopped)}


def group_members(*, groups: Mapping[str, Sequence[Sequence[int]]]) -> dict[str, list[int]]:
    """Name of every group of a mesh, and its ranks, in the order of creation.

    Args:
        groups: axis -> groups of ranks.

    Returns: {"TP0": ranks, "TP1": ...}.
    Raises: nothing.
    Assumes: names of axes do not end in digits.
    Source: one name for each line along an axis.

    >>> group_members(groups={"TP": [[0, 1], [2, 3]]})
    {'TP0': [0, 1], 'TP1': [2, 3]}
    """
    return {f"{axis}{i}": list(group) for axis, found in groups.items() for i, group in enumerate(found)}


def tag_of(name: str) -> int:
    """Checksum of a tensor's name: the small identity that a log can carry.

    Args:
        name: of the tensor.

    Returns: CRC-32 of the name.
    Raises: nothing.
    Assumes: names that differ have different checksums; a collision of two in a billion would hide a swap of both.
    Source: CRC-32 as in zlib.

    >>> tag_of("A")
    3554254475
    """
    return zlib.crc32(name.encode())


def _entry(call: Call, seq: int, state: str) -> dict[str, Any]:
    return {**call, "seq": seq, "tag": tag_of(call["tensor"]), "state": state}


def _name(axis: str, groups: Mapping[str, Sequence[Sequence[int]]], rank: int) -> str:
    return next(f"{axis}{i}" for i, group in enumerate(groups[axis]) if rank in group)

"""Which rank left the common program, and where: the ranks' logs of collectives compared with each other.

In: for each rank its log, entries with step, axis, group, seq, op, shape, dtype, tag, state. Out: rank, place, call.
All ranks of a mesh run one program, so at each place most of them make the same call, each on its own group of the
axis. The one that differs is named. Who hangs is not asked: a rank that waits is usually innocent.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

SEQUENCE_FIELDS = ("step", "axis", "op", "shape", "dtype")
"""What a sequence log holds. It has no name of the tensor: nothing that is sent has one."""
TAG_FIELDS = (*SEQUENCE_FIELDS, "tag")
"""With a checksum of what each tensor is meant to be."""
Log = Sequence[dict[str, Any]]


def diagnose(logs: Sequence[Log], *, fields: Sequence[str] = TAG_FIELDS) -> dict[str, Any] | None:
    """The first place where a rank's program is not the others'.

    Args:
        logs: of each rank, in its own order of calls; {"end": True} where a rank came to its end.
        fields: what is compared.

    Returns: {"rank": None if there is no majority, "ranks": those that differ, "index": place in the program,
        "expected": the call that most ranks make there, "seen": the rank's own or None where it had ended, "kind": a
        guess, see `_kind`}; None if no log shows a difference.

    >>> same = [{"op": "all_reduce", "shape": [4]}]
    >>> diagnose([same, same, [{"op": "all_reduce", "shape": [8]}]], fields=("op", "shape"))["rank"]
    2
    """
    for index in range(max((len(log) for log in logs), default=0)):
        at = {rank: log[index] for rank, log in enumerate(logs) if index < len(log)}
        keys = {rank: _key(entry, fields) for rank, entry in at.items()}
        if len(set(keys.values())) <= 1:
            continue
        usual, votes = Counter(keys.values()).most_common(1)[0]
        odd = sorted(rank for rank, key in keys.items() if key != usual)
        is_clear = votes > len(keys) - votes
        expected = next(entry for rank, entry in at.items() if keys[rank] == usual)
        seen = at[odd[0]]
        return {"rank": odd[0] if is_clear and len(odd) == 1 else None, "ranks": odd if is_clear else sorted(keys),
                "index": index, "expected": None if expected.get("end") else expected,
                "seen": None if seen.get("end") else seen, "kind": _kind(logs, odd[0], index, expected, fields)}
    return None


def wrong_sums(logs: Sequence[Log]) -> list[dict[str, Any]]:
    """Completed calls whose tensor does not hold the sum of its own group's copies.

    Returns: [{"rank", "index", "tensor"}, ...], by place and rank. It shows that something is wrong on which ranks, not
    who did it: all members of the group see it.
    """
    return sorted(
        ({"rank": rank, "index": index, "tensor": entry["tensor"]} for rank, log in enumerate(logs)
         for index, entry in enumerate(log) if entry.get("state") == "completed"
         and entry["value"] != entry["expected"]),
        key=lambda found: (found["index"], found["rank"]))


def total_is_kept(logs: Sequence[Log]) -> bool:
    """Whether a checksum of everything would pass: completed values, all added up, are what they should be."""
    done = [entry for log in logs for entry in log if entry.get("state") == "completed"]
    return sum(entry["value"] for entry in done) == sum(entry["expected"] for entry in done)


def is_found(found: dict[str, Any] | None, *, rank: int, index: int) -> bool:
    """Whether a diagnosis names exactly this rank and this place."""
    return found is not None and found["rank"] == rank and found["index"] == index


def _key(entry: dict[str, Any], fields: Sequence[str]) -> str:
    return "end" if entry.get("end") else json.dumps([entry.get(field) for field in fields])


def _kind(logs: Sequence[Log], rank: int, index: int, expected: dict[str, Any], fields: Sequence[str]) -> str:
    """wrong_shape, wrong_group, missing_call, swapped_order, or "order" where the log ends too early to tell."""
    own = logs[rank]
    seen = own[index]
    if expected.get("end"):
        return "extra_call"
    if seen.get("end"):
        return "missing_call"
    if seen.get("tag") == expected.get("tag") and seen.get("step") == expected.get("step"):
        if seen.get("axis") != expected.get("axis"):
            return "wrong_group"
        if (seen.get("shape"), seen.get("dtype")) != (expected.get("shape"), expected.get("dtype")):
            return "wrong_shape"
    program = max(([_key(entry, fields) for entry in log] for other, log in enumerate(logs) if other != rank), key=len)
    own_keys, wanted = [_key(entry, fields) for entry in own[index:]], program[index:]
    if wanted[:1] and wanted[0] in own_keys:
        return "swapped_order"
    if len(own_keys) > 1 and own_keys[:1] == wanted[1:2]:
        return "missing_call"
    return "order"

"""Flight-recorder dumps of all ranks, aligned: the first collective that a rank is missing or makes differently.

In: a folder (or files) of dumps as torch writes them, JSON or pickle, one a rank. Out: one plain object. What makes
this harder than it looks: host names in file names, records that a full ring buffer has dropped, ranks that wait
elsewhere and are innocent, Gloo's records that stay "scheduled" after they are done.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from labkit.analyze.flight_recorder_files import Dump, read_dumps

SIZES_MAY_DIFFER = ("all_to_all", "alltoall", "gather", "scatter", "broadcast_object", "_v", "coalesced")
SIZES_MUST_AGREE = ("all_gather_base", "_all_gather_base", "allgather_base", "_reduce_scatter_base", "all_reduce",
                    "allreduce", "broadcast", "reduce")
MATCHED = ("op", "input_sizes", "output_sizes", "input_dtypes", "output_dtypes")


def analyze_flight_recorder(paths: Sequence[Path]) -> dict[str, Any]:
    """Align the collectives of all ranks by group and sequence number.

    Args:
        paths: a folder of dumps, or the files.

    Returns: {"ranks": with a dump, "missing_dumps": ranks that the groups name and no file has, "version",
        "num_entries": rank -> records, "dropped": rank -> records lost before the first kept one, "groups": name ->
        {"desc", "ranks", "last_seq": rank -> number of the last collective; batches of sends do not count},
        "first_mismatch": None or {"seq", "op", "group", "missing_ranks":
        members with a dump that never got there, "differing_ranks": members whose call is not most members',
        "differs": field -> rank -> value}, "mismatches": the first one of every group, "incomplete": calls that all
        members made and that are not done, "skipped": files that are no dumps}.
    Raises: UnreadableInput when there is no dump among the files, or two of one rank.
    """
    dumps, skipped = read_dumps(paths)
    by_group = _by_group(dumps)
    found, incomplete, groups = [], [], {}
    for name in sorted(by_group, key=_natural):
        members = _members(name, dumps, by_group[name])
        last = {rank: _last_seq(dumps[rank], name) for rank in members if rank in dumps}
        groups[name] = {"desc": next(iter(by_group[name].values()))[0]["desc"], "ranks": members,
                        "last_seq": {str(rank): seq for rank, seq in last.items()}}
        if (mismatch := _first_mismatch(name, by_group[name], last)) is not None:
            found.append(mismatch)
        incomplete += _incomplete(name, by_group[name], members)
    found.sort(key=lambda mismatch: (_all_wait_elsewhere(mismatch, dumps), mismatch["at"], mismatch["seq"]))
    found = [{key: value for key, value in mismatch.items() if key != "at"} for mismatch in found]
    named = {rank for group in groups.values() for rank in group["ranks"]}
    return {
        "ranks": sorted(dumps), "missing_dumps": sorted(named - set(dumps)),
        "version": next(iter(dumps.values())).version,
        "num_entries": {str(rank): len(dump.entries) for rank, dump in sorted(dumps.items())},
        "dropped": {str(rank): dump.num_dropped for rank, dump in sorted(dumps.items())},
        "groups": groups, "first_mismatch": found[0] if found else None, "mismatches": found,
        "incomplete": incomplete, "skipped": skipped,
    }


def _by_group(dumps: Mapping[int, Dump]) -> dict[str, dict[int, list[dict[str, Any]]]]:
    """Group -> rank -> its collectives, by sequence number; point-to-point calls are matched otherwise, left out."""
    found: dict[str, dict[int, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for rank, dump in dumps.items():
        for entry in dump.entries:
            if not entry["is_p2p"] and entry["seq"] is not None:
                found[entry["group"]][rank].append(entry)
    return found


def _members(name: str, dumps: Mapping[int, Dump], of_rank: Mapping[int, Any]) -> list[int]:
    """Ranks of a group as the dumps' own configuration says, else those that ever called it."""
    for dump in dumps.values():
        if ranks := dump.group_ranks.get(name):
            return sorted(ranks)
    if any(entry["desc"] == "default_pg" for entries in of_rank.values() for entry in entries):
        known = {rank for dump in dumps.values() for ranks in dump.group_ranks.values() for rank in ranks}
        return sorted(known | set(dumps))
    return sorted(of_rank)


def _last_seq(dump: Dump, name: str) -> int | None:
    """Number of the last call that a rank made in a group; None if that cannot be known."""
    kept = [entry["seq"] for entry in dump.entries if entry["group"] == name and not entry["is_p2p"]
            and entry["seq"] is not None]
    told = dump.last_enqueued.get(name)
    if kept or told is not None:
        return max([*kept, *([told] if told is not None else [])])
    return None if dump.num_dropped else 0  # all of its records of this group may have been dropped


def _first_mismatch(name: str, of_rank: Mapping[int, Sequence[dict[str, Any]]],
                    last: Mapping[int, int | None]) -> dict[str, Any] | None:
    """The lowest sequence number at which a member is missing, or differs from most."""
    known = {rank: seq for rank, seq in last.items() if seq is not None}
    calls: dict[int, dict[int, dict[str, Any]]] = defaultdict(dict)
    for rank, entries in of_rank.items():
        for entry in entries:
            calls[entry["seq"]][rank] = entry
    for seq in sorted(calls):
        here = calls[seq]
        missing = sorted(rank for rank, end in known.items() if end < seq)
        differs = _differences(here)
        if not missing and not differs:
            continue
        usual = Counter(_op(entry) for entry in here.values()).most_common(1)[0][0]
        times = [entry["time"] for entry in here.values() if entry["time"] is not None]
        return {"seq": seq, "op": usual, "group": name, "missing_ranks": missing,
                "differing_ranks": sorted({rank for ranks in _odd(differs).values() for rank in ranks}),
                "differs": {field: {str(rank): value for rank, value in values.items()}
                            for field, values in differs.items()},
                "at": min(times) if times else min(entry["place"] for entry in here.values())}
    return None


def _differences(here: Mapping[int, dict[str, Any]]) -> dict[str, dict[int, Any]]:
    """Field -> rank -> value, for the fields that have to agree and do not."""
    found = {}
    for field in MATCHED:
        if field != "op" and (len({_op(entry) for entry in here.values()}) > 1
                              or not _sizes_compare(next(iter(here.values()))["op"])):
            continue
        values = {rank: entry[field] for rank, entry in here.items() if entry[field] is not None}
        if len({repr(value) for value in values.values()}) > 1:
            found[field] = values
    return found


def _sizes_compare(op: str) -> bool:
    """Whether all members have to pass tensors of one size; uneven collectives need not."""
    short = op.split(":")[-1].lower()
    return short in SIZES_MUST_AGREE or not any(part in short for part in SIZES_MAY_DIFFER)


def _odd(differs: Mapping[str, Mapping[int, Any]]) -> dict[str, list[int]]:
    """Field -> ranks that are not with the majority; all of them where there is none."""
    found = {}
    for field, values in differs.items():
        counts = Counter(repr(value) for value in values.values())
        (usual, votes), *_ = counts.most_common()
        is_clear = votes > len(values) - votes
        found[field] = [rank for rank, value in values.items() if not is_clear or repr(value) != usual]
    return found


def _incomplete(name: str, of_rank: Mapping[int, Sequence[dict[str, Any]]],
                members: Sequence[int]) -> list[dict[str, Any]]:
    """Calls that every member has made and at least one does not know to be done: the network, or a kernel."""
    found = []
    open_at = {rank: {entry["seq"]: entry for entry in entries if not entry["is_done"]}
               for rank, entries in of_rank.items()}
    made = {rank: {entry["seq"] for entry in entries} for rank, entries in of_rank.items()}
    for seq in sorted({seq for calls in open_at.values() for seq in calls}):
        if all(seq in made.get(rank, ()) for rank in members):
            ranks = sorted(rank for rank in members if seq in open_at.get(rank, {}))
            found.append({"group": name, "seq": seq, "op": open_at[ranks[0]][seq]["op"], "ranks": ranks})
    return found


def _all_wait_elsewhere(mismatch: Mapping[str, Any], dumps: Mapping[int, Dump]) -> bool:
    """Whether every missing rank sits in an unfinished call of another group: then the cause is there, not here."""
    missing = mismatch["missing_ranks"]
    if not missing or mismatch["differs"]:
        return False
    return all(any(not entry["is_done"] and entry["group"] != mismatch["group"] for entry in dumps[rank].entries[-1:])
               for rank in missing)


def _op(entry: Mapping[str, Any]) -> str:
    return entry["op"]


def _natural(name: str) -> tuple[int, int, str]:
    return (0, int(name), "") if name.isdigit() else (1, 0, name)

"""Traces of several ranks: each collective split into waiting for the last rank and transferring.

Inside a collective a rank that came early waits for the others, so its time is not all transfer. The rank that came
last waits for nobody: the minimum over ranks is the transfer, the rest is wait. Collectives are matched by their order
within the process group and step, never by clock, because clocks of hosts differ. `labkit analyze torch_trace_dir DIR`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from labkit.analyze.kinds import UnreadableInput
from labkit.analyze.trace import identity, summarize
from labkit.analyze.trace_read import read_trace
from labkit.analyze.trace_work import COMM, NO_STEP, Work, device_work

_TRACE_NAMES = ("*.json", "*.json.gz", "*.gz", "*.trace")
_POINT_TO_POINT = ("send", "recv", "send_recv")
_METHOD = "matching by order within the process group, not by clock: hosts' clocks differ"


@dataclass(frozen=True, slots=True)
class _Call:
    """One collective as one rank saw it."""

    collective: str
    size_bytes: int | None
    dur_ns: int


@dataclass(slots=True)
class _Rank:
    """What is kept of one rank's file."""

    label: int | str
    path: Path
    facts: dict[str, Any]
    summary: dict[str, Any]
    calls: dict[tuple[str, int], list[_Call]]
    """(process group, step) -> calls in order."""
    num_left_out: int


def analyze_trace_dir(paths: Sequence[Path]) -> dict[str, Any]:
    """Wait and transfer over the ranks of one job.

    Args:
        paths: one folder, or the rank files themselves.

    Returns: plain object. `ranks`; `collective_min_us` (sum over matched collectives of the minimum over ranks: the
    transfer time); `wait_us` by rank; `caused_wait_us` by rank (the others' wait in collectives where it was last);
    `straggler` (the rank that caused most wait; None if nobody waited); `by_collective`; `per_rank` (overlap summary);
    `longest_waits`; `warnings` with `warning_details`. With fewer than two ranks the split is unknown: None.

    Raises: UnreadableInput when no file is a trace.
    """
    warnings: dict[str, str] = {}
    ranks = _distinct(_load_all(_files(paths), warnings), warnings)
    known = all(isinstance(rank.label, int) for rank in ranks)
    result: dict[str, Any] = {
        "ranks": [rank.label for rank in ranks] if known else None,
        "files": {str(rank.label): rank.path.name for rank in ranks},
        "needs": _METHOD,
    }
    _warn_about_ranks(ranks, warnings)
    if len(ranks) < 2:
        warnings["one rank only"] = "wait cannot be told from transfer without the other ranks' files"
        split = dict.fromkeys(("collective_min_us", "wait_us", "caused_wait_us", "straggler"))
        result |= split | {"num_matched": 0, "by_collective": {}, "longest_waits": []}
    else:
        result |= _split(ranks, warnings)
    result["per_rank"] = {str(rank.label): rank.facts | rank.summary for rank in ranks}
    return result | {"warnings": list(warnings), "warning_details": warnings}


def _files(paths: Sequence[Path]) -> list[Path]:
    found: list[Path] = []
    for path in map(Path, paths):
        if not path.exists():
            raise UnreadableInput(f"{path}: no such file or folder")
        if not path.is_dir():
            found.append(path)
            continue
        here = sorted({file for pattern in _TRACE_NAMES for file in path.glob(pattern) if file.is_file()})
        below = sorted({file for pattern in _TRACE_NAMES for file in path.glob(f"*/{pattern}") if file.is_file()})
        if not here and not below:
            raise UnreadableInput(f"{path}: holds no trace file (.json or .json.gz)")
        found += here or below
    if not found:
        raise UnreadableInput("torch_trace_dir takes a folder or several trace files, got none")
    return list(dict.fromkeys(found))


def _load_all(files: list[Path], warnings: dict[str, str]) -> list[_Rank]:
    """What is kept of each file that is a trace; one trace is in memory at a time."""
    ranks: list[_Rank] = []
    refused: list[str] = []
    for path in files:
        try:
            ranks.append(_load(path))
        except UnreadableInput as err:
            refused.append(str(err))
    if not ranks:
        raise UnreadableInput(refused[0] if len(refused) == 1 else f"no trace among {len(files)} files: {refused[0]}")
    if refused:
        warnings["files left out"] = "; ".join(refused[:5])
    return ranks


def _load(path: Path) -> _Rank:
    trace = read_trace(path)
    work = device_work(trace)
    facts = identity(trace, work)
    devices = Counter(work.device[work.cls == COMM].tolist()) or Counter(work.device.tolist())
    rows = np.arange(0)
    if devices:
        rows = np.flatnonzero(work.device == devices.most_common(1)[0][0])
    summary = summarize(work, rows)
    comm = rows[work.cls[rows] == COMM]
    calls, left_out = _calls(work, comm)
    label = facts["rank"] if facts["rank"] is not None else path.name
    keep = ("complete", "rank_source", "world_size", "warnings")
    kept_facts = {key: facts[key] for key in keep} | {"n_devices": len(set(work.device.tolist()))}
    return _Rank(label, path, kept_facts, summary, calls, left_out)


def _calls(work: Work, rows: np.ndarray) -> tuple[dict[tuple[str, int], list[_Call]], int]:
    """A rank's collectives by (process group, step), in order; and how many have no counterpart to be matched with.

    Left out are kernels launched before recording began (the other ranks' files need not hold them) and, where the file
    has steps, calls outside of them.
    """
    streams = sorted(set(work.stream[rows].tolist()), key=lambda stream: str(work.places[stream]).rjust(20))
    calls: dict[tuple[str, int], list[_Call]] = defaultdict(list)
    left_out = 0
    for row in rows.tolist():
        detail = work.detail_of(row)
        collective = work.collective(row)
        if collective in _POINT_TO_POINT or (work.has_steps and work.step[row] == NO_STEP) or not work.launched[row]:
            left_out += 1
            continue
        # Without NCCL's arguments the group is unknown; each has its own stream, and order within a stream is safe.
        group = detail.group if detail is not None and detail.group else f"stream {streams.index(work.stream[row])}"
        if work.on_cpu:
            group = collective  # gloo's threads share one queue; the order of starts is safe only within one kind
        calls[group, int(work.step[row])].append(
            _Call(collective, detail.size_bytes if detail is not None else None, int(work.dur[row]))
        )
    return dict(calls), left_out


def _distinct(ranks: list[_Rank], warnings: dict[str, str]) -> list[_Rank]:
    """One file for each rank, in rank order."""
    by_label: dict[int | str, _Rank] = {}
    repeated: list[str] = []
    for rank in ranks:
        if rank.label in by_label:
            repeated.append(f"rank {rank.label}: {rank.path.name} left out, {by_label[rank.label].path.name} used")
        else:
            by_label[rank.label] = rank
    if repeated:
        warnings["several files for one rank"] = "; ".join(repeated[:5])
    unknown = [rank.path.name for rank in by_label.values() if isinstance(rank.label, str)]
    if unknown:
        warnings["rank unknown"] = f"neither contents nor name give a rank: {', '.join(unknown[:5])}; named by file"
    return sorted(by_label.values(), key=lambda rank: (isinstance(rank.label, str), rank.label))


def _warn_about_ranks(ranks: list[_Rank], warnings: dict[str, str]) -> None:
    sizes = {rank.facts["world_size"] for rank in ranks} - {None}
    if len(sizes) > 1:
        warnings["world sizes differ"] = f"the files say {sorted(sizes)}: are they of one job?"
    elif sizes and len(ranks) < (size := sizes.pop()):
        warnings["ranks without a file"] = f"only {len(ranks)} of {size} ranks: transfer is an upper bound"
    incomplete = [str(rank.label) for rank in ranks if not rank.facts["complete"]]
    if incomplete:
        warnings["incomplete files"] = f"ranks {', '.join(incomplete)}: events are missing"
    several = [str(rank.label) for rank in ranks if rank.facts["n_devices"] > 1]
    if several:
        warnings["several devices in one file"] = f"ranks {', '.join(several)}: the one with most communication is used"
    left_out = {str(rank.label): rank.num_left_out for rank in ranks if rank.num_left_out}
    if left_out:
        warnings["collectives not matched"] = (
            f"by rank {left_out}: launched before recording began, outside of profiler steps, or point-to-point"
        )


def _split(ranks: list[_Rank], warnings: dict[str, str]) -> dict[str, Any]:
    """Wait and transfer over all collectives that at least two ranks took part in."""
    wait = {str(rank.label): 0 for rank in ranks}
    caused = {str(rank.label): 0 for rank in ranks}
    by_collective: dict[str, Counter[str]] = defaultdict(Counter)
    longest: list[dict[str, Any]] = []
    unequal: list[str] = []
    mixed = 0
    for key in dict.fromkeys(key for rank in ranks for key in rank.calls):
        members = [rank for rank in ranks if key in rank.calls]
        if len(members) < 2:
            continue
        if len({len(rank.calls[key]) for rank in members}) > 1:
            counts = ", ".join(f"rank {rank.label} has {len(rank.calls[key])}" for rank in members)
            unequal.append(f"group {key[0]!r}, step {key[1] if key[1] != NO_STEP else 'none'}: {counts}")
        for index, calls in enumerate(zip(*_aligned([rank.calls[key] for rank in members]))):
            if len({call.collective for call in calls}) > 1:
                mixed += 1
                continue
            transfer = min(call.dur_ns for call in calls)
            waits = {str(rank.label): call.dur_ns - transfer for rank, call in zip(members, calls)}
            last = min(waits, key=lambda label: waits[label])
            for label, waited in waits.items():
                wait[label] += waited
            caused[last] += sum(waits.values())
            by_collective[calls[0].collective].update(count=1, min=transfer, wait=sum(waits.values()))
            longest.append(
                {
                    "collective": calls[0].collective,
                    "step": None if key[1] == NO_STEP else key[1],
                    "index": index,
                    "bytes": calls[0].size_bytes,
                    "min_us": transfer / 1000,
                    "wait_us": {label: waited / 1000 for label, waited in waits.items()},
                    "last_rank": last if sum(waits.values()) else None,
                }
            )
    if unequal:
        warnings["ranks recorded different numbers of collectives"] = "; ".join(unequal[:5])
    if mixed:
        warnings["collectives of different kinds at one place"] = f"{mixed} left out"
    longest.sort(key=lambda entry: -sum(entry["wait_us"].values()))
    worst = max(caused, key=lambda label: caused[label])
    label_of = {str(rank.label): rank.label for rank in ranks}
    return {
        "num_matched": len(longest),
        "collective_min_us": sum(entry["min"] for entry in by_collective.values()) / 1000 if longest else None,
        "wait_us": {label: ns / 1000 for label, ns in wait.items()} if longest else None,
        "caused_wait_us": {label: ns / 1000 for label, ns in caused.items()} if longest else None,
        "straggler": label_of[worst] if caused[worst] else None,
        "by_collective": {
            name: {"count": entry["count"], "min_us": entry["min"] / 1000, "wait_us": entry["wait"] / 1000}
            for name, entry in by_collective.items()
        },
        "longest_waits": longest[:10],
    }


def _aligned(sequences: list[list[_Call]]) -> list[list[_Call]]:
    """Sequences of equal length: where some are longer, the end that agrees better in kind and size is kept."""
    shortest = min(map(len, sequences))
    heads = [sequence[:shortest] for sequence in sequences]
    tails = [sequence[len(sequence) - shortest :] for sequence in sequences]

    def agreement(candidate: list[list[_Call]]) -> int:
        return sum(len({(call.collective, call.size_bytes) for call in calls}) == 1 for calls in zip(*candidate))

    return heads if agreement(heads) >= agreement(tails) else tails

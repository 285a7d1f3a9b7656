"""Flight-recorder files: JSON or pickle, read without running anything that a file asks for, in one plain form.

A dump comes from another machine, so it is data: the unpickler refuses every class and function except the list
builders that torch's own pickler writes.
"""

from __future__ import annotations

import gzip
import io
import json
import pickle
import re
from bisect import bisect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from labkit.analyze.kinds import UnreadableInput, clean_text

ENDINGS = (".gz", ".json", ".pickle", ".pkl", ".pt", ".bin", ".dump", ".txt", ".trace")
MOST_BYTES = 2**30
DONE = ("completed", "finished", "complete")


@dataclass(frozen=True, slots=True)
class Dump:
    """One rank's records."""

    rank: int
    version: str
    entries: list[dict[str, Any]]
    """In order of the calls: group, desc, seq, op, input_sizes, ..., is_done, is_p2p, time, place."""
    group_ranks: dict[str, list[int]]
    last_enqueued: dict[str, int]
    num_dropped: int
    """Records that the ring buffer had overwritten, or that a dump of open calls only leaves out."""


class _Data(pickle.Unpickler):
    """Numbers, text, lists, tuples and dicts; nothing that could be called."""

    def find_class(self, module: str, name: str) -> Any:
        if module == "torch.jit._pickle" and name.startswith("build_"):
            return list
        if (module, name) == ("collections", "OrderedDict"):
            return dict
        raise pickle.UnpicklingError(f"refused to load {module}.{name}")

    def persistent_load(self, pid: Any) -> Any:
        raise pickle.UnpicklingError("refused a persistent object")


def read_dumps(paths: Sequence[Path]) -> tuple[dict[int, Dump], list[str]]:
    """Every dump among files and folders, by rank.

    Returns: (dumps, names of files that are none).
    Raises: UnreadableInput when a path does not exist, there is no dump, or no rule gives each file its own rank.
    """
    raw: dict[Path, dict[str, Any]] = {}
    skipped = []
    for path in _files(paths):
        try:
            raw[path] = load_dump(path)
        except UnreadableInput as error:
            skipped.append(clean_text(f"{path.name}: {str(error).split(': ', 1)[-1]}"))
    if not raw:
        why = f" ({skipped[0]})" if skipped else ""
        raise UnreadableInput(f"{_shown(paths)}: no flight-recorder dump{why}, expected a folder of one file a rank")
    # One dump may lie there as pickle and as JSON: the longer one counts.
    by_stem: dict[tuple[Path, str], Path] = {}
    for path in sorted(raw, key=lambda path: len(raw[path].get("entries") or []), reverse=True):
        first = by_stem.setdefault((path.parent, _stem(path.name)), path)
        if first != path:
            skipped.append(f"{path.name}: the same dump as {first.name}")
            del raw[path]
    ranks = _ranks_of(raw)
    dumps = [_normal(ranks[path], dump) for path, dump in sorted(raw.items(), key=lambda p: ranks[p[0]])]
    if not any(dump.num_dropped for dump in dumps):
        for dump in dumps:
            _count_collectives_only(dump.entries)
    return {dump.rank: dump for dump in _apart(dumps)}, skipped


def _count_collectives_only(entries: Sequence[dict[str, Any]]) -> None:
    """Take out of the sequence numbers what batches of sends and receives have used: ranks make different ones.

    A batch takes a number of the collectives' count, a single send takes none. Told only where no record is lost.
    """
    for group in {entry["group"] for entry in entries if entry["is_p2p"]}:
        here = [entry for entry in entries if entry["group"] == group and entry["seq"] is not None]
        made = {entry["seq"] for entry in here if not entry["is_p2p"]}
        batches = sorted({entry["seq"] for entry in here if entry["is_p2p"] and entry["seq"] > 0} - made)
        for entry in here:
            if not entry["is_p2p"]:
                entry["seq"] -= bisect(batches, entry["seq"])


def _apart(dumps: list[Dump]) -> list[Dump]:
    """Groups of one name and different ranks told apart: a split of a group names all of its parts the same."""
    parts: dict[str, set[tuple[int, ...]]] = {}
    for dump in dumps:
        for name, ranks in dump.group_ranks.items():
            parts.setdefault(name, set()).add(tuple(sorted(ranks)))
    shared = {name for name, lists in parts.items()
              if len(lists) > 1 and sum(map(len, lists)) == len(set().union(*lists))}
    found = []
    for dump in dumps:
        new = {name: f"{name} {sorted(ranks)}" for name, ranks in dump.group_ranks.items() if name in shared}
        found.append(replace(
            dump, entries=[entry | {"group": new.get(entry["group"], entry["group"])} for entry in dump.entries],
            group_ranks={new.get(name, name): ranks for name, ranks in dump.group_ranks.items()},
            last_enqueued={new.get(name, name): last for name, last in dump.last_enqueued.items()}))
    return found


def load_dump(path: Path) -> dict[str, Any]:
    """One file as plain data: a mapping with `entries`.

    Raises: UnreadableInput for what is no dump, is cut short, or asks for code.
    """
    try:
        if path.stat().st_size > MOST_BYTES:
            raise UnreadableInput(f"{path}: larger than 1 GiB, expected a flight-recorder dump")
        data = path.read_bytes()
        if data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
    except (OSError, EOFError) as error:
        raise UnreadableInput(f"{path}: cannot be read ({error})") from None
    try:
        if data[:1] == b"\x80":
            value = _Data(io.BytesIO(data)).load()
        else:
            value = json.loads(data.decode("utf-8-sig"))
    except RecursionError:
        raise UnreadableInput(f"{path}: nested too deeply, expected a dump") from None
    except Exception as error:  # a broken pickle raises anything: IndexError, KeyError, UnicodeDecodeError, ...
        raise UnreadableInput(f"{path}: not a dump ({type(error).__name__}: {clean_text(error)[:120]})") from None
    if isinstance(value, list):  # entries alone
        value = {"entries": value}
    if not isinstance(value, dict) or not isinstance(value.get("entries", []), list | tuple) or not (
            "entries" in value or "pg_config" in value):
        raise UnreadableInput(f"{path}: not a dump (no list of entries)")
    return value


def _files(paths: Sequence[Path]) -> list[Path]:
    found: list[Path] = []
    for path in map(Path, paths):
        if not path.exists():
            raise UnreadableInput(f"{path}: no such file or folder")
        found += sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
    return [path for path in dict.fromkeys(found) if not path.name.startswith(".")]


def _shown(paths: Sequence[Path]) -> str:
    return ", ".join(str(path) for path in paths) or "no path"


def _ranks_of(raw: dict[Path, dict[str, Any]]) -> dict[Path, int]:
    """Rank of each file: what the dump says of itself, else the first rule of naming that tells all files apart."""
    told = {path: _whole(dump.get("rank")) for path, dump in raw.items()}
    named: set[int] = {rank for dump in raw.values() for ranks in _group_ranks(dump).values() for rank in ranks}
    rules: list[Callable[[str], re.Match[str] | None]] = [
        lambda stem: re.search(r"(\d+)$", stem),  # torch: prefix, then the rank at the very end
        lambda stem: re.search(r"rank[_=-]?(\d+)(?![\w.-]*\d)", stem),
        lambda stem: re.search(r"rank[_=-]?(\d+)", stem),
        lambda stem: re.search(r"(\d+)(?=\D*$)", stem),
    ]
    candidates = [told]
    for rule in rules:
        matches = {path: rule(_stem(path.name)) for path in raw}
        candidates.append({path: int(match.group(1)) if match else None for path, match in matches.items()})
    for allowed in (named, None):
        for ranks in candidates:
            values = list(ranks.values())
            if None not in values and len(set(values)) == len(values) and (
                    allowed is None or not allowed or set(values) <= allowed):
                return {path: rank for path, rank in ranks.items() if rank is not None}
    names = ", ".join(sorted(path.name for path in raw)[:4])
    raise UnreadableInput(f"{names}: expected file names that end in the rank, each rank once")


def _stem(name: str) -> str:
    while name.lower().endswith(ENDINGS):
        name = name[: name.rindex(".")]
    return name


def _normal(rank: int, dump: dict[str, Any]) -> Dump:
    entries = [_entry(entry, place) for place, entry in enumerate(dump.get("entries") or [])
               if isinstance(entry, dict)]
    first = [_whole(entry.get("record_id")) for entry in dump.get("entries") or [] if isinstance(entry, dict)]
    ids = [number for number in first if number is not None]
    if ids and len(ids) == len(entries):
        entries = [entry for _, entry in sorted(zip(ids, entries), key=lambda pair: pair[0])]
    last, has_more = _last_enqueued(dump, entries)
    # Record ids count from 0 (some versions from 1); a dump of open calls only has gaps, or nothing at all.
    num_dropped = max(0, min(ids) - 1) + max(0, max(ids) - min(ids) + 1 - len(ids)) if ids else int(has_more)
    return Dump(rank, str(dump.get("version", "")), entries, _group_ranks(dump), last, num_dropped)


def _entry(raw: dict[str, Any], place: int) -> dict[str, Any]:
    group = raw.get("process_group")
    name, desc = (group[0], group[1]) if isinstance(group, list | tuple) and len(group) > 1 else (
        raw.get("pg_name", raw.get("pg_id", "0")), raw.get("pg_desc", ""))
    seq = _whole(raw.get("collective_seq_id", raw.get("seq_id")))
    op = clean_text(raw.get("profiling_name") or raw.get("op") or "unknown")
    return {
        "group": clean_text(name), "group_id": _whole(raw.get("pg_id")), "desc": clean_text(desc), "seq": seq, "op": op,
        "input_sizes": _plain(raw.get("input_sizes")), "output_sizes": _plain(raw.get("output_sizes")),
        "input_dtypes": _plain(raw.get("input_dtypes")), "output_dtypes": _plain(raw.get("output_dtypes")),
        # Gloo keeps "scheduled" for calls that are over, but retires them.
        "is_done": str(raw.get("state", "")).lower() in DONE or bool(raw.get("retired")),
        "is_p2p": bool(raw.get("is_p2p")) or bool(re.search(r":(send|recv)\b", op)),
        "time": _whole(raw.get("time_created_ns")), "place": place,
    }


def _group_ranks(dump: dict[str, Any]) -> dict[str, list[int]]:
    """Group -> ranks, whatever the version calls it; text such as "[0, 1]" is read, not evaluated."""
    config = dump.get("pg_config")
    found = {}
    for key, value in (config.items() if isinstance(config, dict) else ()):
        ranks = value.get("ranks") if isinstance(value, dict) else value
        if isinstance(ranks, str):
            ranks = [int(number) for number in re.findall(r"\d+", ranks)]
        if isinstance(ranks, list | tuple):
            name = value.get("name", key) if isinstance(value, dict) else key
            found[clean_text(name)] = [n for rank in ranks if (n := _whole(rank)) is not None]
    return found


def _last_enqueued(dump: dict[str, Any], entries: Sequence[dict[str, Any]]) -> tuple[dict[str, int], bool]:
    """(group -> last collective that was enqueued, whether the status counts calls of groups without a record).

    The status goes by a number that each process gives its groups in the order in which it joins them, so the records
    tell which group it means; 0 is the first, the default group. With point-to-point calls the number counts those.
    """
    names = {str(entry["group_id"]): entry["group"] for entry in entries if entry["group_id"] is not None}
    with_p2p = {entry["group"] for entry in entries if entry["is_p2p"]}
    status = dump.get("pg_status")
    found, has_more = {}, False
    for key, value in (status.items() if isinstance(status, dict) else ()):
        last = _whole(value.get("last_enqueued_collective")) if isinstance(value, dict) else None
        name = names.get(clean_text(key), "0" if clean_text(key) == "0" and "0" not in names.values() else None)
        if last is not None and last >= 0 and name is not None and name not in with_p2p:
            found[name] = last
        has_more = has_more or (name is None and (last or 0) > 0)
    return found, has_more


def _plain(value: Any) -> Any:
    """Sizes or types as JSON: tuples are lists; None where the dump has none."""
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return value if value is None or isinstance(value, int | float | str) else clean_text(value)


def _whole(value: Any) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, str) and re.fullmatch(r"-?\d+", value.strip()):
        return int(value)
    return int(value) if isinstance(value, int | float) and value == int(value) else None



"""JSON output of nccl-tests 2.17.3 and newer (`-J`), all schema numbers, also of a run that was cut off.

    python -m labkit analyze nccl_tests_json all_reduce.json

Version 1 misspells two keys until 2.17.9 and spells them right after, under the same number. Booleans are strings, NaN
is a string, infinity is bare, the root is padded, and `env` is the whole environment, so only library settings of it
are told.
"""

from __future__ import annotations

import json
import re
from typing import Any

from labkit.analyze.kinds import UnreadableInput, clean_text
from labkit.analyze.nccl_tests import count, number, operation, ranks_of, verdict, version_text
from labkit.analyze.nccl_tests_reporter import is_records, read_records
from labkit.records.redact import public_environ

MOST_RANKS_A_PROCESS = 1024
"""More threads times GPUs than any host has; above it a number is damaged."""
_LONE_SURROGATE = re.compile(r"(?i)\\ud[89ab][0-9a-f]{2}(?!\\ud[c-f])|(?<!\\ud[89ab][0-9a-f]{2})\\ud[c-f][0-9a-f]{2}")
"""Half a character as an escape: no encoder takes what it decodes to."""

def parse_json(text: str) -> dict[str, Any]:
    """One JSON file of nccl-tests (`-J`) or rccl-tests (`-Z json`: a list, without what a header and footer tell).

    Returns: as `nccl_tests_text.parse_text`, and `schema`, `environ` (library settings only), `redact_env` (names of
    variables that hold a secret), `straggler_process` (the one that was slowest most often, where per-process times
    were written). Sides may also hold iter_times_us (every iteration, the skipped ones too), skipped, iter_stats.

    Raises: UnreadableInput when this is no JSON of nccl-tests.
    """
    raw, cut = _load(text)
    if is_records(raw):
        return read_records(raw, cut=cut)
    if not isinstance(raw, dict) or not {"config", "results", "args", "nccl_version"} & raw.keys():
        raise UnreadableInput("no JSON of nccl-tests, expected an object with version, config and results")
    config = _dict(raw.get("config"))
    told, secret = public_environ([entry for entry in _list(raw.get("env")) if isinstance(entry, str)])
    found = [row for row in _list(raw.get("results")) if isinstance(row, dict)]
    rows = [_row(row) for row in found]
    bounds, average = _dict(raw.get("out_of_bounds")), _average(raw)
    args = [str(arg) for arg in _list(raw.get("args"))]
    errors = [str(error) for error in _list(raw.get("errors")) if error]
    finished = bool(bounds) and not cut
    bandwidth_check = {"true": "OK", "false": "FAILED"}.get(str(average.get("okay")).lower())
    devices = [device for device in _list(config.get("devices", raw.get("devices"))) if isinstance(device, dict)]
    names = sorted({str(device.get("device_info", "")).strip() for device in devices})
    is_amd = any("AMD" in name or "Instinct" in name for name in names)
    answer: dict[str, Any] = {
        "schema": count(raw.get("version")), "op": operation(args[0] if args else None),
        "vendor": "amd" if is_amd else "nvidia", "library": "rccl" if is_amd else "nccl",
        "nccl_version": version_text(count(raw.get("nccl_version"))), **_ranks(config, devices),
        "hosts": len({str(device.get("hostname")) for device in devices}) or None, "devices": names,
        "config": {key: value for key, value in config.items() if key != "devices"},
        "time_kind": "cpu" if any(_is_cpu(row) for row in found) else "device", "rows": rows,
        "oob": count(bounds.get("count")), "avg_busbw": number(average.get("bandwidth", average.get("bandwidith"))),
        "bandwidth_check": bandwidth_check, "finished": finished, "environ": told, "redact_env": secret,
        **verdict(rows, oob=count(bounds.get("count")), oob_ok=_truth(bounds.get("okay")), finished=finished,
                  bandwidth_check=bandwidth_check, validation=count(config.get("validation"))),
        "straggler_process": _straggler(found),
    }
    if errors and finished and answer["passed"] is not False:
        answer["warnings"], errors = [errors[0][:200]], []  # the library's last message, also of a run that passed
    answer["error"] = errors[0][:200] if errors else (None if finished else "cut off: the program did not finish")
    answer["usable"] = answer["usable_rows"] > 0 and answer["passed"] is not False and answer["nranks_total"] != 1
    return answer


def without_secrets(text: str) -> str:
    """The same file with `env` cut down to library settings, for a record.

    Raises: UnreadableInput as `parse_json`.
    """
    raw, _ = _load(text)
    if not isinstance(raw, dict):
        raise UnreadableInput("no JSON of nccl-tests, expected an object")
    told, _secret = public_environ([entry for entry in _list(raw.get("env")) if isinstance(entry, str)])
    for device in _list(_dict(raw.get("config")).get("devices")):
        if isinstance(device, dict):
            device["hostname"] = "$HOST"
    args = [re.sub(r"^.*/", "", str(arg)) for arg in _list(raw.get("args"))]
    return json.dumps({**raw, "args": args, "env": [f"{name}={value}" for name, value in told.items()]},
                      allow_nan=False, indent=1) + "\n"


def _load(text: str) -> tuple[Any, bool]:
    """(value, was it cut off)."""
    text = clean_text(text).strip().lstrip("\ufeff")
    text = re.sub(r"(?<=[:,\[])\s*[-+]?(?:inf(?:inity)?|nan|NaN|Infinity)\b", "null", text)
    text = _LONE_SURROGATE.sub(r"\\ufffd", text)
    if not text.startswith(("{", "[")) and (found := re.search(r"^[ \t]*[{\[]", text, re.MULTILINE)):
        text = text[found.start() :].lstrip()  # in a log, behind what the program printed
    try:
        return json.JSONDecoder().raw_decode(text)[0], False
    except (ValueError, RecursionError):
        pass
    if not text.startswith(("{", "[")):
        raise UnreadableInput("no JSON of nccl-tests, expected text that starts with {")
    for end in _ends(text):
        try:
            return json.loads(end), True
        except (ValueError, RecursionError):
            continue
    raise UnreadableInput("broken JSON, nothing in it could be read")


def _ends(text: str) -> list[str]:
    """Texts that could be whole: cut after a value, open brackets closed; longest first, at most 400."""
    closers: list[str] = []
    points: list[tuple[int, str]] = []
    in_string = escaped = False
    for i, letter in enumerate(text):
        if in_string:
            in_string = escaped or letter != '"'
            escaped = letter == "\\" and not escaped
            continue
        if letter == '"':
            in_string = True
        elif letter in "{[":
            closers.append("}" if letter == "{" else "]")
        elif letter in "}]" and closers:
            closers.pop()
            points.append((i + 1, "".join(reversed(closers))))
        elif letter == ",":
            points.append((i, "".join(reversed(closers))))
    # A value that ends the file may be whole, too.
    points.append((len(text), "".join(reversed(closers))))
    return [text[:end] + close for end, close in sorted(points, reverse=True)[:400]]


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _truth(value: Any) -> bool | None:
    return {"true": True, "false": False}.get(str(value).strip().lower())


def _average(raw: dict[str, Any]) -> dict[str, Any]:
    return _dict(raw.get("average_bus_bandwidth") or raw.get("average_bus_bandwidith"))


def _ranks(config: dict[str, Any], devices: list[dict[str, Any]]) -> dict[str, Any]:
    """`devices` has one entry a process, with its first GPU; a process may run several threads and GPUs."""
    per_process = (count(config.get("ngpus")) or 1) * (count(config.get("nthreads")) or 1)
    if not 1 <= per_process <= MOST_RANKS_A_PROCESS:
        raise UnreadableInput(f"ngpus times nthreads is {str(per_process)[:12]}, expected 1 to {MOST_RANKS_A_PROCESS}")
    groups = [count(device.get("group")) for device in devices for _ in range(per_process)]
    if not devices:
        return {"nranks": None, "nranks_total": None, "groups": None, "aggregate_busbw_factor": None}
    return ranks_of(range(len(groups)), groups)


def _is_cpu(row: dict[str, Any]) -> bool:
    return any("cpu_time" in _dict(row.get(side)) for side in ("out_of_place", "in_place"))


def _row(raw: dict[str, Any]) -> dict[str, Any]:
    row: dict[str, Any] = {"size": count(raw.get("size")), "count": count(raw.get("count")), "type": raw.get("type"),
                           "redop": raw.get("redop"), "root": count(raw.get("root"))}
    for side in ("out_of_place", "in_place"):
        row[side] = _side(raw[side], _dict(raw.get(f"{side}_per_iter"))) if isinstance(raw.get(side), dict) else None
    return row | {"iterations": count(raw.get("actual_iterations"))}


def _side(raw: dict[str, Any], per_iter: dict[str, Any]) -> dict[str, Any]:
    side: dict[str, Any] = {"time_us": number(raw.get("time")), "algbw": number(raw.get("alg_bw")),
                            "busbw": number(raw.get("bus_bw")), "wrong": count(raw.get("nwrong"))}
    if "cpu_time" in raw:
        side["cpu_time_us"] = number(raw["cpu_time"])
    if "nbitdiff" in raw:
        side["bitdiff"] = count(raw["nbitdiff"])
    if per_iter:
        side["iter_times_us"] = [number(time) for time in _list(per_iter.get("times_us"))]
        side["skipped"] = count(per_iter.get("skipped_iterations")) or 0
        side["iter_stats"] = {key: number(value) for key, value in per_iter.items()
                              if key.endswith(("_us", "_pct")) and not isinstance(value, list)}
        side["num_processes"] = len(_list(per_iter.get("per_process_max_times_us"))) or None
    return side


def _straggler(rows: list[dict[str, Any]]) -> int | None:
    """The process that was slowest in most of the counted iterations (the larger total in a tie); None if not told."""
    wins: dict[int, list[float]] = {}
    for row in rows:
        for side in ("out_of_place", "in_place"):
            per_iter = _dict(row.get(f"{side}_per_iter"))
            times = [_list(process) for process in _list(per_iter.get("per_process_max_times_us"))]
            for column in list(zip(*times))[count(per_iter.get("skipped_iterations")) or 0 :] if len(times) > 1 else []:
                values = [number(time) or 0.0 for time in column]
                slowest = values.index(max(values))
                won, total = wins.get(slowest, [0.0, 0.0])
                wins[slowest] = [won + 1, total + values[slowest]]
    return max(wins, key=lambda process: wins[process]) if wins else None

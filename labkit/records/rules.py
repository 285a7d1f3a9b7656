"""The rules a record keeps, as functions from plain JSON values to problems; one line each, none means good."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

RECORD_NAME = "record.json"
RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_UTC = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
KINDS: dict[str, Any] = {
    "experiment": str, "run_id": str, "preset": str, "status": str, "created_utc": str, "finished_utc": str,
    "params": dict, "evidence": str, "argv": list, "environment": dict, "prediction": dict, "results": dict,
    "samples": dict, "oracles": list, "failure": (dict, type(None)), "artifacts": list, "notes": list,
    "schema_version": int,
}  # fmt: skip
"""JSON type of each field; a record holds every one of them."""
ORACLE_FIELDS = frozenset({"name", "passed", "expected", "seen", "tolerance", "detail"})


def record_problems(raw: Mapping[str, Any]) -> list[str]:
    """One line for each rule that a record, as a JSON object, breaks."""
    problems = [f"unknown field {name!r}" for name in raw if name not in KINDS]
    for name, kind in KINDS.items():
        if name not in raw:
            problems.append(f"{name} is missing")
        elif not isinstance(raw[name], kind) or isinstance(raw[name], bool):
            problems.append(f"{name}: {type(raw[name]).__name__}, expected {getattr(kind, '__name__', 'dict or null')}")
    if problems:
        return problems
    problems = json_problems(raw)
    for name in ("experiment", "run_id"):
        if not RUN_ID.fullmatch(raw[name]):
            problems.append(f"{name}={raw[name]!r}: expected letters, digits, '.', '_' and '-' only")
    for name, choices in (("status", ("ok", "failed")), ("evidence", ("measured", "simulated"))):
        if raw[name] not in choices:
            problems.append(f"{name}={raw[name]!r}: expected {' or '.join(choices)}")
    for name in ("created_utc", "finished_utc"):
        if not _UTC.fullmatch(raw[name]):
            problems.append(f"{name}={raw[name]!r}: expected UTC as 2026-01-31T12:00:00.000Z")
    if not all(isinstance(command, list) and all(isinstance(w, str) for w in command) for command in raw["argv"]):
        problems.append("argv: expected a list of lists of strings")
    problems += [f"notes[{i}]: expected text" for i, note in enumerate(raw["notes"]) if not isinstance(note, str)]
    hardware = raw["environment"].get("hardware", {})
    if not isinstance(hardware, dict) or not isinstance(hardware.get("tag", ""), str):
        problems.append("environment.hardware: expected an object whose tag is text")
    for i, artifact in enumerate(raw["artifacts"]):
        problems += artifact_entry_problems(artifact, f"artifacts[{i}]")
    return problems + _oracle_problems(raw) + _sample_problems(raw["samples"]) + _quantity_problems(raw["results"])


def artifact_entry_problems(artifact: Any, where: str) -> list[str]:
    """Problems of one {path, bytes, sha256[, kept]}; a path must stay inside the run directory."""
    if not isinstance(artifact, dict) or not {"path", "bytes", "sha256"} <= artifact.keys():
        return [f"{where}: expected path, bytes and sha256"]
    problems = []
    if (why := path_problem(artifact["path"])) is not None:
        problems.append(f"{where}.path={artifact['path']!r}: {why}")
    size = artifact["bytes"]
    if not isinstance(size, int) or isinstance(size, bool) or size < 0:
        problems.append(f"{where}.bytes={size!r}: expected a count")
    if not isinstance(artifact["sha256"], str) or not re.fullmatch(r"[0-9a-f]{64}", artifact["sha256"]):
        problems.append(f"{where}.sha256={artifact['sha256']!r}: expected 64 hex digits")
    if not isinstance(artifact.get("kept", True), bool):
        problems.append(f"{where}.kept={artifact['kept']!r}: expected true or false")
    return problems


def path_problem(name: Any, *, folder: str = "run directory", reserved: str = RECORD_NAME) -> str | None:
    """Why a name is not a path inside a folder; None if it is.

    Args:
        name: path as a record or a manifest gives it.
        folder: what the folder is called in the message.
        reserved: name of the record or manifest itself, which lists no hash of its own file.

    >>> path_problem("p0/rank0.jsonl"), path_problem("../secret")
    (None, "expected a relative path without '..'")
    """
    if not isinstance(name, str) or not name or "\0" in name or "\\" in name:
        return "expected a relative path"
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        return "expected a relative path without '..'"
    if str(path) != name or name in (".", reserved):
        return f"expected a plain file name of the {folder}"
    return None


def json_problems(value: Any, where: str = "") -> list[str]:
    """One line for each value that would not come back from JSON as it went in; tuples count as lists."""
    if value is None or isinstance(value, bool | int):
        return []
    if isinstance(value, float):
        return [] if math.isfinite(value) else [f"{where}={value!r}: expected a finite number, or null for unknown"]
    if isinstance(value, str):
        return [] if value.isascii() or _encodes(value) else [f"{where}: text that is not Unicode"]
    if isinstance(value, list | tuple):
        return [problem for i, inner in enumerate(value) for problem in json_problems(inner, f"{where}[{i}]")]
    if isinstance(value, dict):
        problems = []
        for key, inner in value.items():
            name = f"{where}.{key}" if where else str(key)
            problems += [] if isinstance(key, str) else [f"{name}: key {key!r} is not text"]
            problems += json_problems(key, f"key of {where}") + json_problems(inner, name)
        return problems
    return [f"{where}: {type(value).__module__}.{type(value).__name__} is not plain JSON"]


def _oracle_problems(raw: Mapping[str, Any]) -> list[str]:
    problems = []
    for i, oracle in enumerate(raw["oracles"]):
        if not isinstance(oracle, dict) or not {"name", "passed", "expected", "seen"} <= oracle.keys() <= ORACLE_FIELDS:
            problems.append(f"oracles[{i}]: expected name, passed, expected, seen, tolerance and detail")
        elif not isinstance(oracle["name"], str) or not isinstance(oracle["passed"], bool):
            problems.append(f"oracles[{i}]: expected a name and passed as true or false")
        elif not oracle["passed"] and raw["status"] == "ok":
            problems.append(f"status 'ok', but the oracle {oracle['name']!r} failed")
    if not problems and raw["status"] == "failed" and not raw["failure"] and all(o["passed"] for o in raw["oracles"]):
        problems.append("status 'failed', but there is neither a failure nor a failed oracle")
    return problems


def _sample_problems(samples: Mapping[str, Any]) -> list[str]:
    return [
        f"samples.{name}: expected an object with unit (text) and values (a list)" for name, sample in samples.items()
        if not isinstance(sample, dict) or not isinstance(sample.get("unit"), str)
        or not isinstance(sample.get("values"), list | tuple)
    ]


def _quantity_problems(value: Any, where: str = "results") -> list[str]:
    """A quantity carries its unit and count, and its spread holds its median."""
    if not isinstance(value, dict):
        return []
    if {"value", "p10", "p90"} <= value.keys():
        low, middle, high = value["p10"], value["value"], value["p90"]
        if not all(isinstance(x, int | float) and not isinstance(x, bool) for x in (low, middle, high)):
            return [f"{where}: value, p10 and p90 must be numbers"]
        if not isinstance(value.get("unit"), str) or not isinstance(value.get("n"), int) or value["n"] < 1:
            return [f"{where}: a quantity needs its unit and n"]
        return [] if low <= middle <= high else [f"{where}: p10 {low!r}, value {middle!r}, p90 {high!r} not in order"]
    return [problem for key, inner in value.items() for problem in _quantity_problems(inner, f"{where}.{key}")]


def _encodes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True

"""Output of `cuobjdump --dump-resource-usage`: registers, stack, shared and local memory of each compiled function.

Three traps. STACK is not spills: an array indexed at run time lives there too, and this tool cannot tell them apart
(`ptxas -v` can: labkit.analyze.ptxas). SHARED counts static shared memory only, not what a launch adds (Triton's is all
dynamic). From compute capability 9.0 on SHARED includes 1,024 bytes that the driver keeps for itself, in kernels that
use shared memory at all; `static_shared_bytes` is without them, and None where the file does not say the architecture.
"""

from __future__ import annotations

import re
from typing import Any

from labkit.analyze.kinds import UnreadableInput, clean_text

RESERVED_SHARED_BYTES = 1024
"""Kept by the driver and counted in SHARED, from compute capability 9.0 on."""
_FIELDS = {"REG": "registers", "STACK": "stack_bytes", "SHARED": "shared_bytes", "LOCAL": "local_bytes"}
_FUNCTION = re.compile(r"^\s*Function\s+(?P<name>\S.*?)\s*:?\s*(?P<rest>\b(?:REG|STACK|SHARED|LOCAL)\s*:\s*[\dU].*)?$")
_PAIR = re.compile(r"\b([A-Z][A-Z_]*)(?:\[(\d{1,4})\])?\s*[:=]\s*(\d{1,15}|UNKNOWN)\b")
_ARCH = re.compile(r"^\s*arch\s*=\s*(sm_\d{2,3}[a-z]?)\b")
_TROUBLE = re.compile(r"^\s*cuobjdump(?:\.exe)?\s+(?:fatal|error|info|warning)\s*:\s*(.+)$")


def parse_resource_usage(text: str) -> dict[str, Any]:
    """Resources of each function, by name as printed (mangled or not).

    Args:
        text: what the tool printed, for a cubin, an object file or a program with several architectures.

    Returns: `functions`: name -> `arch` ("sm_90", None if the file does not say), `registers` (per thread),
    `stack_bytes` and `local_bytes` (per thread), `shared_bytes` (as printed), `static_shared_bytes`, `constant_bytes`
    by bank, `other` fields; what the tool did not print, or printed as UNKNOWN (the
    stack of a kernel that calls itself), is None. A function compiled for several architectures has one entry for
    each, named `name@arch`. `architectures`, `common` (module-wide fields), `spills_known` (False: this
    tool cannot know), `complete` (False if an entry lacks a field, as at a cut), and `error` if the tool failed.

    Raises: UnreadableInput when the text is not of this tool.
    """
    entries: list[dict[str, Any]] = []
    common: dict[str, Any] = {}
    architectures: list[str] = []
    trouble: list[str] = []
    arch, current, is_resources = None, None, False
    for line in _whole_lines(text):
        if found := _ARCH.match(line):
            arch, current = found[1], None
            architectures += [arch] if arch not in architectures else []
        elif re.match(r"^\s*Resource usage\s*:", line):
            is_resources, current = True, None
        elif re.match(r"^\s*Common\s*:", line):
            current = None
        elif found := _FUNCTION.match(line):
            current = {"function": clean_text(found["name"]), "arch": arch}
            entries.append(current)
            if found["rest"]:
                _add_pairs(current.setdefault("fields", {}), _PAIR.findall(found["rest"]))
        elif found := _TROUBLE.match(line):
            trouble.append(clean_text(found[1].strip())[:300])
        else:
            pairs = _PAIR.findall(line)
            _add_pairs(common if current is None else current.setdefault("fields", {}), pairs)
    entries = [_finished(entry) for entry in entries if "fields" in entry or is_resources]
    if not entries and not is_resources and not trouble:
        raise UnreadableInput("no resource usage found, expected the output of: cuobjdump --dump-resource-usage")
    complete = bool(entries) and all([entry.pop("is_whole") for entry in entries])
    answer = {"functions": by_name(entries), "architectures": architectures, "common": common,
              "spills_known": False, "complete": complete}  # fmt: skip
    return answer | ({"error": trouble[0]} if trouble and not entries else {})


def by_name(entries: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Entries with `function` and `arch`, keyed by function; by `function@arch` where a name comes more than once."""
    names = [entry["function"] for entry in entries]
    found: dict[str, dict[str, Any]] = {}
    for entry in entries:
        name = entry["function"]
        key = name if names.count(name) == 1 else f"{name}@{entry['arch'] or 'unknown'}"
        while key in found:  # the same function of two objects, for one architecture
            key += "+"
        found[key] = {part: value for part, value in entry.items() if part != "function"}
    return found


def static_shared_bytes(shared_bytes: int | None, arch: str | None) -> int | None:
    """Static shared memory without the driver's part.

    Args:
        shared_bytes: as cuobjdump prints it, None if it did not.
        arch: e.g. "sm_90a", None if unknown.

    Returns: bytes; None if that cannot be told.

    >>> static_shared_bytes(2048, "sm_90a"), static_shared_bytes(2048, "sm_80"), static_shared_bytes(2048, None)
    (1024, 2048, None)
    """
    if shared_bytes is None or shared_bytes == 0:
        return shared_bytes
    if arch is None or not (digits := re.sub(r"\D", "", arch)):
        return None
    return shared_bytes - RESERVED_SHARED_BYTES if int(digits) >= 90 and shared_bytes >= 1024 else shared_bytes


def _whole_lines(text: str) -> list[str]:
    """Lines; a number that touches the end of the file may be cut, and is dropped unless the line is whole without it.

    A complete line holds all four main fields, so its last number, of some other field, is not one of them.
    """
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    last = lines[-1]
    if last and re.search(r"[:=]\s*\d+$", last) and not all(re.search(rf"\b{name}\s*[:=]", last) for name in _FIELDS):
        lines[-1] = re.sub(r"\d+$", "", last)
    return lines


def _add_pairs(target: dict[str, Any], pairs: list[tuple[str, str, str]]) -> None:
    for name, bank, value in pairs:
        target.setdefault(f"{name}[{bank}]" if bank else name, None if value == "UNKNOWN" else int(value))


def _finished(entry: dict[str, Any]) -> dict[str, Any]:
    fields = dict(entry.get("fields", {}))
    is_whole = all(name in fields for name in _FIELDS)
    main: dict[str, Any] = {key: fields.pop(name, None) for name, key in _FIELDS.items()}
    banks = {name[9:-1]: fields.pop(name) for name in list(fields) if name.startswith("CONSTANT[")}
    static = static_shared_bytes(main["shared_bytes"], entry["arch"])
    return {"function": entry["function"], "arch": entry["arch"], **main, "static_shared_bytes": static,
            "constant_bytes": banks, "other": fields, "is_whole": is_whole}  # fmt: skip

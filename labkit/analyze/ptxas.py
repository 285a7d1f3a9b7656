"""Output of `ptxas -v` (`nvcc -Xptxas -v`): registers, stack, spills, shared memory and barriers of each function.

This is the only tool that tells spills from stack: a stack frame without spill stores is an array or a call, not a
shortage of registers. Which fields are printed, and in which order, varies with the version; zeros are left out.
"""

from __future__ import annotations

import re
from typing import Any

from labkit.analyze.cuobjdump import by_name
from labkit.analyze.kinds import UnreadableInput, clean_text

_TOOL = r"(?:ptxas(?:-\w+)?|nvlink)(?:\.exe)?\s*:?\s*"
_ENTRY = re.compile(r"Compiling entry function\s+'(?P<name>.+?)'\s+for\s+'(?P<arch>sm_\w+|compute_\w+)'")
_PROPERTIES = re.compile(
    r"Function properties for\s+'?(?P<name>\S.*?)'?\s*:?\s*(?:\(target:\s*(?P<target>sm_\w+)\)\s*)?$")
_LINKER = re.compile(r"\bnvlink(?:\.exe)?\s*:?\s*info\b", re.IGNORECASE)
_WARNED_STACK = re.compile(r"Local memory used for function\s+'(.+?)', size of stack frame: (\d{1,15}) bytes")
_WARNED_SPILLS = re.compile(
    r"Registers are spilled to local memory in function\s+'(.+?)', "
    r"(\d{1,15}) bytes spill stores, (\d{1,15}) bytes spill loads")
_USED = re.compile(r"\bUsed\s+(\d{1,6})\s+registers\b", re.IGNORECASE)
_STACK = re.compile(r"(\d{1,15})\s+(?:bytes\s+)?stack\b(?!\s+size)")
_STORES = re.compile(r"(\d{1,15})\s+bytes\s+spill stores")
_LOADS = re.compile(r"(\d{1,15})\s+bytes\s+spill loads")
_CUMULATIVE = re.compile(r"(\d{1,15})\s+bytes\s+cumulative stack size")
_SHARED = re.compile(r"(\d{1,15})(?:\s*\+\s*(\d{1,15}))?\s+bytes\s+smem")
_LOCAL = re.compile(r"(\d{1,15})(?:\s*\+\s*\d{1,15})?\s+bytes\s+lmem")
_CONSTANT = re.compile(r"(\d{1,15})\s+bytes\s+cmem\[(\d{1,4})\]")
_BARRIERS = re.compile(r"\bused\s+(\d{1,6})\s+barriers?\b|\b(\d{1,6})\s+barriers?\b")
_ERROR = re.compile(rf"{_TOOL}(?:fatal|error)\s*:\s*(.+)$", re.IGNORECASE)
_EMPTY = {"arch": None, "is_entry": False, "registers": None, "stack_bytes": None, "spill_store_bytes": None,
          "spill_load_bytes": None, "shared_bytes": None, "barriers": None, "cumulative_stack_bytes": None,
          "local_bytes": None}  # fmt: skip


def parse_verbose(text: str) -> dict[str, Any]:
    """Resources of each function, by name as printed.

    Args:
        text: the log of one or more compilations; other lines between are ignored.

    Returns: `functions`: name -> `arch`, `is_entry` (a kernel, not a called function), `registers` (per thread),
    `stack_bytes`, `spill_store_bytes`, `spill_load_bytes` (per thread, by count of instructions in the code, not of
    executions), `shared_bytes` (static), `barriers`, `cumulative_stack_bytes`, `local_bytes`, `constant_bytes` by
    bank. None: not printed (shared memory is 0 where the line of registers leaves it out). Where the log holds nvlink's
    report of the same function too, `linked` has what it takes after linking. A function compiled for several
    architectures has one entry for each, named `name@arch`. `architectures`, `spills_known` (True when every
    function shows its spills), `complete` (every kernel has its registers), `errors`.

    Raises: UnreadableInput when the text is not of this tool.
    """
    entries, linked, errors = [], [], []
    warned: list[dict[str, Any]] = []
    kernel: dict[str, Any] | None = None  # registers belong to the kernel being compiled
    current: dict[str, Any] | None = None  # stack and spills to the function named last
    for line in text.replace("\r\n", "\n").replace("\r", "\n").split("\n"):
        if found := _ENTRY.search(line):
            kernel = current = _new(found["name"], found["arch"], is_entry=True)
            entries.append(kernel)
        elif (found := _PROPERTIES.search(line)) and _LINKER.search(line):
            kernel, current = None, _new(found["name"], found["target"], is_entry=False)
            linked.append(current)
        elif found:
            current = _named(entries, kernel, clean_text(found["name"]))
        elif found := _ERROR.search(line):
            errors.append(clean_text(found[1].strip())[:300])
        elif _warning(line, warned):
            continue  # it names its function, which need not be the one named last
        elif found := _USED.search(line):
            if (target := kernel or current) is not None:
                _add_used(target, line, int(found[1]))
                _add_frame(target, line)
        elif current is not None:
            _add_frame(current, line)
    if not entries:
        entries = [_new("", None, is_entry=False) | frame for frame in warned]
    entries = _with_linked(entries, linked)
    if not entries and not errors:
        raise UnreadableInput("no compiled function found, expected the output of: ptxas -v")
    kernels = [entry for entry in entries if entry["is_entry"]] or entries
    return {
        "functions": by_name(entries),
        "architectures": list(dict.fromkeys(entry["arch"] for entry in entries if entry["arch"])),
        "spills_known": bool(entries) and all(entry["spill_store_bytes"] is not None for entry in entries),
        "complete": bool(entries) and all(entry["registers"] is not None for entry in kernels),
        "errors": errors,
    }


def _new(name: str, arch: str | None, *, is_entry: bool) -> dict[str, Any]:
    return {"function": clean_text(name), **_EMPTY, "constant_bytes": {}, "arch": arch, "is_entry": is_entry}


def _named(entries: list[dict[str, Any]], kernel: dict[str, Any] | None, name: str) -> dict[str, Any]:
    """The kernel being compiled, if it is meant; else a function that it calls."""
    if kernel is not None and kernel["function"] == name:
        return kernel
    entries.append(_new(name, kernel["arch"] if kernel else None, is_entry=False))
    return entries[-1]


def _warning(line: str, warned: list[dict[str, Any]]) -> bool:
    """Whether the line is a warning about a function's local memory; what it says is added to `warned`."""
    if found := _WARNED_STACK.search(line):
        warned.append({"function": clean_text(found[1]), "stack_bytes": int(found[2])})
    elif found := _WARNED_SPILLS.search(line):
        name, spills = clean_text(found[1]), {"spill_store_bytes": int(found[2]), "spill_load_bytes": int(found[3])}
        if not warned or warned[-1]["function"] != name or "spill_store_bytes" in warned[-1]:
            warned.append({"function": name})
        warned[-1].update(spills)
    return found is not None


def _with_linked(entries: list[dict[str, Any]], linked: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What the linker says of a function stands beside what the compiler said; alone where the compiler said nothing.

    Linked code may take more registers than the kernel did by itself: those of the functions that it calls.
    """
    known = {(entry["function"], entry["arch"]): entry for entry in entries}
    alone = []
    for one in linked:
        entry = known.get((one["function"], one["arch"]))
        if entry is None:
            alone.append(one)
        else:
            names = ("registers", "stack_bytes", "shared_bytes", "local_bytes", "barriers", "constant_bytes")
            entry["linked"] = {name: one[name] for name in names}
    return entries + alone


def _add_frame(entry: dict[str, Any], line: str) -> None:
    for key, pattern in (("stack_bytes", _STACK), ("spill_store_bytes", _STORES), ("spill_load_bytes", _LOADS)):
        found = pattern.search(line)
        if found and entry[key] is None:
            entry[key] = int(found[1])


def _add_used(entry: dict[str, Any], line: str, registers: int) -> None:
    shared, local, total = _SHARED.search(line), _LOCAL.search(line), _CUMULATIVE.search(line)
    barriers = _BARRIERS.search(line)
    entry["registers"] = registers
    # Before compute capability 2.0 the second number was for the arguments.
    entry["shared_bytes"] = int(shared[1]) + int(shared[2] or 0) if shared else 0
    entry["local_bytes"] = int(local[1]) if local else None
    entry["cumulative_stack_bytes"] = int(total[1]) if total else None
    entry["barriers"] = int(barriers[1] or barriers[2]) if barriers else None
    entry["constant_bytes"] = {bank: int(size) for size, bank in _CONSTANT.findall(line)}

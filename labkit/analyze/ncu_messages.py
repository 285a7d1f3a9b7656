"""What Nsight Compute says beside its table: why nothing was measured. Its exit code 0 is no proof of anything.

In: the tool's lines (`==PROF==`, `==WARNING==`, `==ERROR==` and what a shell says). Out: one plain object.
"""

from __future__ import annotations

import re
from typing import Any

BANNER = re.compile(r"\s*==([A-Z]+)==\s?(.*)")
NO_PERMISSION = "no permission to read hardware counters (ERR_NVGPUCTRPERM)"
NO_KERNELS = "no kernels were profiled"
NOT_IN_TEXT = "kernels were profiled, but no table is in this text"
ADMIN_CHANGE = (
    "an administrator must load the driver with NVreg_RestrictProfilingToAdminUsers=0 (a file in /etc/modprobe.d with "
    "'options nvidia NVreg_RestrictProfilingToAdminUsers=0', then a reboot), or give the program CAP_SYS_ADMIN "
    "(a container: --cap-add=SYS_ADMIN)"
)
"""What lets an ordinary user read the counters."""
# The first that fits wins: the cause before its consequences.
_CAUSES: tuple[tuple[str, str], ...] = (
    (r"ERR_NVGPUCTRPERM|permission to access NVIDIA GPU Performance Counters", NO_PERMISSION),
    (r"Failed to find metric\s*(.*)", "unknown metric"),
    (r"stub libcuda|failed to connect to the CUDA driver|Cuda driver is not compatible|LibraryNotLoaded"
     r"|driver version .*(?:insufficient|not supported)|not compatible with Nsight Compute",
     "the driver does not fit this Nsight Compute"),
    (r"driver resource was unavailable|another (?:process|tool|instance) .*(?:profil|collect)"
     r"|concurrently collecting profiling data", "the counters are in use by another tool"),
    (r"(?:not supported on|Unsupported) (?:this |the )?(?:GPU|device|platform)|Profiling is not supported",
     "this GPU is not supported"),
    (r"No metrics to collect found", "no metrics to collect"),
    (r"(?:ncu|nsight.compute)\S*: (?:command not found|not found|No such file)|cannot start \S*ncu",
     "ncu is not installed"),
    (r"unrecogni[sz]ed option|the argument .* for option .* is invalid|Invalid (?:option|argument)",
     "ncu did not accept its arguments"),
    (r"Failed to profile|An error occurred while trying to profile", "profiling failed"),
    (r"The application returned an error code \((-?\d+)\)", "the profiled program failed"),
    (r"No kernels were profiled", NO_KERNELS),
)
_AVAILABLE = re.compile(r"\s*\d{1,6}\.\s+(\S.*?)\s*")
_PROFILING = re.compile(r"Profiling \"(.*)\" - (\d{1,9})(?: \(.*?\))?:.*?- (\d{1,6}) pass(?:es)?")
_REPORT = re.compile(r"\s*==PROF== Report: (\S.*\S)\s*")
LONGEST = 300


def read_messages(lines: list[str]) -> dict[str, Any]:
    """Sort the lines that are not the table.

    Returns: `error` (short cause, None if there is none), `error_detail` (the line that told), `unknown_metrics`,
        `available` (kernel names listed when the filter matched none), `passes` ({kernel id: replays}), `messages`
        (warnings and errors, at most 20), `is_ncu` (whether any line looks like this tool's), `report` (the file that
        the counters were written to, if a line names it).
    """
    told = [match for line in lines if (match := BANNER.fullmatch(line))]
    result: dict[str, Any] = {
        "error": None, "error_detail": None, "unknown_metrics": unknown_metrics(lines), "available": available(lines),
        "passes": {match[2]: int(match[3]) for line in lines if (match := _PROFILING.search(line))},
        "messages": [m[0].strip()[:LONGEST] for m in told if m[1] in ("ERROR", "WARNING")][:20],
        "is_ncu": bool(told),
        "report": next((match[1] for line in lines if (match := _REPORT.fullmatch(line))), None),
    }
    for pattern, cause in _CAUSES:
        found = next((line for line in lines if re.search(pattern, line, re.IGNORECASE)), None)
        if found is not None:
            names = ", ".join(result["unknown_metrics"])
            result["error"] = f"{cause}: {names}" if cause == "unknown metric" and names else cause
            result["error_detail"] = found.strip()[:LONGEST]
            return result
    first = next((m for m in told if m[1] == "ERROR"), None)
    if first is not None:
        result |= {"error": first[2].strip()[:LONGEST] or "ncu reported an error",
                   "error_detail": first[0].strip()[:LONGEST]}
    return result


def available(lines: list[str]) -> list[str]:
    """Names below `Available Kernels:`, in order."""
    names: list[str] = []
    inside = False
    for line in lines:
        if re.fullmatch(r"\s*(?:==\w+==\s*)?Available Kernels:?\s*", line):
            inside = True
        elif inside:
            match = _AVAILABLE.fullmatch(line)
            if match is None:
                inside = not line.strip()
            elif match[1] not in names:
                names.append(match[1][:LONGEST])
    return names


def unknown_metrics(lines: list[str]) -> list[str]:
    """Metric names that the tool did not know, whether it prints them or a regular expression made of them."""
    names: list[str] = []
    for line in lines:
        if (match := re.search(r"Failed to find metric:?\s*(.*)", line)) is None:
            continue
        for word in re.findall(r"[a-z][a-z0-9_]*?__\w+(?:\\?\.[a-z]\w*)*", match[1]):
            if (name := word.replace("\\", "")) not in names:
                names.append(name)
    return names

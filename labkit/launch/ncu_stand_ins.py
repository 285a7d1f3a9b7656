"""Programs that behave like an Nsight Compute that measured nothing: they print its text and end with exit code 0.

A launcher that trusts the exit code takes every one of them for a success. One of them prints a right table: a launcher
that refuses everything does not pass either.
"""

from __future__ import annotations

import json
from pathlib import Path

from labkit.launch.ncu import profile_worker

TEXTS = {
    "no permission": (
        "==PROF== Connected to process 11\n"
        "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance Counters on "
        "the target device 0.\n==PROF== Disconnected from process 11\n==WARNING== No kernels were profiled.\n"),
    "no kernel matched": (
        "==PROF== Connected to process 12\n==PROF== Disconnected from process 12\n"
        "==WARNING== No kernels were profiled.\nAvailable Kernels:\n1. rmsnorm_report\n"),
    "unknown metric": (
        "==PROF== Connected to process 13\n"
        "==ERROR== Failed to find metric regex:^dram__bytes_red(\\.(sum|avg|min|max))?$\n"
        "==WARNING== No kernels were profiled.\n"),
    "driver mismatch": (
        "==ERROR== Failed to initialize the profiler: LibraryNotLoaded. "
        "Check that a compatible driver library is loaded.\n"
        "==ERROR== The application returned an error code (9).\n"),
    "program failed": (
        "==PROF== Connected to process 14\n==PROF== Disconnected from process 14\n"
        "==ERROR== The application returned an error code (1).\n==WARNING== No kernels were profiled.\n"),
    "right table": (
        "==PROF== Connected to process 15\n"
        '"ID","Process ID","Kernel Name","Block Size","Grid Size","dram__bytes_read.sum"\n"","","","","","byte"\n'
        '"0","15","rmsnorm_report","(128, 1, 1)","(8192, 1, 1)","134,234,112"\n'),
}  # fmt: skip
"""Name -> what it prints. All but the last measured nothing."""
RIGHT = "right table"


def write_stand_in(folder: Path, name: str) -> Path:
    """An executable file that ignores its arguments, prints the text of that name and exits 0.

    Args:
        folder: existing folder.
        name: key of TEXTS.
    """
    path = folder / f"{name.replace(' ', '_')}.sh"
    path.write_text(f"#!/bin/sh\ncat <<'END_OF_TEXT'\n{TEXTS[name]}END_OF_TEXT\nexit 0\n", encoding="utf-8")
    path.chmod(0o755)
    return path


def run_stand_ins(folder: Path, *, worker: str, timeout_s: float = 60) -> dict[str, str]:
    """Launch each stand-in in place of ncu, each in a folder of its own; name -> what the launcher got as its text.

    Args:
        folder: existing folder.
        worker: any worker: the stand-ins do not start it.
        timeout_s: deadline of each, seconds.
    """
    texts = {}
    for name in TEXTS:
        place = folder / name.replace(" ", "_")
        place.mkdir()
        (place / "params.json").write_text(json.dumps({}), encoding="utf-8")
        stand_in = str(write_stand_in(place, name))
        texts[name] = profile_worker(worker, run_dir=place, metrics=["dram__bytes_read.sum"], timeout_s=timeout_s,
                                     ncu=stand_in).text
    return texts

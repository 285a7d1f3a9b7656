"""Counters that any Linux machine has: page faults from the kernel, and the processor's own where they may be read.

    python -m labkit.workers.host_counters --run-dir D          # reads D/params.json, writes D/rank0.jsonl

A fresh mapping of each size in `touch_mib` is written twice. The first time each page faults once, the second time none
does: a count with a closed form, read in two ways (getrusage and perf_event_open). The processor's counters (cycles,
instructions, cache misses) are read around the same writes; a machine that refuses them gives its reason.
Lines written, by "kind": touch, counter, done.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import errno
import json
import mmap
import os
import platform
import resource
import struct
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

PERF_EVENT_OPEN = {"x86_64": 298, "aarch64": 241, "riscv64": 241}
"""Number of the system call by machine."""
HARDWARE, SOFTWARE = 0, 1
EVENTS = {
    "page_faults": (SOFTWARE, 5), "cycles": (HARDWARE, 0), "instructions": (HARDWARE, 1),
    "cache_references": (HARDWARE, 2), "cache_misses": (HARDWARE, 3),
}  # fmt: skip
"""Name -> type and number (5: minor faults), from linux/perf_event.h."""
EXCLUDE_KERNEL_AND_HYPERVISOR = 1 << 5 | 1 << 6
REASONS = {
    errno.EACCES: "not permitted: an administrator must lower kernel.perf_event_paranoid to 2",
    errno.EPERM: "not permitted: an administrator must allow perf_event_open (a container: its seccomp profile)",
    errno.ENOENT: "this machine has no such counter (a virtual machine often has none)",
    errno.EOPNOTSUPP: "this machine has no such counter (a virtual machine often has none)",
    errno.ENOSYS: "this kernel has no perf_event_open",
}


class Counter:
    """One counter of this process, open while the object lives."""

    def __init__(self, name: str) -> None:
        kind, number = EVENTS[name]
        # struct perf_event_attr, first version (64 bytes): type, size, config, period, sample_type, read_format, flags.
        attributes = struct.pack("=IIQQQQQIIQ", kind, 64, number, 0, 0, 0, EXCLUDE_KERNEL_AND_HYPERVISOR, 0, 0, 0)
        call = PERF_EVENT_OPEN.get(platform.machine())
        if sys.platform != "linux" or call is None:
            raise OSError(errno.ENOSYS, "no perf_event_open")
        libc = ctypes.CDLL(None, use_errno=True)
        self.fd = libc.syscall(call, ctypes.create_string_buffer(attributes, 64), 0, -1, -1, 0)
        if self.fd < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))

    def read(self) -> int:
        """The count since it was opened."""
        return struct.unpack("=Q", os.read(self.fd, 8))[0]

    def close(self) -> None:
        """Give the counter back."""
        os.close(self.fd)


def open_counters() -> tuple[dict[str, Counter], dict[str, str]]:
    """Those that may be read, and why the others may not."""
    found: dict[str, Counter] = {}
    refused: dict[str, str] = {}
    for name in EVENTS:
        try:
            found[name] = Counter(name)
        except OSError as error:
            refused[name] = REASONS.get(error.errno or 0, f"refused: {error.strerror}")
    return found, refused


def touch(num_bytes: int, counters: dict[str, Counter]) -> dict[str, Any]:
    """Write a fresh private mapping of small pages twice; what each counter rose by, the first and second time."""
    area = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel built without huge pages refuses the advice and needs none
            area.madvise(mmap.MADV_NOHUGEPAGE)
    view = (ctypes.c_char * num_bytes).from_buffer(area)
    readings, walls = [], []
    for value in (None, 1, 2):
        if value is not None:
            began = time.perf_counter()
            ctypes.memset(view, value, num_bytes)
            walls.append(time.perf_counter() - began)
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        readings.append({"getrusage": faults, **{name: counter.read() for name, counter in counters.items()}})
    is_right = view[0] == b"\2" and view[num_bytes - 1] == b"\2"
    del view
    area.close()
    rises = [{name: after[name] - before[name] for name in after} for before, after in pairwise(readings)]
    return {"num_bytes": num_bytes, "page_bytes": mmap.PAGESIZE, "first": rises[0], "second": rises[1],
            "first_s": walls[0], "second_s": walls[1], "is_right": is_right}  # fmt: skip


def main() -> None:
    """Entry point; see the module docstring."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--run-dir", type=Path, required=True)
    run_dir = parser.parse_args().run_dir
    params = json.loads((run_dir / "params.json").read_text(encoding="utf-8"))
    counters, refused = open_counters()
    touch(2**20, counters)  # the first call loads code and fills the interpreter's own pools
    with open(run_dir / "rank0.jsonl", "w", encoding="utf-8") as stream:
        def write(**line: Any) -> None:
            stream.write(json.dumps(line, allow_nan=False) + "\n")

        for name in EVENTS:
            write(kind="counter", name=name, is_available=name in counters, reason=refused.get(name))
        for size in params["touch_mib"]:
            for _ in range(params["rounds"]):
                write(kind="touch", **touch(size * 2**20, counters))
        write(kind="done")
    for counter in counters.values():
        counter.close()


if __name__ == "__main__":
    main()

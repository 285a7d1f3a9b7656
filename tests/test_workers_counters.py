"""The kernels that are counted, run in Triton's interpreter; the host's counters in this process."""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import resource
import subprocess
import sys

import pytest

from labkit.workers import host_counters as host

IN_INTERPRETER = """
import json, sys, torch
from labkit.workers.counted_kernels import Case
generator = torch.Generator(device="cpu").manual_seed(1)
norm = {"rows": 5, "hidden": 700}
seen = {}
for op, sizes in [("copy", norm), ("copy_evict_first", norm), ("copy_again", {**norm, "passes": 3}), ("memcpy", norm),
                  ("fast", norm), ("native", norm),
                  ("report", {**norm, "num_warps": 8}), ("gemm", {"m": 3, "n": 64, "k": 96})]:
    case = Case({"name": op, "op": op, **sizes}, eps=1e-6, generator=generator)
    right = case.judge()["num_bad"]
    good = case.call
    def spoiled():
        out = good()
        out[-1, -1] += 9.0
        return out
    case.call = spoiled
    if op == "native":
        seen[op] = [right, case.judge()["baseline_num_bad"]]
    else:
        seen[op] = [right, case.judge()["num_bad"]]
try:
    Case({"name": "x", "op": "sort", **norm}, eps=1e-6, generator=generator)
except ValueError as error:
    seen["error"] = str(error)
print(json.dumps(seen))
"""


def test_each_kernel_is_right_and_a_spoiled_output_is_noticed():
    pytest.importorskip("torch")
    pytest.importorskip("triton")
    env = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run([sys.executable, "-c", IN_INTERPRETER], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    seen = json.loads(done.stdout.splitlines()[-1])
    assert "op='sort'" in seen.pop("error")
    assert set(seen) == {"copy", "copy_evict_first", "copy_again", "memcpy", "fast", "native", "report", "gemm"}
    assert seen == {op: [0, 1] for op in seen}


def kernel_counts_no_faults():
    """Asked without the worker: one that counts wrongly must not look like a kernel that does not count."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    area = mmap.mmap(-1, 64 * 2**20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for at in range(0, len(area), mmap.PAGESIZE):
        area[at] = 1
    area.close()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt == before


def test_page_faults_of_both_readings():
    counters, refused = host.open_counters()
    host.touch(2**20, counters)
    found = host.touch(8 * 2**20, counters)
    for counter in counters.values():
        counter.close()
    assert found["is_right"] and set(counters) | set(refused) == set(host.EVENTS)
    if kernel_counts_no_faults():
        pytest.skip("this kernel counts no page faults")
    pages = 8 * 2**20 // mmap.PAGESIZE
    assert abs(found["first"]["getrusage"] - pages) <= 8 and found["second"]["getrusage"] <= 8
    if "page_faults" in counters:
        assert abs(found["first"]["page_faults"] - found["first"]["getrusage"]) <= 8


@pytest.mark.parametrize(("number", "word"), [(1, "seccomp"), (13, "perf_event_paranoid"), (2, "no such counter"),
                                              (38, "no perf_event_open"), (24, "refused: ")])  # fmt: skip
def test_a_refused_counter_gives_its_reason(monkeypatch, number, word):
    class Library:
        @staticmethod
        def syscall(*arguments):
            ctypes.set_errno(number)
            return -1

    monkeypatch.setattr(host.ctypes, "CDLL", lambda *a, **k: Library)
    monkeypatch.setattr(host.platform, "machine", lambda: "x86_64")
    counters, refused = host.open_counters()
    assert counters == {} and set(refused) == set(host.EVENTS) and all(word in why for why in refused.values())


def test_a_machine_without_the_call_has_no_counters(monkeypatch):
    monkeypatch.setattr(host.platform, "machine", lambda: "vax")
    counters, refused = host.open_counters()
    assert counters == {} and "perf_event_open" in refused["cycles"]

"""A stand-in for a server with an engine below it: what is left when only the parent, or the whole group, is killed.

    python -m labkit.workers.orphan_drill --run-dir D

Out: `D/rank0.jsonl`, one line: term_ignored (the stub runs on after SIGTERM), child_survived (the engine runs on after
SIGKILL of its parent alone), left_after_group_kill (how many of the two run on after SIGKILL of their group).
Linux only; no vLLM, no GPU.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from labkit.workers.json_lines import JsonLines

WAIT_S = 5.0
TERM_GRACE_S = 0.3
"""How long the stub is given to end by itself; it ignores SIGTERM, so it never does."""
_STUB = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import signal, time; "
                          "signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"],
                         stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
time.sleep(60)
"""


@contextlib.contextmanager
def stub_server() -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A parent in a group of its own and the pid of its child, both deaf to SIGTERM; nothing is left at the end."""
    parent = subprocess.Popen([sys.executable, "-c", _STUB], stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        assert parent.stdout is not None
        yield parent, int(parent.stdout.readline())
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(parent.pid, signal.SIGKILL)
        parent.wait()
        if parent.stdout:
            parent.stdout.close()


def is_running(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def within(condition: Callable[[], bool], *, timeout_s: float = WAIT_S) -> bool:
    """Whether a condition comes true in time."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.01)
    return True


def drill() -> dict[str, bool | int]:
    """Kill one stub by its parent alone and another by its group."""
    with stub_server() as (parent, child):
        parent.kill()
        parent.wait()
        time.sleep(TERM_GRACE_S)  # an engine that noticed would have ended by now
        child_survived = is_running(child)
    with stub_server() as (parent, child):
        os.killpg(parent.pid, signal.SIGTERM)
        time.sleep(TERM_GRACE_S)
        term_ignored = is_running(parent.pid) and is_running(child)
        os.killpg(parent.pid, signal.SIGKILL)
        parent.wait()
        within(lambda: not is_running(child))
        left = sum(is_running(pid) for pid in (parent.pid, child))
    return {"term_ignored": term_ignored, "child_survived": child_survived, "left_after_group_kill": left}


def main() -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--run-dir", type=Path, required=True)
    with open(parser.parse_args().run_dir / "rank0.jsonl", "w", encoding="utf-8") as stream:
        JsonLines(stream).write("drill", **drill())
    return 0


if __name__ == "__main__":
    sys.exit(main())

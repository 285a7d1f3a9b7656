"""The guard: a small process between the launcher and a run, which ends the run whatever happens to the launcher.

    launcher --(pipe)--> guard --> torchrun --> workers

The guard stops the run when the time is up, when it gets SIGTERM, or when the pipe from the launcher closes, which the
kernel does even if the launcher is killed with SIGKILL. It adopts orphans of the run (child subreaper), so that nothing
escapes by forking twice. Stopping is SIGTERM to the program first, because torchrun puts each worker in a session of
its own and must be alive to stop them; whatever is left after the grace period is killed one by one, by process id.
If the guard itself is killed, the kernel sends SIGTERM to the program (PR_SET_PDEATHSIG).

Started by labkit.launch.process as `python -m labkit.launch.guard SPEC` with SPEC a JSON object
{"argv": [...], "timeout_s": s, "grace_s": s, "report_fd": fd, "parent": pid}; the report is one JSON object on that fd.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil

SHM = Path("/dev/shm")
SHM_PREFIXES = ("nccl-", "torch_", "psm_", "sem.mp-", "gloo")
"""Names that NCCL, torch and multiprocessing give their shared-memory files."""
MARK = "LABKIT_RUN_MARK"
"""Variable that tells the processes of one run from those of another."""
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


def _prctl(option: int, value: int) -> None:
    """Linux only; elsewhere the pipe and the process list still do most of the work."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


class _Run:
    """The supervised program, with every process that descends from it."""

    def __init__(self, argv: list[str]) -> None:
        guard = os.getpid()
        prctl = ctypes.CDLL(None).prctl if sys.platform == "linux" else None  # loaded before the fork

        def die_with_guard() -> None:
            if prctl is not None:
                prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
                if os.getppid() != guard:  # the guard died before the line above
                    os._exit(1)

        # The guard is single-threaded, so running Python between fork and exec is safe here.
        self.program = subprocess.Popen(argv, stdin=subprocess.DEVNULL, preexec_fn=die_with_guard)
        self.exitcode: int | None = None

    def reap(self) -> None:
        """Collect every dead child, the adopted ones too, and note the program's exit code."""
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                if pid == self.program.pid:
                    self.exitcode = self.program.returncode = os.waitstatus_to_exitcode(status)

    def alive(self) -> list[psutil.Process]:
        """Descendants of the guard that still run (zombies do not)."""
        self.reap()
        found = []
        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                if process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def wait_gone(self, timeout_s: float, *, only_program: bool = False) -> bool:
        """True once the program (and, unless told otherwise, all its descendants) has ended."""
        end = time.monotonic() + timeout_s
        while True:
            self.reap()
            if self.exitcode is not None and (only_program or not self.alive()):
                return True
            if time.monotonic() >= end:
                return False
            time.sleep(0.02)

    def stop(self, grace_s: float) -> None:
        """SIGTERM to the program, and wait: torchrun passes it on to its workers."""
        if self.exitcode is None:
            # Not Popen.send_signal: it polls first, and would keep the exit code of a program that has just ended to
            # itself. Until `reap` has seen it, the process id cannot belong to another process.
            os.kill(self.program.pid, signal.SIGTERM)
        self.wait_gone(grace_s, only_program=True)

    def sweep(self) -> tuple[list[dict[str, Any]], list[int]]:
        """End what the program left behind. Returns ([{pid, name}] it had to end, pids that even SIGKILL did not)."""
        left = self.alive()
        ended = [{"pid": process.pid, "name": _name(process)} for process in left]
        for process in left:
            if process.pid != self.program.pid:  # the program has had its SIGTERM and its grace period
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.terminate()
        if left and not self.wait_gone(1.0):
            end = time.monotonic() + 10.0
            while (left := self.alive()) and time.monotonic() < end:
                for process in left:
                    with contextlib.suppress(psutil.NoSuchProcess):
                        process.kill()
                self.wait_gone(0.2)
        return ended, [process.pid for process in self.alive()]


def _name(process: psutil.Process) -> str:
    try:
        return process.name()
    except psutil.Error:
        return "?"


def shm_files() -> dict[str, int]:
    """Name -> inode of this user's files in /dev/shm."""
    found = {}
    with contextlib.suppress(OSError):
        for entry in os.scandir(SHM):
            with contextlib.suppress(OSError):
                info = entry.stat(follow_symlinks=False)
                if info.st_uid == os.getuid() and entry.is_file(follow_symlinks=False):
                    found[entry.name] = info.st_ino
    return found


def shm_used_by(processes: list[psutil.Process]) -> set[int]:
    """Inodes of the /dev/shm files that these processes map or hold open.

    Inodes, not names: glibc makes a semaphore under another name and links it, so that the map of the process that
    made it shows a name which is gone.
    """
    inodes = set()
    for process in processes:
        with contextlib.suppress(OSError), open(f"/proc/{process.pid}/maps", errors="replace") as maps:
            parts = [line.split(None, 5) for line in maps]
            inodes |= {int(part[4]) for part in parts if len(part) == 6 and part[5].startswith(f"{SHM}/")}
        with contextlib.suppress(OSError):
            for link in os.scandir(f"/proc/{process.pid}/fd"):
                with contextlib.suppress(OSError):
                    if os.readlink(link.path).startswith(f"{SHM}/"):
                        inodes.add(os.stat(link.path).st_ino)
    return inodes


def remove_shm(before: dict[str, int], ours: set[int]) -> list[str]:
    """Delete the /dev/shm files that the ended run left.

    A file goes only if it is new since the run began, no living process uses it, and it was either seen in use by the
    run (`ours`, inodes) or bears a name that NCCL, torch or multiprocessing makes. Any other may be somebody's data.
    """
    new = {name: inode for name, inode in shm_files().items() if before.get(name) != inode}
    candidates = {name for name, inode in new.items() if inode in ours or name.startswith(SHM_PREFIXES)}
    if candidates:
        used = shm_used_by(list(psutil.process_iter()))
        candidates = {name for name in candidates if new[name] not in used}
    for name in candidates:
        (SHM / name).unlink(missing_ok=True)
    return sorted(candidates)


def end_marked(mark: str, *, grace_s: float, shm_before: dict[str, int]) -> None:
    """What a guard that was itself killed could not do: end every process of its run, and remove its shared memory.

    Args:
        mark: value of MARK in the environment of the run's processes.
        grace_s: seconds to end by themselves (the kernel has sent the program SIGTERM), then they are killed.
        shm_before: `shm_files()` from before the run.
    """
    end, left, ours = time.monotonic() + grace_s, marked(mark), set()
    while left and time.monotonic() < end + 10.0:
        ours |= shm_used_by(left)
        for process in left if time.monotonic() >= end else []:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        time.sleep(0.05)
        left = marked(mark)
    remove_shm(shm_before, ours)


def marked(mark: str) -> list[psutil.Process]:
    """Processes that inherited a mark, zombies not counted."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def supervise(spec: dict[str, Any], *, control_fd: int = 0) -> dict[str, Any]:
    """Run `spec["argv"]` to its end or until it must stop; nothing of it is left when this returns.

    Returns: {"exitcode": int | None, "reason": "exit" | "deadline" | "stopped", "wall_s": seconds,
    "ended": [{pid, name}] left behind by the program, "unkillable": [pid], "shm_removed": [name]},
    or {"error": line} when the program could not be started.
    """
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    shm_before = shm_files()
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_read, False)
    os.set_blocking(wake_write, False)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    stop_asked = False

    def on_signal(signum: int, frame: Any) -> None:
        nonlocal stop_asked
        stop_asked = stop_asked or signum == signal.SIGTERM

    # Handlers, not SIG_IGN: an ignored signal would stay ignored in the program after exec.
    for signum in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(signum, on_signal)

    started = time.monotonic()
    deadline = started + spec["timeout_s"]
    try:
        run = _Run(spec["argv"])
    except OSError as error:
        return {"error": f"cannot start {spec['argv'][0]}: {error.strerror}"}
    reason = "exit"
    while run.exitcode is None:
        timeout = max(0.0, min(deadline - time.monotonic(), 1.0))
        ready, _, _ = select.select([control_fd, wake_read], [], [], timeout)
        if wake_read in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(wake_read, 4096)
        run.reap()
        if run.exitcode is not None:
            break
        # The parent id is looked at as well: a fork of the launcher may hold the pipe open after its death.
        if control_fd in ready or stop_asked or os.getppid() != spec["parent"]:
            reason = "stopped"
            break
        if time.monotonic() >= deadline:
            reason = "deadline"
            break
    ours = shm_used_by(run.alive())
    if run.exitcode is None:
        run.stop(spec["grace_s"])
    ended, unkillable = run.sweep()
    return {"exitcode": run.exitcode, "reason": reason, "wall_s": time.monotonic() - started, "ended": ended,
            "unkillable": unkillable, "shm_removed": remove_shm(shm_before, ours)}


def main(spec: dict[str, Any]) -> None:
    """Supervise and write the report; nobody reads it when the launcher is dead."""
    os.set_inheritable(spec["report_fd"], False)
    report = supervise(spec)
    with contextlib.suppress(OSError):
        os.write(spec["report_fd"], json.dumps(report).encode())


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))

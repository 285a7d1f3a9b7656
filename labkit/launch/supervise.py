"""Run a program in a run directory: output to log.txt, a deadline, and nothing left behind.

Every program runs under a guard process (labkit.launch.guard), so that its processes also end when this one is killed.

    run_program([sys.executable, "-c", "print('hi')"], run_dir=run_dir, timeout_s=60)
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import IO, Any

from labkit.launch.errors import LogTail
from labkit.launch.guard import MARK, end_marked, shm_files
from labkit.paths import ROOT

LOG_NAME = "log.txt"
GRACE_S = 10.0
"""Seconds between SIGTERM and SIGKILL for a program that is told to stop."""
Progress = Callable[[str], None]


class LaunchError(RuntimeError):
    """A launched program that failed, hung or could not start. The message is one line without paths of this run."""

    def __init__(
        self,
        message: str,
        *,
        log_path: Path,
        rank: int | None = None,
        exitcode: int | None = None,
        error: str = "",
        traceback: str = "",
        timed_out: bool = False,
    ) -> None:
        super().__init__(message)
        self.log_path = log_path
        self.rank = rank
        """Global rank that failed first; None when there are no ranks or none is to blame."""
        self.exitcode = exitcode
        """Exit code of that rank, or of the program; minus the signal number for a signal."""
        self.error = error
        """Last line of the failing rank's traceback, or what is known instead."""
        self.traceback = traceback
        self.timed_out = timed_out

    def as_failure(self) -> dict[str, Any]:
        """The failure as a record keeps it: {message, rank, exitcode, error, timed_out, log}, without the traceback."""
        return {"message": str(self), "rank": self.rank, "exitcode": self.exitcode, "error": self.error,
                "timed_out": self.timed_out, "log": self.log_path.name}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a program ended, before anyone judges it."""

    exitcode: int | None
    timed_out: bool
    wall_s: float
    ended: list[str]
    shm_removed: list[str]
    log: Path
    tail: LogTail


def run_program(
    argv: Sequence[str],
    *,
    run_dir: Path,
    timeout_s: float,
    env: Mapping[str, str] | None = None,
    progress: Progress | None = None,
    grace_s: float = GRACE_S,
) -> Ended:
    """Run `argv` to its end; the exit code is returned, not judged.

    Standard output and error go to `run_dir/log.txt` (appended) and, line by line, to `progress` in this thread. The
    program runs in `run_dir`, in a session of its own, with the inherited environment plus `env`. When this returns or
    raises, whatever the reason, no process of the program runs, and its shared-memory files are gone.

    Args:
        argv: program and arguments; the program is looked up on PATH.
        run_dir: existing folder.
        timeout_s: deadline of the whole run, start-up included, seconds, > 0.
        env: added to the inherited environment; PYTHONPATH gets the root of this labkit in front.
        progress: called with each line, without its newline. An exception in it stops the run and comes out of here.
        grace_s: seconds between SIGTERM and SIGKILL.

    Raises: ValueError for a bad argument; LaunchError if the program cannot be started or the log cannot be written.
    """
    running = start_program(argv, run_dir=run_dir, timeout_s=timeout_s, env=env, grace_s=grace_s)
    try:
        running.relay(progress)
    finally:
        # Reached by Ctrl-C and by an exception in `progress` too.
        running.stop()
    return running.finish()


class Running:
    """A program under its guard; made by `start_program`. `stop` must be called, whatever happens."""

    def __init__(self, argv: Sequence[str], *, run_dir: Path, timeout_s: float, env: Mapping[str, str] | None,
                 grace_s: float) -> None:
        self.log, self.tail, self.grace_s = run_dir / LOG_NAME, LogTail(), grace_s
        self._mark, self._shm_before = uuid.uuid4().hex, shm_files()
        self._report_read, report_write = os.pipe()
        spec = {"argv": list(argv), "timeout_s": timeout_s, "grace_s": grace_s, "report_fd": report_write,
                "parent": os.getpid()}
        try:
            # Unbuffered: what is in the log is there when this process is killed, and closing it cannot fail.
            self._log_stream = open(self.log, "ab", buffering=0)  # noqa: SIM115 (closed by `stop`)
        except OSError as error:
            os.close(self._report_read)
            os.close(report_write)
            raise LaunchError(f"cannot write {LOG_NAME}: {error.strerror}", log_path=self.log) from None
        try:
            self._guard = subprocess.Popen(
                [sys.executable, "-m", "labkit.launch.guard", json.dumps(spec)], cwd=run_dir,
                env={**_environment(env), MARK: self._mark},
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, pass_fds=[report_write],
                start_new_session=True)
        except BaseException:
            self._log_stream.close()
            os.close(self._report_read)
            raise
        finally:
            os.close(report_write)
        assert self._guard.stdin is not None and self._guard.stdout is not None
        self._stdin, self._stdout = self._guard.stdin, self._guard.stdout
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._pump = _Pump(self._stdout, self._log_stream, self._lines, stop=self._stdin.close)
        self._report: dict[str, Any] | None = None
        self._pump.start()

    def is_alive(self) -> bool:
        """Whether the program runs; its guard ends right after it."""
        return self._guard.poll() is None

    def relay(self, progress: Progress | None, *, timeout_s: float | None = None) -> bool:
        """Hand over lines of output until it ends, or for `timeout_s`; False when it has ended.

        A guard that is gone ends it too, should a pipe stay open. An exception in `progress` comes out of here.
        """
        end = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            left = 1.0 if end is None else min(1.0, end - time.monotonic())
            if left <= 0:
                return True
            try:
                line = self._lines.get(timeout=left)
            except queue.Empty:
                if self._guard.poll() is not None:
                    return False
                continue
            if line is None:
                return False
            self.tail.add(line)
            if progress is not None:
                progress(line)

    def stop(self) -> None:
        """End the program and everything it started, and wait until they are gone; again: nothing."""
        if self._report is not None:
            return
        with contextlib.suppress(OSError):
            self._stdin.close()  # the guard reads the end of this pipe as the order to stop
        _wait_for_guard(self._guard, self.grace_s)
        if self._guard.returncode != 0:  # killed: it could end nothing
            end_marked(self._mark, grace_s=self.grace_s, shm_before=self._shm_before)
        self._pump.join(timeout=5.0)
        if not self._pump.is_alive():
            self._stdout.close()
        while self._lines.qsize():  # what nobody has asked for yet belongs to the tail
            if (line := self._lines.get()) is not None:
                self.tail.add(line)
        with open(self._report_read, "rb", buffering=0) as stream:
            self._report = _read_report(stream, self.tail)
        self._log_stream.close()

    def finish(self) -> Ended:
        """How it ended; stops it first. Raises LaunchError if it never started or its log could not be written."""
        self.stop()
        report = self._report
        assert report is not None
        if self._pump.error is not None:
            raise LaunchError(f"cannot write {LOG_NAME}: {self._pump.error.strerror}", log_path=self.log)
        if "error" in report:
            raise LaunchError(report["error"], log_path=self.log, error=report["error"])
        return Ended(exitcode=report["exitcode"], timed_out=report["reason"] == "deadline", wall_s=report["wall_s"],
                     ended=[p["name"] for p in report["ended"]], shm_removed=report["shm_removed"], log=self.log,
                     tail=self.tail)


def start_program(
    argv: Sequence[str], *, run_dir: Path, timeout_s: float, env: Mapping[str, str] | None = None,
    grace_s: float = GRACE_S,
) -> Running:
    """Start `argv` as `run_program` does, and come back at once. The caller must call `stop` in the end."""
    run_dir = Path(run_dir).resolve()
    if not run_dir.is_dir():
        raise ValueError(f"run_dir={str(run_dir)!r}: expected an existing folder")
    if not 0 < timeout_s < float("inf"):
        raise ValueError(f"timeout_s={timeout_s!r}: expected a finite number of seconds above 0")
    return Running(argv, run_dir=run_dir, timeout_s=timeout_s, env=env, grace_s=grace_s)


class _Pump(threading.Thread):
    """Copies the program's output into the log, whatever the reader of the lines is doing."""

    def __init__(self, source: IO[bytes], log: FileIO, lines: queue.SimpleQueue[str | None],
                 stop: Callable[[], None]) -> None:
        super().__init__(name="labkit-log", daemon=True)
        self.source, self.log, self.lines, self.stop_run = source, log, lines, stop
        self.error: OSError | None = None

    def run(self) -> None:
        while line := self.source.readline(65536):  # bounded: a program may never end its line
            if self.error is None:
                try:
                    written = 0
                    while written < len(line):  # a nearly full disk takes a part
                        written += self.log.write(line[written:])
                except OSError as error:  # e.g. a full disk: stop the run, but keep the pipe moving
                    self.error = error
                    with contextlib.suppress(OSError):
                        self.stop_run()
            self.lines.put(line.decode("utf-8", "replace").rstrip("\r\n"))
        self.lines.put(None)


def _wait_for_guard(guard: subprocess.Popen[bytes], grace_s: float) -> None:
    """The guard needs at most the grace period and its own sweep; killing it makes the kernel stop the program."""
    try:
        guard.wait(timeout=grace_s + 20.0)
    except subprocess.TimeoutExpired:
        guard.kill()
        guard.wait()


def _read_report(stream: FileIO, tail: LogTail) -> dict[str, Any]:
    """The guard has ended, so its report is in the pipe; not blocking, for a pipe that some fork holds open."""
    os.set_blocking(stream.fileno(), False)
    try:
        return json.loads(stream.read(1 << 20) or b"")
    except ValueError:
        return {"error": f"the guard process ended without a report; last line: {tail.last_line(None) or 'none'}"}


def _environment(env: Mapping[str, str] | None) -> dict[str, str]:
    merged = {**os.environ, **(env or {}), "PYTHONUNBUFFERED": "1"}
    paths = [str(ROOT), *filter(None, [merged.get("PYTHONPATH")])]
    return {**merged, "PYTHONPATH": os.pathsep.join(paths)}

"""Faults by the hundred on the protocol itself, without torch: every accident must be noticed, and nothing else.

    python -m labkit.workers.checkpoint_drill --run-dir DIR        (DIR holds params.json)

Each fault gets a fresh job of random size: one to eight ranks, files of random length, a random hash, three good steps.
Before the fault and after harmless changes every checkpoint must be good. Out: `rank0.jsonl` (kinds: fault, disk, end).
"""

from __future__ import annotations

import argparse
import ctypes
import errno
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from labkit.checkpoints import (
    MANIFEST_NAME,
    CheckpointError,
    available_algorithms,
    begin,
    commit,
    newest_good,
    step_dir,
    verify,
    write_file,
)
from labkit.checkpoints.damage import DAMAGE
from labkit.checkpoints.save import At

GOOD_STEPS = (1, 2, 3)
Child = Callable[[], None]
_CLONE_NEWNS, _CLONE_NEWUSER = 0x00020000, 0x10000000


class DrillJob:
    """A job that saves random bytes; one process plays all of its ranks, one after the other."""

    def __init__(self, root: Path, rng: random.Random) -> None:
        self.root = root
        self.algorithm = rng.choice(available_algorithms())
        self.sizes = [rng.choice([2, 17, 500, 5000, 40_000]) for _ in range(rng.randint(1, 8))]
        self.seed = rng.randrange(2**32)

    def save(self, step: int, *, at: At | None = None, skipping: int | None = None) -> Path:
        """Save one step; raises what the protocol raises."""
        directory = step_dir(self.root, step)
        begin(directory)
        entries = []
        for rank, size in enumerate(self.sizes):
            if rank != skipping:
                data = random.Random(self.seed + 100 * step + rank).randbytes(size)
                pieces = [data[: size // 2], data[size // 2:]]
                entries.append(write_file(directory, f"rank{rank:05d}.bin",
                                          lambda s, p=pieces: [(s.write(x), s.flush()) for x in p], rank=rank,
                                          algorithm=self.algorithm, durable=False, at=at))
        commit(directory, entries, step=step, world_size=len(self.sizes), algorithm=self.algorithm, durable=False,
               at=at)
        return directory

    @property
    def num_points(self) -> int:
        """Steps of the writer in one save: six for each file (two writes), five for the manifest."""
        return 6 * len(self.sizes) + 5


def in_child(work: Child) -> int:
    """Exit code of a forked child that does `work`; minus the signal if it was killed."""
    if (pid := os.fork()) == 0:
        code = 1
        with suppress(BaseException):
            work()
            code = 0
        os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def kill(job: DrillJob, rng: random.Random) -> dict[str, Any]:
    """SIGKILL at a random step of the writer of step 4. After the manifest has its name, step 4 is the newest good."""
    point = rng.randrange(job.num_points)

    def work() -> None:
        calls = iter(range(job.num_points + 1))
        job.save(4, at=lambda what, name: os.kill(os.getpid(), signal.SIGKILL) if next(calls) == point else None)

    code = in_child(work)
    is_committed = point == job.num_points - 1
    return {"point": point, "is_struck": code == -signal.SIGKILL, "wanted_step": 4 if is_committed else 3}


def disk_full(job: DrillJob, rng: random.Random) -> dict[str, Any]:
    """No file may grow beyond a limit that the save of step 4 runs into."""
    limit = rng.randrange(max(1, min(max(job.sizes), 200)))

    def work() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        try:
            job.save(4)
        except OSError as error:
            os._exit(17 if error.errno == errno.EFBIG else 1)

    return {"limit_bytes": limit, "is_struck": in_child(work) == 17, "wanted_step": 3}


def partial(job: DrillJob, rng: random.Random) -> dict[str, Any]:
    """One rank does not write in step 4."""
    skipping = rng.randrange(len(job.sizes))
    try:
        job.save(4, skipping=skipping)
        is_struck = False
    except CheckpointError as error:
        is_struck = f"rank {skipping} of" in str(error)
    return {"rank_of_fault": skipping, "is_struck": is_struck, "wanted_step": 3}


def wrong_world_size(job: DrillJob, rng: random.Random) -> dict[str, Any]:
    """A job of another size asks: all of it is whole, none of it may be loaded."""
    other = rng.choice([n for n in range(1, 10) if n != len(job.sizes)])
    refused = [verify(step_dir(job.root, step), world_size=other).status for step in GOOD_STEPS]
    best, _ = newest_good(job.root, world_size=other)
    return {"is_struck": refused == ["unfit"] * len(GOOD_STEPS) and best is None, "wanted_step": 3}


DURING: dict[str, Callable[[DrillJob, random.Random], dict[str, Any]]] = {
    "kill": kill, "disk_full": disk_full, "partial": partial, "wrong_world_size": wrong_world_size}
"""Faults of a save or a load; those of `labkit.checkpoints.damage` come after a save."""
KINDS = (*DAMAGE, *DURING)


def harmless(job: DrillJob, rng: random.Random) -> int:
    """Changes that are no damage: times, a leftover, a stranger, a copy. Returns how often a good step was doubted."""
    directory = step_dir(job.root, rng.choice(GOOD_STEPS))
    alarms = sum(not verify(step_dir(job.root, step), world_size=len(job.sizes)).is_good for step in GOOD_STEPS)
    os.utime(directory / "rank00000.bin", (rng.random() * 1e9, rng.random() * 1e9))
    (directory / ".rank00000.bin.1.tmp").write_bytes(b"x")
    (directory / f"rank{len(job.sizes) + 1:05d}.bin").write_bytes(b"of a larger job")
    alarms += not verify(directory, world_size=len(job.sizes)).is_good
    with tempfile.TemporaryDirectory() as folder:
        alarms += not verify(Path(shutil.copytree(directory, Path(folder) / "copy"))).is_good
    return alarms


def run_fault(number: int, kind: str, root: Path, seed: int) -> dict[str, Any]:
    """One job, its clean checks, one fault, and what is found afterwards.

    Returns: {"number", "fault", "is_detected", "false_alarms", "is_recovered", ...}.
    """
    rng = random.Random(f"{seed}/{number}")
    job = DrillJob(root, rng)
    for step in GOOD_STEPS:
        job.save(step)
    alarms = harmless(job, rng)
    newest = step_dir(root, GOOD_STEPS[-1])
    if kind in DURING:
        about = DURING[kind](job, rng)
        left = step_dir(root, 4)
        is_detected = about["is_struck"] and (
            kind == "wrong_world_size" or verify(left).is_good == (about["wanted_step"] == 4))
    else:
        touched = DAMAGE[kind](newest, step_dir(root, GOOD_STEPS[-2]), rng)
        report = verify(newest)
        named = {problem.path for problem in report.problems}
        is_detected = not report.is_good and (MANIFEST_NAME in touched or set(touched) == named)
        about = {"touched": touched, "problems": [p.message for p in report.problems], "wanted_step": GOOD_STEPS[-2]}
    best, _ = newest_good(root, world_size=len(job.sizes))
    return {"number": number, "fault": kind, "world_size": len(job.sizes), "hash": job.algorithm,
            "is_detected": bool(is_detected), "false_alarms": alarms,
            "is_recovered": best is not None and best.step == about["wanted_step"], **about}


def full_tmpfs(folder: Path) -> str:
    """A save onto a file system that is really full, where a user may mount one: ENOSPC, or why it was not tried."""
    def work() -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        uid, gid = os.getuid(), os.getgid()
        if libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNS):
            os._exit(20)
        with suppress(OSError):
            for name, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
                Path(f"/proc/self/{name}").write_text(text)
        if libc.mount(b"none", os.fsencode(folder), b"tmpfs", 0, b"size=64k"):
            os._exit(20)
        job = DrillJob(folder, random.Random(0))
        job.sizes = [20_000, 20_000, 60_000]
        try:
            job.save(1)
        except OSError as error:
            clean = newest_good(folder)[0] is None and not list(folder.rglob("*.tmp"))
            os._exit(21 if error.errno == errno.ENOSPC and clean else 22)
        os._exit(23)

    code = in_child(work)
    return {20: "not allowed here", 21: "refused, nothing committed"}.get(code, f"unexpected: {code}")


def children() -> set[int]:
    """Process ids of this process's children, ended ones that nobody has waited for included."""
    return {process.pid for process in psutil.Process().children()}


def main() -> None:
    """Every kind in turn until the number of faults is reached."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--run-dir", type=Path, required=True)
    run_dir = parser.parse_args().run_dir
    params = json.loads((run_dir / "params.json").read_text(encoding="utf-8"))
    before = children()  # somebody else's: whoever calls this may have started programs of his own
    with open(run_dir / "rank0.jsonl", "w", encoding="utf-8") as stream, tempfile.TemporaryDirectory(
            prefix="drill-", dir=run_dir) as folder:
        for number in range(params["num_faults"]):
            root = Path(folder) / f"job_{number}"
            found = run_fault(number, KINDS[number % len(KINDS)], root, params["seed"])
            stream.write(json.dumps({**found, "kind": "fault", "rank": 0}) + "\n")
            shutil.rmtree(root)
        mount = Path(folder) / "full"
        mount.mkdir()
        stream.write(json.dumps({"kind": "disk", "rank": 0, "tmpfs": full_tmpfs(mount)}) + "\n")
        if left := children() - before:
            print(f"{len(left)} forked children are left", file=sys.stderr)
            sys.exit(1)
    print(f"progress: {params['num_faults']} faults on the protocol", flush=True)


if __name__ == "__main__":
    main()

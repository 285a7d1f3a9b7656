"""Real gloo ranks that are killed while they save: is the newest good step the same on every rank afterwards?

    python -m labkit.workers.checkpoint_kills --run-dir DIR        (DIR holds params.json)

One process imports torch once and forks the ranks of each try, so a try takes a fraction of a second. In each try the
ranks load the newest good checkpoint, agree on its step, train one step, and save it. One rank is stopped at one step
of its writer by SIGKILL, or meets a full disk, or goes missing from the collectives. The next try starts from what is
left.

Out: `rank0.jsonl` (kinds: points, try). Nothing that was forked here runs when this ends.
"""

from __future__ import annotations

import ctypes
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist
from torch.distributed import FileStore  # pyright: ignore[reportPrivateImportUsage]

from labkit.checkpoints import CheckpointError, newest_good
from labkit.workers.checkpoint_io import load, save
from labkit.workers.checkpoint_state import digest, main_state, make_job, rank_state, restore, train_step
from labkit.workers.checkpoint_talk import Talk
from labkit.workers.session import Session, read_params

MODEL = {"hidden": 8, "inner": 16, "dropout": 0.1, "batch": 4, "learning_rate": 1e-3, "seed": 0}
DEADLINE_S = 60.0
_PR_SET_PDEATHSIG = 1


def rank_main(rank: int, params: dict[str, Any], root: Path, scratch: Path, fault: dict[str, Any]) -> None:
    """One rank of one try; ends the process. Its exit code: 0 saved, 3 the save was refused, 4 a peer went away."""
    torch.set_num_threads(1)
    world_size = params["world_size"]
    store = FileStore(str(scratch / "store"), world_size)
    timeout = timedelta(seconds=params["straggler_timeout_s"] if fault["kind"] == "straggler" else DEADLINE_S / 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size, timeout=timeout)
    code = 0
    with open(scratch / f"rank{rank}.jsonl", "w", encoding="utf-8") as stream:
        session = Session(rank=rank, world_size=world_size, device=torch.device("cpu"), run_dir=scratch, stream=stream)
        job = make_job(session, MODEL, is_fused=False)
        with suppress(CheckpointError):  # the very first try has nothing to load
            main, own, _ = load(session, root)
            restore(job, main, own)
        session.write("loaded", step=job.step, model_sha=digest(job.model.state_dict()))
        try:
            train_step(job)
            save(Talk(session), root, step=job.step, main=main_state(job), own=rank_state(job), algorithm="sha256",
                 durable=False, at=stopper(fault, rank, session))
        except CheckpointError as error:
            session.write("refused", error=str(error))
            code = 3
        except RuntimeError as error:  # gloo: a connection closed, or nobody came in time
            session.write("peer", error=str(error).splitlines()[0][:200], time_s=time.monotonic())
            code = 4
    os._exit(code)  # no farewell collective: a peer may be dead


def stopper(fault: dict[str, Any], rank: int, session: Session) -> Callable[[str, str], None]:
    """What happens at the steps of this rank's writer; every step is reported."""
    calls = iter(range(sys.maxsize))
    is_struck = rank == fault.get("rank")
    if is_struck and fault["kind"] == "disk_full":
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (fault["limit_bytes"], fault["limit_bytes"]))

    def at(what: str, name: str) -> None:
        number = next(calls)
        if fault["kind"] == "count":
            session.write("point", number=number, what=what, name=name)
        if not is_struck or number != fault.get("point", 0):
            return
        if fault["kind"] == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if fault["kind"] == "straggler":
            time.sleep(fault["sleep_s"])

    return at


def fork_ranks(params: dict[str, Any], root: Path, scratch: Path, fault: dict[str, Any]) -> list[int | None]:
    """Run all ranks of one try; their exit codes, minus the signal if one was killed, None if it had to be ended."""
    prctl, parent = ctypes.CDLL(None).prctl if sys.platform == "linux" else None, os.getpid()
    pids = []
    for rank in range(params["world_size"]):
        if (pid := os.fork()) == 0:
            try:
                if prctl is not None:
                    prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
                if os.getppid() == parent:
                    rank_main(rank, params, root, scratch, fault)
            except BaseException as error:
                print(f"rank {rank}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
            finally:
                os._exit(9)
        pids.append(pid)
    codes: dict[int, int | None] = {}
    end = time.monotonic() + DEADLINE_S
    while len(codes) < len(pids):
        for pid in pids:
            if pid in codes:
                continue
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                codes[pid] = os.waitstatus_to_exitcode(status)
            elif time.monotonic() > end:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                codes[pid] = None
        time.sleep(0.002)
    return [codes[pid] for pid in pids]


def run_try(params: dict[str, Any], root: Path, fault: dict[str, Any]) -> dict[str, Any]:
    """One try, and what is on the disk afterwards.

    Returns: fault, "exitcodes", "loaded_steps" and "loaded_models" (by rank, what was loaded at its start),
        "messages" (of survivors), "newest_good_step" after it, "rejected" (lines), "files_left" (in the newest
        directory), "points" ([what, file] of each step of each rank's writer) when counted.
    """
    with tempfile.TemporaryDirectory(prefix="ranks-", dir=root.parent) as folder:
        scratch = Path(folder)
        started = time.monotonic()
        codes = fork_ranks(params, root, scratch, fault)
        wall_s = time.monotonic() - started
        rows = [row for rank in range(params["world_size"]) for row in _read(scratch / f"rank{rank}.jsonl")]
    best, rejected = newest_good(root, world_size=params["world_size"])
    loaded = [row for row in rows if row["kind"] == "loaded"]
    newest = max((path for path in root.iterdir()), default=root)
    return {
        **fault, "fault": fault["kind"], "exitcodes": codes, "wall_s": wall_s,
        "loaded_steps": [row["step"] for row in loaded], "loaded_models": [row["model_sha"] for row in loaded],
        "messages": {row["rank"]: row["error"] for row in rows if row["kind"] in ("refused", "peer")},
        "newest_good_step": best.step if best else None, "rejected": [report.line() for report in rejected],
        "files_left": {"directory": newest.name, "names": sorted(path.name for path in newest.iterdir())},
        "points": [[[row["what"], row["name"]] for row in rows if row["kind"] == "point" and row["rank"] == rank]
                   for rank in range(params["world_size"])],
    }


def _read(path: Path) -> Iterator[dict[str, Any]]:
    """Rows of a rank's file; a killed rank may have left half a line."""
    if path.exists():
        for line in path.read_text(encoding="utf-8").splitlines():
            with suppress(ValueError):
                yield json.loads(line)


def plan(params: dict[str, Any], counted: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The faults of a run: kills at every point of every rank, or a sample of them, then disks and a straggler."""
    kills = [{"kind": "kill", "rank": rank, "point": point}
             for rank, points in enumerate(counted["points"]) for point in range(len(points))]
    if 0 <= params["num_kills"] < len(kills):
        # The commit point is always tried, just before and just after it.
        last = len(counted["points"][0]) - 1
        always = [{"kind": "kill", "rank": 0, "point": point} for point in (last - 1, last)]
        rest = [kill for kill in kills if kill not in always]
        kills = always[: params["num_kills"]] + random.Random(params["seed"]).sample(
            rest, max(0, params["num_kills"] - len(always)))
    yield from kills
    for rank in params["full_disk_ranks"]:
        yield {"kind": "disk_full", "rank": rank, "limit_bytes": 512}
    if params["straggler_timeout_s"] > 0:
        yield {"kind": "straggler", "rank": params["world_size"] - 1, "point": 0,
               "sleep_s": params["straggler_timeout_s"] * 2}
    yield {"kind": "none"}


def main() -> None:
    """Count the points, then try every fault of the plan in turn, each from what the one before has left."""
    run_dir, params = read_params()
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))])  # imports what every rank would import again, for seconds
    folder = Path(tempfile.mkdtemp(prefix="checkpoints-", dir=run_dir))
    try:
        with open(run_dir / "rank0.jsonl", "w", encoding="utf-8") as stream:
            def write(kind: str, row: dict[str, Any]) -> None:
                stream.write(json.dumps({"rank_of_fault": row.get("rank"), **row, "kind": kind, "rank": 0}) + "\n")
                stream.flush()

            root = folder / "job"
            root.mkdir()
            counted = run_try(params, root, {"kind": "count"})
            write("points", counted)
            if any(counted["exitcodes"]):
                raise RuntimeError(f"ranks that nothing happened to ended with {counted['exitcodes']}")
            for number, fault in enumerate(plan(params, counted)):
                found = run_try(params, root, fault)
                write("try", {"number": number, **found})
                for old in sorted(root.iterdir())[:-3]:  # keep the newest three
                    shutil.rmtree(old)
            print(f"progress: {number + 1} faults on {params['world_size']} gloo ranks", flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()

"""Cells of a collective sweep, one after the other: each cell is a fresh set of processes with its own deadline.

    python -m labkit.workers.collective_cells --run-dir DIR        (DIR holds params.json)

A cell has settings of its own in the environment (NCCL_ALGO, NCCL_PROTO, channels), which the library reads once, when
it starts. So this process imports torch, touches no device, and forks the ranks of each cell: they start in a moment
and share nothing. A cell that the library refuses, or that hangs, ends alone and is recorded.

In: params.json with `device` and `cells`; each cell has name, kind (`times`, `log` or `pairs`), devices, env, forced,
sizes ({collective: [bytes]}), num_warmup, num_samples, timing, timeout_s, and for pairs: pairs.
Out: `cells.jsonl`, a line a cell (name, status, reason, wall_s), and `cells/<name>/rank<k>.jsonl`, `nccl_rank<k>.log`.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.context import ForkContext, ForkProcess
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist
from torch.distributed import FileStore  # pyright: ignore[reportPrivateImportUsage]
from torch.distributed.elastic.multiprocessing.errors import record

from labkit.workers.collective_calls import prepare
from labkit.workers.collective_timing import synchronize, time_call
from labkit.workers.session import PROGRESS, read_params

Write = Callable[..., None]
REFUSALS = ("NCCL", "ncclInvalidUsage", "not support", "not implemented", "gloo", "Gloo")
"""Words of an error that the library raised, not this code."""


def run_cell(context: ForkContext, run_dir: Path, cell: dict[str, Any], *, device: str) -> dict[str, Any]:
    """Fork the ranks of one cell, wait for them or for the deadline, and say how it ended.

    Returns: {"name", "status": measured, refused, timed_out or failed, "reason", "wall_s"}.
    """
    folder = run_dir / "cells" / cell["name"]
    folder.mkdir(parents=True)
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="labkit-cell-") as scratch:
        barrier = context.Barrier(len(cell["devices"]))
        ranks = [context.Process(target=_rank_main, args=(cell, rank, folder, barrier, Path(scratch) / "store", device))
                 for rank in range(len(cell["devices"]))]
        for process in ranks:
            process.start()
        timed_out = _wait(ranks, deadline=start + cell["timeout_s"])
    errors = [path.read_text(encoding="utf-8") for path in sorted(folder.glob("rank*.error"))]
    codes = [process.exitcode for process in ranks]
    status, reason = "measured", None
    if timed_out:
        status, reason = "timed_out", f"no end after {cell['timeout_s']:g} s"
    elif any(codes):
        reason = _cause(errors) or f"exit codes {codes}"
        refused = any(word in reason for word in REFUSALS)
        status = "refused" if refused else "failed"
        reason = _warning(folder) or reason if refused else reason
    return {"name": cell["name"], "status": status, "reason": reason, "wall_s": round(time.monotonic() - start, 3)}


def _wait(ranks: list[ForkProcess], *, deadline: float) -> bool:
    """Wait for all ranks; when one fails, the others get a moment and are ended. True if the deadline passed."""
    timed_out = False
    while any(process.is_alive() for process in ranks):
        left = deadline - time.monotonic()
        if left <= 0:
            timed_out = True
            break
        if any(process.exitcode for process in ranks):  # not None, not 0
            for process in ranks:
                process.join(timeout=1.0)
            break
        next(process for process in ranks if process.is_alive()).join(timeout=min(left, 0.05))
    for process in ranks:
        if process.is_alive():
            process.kill()
        process.join()
    return timed_out


def _cause(errors: list[str]) -> str | None:
    """The error to tell: one that is no complaint about a peer or a broken barrier, if there is one."""
    own = [error for error in errors if "BrokenBarrier" not in error and "Connection" not in error]
    return (own or errors or [None])[0]


def _warning(folder: Path) -> str | None:
    """NCCL's own words for a refusal."""
    for path in sorted(folder.glob("nccl_rank*.log")):
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            if "NCCL WARN" in line:
                return line.split("NCCL WARN", 1)[1].strip()[:300]
    return None


def _rank_main(cell: dict[str, Any], rank: int, folder: Path, barrier: Any, store: Path, device: str) -> None:
    """One rank of one cell, in its own process."""
    log = os.open(folder / f"rank{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ.update(cell["env"], NCCL_DEBUG_FILE=str(folder / f"nccl_rank{rank}.log"))
    try:
        _join_and_run(cell, rank, folder, barrier, store, device)
    except BaseException as error:
        text = " ".join(str(error).split())
        (folder / f"rank{rank}.error").write_text(f"{type(error).__name__}: {text[:500]}", encoding="utf-8")
        barrier.abort()
        sys.stdout.flush()
        os._exit(1)  # a library that failed may hang when it is taken down


def _join_and_run(cell: dict[str, Any], rank: int, folder: Path, barrier: Any, store: Path, device: str) -> None:
    num_ranks = len(cell["devices"])
    place = torch.device("cuda", cell["devices"][rank]) if device == "cuda" else torch.device("cpu")
    if device == "cuda":
        torch.cuda.set_device(place)
    else:
        torch.set_num_threads(1)
    dist.init_process_group(
        "nccl" if device == "cuda" else "gloo", store=FileStore(str(store), num_ranks), rank=rank,
        world_size=num_ranks, timeout=timedelta(seconds=cell["timeout_s"]),
        device_id=place if device == "cuda" else None)
    with open(folder / f"rank{rank}.jsonl", "w", encoding="utf-8") as stream:
        def write(kind: str, **values: Any) -> None:
            stream.write(json.dumps({"kind": kind, "rank": rank, **values}, allow_nan=False) + "\n")

        def wait() -> None:
            synchronize(place)
            barrier.wait(timeout=cell["timeout_s"])

        write("setup", num_ranks=num_ranks, backend=dist.get_backend(), torch=torch.__version__,
              nccl=_nccl_version() if device == "cuda" else None)
        {"times": _times, "log": _times, "pairs": _pairs}[cell["kind"]](cell, rank, place, wait, write)
        write("end")
    synchronize(place)
    dist.destroy_process_group()


def _nccl_version() -> str:
    from torch.cuda import nccl

    version = nccl.version()
    return ".".join(map(str, version)) if isinstance(version, tuple) else str(version)


def _times(cell: dict[str, Any], rank: int, device: torch.device, wait: Callable[[], None], write: Write) -> None:
    """Every collective on every size: samples first, then one call on data that can be checked."""
    for collective, sizes in cell["sizes"].items():
        for size_bytes in sizes:
            call = prepare(collective, size_bytes=size_bytes, rank=rank, num_ranks=len(cell["devices"]), device=device)
            try:
                call.run()
            except (RuntimeError, NotImplementedError) as error:
                if not any(word in str(error) for word in ("not support", "not implemented")):
                    raise
                write("refused", collective=collective, reason=str(error).splitlines()[0][:200])
                break
            found = time_call(call, device=device, barrier=wait, num_warmup=cell["num_warmup"],
                              num_samples=cell["num_samples"], wanted="eager" if cell["timing"] == "eager" else "graph")
            if cell["timing"] == "both" and collective == "all_reduce":
                eager = time_call(call, device=device, barrier=wait, num_warmup=0, num_samples=cell["num_samples"])
                write("eager_times", collective=collective, size_bytes=call.size_bytes, **eager)
            num_wrong = _checked(call, device)
            write("times", collective=collective, size_bytes=call.size_bytes, num_wrong=num_wrong,
                  num_elements=call.size_bytes // 4, **found)
            del call


def _checked(call: Any, device: torch.device) -> int:
    call.fill()
    synchronize(device)
    call.run()
    synchronize(device)
    return call.num_wrong()


def _pairs(cell: dict[str, Any], rank: int, device: torch.device, wait: Callable[[], None], write: Write) -> None:
    """Pairs of ranks: each alone while the others wait, then all at once; the same for the two directions of a pair."""
    pairs = [tuple(pair) for pair in cell["pairs"]]
    groups = [dist.new_group(list(pair)) if len(pairs) > 1 else None for pair in pairs]  # made by all, in one order
    mine = next(i for i, pair in enumerate(pairs) if rank in pair)
    own = groups[mine]
    group = own if isinstance(own, dist.ProcessGroup) else None
    place = pairs[mine].index(rank)
    for collective, (size_bytes,) in cell["sizes"].items():
        call = prepare(collective, size_bytes=size_bytes, rank=place, num_ranks=2, device=device, group=group,
                       ranks=list(pairs[mine]))
        call.run()  # a connection is made by the first call
        phases = [(f"alone {i}", {i}) for i in range(len(pairs))]
        phases += [("together", set(range(len(pairs))))] if len(pairs) > 1 else []
        for phase, active in phases:
            wait()
            if mine in active:
                # Inside a phase nobody waits for another pair; the pair itself keeps step by its own calls.
                found = time_call(call, device=device, barrier=lambda: None, num_warmup=cell["num_warmup"],
                                  num_samples=cell["num_samples"], wanted=cell["timing"], common_start=False)
                write("pair", collective=collective, phase=phase, pair=list(pairs[mine]), place=place,
                      size_bytes=call.size_bytes, **found)
        wait()
        write("pair_checked", collective=collective, pair=list(pairs[mine]), num_wrong=_checked(call, device))


@record
def main() -> None:
    """Run every cell; a cell that does not end well is recorded and the next one runs."""
    run_dir, params = read_params()
    context = multiprocessing.get_context("fork")
    with open(run_dir / "cells.jsonl", "w", encoding="utf-8") as stream:
        for i, cell in enumerate(params["cells"]):
            ended = run_cell(context, run_dir, cell, device=params["device"])
            stream.write(json.dumps(ended) + "\n")
            stream.flush()
            print(f"{PROGRESS}cell {i + 1}/{len(params['cells'])}, {cell['name']}: {ended['status']} in "
                  f"{ended['wall_s']:.1f} s", flush=True)
            if ended["status"] == "failed" or (ended["status"] != "measured" and not cell["forced"]):
                raise RuntimeError(f"cell {cell['name']}: {ended['status']}: {ended['reason']}")


if __name__ == "__main__":
    main()

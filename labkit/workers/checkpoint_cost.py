"""What a verified save costs over a bare one: the same bytes, to the same disk, in the same process, in turn.

`bare` is torch.save and fsync under the final name. `protocol <hash>` adds the temporary name, the hash, the reports,
the manifest and the directory's fsync. `async` writes in the background: `stall_s` is what training waits for, `time_s`
lasts until the manifest is there. `dcp` is torch's own, `dcp + manifest` seals it. All ranks start together and each
reports its own time.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save

from labkit.checkpoints import available_algorithms, fast_algorithm, step_dir, verify
from labkit.workers.checkpoint_dcp import save_dcp
from labkit.workers.checkpoint_io import MAIN, AsyncSaver, rank_file, save
from labkit.workers.checkpoint_talk import Talk
from labkit.workers.session import Session

NUM_TENSORS = 12
"""Weights and moments of four parameters."""


def measure_cost(session: Session, params: Mapping[str, Any], root: Path) -> None:
    """Rounds over all variants and sizes, each in another order. Stops early at the time budget."""
    saver = AsyncSaver(session)
    for size_mb in params["cost_sizes_mb"]:
        state = synthetic_state(session, size_mb)
        actions = make_variants(session, state, saver, params["cost_saves"])
        variants = list(actions)
        session.say(f"save cost, {size_mb:g} MB: {', '.join(variants)}")
        started = time.perf_counter()
        # The round before the first is warm-up, where enough rounds are asked for to speak of times at all.
        for i in range(-1 if params["num_cost_rounds"] > 2 else 0, params["num_cost_rounds"]):
            for name in order_of(variants, i):
                folder = root / f"{size_mb:g}_{i}"
                timed = one_save(session, actions[name], folder)
                if i >= 0:
                    session.write("cost", size_mb=size_mb, variant=name, index=i, **timed)
            # One rank's clock decides, or the ranks would part ways.
            if session.gather(time.perf_counter() - started)[0] > params["cost_budget_s"]:
                break
        measure_verify(saver.talk, state, root / "verify", size_mb=size_mb, num_rounds=params["num_cost_rounds"],
                       algorithms=[name for name in available_algorithms() if name != "blake2b" or name in
                                   params["cost_saves"]])
        del state
    saver.wait()


def order_of(variants: Sequence[str], index: int) -> list[str]:
    """Another one first in each round, and every second round backwards: a save then does not always follow the same
    one, whose journal and freed blocks the disk may still be busy with.
    """
    start = index % len(variants)
    turned = [*variants[start:], *variants[:start]]
    return turned[::-1] if index % 2 else turned


def synthetic_state(session: Session, size_mb: float) -> dict[str, Any]:
    """A main state of so many MB (1e6 bytes) of random float32 on this rank's device, as weights and two moments."""
    count = int(size_mb * 1e6 / 4 / NUM_TENSORS)
    generator = torch.Generator().manual_seed(session.rank)
    return {"step": 0, "model": {f"t{i}": torch.randn(count, generator=generator).to(session.device)
                                 for i in range(NUM_TENSORS)}}


def make_variants(session: Session, state: dict[str, Any], saver: AsyncSaver, wanted: Sequence[str]
                  ) -> dict[str, Callable[[Path], dict[str, float] | None]]:
    """Name -> function(folder) that saves once and may return times of its own parts."""
    own = {"step": 0, "cursor": 0, "cpu_rng": torch.get_rng_state()}
    fast = fast_algorithm()

    def protocol(algorithm: str) -> Callable[[Path], dict[str, float]]:
        return lambda folder: save(saver.talk, folder, step=0, main=state, own=own, algorithm=algorithm)

    def bare(folder: Path) -> None:
        directory = step_dir(folder, 0)
        directory.mkdir(parents=True, exist_ok=True)
        for name, value in {**({MAIN: state} if session.rank == 0 else {}), rank_file(session.rank): own}.items():
            with open(directory / name, "wb") as stream:
                torch.save(value, stream)
                stream.flush()
                os.fsync(stream.fileno())
        session.barrier()

    def asynchronous(folder: Path) -> dict[str, float]:
        started = time.perf_counter()
        saver.start(folder, step=0, main=state, own=own, algorithm=fast)
        stall_s = time.perf_counter() - started
        saver.wait()
        return {"stall_s": stall_s}

    def plain_dcp(folder: Path) -> None:
        dcp_save({"main": state["model"]}, checkpoint_id=step_dir(folder, 0))

    every = {
        "bare": ("bare", bare), "sha256": ("protocol sha256", protocol("sha256")),
        "blake2b": ("protocol blake2b", protocol("blake2b")), "fast": (f"protocol {fast}", protocol(fast)),
        "async": ("async", asynchronous), "dcp": ("dcp", plain_dcp),
        "dcp + manifest": ("dcp + manifest", lambda folder: save_dcp(
            session, folder, {"main": state["model"]}, step=0, algorithm=fast)),
    }
    return dict(every[name] for name in wanted)


def one_save(session: Session, action: Callable[[Path], dict[str, float] | None], folder: Path) -> dict[str, Any]:
    """Time one save on this rank, from a common start; the files are removed outside the timed region."""
    session.barrier()
    started = time.perf_counter()
    parts = action(folder) or {}
    time_s = time.perf_counter() - started
    session.barrier()
    if session.rank == 0:
        shutil.rmtree(folder, ignore_errors=True)
    session.barrier()
    return {"time_s": time_s, **parts}


def measure_verify(talk: Talk, state: dict[str, Any], root: Path, *, size_mb: float, num_rounds: int,
                   algorithms: Sequence[str]) -> None:
    """Seconds to read back and judge a checkpoint of each hash, on rank 0, from the page cache."""
    session = talk.session
    for algorithm in algorithms:
        save(talk, root / algorithm, step=0, main=state, own={"step": 0}, algorithm=algorithm)
        if session.rank == 0:
            for i in range(min(3, num_rounds)):
                started = time.perf_counter()
                report = verify(step_dir(root / algorithm, 0))
                session.write("verify_cost", size_mb=size_mb, hash=algorithm, index=i, is_good=report.is_good,
                              time_s=time.perf_counter() - started)
    session.barrier()
    if session.rank == 0:
        shutil.rmtree(root, ignore_errors=True)
    session.barrier()

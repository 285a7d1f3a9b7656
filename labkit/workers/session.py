"""What every distributed worker needs: its place in the job, its device, a barrier, and a file to report into.

Rank, local rank and world size come from the environment that torchrun sets, so nothing here assumes one node.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import IO, Any

import torch
from torch import distributed as dist

PROGRESS = "progress: "
"""Lines that rank 0 prints with this prefix are for people; a slice passes them on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """One rank of a running job."""

    rank: int
    world_size: int
    device: torch.device
    run_dir: Path
    stream: IO[str]

    @property
    def is_cuda(self) -> bool:
        """True on a GPU, where work is asynchronous and must be waited for."""
        return self.device.type == "cuda"

    def synchronize(self) -> None:
        """Wait for the device; nothing to wait for on a CPU."""
        if self.is_cuda:
            torch.cuda.synchronize(self.device)

    def barrier(self) -> None:
        """All ranks and their devices reach this line before any goes on."""
        self.synchronize()
        dist.barrier(device_ids=[self.device.index] if self.is_cuda else None)
        self.synchronize()

    def write(self, kind: str, **values: Any) -> None:
        """Append one JSON object to this rank's file; NaN and infinity are refused."""
        self.stream.write(json.dumps({"kind": kind, "rank": self.rank, **values}, allow_nan=False) + "\n")
        self.stream.flush()

    def say(self, text: str) -> None:
        """One progress line, from rank 0 only."""
        if self.rank == 0:
            print(PROGRESS + text, flush=True)

    def gather(self, value: Any) -> list[Any]:
        """The given picklable value of every rank, in rank order, on every rank."""
        values: list[Any] = [None] * self.world_size
        dist.all_gather_object(values, value)
        return values


def read_params() -> tuple[Path, dict[str, Any]]:
    """The run directory named by `--run-dir` and the parameters the launcher left in it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--run-dir", type=Path, required=True)
    run_dir = parser.parse_args().run_dir
    return run_dir, json.loads((run_dir / "params.json").read_text(encoding="utf-8"))


@contextmanager
def open_session(run_dir: Path, *, device: str, timeout_s: float) -> Iterator[Session]:
    """Join the process group (NCCL on CUDA, gloo on CPU), open `rank<k>.jsonl`, and leave whatever happens."""
    rank, local_rank = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    place = torch.device("cuda", local_rank) if device == "cuda" else torch.device("cpu")
    if device == "cuda":
        torch.cuda.set_device(place)
    dist.init_process_group(
        "nccl" if device == "cuda" else "gloo", timeout=timedelta(seconds=timeout_s),
        device_id=place if device == "cuda" else None,
    )
    try:
        with open(run_dir / f"rank{rank}.jsonl", "w", encoding="utf-8") as stream:
            yield Session(rank=rank, world_size=dist.get_world_size(), device=place, run_dir=run_dir, stream=stream)
    finally:
        dist.destroy_process_group()

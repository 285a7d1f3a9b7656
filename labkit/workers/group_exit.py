"""The last seconds of a distributed job, in a right order and in three wrong ones.

    torchrun --nproc-per-node=2 -m labkit.workers.group_exit --run-dir DIR        (DIR holds params.json)

Every rank writes its result, then all gather once more, then they leave. `how`:

    ordered      wait for the gather, for the device, for every peer; then destroy the process group
    no_barrier   destroy the group while the gather may still be running
    no_destroy   wait for the gather, then return and leave the group to the interpreter
    early        the last rank returns before the gather; the others are in it

Out: `rank<k>.jsonl` (kinds: result, gathered).
"""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

import torch
from torch import distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record

from labkit.workers.session import Session, read_params

START_S = 60.0
"""How long ranks wait for each other to start; only the collectives after that have the short timeout."""


def leave(session: Session, how: str, num_elements: int, group: Any = None) -> None:
    """Write this rank's result, gather, and go, as `how` says; `group` is the default one if not given."""
    mine = torch.full((num_elements,), float(session.rank), device=session.device)
    total = torch.ones(1, device=session.device)
    dist.all_reduce(total, group=group)
    session.write("result", total=float(total))
    if how == "early" and session.rank == session.world_size - 1:
        return
    parts = [torch.empty_like(mine) for _ in range(session.world_size)]
    work: Any = dist.all_gather(parts, mine, group=group, async_op=True)
    if how == "no_barrier":
        dist.destroy_process_group()
        return
    work.wait()
    session.synchronize()
    if [float(part[-1]) for part in parts] != [float(rank) for rank in range(session.world_size)]:
        raise RuntimeError("the last gather brought something else than was sent")
    session.write("gathered")
    if how == "ordered":
        session.barrier()
        dist.destroy_process_group()


@record
def main() -> None:
    """Join the job and leave it."""
    run_dir, params = read_params()
    rank, local_rank = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    is_cuda = params["device"] == "cuda"
    place = torch.device("cuda", local_rank) if is_cuda else torch.device("cpu")
    if is_cuda:
        torch.cuda.set_device(place)
    dist.init_process_group("nccl" if is_cuda else "gloo", timeout=timedelta(seconds=START_S),
                            device_id=place if is_cuda else None)
    group = dist.new_group(timeout=timedelta(seconds=params["group_timeout_s"]))
    with open(run_dir / f"rank{rank}.jsonl", "w", encoding="utf-8") as stream:
        session = Session(rank=rank, world_size=dist.get_world_size(), device=place, run_dir=run_dir, stream=stream)
        session.barrier()
        leave(session, params["how"], params["num_elements"], group)


if __name__ == "__main__":
    main()

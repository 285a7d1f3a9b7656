"""All-reduces in a row, with a rank that exits or comes late: what do the launcher, the group and our own log notice?

    torchrun --nproc-per-node=4 -m labkit.workers.checkpoint_train --run-dir DIR        (DIR holds params.json)

Out: `rank<k>.jsonl` (kinds: begin, end, fault, error): every collective with its sequence number, operation, elements
and time, so that the ranks' logs can be aligned.
"""

from __future__ import annotations

import os
import time
from typing import Any

import torch
from torch import distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record

from labkit.workers.session import Session, open_session, read_params


def all_reduce(session: Session, tensor: torch.Tensor, sequence: int) -> None:
    """One collective, reported before and after."""
    about = {"sequence": sequence, "op": "ALLREDUCE", "num_elements": tensor.numel()}
    session.write("begin", time_s=time.time(), **about)
    try:
        dist.all_reduce(tensor)
        session.synchronize()
    except RuntimeError as error:
        session.write("error", time_s=time.time(), error=str(error).splitlines()[0][:300], **about)
        raise
    session.write("end", time_s=time.time(), **about)


def run_steps(session: Session, params: dict[str, Any]) -> None:
    """Steps of one all-reduce each; the named rank meets its fault before the collective of the named step."""
    tensor = torch.ones(params["num_elements"], device=session.device)
    for step in range(1, params["num_steps"] + 1):
        if session.rank == params["fault_rank"] and step == params["fault_step"]:
            session.write("fault", fault=params["fault"], step=step, time_s=time.time())
            if params["fault"] == "exit":
                os._exit(params["exitcode"])
            time.sleep(params["sleep_s"])
        all_reduce(session, tensor, step)


@record
def main() -> None:
    """Join the job with the group's timeout, run the steps, leave."""
    run_dir, params = read_params()
    with open_session(run_dir, device=params["device"], timeout_s=params["group_timeout_s"]) as session:
        run_steps(session, params)


if __name__ == "__main__":
    main()

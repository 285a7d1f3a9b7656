"""How fast an all-to-all moves large payloads on GPUs, beside plain copies between the same GPUs in the same run."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
from torch import distributed as dist

from labkit.workers.moe_layer import DTYPES
from labkit.workers.session import Session


def sweep(session: Session, params: dict[str, Any]) -> None:
    """Balanced dispatch of growing size, timed by events on each rank's stream; then the peer copies."""
    num_iterations = params["num_bandwidth_iterations"]
    for num_tokens in params["bandwidth_tokens"]:
        share = num_tokens // session.world_size
        rows = torch.ones(share * session.world_size, params["hidden"], dtype=DTYPES[params["dtype"]],
                          device=session.device)
        arrived = torch.empty_like(rows)
        splits = [share] * session.world_size

        def exchange(arrived: Any = arrived, rows: Any = rows, splits: list[int] = splits) -> None:
            dist.all_to_all_single(arrived, rows, output_split_sizes=splits, input_split_sizes=splits)

        times = _event_times(session, exchange, num_iterations)
        remote = share * (session.world_size - 1) * params["hidden"] * rows.element_size()
        session.write("bandwidth", num_tokens=num_tokens, remote_bytes=remote, times_s=times)
        del rows, arrived
    _peer_copies(session, params, num_iterations)


def _peer_copies(session: Session, params: dict[str, Any], num_iterations: int) -> None:
    """Copies to the next GPU of this host: from the first rank alone, then from all ranks at once."""
    num_here = int(os.environ.get("LOCAL_WORLD_SIZE", session.world_size))
    if num_here != session.world_size or torch.cuda.device_count() < session.world_size or num_here < 2:
        session.write("peer_copy", refused="ranks are not on the GPUs of one host")
        return
    peer = torch.device("cuda", ((session.device.index or 0) + 1) % session.world_size)
    num_bytes = max(params["bandwidth_tokens"]) // session.world_size * (session.world_size - 1) * params["hidden"] * 2
    source = torch.ones(num_bytes, dtype=torch.uint8, device=session.device)
    target = torch.zeros(num_bytes, dtype=torch.uint8, device=peer)
    torch.cuda.synchronize(peer)

    def copy() -> None:
        target.copy_(source)

    store: Any = dist.distributed_c10d._get_default_store()
    for is_both in (False, True):
        session.barrier()
        if not is_both and session.rank > 0:
            # Wait on the host: a barrier's kernel would hold the GPU that the first rank copies to.
            store.wait(["labkit-peer-copy"])
        if is_both or session.rank == 0:
            times = _event_times(session, copy, num_iterations, meet=is_both)
            session.write("peer_copy", is_both=is_both, num_bytes=num_bytes, times_s=times,
                          is_right=bool((target[:: max(1, num_bytes // 4096)] == 1).all().item()))
        if not is_both and session.rank == 0:
            store.set("labkit-peer-copy", "done")
        session.barrier()


def _event_times(session: Session, call: Callable[[], None], num_iterations: int, *, meet: bool = True) -> list[float]:
    """Seconds of each call by GPU events, after warm-up; ranks meet before each unless they work alone."""
    for _ in range(3):
        call()
    times = []
    for _ in range(num_iterations):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        if meet:
            session.barrier()
        start.record()
        call()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 1e3)
    return times

"""Expert-parallel steps with uneven splits: what arrives, whether it comes back, how long each phase takes and waits.

    torchrun --nproc-per-node=8 -m labkit.workers.moe_dispatch --run-dir DIR        (DIR holds params.json)

Out: `rank<k>.jsonl` (kinds: case, step, calls, late, kernels, bandwidth, peer_copy, dedup).
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record
from torch.profiler import ProfilerActivity, profile

from labkit.workers import moe_bandwidth, moe_dedup
from labkit.workers.moe_layer import (
    DTYPES,
    Route,
    apply_expert,
    check_splits,
    combine,
    dispatch,
    exchange_counts,
    expert_weights,
    make_route,
)
from labkit.workers.session import Session, open_session, read_params

Weights = tuple[Tensor, Tensor]
Clock = Callable[[], float]


def make_clock(session: Session) -> Clock:
    """Seconds since the call before, after the device is done."""
    last = [0.0]

    def lap() -> float:
        session.synchronize()
        now = time.perf_counter()
        spent, last[0] = now - last[0], now
        return spent

    return lap


def timed_step(session: Session, rows: Tensor, route: Route, weights: Weights, *, is_split: bool) -> dict[str, float]:
    """One step, from a common start; `is_split` meets before combine, which takes the waiting out of it."""
    session.barrier()
    lap = make_clock(session)
    lap()
    receive = exchange_counts(route, session)
    times = {"counts_s": lap()}
    arrived = dispatch(rows, route, receive)
    times["dispatch_s"] = lap()
    done = apply_expert(arrived, weights)
    times["expert_s"] = lap()
    if is_split:
        session.barrier()
        times["wait_s"] = lap()
    combine(done, route, receive)
    times["combine_s"] = lap()
    return times


def check_case(session: Session, params: dict[str, Any], case: str, rows: Tensor, route: Route,
               weights: Weights) -> None:
    """Traffic matrix, token ids there and back, and every output row against its expert computed at home."""
    receive = exchange_counts(route, session)
    matrix = check_splits(route, receive, session)
    num_tokens = len(rows)
    ids = torch.arange(num_tokens, dtype=torch.int64, device=session.device) + session.rank * num_tokens
    arrived_ids = dispatch(ids, route, receive)
    home_ids = combine(arrived_ids, route, receive)
    out = combine(apply_expert(dispatch(rows, route, receive), weights), route, receive)
    expected = torch.empty_like(out)
    ends = torch.tensor(route.send).cumsum(0).tolist()
    for expert, end in enumerate(ends):
        mine = route.order[end - route.send[expert]: end]
        if len(mine):
            expected[mine] = apply_expert(rows[mine], expert_weights(expert, params, session.device))
    norm = expected.float().norm().item()
    # Each row's own error: a total would hide two rows that changed places.
    row_error = (out.float() - expected.float()).norm(dim=1) / expected.float().norm(dim=1).clamp_min(1e-30)
    session.write(
        "case", case=case, send=route.send, receive=receive, matrix=matrix, received_rows=len(arrived_ids),
        num_ids_wrong=int((home_ids != ids).sum().item()), num_ids=num_tokens,
        ids_sum=int(arrived_ids.sum().item()), ids_distinct=int(arrived_ids.unique().numel()),
        ids_digest=hashlib.sha256(arrived_ids.cpu().numpy().tobytes()).hexdigest()[:16],
        out_norm=norm, out_rel_diff=float(row_error.max().item()) if num_tokens else 0.0)


def count_calls(session: Session, rows: Tensor, route: Route, weights: Weights) -> None:
    """All-to-alls that the profiler sees in one step; not the code that makes them."""
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        receive = exchange_counts(route, session)
        combine(apply_expert(dispatch(rows, route, receive), weights), route, receive)
        session.synchronize()
    names = [event.name for event in profiler.events() or []]
    session.write("calls", all_to_alls=sum(name == "c10d::alltoall_base_" for name in names),
                  other_collectives=sorted({name for name in names if name.startswith("c10d::")
                                            and name != "c10d::alltoall_base_"}))


def late_rank(session: Session, rows: Tensor, route: Route, delay_s: float, num_repeats: int) -> None:
    """The same all-to-all with every rank in time and with the last rank late: what the first rank's clock says."""
    receive = exchange_counts(route, session)
    for is_late in (False, True):
        for index in range(num_repeats):
            session.barrier()
            if is_late and session.rank == session.world_size - 1:
                time.sleep(delay_s)
            lap = make_clock(session)
            lap()
            dispatch(rows, route, receive)
            session.write("late", is_late=is_late, index=index, time_s=lap(), delay_s=delay_s)


def kernel_lengths(session: Session, rows: Tensor, route: Route, delay_s: float) -> None:
    """Length of the communication kernel on the GPU's own clock, same payload, with and without a late rank."""
    receive = exchange_counts(route, session)
    for is_late in (False, True):
        session.barrier()
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
            if is_late and session.rank == session.world_size - 1:
                time.sleep(delay_s)
            dispatch(rows, route, receive)
            session.synchronize()
        kernels = [event for event in profiler.events() or []
                   if "nccl" in event.name.lower() and str(event.device_type).endswith("CUDA")]
        # An annotation lane repeats each kernel under the name of the call; kernels are called ncclDevKernel...
        own = [event for event in kernels if "kernel" in event.name.lower()]
        session.write("kernels", is_late=is_late, delay_s=delay_s, names=sorted({event.name[:80] for event in own}),
                      kernel_s=[(event.time_range.end - event.time_range.start) / 1e6 for event in own])


def run_case(session: Session, params: dict[str, Any], case: str, split: list[int], weights: Weights) -> None:
    """One routing: warm up, time, check."""
    generator = torch.Generator(device=session.device).manual_seed(params["seed"] * 1000 + session.rank)
    rows = torch.randn(sum(split), params["hidden"], generator=generator, device=session.device)
    rows = rows.to(DTYPES[params["dtype"]])
    route = make_route(split, seed=params["seed"] * 100 + session.rank, device=session.device)
    for _ in range(params["num_warmup_steps"]):
        timed_step(session, rows, route, weights, is_split=False)
    for is_split in (False, True):
        for index in range(params["num_timed_steps"]):
            times = timed_step(session, rows, route, weights, is_split=is_split)
            session.write("step", case=case, index=index, is_split=is_split, **times)
    if not params["is_checked"]:
        return
    check_case(session, params, case, rows, route, weights)
    if case == params["counted_case"]:
        count_calls(session, rows, route, weights)
        late_rank(session, rows, route, params["late_ms"] / 1e3, params["num_late_repeats"])
        if session.is_cuda:
            kernel_lengths(session, rows, route, params["late_ms"] / 1e3)


def run_all(session: Session, params: dict[str, Any]) -> None:
    """Every case in the order given, then what only one process does."""
    session.say(f"{session.world_size} ranks on {session.device.type}")
    torch.manual_seed(params["seed"])
    with torch.no_grad():
        weights = expert_weights(session.rank, params, session.device)
        for case in params["case_order"]:
            run_case(session, params, case, params["splits"][case], weights)
            session.say(f"{case}: done")
        if params["is_checked"]:
            moe_dedup.compare(session, params)
        if session.is_cuda and params["bandwidth_tokens"]:
            moe_bandwidth.sweep(session, params)
            session.say("bandwidth: done")
        dist.barrier()


@record
def main() -> None:
    """Join the job, run every case, leave."""
    run_dir, params = read_params()
    with open_session(run_dir, device=params["device"], timeout_s=params["timeout_s"]) as session:
        run_all(session, params)


if __name__ == "__main__":
    main()

"""Process groups of a mesh: made in one order, each sum checked, phases timed; then two ranks that disagree on order.

    torchrun --nproc-per-node=8 -m labkit.workers.mesh_groups --run-dir DIR        (DIR holds params.json)

Out: `rank<k>.jsonl` (kinds: created, sum, phase, pair, order, missing, slow_link, recorder) and, where torch has a
flight recorder for the backend, `flight/trace_rank_<k>`, its dump.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record

from labkit.workers.session import Session, open_session, read_params
from labkit.workers.two_nodes import two_nodes

PERIOD = 251
"""Elements repeat after a prime, so that a piece that lands in another place does not fit there."""
Mine = dict[str, tuple[Any, list[int]]]


def create_groups(session: Session, groups: Mapping[str, Sequence[Sequence[int]]], prefix: str) -> Mine:
    """Make every group of a mesh, on every rank, in one order; report the order. Returns axis -> (group, ranks)."""
    mine: Mine = {}
    order = []
    for axis, found in groups.items():
        for i, ranks in enumerate(found):
            name = f"{prefix}.{axis}{i}"
            group = dist.new_group(list(ranks), group_desc=name)
            order.append([name, list(ranks)])
            if session.rank in ranks:
                mine[axis] = (group, list(ranks))
    session.write("created", prefix=prefix, order=order, mine={axis: ranks for axis, (_, ranks) in mine.items()})
    return mine


def pattern(num_elements: int, device: torch.device) -> Tensor:
    """[num_elements] small whole numbers, exact in float32 through every sum here."""
    return (torch.arange(num_elements, device=device) % PERIOD + 1).float()


def reduce_calls(buffer: Tensor, group: Any, num_calls: int) -> None:
    """The calls of one phase: all-reduces of one buffer, one after the other."""
    for _ in range(num_calls):
        dist.all_reduce(buffer, group=group)


def wrong_elements(buffer: Tensor, base: Tensor, ranks: Sequence[int], num_calls: int) -> int:
    """Elements that do not hold the closed form: the sum of rank + 1 over the members, times their number a call."""
    factor = sum(rank + 1 for rank in ranks) * len(ranks) ** (num_calls - 1) if num_calls else 0
    return int((buffer != base * factor).sum().item())


def phases(session: Session, params: dict[str, Any], mapping: str, mine: Mine, *, num_elements: int, num_timed: int,
           num_warmup: int, kind: str = "phase") -> None:
    """Each axis's calls alone, then all axes one after the other, then one call of each at once; all checked."""
    base = pattern(num_elements, session.device)
    buffers = {axis: torch.empty_like(base) for axis in mine}
    calls: dict[str, int] = params["calls"]

    def fill() -> None:
        for buffer in buffers.values():
            torch.mul(base, session.rank + 1, out=buffer)

    def one_axis(axis: str) -> None:
        reduce_calls(buffers[axis], mine[axis][0], calls[axis])

    def serial() -> None:
        for axis in mine:
            one_axis(axis)

    def concurrent() -> None:
        works = [dist.all_reduce(buffers[axis], group=mine[axis][0], async_op=True) for axis in mine]
        for work in works:  # the list keeps the handles alive until each is waited for
            if work is not None:
                work.wait()

    runs: dict[str, tuple[Callable[[], None], dict[str, int]]] = {
        axis: (lambda axis=axis: one_axis(axis), {axis: calls[axis]}) for axis in mine}
    runs["serial"] = (serial, {axis: calls[axis] for axis in mine})
    runs["concurrent"] = (concurrent, {axis: 1 for axis in mine})
    for name, (call, made) in runs.items():
        for index in range(-num_warmup, num_timed):
            fill()
            session.barrier()
            start = time.perf_counter()
            call()
            session.synchronize()
            time_s = time.perf_counter() - start
            wrong = {axis: wrong_elements(buffers[axis], base, mine[axis][1], count) for axis, count in made.items()}
            if index >= 0:
                # One host has one monotonic clock, so starts of its ranks may be compared.
                session.write(kind, mapping=mapping, phase=name, index=index, start_s=start, time_s=time_s, wrong=wrong)
        session.barrier()


def first_sums(session: Session, mapping: str, mine: Mine) -> None:
    """One small all-reduce on every group: the value, and the closed form that each rank works out for itself."""
    for axis, (group, ranks) in mine.items():
        value = torch.full((4,), float(session.rank + 1), device=session.device)
        dist.all_reduce(value, group=group)
        session.write("sum", mapping=mapping, axis=axis, ranks=ranks, value=value.tolist(),
                      expected=float(sum(rank + 1 for rank in ranks)))


def order_control(session: Session, group: Any, *, is_swapped: bool, num_elements: int) -> None:
    """The report's pair: A = 1000 + r and B = 2000 + r, of one shape; rank 1 may reduce B first."""
    tensors = {name: torch.full((num_elements,), float(start + session.rank), device=session.device)
               for name, start in (("A", 1000), ("B", 2000))}
    names = ("B", "A") if is_swapped and session.rank == 1 else ("A", "B")
    start = time.perf_counter()
    for name in names:
        dist.all_reduce(tensors[name], group=group)
    session.synchronize()
    session.write("order", is_swapped=is_swapped, called=list(names), time_s=time.perf_counter() - start,
                  shapes={name: list(tensor.shape) for name, tensor in tensors.items()},
                  values={name: sorted(set(tensor.tolist())) for name, tensor in tensors.items()})


def missing_call(session: Session, timeout_s: float) -> None:
    """A group on which rank 1 leaves out a call that rank 0 makes; Gloo's own deadline ends it."""
    group = dist.new_group([0, 1], timeout=timedelta(seconds=timeout_s), group_desc="missing")
    if session.rank in (0, 1):
        dist.all_reduce(torch.ones(4), group=group)
    if session.rank == 0:
        start = time.perf_counter()
        try:
            dist.all_reduce(torch.ones(4), group=group)
            error = ""
        except RuntimeError as failure:
            error = str(failure).splitlines()[0][:160]
        session.write("missing", time_s=time.perf_counter() - start, error=error)


def shared_link(session: Session, params: dict[str, Any], num_elements: int) -> None:
    """Two communicators over one pair of ranks, one call each, in turn and at once: do two groups double a link?"""
    groups: list[Any] = [dist.new_group([0, 1], group_desc=f"twin{i}") for i in range(2)]
    if session.rank > 1:
        return
    buffers = [torch.zeros(num_elements, device=session.device) for _ in groups]
    for index in range(-params["num_warmup"], params["num_timed_steps"]):
        for is_concurrent in (False, True):
            dist.barrier(group=groups[0], device_ids=[session.device.index] if session.is_cuda else None)
            session.synchronize()
            start = time.perf_counter()
            works = []
            for buffer, group in zip(buffers, groups):
                work = dist.all_reduce(buffer, group=group, async_op=True)
                works.append(work)
                if not is_concurrent and work is not None:
                    work.wait()
            for work in works:
                if work is not None:
                    work.wait()
            session.synchronize()
            if index >= 0:
                session.write("twin", is_concurrent=is_concurrent, index=index, time_s=time.perf_counter() - start)


def slow_link(session: Session, params: dict[str, Any]) -> None:
    """The same mappings with the two halves of the ranks on both ends of one slow wire."""
    with two_nodes(session, mbit_per_s=params["slow_link_mbit_per_s"]) as refusal:
        session.write("slow_link", refusal=refusal)
        if refusal is None:
            for mapping, groups in params["groups"].items():
                mine = create_groups(session, groups, f"slow.{mapping}")
                phases(session, params, mapping, mine, num_elements=int(params["slow_payload_mib"] * 2**18),
                       num_timed=params["num_slow_steps"], num_warmup=1, kind="slow_phase")
    session.say("two link classes: done" if refusal is None else f"two link classes: not here ({refusal})")


def dump_recorder(session: Session) -> None:
    """Write the flight recorder's dump, without stack traces: they hold paths."""
    library: Any = getattr(torch._C, "_distributed_c10d")  # noqa: B009
    name = next((n for n in (("_dump_nccl_trace",) if session.is_cuda else ("_dump_fr_trace",)) if hasattr(library, n)),
                None)
    if name is None:
        session.write("recorder", refusal="this torch has no flight recorder for the backend")
        return
    try:
        data = getattr(library, name)(includeCollectives=True, includeStackTraces=False, onlyActive=False)
    except TypeError:
        data = getattr(library, name)(True, False, False)
    folder = session.run_dir / "flight"
    folder.mkdir(exist_ok=True)
    (folder / f"trace_rank_{session.rank}").write_bytes(data)
    session.write("recorder", refusal=None, num_bytes=len(data))


def run_all(session: Session, params: dict[str, Any]) -> None:
    """Every mapping in the order given, the pair, the twin, the slow wire, and at last what breaks a group."""
    session.say(f"{session.world_size} ranks on {session.device.type}")
    num_elements = int(params["payload_mib"] * 2**18)
    for mapping in params["mapping_order"]:
        mine = create_groups(session, params["groups"][mapping], mapping)
        first_sums(session, mapping, mine)
        phases(session, params, mapping, mine, num_elements=num_elements, num_timed=params["num_timed_steps"],
               num_warmup=params["num_warmup"])
        session.say(f"{mapping}: done")
    pair = dist.new_group([0, 1], group_desc="pair")
    if session.rank in (0, 1):
        for is_swapped in (False, True):
            order_control(session, pair, is_swapped=is_swapped, num_elements=1024)
    session.barrier()
    shared_link(session, params, num_elements)
    session.barrier()
    if params["is_checked"]:
        if params["slow_link_mbit_per_s"]:
            slow_link(session, params)
        if not session.is_cuda:  # NCCL's watchdog would end the process
            missing_call(session, params["missing_timeout_s"])
        dump_recorder(session)
    session.barrier()


@record
def main() -> None:
    """Join the job, run every part, leave."""
    run_dir, params = read_params()
    with open_session(run_dir, device=params["device"], timeout_s=params["timeout_s"]) as session, torch.no_grad():
        run_all(session, params)


if __name__ == "__main__":
    main()

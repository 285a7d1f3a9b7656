"""One collective on one size: buffers, the call, and the data that must come out.

Sizes are counted as nccl-tests does: for all_gather and reduce_scatter n times the shard, for all_to_all everything a
rank holds. Data are small whole numbers, so that a float32 sum is exact in any order: what comes out is compared with
a closed form, element by element.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch import distributed as dist

ELEMENT_BYTES = 4
CHUNK = 2**24
"""Elements that are filled or compared at once: bounds the memory of the whole-number arithmetic."""
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
NOTHING = -1.0
"""What an output holds before the checked call; no pattern has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A collective that is ready to run as often as wanted."""

    size_bytes: int
    """What is moved, after rounding down to whole elements of each rank."""
    run: Callable[[], None]
    fill: Callable[[], None]
    """Put this rank's data in, and nothing where the result will be."""
    num_wrong: Callable[[], int]
    """Elements of the result that differ from the closed form."""


def pattern(rank: int, start: int, stop: int, device: torch.device) -> Tensor:
    """Elements [start, stop) of a rank's data: whole numbers from 0 to 250, different for each rank and place.

    Returns: float32 of shape (stop - start,).
    """
    index = torch.arange(start, stop, device=device) % 1021
    return ((index * (rank + 3) + 5 * rank + 1) % 251).float()


def sum_pattern(num_ranks: int, start: int, stop: int, device: torch.device) -> Tensor:
    """Sum of all ranks' data over [start, stop), float32; exact for up to 60,000 ranks."""
    index = torch.arange(start, stop, device=device) % 1021
    total = torch.zeros_like(index)
    for rank in range(num_ranks):
        total += (index * (rank + 3) + 5 * rank + 1) % 251
    return total.float()


def prepare(collective: str, *, size_bytes: int, rank: int, num_ranks: int, device: torch.device,
            group: dist.ProcessGroup | None = None, ranks: list[int] | None = None) -> Call:
    """Buffers and functions of one collective.

    Args:
        collective: all_reduce, all_gather, reduce_scatter, broadcast, all_to_all, send_recv (each rank sends to the
            next and receives from the one before) or send_forward, send_backward (two ranks, one direction).
        size_bytes: S as nccl-tests counts it; rounded down to whole elements of each rank.
        rank: this rank's place in the group.
        num_ranks: of the group.
        device: where the buffers are.
        group: None for all ranks.
        ranks: global ranks of the group; needed for a group that is not all.
    """
    shard = size_bytes // (ELEMENT_BYTES * num_ranks)
    whole = shard * num_ranks
    peers = ranks or list(range(num_ranks))
    make = lambda count: torch.zeros(count, dtype=torch.float32, device=device)  # noqa: E731
    size = whole * ELEMENT_BYTES

    if collective == "all_reduce":
        data = make(whole)
        return Call(size_bytes=size, run=lambda: _done(dist.all_reduce(data, group=group)),
                    fill=lambda: _write(data, lambda a, b: pattern(rank, a, b, device)),
                    num_wrong=lambda: _differing(data, lambda a, b: sum_pattern(num_ranks, a, b, device)))
    if collective == "broadcast":
        data = make(whole)
        return Call(size_bytes=size, run=lambda: _done(dist.broadcast(data, src=peers[0], group=group)),
                    fill=lambda: _write(data, lambda a, b: pattern(0, a, b, device)) if rank == 0
                    else _done(data.fill_(NOTHING)),
                    num_wrong=lambda: _differing(data, lambda a, b: pattern(0, a, b, device)))
    if collective == "all_gather":
        own, out = make(shard), make(whole)
        return Call(size_bytes=size, run=lambda: _done(_all_gather(out, own, group=group)),
                    fill=lambda: (_done(out.fill_(NOTHING)), _write(own, lambda a, b: pattern(rank, a, b, device)))[-1],
                    num_wrong=lambda: sum(
                        _differing(out[j * shard : (j + 1) * shard], lambda a, b, j=j: pattern(j, a, b, device))
                        for j in range(num_ranks)))
    if collective == "reduce_scatter":
        own, out = make(whole), make(shard)
        first = rank * shard
        return Call(size_bytes=size, run=lambda: _done(_reduce_scatter(out, own, group=group)),
                    fill=lambda: (_done(out.fill_(NOTHING)), _write(own, lambda a, b: pattern(rank, a, b, device)))[-1],
                    num_wrong=lambda: _differing(
                        out, lambda a, b: sum_pattern(num_ranks, first + a, first + b, device)))
    if collective == "all_to_all":
        own, out = make(whole), make(whole)
        first = rank * shard
        return Call(size_bytes=size, run=lambda: _done(dist.all_to_all_single(out, own, group=group)),
                    fill=lambda: (_done(out.fill_(NOTHING)), _write(own, lambda a, b: pattern(rank, a, b, device)))[-1],
                    num_wrong=lambda: sum(
                        _differing(out[j * shard : (j + 1) * shard],
                                   lambda a, b, j=j: pattern(j, first + a, first + b, device))
                        for j in range(num_ranks)))
    return _point_to_point(collective, make(whole), make(whole), rank=rank, peers=peers, group=group)


def _point_to_point(collective: str, own: Tensor, out: Tensor, *, rank: int, peers: list[int],
                    group: dist.ProcessGroup | None) -> Call:
    num_ranks, device = len(peers), own.device
    senders = {"send_recv": range(num_ranks), "send_forward": [0], "send_backward": [1]}.get(collective)
    if senders is None:
        raise ValueError(f"collective={collective!r}: expected a collective of this module")
    after, before = (rank + 1) % num_ranks, (rank - 1) % num_ranks
    sends, receives = rank in senders, before in senders

    def run() -> None:
        wanted = [dist.P2POp(dist.isend, own, peers[after], group)] if sends else []
        wanted += [dist.P2POp(dist.irecv, out, peers[before], group)] if receives else []
        for work in dist.batch_isend_irecv(wanted):
            work.wait()

    return Call(
        size_bytes=own.numel() * ELEMENT_BYTES, run=run,
        fill=lambda: (_done(out.fill_(NOTHING)), _write(own, lambda a, b: pattern(rank, a, b, device)))[-1],
        num_wrong=lambda: _differing(out, lambda a, b: pattern(before, a, b, device)) if receives else 0)


def _done(_: object) -> None:
    """Drop what a call returns: it has been waited for."""


def _chunks(count: int) -> Iterator[tuple[int, int]]:
    for start in range(0, count, CHUNK):
        yield start, min(start + CHUNK, count)


def _write(data: Tensor, values: Callable[[int, int], Tensor]) -> None:
    for start, stop in _chunks(data.numel()):
        data[start:stop] = values(start, stop)


def _differing(data: Tensor, values: Callable[[int, int], Tensor]) -> int:
    return sum(int((data[start:stop] != values(start, stop)).sum()) for start, stop in _chunks(data.numel()))

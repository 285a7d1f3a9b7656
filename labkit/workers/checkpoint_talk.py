"""What the ranks of a save say to each other: rank 0's word, the reports to it, and its word again.

A save needs to know three things from others: that the folder is there, what every rank has written, and whether the
manifest is. Only rank 0 decides. So there are two broadcasts from rank 0 and between them one message from every other
rank to it, of a fixed size. Rank 0 has its receives posted before it writes, and need not wait for the first broadcast:
while its disk works, the others' messages arrive.

`all_gather_object` would tell everybody everything, in two collectives each time (lengths, then pickles). On four gloo
ranks and two cores each of the three took several times as long as the fsync of the manifest.
"""

from __future__ import annotations

import json
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from labkit.workers.session import Session

MESSAGE_BYTES = 8192
"""Of every message, filled up with zeros: a rank reports one or two files and at most one problem."""
PROBLEM_CHARS = 300
"""Longer problems are cut. A character takes up to 12 bytes of JSON, so two files and a problem always fit."""
TAG = 7
"""Of the reports: other messages between two ranks of the group do not mix with them."""


class Talk:
    """Messages of one save after the other, on each rank: `open`, `report`, `close`.

    Args:
        session: this rank.
        group: a gloo group of all ranks; the job's own if not given, which must be gloo then.
    """

    def __init__(self, session: Session, group: dist.ProcessGroup | None = None) -> None:
        self.session = session
        self.group = group
        self._sent: tuple[dist.Work | None, Tensor] | None = None
        self._expected: list[tuple[dist.Work | None, Tensor]] = []

    def open(self, problem: str | None) -> str | None:
        """What rank 0 says to begin with: None, or one line, on every rank; what the others give is not looked at.

        Rank 0 does not wait until the others have heard it, unless it is a problem: then the save ends here.
        Raises: RuntimeError from the group if a rank is gone, like the others.
        """
        if self.session.rank:
            return self._word(None)
        if problem:
            return self._word(problem)
        message = _message(None)
        self._sent = dist.broadcast(message, src=0, group=self.group, async_op=True), message
        self._expected = [(dist.irecv(own, src=rank, group=self.group, tag=TAG), own)
                          for rank in range(1, self.session.world_size) for own in [torch.empty_like(message)]]
        return None

    def report(self, value: Any) -> list[Any]:
        """Plain JSON of every rank, in rank order, on rank 0, when all ranks have called this; elsewhere an empty list.

        Raises: ValueError if it does not fit into a message.
        """
        message = _message(value)
        if self.session.rank:
            dist.send(message, dst=0, group=self.group, tag=TAG)
            return []
        sent, self._sent = self._sent, None
        expected, self._expected = self._expected, []
        for work, _ in [*([sent] if sent else []), *expected]:
            if work is not None:
                work.wait()
        return [_value(own) for own in (message, *(own for _, own in expected))]

    def close(self, problem: str | None) -> str | None:
        """What rank 0 says in the end, as `open`; rank 0 returns when it is on its way to all."""
        return self._word(problem if self.session.rank == 0 else None)

    def _word(self, problem: str | None) -> str | None:
        message = _message(cut(problem))
        dist.broadcast(message, src=0, group=self.group)
        return _value(message)


def open_talk(session: Session) -> Talk:
    """Over the job's own group on CPUs; beside NCCL, which knows no host memory, over a new one. All ranks call it."""
    return own_talk(session) if session.is_cuda else Talk(session)


def own_talk(session: Session) -> Talk:
    """Over a new gloo group of all ranks, for a thread beside the training. All ranks call it."""
    group = dist.new_group(backend="gloo")
    if not isinstance(group, dist.ProcessGroup):
        raise TypeError(f"new_group gave {group!r}: expected a group that this rank is in")
    return Talk(session, group)


def cut(problem: str | None) -> str | None:
    """A problem of at most PROBLEM_CHARS characters."""
    return problem and problem[:PROBLEM_CHARS]


def _message(value: Any) -> Tensor:
    data = json.dumps(value).encode()
    if len(data) > MESSAGE_BYTES:
        raise ValueError(f"message of {len(data)} bytes: expected at most {MESSAGE_BYTES}")
    return torch.frombuffer(bytearray(data.ljust(MESSAGE_BYTES, b"\0")), dtype=torch.uint8)


def _value(message: Tensor) -> Any:
    return json.loads(message.numpy().tobytes().rstrip(b"\0"))

"""What the ranks of a save say to each other: reports to rank 0, and its word back.

A save needs to know three things from others: that the folder is there, what every rank has written, and whether the
manifest is. Only rank 0 decides, so each is one collective of a fixed size: a broadcast, a gather, a broadcast.
`all_gather_object` would tell everybody everything, in two collectives (lengths, then pickles) with a turn of every
rank each; on four gloo ranks and two cores that took several times as long as the fsync of the manifest.
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


class Talk:
    """Reports and verdicts of one job.

    Args:
        session: this rank.
        group: a gloo group to talk over, e.g. one that a background thread has for itself; the job's own if not given.
    """

    def __init__(self, session: Session, group: dist.ProcessGroup | None = None) -> None:
        self.session = session
        self.group = group
        self._device = session.device if group is None else torch.device("cpu")

    def report(self, value: Any) -> list[Any]:
        """Plain JSON of every rank, in rank order, on rank 0; an empty list on the others.

        Rank 0 has it when all ranks have called this: that makes it the barrier before a commit.
        Raises: ValueError if it does not fit into a message; RuntimeError from the group if a rank is gone.
        """
        message = self._message(value)
        is_first = self.session.rank == 0
        found = [torch.empty_like(message) for _ in range(self.session.world_size)] if is_first else None
        dist.gather(message, found, dst=0, group=self.group)
        return [_value(own) for own in found or []]

    def verdict(self, problem: str | None) -> str | None:
        """What rank 0 says, on every rank: None, or one line; what the others give is not looked at.

        Raises: RuntimeError from the group if a rank is gone.
        """
        message = self._message(cut(problem) if self.session.rank == 0 else None)
        dist.broadcast(message, src=0, group=self.group)
        return _value(message)

    def _message(self, value: Any) -> Tensor:
        data = json.dumps(value).encode()
        if len(data) > MESSAGE_BYTES:
            raise ValueError(f"message of {len(data)} bytes: expected at most {MESSAGE_BYTES}")
        return torch.frombuffer(bytearray(data.ljust(MESSAGE_BYTES, b"\0")), dtype=torch.uint8).to(self._device)


def cut(problem: str | None) -> str | None:
    """A problem of at most PROBLEM_CHARS characters."""
    return problem and problem[:PROBLEM_CHARS]


def _value(message: Tensor) -> Any:
    return json.loads(message.cpu().numpy().tobytes().rstrip(b"\0"))

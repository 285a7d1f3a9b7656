"""The parts of an expert-parallel layer: which token goes where, the exchange in both directions, the expert.

Rows: [T, hidden], T tokens of a rank. Splits: rows to (or from) each rank, W numbers. One expert a rank.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as functional
from torch import Tensor
from torch import distributed as dist

from labkit.workers.session import Session

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


@dataclass(frozen=True, slots=True)
class Route:
    """Where a rank's tokens go."""

    order: Tensor
    """[T] token index of each row sent, by destination."""
    send: list[int]
    """Rows to each rank."""


def make_route(split: list[int], *, seed: int, device: torch.device) -> Route:
    """Shuffle destinations over the tokens, so that a row's place says nothing about where it goes."""
    generator = torch.Generator().manual_seed(seed)
    to = torch.arange(len(split)).repeat_interleave(torch.tensor(split))
    to = to[torch.randperm(len(to), generator=generator)]
    return Route(torch.argsort(to, stable=True).to(device), torch.bincount(to, minlength=len(split)).tolist())


def expert_weights(expert: int, params: dict[str, Any], device: torch.device) -> tuple[Tensor, Tensor]:
    """The two matrices of one expert, [hidden, ffn] and [ffn, hidden]; any rank can make any expert's."""
    generator = torch.Generator(device=device).manual_seed(7919 * params["seed"] + expert)
    hidden, ffn, dtype = params["hidden"], params["ffn"], DTYPES[params["dtype"]]
    up = torch.randn(hidden, ffn, generator=generator, device=device) / hidden**0.5
    down = torch.randn(ffn, hidden, generator=generator, device=device) / ffn**0.5
    return up.to(dtype), down.to(dtype)


def apply_expert(rows: Tensor, weights: tuple[Tensor, Tensor]) -> Tensor:
    """Up projection, GELU, down projection; no rows give no rows."""
    return functional.gelu(rows @ weights[0]) @ weights[1] if len(rows) else rows.new_empty(0, weights[1].shape[1])


def exchange_counts(route: Route, session: Session) -> list[int]:
    """Tell each rank how many rows it will get: one all-to-all of W integers. Returns rows from each rank."""
    send = torch.tensor(route.send, dtype=torch.int64, device=session.device)
    receive = torch.empty_like(send)
    dist.all_to_all_single(receive, send)
    return receive.tolist()


def dispatch(rows: Tensor, route: Route, receive: list[int]) -> Tensor:
    """Send rows (any width or type) to the ranks of their experts. Returns [sum(receive), ...]."""
    sent = rows[route.order]
    arrived = sent.new_empty(sum(receive), *sent.shape[1:])
    dist.all_to_all_single(arrived, sent, output_split_sizes=receive, input_split_sizes=route.send)
    return arrived


def combine(rows: Tensor, route: Route, receive: list[int]) -> Tensor:
    """Send rows back: the splits of `dispatch`, input and output exchanged. Returns rows in the tokens' own order."""
    back = rows.new_empty(sum(route.send), *rows.shape[1:])
    dist.all_to_all_single(back, rows.contiguous(), output_split_sizes=route.send, input_split_sizes=receive)
    placed = torch.empty_like(back)
    placed[route.order] = back
    return placed


def check_splits(route: Route, receive: list[int], session: Session) -> list[list[int]]:
    """Gather the traffic matrix and refuse splits that do not fit: all-to-all itself would hang or write past an end.

    Returns: [source][destination] rows.
    """
    both = session.gather((route.send, receive))
    matrix = [send for send, _ in both]
    for rank, (_, got) in enumerate(both):
        wanted = [matrix[source][rank] for source in range(len(matrix))]
        if got != wanted:
            raise RuntimeError(f"rank {rank} expects {got} rows from the others, they send {wanted}")
    return matrix

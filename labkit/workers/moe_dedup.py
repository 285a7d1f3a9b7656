"""Top-k routing with several experts a rank: one row for each token-expert pair, or one for each token and rank.

Both ways send real rows through uneven all-to-alls and must give the same output; the second sends fewer.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from labkit.workers.moe_layer import (
    DTYPES,
    Route,
    apply_expert,
    check_splits,
    combine,
    dispatch,
    exchange_counts,
    expert_weights,
)
from labkit.workers.session import Session


def compare(session: Session, params: dict[str, Any]) -> None:
    """Route tokens to `dedup_top_k` experts each, run both ways, report rows sent and how far the outputs differ."""
    per_rank, top_k, num_tokens = (params[f"dedup_{name}"] for name in ("experts_per_rank", "top_k", "tokens"))
    if not num_tokens:
        return
    device, ranks = session.device, session.world_size
    generator = torch.Generator().manual_seed(params["seed"] * 31 + session.rank)
    experts = torch.rand(num_tokens, per_rank * ranks, generator=generator).topk(top_k).indices
    shares = torch.rand(num_tokens, top_k, generator=generator)
    shares = (shares / shares.sum(dim=1, keepdim=True)).to(device)
    rows = torch.randn(num_tokens, params["hidden"], generator=generator).to(DTYPES[params["dtype"]]).to(device)
    own = [expert_weights(session.rank * per_rank + i, params, device) for i in range(per_rank)]

    by_pair, pair_matrix = _by_pair(session, rows, experts, shares, own, per_rank)
    by_rank, rank_matrix = _by_rank(session, rows, experts, shares, own, per_rank)
    local = experts // per_rank == session.rank
    session.write(
        "dedup", num_tokens=num_tokens, top_k=top_k, experts_per_rank=per_rank, pair_matrix=pair_matrix,
        rank_matrix=rank_matrix, rel_diff=float(((by_pair - by_rank).norm() / by_pair.norm()).item()),
        norm=float(by_pair.norm().item()), local_pairs=int(local.sum().item()),
        local_tokens=int(local.any(dim=1).sum().item()))


def _route(to: Tensor, session: Session) -> tuple[Route, list[int], list[list[int]]]:
    """Route of rows whose destinations are `to`, rows to receive, and the traffic matrix."""
    route = Route(torch.argsort(to, stable=True).to(session.device),
                  torch.bincount(to, minlength=session.world_size).tolist())
    receive = exchange_counts(route, session)
    return route, receive, check_splits(route, receive, session)


def _by_pair(session: Session, rows: Tensor, experts: Tensor, shares: Tensor, own: list[tuple[Tensor, Tensor]],
             per_rank: int) -> tuple[Tensor, list[list[int]]]:
    top_k = experts.shape[1]
    flat = experts.flatten()
    route, receive, matrix = _route(flat // per_rank, session)
    arrived = dispatch(rows.repeat_interleave(top_k, dim=0), route, receive)
    which = dispatch((flat % per_rank).to(session.device), route, receive)
    done = torch.empty_like(arrived)
    for i, weights in enumerate(own):
        done[which == i] = apply_expert(arrived[which == i], weights)
    back = combine(done, route, receive).float()
    return (back.view(len(rows), top_k, -1) * shares.unsqueeze(-1)).sum(dim=1), matrix


def _by_rank(session: Session, rows: Tensor, experts: Tensor, shares: Tensor, own: list[tuple[Tensor, Tensor]],
             per_rank: int) -> tuple[Tensor, list[list[int]]]:
    goes = torch.zeros(len(rows), session.world_size, dtype=torch.bool)
    goes[torch.arange(len(rows)).unsqueeze(1), experts // per_rank] = True
    token, to = goes.nonzero(as_tuple=True)
    route, receive, matrix = _route(to, session)
    is_there = (experts // per_rank)[token] == to.unsqueeze(1)
    which = torch.where(is_there, (experts % per_rank)[token], -1).to(session.device)
    home = token.to(session.device)
    arrived = dispatch(rows[home], route, receive)
    slots = dispatch(which, route, receive)
    part = dispatch(shares[home], route, receive)
    done = torch.zeros(len(arrived), rows.shape[1], device=session.device)
    for i, weights in enumerate(own):
        hit = slots == i
        mine = hit.any(dim=1)
        share = (part * hit).sum(dim=1)[mine].unsqueeze(1)
        done[mine] += apply_expert(arrived[mine], weights).float() * share
    # Partial sums travel in float32 here, so that both ways can be compared to rounding; a library sends the row type.
    back = combine(done, route, receive)
    return torch.zeros(len(rows), rows.shape[1], device=session.device).index_add_(0, home, back), matrix

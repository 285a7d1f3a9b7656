"""What one rank of the checkpoint lab trains, and all of the state that a resume needs.

The model is the report's: Linear, GELU, Dropout, Linear. Its state lies in two kinds of file. Rank 0 writes `main.pt`
(model, optimizer, step), since data-parallel replicas are equal. Every rank writes its own `rank<k>.pt`: the states of
its CPU, CUDA and data generators, its step and its position in the data.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from labkit.workers.session import Session


@dataclass(kw_only=True)
class Job:
    """One rank of a training job."""

    session: Session
    model: nn.Sequential
    ddp: DistributedDataParallel
    optimizer: torch.optim.Optimizer
    data: torch.Generator
    batch: int
    hidden: int
    step: int = 0
    cursor: int = 0
    """Samples that this rank has taken from its data so far."""


def make_job(
    session: Session, params: Mapping[str, Any], *, is_fused: bool, is_static: bool = False, is_rebuilt: bool = True,
    bucket_cap_mib: float | None = None,
) -> Job:
    """A job before its first step; all of its state follows from `params` and the rank.

    Args:
        session: this rank.
        params: hidden, inner, dropout, batch, learning_rate, seed.
        is_fused: fused AdamW; else one tensor after the other.
        is_static: DDP's static_graph.
        is_rebuilt: False keeps the initial buckets for life (find_unused_parameters).
        bucket_cap_mib: DDP's cap; None is its default.
    """
    torch.manual_seed(params["seed"])  # the same weights on every rank
    model = nn.Sequential(
        nn.Linear(params["hidden"], params["inner"]), nn.GELU(), nn.Dropout(params["dropout"]),
        nn.Linear(params["inner"], params["hidden"])).to(session.device)
    cap = {} if bucket_cap_mib is None else {"bucket_cap_mb": bucket_cap_mib}
    ddp = DistributedDataParallel(
        model, device_ids=[session.device.index] if session.is_cuda else None, static_graph=is_static,
        find_unused_parameters=not is_rebuilt, **cap)  # type: ignore[arg-type]
    optimizer = torch.optim.AdamW(model.parameters(), lr=params["learning_rate"], fused=is_fused, foreach=False)
    torch.manual_seed(params["seed"] + 1 + session.rank)  # dropout differs between ranks
    data = torch.Generator().manual_seed(params["seed"] + 1001 + session.rank)
    return Job(session=session, model=model, ddp=ddp, optimizer=optimizer, data=data, batch=params["batch"],
               hidden=params["hidden"])


def next_batch(job: Job) -> tuple[Tensor, Tensor]:
    """The rank's next samples, features and targets [batch, hidden]; moves the cursor."""
    shape = (job.batch, job.hidden)
    inputs, targets = torch.randn(shape, generator=job.data), torch.randn(shape, generator=job.data)
    job.cursor += job.batch
    return inputs.to(job.session.device), targets.to(job.session.device)


def loss_of(module: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Mean squared error."""
    inputs, targets = batch
    return torch.nn.functional.mse_loss(module(inputs), targets)


def train_step(job: Job) -> dict[str, Any]:
    """One optimizer step; says by hash what went in and what came out.

    Returns: {"step", "loss", "cursor", "batch_sha"}, and on rank 0 {"gradient_sha", "model_sha"}: the reduced gradient,
        and the weights after the update.
    """
    batch = next_batch(job)
    job.optimizer.zero_grad(set_to_none=True)
    loss = loss_of(job.ddp, batch)
    loss.backward()
    hashes = {}
    if job.session.rank == 0:
        hashes["gradient_sha"] = digest([parameter.grad for parameter in job.model.parameters()])
    job.optimizer.step()
    job.step += 1
    if job.session.rank == 0:
        hashes["model_sha"] = digest(list(job.model.parameters()))
    return {"step": job.step, "loss": float(loss.detach()), "cursor": job.cursor, "batch_sha": digest(batch), **hashes}


def warm_up(job: Job, num_passes: int) -> None:
    """Forward and backward on made-up data, so that the reducer gets past its first iterations. Nothing is kept."""
    for _ in range(num_passes):
        inputs = torch.zeros((job.batch, job.hidden), device=job.session.device)
        loss_of(job.ddp, (inputs, inputs)).backward()
    job.optimizer.zero_grad(set_to_none=True)


def main_state(job: Job) -> dict[str, Any]:
    """What rank 0 writes for all."""
    return {"model": job.model.state_dict(), "optimizer": job.optimizer.state_dict(), "step": job.step}


def rank_state(job: Job) -> dict[str, Any]:
    """What every rank writes for itself; `cuda_rng` is None without a GPU."""
    return {
        "cpu_rng": torch.get_rng_state(),
        "cuda_rng": torch.cuda.get_rng_state(job.session.device) if job.session.is_cuda else None,
        "data_generator": job.data.get_state(), "step": job.step, "cursor": job.cursor,
    }


def restore(job: Job, main: dict[str, Any], own: dict[str, Any]) -> None:
    """Put both states back; raises RuntimeError if they are not of the same step."""
    if main["step"] != own["step"]:
        raise RuntimeError(f"main state of step {main['step']}, rank state of step {own['step']}: expected one save")
    job.model.load_state_dict(main["model"])
    job.optimizer.load_state_dict(main["optimizer"])
    torch.set_rng_state(own["cpu_rng"])
    if job.session.is_cuda:
        torch.cuda.set_rng_state(own["cuda_rng"], job.session.device)
    job.data.set_state(own["data_generator"])
    job.step, job.cursor = own["step"], own["cursor"]


def state_digests(job: Job) -> dict[str, str | int | None]:
    """SHA-256 of each part of the state as it is now; the CUDA generator's is None without a GPU."""
    own = rank_state(job)
    return {
        "model": digest(job.model.state_dict()), "optimizer": digest(job.optimizer.state_dict()),
        "cpu_rng": digest(own["cpu_rng"]), "cuda_rng": None if own["cuda_rng"] is None else digest(own["cuda_rng"]),
        "data_generator": digest(own["data_generator"]), "cursor": own["cursor"], "step": own["step"],
    }


def digest(value: Any) -> str:
    """SHA-256 of a nested value of tensors and plain values: equal digests mean equal bits."""
    state = hashlib.sha256()
    _update(state, value)
    return state.hexdigest()


def _update(state: Any, value: Any) -> None:
    if isinstance(value, Tensor):
        state.update(f"{value.dtype}{tuple(value.shape)}".encode())
        state.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    elif isinstance(value, Mapping):
        for key in sorted(value, key=str):
            state.update(f"{key}:".encode())
            _update(state, value[key])
    elif isinstance(value, list | tuple):
        for item in value:
            _update(state, item)
            state.update(b",")
    else:
        state.update(repr(value).encode())

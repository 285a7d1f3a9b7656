"""Is a reduced gradient the sum of the ranks' own gradients in the order that was predicted, element by element?

The ranks' own gradients come from the plain module, without DDP, from the same weights, batch and dropout. Rank 0 adds
them up span by span in the predicted order and compares bits with what DDP left in the model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from labkit.workers.checkpoint_state import Job, loss_of, next_batch, rank_state


def own_gradients(job: Job) -> dict[str, list[Tensor]]:
    """What each rank's next step would contribute, gathered on rank 0: parameter -> [n tensors] (else empty).

    Nothing of the job moves: generators, cursor and gradients are as before.
    """
    before = rank_state(job)
    job.optimizer.zero_grad(set_to_none=True)  # what the last step left would be added to
    loss_of(job.model, next_batch(job)).backward()
    gathered: dict[str, list[Tensor]] = {}
    for name, parameter in job.model.named_parameters():
        assert parameter.grad is not None
        mine = parameter.grad.detach().div(job.session.world_size)  # DDP divides before it adds
        found = [torch.empty_like(mine) for _ in range(job.session.world_size)] if job.session.rank == 0 else None
        dist.gather(mine, found, dst=0)
        if found is not None:
            gathered[name] = [gradient.flatten() for gradient in found]
        parameter.grad = None
    torch.set_rng_state(before["cpu_rng"])
    if job.session.is_cuda:
        torch.cuda.set_rng_state(before["cuda_rng"], job.session.device)
    job.data.set_state(before["data_generator"])
    job.cursor = before["cursor"]
    return gathered


def sums_in_order(gathered: Mapping[str, Sequence[Tensor]], spans: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
    """The gradients that a layout must give.

    Args:
        gathered: from `own_gradients`.
        spans: [{"name", "start", "stop", "ranks": order in which the ranks are added}].
    """
    sums = {name: torch.full_like(tensors[0], float("nan")) for name, tensors in gathered.items()}
    for span in spans:
        first, *others = (gathered[span["name"]][rank][span["start"]:span["stop"]] for rank in span["ranks"])
        total = first.clone()
        for other in others:
            total += other
        sums[span["name"]][span["start"]:span["stop"]] = total
    return sums


def num_equal(sums: Mapping[str, Tensor], reduced: Mapping[str, Tensor]) -> int:
    """Elements whose bits agree."""
    return sum(int((sums[name] == reduced[name].flatten()).sum()) for name in sums)

"""Gradients compared for real: bitwise across ranks, and within a bound against another computation."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

Gather = Callable[[dict[str, str]], list[dict[str, str]]]


def tensor_digests(named_tensors: Iterable[tuple[str, Tensor]]) -> dict[str, str]:
    """Name -> SHA-256 of the tensor's bytes, so that equal digests mean equal bits."""
    return {
        name: hashlib.sha256(tensor.detach().contiguous().cpu().view(torch.uint8).numpy().data).hexdigest()
        for name, tensor in named_tensors
    }


def names_differing(digests: dict[str, str], gather: Gather) -> list[str]:
    """Names of tensors whose bits are not the same on every rank.

    `digests` are this rank's, from `tensor_digests`; `gather` collects one value of every rank.
    """
    all_digests = gather(digests)
    names = {name for of_rank in all_digests for name in of_rank}
    return sorted(name for name in names if len({of_rank.get(name) for of_rank in all_digests}) > 1)


def named_gradients(module: nn.Module) -> list[tuple[str, Tensor]]:
    """[(name, gradient)] of every parameter; raises RuntimeError if one has none, which would be a vacuous pass."""
    missing = [name for name, parameter in module.named_parameters() if parameter.grad is None]
    if missing:
        raise RuntimeError(f"no gradient for {missing[0]} ({len(missing)} parameters): nothing to compare")
    return [(name, parameter.grad) for name, parameter in module.named_parameters() if parameter.grad is not None]


def clone_gradients(module: nn.Module) -> dict[str, Tensor]:
    """A copy of every gradient: the module's own are views of DDP's buckets and change under the next step."""
    return {name: gradient.detach().clone() for name, gradient in named_gradients(module)}


def difference(seen: dict[str, Tensor], reference: dict[str, Tensor]) -> dict[str, float | str | bool]:
    """How far two sets of tensors are apart, by Euclidean norm.

    Returns: {"rel_diff": |seen - reference| / |reference| over all tensors taken as one vector, "worst_rel_diff" and
        "worst_name": the same of the single worst tensor, "is_bitwise_equal"}.
    """
    if seen.keys() != reference.keys():
        raise RuntimeError(f"tensors differ by name: {sorted(seen.keys() ^ reference.keys())[:3]}")
    total_error = total = worst = 0.0
    worst_name, is_equal = "", True
    for name, tensor in seen.items():
        other = reference[name]
        error = float(torch.linalg.vector_norm(tensor - other))
        norm = float(torch.linalg.vector_norm(other))
        is_equal = is_equal and error == 0 and torch.equal(tensor, other)
        total_error += error**2
        total += norm**2
        ratio = error / norm if norm else (0.0 if error == 0 else math.inf)
        if ratio >= worst:
            worst, worst_name = ratio, name
    if not math.isfinite(total_error) or not math.isfinite(worst) or not total:
        raise RuntimeError(f"{worst_name}: difference {total_error}, reference {total}: expected finite and above zero")
    return {"rel_diff": math.sqrt(total_error / total), "worst_rel_diff": worst, "worst_name": worst_name,
            "is_bitwise_equal": is_equal}

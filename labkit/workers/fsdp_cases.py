"""One case of the FSDP lab: TinyGPT sharded the way the case says, and what can be read off a sharded module.

Works with FSDP2 (`fully_shard`, any device) and FSDP1 (`FullyShardedDataParallel`, accelerators only).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    BackwardPrefetch,
    FSDPModule,
    FullyShardedDataParallel,
    MixedPrecision,
    MixedPrecisionPolicy,
    ShardingStrategy,
    fully_shard,
)
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from labkit.workers.session import Session
from labkit.workers.tinygpt import Block, TinyGPT

BASELINE = "alone"
"""Not sharded, no communication: every rank steps on its own."""
OPERATORS = {"_allgather_base_": "all_gather", "_reduce_scatter_base_": "reduce_scatter"}
MATMULS = ("aten::mm", "aten::addmm")
_FSDP1_PREFETCH = {"PRE": BackwardPrefetch.BACKWARD_PRE, "POST": BackwardPrefetch.BACKWARD_POST, "NONE": None}


def shard(template: TinyGPT, case: dict[str, Any], session: Session, *, dtype: torch.dtype) -> nn.Module:
    """A sharded copy of `template` (which stays as it is, on the CPU).

    Args:
        template: float32, the same on every rank.
        case: as `labkit.calc.fsdp.fsdp_case` gives it, or one whose "api" is `BASELINE`.
        session: this rank.
        dtype: of gathered parameters and reduced gradients; shards stay float32.
    """
    model = copy.deepcopy(template)
    if case["api"] == BASELINE:
        return model.to(session.device, dtype)
    if case["api"] == "fsdp1":
        return _shard1(model, case, session, dtype)
    return _shard2(model.to(session.device), case, session, dtype)


def _shard1(model: TinyGPT, case: dict[str, Any], session: Session, dtype: torch.dtype) -> nn.Module:
    is_mixed = dtype != torch.float32
    return FullyShardedDataParallel(
        model,
        sharding_strategy=ShardingStrategy.FULL_SHARD,
        auto_wrap_policy=ModuleWrapPolicy({Block}) if case["wrap"] == "block" else None,
        mixed_precision=MixedPrecision(param_dtype=dtype, reduce_dtype=dtype, buffer_dtype=dtype) if is_mixed else None,
        backward_prefetch=_FSDP1_PREFETCH[case["prefetch"]],
        limit_all_gathers=case["is_limited"],
        use_orig_params=True,
        device_id=session.device,
    )


def _shard2(model: TinyGPT, case: dict[str, Any], session: Session, dtype: torch.dtype) -> nn.Module:
    mesh = init_device_mesh(session.device.type, (session.world_size,))
    policy = MixedPrecisionPolicy() if dtype == torch.float32 else MixedPrecisionPolicy(dtype, dtype)
    blocks: list[Any] = list(model.blocks) if case["wrap"] == "block" else []
    for block in blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy, reshard_after_forward=not case["keeps_parameters"])
    root: Any = fully_shard(model, mesh=mesh, mp_policy=policy)  # not resharded after forward: backward starts with it
    if case["prefetches_forward"]:
        for module, following in zip([root, *blocks], blocks):
            module.set_modules_to_forward_prefetch([following])
    if case["prefetch"] != "PRE":
        # FSDP2 has no switch for this: a list that names only itself, whole already, leaves nothing to prefetch.
        for module in [root, *blocks]:
            module.set_modules_to_backward_prefetch([module])
    if case["prefetch"] == "POST":
        for below, block in pairwise(blocks):
            block.register_full_backward_hook(_gather_early(below))
    return root


def _gather_early(module: FSDPModule) -> Callable[..., None]:
    """A backward hook that asks for another module's parameters and does not wait for them."""
    def hook(*_: Any) -> None:
        module.unshard(async_op=True)

    return hook


def fsdp1_refusal() -> str | None:
    """What FSDP1 says to a module on a machine without an accelerator; None if it takes it."""
    try:
        FullyShardedDataParallel(nn.Linear(2, 2))
    except Exception as error:
        return f"{type(error).__name__}: {error}".splitlines()[0]
    return None


def num_units(module: nn.Module) -> int:
    """Wrapped modules: each gathers and scatters as one."""
    return sum(isinstance(part, FSDPModule | FullyShardedDataParallel) for part in module.modules())


@contextmanager
def whole(module: nn.Module) -> Iterator[dict[str, tuple[Tensor, Tensor | None]]]:
    """Name -> (whole parameter, whole gradient or None), gathered on every rank; all ranks must enter."""
    if isinstance(module, FullyShardedDataParallel):
        with FullyShardedDataParallel.summon_full_params(module, writeback=False, with_grads=True):
            yield {name.replace("_fsdp_wrapped_module.", ""): (parameter.detach(), parameter.grad)
                   for name, parameter in module.named_parameters()}
    else:
        yield {name: (_full(parameter.detach()), None if parameter.grad is None else _full(parameter.grad))
               for name, parameter in module.named_parameters()}


def _full(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def state_bytes(module: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, int]:
    """Bytes of parameters, gradients and optimizer moments that this rank keeps after a step."""
    parameters = list(module.parameters())
    moments = [value for state in optimizer.state.values() for value in state.values()
               if isinstance(value, Tensor) and value.ndim > 0]
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    return {"parameters": _local_bytes(parameters), "gradients": _local_bytes(gradients),
            "optimizer": _local_bytes(moments)}


def _local_bytes(tensors: list[Any]) -> int:
    local = [tensor.to_local() if isinstance(tensor, DTensor) else tensor for tensor in tensors]
    return sum(tensor.numel() * tensor.element_size() for tensor in local)


class CallLog(TorchDispatchMode):
    """Sees every operator below autograd, in forward and backward: a count of collectives without a profiler.

    `calls` is [[phase, collective, message bytes, matrix products before it], ...]; `phase` is set by the caller.
    """

    def __init__(self) -> None:
        super().__init__()
        self.phase = "forward"
        self.calls: list[list[Any]] = []
        self.num_matmuls = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Note collectives and matrix products; change nothing."""
        name = func._schema.name
        if name.startswith("c10d::"):
            operator = name.removeprefix("c10d::")
            sizes = [arg.numel() * arg.element_size() for arg in args if isinstance(arg, Tensor)]
            self.calls.append([self.phase, OPERATORS.get(operator, operator), max(sizes, default=0), self.num_matmuls])
        elif name in MATMULS:
            self.num_matmuls += 1
        return func(*args, **(kwargs or {}))

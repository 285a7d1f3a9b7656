"""One rank of a DDP training job: its model, data and optimizer, one step of it, and what the reducer says about it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from labkit.workers.session import Session
from labkit.workers.tinygpt import TinyGPT, build_tinygpt

SIZES = ("num_layers", "hidden", "num_heads", "vocab_size", "num_positions", "tied", "linear_bias")


@dataclass(kw_only=True)
class Trainer:
    """The state a training loop carries, without the DDP wrapper, which the cases replace."""

    session: Session
    params: dict[str, Any]
    model: TinyGPT
    optimizer: torch.optim.Optimizer | None
    scaler: torch.amp.GradScaler
    is_autocast: bool
    micro_rows: list[Tensor] = field(default_factory=list)
    """Rows of each micro-step of the last step, as they went into the model."""

    def samples(self, ids: list[int]) -> Tensor:
        """[len(ids), seq_tokens + 1] token ids. A sample is a function of its id, so ranks and cases can share it."""
        rows = []
        for sample_id in ids:
            generator = torch.Generator().manual_seed(self.params["seed"] * 1_000_003 + sample_id)
            rows.append(torch.randint(self.params["vocab_size"], (self.params["seq_tokens"] + 1,), generator=generator))
        return torch.stack(rows).to(self.session.device)

    def batch_ids(self, step: int, *, samples_per_rank: int) -> list[int]:
        """Sample ids of this rank in a step: the ranks' slices of one global batch, disjoint and in rank order."""
        start = (step * self.session.world_size + self.session.rank) * samples_per_rank
        return list(range(start, start + samples_per_rank))

    def loss(self, module: nn.Module, rows: Tensor) -> Tensor:
        """Mean next-token cross-entropy of some samples."""
        with torch.autocast(self.session.device.type, dtype=torch.float16, enabled=self.is_autocast):
            logits = module(rows[:, :-1])
            return F.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())

    def backward_passes(self, ddp: DistributedDataParallel, rows: Tensor, *, num_micro: int, sync: str) -> Tensor:
        """Forward and backward of every micro-step from cleared gradients; returns the mean loss, on the device.

        `sync` says in which micro-steps the reducer runs: in "every" one, or only in the "last".
        """
        self.model.zero_grad(set_to_none=True)
        self.micro_rows = list(rows.chunk(num_micro))
        total = torch.zeros((), device=self.session.device)
        for i, micro_rows in enumerate(self.micro_rows):
            is_silent = sync == "last" and i < num_micro - 1
            # DDP arms its reducer in forward, so no_sync has to cover forward and backward.
            with ddp.no_sync() if is_silent else nullcontext():
                loss = self.loss(ddp, micro_rows) / num_micro
                self.scaler.scale(loss).backward()
            total += loss.detach()
        return total

    def step(self, ddp: DistributedDataParallel, rows: Tensor, *, num_micro: int = 1, sync: str = "every") -> Tensor:
        """One optimizer step; returns the loss, on the device."""
        loss = self.backward_passes(ddp, rows, num_micro=num_micro, sync=sync)
        if self.optimizer is not None:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        return loss

    @contextmanager
    def in_float32(self) -> Iterator[None]:
        """Without autocast and loss scaling, so that gradients are comparable within float32 rounding."""
        was = self.is_autocast, self.scaler
        self.is_autocast, self.scaler = False, no_scaler(self.session.device)
        try:
            yield
        finally:
            self.is_autocast, self.scaler = was


def make_trainer(session: Session, params: dict[str, Any], *, learning_rate: float) -> Trainer:
    """Model from the seed (the same on every rank), AdamW or none, fp16 autocast with loss scaling or plain float32.

    The cases pass a learning rate of zero: AdamW does all its arithmetic and the weights stay where they are, so every
    case starts from the same model and one reference serves them all.
    """
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    model = build_tinygpt(seed=params["seed"], device=session.device, **{name: params[name] for name in SIZES})
    is_fp16 = params["precision"] == "fp16"
    optimizer = None
    if params["optimizer"] == "adamw":
        optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, weight_decay=0.0, fused=True)
    scaler = torch.amp.GradScaler(session.device.type) if is_fp16 else no_scaler(session.device)
    return Trainer(session=session, params=params, model=model, optimizer=optimizer, scaler=scaler, is_autocast=is_fp16)


def no_scaler(device: torch.device) -> torch.amp.GradScaler:
    """A scaler that passes everything through."""
    return torch.amp.GradScaler(device.type, enabled=False)


def wrap(trainer: Trainer, cap_mib: float, *, is_first: bool = True) -> DistributedDataParallel:
    """DDP with an explicit cap: left at None, the first bucket would be limited to 1 MiB and the counts would change.

    Only the first wrapper of a model sends rank 0's weights to the others; they do not move after that.
    """
    devices = [trainer.session.device.index] if trainer.session.is_cuda else None
    return DistributedDataParallel(
        trainer.model, device_ids=devices, bucket_cap_mb=cap_mib, gradient_as_bucket_view=True,  # type: ignore[arg-type]
        init_sync=is_first)


def reducer_log(ddp: DistributedDataParallel) -> dict[str, Any]:
    """What the reducer says it did: initial and rebuilt bucket sizes in bytes, and the order of gradient readiness.

    Returns: {"initial_bucket_sizes_bytes", "rebuilt_bucket_sizes_bytes" (empty before the rebuild), "ready_order"
        (indices of parameters in registration order; empty if this torch does not tell)}.
    Raises: RuntimeError if the private API of torch that this reads is gone or has changed.
    """
    read = getattr(ddp, "_get_ddp_logging_data", None)
    log = read() if read is not None else {}
    if "bucket_sizes" not in log:
        raise RuntimeError(
            f"torch {torch.__version__}: DDP._get_ddp_logging_data() is gone or no longer gives bucket_sizes; bucket "
            "facts come from the reducer's log and are not guessed from the cap")
    return {"initial_bucket_sizes_bytes": _numbers(log["bucket_sizes"]),
            "rebuilt_bucket_sizes_bytes": _numbers(log.get("rebuilt_bucket_sizes")),
            "ready_order": _numbers(log.get("prev_iteration_grad_ready_order_indices"))}


def finite(loss: Tensor) -> float:
    """The loss as a number; raises RuntimeError if it is not finite."""
    value = float(loss.detach())
    if not math.isfinite(value):
        raise RuntimeError(f"loss is {value}: expected a finite number")
    return value


def _numbers(text: str | None) -> list[int]:
    return [int(word) for word in (text or "").replace(",", " ").split()]

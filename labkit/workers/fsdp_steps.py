"""FSDP training steps of TinyGPT: the collectives of a step, what a rank keeps, whether it trains right, how long.

    torchrun --nproc-per-node=2 -m labkit.workers.fsdp_steps --run-dir DIR        (DIR holds params.json)

Out: `rank<k>.jsonl` (kinds: setup, refusal, check, units, step, memory, calls, profiled, end) and
`trace_<case>_rank<k>.json` of torch's profiler. Profiled steps give structure, unprofiled steps give speed.
"""

from __future__ import annotations

import gc
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn import functional as F

from labkit.workers import fsdp_cases, gradients
from labkit.workers.ddp_steps import profiled, timed_steps
from labkit.workers.ddp_trainer import SIZES, Trainer, finite, no_scaler
from labkit.workers.session import Session, open_session, read_params
from labkit.workers.tinygpt import TinyGPT, build_tinygpt

DTYPES = {"fp32": torch.float32, "fp16": torch.float16}


@dataclass(frozen=True, kw_only=True)
class Reference:
    """Training of one process, without FSDP, on the whole global batch. Kept on the CPU: peaks are measured later."""

    losses: list[float]
    gradients: dict[str, Tensor]
    """After the first backward."""
    moved: dict[str, Tensor]
    """How far each parameter went from its start."""


def make_trainer(
    session: Session, params: dict[str, Any], module: nn.Module, *, learning_rate: float
) -> Trainer:
    """Module, data and fused AdamW of one case."""
    optimizer = torch.optim.AdamW(module.parameters(), lr=learning_rate, weight_decay=0.0, fused=True)
    return Trainer(session=session, params=params, model=module, optimizer=optimizer,  # type: ignore[arg-type]
                   scaler=no_scaler(session.device), is_autocast=False)


def loss_of(module: nn.Module, rows: Tensor) -> Tensor:
    """Mean next-token cross-entropy of some samples, in float32."""
    logits = module(rows[:, :-1])
    return F.cross_entropy(logits.float().flatten(0, 1), rows[:, 1:].flatten())


def step(trainer: Trainer, rows: Tensor) -> Tensor:
    """One optimizer step; returns the loss, on the device. Gradients stay until the next step."""
    assert trainer.optimizer is not None
    trainer.optimizer.zero_grad(set_to_none=True)
    loss = loss_of(trainer.model, rows)
    loss.backward()
    trainer.optimizer.step()
    return loss.detach()


def train(trainer: Trainer, rows_by_step: list[Tensor]) -> tuple[list[float], dict[str, Tensor], dict[str, Tensor]]:
    """(losses, whole gradients of the first step, whole parameters at the end); all ranks must call it."""
    losses: list[float] = []
    first: dict[str, Tensor] = {}
    for i, rows in enumerate(rows_by_step):
        losses.append(finite(step(trainer, rows)))
        if i == 0:
            with fsdp_cases.whole(trainer.model) as tensors:
                missing = [name for name, (_, gradient) in tensors.items() if gradient is None]
                if missing:
                    raise RuntimeError(f"no gradient for {missing[0]} ({len(missing)} parameters): nothing to compare")
                first = {name: gradient.clone() for name, (_, gradient) in tensors.items() if gradient is not None}
    with fsdp_cases.whole(trainer.model) as tensors:
        return losses, first, {name: parameter.clone() for name, (parameter, _) in tensors.items()}


def make_reference(session: Session, params: dict[str, Any], template: TinyGPT) -> Reference | None:
    """On rank 0 only."""
    if session.rank != 0:
        return None
    alone = {"name": fsdp_cases.BASELINE, "api": fsdp_cases.BASELINE}
    trainer = make_trainer(session, params, fsdp_cases.shard(template, alone, session, dtype=torch.float32),
                           learning_rate=params["learning_rate"])
    num_samples = session.world_size * params["microbatch"]
    rows = [trainer.samples(list(range(i * num_samples, (i + 1) * num_samples)))
            for i in range(params["num_check_steps"])]
    losses, first, final = train(trainer, rows)
    cpu = torch.device("cpu")
    return Reference(losses=losses, gradients=_on(cpu, first), moved=_on(cpu, _moved(final, template)))


def _on(device: torch.device, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.to(device) for name, tensor in tensors.items()}


def _moved(final: dict[str, Tensor], template: TinyGPT) -> dict[str, Tensor]:
    return {name: final[name] - start.detach().to(final[name].device) for name, start in template.named_parameters()}


def _differing_from_rank_0(session: Session, tensors: dict[str, Tensor]) -> list[str]:
    """Names of tensors that are not bit by bit what rank 0 has."""
    names = []
    for name, tensor in tensors.items():
        of_rank_0 = tensor.clone()
        dist.broadcast(of_rank_0, 0)
        if not torch.equal(of_rank_0.view(torch.int32), tensor.contiguous().view(torch.int32)):
            names.append(name)
    return names


def check_case(session: Session, params: dict[str, Any], case: dict[str, Any], template: TinyGPT,
               reference: Reference | None) -> None:
    """Train a few real steps in float32 and compare losses, first gradients and parameters with the reference."""
    module = fsdp_cases.shard(template, case, session, dtype=torch.float32)
    trainer = make_trainer(session, params, module, learning_rate=params["learning_rate"])
    rows = [trainer.samples(trainer.batch_ids(i, samples_per_rank=params["microbatch"]))
            for i in range(params["num_check_steps"])]
    losses, first, final = train(trainer, rows)
    compared = {}
    if reference is not None:
        compared = {"gradients": gradients.difference(first, _on(session.device, reference.gradients)),
                    "parameters": gradients.difference(_moved(final, template), _on(session.device, reference.moved)),
                    "reference_losses": reference.losses}
    session.write("check", case=case["name"], losses=losses, num_compared=len(first),
                  names_differing=_differing_from_rank_0(session, final), **compared)


def logged_calls(trainer: Trainer, rows: Tensor) -> list[list[Any]]:
    """Collectives of one forward and backward, seen by the dispatcher."""
    assert trainer.optimizer is not None
    trainer.optimizer.zero_grad(set_to_none=True)
    with fsdp_cases.CallLog() as log:
        loss = loss_of(trainer.model, rows)
        log.phase = "backward"
        loss.backward()
    trainer.optimizer.step()
    return log.calls


def run_case(session: Session, params: dict[str, Any], case: dict[str, Any], template: TinyGPT) -> None:
    """Time, count and record one case."""
    name, is_sharded = case["name"], case["api"] != fsdp_cases.BASELINE
    before = fresh_memory(session)
    module = fsdp_cases.shard(template, case, session, dtype=DTYPES[params["precision"]])
    # Half-precision weights of the baseline have no float32 copy to train: the same arithmetic, weights that stay.
    trainer = make_trainer(session, params, module, learning_rate=params["learning_rate"] if is_sharded else 0.0)
    rows = trainer.samples(trainer.batch_ids(0, samples_per_rank=params["microbatch"]))
    for _ in range(params["num_warmup_steps"]):
        step(trainer, rows)
    timed_steps(trainer, name, params["num_timed_steps"], lambda batch: step(trainer, batch),
                samples_per_rank=params["microbatch"])
    session.synchronize()
    if session.is_cuda:
        session.write("memory", case=name, before_bytes=before, **peaks(session))
    assert trainer.optimizer is not None
    session.write("units", case=name, num_units=fsdp_cases.num_units(module),
                  state_bytes=fsdp_cases.state_bytes(module, trainer.optimizer))
    if is_sharded:
        session.write("calls", case=name, calls=logged_calls(trainer, rows))
    if params["is_profiled"]:
        session.write("profiled", case=name, **profiled(trainer, name, lambda: step(trainer, rows)))
    session.say(f"{name}: done")


def wait_for_quiet(path: Path, *, timeout_s: float) -> None:
    """Return when a file exists: then nothing else that belongs to this run uses the machine."""
    deadline = time.monotonic() + timeout_s
    while not path.exists():
        if time.monotonic() > deadline:
            raise RuntimeError(f"waited {timeout_s:g} s for other launches of this run to end")
        time.sleep(0.05)


def fresh_memory(session: Session) -> int:
    """Give cached memory back and start peaks anew, so that the last case does not show; returns bytes in use."""
    gc.collect()
    if not session.is_cuda:
        return 0
    session.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(session.device)
    return torch.cuda.memory_allocated(session.device)


def peaks(session: Session) -> dict[str, int]:
    """Peaks of this process since `fresh_memory`, bytes: twice, by function and by the allocator's own table."""
    table = torch.cuda.memory_stats(session.device)
    found = {name: int(table[f"{name}_bytes.all.peak"]) for name in ("allocated", "active", "reserved")}
    return {**{f"{name}_peak_bytes": size for name, size in found.items()},
            "max_memory_allocated": torch.cuda.max_memory_allocated(session.device),
            "max_memory_reserved": torch.cuda.max_memory_reserved(session.device)}


def run_all(session: Session, params: dict[str, Any]) -> None:
    """Every case of one process, in the order given by `cases`."""
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    session.say(f"{session.world_size} ranks on {session.device.type}, building the model")
    template = build_tinygpt(seed=params["seed"], device=torch.device("cpu"), **{name: params[name] for name in SIZES})
    session.write("setup", world_size=session.world_size, parameters=[
        [name, list(parameter.shape)] for name, parameter in template.named_parameters()])
    if not session.is_cuda:
        session.write("refusal", fsdp1=fsdp_cases.fsdp1_refusal())
    if params["is_checked"]:
        reference = make_reference(session, params, template)
        for case in params["cases"]:
            if case["api"] != fsdp_cases.BASELINE:
                check_case(session, params, case, template, reference)
                gc.collect()  # hooks of a sharded module refer back to it
        session.say("every case trained beside one process")
        del reference
    wait_for_quiet(session.run_dir / params["quiet_file"], timeout_s=params["timeout_s"])
    for case in params["cases"]:
        run_case(session, params, case, template)
    session.write("end", cases=[case["name"] for case in params["cases"]])
    # Results are on disk. Every device and every peer is done before any rank takes its communicator away.
    session.barrier()


@record
def main() -> None:
    """Join the job, run every case, leave."""
    run_dir, params = read_params()
    with open_session(run_dir, device=params["device"], timeout_s=params["timeout_s"]) as session:
        run_all(session, params)


if __name__ == "__main__":
    main()

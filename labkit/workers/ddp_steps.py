"""DDP training steps of TinyGPT: what the reducer does, whether the gradients are right, and how long a step takes.

    torchrun --nproc-per-node=2 -m labkit.workers.ddp_steps --run-dir DIR        (DIR holds params.json)

Out: `rank<k>.jsonl` (kinds: setup, reference, reducer, step, profiled, gradients, trap, straggler, equivalence, end)
and `trace_<case>_rank<k>.json` of torch's profiler. Profiled steps give structure, unprofiled steps give speed.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, record_function

from labkit.workers import gradients
from labkit.workers.ddp_trainer import Trainer, finite, make_trainer, reducer_log, wrap
from labkit.workers.session import Session, open_session, read_params

VARIANTS = {"m8a1": (False, "every"), "m1a8-no_sync": (True, "last"), "m1a8-sync-every": (True, "every")}
"""Accumulation case -> (one micro-step a sample or one in all, in which micro-steps the reducer runs)."""
STEPS_TO_REBUILD = 2
"""The first backward fills the initial buckets; the second forward rebuilds them."""
REFERENCE_ROWS = 16
"""Samples in one backward of the reference: bounds the memory of its logits. Their sum is the concatenated batch."""
Reference = dict[str, Tensor] | None


def timed_steps(trainer: Trainer, case: str, num_steps: int, run_step: Callable[[Tensor], Tensor], *,
                samples_per_rank: int) -> None:
    """Unprofiled steps on fresh data. All ranks start together; each reports its own time, the slowest one counts."""
    session = trainer.session
    for i in range(num_steps):
        rows = trainer.samples(trainer.batch_ids(1 + i, samples_per_rank=samples_per_rank))
        session.barrier()
        carried = loopback_bytes()
        start = time.perf_counter()
        loss = run_step(rows)
        session.synchronize()
        time_s = time.perf_counter() - start
        session.barrier()
        session.write("step", case=case, index=i, time_s=time_s, loss=finite(loss),
                      loopback_bytes=None if session.is_cuda else loopback_bytes() - carried)


def loopback_bytes() -> int:
    """Bytes that this host's loopback interface has carried since boot (0 where it does not count)."""
    try:
        lines = Path("/proc/net/dev").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((int(line.split(":")[1].split()[0]) for line in lines if line.strip().startswith("lo:")), 0)


def profiled(trainer: Trainer, name: str, run_step: Callable[[], Tensor]) -> dict[str, Any]:
    """Record one step with torch's profiler.

    Returns: {"trace": file name in the run directory, "loss"}.
    """
    session = trainer.session
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if session.is_cuda else [])]
    if session.is_cuda:  # the first step of a recording pays for starting the GPU's tracer
        with profile(activities=activities):
            run_step()
            session.synchronize()
    with profile(activities=activities, record_shapes=True) as profiler:
        session.barrier()  # recorded, but outside the step: its kernels are not counted
        with record_function("ProfilerStep#0"):
            loss = run_step()
            session.synchronize()
    trace = f"trace_{name.replace(' ', '_')}_rank{session.rank}.json"
    profiler.export_chrome_trace(str(session.run_dir / trace))
    return {"trace": trace, "loss": finite(loss)}


def reference_gradients(trainer: Trainer, samples_per_rank: int) -> Reference:
    """Gradients of one process without DDP on the whole global batch: what the average over ranks has to equal."""
    if trainer.session.rank != 0:
        return None
    ids = list(range(trainer.session.world_size * samples_per_rank))
    trainer.model.zero_grad(set_to_none=True)
    total = 0.0
    with trainer.in_float32():
        for rows in trainer.samples(ids).split(REFERENCE_ROWS):
            loss = trainer.loss(trainer.model, rows) * (len(rows) / len(ids))
            loss.backward()
            total += finite(loss)
    trainer.session.write("reference", samples_per_rank=samples_per_rank, num_samples=len(ids), loss=total)
    return gradients.clone_gradients(trainer.model)


def check_gradients(trainer: Trainer, case: str, *, loss: float, ids: list[int], reference: Reference,
                    other: Reference) -> None:
    """Compare the gradients that lie in the model: across ranks, with the reference, and with another case's."""
    session = trainer.session
    named = gradients.named_gradients(trainer.model)
    differing = gradients.names_differing(gradients.tensor_digests(named), session.gather)
    digests = gradients.tensor_digests((str(i), rows) for i, rows in enumerate(trainer.micro_rows))
    session.write(
        "gradients", case=case, loss=loss, sample_ids=ids, micro_digests=list(digests.values()),
        num_compared=len(named), names_differing=differing,
        vs_reference=gradients.difference(dict(named), reference) if reference is not None else None,
        vs_other=gradients.difference(dict(named), other) if other is not None else None)


def run_case(trainer: Trainer, ddp: DistributedDataParallel, case: str, *, samples_per_rank: int, num_micro: int,
             sync: str, num_timed: int, reference: Reference, other: Reference = None) -> None:
    """Time, profile and check one way of making an optimizer step; only the first process of a run checks."""
    def run_step(rows: Tensor) -> Tensor:
        return trainer.step(ddp, rows, num_micro=num_micro, sync=sync)

    ids = trainer.batch_ids(0, samples_per_rank=samples_per_rank)
    rows = trainer.samples(ids)
    for _ in range(trainer.params["num_warmup_steps"]):
        run_step(rows)
    timed_steps(trainer, case, num_timed, run_step, samples_per_rank=samples_per_rank)
    found = profiled(trainer, case, lambda: run_step(rows))
    trainer.session.write("profiled", case=case, **found)
    if not trainer.params["is_checked"]:
        return
    loss = found["loss"]
    if trainer.is_autocast:  # half-precision gradients cannot tell a small error from rounding
        with trainer.in_float32():
            loss = finite(trainer.backward_passes(ddp, rows, num_micro=num_micro, sync=sync))
    check_gradients(trainer, case, loss=loss, ids=ids, reference=reference, other=other)


def bucket_case(trainer: Trainer, cap_mib: float, reference: Reference) -> DistributedDataParallel:
    """Steps under one bucket cap, from the first backward (initial buckets) past the rebuild."""
    params, session = trainer.params, trainer.session
    case = f"{cap_mib:g} MiB"
    ddp = wrap(trainer, cap_mib, is_first=cap_mib == params["bucket_order_mib"][0])
    rows = trainer.samples(trainer.batch_ids(0, samples_per_rank=params["microbatch"]))
    for _ in range(STEPS_TO_REBUILD):
        trainer.step(ddp, rows)
    run_case(trainer, ddp, case, samples_per_rank=params["microbatch"], num_micro=1, sync="every",
             num_timed=params["num_timed_steps"], reference=reference)
    log = reducer_log(ddp)
    if not log["rebuilt_bucket_sizes_bytes"]:
        raise RuntimeError(f"cap {case}: the reducer's log shows no rebuilt buckets after the case's steps")
    session.write("reducer", case=case, cap_mib=cap_mib, **log)
    session.say(f"cap {case}: {len(log['rebuilt_bucket_sizes_bytes'])} buckets")
    return ddp


def accumulation_cases(trainer: Trainer, ddp: DistributedDataParallel) -> None:
    """The same global batch three ways: one big micro-step, many with one reduction, many with a reduction each."""
    params = trainer.params
    num_samples = params["samples_per_rank"]
    is_checked = params["is_checked"]
    reference = reference_gradients(trainer, num_samples) if is_checked else None
    big_batch: Reference = None
    for case, (is_split, sync) in VARIANTS.items():
        run_case(trainer, ddp, case, samples_per_rank=num_samples, num_micro=num_samples if is_split else 1, sync=sync,
                 num_timed=params["num_accum_timed_steps"], reference=reference, other=big_batch)
        if case == "m8a1" and is_checked and trainer.session.rank == 0:
            big_batch = gradients.clone_gradients(trainer.model)
        trainer.session.say(f"accumulation {case}: done")


def no_sync_traps(trainer: Trainer, ddp: DistributedDataParallel) -> None:
    """One micro-step with `no_sync` around one half of it only: does the reducer run?"""
    rows = trainer.samples(trainer.batch_ids(0, samples_per_rank=1))
    for scope in ("forward", "backward"):
        def micro_step(scope: str = scope) -> Tensor:
            trainer.model.zero_grad(set_to_none=True)
            with ddp.no_sync() if scope == "forward" else nullcontext():
                loss = trainer.loss(ddp, rows)
            with ddp.no_sync() if scope == "backward" else nullcontext():
                loss.backward()
            return loss

        trainer.session.write("trap", scope=scope, **profiled(trainer, f"trap {scope}", micro_step))


def straggler_steps(trainer: Trainer, ddp: DistributedDataParallel, sleep_s: float) -> None:
    """The last rank is late after its last collective of the step: which clock notices?"""
    session = trainer.session
    rows = trainer.samples(trainer.batch_ids(0, samples_per_rank=trainer.params["microbatch"]))
    for i in range(trainer.params["num_straggler_steps"]):
        session.barrier()
        start = time.perf_counter()
        trainer.step(ddp, rows)
        session.synchronize()
        if session.rank == session.world_size - 1:
            time.sleep(sleep_s)
        session.write("straggler", index=i, time_s=time.perf_counter() - start)


def equivalence(session: Session, params: dict[str, Any]) -> None:
    """Train a few real steps from one initialisation with one big micro-step and with accumulation, and compare."""
    final: dict[str, dict[str, Tensor]] = {}
    losses: dict[str, list[float]] = {}
    num_samples = params["samples_per_rank"]
    for case in ("m8a1", "m1a8-no_sync"):
        is_split, sync = VARIANTS[case]
        trainer = make_trainer(session, {**params, "optimizer": "adamw"}, learning_rate=params["learning_rate"])
        ddp = wrap(trainer, params["accum_cap_mib"])
        losses[case] = []
        for step in range(params["num_equivalence_steps"]):
            rows = trainer.samples(trainer.batch_ids(step, samples_per_rank=num_samples))
            loss = trainer.step(ddp, rows, num_micro=num_samples if is_split else 1, sync=sync)
            losses[case].append(finite(loss))
        final[case] = {name: parameter.detach() for name, parameter in trainer.model.named_parameters()}
        session.say(f"equivalence {case}: {len(losses[case])} steps")
        del ddp, trainer
        gc.collect()
    session.write("equivalence", losses=losses, parameters=gradients.difference(final["m1a8-no_sync"], final["m8a1"]))


def run_all(session: Session, params: dict[str, Any]) -> None:
    """Every case of one process, in the order given by `bucket_order_mib`."""
    session.say(f"{session.world_size} ranks on {session.device.type}, building the model")
    is_checked = params["is_checked"]
    trainer = make_trainer(session, params, learning_rate=0.0)
    named = list(trainer.model.named_parameters())
    session.write("setup", world_size=session.world_size, parameters=[
        [name, list(parameter.shape), str(parameter.dtype).removeprefix("torch.")] for name, parameter in named])
    before = gradients.tensor_digests(named) if is_checked else {}
    reference = reference_gradients(trainer, params["microbatch"]) if is_checked else None
    for cap_mib in params["bucket_order_mib"]:
        ddp = bucket_case(trainer, cap_mib, reference)
        if cap_mib == params["accum_cap_mib"]:
            accumulation_cases(trainer, ddp)
            if is_checked:
                no_sync_traps(trainer, ddp)
                straggler_steps(trainer, ddp, params["straggler_sleep_ms"] / 1e3)
        del ddp
        gc.collect()  # a dropped DDP sits in a reference cycle, and its hooks go only when its reducer goes
    if is_checked:
        after = gradients.tensor_digests(named)
        session.write("end", weights_moved=sorted(name for name in before if before[name] != after[name]),
                      weights_differing=gradients.names_differing(after, session.gather))
        if params["num_equivalence_steps"]:
            del trainer, named, reference
            equivalence(session, params)


@record
def main() -> None:
    """Join the job, run every case, leave."""
    run_dir, params = read_params()
    with open_session(run_dir, device=params["device"], timeout_s=params["timeout_s"]) as session:
        run_all(session, params)


if __name__ == "__main__":
    main()

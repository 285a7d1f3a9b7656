"""Train, save, go on; start again from the save; compare bit by bit. With DCP beside it, and the time a save takes.

    torchrun --nproc-per-node=4 -m labkit.workers.checkpoint_resume --run-dir DIR        (DIR holds params.json)

Out: `rank<k>.jsonl` (kinds: setup, step, saved, partial, refused, resumed, order, dcp, cost, verify_cost). Checkpoints
lie in a temporary folder beside it and are gone at the end.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel

from labkit.checkpoints import MANIFEST_NAME, CheckpointError, parse_manifest, step_dir, verify
from labkit.workers import checkpoint_order
from labkit.workers.checkpoint_cost import measure_cost
from labkit.workers.checkpoint_dcp import dcp_scenarios
from labkit.workers.checkpoint_io import MAIN, load, save
from labkit.workers.checkpoint_state import (
    Job,
    digest,
    main_state,
    make_job,
    rank_state,
    restore,
    state_digests,
    train_step,
    warm_up,
)
from labkit.workers.checkpoint_talk import Talk, open_talk
from labkit.workers.session import Session, open_session, read_params


def reducer_stage(ddp: DistributedDataParallel) -> dict[str, Any]:
    """Whether the reducer has rebuilt its buckets, and their sizes, from its own log."""
    read = getattr(ddp, "_get_ddp_logging_data", None)
    log = read() if read is not None else {}
    sizes = str(log.get("rebuilt_bucket_sizes") or "")
    return {"has_rebuilt_buckets": int(log.get("has_rebuilt_buckets") or 0),
            "rebuilt_bucket_sizes_bytes": [int(size) for size in sizes.replace(",", " ").split()]}


def train(session: Session, job: Job, control: str, run: str, num_steps: int) -> list[Tensor]:
    """Some steps, reported by hash; returns the reduced gradients of the first of them."""
    first: list[Tensor] = []
    for i in range(num_steps):
        session.write("step", control=control, run=run, **train_step(job))
        if i == 0:
            first = [p.grad.detach().clone() for p in job.model.parameters() if p.grad is not None]
    return first


def run_control(talk: Talk, params: Mapping[str, Any], control: str, settings: dict[str, Any], root: Path, *,
                is_first: bool) -> None:
    """One control: the run that is never stopped, the save, the run that starts from it, and how they differ."""
    session = talk.session
    torch.use_deterministic_algorithms(settings.pop("is_deterministic", False))
    num_warm_passes = settings.pop("num_warm_passes", 0)
    settings.setdefault("is_fused", False)
    save_step, num_after = params["save_step"], params["num_steps"] - params["save_step"]
    folder = root / control.replace(" ", "_")
    try:
        job = make_job(session, params, **settings)
        train(session, job, control, "before", save_step)
        stage = reducer_stage(job.ddp)
        saved = state_digests(job)
        session.barrier()
        started = time.perf_counter()
        save(talk, folder, step=job.step, main=main_state(job), own=rank_state(job), algorithm="sha256")
        session.write("saved", control=control, time_s=time.perf_counter() - started, digests=saved, **stage,
                      **(manifest_facts(step_dir(folder, job.step)) if session.rank == 0 else {}))
        skip_a_rank(talk, params, control, job, folder)
        gathered = checkpoint_order.own_gradients(job) if control in params["spans"] else {}
        kept = train(session, job, control, "continuous", num_after)

        fresh = make_job(session, params, **settings)
        warm_up(fresh, num_warm_passes)
        stage = reducer_stage(fresh.ddp)
        session.barrier()
        started = time.perf_counter()
        main, own, _ = load(session, folder)
        restore(fresh, main, own)
        load_s = time.perf_counter() - started
        loaded = state_digests(fresh)
        again = train(session, fresh, control, "resumed", num_after)
        # The reducer's log tells of the rebuild a step or two later: the sizes are those of the run that went on.
        session.write("resumed", control=control, time_s=load_s, digests=loaded,
                      has_rebuilt_buckets=stage["has_rebuilt_buckets"],
                      rebuilt_bucket_sizes_bytes=reducer_stage(job.ddp)["rebuilt_bucket_sizes_bytes"],
                      **difference(job, fresh), gradient_elements_differing=count_differing(kept, again),
                      final_model_sha={"continuous": digest(list(job.model.parameters())),
                                       "resumed": digest(list(fresh.model.parameters()))})
        if gathered:
            check_order(session, params["spans"][control], job, gathered, {"initial": again, "later": kept})
        if is_first:
            refuse_damage(session, folder, save_step)
    finally:
        torch.use_deterministic_algorithms(False)
        session.barrier()
        if session.rank == 0:
            shutil.rmtree(folder, ignore_errors=True)
    session.say(f"{control}: done")


def manifest_facts(directory: Path) -> dict[str, Any]:
    """What rank 0 finds in the committed manifest, and in each rank's own file."""
    manifest = parse_manifest((directory / MANIFEST_NAME).read_bytes())
    parts = {entry.path: sorted(torch.load(directory / entry.path, weights_only=True)) for entry in manifest.files}
    return {"is_committed": verify(directory).is_good, "world_size": manifest.world_size, "hash": manifest.algorithm,
            "files": [{"path": f.path, "bytes": f.bytes, "digest": f.digest, "rank": f.rank} for f in manifest.files],
            "parts": parts}


def skip_a_rank(talk: Talk, params: Mapping[str, Any], control: str, job: Job, folder: Path) -> None:
    """The same save with one rank that writes nothing: there must be no manifest, and every rank must know."""
    session = talk.session
    skipping, error = min(params["skipping_rank"], session.world_size - 1), None
    elsewhere = folder / "partial"
    try:
        save(talk, elsewhere, step=job.step, main={"step": job.step}, own=rank_state(job), algorithm="sha256",
             skipping_rank=skipping)
    except CheckpointError as refused:
        error = str(refused)
    session.write("partial", control=control, skipping_rank=skipping, error=error,
                  has_manifest=(step_dir(elsewhere, job.step) / MANIFEST_NAME).exists())


def refuse_damage(session: Session, folder: Path, save_step: int) -> None:
    """A load of a checkpoint with one flipped byte, and with another world size: every rank must be refused."""
    directory = step_dir(folder, save_step)
    report = verify(directory, world_size=session.world_size + 1)
    session.write("refused", fault="world_size", error=None if report.is_good else report.line())
    session.barrier()
    if session.rank == 0:
        path = directory / MAIN
        with open(path, "r+b") as stream:
            stream.seek(path.stat().st_size // 2)
            byte = stream.read(1)[0]
            stream.seek(-1, 1)
            stream.write(bytes([byte ^ 1]))
    session.barrier()
    try:
        load(session, folder)
        error = None
    except CheckpointError as refused:
        error = str(refused)
    session.write("refused", fault="flipped byte", error=error)


def difference(job: Job, fresh: Job) -> dict[str, Any]:
    """How far the weights of two jobs are apart at the end."""
    pairs = [(a.detach(), b.detach()) for a, b in zip(job.model.parameters(), fresh.model.parameters(), strict=True)]
    return {"elements_differing": sum(int((a != b).sum()) for a, b in pairs),
            "max_abs_diff": max(float((a - b).abs().max()) for a, b in pairs),
            "num_elements": sum(a.numel() for a, _ in pairs)}


def count_differing(first: list[Tensor], second: list[Tensor]) -> int:
    """Elements of two lists of tensors whose values differ."""
    return sum(int((a != b).sum()) for a, b in zip(first, second, strict=True))


def check_order(session: Session, spans: Mapping[str, Any], job: Job, gathered: dict[str, list[Tensor]],
                reduced: Mapping[str, list[Tensor]]) -> None:
    """Both layouts' gradients against sums in the predicted order; one layout's also against the other's order."""
    names = [name for name, _ in job.model.named_parameters()]
    sums = {stage: checkpoint_order.sums_in_order(gathered, spans[stage]) for stage in reduced}
    for stage, gradients in reduced.items():
        other = next(name for name in reduced if name != stage)
        named = dict(zip(names, gradients, strict=True))
        session.write("order", stage=stage, num_elements=sum(g.numel() for g in gradients),
                      equal_in_own_order=checkpoint_order.num_equal(sums[stage], named),
                      equal_in_other_order=checkpoint_order.num_equal(sums[other], named))


def run_all(session: Session, params: Mapping[str, Any], root: Path) -> None:
    """Every part of one process."""
    session.write("setup", world_size=session.world_size, device=session.device.type, torch=torch.__version__)
    talk = open_talk(session)
    for number, (control, settings) in enumerate(params["controls"]):
        run_control(talk, params, control, {**settings}, root, is_first=number == 0)
    if params["is_dcp_tried"]:
        dcp_scenarios(session, root / "dcp")
        session.say("DCP scenarios: done")
    if params["num_cost_rounds"]:
        measure_cost(session, params, root / "cost")


@record
def main() -> None:
    """Join the job, run every part, leave."""
    run_dir, params = read_params()
    with open_session(run_dir, device=params["device"], timeout_s=params["timeout_s"]) as session:
        folder = session.gather(tempfile.mkdtemp(prefix="checkpoints-", dir=run_dir) if session.rank == 0 else None)[0]
        try:
            run_all(session, params, Path(folder))
        finally:
            if session.rank == 0:
                shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()

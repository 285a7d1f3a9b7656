"""torch's distributed checkpoint (DCP) used as it is, and our manifest around it.

DCP writes shards in parallel and reshards when it loads. It keeps no content hash, and it replaces files in place. So
`save_dcp` seals what it wrote with a manifest, and `load_dcp` verifies before it loads. `dcp_scenarios` tries the same
accidents on both.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save

from labkit.checkpoints import (
    MANIFEST_NAME,
    FileEntry,
    Report,
    begin,
    entry_of,
    newest_good,
    require_good,
    seal,
    step_dir,
    verify,
)
from labkit.workers.session import Session

DCP_ERRORS = (CheckpointException, Exception)
"""DCP's own error is no `Exception`."""
NUM_ELEMENTS = 4096
Damage = Callable[[Path], None]


class CrashBeforeMetadata(FileSystemWriter):
    """Fails where a kill would hurt most: every shard is in its place, `.metadata` is still the old one."""

    def finish(self, metadata: Metadata, results: Any) -> None:
        """Called by DCP on rank 0 after all ranks have written."""
        raise RuntimeError("stopped before .metadata was replaced")


def save_dcp(session: Session, root: Path, state: dict[str, Any], *, step: int, algorithm: str,
             process_group: dist.ProcessGroup | None = None) -> None:
    """DCP's own save into a new directory, then a manifest: each rank hashes its own files, rank 0 publishes.

    Raises: CheckpointError on rank 0 if the step is committed already.
    """
    directory = step_dir(root, step)
    if session.rank == 0:
        begin(directory)
    session.barrier()
    dcp_save(state, checkpoint_id=directory, process_group=process_group)
    mine = sorted(path.name for path in directory.glob(f"__{session.rank}_*.distcp"))
    found = session.gather([entry_of(directory, name, algorithm) for name in mine])
    if session.rank == 0:
        known: dict[str, FileEntry] = {entry.path: entry for entries in found for entry in entries}
        seal(directory, step=step, world_size=session.world_size, algorithm=algorithm, digests=known)
    session.barrier()


def load_dcp(directory: Path, state: dict[str, Any]) -> None:
    """Verify, then let DCP load into `state`; raises CheckpointError before DCP has touched anything."""
    require_good(directory)
    dcp_load(state, checkpoint_id=directory)


def rank_tensors(world_size: int, step: int) -> dict[str, Tensor]:
    """One tensor a rank, all of one size, filled with the step: so each rank writes one shard of equal length."""
    return {f"rank{rank}": torch.full((NUM_ELEMENTS,), float(step)) + rank / 16 for rank in range(world_size)}


def dcp_scenarios(session: Session, root: Path) -> None:
    """Save with real ranks, then damage copies in every way of the list; rank 0 reports what each reader says."""
    own = f"rank{session.rank}"
    for step in (1, 2):
        mine = {own: rank_tensors(session.world_size, step)[own]}
        save_dcp(session, root / "job", mine, step=step, algorithm="sha256")
    if session.rank == 0:
        shutil.copytree(root / "job", root / "overwritten")
    session.barrier()
    target = step_dir(root / "overwritten", 2)
    try:  # step 3 over step 2, in place, as DCP allows by default
        dcp_save({own: rank_tensors(session.world_size, 3)[own]},
                 storage_writer=CrashBeforeMetadata(target), checkpoint_id=target)
    except DCP_ERRORS as error:
        session.write("dcp_crash", error=type(error).__name__)
    session.barrier()
    if session.rank == 0:
        for name, damage in scenarios(session.world_size, target).items():
            session.write("dcp", scenario=name, **try_scenario(root, damage, session.world_size))
    session.barrier()


def scenarios(world_size: int, overwritten: Path) -> dict[str, Damage]:
    """Name -> what happens to a copy of the checkpoint of step 2; `overwritten` is what a stopped overwrite left."""
    last = world_size - 1
    shard = lambda folder, rank: folder / f"__{rank}_0.distcp"  # noqa: E731

    def flip(folder: Path) -> None:
        data = bytearray(shard(folder, 0).read_bytes())
        # A byte of the tensor itself: DCP stores it as torch.save does, so look for the value.
        where = data.find(torch.full((8,), 2.0).numpy().tobytes())
        data[where + 2] ^= 1 << random.Random(0).randrange(8)
        shard(folder, 0).write_bytes(data)

    def replace_by_overwritten(folder: Path) -> None:
        shutil.rmtree(folder)
        shutil.copytree(overwritten, folder)

    def unfinished(folder: Path) -> None:
        (folder / ".metadata").rename(folder / ".metadata.tmp")
        (folder / MANIFEST_NAME).unlink()

    def swap(folder: Path) -> None:
        first, second = shard(folder, 0).read_bytes(), shard(folder, last).read_bytes()
        shard(folder, 0).write_bytes(second)
        shard(folder, last).write_bytes(first)

    return {
        "untouched": lambda folder: None,
        "flipped byte": flip,
        "cut to half": lambda folder: _cut(shard(folder, 0)),
        "metadata deleted": lambda folder: (folder / ".metadata").unlink(),
        "crash while overwriting": replace_by_overwritten,
        "unfinished save": unfinished,
        "shard dropped": lambda folder: shard(folder, last).unlink(),
        "stale extra shard": lambda folder: shard(folder, world_size + 3).write_bytes(b"stale"),
        "shards swapped": swap,
        "manifest cut": lambda folder: _cut(folder / MANIFEST_NAME),
    }


def _cut(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


def try_scenario(root: Path, damage: Damage, world_size: int) -> dict[str, Any]:
    """Damage a copy of the job's newest checkpoint, of step 2, and ask both readers.

    Returns: {"dcp_load": "right" | "wrong values" | "raises <error>", "verify": status, "problems", "warnings":
        messages, "named": files named by problems, "newest_good_step"}.
    """
    job = root / "try"
    shutil.copytree(root / "job", job)
    directory = step_dir(job, 2)
    damage(directory)
    state = {key: torch.zeros(NUM_ELEMENTS) for key in rank_tensors(world_size, 1)}
    try:
        dcp_load(state, checkpoint_id=directory, no_dist=True)
        wanted = rank_tensors(world_size, 2)
        said = "right" if all(torch.equal(state[key], wanted[key]) for key in wanted) else "wrong values"
    except DCP_ERRORS as error:
        said = f"raises {type(error).__name__}"
    report: Report = verify(directory)
    best, _ = newest_good(job)
    shutil.rmtree(job)
    return {"dcp_load": said, "verify": report.status, "problems": [p.message for p in report.problems],
            "warnings": [w.message for w in report.warnings],
            "named": sorted({p.path for p in report.problems if p.path}),
            "newest_good_step": best.step if best else None}

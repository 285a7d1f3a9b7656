"""Saving and loading a rank's state under the manifest protocol, at once or in the background.

    save(Talk(session), root, step=3, main=main_state(job), own=rank_state(job), algorithm="sha256")
    load(session, root)              newest good step, the same on every rank, or an error on every rank

`torch.save` streams through a hash into a temporary file. The gather of what each rank wrote is the barrier. Then rank
0 publishes the manifest and tells all whether it did. A rank that cannot write says so, instead of leaving the others
to wait for their timeout. `labkit.workers.checkpoint_talk` has the messages.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from labkit.checkpoints import CheckpointError, FileEntry, begin, commit, newest_good, step_dir, write_file
from labkit.checkpoints.save import At
from labkit.workers.checkpoint_talk import Talk, cut, own_talk
from labkit.workers.session import Session

MAIN = "main.pt"


def rank_file(rank: int) -> str:
    """Name of a rank's own file."""
    return f"rank{rank:05d}.pt"


def save(
    talk: Talk, root: Path, *, step: int, main: dict[str, Any], own: dict[str, Any], algorithm: str,
    skipping_rank: int | None = None, durable: bool = True, at: At | None = None,
) -> dict[str, float]:
    """Save one step; when it returns, every rank knows that it is committed.

    Args:
        talk: of this rank with the others.
        root: folder of the job's checkpoints.
        step: training step.
        main: state that rank 0 writes.
        own: state that each rank writes for itself.
        algorithm: hash of the files.
        skipping_rank: this rank writes nothing: a fault to try.
        durable: fsync.
        at: see `labkit.checkpoints.save`.

    Returns: {"hash_s", "commit_s"}: seconds of this rank in the hash, and from its last write to the end.
    Raises: CheckpointError on every rank if one rank did not write or the files are not all there.
    """
    session, directory = talk.session, step_dir(root, step)
    timing: dict[str, float] = {}
    found: list[FileEntry] = []
    _heed(talk.open(_attempt(lambda: begin(directory)) if session.rank == 0 else None))
    files = {**({MAIN: main} if session.rank == 0 else {}), rank_file(session.rank): own}
    problem = None
    if session.rank != skipping_rank:
        problem = _attempt(lambda: found.extend(
            write_file(directory, name, lambda stream, state=state: torch.save(state, stream), rank=session.rank,
                       algorithm=algorithm, durable=durable, at=at, timing=timing)
            for name, state in files.items()))
    started = time.perf_counter()
    reports = talk.report([[asdict(entry) for entry in found], cut(problem)])
    problem = next((f"rank {rank}: {why}" for rank, (_, why) in enumerate(reports) if why), None)
    if session.rank == 0 and problem is None:
        problem = _attempt(lambda: commit(
            directory, [FileEntry(**entry) for entries, _ in reports for entry in entries], step=step,
            world_size=session.world_size, algorithm=algorithm, durable=durable, at=at))
    _heed(talk.close(problem))
    return {"hash_s": timing.get("hash_s", 0.0), "commit_s": time.perf_counter() - started}


def load(session: Session, root: Path) -> tuple[dict[str, Any], dict[str, Any], int]:
    """The newest good checkpoint of a job: (main state, this rank's state, step).

    Rank 0 verifies every byte and says which step it is, so that all ranks load the same one.

    Raises: CheckpointError on every rank if there is none that is whole and of this world size.
    """
    said: tuple[str, str | None] = ("", None)
    if session.rank == 0:
        best, rejected = newest_good(root, world_size=session.world_size)
        why = "; ".join(report.line() for report in rejected[:3]) or "no checkpoint"
        said = (best.directory.name, None) if best else ("", f"{root.name}: nothing to resume from: {why}")
    name, problem = session.gather(said)[0]
    if problem:
        raise CheckpointError(problem)
    main, own = (torch.load(root / name / file, map_location="cpu", weights_only=True)
                 for file in (MAIN, rank_file(session.rank)))
    return main, own, int(main["step"])


class AsyncSaver:
    """Saves in the background: `start` copies the state and returns, a thread writes and commits.

    The thread talks to the other ranks over a gloo group of its own: training's collectives and its own must not mix.
    One save at a time; the checkpoint exists when `wait` has returned, not when `start` has.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self.talk = own_talk(session)
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def start(self, root: Path, *, step: int, main: dict[str, Any], own: dict[str, Any], algorithm: str,
              durable: bool = True) -> None:
        """Copy the state to host memory, then write it in the background; waits for the save before.

        Args:
            root: as `save`, like the others.
            step: training step.
            main: state that rank 0 writes; other ranks' is neither copied nor written.
            own: state that each rank writes.
            algorithm: hash of the files.
            durable: fsync.
        """
        self.wait()
        # Rank 0's copy is what training is stopped for: after it, the weights may move on.
        copies = (host_copy(main) if self.session.rank == 0 else {}, host_copy(own))

        def work() -> None:
            try:
                save(self.talk, root, step=step, main=copies[0], own=copies[1], algorithm=algorithm,
                     durable=durable)
            except BaseException as error:  # handed to the thread that waits
                self._error = error

        self._thread = threading.Thread(target=work, name="checkpoint", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Return when the save that runs is committed; raises what it raised."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._error is not None:
            error, self._error = self._error, None
            raise error


def host_copy(value: Any) -> Any:
    """A copy in host memory that shares nothing with the original."""
    if isinstance(value, Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, dict):
        return {key: host_copy(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(host_copy(item) for item in value)
    return value


def _attempt(action: Callable[[], Any]) -> str | None:
    """None, or one line that says why the disk or the protocol refused."""
    try:
        action()
    except (OSError, CheckpointError) as error:
        return str(error).splitlines()[0]
    except RuntimeError as error:  # torch's zip writer, when the stream below it has failed
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"
    return None


def _heed(problem: str | None) -> None:
    """Every rank raises what rank 0 has said."""
    if problem:
        raise CheckpointError(problem)

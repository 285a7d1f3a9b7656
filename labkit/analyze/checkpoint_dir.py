"""Is a checkpoint whole, and which one is the newest that may be loaded? From the files alone, without torch.

In: a checkpoint directory (ours, or torch's distributed checkpoint with or without our manifest), or the folder that
holds a job's checkpoints. Out: one plain object.

    python -m labkit analyze checkpoint_dir runs/job7/checkpoints
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from labkit.analyze.kinds import UnreadableInput, clean_text
from labkit.checkpoints import MANIFEST_NAME, Report, list_checkpoints, verify


def analyze_checkpoint_dir(paths: list[Path]) -> dict[str, Any]:
    """What can be said about a checkpoint, or about all checkpoints of a job.

    Returns: {"checkpoints": [one each, newest step first: name, status (see `labkit.checkpoints.verify`), is_good,
        step, world_size, hash, num_files, bytes, problems and warnings as [{kind, message, path, rank, expected,
        seen}]}], "newest_good": {name, step} or None, "good", "bad": counts}. For a single checkpoint directory the
        list has that one, and newest_good looks at its neighbours too.
    Raises: UnreadableInput if there is no such directory, or nothing like a checkpoint in it.
    """
    if len(paths) != 1:
        raise UnreadableInput(f"checkpoint_dir takes one folder, got {len(paths)}")
    path = Path(paths[0])
    if not path.is_dir():
        raise UnreadableInput(f"{path}: {'is a file' if path.exists() else 'no such folder'}, expected a folder")
    try:
        if _is_checkpoint(path):
            reports = [verify(path)]
            around = [report for other in list_checkpoints(path.resolve().parent)
                      if other.name != path.resolve().name and _is_checkpoint(other) and (report := verify(other))]
        elif found := list_checkpoints(path):
            reports, around = [verify(directory) for directory in found], []
        else:
            raise UnreadableInput(f"{path}: no checkpoint (no {MANIFEST_NAME}, .metadata or *.distcp) and no folder "
                                  "of checkpoints (no folder with a step in its name) in it")
    except OSError as error:
        raise UnreadableInput(f"{path}: cannot be read ({error.strerror or error})") from None
    good = sorted((r for r in [*reports, *around] if r.is_good), key=lambda r: r.step or 0)
    return {
        "checkpoints": [_answer(report) for report in reports],
        "newest_good": {"name": clean_text(good[-1].directory.name), "step": good[-1].step} if good else None,
        "good": sum(report.is_good for report in reports),
        "bad": sum(not report.is_good for report in reports),
    }


def _is_checkpoint(path: Path) -> bool:
    """A directory that somebody saved into: it holds a commit mark, a shard, or files but no folders."""
    if (path / MANIFEST_NAME).exists() or (path / ".metadata").exists() or any(path.glob("*.distcp")):
        return True
    children = list(path.iterdir())
    return bool(children) and not any(child.is_dir() for child in children) and any(
        child.name.startswith((".metadata", "__", "rank", f".{MANIFEST_NAME}")) or child.suffix in (".pt", ".pth")
        for child in children)


def _answer(report: Report) -> dict[str, Any]:
    manifest = report.manifest
    return {
        "name": clean_text(report.directory.name), "status": report.status, "is_good": report.is_good,
        "step": report.step, "world_size": manifest.world_size if manifest else None,
        "hash": manifest.algorithm if manifest else None, "num_files": len(manifest.files) if manifest else None,
        "bytes": sum(entry.bytes for entry in manifest.files) if manifest else None,
        "problems": [_plain(asdict(problem)) for problem in report.problems],
        "warnings": [_plain(asdict(warning)) for warning in report.warnings],
    }


def _plain(problem: dict[str, Any]) -> dict[str, Any]:
    return {key: clean_text(value) if isinstance(value, str) else value for key, value in problem.items()}

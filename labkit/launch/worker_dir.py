"""What a lab gives a worker and hears from it: a folder with its parameters, and the lines meant for people."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from labkit.launch.supervise import Progress
from labkit.records import write_json


def worker_dir(folder: Path, params: Mapping[str, Any]) -> Path:
    """A new folder for one launch, with its parameters in params.json; returns `folder`.

    Raises: FileExistsError if it exists; ValueError for parameters that are not strict JSON.
    """
    folder.mkdir()
    write_json(folder / "params.json", dict(params))
    return folder


def relay(progress: Progress | None, name: str = "") -> Progress:
    """Takes every line of a worker and passes on what follows its "progress: ", behind `name`.

    torchrun puts a rank before a line, so the word may stand anywhere in it.

    >>> relay(print, "process 1/3")("[rank0]: progress: half of it")
    process 1/3: half of it
    >>> relay(print)("a warning")
    """

    def pass_on(line: str) -> None:
        if progress is not None and (found := re.search(r"progress: (.*)", line)):
            progress(f"{name}: {found[1]}" if name else found[1])

    return pass_on

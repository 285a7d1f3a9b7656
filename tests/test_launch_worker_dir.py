"""The folder that a worker gets, and what of its output reaches people."""

import json

import pytest

from labkit.launch.worker_dir import relay, worker_dir


def test_a_folder_is_new_and_holds_the_parameters(tmp_path):
    folder = worker_dir(tmp_path / "p0", {"seed": 1, "sizes": (1, 2)})
    assert folder == tmp_path / "p0"
    assert json.loads((folder / "params.json").read_text()) == {"seed": 1, "sizes": [1, 2]}
    with pytest.raises(FileExistsError):
        worker_dir(tmp_path / "p0", {})
    with pytest.raises(ValueError, match="JSON"):
        worker_dir(tmp_path / "p1", {"timeout_s": float("nan")})


def test_only_lines_for_people_are_passed_on():
    heard = []
    hear = relay(heard.append, "process 1/2")
    for line in ("progress: a", "[rank1]: progress: b", "progress:c", "W1130 a warning", ""):
        hear(line)
    assert heard == ["process 1/2: a", "process 1/2: b"]
    relay(None)("progress: nobody listens")

"""Provenance: enough to repeat a run, nothing that names a person or a machine."""

import hashlib
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from labkit.paths import ROOT
from labkit.provenance import allowed_environ, collect, git_state, named_commit, public_setting, source_sha256
from labkit.records import public_argv, public_text, redact
from labkit.records.redact import private_line

UNKNOWN = {"commit": None, "dirty": None}


def git(folder, *args):
    settings = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false", "-c", "init.defaultBranch=m"]
    env = {**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null"}
    argv = ["git", *settings, "-C", str(folder), *args]
    return subprocess.run(argv, check=True, capture_output=True, text=True, env=env).stdout.strip()


@pytest.fixture
def checkout(tmp_path):
    git(tmp_path, "init", "-q")
    (tmp_path / ".gitignore").write_text("runs/\n")
    (tmp_path / "a.py").write_text("x = 1\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "first")
    return tmp_path


# --- git and source --------------------------------------------------------------------------------------------------


def test_commit_and_dirty_flag(checkout):
    head = git(checkout, "rev-parse", "HEAD")
    assert git_state(checkout) == {"commit": head, "dirty": False}
    (checkout / "runs").mkdir()
    (checkout / "runs" / "log.txt").write_text("ignored")
    assert git_state(checkout) == {"commit": head, "dirty": False}
    (checkout / "new_worker.py").write_text("untracked code runs too")
    assert git_state(checkout) == {"commit": head, "dirty": True}
    (checkout / "new_worker.py").unlink()
    (checkout / "a.py").write_text("x = 2\n")
    assert git_state(checkout) == {"commit": head, "dirty": True}


def test_outside_a_checkout_and_inside_another_the_commit_is_unknown(checkout, tmp_path_factory, monkeypatch):
    assert git_state(tmp_path_factory.mktemp("plain")) == UNKNOWN
    (checkout / "vendored").mkdir()
    assert git_state(checkout / "vendored") == UNKNOWN
    empty = tmp_path_factory.mktemp("empty")
    git(empty, "init", "-q")
    assert git_state(empty) == UNKNOWN
    monkeypatch.setenv("PATH", "/nonexistent")
    assert git_state(checkout) == UNKNOWN


def test_source_hash_is_of_names_and_contents(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "b.py").write_bytes(b"2")
    (tmp_path / "sub" / "a.yaml").write_bytes(b"33")
    (tmp_path / "b.pyc").write_bytes(b"compiled")
    by_hand = hashlib.sha256(b"b.py\x001\x002" + b"sub/a.yaml\x002\x0033").hexdigest()
    assert source_sha256(tmp_path) == by_hand
    (tmp_path / "b.py").rename(tmp_path / "c.py")
    assert source_sha256(tmp_path) != by_hand


# --- what may be published -------------------------------------------------------------------------------------------

SETTINGS = {
    "NCCL_ALGO": ("Ring", "Ring"),
    "NCCL_SOCKET_IFNAME": ("^lo,docker0", "^lo,docker0"),
    "CUDA_VISIBLE_DEVICES": ("0,1", "0,1"),
    "OMP_NUM_THREADS": ("4", "4"),
    "TORCH_LOGS": ("+dynamo", "+dynamo"),
    "TORCH_HOME": ("/home/ann/.cache/torch", "<path>"),
    "TRITON_CACHE_DIR": ("~/cache", "<path>"),
    "LABKIT_RUNS_DIR": ("/scratch/ann/runs:/data/b", "<path>:<path>"),
    "NCCL_DEBUG_FILE": ("file=/var/log/x.txt,level=3", "file=<path>,level=3"),
    "VLLM_API_KEY": ("anything", "<redacted>"),
    "LABKIT_TOKEN": ("t", "<redacted>"),
    "TORCH_AUTH": ("t", "<redacted>"),
    "LABKIT_NOTE": ("hf_abcdefghijklmnopqrst", "<redacted>"),
    "LABKIT_PROXY": ("http://ann:pw@host:80", "<redacted>"),
    "LABKIT_AWS": ("AKIAABCDEFGHIJKLMNOP", "<redacted>"),
    "LABKIT_HUB": ("ghp_abcdefghijklmnopqrstu", "<redacted>"),
    "LABKIT_SESSION": ("eyJhbGciOiJIUzI1NiJ9.e30.x", "<redacted>"),
    "NCCL_NET": ("IB", "IB"),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_are_kept_but_secrets_and_paths_are_not(name):
    value, expected = SETTINGS[name]
    assert public_setting(name, value) == expected
    assert allowed_environ({name: value}) == {name: expected}


def test_only_listed_variables_are_stored():
    private = {
        "HOME": "/home/ann", "USER": "ann", "HOSTNAME": "box", "SSH_AUTH_SOCK": "/x", "AWS_SECRET_ACCESS_KEY": "y",
        "PATH": "/bin", "HF_TOKEN": "hf_x", "SLURM_JOB_USER": "ann", "MY_NCCL_THING": "1", "nccl_algo": "x",
    }
    assert allowed_environ(private) == {}


def test_a_value_that_is_not_utf8_can_still_be_written():
    value = public_setting("NCCL_X", os.fsdecode(b"a\xffb"))
    assert json.dumps(value, ensure_ascii=False).encode() == b'"a?b"'


TEXTS = [
    (f"{ROOT}/data/x.json", "data/x.json"),
    (f"at {ROOT}: no", "at .: no"),
    (f"--log={ROOT}/a.txt,{ROOT}/b", "--log=a.txt,b"),
    (f"'{sys.executable}' -m x", "'python' -m x"),
    (f"{sys.prefix}/lib/site.py", "$ENV/lib/site.py"),
    (f"{Path.home()}/.cache/x", "~/.cache/x"),
    ("/home/ann/x and /Users/bob", "~/x and ~"),
    ("/usr/lib/x", "/usr/lib/x"),
    ("no/home/run here", "no/home/run here"),
    ("loss 2.5 at step 3/4", "loss 2.5 at step 3/4"),
]


@pytest.mark.parametrize("text, expected", TEXTS)
def test_public_text(text, expected, monkeypatch):
    monkeypatch.delenv("LABKIT_RUNS_DIR", raising=False)
    assert public_text(text) == expected
    assert public_text(expected) == expected  # what is public stays as it is
    assert private_line(f"fine\n{text}") == (None if text == expected else 2)


def test_a_folder_whose_name_only_begins_like_ours_is_another(monkeypatch):
    monkeypatch.setattr(redact, "ROOT", Path("/opt/lab"))
    text = "/opt/lab/x /opt/lab-2/x /opt/lab2/x /srv/opt/lab/x /opt/lab"
    assert public_text(text) == "x /opt/lab-2/x /opt/lab2/x /srv/opt/lab/x ."


def test_the_run_directory_and_the_host_have_names(tmp_path, monkeypatch):
    monkeypatch.setattr(socket, "gethostname", lambda: "gpu-box-7")
    link = tmp_path / "link"
    (tmp_path / "run").mkdir()
    link.symlink_to(tmp_path / "run")
    assert public_text(f"gpu-box-7: {tmp_path}/run/p0, not gpu-box-77", run_dir=link) == (
        "$HOST: $RUN_DIR/p0, not gpu-box-77")
    argv = public_argv([sys.executable, "-m", "labkit.workers.x", "--run-dir", f"{link}/p0"], run_dir=link)
    assert argv == ["python", "-m", "labkit.workers.x", "--run-dir", "$RUN_DIR/p0"]


# --- the whole -------------------------------------------------------------------------------------------------------


def test_collect_describes_this_machine_in_plain_public_json(monkeypatch, tmp_path):
    monkeypatch.setenv("NCCL_ALGO", "Ring")
    monkeypatch.setenv("LABKIT_SECRET", "hunter2")
    found = collect([sys.executable, "-m", "x", str(tmp_path / "p0")], run_dir=tmp_path)
    assert set(found) == {"git", "software", "hardware", "environ", "command"}
    assert set(found["git"]) == {"commit", "dirty", "source_sha256"}
    assert found["software"]["python"] == ".".join(map(str, sys.version_info[:3]))
    assert "numpy" in found["software"]
    assert {"tag", "gpus", "cpu", "topology", "driver_version"} <= set(found["hardware"])
    assert found["hardware"]["tag"] and "_" not in found["hardware"]["tag"]
    assert (found["environ"]["NCCL_ALGO"], found["environ"]["LABKIT_SECRET"]) == ("Ring", "<redacted>")
    assert found["command"] == ["python", "-m", "x", "$RUN_DIR/p0"]
    text = json.dumps(found, allow_nan=False)
    assert "hunter2" not in text and private_line(text, run_dir=tmp_path) is None
    assert json.loads(text) == found


@pytest.mark.parametrize(("named", "found"), [("a" * 40, {"commit": "a" * 40}), ("main", {}), ("", {}), ("A" * 40, {})])
def test_a_host_without_git_can_be_told_the_commit(named, found):
    assert named_commit({"LABKIT_GIT_COMMIT": named}) == found

"""The set-up's own files agree with each other, and its error paths are one clear line."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
LOCK = ROOT / "data" / "locks" / "lab.txt"


def pins(lines):
    return sorted(line.strip() for line in lines if re.fullmatch(r"[A-Za-z0-9._-]+==\S+", line.strip()))


def test_conda_environment_has_the_pins_of_the_lock():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    (pip,) = [d["pip"] for d in environment["dependencies"] if isinstance(d, dict)]
    assert pins(pip) == pins(LOCK.read_text().splitlines())


def test_lock_pulls_no_cuda_and_leaves_torch_to_the_bootstrap():
    names = [pin.split("==")[0].lower() for pin in pins(LOCK.read_text().splitlines())]
    assert len(names) > 100 and len(set(names)) == len(names)
    assert not [name for name in names if name.startswith(("nvidia", "torch", "triton", "cuda"))]


def test_every_declared_dependency_is_pinned():
    """What pyproject asks for (except torch and Triton) stands in the lock."""
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = project["dependencies"] + [
        requirement for extra in ("fast", "book", "dev") for requirement in project["optional-dependencies"][extra]
    ]
    names = {re.match(r"[A-Za-z0-9._-]+", requirement)[0].lower().replace("_", "-") for requirement in wanted}
    locked = {pin.split("==")[0].lower().replace("_", "-") for pin in pins(LOCK.read_text().splitlines())}
    assert names <= locked, names - locked


def run_bootstrap(project, **env):
    return subprocess.run(
        [sys.executable, str(project / "labkit" / "bootstrap.py")], capture_output=True, text=True,
        env={**os.environ, "LABKIT_CPU": "1", **env}, timeout=240,
    )


@pytest.fixture
def project(tmp_path):
    """A copy of what the bootstrap reads, with an empty lock so that it is quick."""
    for name in ("labkit/bootstrap.py", "pyproject.toml"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text((ROOT / name).read_text())
    lock = tmp_path / "data" / "locks" / "lab.txt"
    lock.parent.mkdir(parents=True)
    lock.write_text("# empty\n")
    return tmp_path


def test_no_torch_anywhere_is_one_clear_line(project):
    """With every index pointed at an empty folder the set-up stops with one line naming what it looked for."""
    empty = project / "empty"
    empty.mkdir()
    done = run_bootstrap(
        project, PIP_NO_INDEX="1", PIP_FIND_LINKS=str(empty), PIP_CONFIG_FILE=os.devnull, PIP_CONSTRAINT=""
    )
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("setup: no torch==") and "CPU index" in last
    assert "Traceback" not in done.stderr


def test_finished_environment_needs_no_work():
    """This checkout's own environment is stamped or hand-made; with a stamp the second call prints nothing."""
    if not (ROOT / ".venv" / ".labkit-setup").is_file():
        pytest.skip("this environment was not made by labkit/bootstrap.py")
    ask = "import sys; print(sys._base_executable)"
    argv = [str(ROOT / ".venv/bin/python"), "-c", ask]
    base = subprocess.run(argv, capture_output=True, text=True).stdout.strip()
    done = subprocess.run([base, str(ROOT / "labkit" / "bootstrap.py")], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")

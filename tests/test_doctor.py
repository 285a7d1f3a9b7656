"""The doctor on stub machines, stub labs and stub tools; and on this one, whatever it is."""

import dataclasses
import json
import os
import sys
import time

import pytest

from labkit import doctor, experiments, machine, presets

CPU = machine.Cpu(model="Test CPU", architecture="x86_64", num_cores_logical=8, num_cores_physical=4,
                  num_cores_usable=8, memory_bytes=64 * 2**30, num_numa_nodes=1)
SLICE = "import dataclasses\nSLUG = 'lab'\ndef run():\n    import pandas\n    launch_worker('steps', run_dir=None)\n"
WORKER = (
    "import os\nimport torch.distributed as dist\nfrom labkit.workers import helper\n"
    "try:\n    import liger\nexcept ImportError:\n    liger = None\n"
)


@pytest.fixture
def lab(tmp_path, monkeypatch):
    """A project of one lab whose worker needs torch and, by way of another worker file, numpy."""
    files = {
        "labkit/experiments/lab.py": SLICE, "labkit/workers/steps.py": WORKER,
        "labkit/workers/helper.py": "from numpy import zeros\n", "labkit/workers/unused.py": "import jax\n",
        **{f"labkit/experiments/presets/lab/{name}.yaml": "" for name in ("smoke", "cpu", "gpu1", "gpu2", "gpu8")},
    }
    for name, content in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    monkeypatch.setattr(doctor, "ROOT", tmp_path)
    monkeypatch.setattr(experiments, "__path__", [str(tmp_path / "labkit/experiments")])
    monkeypatch.setattr(presets, "PRESET_DIR", tmp_path / "labkit/experiments/presets")
    absent: set[str] = set()
    monkeypatch.setattr(doctor, "_is_installed", lambda name: name not in absent)
    return absent


def some_machine(num_gpus=0, **changes):
    gpus = tuple(machine.Gpu(index=i, name="NVIDIA H200", memory_bytes=143771 * 2**20) for i in range(num_gpus))
    fields = {"cpu": CPU, "gpus": gpus, "software": {"torch": "2.11.0+cu130"}, "system": "Linux 6.1",
              "python_version": "3.12.3", "links": {}, **changes}
    return machine.Machine(**fields)


def missing(preset, here, disk=100 * 2**30):
    return doctor.missing_for("lab", preset, here=here, disk_free_bytes=disk)


def test_needs_are_read_from_the_source(lab):
    """What the named worker files import: not pandas (inside a function), liger (behind try) or jax (unused file)."""
    assert doctor.needed_packages("lab") == ["numpy", "torch"]


@pytest.mark.parametrize(
    ("num_gpus", "can"),
    [(0, ["smoke", "cpu"]), (1, ["smoke", "cpu", "gpu1"]), (2, ["smoke", "cpu", "gpu1", "gpu2"]),
     (8, ["smoke", "cpu", "gpu1", "gpu2", "gpu8"])],
)
def test_presets_by_number_of_gpus(lab, num_gpus, can):
    here = some_machine(num_gpus)
    assert [preset for preset in doctor.available_presets("lab") if missing(preset, here) is None] == can
    if num_gpus == 1:
        assert missing("gpu2", here) == "2 GPUs, found 1"
    if num_gpus == 0:
        assert missing("gpu1", here) == "1 GPU, found 0"


def test_the_one_missing_thing(lab):
    assert missing("cpu", some_machine(software={"torch": "2.10.1"})) == "torch 2.11 or newer, found 2.10.1"
    cpu_build = some_machine(1, software={"torch": "2.13.0+cpu"})
    assert missing("gpu1", cpu_build) == "a GPU build of torch, found 2.13.0+cpu"
    small = dataclasses.replace(CPU, memory_bytes=2**30)
    assert missing("smoke", some_machine(cpu=small)) == "2.00 GiB of memory, found 1.00 GiB"
    assert missing("smoke", some_machine(), disk=2**20) == "1.00 GiB of free disk for runs, found 1.00 MiB"
    assert missing("smoke", some_machine(), disk=None) is None
    lab.add("torch")
    assert missing("smoke", some_machine()) == "the Python package torch"


@pytest.mark.parametrize("version", ["2.11.0", "2.13.0+cpu", "3.0", "2.11.0a0+git1234", "10.1"])
def test_versions_that_are_new_enough(lab, version):
    assert missing("smoke", some_machine(software={"torch": version})) is None


def test_a_broken_lab_is_named_not_fatal(lab, tmp_path):
    (tmp_path / "labkit/experiments/lab.py").write_text("def broken(:\n")
    assert missing("smoke", some_machine()) == "a readable source: SyntaxError in lab"
    (tmp_path / "labkit/experiments/lab.py").write_text(SLICE)
    (tmp_path / "labkit/workers/helper.py").unlink()
    assert "FileNotFoundError" in str(missing("smoke", some_machine()))


def test_report_and_text(lab, monkeypatch):
    links = {"0-1": "NV18"}
    here = some_machine(2, links=links, driver_version="580.1", cuda_version="13.0")
    monkeypatch.setattr(machine, "detect", lambda: here)
    found = doctor.report()
    assert [(row["preset"], row["can_run"]) for row in found["labs"]] == [
        ("smoke", True), ("cpu", True), ("gpu1", True), ("gpu2", True), ("gpu8", False)]
    json.dumps(found, allow_nan=False)
    shown = doctor.text(found)
    for part in ("h200-x2", "Test CPU, 8 of 8", "NVIDIA H200, 140.40 GiB", "0-1 NV18", "580.1, CUDA up to 13.0",
                 "torch 2.11.0+cu130", "can run: smoke cpu gpu1 gpu2", "gpu8 needs 8 GPUs, found 2"):
        assert part in shown, part
    assert max(map(len, shown.splitlines())) <= 100 and len(shown.splitlines()) < 40
    assert "\x1b" not in shown


def test_text_says_unknown_where_it_is(lab, monkeypatch):
    bare = machine.Cpu(model=None, architecture="riscv64", num_cores_logical=1, num_cores_physical=None,
                       num_cores_usable=1, memory_bytes=None, num_numa_nodes=None)
    gpu = machine.Gpu(index=0, name="NVIDIA GB10")
    here = machine.Machine(cpu=bare, gpus=(gpu,), gpu_note="nvidia-smi topo: exit code 1: no message")
    monkeypatch.setattr(machine, "detect", lambda: here)
    shown = doctor.text(doctor.report())
    for part in ("riscv64", "unknown memory", "NVIDIA GB10", "topo: exit code 1", "none of those the labs use"):
        assert part in shown, part


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("EnableMSI: 1\nRmProfilingAdminOnly: 1\n", {"admin_only": True, "allowed": False}),
        ("RmProfilingAdminOnly: 0\n", {"admin_only": False, "allowed": True}),
        ("EnableMSI: 1\n", {"admin_only": None, "allowed": None}),
        (None, {"admin_only": None, "allowed": None}),
    ],
)
def test_counter_permission(tmp_path, content, expected):
    (tmp_path / "status").write_text("Name: python\nCapEff:\t0000000000000000\n")
    if content is not None:
        (tmp_path / "params").write_text(content)
    assert doctor.counter_permission(tmp_path / "params", tmp_path / "status") == expected


@pytest.mark.parametrize(("capabilities", "uid", "allowed"), [
    ("000001ffffffffff", 1000, True), ("0000000000200000", 1000, True), ("0000004000000000", 1000, True),
    ("00000000a80425fb", 0, False),  # root in a container with the usual capabilities
    (None, 0, True), (None, 1000, False),
])  # fmt: skip
def test_who_may_count_where_only_the_administrator_may(tmp_path, monkeypatch, capabilities, uid, allowed):
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    (tmp_path / "params").write_text("RmProfilingAdminOnly: 1\n")
    if capabilities is not None:
        (tmp_path / "status").write_text(f"Name: python\nCapEff:\t{capabilities}\n")
    found = doctor.counter_permission(tmp_path / "params", tmp_path / "status")
    assert found == {"admin_only": True, "allowed": allowed}


def test_the_doctor_says_what_to_change_and_what_is_missing_for_counters(monkeypatch):
    here = machine.Machine(cpu=machine.detect().cpu, gpus=(machine.Gpu(index=0, name="NVIDIA H200"),))
    monkeypatch.setattr(machine, "detect", lambda: here)
    monkeypatch.setattr(doctor, "counter_permission", lambda: {"admin_only": True, "allowed": False})
    report = doctor.report()
    report["tools"]["ncu"] = None
    shown = " ".join(doctor.text(report).split())
    for part in ("NVreg_RestrictProfilingToAdminUsers=0", "--cap-add=SYS_ADMIN", "ncu is not installed"):
        assert part in shown, part


@pytest.mark.parametrize(
    ("name", "printed", "version"),
    [
        ("gcc", "gcc (Ubuntu 13.2.0-23ubuntu4) 13.2.0\\nCopyright (C) 2023", "13.2.0"),
        ("nvcc", "nvcc: NVIDIA (R) Cuda compiler driver\\nCopyright (c) 2005-2025\\n"
                 "Cuda compilation tools, release 13.0, V13.0.88", "13.0.88"),
        ("ncu", "NVIDIA (R) Nsight Compute\\nVersion 2025.3.0.0 (build 36273991)", "2025.3.0.0"),
        ("make", "garbage", "found"),
    ],
)
def test_tool_versions(tmp_path, monkeypatch, name, printed, version):
    path = tmp_path / name
    path.write_text(f"#!{sys.executable}\nprint('{printed}')\n")
    path.chmod(0o755)
    monkeypatch.setattr(doctor, "_search_path", lambda: str(tmp_path))
    tool = next(tool for tool in doctor._TOOLS if tool[0] == name)
    assert doctor._tool_version(tool) == version


def test_a_folder_that_cannot_be_written_has_no_space(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert doctor._free_disk_bytes(tmp_path / "runs" / "deeper") == 0


def test_this_machine_without_importing_torch():
    """Whatever this machine is: a report, a page of text, no heavy import, and soon."""
    before = set(sys.modules)
    started = time.monotonic()
    shown = doctor.text(doctor.report())
    assert time.monotonic() - started < 30
    assert "torch" not in set(sys.modules) - before
    assert shown.startswith("This machine: ")

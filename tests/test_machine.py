"""Machine detection against stub tools and a stub /proc and /sys: what real drivers print, also when they refuse."""

import getpass
import json
import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit import machine

TOPO = (
    "\t\x1b[4mGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\n"
    "GPU0\t X \tNV18\t0-31\t0\t\tN/A\nGPU1\tNV18\t X \t0-31\t0\t\tN/A\n\nLegend:\n\n  X    = Self\n"
)
H200 = "0, NVIDIA H200, 143771, 580.159.04, GPU-aaaa1111, 700.00, Disabled, 9.0\n"
H200_PAIR = H200 + "1, NVIDIA H200, 143771, 580.159.04, GPU-bbbb2222, 700.00, Disabled, 9.0\n"


@pytest.fixture
def tools(tmp_path, monkeypatch):
    """A folder that is the whole PATH; `tools(name, query=..., ...)` puts a stub of a tool into it."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)

    def put(name, body):
        path = folder / name
        path.write_text(f"#!{sys.executable}\nimport sys\nargv = sys.argv[1:]\n{body}\n")
        path.chmod(0o755)

    return put


def smi(query, *, topo=TOPO, code=0):
    """Source of a stub nvidia-smi."""
    return (
        f"if argv[:1] == ['topo']:\n    print({topo!r}, end='')\n    sys.exit(0)\n"
        f"print({query!r}, end='')\nsys.exit({code})"
    )


def test_two_h200(tools):
    tools("nvidia-smi", smi(H200_PAIR))
    found = machine.detect()
    assert (found.tag, found.num_gpus, found.links) == ("h200-x2", 2, {"0-1": "NV18"})
    assert found.driver_version == "580.159.04"
    first = found.gpus[0]
    assert (first.memory_bytes, first.compute_capability) == (143771 * 2**20, "9.0")
    assert (first.mig, first.power_limit_w) == (False, 700.0)
    assert found.gpu_note is None


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        # A GPU that shares the host's memory (GB10) and a MIG parent that this user may not look at.
        ("0, NVIDIA GB10, [N/A], 580.95, GPU-1, [N/A], [N/A], 12.1", {"memory_bytes": None, "mig": None}),
        ("0, NVIDIA A100-SXM4-40GB, [Insufficient Permissions], 550.1, GPU-1, [Unknown Error], Enabled, 8.0",
         {"memory_bytes": None, "mig": True, "power_limit_w": None}),
        ("0, NVIDIA H200, 143771, 580.1, GPU-1, nan, Disabled, x", {"compute_capability": None, "power_limit_w": None}),
    ],
)
def test_refused_cells_are_unknown(tools, row, expected):
    tools("nvidia-smi", smi(row + "\n"))
    found = machine.detect()
    assert found.num_gpus == 1
    for name, value in expected.items():
        assert getattr(found.gpus[0], name) == value
    json.dumps(found.to_json(), allow_nan=False)


def test_a_mig_machine_says_so_in_its_tag(tools):
    tools("nvidia-smi", smi("0, NVIDIA A100-SXM4-40GB, 40960, 550.1, GPU-1, 400.0, Enabled, 8.0\n"))
    assert machine.detect().tag == "a100-mig-x1"


def test_an_old_driver_refuses_new_fields(tools):
    """Drivers before 510 refuse the whole query when they do not know compute_cap; then power and MIG may go too."""
    tools("nvidia-smi", (
        "fields = argv[0].removeprefix('--query-gpu=').split(',')\n"
        "for odd in ('compute_cap', 'mig.mode.current'):\n"
        "    if odd in fields:\n"
        "        print(f'Field \"{odd}\" is not a valid field to query.')\n        sys.exit(2)\n"
        "print('0, Tesla V100-PCIE-32GB, 32510, 418.87, GPU-1')"))
    found = machine.detect()
    assert (found.tag, found.gpus[0].compute_capability) == ("v100-x1", None)
    assert found.gpus[0].memory_bytes == 32510 * 2**20


@pytest.mark.parametrize(
    ("body", "note"),
    [
        ("print('NVIDIA-SMI has failed because it couldn\\'t communicate with the NVIDIA driver.')\nsys.exit(9)",
         "exit code 9: NVIDIA-SMI has failed"),
        ("print('No devices were found')", "No devices were found"),
        ("print('garbage\\x00, and, more')", "garbage"),
        ("sys.stdout.buffer.write(b'\\xff\\xfe\\n')", "nvidia-smi"),
        ("pass", "no GPU listed"),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)", "exit code -11"),
    ],
)
def test_a_failing_nvidia_smi_gives_no_gpus_and_a_reason(tools, body, note):
    tools("nvidia-smi", body)
    found = machine.detect()
    assert found.num_gpus == 0 and found.tag.startswith("cpu-")
    assert note in found.gpu_note and "\n" not in found.gpu_note


def test_no_tools_at_all(tools):
    found = machine.detect()
    assert (found.num_gpus, found.gpu_note) == (0, "nvidia-smi: not found")


def test_a_failing_topo_leaves_links_unknown(tools):
    tools("nvidia-smi", smi(H200_PAIR, topo="Segmentation fault"))
    found = machine.detect()
    assert (found.num_gpus, found.links) == (2, {})
    assert "topo" in found.gpu_note


@pytest.mark.parametrize(
    ("setting", "indices"),
    [
        ("0", [0]), ("1", [1]), ("1,0", [1, 0]), ("", []), ("-1", []), ("NoDevFiles", []), ("0,7,1", [0]), ("7", []),
        ("GPU-bbbb", [1]), ("GPU-", []), ("0,0", [0]), (" 1 , 0 ", [1, 0]), ("\u00b2", []),
    ],
)
def test_visible_devices(tools, monkeypatch, setting, indices):
    """CUDA's rule: order counts, the list ends at the first entry that names no GPU, UUID prefixes must be unique."""
    tools("nvidia-smi", smi(H200_PAIR))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", setting)
    found = machine.detect()
    assert [gpu.index for gpu in found.gpus] == indices
    assert found.links == ({"0-1": "NV18"} if len(indices) == 2 else {})
    assert (found.gpu_note is None) == bool(indices)


def test_a_visible_mig_slice_is_one_gpu_of_unknown_size(tools, monkeypatch):
    tools("nvidia-smi", smi(H200_PAIR))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-1234,MIG-5678")
    found = machine.detect()
    assert (found.tag, found.gpus[0].memory_bytes) == ("h200-mig-x1", None)


def test_rocm_names(tools):
    tools("rocm-smi", "print('{\"card1\": {\"Card Series\": \"AMD Instinct MI300X\"}, \"card0\": "
                      "{\"Card series\": \"AMD Instinct MI300X\"}, \"system\": {\"Driver version\": \"6.8\"}}')")
    found = machine.detect()
    assert (found.tag, found.num_gpus) == ("mi300x-x2", 2)
    assert found.gpus[0].memory_bytes is None


def test_a_hanging_tool_is_ended_with_its_children(tools, tmp_path):
    """The child keeps the pipe open and would be waited for, if only the tool itself were ended."""
    mark = tmp_path / "pid"
    tools("nvidia-smi", (
        "import subprocess, time\n"
        f"child = subprocess.Popen([{sys.executable!r}, '-c', 'import time; time.sleep(60)'])\n"
        f"open({str(mark)!r}, 'w').write(str(child.pid))\ntime.sleep(60)"))
    started = time.monotonic()
    out, why = machine.tool_output(["nvidia-smi"], timeout_s=2)
    assert (out, why) == ("", "nvidia-smi: no answer in 2 s")
    assert time.monotonic() - started < 10
    pid = int(mark.read_text())
    for _ in range(100):
        state = Path(f"/proc/{pid}/stat")
        if not state.exists() or state.read_text().split(") ")[1][0] == "Z":
            break
        time.sleep(0.05)
    else:
        pytest.fail("the tool's child is still running")


def stub_root(tmp_path, *, cores=8, cgroup="0::/job\n", files=None):
    """A root folder with /proc and /sys of a machine with `cores` two-thread cores."""
    blocks = [
        f"processor\t: {i}\nmodel name\t: Test CPU 9000 @ 2.0GHz\nphysical id\t: 0\ncore id\t\t: {i // 2}\n"
        for i in range(2 * cores)
    ]
    content = {
        "proc/cpuinfo": "\n".join(blocks), "proc/meminfo": "MemTotal:       65536000 kB\nMemFree: 1 kB\n",
        "proc/self/cgroup": cgroup, "sys/devices/system/node/node0/x": "", "sys/devices/system/node/node1/x": "",
        **(files or {}),
    }
    for name, text in content.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def test_cpu_without_limits(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)), raising=False)
    cpu = machine.read_cpu(stub_root(tmp_path))
    assert (cpu.model, cpu.num_cores_logical, cpu.num_cores_physical) == ("Test CPU 9000 @ 2.0GHz", 16, 8)
    assert (cpu.num_cores_usable, cpu.memory_bytes, cpu.num_numa_nodes) == (16, 65536000 * 1024, 2)


@pytest.mark.parametrize(
    ("cgroup", "files", "cores", "memory"),
    [
        ("0::/job\n", {"sys/fs/cgroup/job/cpu.max": "250000 100000\n", "sys/fs/cgroup/job/memory.max": "1048576\n"},
         2, 1048576),
        ("0::/job/task\n", {"sys/fs/cgroup/job/cpu.max": "50000 100000\n", "sys/fs/cgroup/job/task/cpu.max": "max 1\n"},
         1, 65536000 * 1024),
        ("3:cpu,cpuacct:/docker/x\n2:memory:/docker/x\n",
         {"sys/fs/cgroup/cpu/docker/x/cpu.cfs_quota_us": "400000\n",
          "sys/fs/cgroup/cpu/docker/x/cpu.cfs_period_us": "100000\n",
          "sys/fs/cgroup/memory/docker/x/memory.limit_in_bytes": "2097152\n"}, 4, 2097152),
        ("3:memory:/\n", {"sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
                          "sys/fs/cgroup/cpu.max": "garbage\n"}, 16, 65536000 * 1024),
        # Inside a container the named cgroup is not mounted, only its root is.
        ("3:cpu:/docker/x\n", {"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "300000\n",
                               "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n"}, 3, 65536000 * 1024),
        ("3:cpu:/\n", {"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
                       "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n"}, 16, 65536000 * 1024),
    ],
)
def test_cgroup_limits(tmp_path, monkeypatch, cgroup, files, cores, memory):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)), raising=False)
    cpu = machine.read_cpu(stub_root(tmp_path, cgroup=cgroup, files=files))
    assert (cpu.num_cores_usable, cpu.memory_bytes) == (cores, memory)


def test_affinity_counts(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 5, 7}, raising=False)
    assert machine.read_cpu(stub_root(tmp_path)).num_cores_usable == 3


def test_an_empty_system_is_still_a_machine(tmp_path):
    cpu = machine.read_cpu(tmp_path)
    assert cpu.num_cores_logical >= 1 and cpu.model is None and cpu.memory_bytes is None


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("Tesla V100-SXM2-32GB", "v100"), ("NVIDIA A100 80GB PCIe", "a100"), ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA GH200 480GB", "gh200"), ("NVIDIA GeForce RTX 5090", "rtx5090"), ("NVIDIA L4", "l4"),
        ("NVIDIA RTX 6000 Ada Generation", "rtx6000ada"), ("AMD Instinct MI300X OAM", "mi300x"), ("", "gpu"),
    ],
)
def test_families(name, family):
    assert machine.gpu_family(name) == family


@given(names=st.lists(st.text(max_size=20), min_size=1, max_size=4))
def test_any_name_gives_a_usable_tag(names):
    cpu = machine.Cpu(model=None, architecture="x", num_cores_logical=1, num_cores_physical=1, num_cores_usable=1,
                      memory_bytes=None, num_numa_nodes=None)
    gpus = tuple(machine.Gpu(index=i, name=name) for i, name in enumerate(names))
    assert re.fullmatch(r"[a-z0-9-]+-x\d+", machine.Machine(cpu=cpu, gpus=gpus).tag)


def test_mixed_gpus_are_all_named(tools):
    tools("nvidia-smi", smi(H200 + "1, NVIDIA L4, 23034, 580.1, GPU-2, 72.00, [N/A], 8.9\n"))
    assert machine.detect().tag == "h200-l4-x2"


def test_nothing_personal_is_published(tools):
    tools("nvidia-smi", smi(H200_PAIR))
    text = json.dumps(machine.detect().to_json(), allow_nan=False)
    for secret in (socket.gethostname(), os.sep + "home", str(Path.home()), "GPU-aaaa1111"):
        assert secret not in text
    assert getpass.getuser() == "root" or getpass.getuser() not in text
    assert not re.search(r"\"[^\"]*/[^\"]+/", text), "a path"


def test_detection_imports_neither_torch_nor_pandas():
    code = "import sys, labkit.machine as m; m.detect(); assert not {'torch', 'pandas', 'numpy'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], check=True)

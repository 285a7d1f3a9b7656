"""nvidia-smi and rocm-smi output in its variants: what is unknown must come out as unknown."""

from __future__ import annotations

import json

import pytest

from labkit.analyze.kinds import UnreadableInput
from labkit.analyze.rocm_smi import parse_rocm_topo
from labkit.analyze.smi import parse_topo, parse_topo_p2p
from labkit.analyze.smi_query import parse_query

LEGEND = "\nLegend:\n\n  X    = Self\n  SYS  = Connection ...\n"
WITH_NICS = (
    "\t\x1b[4mGPU0\tGPU1\tNIC0\tNIC1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\n"
    "GPU0\t X \tNV18\tPIX\tSYS\t0-47,96-143\t0\t\tN/A\n"
    "GPU1\tNV18\t X \tSYS\tPIX\t48-95\tN/A\t\t3\n"
    "NIC0\tPIX\tSYS\t X \tSYS\t\t\t\t\n"
    "NIC1\tSYS\tPIX\tSYS\t X \t\t\t\t\n" + LEGEND + "\nNIC Legend:\n\n  NIC0: mlx5_0\n  NIC1: mlx5_bond_0\n"
)


def test_nic_rows_with_empty_cells():
    answer = parse_topo(WITH_NICS)
    assert (answer["gpus"], answer["nics"]) == (2, ["NIC0", "NIC1"])
    assert answer["nic_names"] == {"NIC0": "mlx5_0", "NIC1": "mlx5_bond_0"}
    assert answer["links"] == {"0-1": "NV18"} and answer["nvlink_count"] == {"0-1": 18}
    assert answer["nic_links"] == {"0-NIC0": "PIX", "0-NIC1": "SYS", "1-NIC0": "SYS", "1-NIC1": "PIX"}
    assert answer["cpu_affinity"] == {"0": "0-47,96-143", "1": "48-95"}
    assert answer["numa"] == {"0": 0, "1": None} and answer["gpu_numa_id"] == {"0": None, "1": 3}
    assert "error" not in answer


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace("\n", "\r\n"),
        lambda text: text.replace("\x1b", ""),  # pasted: the escape byte is lost, "[4m" stays
        lambda text: text.replace("\x1b[4m", "").replace("\x1b[0m", ""),
        lambda text: "Mon Nov 30 10:00:00 2026\n\n" + text,
        lambda text: "".join("0: " + line + "\n" for line in text.splitlines()),
        lambda text: "".join("node-07: " + line + "\n" for line in text.splitlines()),
        lambda text: "".join("[1,0]<stdout>:" + line + "\n" for line in text.splitlines()),
        lambda text: "".join("2026-11-30T10:00:00.1Z " + line + "\n" for line in text.splitlines()),
        lambda text: "".join("> " + line + "\n" for line in text.splitlines()),
        lambda text: "".join(f"{i}: {line}\n" for line in text.splitlines() for i in (3, 4)),
    ],
)
def test_how_the_text_was_kept_does_not_matter(change):
    assert parse_topo(change(WITH_NICS)) == parse_topo(WITH_NICS)


def test_tabs_turned_into_spaces():
    text = (
        "        GPU0    GPU1    GPU2    CPU Affinity    NUMA Affinity   GPU NUMA ID\n"
        "GPU0     X      PHB     SYS     0-31    0               N/A\n"
        "GPU1    PHB      X      NODE    0-31    0               N/A\n"
        "GPU2    SYS     NODE     X      32-63   1               N/A\n"
    )
    answer = parse_topo(text)
    assert answer["links"] == {"0-1": "PHB", "0-2": "SYS", "1-2": "NODE"}
    assert answer["nvlink_count"] == {"0-1": 0, "0-2": 0, "1-2": 0}
    assert answer["numa"] == {"0": 0, "1": 0, "2": 1} and answer["cpu_affinity"]["2"] == "32-63"


def test_cells_that_touch_are_two_links():
    text = (
        "        GPU0    GPU1    NIC0       NIC1  CPU Affinity    NUMA Affinity   GPU NUMA ID\n"
        "GPU0     X      NV18    NODENODE  0-55,112-167    0               N/A\n"
        "GPU1    NV18     X      SYSPIX  56-111    1               N/A\n"
        "NIC0    NODE    SYS      X SYS\nNIC1    NODE    PIX      SYSX\n"
    )
    answer = parse_topo(text)
    assert answer["nic_links"] == {"0-NIC0": "NODE", "0-NIC1": "NODE", "1-NIC0": "SYS", "1-NIC1": "PIX"}
    assert answer["cpu_affinity"] == {"0": "0-55,112-167", "1": "56-111"} and answer["numa"] == {"0": 0, "1": 1}
    assert "0-NIC1" not in parse_topo(text.replace("NODENODE", "QQQQQQQQ"))["nic_links"]


def test_a_blank_cell_between_spaces_is_blank():
    """A machine whose second half has no processor of its own in this container."""
    text = (
        "        GPU0    GPU1    CPU Affinity    NUMA Affinity   GPU NUMA ID\n"
        "GPU0     X      NV18    0-35            0               N/A\n"
        "GPU1    NV18     X                      1               N/A\n"
    )
    answer = parse_topo(text)
    assert answer["cpu_affinity"] == {"0": "0-35", "1": None} and answer["numa"] == {"0": 0, "1": 1}


def test_eight_gpus_keep_their_numbers():
    names = [f"GPU{i}" for i in range(8)]
    head = "\t" + "\t".join(names) + "\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n"
    rows = "".join(
        f"GPU{i}\t" + "\t".join(" X " if i == j else "NV12" for j in range(8)) + f"\t0-1\t{i // 4}\t\tN/A\n"
        for i in range(8)
    )
    answer = parse_topo(head + rows)
    assert answer["gpus"] == 8 and len(answer["links"]) == 28 and answer["numa"]["7"] == 1


def test_one_gpu_has_no_links():
    answer = parse_topo("\tGPU0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\nGPU0\t X \t\tN/A\t\tN/A\n")
    assert (answer["gpus"], answer["links"]) == (1, {})
    assert answer["cpu_affinity"] == {"0": None} and answer["numa"] == {"0": None}


def test_a_cut_matrix_is_called_cut():
    assert parse_topo("\n".join(WITH_NICS.splitlines()[:3]))["error"] == "matrix is cut: 2 of 4 rows"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.", "NVIDIA-SMI has failed"),
        ("Failed to initialize NVML: Driver/library version mismatch", "Failed to initialize NVML"),
        ("No devices were found", "No devices were found"),
        ("bash: nvidia-smi: command not found", "command not found"),
        ("Failed to initialize NVML: Insufficient Permissions", "Failed to initialize NVML"),
    ],
)
def test_no_driver_is_an_answer_for_every_kind(text, error):
    topo, p2p, query = parse_topo(text), parse_topo_p2p(text), parse_query(text)
    assert (topo["gpus"], p2p["gpus"], query["gpus"]) == (0, 0, [])
    assert topo["error"] == p2p["error"] == query["error"] == error
    assert topo["error_detail"] == text


@pytest.mark.parametrize("text", ["", "hello", "<html>504</html>", "GPU0 X", "a,b,c\n1,2,3\n"])
def test_other_text_is_refused(text):
    for parse in (parse_topo, parse_topo_p2p, parse_query, parse_rocm_topo):
        with pytest.raises(UnreadableInput, match="expected"):
            parse(text)


def test_peer_access_by_direction():
    text = " \tGPU0\tGPU1\tGPU2\t\n GPU0\tX\tOK\tCNS\t\n GPU1\tOK\tX\tNS\t\n GPU2\tOK\tNS\tX\t\n" + LEGEND
    answer = parse_topo_p2p(text)
    assert answer["p2p"] == {"0-1": "OK", "0-2": "CNS", "1-2": "NS"}
    assert answer["one_way"] == {"0-2": ["CNS", "OK"]}


def test_a_cut_matrix_of_peers_has_one_direction_only():
    answer = parse_topo_p2p(" \tGPU0\tGPU1\tGPU2\t\n GPU0\tX\tOK\tCNS\t\n")
    assert answer["error"] == "matrix is cut: 1 of 3 rows" and answer["one_way"] == {}


def test_query_units_in_header_or_cells():
    head = "index, name, memory.total [MiB], power.draw [W], clocks.current.sm [MHz], utilization.gpu [%]\n"
    with_units = parse_query(head + "0, NVIDIA H200, 143771 MiB, 87.82 W, 345 MHz, 0 %\n")
    assert with_units == parse_query(head + "0, NVIDIA H200, 143771, 87.82, 345, 0\n")
    assert with_units["gpus"] == [
        {
            "index": 0,
            "name": "NVIDIA H200",
            "memory_total_mib": 143771,
            "power_w": 87.82,
            "sm_mhz": 345,
            "utilization_gpu_pct": 0,
        }
    ]


def test_what_the_driver_does_not_tell_is_none_with_a_reason():
    text = (
        "index, name, memory.total [MiB], memory.used [MiB], power.draw [W], mig.mode.current, compute_cap\n"
        "0, NVIDIA GB10, [N/A], [Not Supported], [Unknown Error], [N/A], 12.1\n"
        "1, NVIDIA H100 80GB HBM3, 81559 MiB, [Insufficient Permissions], 70.10 W, Enabled, 9.0\n"
    )
    first, second = parse_query(text)["gpus"]
    assert first["memory_total_mib"] is None and first["mig"] is None and first["compute_cap"] == "12.1"
    assert first["unavailable"] == {
        "memory_total_mib": "N/A",
        "memory_used_mib": "Not Supported",
        "power_w": "Unknown Error",
        "mig": "N/A",
    }
    assert second["mig"] == "Enabled" and second["memory_used_mib"] is None and second["compute_cap"] == "9.0"
    assert second["unavailable"] == {"memory_used_mib": "Insufficient Permissions"}


def test_repeated_query_keeps_the_last_line_of_each_gpu():
    answer = parse_query("index, power.draw [W]\n0, 80 W\n1, 90 W\nindex, power.draw [W]\n0, 300 W\n1, 310 W\n")
    assert [gpu["power_w"] for gpu in answer["gpus"]] == [300, 310]


@pytest.mark.parametrize("key", ["pci.bus_id", "uuid", "index"])
def test_a_gpu_that_was_asked_twice_is_one_gpu(key):
    head = f"timestamp, name, {key}, utilization.gpu [%]\n"
    rows = "".join(f"2026/11/30 10:00:0{i}.1, NVIDIA L4, {gpu}, {i}{gpu} %\n" for i in (1, 2) for gpu in (3, 4))
    assert [gpu["utilization_gpu_pct"] for gpu in parse_query(head + rows)["gpus"]] == [23, 24]


def test_rows_that_may_be_one_gpu_are_said_to_be():
    head = "timestamp, name, utilization.gpu [%]\n"
    answer = parse_query(head + "2026/11/30 10:00:01.1, L4, 5 %\n2026/11/30 10:00:02.1, L4, 6 %\n")
    assert len(answer["gpus"]) == 2 and "more" not in answer["note"] and "listed once for each time" in answer["note"]


@pytest.mark.parametrize("label", ["{}: ", "n{}: ", "[1,{}]<stdout>:", "node-{}  | "])
def test_gpus_of_several_machines_in_one_file(label):
    text = "".join(f"{label.format(i)}{line}\n" for i in (0, 1) for line in ("index, name", "0, L4", "1, L4"))
    gpus = parse_query(text)["gpus"]
    assert [gpu["index"] for gpu in gpus] == [0, 1, 0, 1] and len({gpu["source"] for gpu in gpus}) == 2
    unlabelled = parse_query("index, name\n0, NVIDIA L4\nindex, name\n0, NVIDIA A100\n")
    assert [gpu["name"] for gpu in unlabelled["gpus"]] == ["NVIDIA L4", "NVIDIA A100"]


def test_any_word_in_brackets_is_a_reason_and_any_unit_is_kept():
    (gpu,) = parse_query("index, temperature.gpu, x.rate [KB/s]\n0, [GPU requires reset], 12 KB/s\n")["gpus"]
    assert gpu["temperature_gpu"] is None and gpu["unavailable"] == {"temperature_gpu": "GPU requires reset"}
    assert gpu["x_rate_kb_s"] == 12


def test_rows_of_processes_are_no_gpus():
    with pytest.raises(UnreadableInput, match="rows of processes"):
        parse_query("gpu_uuid, pid, process_name, used_gpu_memory [MiB]\nGPU-a, 1, p, 5 MiB\nGPU-a, 2, p, 6 MiB\n")


def test_no_index_column_keeps_every_line():
    assert len(parse_query("name, memory.total [MiB]\nNVIDIA L4, 23034 MiB\nNVIDIA L4, 23034 MiB\n")["gpus"]) == 2


def test_a_gpu_that_fails_in_the_middle():
    answer = parse_query(
        "index, name\n0, NVIDIA L4\nUnable to determine the device handle for GPU1: 0000:41:00.0: Unknown Error\n"
    )
    assert len(answer["gpus"]) == 1 and answer["error"] == "Unable to determine the device handle"


TABLE = """
============================ ROCm System Management Interface ============================
================================ Weight between two GPUs =================================
       GPU0         GPU1         GPU2
GPU0   0            15           40
GPU1   15           0            N/A
GPU2   40           40           0

================================= Hops between two GPUs ==================================
       GPU0         GPU1         GPU2
GPU0   0            1            2
GPU1   1            0            2
GPU2   2            2            0

=============================== Link Type between two GPUs ===============================
       GPU0         GPU1         GPU2
GPU0   0            XGMI         PCIE
GPU1   XGMI         0            PCIE
GPU2   PCIE         PCIE         0

======================================= Numa Nodes =======================================
GPU[0]\t\t: (Topology) Numa Node: 0
GPU[0]\t\t: (Topology) Numa Affinity: 0
GPU[1]\t\t: (Topology) Numa Node: 1
GPU[1]\t\t: (Topology) Numa Affinity: 1
GPU[2]\t\t: (Topology) Numa Node: -1
GPU[2]\t\t: (Topology) Numa Affinity: -1
================================== End of ROCm SMI Log ===================================
"""


def test_rocm_tables():
    answer = parse_rocm_topo(TABLE)
    assert answer["gpus"] == 3 and answer["vendor"] == "amd"
    assert answer["links"] == {"0-1": "XGMI", "0-2": "PCIE", "1-2": "PCIE"}
    assert answer["hops"] == {"0-1": 1, "0-2": 2, "1-2": 2}
    assert answer["weight"] == {"0-1": 15, "0-2": 40, "1-2": None}
    assert answer["numa"] == {"0": 0, "1": 1, "2": None}
    older = TABLE.replace("GPU[0]\t\t", "GPU 0          ").replace("GPU[1]\t\t", "GPU 1          ")
    assert parse_rocm_topo(older) == answer
    assert parse_rocm_topo(TABLE.replace("\n", "\r\n")) == answer


def test_rocm_parts_and_one_gpu():
    only_type = TABLE[
        TABLE.index("=============================== Link") : TABLE.index(
            "======================================= Numa"
        )
    ]
    answer = parse_rocm_topo(only_type)
    assert answer["links"]["0-1"] == "XGMI" and answer["hops"]["0-1"] is None and answer["numa"]["0"] is None
    alone = parse_rocm_topo(
        "=============================== Link Type between two GPUs ===========\n       GPU0\nGPU0   0\n"
    )
    assert (alone["gpus"], alone["links"]) == (1, {})
    access = (
        "===== Link accessibility between two GPUs =====\n       GPU0   GPU1\nGPU0   True   False\nGPU1   False  True\n"
    )
    assert parse_rocm_topo(access)["accessible"] == {"0-1": False}


def test_rocm_tables_that_are_not_topology():
    more = "================= Bandwidth =================\n  GPU0 GPU1 GPU5\nGPU0 N/A 50000-50000 1-2\n"
    with_more = TABLE.replace("================================== End", more + "===== End")
    assert parse_rocm_topo(with_more) == parse_rocm_topo(TABLE)
    labelled = "".join(f"{i}: {line}\n" for line in TABLE.splitlines() for i in (0, 1))
    assert parse_rocm_topo(labelled) == parse_rocm_topo(TABLE)


def test_rocm_json():
    between = "(Topology) {} between DRM devices 0 and 1"
    links = {between.format("Weight"): "15", between.format("Hops"): "1", between.format("Link type"): "XGMI"}
    value = {"system": links, "card0": {"(Topology) Numa Node": "0", "(Topology) Numa Affinity": "0"},
             "card1": {"(Topology) Numa Node": "1", "(Topology) Numa Affinity": "-1"}}
    answer = parse_rocm_topo("WARNING: low power\n" + json.dumps(value))
    assert (answer["links"], answer["hops"], answer["weight"]) == ({"0-1": "XGMI"}, {"0-1": 1}, {"0-1": 15})
    assert answer["numa"] == {"0": 0, "1": 1} and answer["numa_affinity"] == {"0": 0, "1": None}
    with pytest.raises(UnreadableInput):
        parse_rocm_topo('{"system": 1}')


def test_rocm_without_a_driver():
    answer = parse_rocm_topo("ERROR:root:Driver not initialized (amdgpu not found in modules)")
    assert answer["gpus"] == 0 and "Driver not initialized" in answer["error"]
    json.dumps(answer, allow_nan=False)

"""What NCCL chose, from the log lines of several versions; and never from the name of a kernel."""
# ruff: noqa: E501 (lines as the tools print them)

import json
import random
from pathlib import Path

import pytest

from labkit.analyze.kinds import UnreadableInput
from labkit.analyze.nccl_log import parse_log

IN_FRONT = "n0:123:456 [0] NCCL INFO "


def log(*lines, version="2.28.9+cuda13.0"):
    return "\n".join([f"{IN_FRONT}NCCL version {version}", *(IN_FRONT + line for line in lines)])


@pytest.mark.parametrize(("line", "collective", "pair", "channels"), [
    ("16384 Bytes -> Algo 1 proto 2 time 56.200001", "unknown", "Ring+Simple", None),
    ("AllGather: 16384 Bytes -> Algo 1 proto 0 time 2860.208008", "all_gather", "Ring+LL", None),
    ("AllReduce: 16384 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..1}", "all_reduce", "Ring+LL", 2),
    ("AllReduce: 16384 Bytes -> Algo Tree proto Simple channel{Lo..Hi}={0..23}", "all_reduce", "Tree+Simple", 24),
    ("Broadcast:    16384 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..0}", "broadcast", "Ring+Simple", 1),
    ("AllReduce: 16384 Bytes -> Algo NVLS_TREE proto LL128 channel{Lo..Hi}={2..3}", "all_reduce", "NVLSTree+LL128", 2),
    ("AllReduce [Symmetric]: 16384 Bytes -> Kernel AllReduce_AGxLL_R nchannels 8 nthreads 512", "all_reduce",
     "Symmetric AllReduce_AGxLL_R", 8),
])
def test_the_choice_in_every_known_form(line, collective, pair, channels):
    answer = parse_log(log(line))
    assert answer["chosen"] == {collective: {"16384": pair}}
    assert answer["choices"][0]["num_channels"] == channels and answer["choices"][0]["size_bytes"] == 16384


def test_the_third_algorithm_was_renamed():
    line = "8 Bytes -> Algo 2 proto 2 time 1.0"
    assert parse_log(log(line, version="2.10.3"))["chosen"] == {"unknown": {"8": "CollNet+Simple"}}
    assert parse_log(log(line, version="2.20.5"))["chosen"] == {"unknown": {"8": "CollNetDirect+Simple"}}


def test_a_kernels_name_is_no_evidence():
    answer = parse_log(log("ncclDevKernel_AllReduce_Sum_f32_RING_LL launched, 33554432 bytes"))
    assert answer["choices"] == [] and answer["chosen"] == {}


def test_calls_of_one_size_that_went_two_ways_are_not_one_answer():
    line = "AllReduce: 4096 Bytes -> Algo {} proto LL channel{{Lo..Hi}}={{0..0}}"
    answer = parse_log(log(line.format("RING"), line.format("RING"), line.format("TREE")))
    assert answer["chosen"] == {"all_reduce": {"4096": None}}
    assert [row["num_lines"] for row in answer["choices"]] == [2, 1]


OLD_TABLE = (
    "Latency/AlgBw |    Tree/    LL |    Tree/ LL128 |    Tree/Simple |    Ring/    LL |    Ring/ LL128 |    Ring/Simple |",
    " Max NThreads |            512 |            640 |            512 |            512 |            640 |            256 |",
    "    AllReduce |     6.4/   3.2 |     8.2/   0.0 |    56.0/  10.8 |     6.6/   3.1 |    14.0/   0.0 |    18.0/  12.0 |",
)
NEW_TABLE = (
    "  Algorithm   |                            Tree                  |                            Ring                  |",
    "  Protocol    |             LL |          LL128 |         Simple |             LL |          LL128 |         Simple |",
    " Max NThreads |            512 |            640 |            512 |            512 |            640 |            512 |",
    "    AllReduce |     6.4/   3.2 |     8.2/   0.0 |    56.0/  10.8 |     6.6/   3.1 |    14.0/   0.0 |    18.0/  12.0 |",
)


@pytest.mark.parametrize("table", [OLD_TABLE, NEW_TABLE], ids=["one header", "algorithms above protocols"])
def test_the_cost_table_of_old_and_new_versions(table):
    model = parse_log(log(*table))["model"]["all_reduce"]
    assert model["Tree+LL"] == {"latency_us": 6.4, "bandwidth_gb_per_s": 3.2}
    assert model["Ring+Simple"] == {"latency_us": 18.0, "bandwidth_gb_per_s": 12.0}
    assert model["Ring+LL128"]["bandwidth_gb_per_s"] == 0.0 and len(model) == 6


def test_paths_settings_channels_and_subsystems():
    answer = parse_log(log(
        "ncclCommInitRankConfig comm 0x1 rank 0 nranks 2 - Init START", "NCCL_ALGO set by environment to Ring.",
        "Channel 00/24 :    0   1", "Trees [0] 1/-1/-1->0->-1", "24 coll channels, 24 collnet channels, 0 nvls channels",
        "Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM", "Channel 01/0 : 1[1] -> 0[0] via P2P/direct pointer/read",
        "Channel 00 : 2[1b000] -> 0[1c000] [send] via SHM/direct/direct", *OLD_TABLE))
    assert answer["transports"] == {"0-1": ["P2P/CUMEM", "P2P/direct pointer"], "0-2": ["SHM/direct/direct"]}
    assert answer["environ"] == {"NCCL_ALGO": "Ring"} and answer["num_ring_channels"] == 24
    assert answer["subsystems"] == ["INIT", "ENV", "GRAPH", "TUNING"] and answer["nccl_version"] == "2.28.9"


@pytest.mark.parametrize("line", ["n0:9:9 [0] NCCL INFO RCCL version : 2.26.6-HEAD:f2", "RCCL version 2.26.6+hip7.0",
                                  "[lib] load RCCL version: 2.26.6"])
def test_rccl_writes_its_version_in_other_ways(line):
    assert parse_log(line + "\n" + IN_FRONT + "Init COMPLETE")["nccl_version"] == "2.26.6"


def test_what_the_first_versions_wrote():
    answer = parse_log(log("Channel 00 :    0   1   2", "Channel 01 :    0   2   1", version="2.4.8") + "\n" + log(
        "Ring 00 : 0[0] -> 1[1] via P2P/IPC", "Channel 00 : 1[1a000] -> 2[1b000] via direct shared memory"))
    assert answer["num_ring_channels"] == 2 and answer["transports"] == {"1-2": ["direct shared memory"]}


def test_settings_in_their_other_words():
    answer = parse_log(log("NCCL_IB_HCA set to mlx5_0,mlx5_1", "NCCL_DEBUG_FILE set by environment to /tmp/a b.log.",
                           "NCCL_ALGO set by environment to Tree.n0:1:2 [1] NCCL INFO Init COMPLETE"))
    assert answer["environ"] == {"NCCL_IB_HCA": "mlx5_0,mlx5_1", "NCCL_DEBUG_FILE": "/tmp/a b.log", "NCCL_ALGO": "Tree"}


def test_a_container_log_of_json_records():
    lines = log("NCCL_ALGO set by environment to Tree.").splitlines()
    text = "".join(json.dumps({"log": line + "\n", "stream": "stderr"}) + "\n" for line in lines)
    assert parse_log(text) == parse_log("\n".join(lines))


def test_a_text_that_only_names_the_library_is_refused():
    with pytest.raises(UnreadableInput, match="NCCL_DEBUG=INFO"):
        parse_log("we use NCCL for this")


def test_a_refusal_is_a_warning():
    warning = "Error : no algorithm/protocol available for function AllReduce with datatype ncclFloat32."
    answer = parse_log(f"n0:1:2 [0] enqueue.cc:2110 NCCL WARN {warning}")
    assert answer["warnings"] == [warning] and answer["subsystems"] == []


def test_other_text_is_refused():
    with pytest.raises(UnreadableInput, match="NCCL_DEBUG=INFO"):
        parse_log("all fine\n")


@pytest.mark.parametrize("seed", range(30))
def test_a_damaged_log_gives_an_answer_or_one_error(seed):
    chance = random.Random(seed)
    letters = list(log(*NEW_TABLE, "AllReduce: 4096 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..1}",
                       "8 Bytes -> Algo 1 proto 2 time 56.2", "Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM"))
    for _ in range(chance.randrange(1, 80)):
        place = chance.randrange(len(letters))
        letters[place] = chance.choice(["", "|", "\n", ".", "/", "-", "9", letters[place] * 3])
    try:
        json.dumps(parse_log("".join(letters)), allow_nan=False)
    except UnreadableInput as error:
        assert "\n" not in str(error)


def test_a_recorded_log_of_two_h200():
    answer = parse_log((Path(__file__).parent / "data" / "nccl_log" / "h200_x2_nccl_2_28_9.txt").read_text())
    assert answer["nccl_version"] == "2.28.9" and answer["num_ring_channels"] == 24
    assert answer["subsystems"] == ["INIT", "ENV", "GRAPH", "TUNING"] and answer["transports"] == {"0-1": ["P2P/CUMEM"]}
    chosen = {int(size): pair for size, pair in answer["chosen"]["all_reduce"].items()}
    assert [size for size, pair in chosen.items() if pair == "Ring+LL"] == [2**power for power in range(10, 21)]
    assert {pair for size, pair in chosen.items() if size > 2**20} == {"Ring+Simple"}
    channels = {row["size_bytes"]: row["num_channels"] for row in answer["choices"]}
    assert (channels[2**13], channels[2**14], channels[2**28]) == (1, 2, 24)
    model = answer["model"]["all_reduce"]
    assert model["Ring+LL"] == {"latency_us": 7.8, "bandwidth_gb_per_s": 141.0}
    assert model["Tree+Simple"] == {"latency_us": 16.4, "bandwidth_gb_per_s": 232.2}
    assert model["NVLS+Simple"]["bandwidth_gb_per_s"] == model["PAT+LL"]["bandwidth_gb_per_s"] == 0

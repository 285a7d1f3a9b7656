"""nccl-tests output as it comes from clusters: prefixed, interleaved, cut, repeated, and columns of every version."""
# ruff: noqa: E501 (lines as the tools print them)

import json
import random
import re
from pathlib import Path

import pytest

from labkit.analyze.kinds import KINDS, UnreadableInput
from labkit.analyze.nccl_tests import number, operation, version_text
from labkit.analyze.nccl_tests_columns import table_columns
from labkit.analyze.nccl_tests_json import parse_json, without_secrets
from labkit.analyze.nccl_tests_text import parse_text
from labkit.records.redact import public_environ

NCCL = Path(__file__).parent / "data" / "formats" / "nccl"
V13 = (NCCL / "allreduce_v2_13_g8.txt").read_text()
JSON_V1 = (NCCL / "json_v1_2_17_3_misspelled.json").read_text()
JSON_V3 = (NCCL / "json_v3_2_19_6_periter_nan.json").read_text()
HEAD = "# nThread 1 nGpus 2 minBytes 1024 maxBytes 4096 step: 4(factor) warmup iters: 5 iters: 20 agg iters: 1 validation: 1 graph: 0\n"
RANKS = "# Using devices\n#  Rank  0 Group  0 Pid 7 on a device  0 [0000:06:00] NVIDIA H200\n" \
        "#  Rank  1 Group  0 Pid 7 on a device  1 [0000:07:00] NVIDIA H200\n#\n"
TABLE = "#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong\n"
FOOT = "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 0.05 \n#\n"
ROW = "        1024           256     float     sum      -1    28.31    0.04    0.06      0    27.94    0.05    0.07      0\n"


@pytest.mark.parametrize("prefix", [
    "[1,0]<stdout>:", "[1,0]<stdout>: ", "0: ", " 3: ", "2026-11-29T20:00:00.123456789Z ", "worker-0  | ",
    "2026-11-29T20:00:00.1Z stdout F ", "Sun Nov 29 20:00:00 2026[1,0]<stdout>:", "Sun Nov 29 20:00:00 2026<stdout>:", "[prterun-n0-7@1,0]<stdout>: ",
    "\x1b[32m", "    ",
])
def test_what_a_launcher_puts_in_front_does_not_matter(prefix):
    assert parse_text("\n".join(prefix + line for line in V13.splitlines())) == parse_text(V13)


@pytest.mark.parametrize("prefix", [
    "(head, rank=0, pid=21170) ", "(worker1, rank=1, pid=2, ip=10.0.0.1) [1,0]<stdout>:", "\x1b[36m(main pid=33)\x1b[0m ",
    "[0] ", "[11] ", "[rank0]: ", "[default0]:", "node-07: ", "2026-11-29 20:00:00.123 ", "[2026-11-29 20:00:00] ",
    "2026-11-29 20:00:00,123 - INFO - ", "Nov 29 20:00:00 n1 slurm[77]: ", "> ", "launcher-x7 main ", "[pod/a/main] "])
def test_what_collectors_put_in_front_does_not_matter(prefix):
    assert parse_text("\n".join(prefix + line for line in V13.splitlines())) == parse_text(V13)


@pytest.mark.parametrize("wrap", [
    lambda text: "".join(json.dumps({"log": line + "\n", "stream": "stdout"}) + "\n" for line in text.splitlines()),
    lambda text: "output: " + json.dumps(text), lambda text: re.sub(r"(?m)^# ?", "", text)],
    ids=["container log", "one JSON text", "number signs lost"])
def test_how_a_log_was_stored_does_not_matter(wrap):
    assert parse_text(wrap(V13)) == parse_text(V13)


def test_other_lines_between_and_inside_rows():
    noisy = HEAD + RANKS + "NCCL version 2.28.9+cuda13.0\n" + TABLE
    noisy += ROW.rstrip()[:49] + "a:7:19 [0] NCCL INFO AllReduce: 1024 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..1}\n"
    noisy += "a:7:19 [0] NCCL INFO threadThresholds 8/8/64\n" + ROW.rstrip()[49:] + "\n" + FOOT
    (row,) = parse_text(noisy)["rows"]
    assert row["out_of_place"] == {"time_us": 28.31, "algbw": 0.04, "busbw": 0.06, "wrong": 0}
    assert row["in_place"] == {"time_us": 27.94, "algbw": 0.05, "busbw": 0.07, "wrong": 0}
    assert parse_text(noisy)["nccl_version"] == "2.28.9" and parse_text(noisy)["passed"] is True


def test_a_summary_printed_inside_a_row_of_alltoallv():
    summary = "# NCCL_TESTS_ALLTOALLV_PRINT_SUMMARY: mode=generated nranks=2 total_bytes=1024 spread=0.5 time_usec=9\n" \
              "#   rank=0 send_bytes=512 recv_bytes=512 alg_bw=0.1 bus_bw=0.1\n"
    text = HEAD + RANKS + TABLE + "        1024           256     float    none      -1" + summary
    text += "    14.20    0.01    0.01      0" + summary + "    14.30    0.02    0.02    N/A\n" + FOOT
    (row,) = parse_text(text)["rows"]
    assert (row["out_of_place"]["time_us"], row["in_place"]["time_us"], row["in_place"]["wrong"]) == (14.2, 14.3, None)


def test_columns_of_newer_versions_are_read_by_the_header():
    header = TABLE.replace("#wrong", "#wrong #bitdiff   i_min   i_max   i_p99   i_cv%").rstrip() + "   timestamp\n"
    cells = "28.31 0.04 0.06 0 0 27.0 31.5 31.5 4.2"
    row = f"1024 256 float sum -1 {cells} {cells} 2026-11-29 20:00:01\n"
    answer = parse_text("# Collective test starting: sendrecv_perf\n" + HEAD + RANKS + header + row + FOOT)
    (row,) = answer["rows"]
    assert row["out_of_place"]["iter_max_us"] == 31.5 and row["in_place"]["bitdiff"] == 0
    assert row["timestamp"] == "2026-11-29 20:00:01" and answer["op"] == "send_recv" and answer["columns"] == 23


def test_older_collectives_have_fewer_columns():
    header = "#       size         count    type     time   algbw   busbw  error     time   algbw   busbw  error\n"
    row = "           8             1   float    21.03    0.00    0.00  0e+00    20.90    0.01    0.01  0e+00\n"
    (row,) = parse_text(HEAD + RANKS + header + row + FOOT)["rows"]
    assert row["redop"] is None and row["root"] is None and row["count"] == 1
    assert row["out_of_place"]["max_error"] == 0.0 and row["out_of_place"]["wrong"] is None


def test_version_1_printed_milliseconds():
    header = "#      bytes             N    type      op     time  algbw  busbw      res     time  algbw  busbw      res\n"
    row = "     1048576        262144   float     sum    0.110   9.50  16.63    1e-06    0.109   9.59  16.78    1e-06\n"
    (row,) = parse_text(header + row)["rows"]
    assert row["size"] == 1048576 and row["out_of_place"]["time_us"] == pytest.approx(110.0)


def test_a_blank_side_is_unknown_and_not_the_other_one():
    text = HEAD + RANKS + TABLE + "        1024           256     float     sum      -1" + " " * 34 + "27.94 0.05 0.07 0\n"
    (row,) = parse_text(text + FOOT)["rows"]
    assert row["out_of_place"] is None and row["in_place"]["time_us"] == 27.94


def test_a_killed_program_is_not_a_pass():
    answer = parse_text(HEAD + RANKS + TABLE + ROW + ROW[:60])
    assert answer["finished"] is False and answer["passed"] is None and "no footer" in answer["error"]
    assert answer["incomplete_rows"] == 1 and answer["rows"][0]["in_place"]["time_us"] == 27.94


def test_wrong_elements_fail_even_without_a_footer():
    assert parse_text(HEAD + RANKS + TABLE + ROW.replace("      0\n", "     12\n"))["passed"] is False


def test_a_mark_above_the_limit_fails_without_a_footer():
    header = TABLE.replace("#wrong", "error").replace("root", "")
    row = "1024 256 float sum 28.31 0.04 0.06 4e+01* 27.94 0.05 0.07 1e-06\n"
    answer = parse_text(HEAD + RANKS + header + row)
    assert answer["rows"][0]["out_of_place"]["max_error"] == 40.0 and answer["passed"] is False


def test_a_list_of_ranks_that_is_cut_is_no_number_of_ranks():
    last = RANKS.splitlines(keepends=True)[2].replace("Rank  1", "Rank 71")
    for ranks in (last, RANKS.splitlines(keepends=True)[1], ""):
        answer = parse_text(ranks + TABLE + ROW + FOOT)
        assert answer["nranks"] is None and answer["usable"] is True and answer["error"] is None
    assert parse_text(HEAD.replace("nGpus 2", "nGpus 8") + RANKS + TABLE + ROW + FOOT)["nranks_total"] is None


def test_a_second_table_without_settings_is_a_second_run():
    answer = parse_text(TABLE + ROW + FOOT + "and with trees:\n" + TABLE + ROW + FOOT.replace("0.05", "0.09"))
    assert answer["runs"] == 2 and [run["avg_busbw"] for run in answer["results"]] == [0.05, 0.09]


@pytest.mark.parametrize("line", ["a:1:2 [0] graph/search.cc:890 NCCL WARN falling back to simple order",
                                  "cat: /etc/site: No such file or directory"])
def test_a_warning_in_a_run_that_passed_is_no_error(line):
    answer = parse_text(HEAD + RANKS + line + "\n" + TABLE + ROW + FOOT)
    assert answer["error"] is None and answer["warnings"] == [line] and answer["passed"] is True
    assert parse_text(HEAD + RANKS + line + "\n" + TABLE + ROW)["error"] == line


def test_a_librarys_own_lines_tell_the_vendor_and_are_no_failure():
    lines = "n0:7:7 [0] NCCL INFO RCCL version : 2.26.6-HEAD:f2\nHIP version  : 7.0.5\n" \
            "n0:7:7 [0] NCCL INFO NET/Plugin: dlerror=librccl-net.so: No such file or directory\n"
    answer = parse_text(HEAD + RANKS + lines + TABLE + ROW)
    assert (answer["vendor"], answer["rccl_version"], answer["hip_version"]) == ("amd", "2.26.6-HEAD:f2", "7.0.5")
    assert answer["error"].startswith("no footer")


def test_json_inside_a_log():
    log = "# Writing JSON output to x.json\n---- begin ----\n" + JSON_V1 + "\n---- end ----\n"
    assert parse_json(log) == parse_json(JSON_V1)


def test_the_librarys_last_message_is_no_error_of_a_run_that_passed():
    value = json.loads(JSON_V1) | {"errors": ["no device found"]}
    answer = parse_json(json.dumps(value))
    assert answer["passed"] is True and answer["error"] is None and answer["warnings"] == ["no device found"]
    del value["out_of_bounds"]
    assert parse_json(json.dumps(value))["error"] == "no device found"


def record(in_place, *, size=1024, wrong="0", **more):
    return {"numCycle": 0, "name": "AllReduce", "nodes": 1, "ranks": 2, "ranksPerNode": 2, "gpusPerRank": 4, "size": size,
            "type": "float", "redop": "sum", "inPlace": in_place, "time": 28.5, "algBw": 0.04, "busBw": 0.07,
            "wrong": wrong, **more}


def test_the_list_that_rccl_tests_writes():
    records = [record(0), record(1, time=27.5), record(0, size=2048, wrong="3"), record(1, size=2048, wrong="N/A")]
    answer = parse_json(json.dumps(records, indent=0))
    assert (answer["op"], answer["nranks"], answer["library"], len(answer["rows"])) == ("all_reduce", 8, "rccl", 2)
    assert answer["rows"][0]["in_place"] == {"time_us": 27.5, "algbw": 0.04, "busbw": 0.07, "wrong": 0}
    assert answer["rows"][1]["in_place"]["wrong"] is None and answer["passed"] is False
    assert parse_json(json.dumps(records[:2]))["passed"] is None, "no footer tells of values out of bounds"
    cut = parse_json(json.dumps(records)[:-40])
    assert cut["finished"] is False and len(cut["rows"]) == 2 and "cut off" in cut["error"]


def test_the_same_as_comma_separated_values():
    keys = ["numCycle", "name", "nodes", "ranks", "ranksPerNode", "gpusPerRank", "size", "type", "redop", "inPlace", "time",
            "algBw", "busBw", "wrong"]
    records = [record(0), record(1), record(1, size=2048)]
    head = "numCycle,collective,nodes,ranks,ranksPerNode,gpusPerRank,size,type,redop,inplace,time,algbw,busbw,#wrong\n"
    text = head + "".join(",".join(str(found[key]) for key in keys) + "\n" for found in records)
    answer = parse_text(text)
    assert answer["rows"] == parse_json(json.dumps(records))["rows"] and answer["nranks"] == 8
    assert answer["rows"][1]["out_of_place"] is None and answer["rows"][1]["in_place"]["time_us"] == 28.5


@pytest.mark.parametrize(("title", "side"), [("in-place", "in_place"), ("out-of-place", "out_of_place")])
def test_one_side_only_and_what_was_chosen(title, side):
    header = TABLE.rstrip()[: TABLE.index("#wrong") + 6] + "     algo     proto   nchannels\n"
    row = ROW.rstrip()[: ROW.index("27.94")].rstrip() + "    Ring        LL           8\n"
    (found,) = parse_text(HEAD + RANKS + f"#            {title}\n" + header + row + FOOT)["rows"]
    assert found[side] == {"time_us": 28.31, "algbw": 0.04, "busbw": 0.06, "wrong": 0}
    assert [found[name] for name in ("out_of_place", "in_place") if name != side] == [None]
    assert (found["algorithm"], found["protocol"], found["num_channels"]) == ("Ring", "LL", 8)


def test_units_in_the_header_and_a_commit_in_the_version():
    header = "bytes count type redop root time(us) algbw busbw errors time(us) algbw busbw errors\n"
    text = "# nccl-tests version 2.17.8 (a1b2c3) nccl-headers=22807 nccl-library=22808\n" + header + ROW
    answer = parse_text(text)
    assert answer["nccl_version"] == "2.28.8"
    assert answer["rows"][0]["out_of_place"] == {"time_us": 28.31, "algbw": 0.04, "busbw": 0.06, "wrong": 0}


def test_several_programs_one_after_the_other():
    one = "# Collective test starting: all_gather_perf\n" + HEAD + RANKS + TABLE + ROW + FOOT
    two = "# Collective test starting: broadcast_perf\n" + HEAD + RANKS + TABLE + ROW.replace("28.31", "99.0") + FOOT
    answer = parse_text(one + two)
    assert answer["runs"] == 2 and [found["op"] for found in answer["results"]] == ["all_gather", "broadcast"]
    assert [row["run"] for row in answer["rows"]] == [0, 1] and answer["op"] is None and answer["passed"] is True


def test_processes_that_ran_alone_are_no_collective():
    quiet = ROW.replace("0.06", "0.00").replace("0.07", "0.00")
    alone = lambda pid: HEAD.replace("nGpus 2", "nGpus 1") + f"# Using devices\n#  Rank  0 Pid {pid} on a device  0 [0x06] X\n" + TABLE + quiet + FOOT  # noqa: E731
    answer = parse_text(alone(7) + alone(8) + alone(9))
    assert answer["error"] == "three independent 1-rank runs: the binary was built without MPI"
    assert answer["usable"] is False and answer["rows"] == []
    assert parse_text(alone(7))["usable"] is False


@pytest.mark.parametrize("text", ["bash: all_reduce_perf: command not found", "Invalid number of GPUs: 8 requested but only 2"])
def test_a_program_that_could_not_start_says_why(text):
    answer = parse_text(text)
    assert answer["usable"] is False and answer["error"].startswith(text[:20]) and answer["passed"] is None


def test_an_average_that_is_no_number_is_unknown():
    for word in ("nan", "-nan", "inf"):
        answer = parse_text(HEAD + RANKS + TABLE + ROW + FOOT.replace("0.05", word))
        assert answer["avg_busbw"] is None and answer["finished"] is True


def test_table_columns_are_those_that_the_report_uses():
    assert table_columns(TABLE)["side"] == ["time", "algbw", "busbw", "wrong"]
    with pytest.raises(UnreadableInput, match="busbw"):
        table_columns("# size count")


def test_other_text_is_refused_in_one_line(tmp_path):
    (tmp_path / "x.txt").write_text("hello\nworld\n")
    with pytest.raises(UnreadableInput, match=r"x\.txt: no table of nccl-tests"):
        KINDS["nccl_tests_text"]([tmp_path / "x.txt"])


@pytest.mark.parametrize("seed", range(60))
def test_damaged_text_gives_an_answer_or_one_error(seed):
    chance = random.Random(seed)
    letters = list(chance.choice([path.read_text() for path in sorted(NCCL.glob("*.txt"))]))
    for _ in range(chance.randrange(1, 60)):
        place = chance.randrange(len(letters))
        letters[place] = chance.choice(["", "#", "\n", " ", "N/A", "\t", "9", "\x1b[4m", "\u20ac", letters[place] * 2])
    text = "".join(letters)[: chance.randrange(1, len(letters))]
    try:
        json.dumps(parse_text(text), allow_nan=False)
    except UnreadableInput as error:
        assert "\n" not in str(error)


@pytest.mark.parametrize("text", [JSON_V1, JSON_V3], ids=["v1", "v3"])
def test_json_cut_anywhere_gives_what_is_whole(text):
    whole = parse_json(text)
    for end in range(1, len(text), 7):
        try:
            answer = parse_json(text[:end])
        except UnreadableInput:
            continue
        assert answer["finished"] in (False, whole["finished"]) and "synthetic-not-a-key" not in json.dumps(answer)
        assert answer["passed"] is not True or answer["oob"] == 0


def test_json_of_a_run_that_was_cut_says_so():
    answer = parse_json(JSON_V1[: JSON_V1.index('"out_of_bounds"')])
    assert answer["finished"] is False and answer["passed"] is None and "cut off" in answer["error"]
    assert answer["rows"][0]["out_of_place"]["time_us"] == 41.25 and answer["nranks"] == 8


def test_json_numbers_that_are_none():
    answer = parse_json(JSON_V1.replace('"bandwidith":25.655', '"bandwidith":inf').replace('"alg_bw":25.42', '"alg_bw":-nan'))
    assert answer["avg_busbw"] is None and answer["rows"][0]["out_of_place"]["algbw"] is None
    none = parse_json(JSON_V1.replace('"nwrong":0.0', '"nwrong":null').replace('"validation":1', '"validation":0'))
    assert none["validated"] is False and none["passed"] is None


def test_json_groups_threads_and_spelling():
    split = JSON_V1.replace('"ngpus":8', '"ngpus":2').replace(
        '"device_info":"NVIDIA H200"}', '"device_info":"NVIDIA H200"},{"rank":2,"group":1,"hostname":"lab1"}')
    answer = parse_json(split.replace("bandwidith", "bandwidth"))
    assert (answer["nranks"], answer["nranks_total"], answer["groups"], answer["hosts"]) == (2, 4, 2, 2)
    assert answer["avg_busbw"] == 25.655 and answer["op"] == "all_reduce" and answer["nccl_version"] == "2.28.7"


def test_a_failed_bandwidth_limit_fails_the_run():
    assert parse_json(JSON_V1.replace('"unchecked"', '"false"'))["passed"] is False
    assert parse_json(JSON_V1.replace('"unchecked"', '"true"'))["bandwidth_check"] == "OK"


def test_cpu_time_is_never_a_device_time():
    answer = parse_json(JSON_V1.replace('"time":', '"cpu_time":'))
    side = answer["rows"][0]["out_of_place"]
    assert answer["time_kind"] == "cpu" and side["time_us"] is None and side["cpu_time_us"] == 41.25


def test_the_slowest_process_is_the_one_that_was_slowest_most_often():
    assert parse_json(JSON_V3)["straggler_process"] == 0
    swapped = JSON_V3.replace("[900.0,40.0,41.0,42.0,300.0],[880.0,39.5,40.0,38.0,120.0]",
                              "[900.0,39.5,40.0,38.0,300.0],[880.0,40.0,41.0,42.0,120.0]")
    assert parse_json(swapped)["straggler_process"] == 1
    assert parse_json(JSON_V1)["straggler_process"] is None


def test_a_file_for_a_record_keeps_no_secret_host_or_path():
    kept = without_secrets(JSON_V1)
    assert "synthetic-not-a-key" not in kept and "MY_API_KEY" not in kept and "lab0" not in kept and "/root" not in kept
    assert json.loads(kept)["env"] == ["NCCL_ALGO=Ring"] and parse_json(kept)["rows"] == parse_json(JSON_V1)["rows"]


@pytest.mark.parametrize("entry", [
    "HF_TOKEN=abc", "AWS_SECRET_ACCESS_KEY=x", "AWS_ACCESS_KEY_ID=x", "DB_PASSWORD=x", "GITHUB_PAT=x", "NCCL_X_TOKEN=1",
    "APIKEY=x", "PGPASSWD=x", "SLACK_WEBHOOK_URL=x", "WANDB_API_KEY=x", "URL=https://me:pw@host/x", "X=ghp_abcdefghijklmnop",
    "NCCL_NOTE=sk-abcdefghijklmnop", "GOOGLE_APPLICATION_CREDENTIALS=/k.json", "BEARER_AUTH=x",
])
def test_secrets_are_named_and_not_told(entry):
    told, secret = public_environ([entry, "NCCL_ALGO=Ring"])
    assert secret == [entry.split("=")[0]] and told == {"NCCL_ALGO": "Ring"}


@pytest.mark.parametrize("entry", [
    "TOKENIZERS_PARALLELISM=false", "PWD=/root", "HOME=/root", "KEYBOARD=us", "MONKEY=1", "SSH_AUTH_SOCK=/tmp/x", "PATH=/bin"])
def test_what_is_no_secret_is_neither_named_nor_told(entry):
    assert public_environ([entry]) == ({}, [])


def test_library_settings_are_told_without_paths():
    told, _ = public_environ(["NCCL_DEBUG_FILE=/srv/x/nccl.log", "CUDA_VISIBLE_DEVICES=0,1", "nonsense"])
    assert told == {"NCCL_DEBUG_FILE": "<path>", "CUDA_VISIBLE_DEVICES": "0,1"}


def test_small_words():
    assert number(True) is None and number("1e400") is None and version_text(22809) == "2.28.9"
    assert operation("/x/alltoallv_perf_mpi") == "all_to_all_v" and operation(None) is None

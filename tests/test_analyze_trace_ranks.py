"""Wait and transfer over ranks, worked out by hand; clocks of the ranks are set apart on purpose."""

from __future__ import annotations

import json

import pytest

from labkit.analyze.kinds import UnreadableInput
from labkit.analyze.trace_ranks import analyze_trace_dir

NAMES = {"all_reduce": "ncclDevKernel_AllReduce_Sum_f32", "all_gather": "ncclDevKernel_AllGather"}


def comm(ts, dur, *, collective="all_reduce", group="0", members="[0, 1]", stream=20, correlation=None, elements=8):
    args = {"device": 0, "stream": stream, "correlation": correlation, "Collective name": collective}
    args |= {"Process Group Name": group, "Process Group Ranks": members}
    args |= {"In msg nelems": elements, "Out msg nelems": elements, "dtype": "Float"}
    return {"ph": "X", "cat": "kernel", "name": "nccl", "pid": 0, "tid": stream, "ts": ts, "dur": dur, "args": args}


def launch(correlation, ts):
    args = {"correlation": correlation}
    return {
        "ph": "X",
        "cat": "cuda_runtime",
        "name": "cudaLaunchKernel",
        "pid": 9,
        "tid": 9,
        "ts": ts,
        "dur": 1,
        "args": args,
    }


def step(number, ts, dur):
    return {
        "ph": "X",
        "cat": "user_annotation",
        "name": f"ProfilerStep#{number}",
        "pid": 9,
        "tid": 9,
        "ts": ts,
        "dur": dur,
    }


@pytest.fixture
def job(tmp_path):
    def write(files, *, size=None):
        for rank, events in files.items():
            info = {"rank": rank, "world_size": size or len(files)} if isinstance(rank, int) else None
            path = tmp_path / (f"r{rank}.json" if isinstance(rank, int) else rank)
            path.parent.mkdir(exist_ok=True)
            path.write_text(json.dumps({"distributedInfo": info, "traceEvents": events}))
        answer = analyze_trace_dir([tmp_path])
        assert json.loads(json.dumps(answer, allow_nan=False)) == answer
        return answer

    return write


def test_three_ranks_and_clocks_an_hour_apart(job):
    hour = 3.6e9
    answer = job(
        {
            0: [comm(0, 10), comm(100, 30), comm(200, 5)],  # last twice
            1: [comm(hour, 18), comm(hour + 100, 31), comm(hour + 200, 4)],
            2: [comm(-hour, 12), comm(-hour + 100, 37), comm(-hour + 200, 9)],
        }
    )
    assert answer["ranks"] == [0, 1, 2] and answer["num_matched"] == 3
    assert answer["collective_min_us"] == 10 + 30 + 4
    assert answer["wait_us"] == {"0": 1.0, "1": 8.0 + 1.0, "2": 2.0 + 7.0 + 5.0}
    assert answer["caused_wait_us"] == {"0": 8.0 + 2.0 + 1.0 + 7.0, "1": 1.0 + 5.0, "2": 0.0}
    assert answer["straggler"] == 0
    assert answer["by_collective"] == {"all_reduce": {"count": 3, "min_us": 44.0, "wait_us": 24.0}}
    assert answer["longest_waits"][0]["wait_us"] == {"0": 0.0, "1": 8.0, "2": 2.0}
    assert answer["warnings"] == []


def test_nobody_waits_nobody_straggles(job):
    answer = job({0: [comm(0, 10)], 1: [comm(5, 10)]})
    assert (answer["straggler"], answer["wait_us"]) == (None, {"0": 0.0, "1": 0.0})


def test_order_is_within_the_process_group(job):
    """Two groups whose collectives run in a different order on the two ranks."""
    first = [comm(0, 10, group="tp"), comm(20, 50, group="dp", stream=24)]
    second = [comm(0, 52, group="dp", stream=24), comm(60, 13, group="tp")]
    answer = job({0: first, 1: second})
    assert answer["collective_min_us"] == 60 and answer["wait_us"] == {"0": 0.0, "1": 5.0}


def test_groups_of_other_members_are_not_matched(job):
    answer = job(
        {
            0: [comm(0, 10, members="[0, 1]")],
            1: [comm(0, 11, members="[0, 1]")],
            2: [comm(0, 90, members="[2, 3]")],
            3: [comm(0, 95, members="[2, 3]")],
        }
    )
    assert answer["collective_min_us"] == 100
    assert answer["wait_us"] == {"0": 0.0, "1": 1.0, "2": 0.0, "3": 5.0}
    assert answer["straggler"] == 2


def test_without_arguments_each_stream_is_a_group(job):
    def bare(ts, dur, name, stream):
        args = {"device": 0, "stream": stream}
        return {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": stream, "ts": ts, "dur": dur, "args": args}

    one = [bare(0, 10, NAMES["all_reduce"], 20), bare(1, 40, NAMES["all_gather"], 28)]
    two = [bare(1, 44, NAMES["all_gather"], 31), bare(2, 10, NAMES["all_reduce"], 22)]
    answer = job({0: one, 1: two})
    assert answer["by_collective"] == {
        "all_reduce": {"count": 1, "min_us": 10.0, "wait_us": 0.0},
        "all_gather": {"count": 1, "min_us": 40.0, "wait_us": 4.0},
    }


def test_unequal_counts_warn_and_the_better_fitting_end_is_matched(job):
    sizes = [1, 2, 3, 4]
    whole = [comm(10 * i, 5, elements=n) for i, n in enumerate(sizes)]
    late = [comm(10 * i, 6, elements=n) for i, n in enumerate(sizes[2:])]
    answer = job({0: whole, 1: late})
    assert answer["warnings"] == ["ranks recorded different numbers of collectives"]
    assert "rank 0 has 4, rank 1 has 2" in answer["warning_details"]["ranks recorded different numbers of collectives"]
    assert answer["num_matched"] == 2 and answer["longest_waits"][0]["bytes"] == 12


def test_kernels_launched_before_recording_are_not_matched(job):
    usual = [launch(1, 0), comm(5, 10, correlation=1)]
    early = [comm(1, 3, correlation=77), launch(1, 0), comm(5, 12, correlation=1)]
    answer = job({0: usual, 1: early})
    assert (answer["num_matched"], answer["collective_min_us"], answer["wait_us"]["1"]) == (1, 10.0, 2.0)
    assert answer["warnings"] == ["collectives not matched"]


def test_steps_keep_a_lost_collective_from_shifting_the_rest(job):
    def two_steps(durations):
        events = [step(1, 0, 100), step(2, 100, 100)]
        for i, dur in enumerate(durations):
            if dur is not None:
                at = 10 * (i + 1) if i < 2 else 100 + 10 * i
                events += [launch(i + 1, at), comm(at, dur, correlation=i + 1)]
        return events

    answer = job({0: two_steps([5, None, 8, 9]), 1: two_steps([5, 6, 8, 9])})
    assert answer["wait_us"] == {"0": 0.0, "1": 0.0} and answer["num_matched"] == 3


def test_point_to_point_is_left_out(job):
    answer = job({0: [comm(0, 10), comm(20, 9, collective="send")], 1: [comm(0, 10), comm(20, 3, collective="recv")]})
    assert answer["num_matched"] == 1 and answer["warnings"] == ["collectives not matched"]


def test_different_kinds_at_one_place_are_left_out(job):
    answer = job({0: [comm(0, 10)], 1: [comm(0, 99, collective="broadcast")]})
    assert answer["collective_min_us"] is None and answer["straggler"] is None
    assert answer["warnings"] == ["collectives of different kinds at one place"]


def test_one_rank_alone_cannot_be_split(job):
    answer = job({0: [comm(0, 10)]}, size=2)
    assert answer["collective_min_us"] is None and answer["wait_us"] is None
    assert set(answer["warnings"]) == {"ranks without a file", "one rank only"}


def test_files_without_a_rank_are_named_by_file_and_ranks_stay_unknown(job):
    answer = job({"host1_77.json": [comm(0, 10)], "host2_78.json": [comm(0, 13)]})
    assert answer["ranks"] is None and answer["warnings"] == ["rank unknown"]
    assert answer["wait_us"] == {"host1_77.json": 0.0, "host2_78.json": 3.0}
    assert answer["straggler"] == "host1_77.json"


def test_two_files_of_one_rank(job, tmp_path):
    answer = job({0: [comm(0, 10)], 1: [comm(0, 11)]})
    (tmp_path / "z.json").write_text((tmp_path / "r0.json").read_text().replace('"dur": 10', '"dur": 1'))
    again = analyze_trace_dir([tmp_path])
    assert again["collective_min_us"] == answer["collective_min_us"]
    assert again["warnings"] == ["several files for one rank"]


def test_other_files_in_the_folder_are_left_out_and_named(job, tmp_path):
    (tmp_path / "params.json").write_text('{"lr": 1}')
    (tmp_path / "log.txt").write_text("hello")
    answer = job({0: [comm(0, 10)], 1: [comm(0, 11)]})
    assert answer["ranks"] == [0, 1] and answer["warnings"] == ["files left out"]
    assert "params.json" in answer["warning_details"]["files left out"]


def test_ranks_in_folders_of_their_own(job, tmp_path):
    job({"a/rank0.json": [comm(0, 10)], "b/rank1.json": [comm(0, 12)]})
    answer = analyze_trace_dir([tmp_path])
    assert answer["ranks"] == [0, 1] and answer["wait_us"] == {"0": 0.0, "1": 2.0}


def test_what_cannot_be_read_is_one_clear_line(tmp_path):
    with pytest.raises(UnreadableInput, match="holds no trace file"):
        analyze_trace_dir([tmp_path])
    with pytest.raises(UnreadableInput, match="no such file or folder"):
        analyze_trace_dir([tmp_path / "missing"])
    with pytest.raises(UnreadableInput, match="got none"):
        analyze_trace_dir([])
    (tmp_path / "a.json").write_text("<html>")
    with pytest.raises(UnreadableInput, match=r"a\.json: not a PyTorch trace"):
        analyze_trace_dir([tmp_path])

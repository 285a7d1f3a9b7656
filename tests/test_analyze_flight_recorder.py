"""Flight-recorder dumps by hand, in every form that torch versions write, and from a fault whose place is known."""

import json
import os
import pickle
import struct

import pytest

from labkit.analyze.flight_recorder import analyze_flight_recorder
from labkit.analyze.flight_recorder_files import load_dump
from labkit.analyze.kinds import KINDS, UnreadableInput
from labkit.calc.mesh_prediction import random_faults, report_members


def entry(seq, *, op="nccl:all_reduce", group=("0", "default_pg"), sizes=((1024,),), state="completed", **more):
    return {"record_id": more.pop("record_id", seq - 1), "pg_id": more.pop("pg_id", int(group[0])),
            "process_group": list(group),
            "collective_seq_id": seq, "p2p_seq_id": 0, "profiling_name": op, "is_p2p": False, "state": state,
            "input_sizes": [list(size) for size in sizes], "input_dtypes": ["Float"], **more}


def dump(entries, *, ranks="[0, 1]", name="0", **more):
    return {"version": "2.10", "pg_config": {name: {"name": name, "desc": "default_pg", "ranks": ranks}},
            "entries": entries, **more}


def folder(tmp_path, dumps, *, pattern="nccl_trace_rank_{rank}", how="pickle"):
    for rank, value in dumps.items():
        data = pickle.dumps(value, protocol=2) if how == "pickle" else json.dumps(value).encode()
        (tmp_path / pattern.format(rank=rank)).write_bytes(data)
    return analyze_flight_recorder([tmp_path])


FULL, SHORT = [entry(1), entry(2), entry(3, state="scheduled")], [entry(1), entry(2)]


@pytest.mark.parametrize("how", ["pickle", "json"])
@pytest.mark.parametrize("pattern", [
    "nccl_trace_rank_{rank}", "nccl_trace_rank_nodeA-07_{rank}.json", "rank{rank}.pkl", "trace_rank_10.0.0.7_{rank}",
    "comm_lib_trace_rank_{rank}.json.gz.txt", "rank_{rank}_of_2.json", "job7_rank-{rank}.pickle",
    "rank={rank}.20260101.pkl"])
def test_missing_call_whatever_the_files_are_called(tmp_path, how, pattern):
    found = folder(tmp_path, {0: dump(FULL), 1: dump(SHORT)}, how=how, pattern=pattern)
    first = found["first_mismatch"]
    assert found["ranks"] == [0, 1] and found["skipped"] == []
    assert (first["seq"], first["op"], first["missing_ranks"]) == (3, "nccl:all_reduce", [1])


def test_host_names_with_digits_in_front_of_the_rank(tmp_path):
    for host, rank, entries in (("nodeA-07", 0, FULL), ("nodeB-12", 1, SHORT)):
        (tmp_path / f"nccl_trace_rank_{host}_{rank}.json").write_text(json.dumps(dump(entries)))
    assert KINDS["flight_recorder_dir"]([tmp_path])["first_mismatch"]["missing_ranks"] == [1]


def test_host_numbers_that_could_be_ranks(tmp_path):
    """The host called node1 runs rank 0, node0 runs rank 1: the number at the end counts."""
    for host, rank, entries in (("node1", 0, FULL), ("node0", 1, SHORT)):
        (tmp_path / f"nccl_trace_rank_{host}_{rank}").write_bytes(pickle.dumps(dump(entries)))
    assert analyze_flight_recorder([tmp_path])["first_mismatch"]["missing_ranks"] == [1]


def test_equal_logs_have_no_mismatch(tmp_path):
    found = folder(tmp_path, {rank: dump([entry(1), entry(2)]) for rank in (0, 1)})
    assert found["first_mismatch"] is None and found["mismatches"] == [] and found["incomplete"] == []


@pytest.mark.parametrize(("change", "field", "odd"), [
    ({"op": "nccl:broadcast"}, "op", [2]), ({"sizes": ((512,),)}, "input_sizes", [2]),
    ({"input_dtypes": ["Half"]}, "input_dtypes", [2])])
def test_a_call_that_differs_names_the_minority(tmp_path, change, field, odd):
    dumps = {rank: dump([entry(1), entry(2)], ranks="[0, 1, 2]") for rank in (0, 1)}
    dumps[2] = dump([entry(1), {**entry(2), **entry(2, **change)}], ranks="[0, 1, 2]")
    first = folder(tmp_path, dumps)["first_mismatch"]
    assert (first["seq"], first["differing_ranks"], first["missing_ranks"]) == (2, odd, [])
    assert field in first["differs"]


def test_uneven_all_to_all_is_no_mismatch(tmp_path):
    found = folder(tmp_path, {rank: dump([entry(1, op="nccl:all_to_all", sizes=((rank + 3, 4),))]) for rank in (0, 1)})
    assert found["first_mismatch"] is None


def test_records_lost_from_a_full_buffer_are_not_missing_calls(tmp_path):
    late = [entry(seq, record_id=seq - 1) for seq in (3, 4)]
    found = folder(tmp_path, {0: dump([entry(seq) for seq in (1, 2, 3, 4)]), 1: dump(late)})
    assert found["first_mismatch"] is None and found["dropped"]["1"] > 0


def test_a_group_of_which_all_records_are_lost_is_unknown_unless_the_status_tells(tmp_path):
    other = [entry(1, group=("1", "tp"), record_id=9)]
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}, "1": {"name": "1", "ranks": "[0, 1]"}}
    dumps = {0: {**dump([entry(1), *other]), "pg_config": config}, 1: {**dump(other), "pg_config": config}}
    assert folder(tmp_path, dumps)["first_mismatch"] is None
    dumps[1]["pg_status"] = {"0": {"last_enqueued_collective": 0}}
    assert folder(tmp_path, dumps)["first_mismatch"]["missing_ranks"] == [1]


def test_the_status_goes_by_a_number_that_is_not_the_groups_name(tmp_path):
    """Group 107 is the third that each process has joined, group 2 the second."""
    config = {name: {"name": name, "desc": name, "ranks": "[0, 1]"} for name in ("107", "2")}
    dumps = {rank: {"version": "2.10", "pg_config": config, "pg_status": {"2": {"last_enqueued_collective": 9 - rank}},
                    "entries": [entry(1, group=("2", "dp"), pg_id=1),
                                entry(8, group=("107", "tp"), pg_id=2, record_id=7)]}
             for rank in (0, 1)}
    dumps[0]["entries"].append(entry(9, group=("107", "tp"), pg_id=2, record_id=8))
    found = folder(tmp_path, dumps)
    assert found["groups"]["107"]["last_seq"] == {"0": 9, "1": 8}
    assert found["groups"]["2"]["last_seq"] == {"0": 1, "1": 1}
    assert found["first_mismatch"]["missing_ranks"] == [1]


def test_a_number_of_point_to_point_calls_is_no_number_of_collectives(tmp_path):
    sends = {"is_p2p": True, "profiling_name": "nccl:send 0->1"}
    dumps = {rank: dump([entry(1), {**entry(0, record_id=1), **sends}, *([entry(2)] if rank == 0 else [])],
                        pg_status={"0": {"last_enqueued_collective": 40}}) for rank in (0, 1)}
    assert folder(tmp_path, dumps)["first_mismatch"]["missing_ranks"] == [1]


def test_batches_of_sends_take_numbers_of_collectives(tmp_path):
    """Rank 0 sends one batch, rank 1 receives and sends: their next all-reduce has the numbers 2 and 3."""
    def batches(seqs):
        return [{**entry(seq, record_id=seq - 1), "is_p2p": True, "profiling_name": "nccl:coalesced"} for seq in seqs]

    calls = {0: [*batches([1]), entry(2)], 1: [*batches([1, 2]), entry(3, op="nccl:broadcast")]}
    dumps = {rank: dump([*made, entry(made[-1]["collective_seq_id"] + 1, record_id=6)]) for rank, made in calls.items()}
    for value in dumps.values():
        for i, made in enumerate(value["entries"]):
            made["record_id"] = i
    found = folder(tmp_path, dumps)
    assert found["first_mismatch"]["seq"] == 1 and set(found["first_mismatch"]["differs"]["op"].values()) == {
        "nccl:all_reduce", "nccl:broadcast"}
    dumps[1]["entries"][2]["profiling_name"] = "nccl:all_reduce"
    assert folder(tmp_path, dumps)["first_mismatch"] is None


def test_parts_of_a_split_group_share_a_name_and_no_calls(tmp_path):
    def part(rank, calls):
        ranks = "[0, 1]" if rank < 2 else "[2, 3]"
        return dump([entry(seq, group=("1", "mesh_tp"), record_id=seq - 1) for seq in range(1, calls + 1)],
                    ranks=ranks, name="1")

    found = folder(tmp_path, {rank: part(rank, 2 if rank < 2 else 5) for rank in range(4)})
    assert found["first_mismatch"] is None and sorted(found["groups"]) == ["1 [0, 1]", "1 [2, 3]"]
    found = folder(tmp_path, {rank: part(rank, 5 if rank == 3 else 2) for rank in range(4)})
    assert (found["first_mismatch"]["group"], found["first_mismatch"]["missing_ranks"]) == ("1 [2, 3]", [2])


def test_a_dump_of_open_calls_only_leaves_out_what_is_done(tmp_path):
    config = {"0": {"name": "0", "ranks": "[0, 1]"}, "1": {"name": "1", "ranks": "[0, 1]"}}
    status = {"0": {"last_enqueued_collective": "4"}, "1": {"last_enqueued_collective": "7"}}
    open_call = entry(7, group=("1", "tp"), record_id=10, state="started")
    dumps = {0: {"pg_config": config, "pg_status": status, "entries": [entry(1), open_call]},
             1: {"pg_config": config, "pg_status": status}}
    assert folder(tmp_path, dumps)["first_mismatch"] is None


def test_gloo_keeps_scheduled_but_retires(tmp_path):
    """As torch 2.13 writes it: the default group is called "" in the configuration and "0" in the records."""
    dumps = {rank: dump([entry(1, op="gloo:all_reduce", state="scheduled", retired=True),
                         *([entry(2, op="gloo:all_reduce", state="scheduled", retired=False)] if rank == 0 else [])],
                        name="") for rank in (0, 1)}
    found = folder(tmp_path, dumps)
    assert found["first_mismatch"]["missing_ranks"] == [1] and found["incomplete"] == []


def test_a_call_that_all_made_and_none_finished(tmp_path):
    found = folder(tmp_path, {rank: dump([entry(1), entry(2, state="started")]) for rank in (0, 1)})
    assert found["first_mismatch"] is None
    assert found["incomplete"] == [{"group": "0", "seq": 2, "op": "nccl:all_reduce", "ranks": [0, 1]}]


def test_the_cause_is_named_before_those_who_wait(tmp_path):
    """Rank 1 waits in group 1 for rank 2, which left that call out; rank 0 waits for rank 1 in group 0."""
    config = {name: {"name": name, "desc": name, "ranks": ranks} for name, ranks in (("0", "[0, 1]"), ("1", "[1, 2]"))}
    waits0 = entry(1, group=("0", "a"), state="scheduled", time_created_ns=10)
    waits1 = entry(1, group=("1", "b"), state="scheduled", time_created_ns=20)
    dumps = {rank: {"version": "2.10", "pg_config": config, "entries": entries}
             for rank, entries in ((0, [waits0]), (1, [waits1]), (2, []))}
    found = folder(tmp_path, dumps)
    assert (found["first_mismatch"]["group"], found["first_mismatch"]["missing_ranks"]) == ("1", [2])
    assert [mismatch["group"] for mismatch in found["mismatches"]] == ["1", "0"]


def test_a_rank_without_a_file_is_said_and_not_blamed(tmp_path):
    found = folder(tmp_path, {0: dump(FULL, ranks="[0, 1, 2]"), 1: dump(SHORT, ranks="[0, 1, 2]")})
    assert found["missing_dumps"] == [2] and found["first_mismatch"]["missing_ranks"] == [1]


def test_point_to_point_and_odd_fields_do_not_disturb(tmp_path):
    extra = {"profiling_name": "nccl:send 0->1", "is_p2p": True, "collective_seq_id": 7, "process_group": ["0", "x"]}
    odd = {"profiling_name": None, "collective_seq_id": "2", "process_group": ["0", "default_pg"], "state": "completed"}
    found = folder(tmp_path, {0: dump([entry(1), extra, odd, "text"]), 1: dump([entry(1), odd])})
    assert found["first_mismatch"] is None


def test_a_real_dump_of_this_torch(tmp_path):
    torch = pytest.importorskip("torch")
    library = getattr(torch._C, "_distributed_c10d", None)
    if not hasattr(library, "_dump_fr_trace"):
        pytest.skip("this torch has no recorder for Gloo")
    data = library._dump_fr_trace()
    (tmp_path / "trace_rank_0").write_bytes(data)
    assert isinstance(load_dump(tmp_path / "trace_rank_0"), dict)


class Boom:
    def __reduce__(self):
        return os.mkdir, ("planted-by-a-pickle",)


@pytest.mark.parametrize("data", [
    b"", b"\x80", b"not a dump", b"{\"entries\": [", b"[" * 100000, pickle.dumps([1, 2]), pickle.dumps({"a": 1}),
    pickle.dumps({"entries": [Boom()]}), pickle.dumps({"entries": Boom()}), b"\x80\x02cos\nsystem\n(S'true'\ntR.",
    b"\x1f\x8bbroken", struct.pack("<8d", *range(8)), b"\xff\xfe\x00"],
    ids=["empty", "cut pickle", "text", "cut json", "deep", "list", "other", "code", "code2", "system", "gzip",
         "numbers", "utf16"])
def test_what_is_no_dump_is_refused_in_one_line(tmp_path, data, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "trace_rank_0").write_bytes(data)
    if data == pickle.dumps([1, 2]):  # entries alone: read, with nothing in it
        assert analyze_flight_recorder([tmp_path])["num_entries"] == {"0": 0}
        return
    with pytest.raises(UnreadableInput) as error:
        analyze_flight_recorder([tmp_path])
    assert "\n" not in str(error.value) and "no flight-recorder dump" in str(error.value)
    assert not (tmp_path / "planted-by-a-pickle").exists()


def test_other_files_in_the_folder_are_listed(tmp_path):
    (tmp_path / "README.md").write_text("dumps of Monday")
    found = folder(tmp_path, {0: dump(FULL), 1: dump(SHORT)})
    assert found["first_mismatch"]["seq"] == 3 and [text.split(":")[0] for text in found["skipped"]] == ["README.md"]


def test_one_dump_in_two_formats_counts_once(tmp_path):
    for rank, entries in ((0, FULL), (1, SHORT)):
        (tmp_path / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(dump(entries)))
        (tmp_path / f"nccl_trace_rank_{rank}.json").write_text(json.dumps(dump(entries[:1])))
    found = analyze_flight_recorder([tmp_path])
    assert found["num_entries"] == {"0": 3, "1": 2} and found["first_mismatch"]["missing_ranks"] == [1]
    assert sorted(found["skipped"]) == [f"nccl_trace_rank_{rank}.json: the same dump as nccl_trace_rank_{rank}"
                                        for rank in (0, 1)]


def test_paths_and_ranks_that_cannot_be(tmp_path):
    with pytest.raises(UnreadableInput, match="no such file or folder"):
        analyze_flight_recorder([tmp_path / "nowhere"])
    with pytest.raises(UnreadableInput, match="no flight-recorder dump"):
        analyze_flight_recorder([tmp_path])
    for name in ("a_rank_0.json", "b_rank_0.json"):
        (tmp_path / name).write_text(json.dumps(dump(FULL)))
    with pytest.raises(UnreadableInput, match="each rank once"):
        analyze_flight_recorder([tmp_path])


def recorder_of(log, rank, config):
    """A rank's log in the recorder's form: no tensor names, no steps."""
    entries = [{"record_id": i, "process_group": [e["group"], e["axis"]], "collective_seq_id": e["seq"],
                "profiling_name": f"gloo:{e['op']}", "input_sizes": [e["shape"]], "input_dtypes": [e["dtype"]],
                "state": e["state"], "time_created_ns": 1000 * i + rank, "is_p2p": False}
               for i, e in enumerate(log) if not e.get("end")]
    return {"version": "2.10", "pg_config": config, "entries": entries}


def test_what_a_recorder_can_and_cannot_say_of_injected_faults(tmp_path):
    """Wrong shapes and missing calls always leave a mismatch that involves the rank; a silent swap leaves none."""
    config = {name: {"name": name, "desc": name, "ranks": str(ranks)} for name, ranks in report_members().items()}
    cases, played = random_faults(num_cases=40, num_steps=2, first_seed=70)
    for number, (case, result) in enumerate(zip(cases, played, strict=True)):
        here = tmp_path / str(number)
        here.mkdir()
        found = folder(here, {r: recorder_of(log, r, config) for r, log in enumerate(result["logs"])})
        first = found["first_mismatch"]
        if not result["hang"] and not result["error"]:
            assert first is None, "equal shapes: the recorder has nothing to compare"
        elif case["kind"] in ("missing_call", "wrong_shape"):
            named = {*first["missing_ranks"], *first["differing_ranks"]}
            assert case["rank"] in named and len(named) <= 2, (case["kind"], first)

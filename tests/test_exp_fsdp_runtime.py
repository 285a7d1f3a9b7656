"""The FSDP lab on two real ranks with a tiny model, and what the slice does when a run goes wrong."""

import json
import re
import shutil

import pytest

pytest.importorskip("torch")

from labkit.experiments import fsdp_runtime as exp
from labkit.hardware import load_profile
from labkit.launch.process import LaunchError, LaunchResult
from labkit.presets import available_presets, build_params
from labkit.records import RecordError, check_run, load_record

TINY = dict(num_layers=2, hidden=24, num_heads=2, vocab_size=257, num_positions=16, seq_tokens=8, exit_elements=1000)
CASES = exp.Params().cases


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """(record, run directory, progress lines) of one real run on two ranks, and of one that leaves early."""
    root, lines = tmp_path_factory.mktemp("runs"), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LABKIT_RUNS_DIR", str(root))
        record = exp.run(exp.Params(**TINY, has_baseline=True), run_id="tiny", progress=lines.append)
        yield record, root / exp.SLUG / "tiny", lines


def test_two_ranks_pass_every_oracle(lab):
    record, _, _ = lab
    assert record.status == "ok" and record.failure is None
    table = exp.check(record)
    assert table["passed"].all() and len(table) >= 15
    assert {"every collective as predicted, one by one", "parameters moved as in one process",
            "a peer that leaves early fails the job, with every result on disk"} <= set(table["name"])


def test_what_two_ranks_did_is_what_was_predicted(lab):
    record, _, _ = lab
    predicted, results = record.prediction["values"], record.results
    for name in ("units", "collectives", "block_decomposition", "gather_bytes", "scatter_bytes", "wire_bytes_per_rank",
                 "num_parameters"):
        assert results[name] == predicted[name], name
    assert {case: results["state_bytes"][case] for case in CASES} == predicted["state_bytes"]
    assert results["units"] == {"root": 1, "block": 3} and results["root_schedule"] is True
    assert results["collectives"]["fsdp2 block+NONE"] == {"ag": 5, "rs": 3}
    assert results["state_bytes"]["alone"]["parameters"] == [4 * results["num_parameters"]] * 2
    assert "CPU" in results["fsdp1_refusal"]


def test_an_odd_vocabulary_is_sharded_unevenly(lab):
    record, _, _ = lab
    first, second = record.results["state_bytes"]["fsdp2 root+PRE"]["parameters"]
    assert first - second == 24 * 4, "257 rows of 24: 129 and 128"


def test_training_is_close_and_not_the_same(lab):
    record, _, _ = lab
    results = record.results
    for case in CASES:
        assert 0 < results["gradient_rel_diff"][case] < 1e-5
        assert 0 < results["parameter_rel_diff"][case] < 1e-2 and results["loss_rel_diff"][case] < 1e-5


def test_results_on_disk_are_not_success(lab):
    record, run_dir, _ = lab
    early = record.results["exits"]["early"]
    assert early["exitcode"] != 0 and early["results_written"] == 2 and "peer gone" in early["complaints"]
    assert (run_dir / "exit_early" / "rank0.jsonl").read_text().count("result") == 1
    assert record.results["results_file_not_success"] is record.results["exit_fix"] is True
    assert "exit_cause" not in record.results and record.results["launches"][0]["left"] == []


def test_every_sample_is_kept(lab):
    record, _, _ = lab
    for case in [*CASES, "alone"]:
        by_rank = record.samples[f"rank_step_time_ms.{case}"]["values"]
        assert [len(steps) for process in by_rank for steps in process] == [2, 2]
        rate, time = (record.results[name][case]["value"] for name in ("tokens_per_s", "step_time_ms"))
        assert rate * time / 1e3 == pytest.approx(record.results["tokens_per_step"]) and time > 0
    assert record.results["comm_union_ms"]["alone"] == 0 and record.results["overlap_pct"]["alone"] is None


def test_the_record_is_whole_and_small(lab):
    record, run_dir, lines = lab
    assert check_run(run_dir) == [] and load_record(run_dir) == record
    assert record.created_utc == record.prediction["created_utc"] < record.finished_utc
    assert (run_dir / "prediction.json").stat().st_mtime_ns < (run_dir / "p0" / "params.json").stat().st_mtime_ns
    assert (run_dir / "timeline.json").stat().st_size < 100_000 and (run_dir / "record.json").stat().st_size < 100_000
    assert lines[0] == "process 1/1: 2 ranks on cpu, building the model"
    # The peer's operation raises (exit code 1), or a thread of gloo meets the closed socket first and aborts (-6).
    assert re.fullmatch(r"leaving early: exit code (1|-6), peer gone", lines[-1])


def test_table_figures_and_comparison(lab):
    record, _, _ = lab
    table = exp.table(record).set_index("case")
    assert list(table.index) == [*CASES, "alone"]
    assert table.loc["fsdp2 block+PRE", "num_gathers"] == 5 and table.loc["alone", "num_gathers"] == 0
    assert table["allocated_gib"].isna().all() and (table["num_samples"] == 2).all()
    figures = exp.figures(record)
    assert set(figures) == {"schedule", "collectives", "step_time", "timeline"}
    assert "4 of 4" in figures["collectives"].layout.title.text
    assert all(record.run_id in figure.layout.meta["caption"] for figure in figures.values())
    side = exp.compare([record])
    assert list(side.columns[:4]) == ["result", "case", "unit", "predicted"] and side.columns[-1] == "8x V100 (quoted)"
    row = side[(side["result"] == "collectives") & (side["case"] == "fsdp2 block+PRE")].iloc[0]
    assert row["predicted"] == row.iloc[4] == "5 + 3"
    quoted = side[(side["result"] == "step_time_ms") & (side["case"] == "block+PRE")].iloc[0]
    assert quoted["8x V100 (quoted)"] == 97.38


def test_a_run_is_replayed_from_disk(lab):
    record, _, _ = lab
    assert exp.load("tiny") == record
    with pytest.raises(RecordError, match=r"made with seed=1, expected 2"):
        exp.load("tiny", expect=exp.Params(**TINY, has_baseline=True, seed=2))


def fake_launch(source, change=lambda run_dir: None, left=()):
    """A launcher that copies a real launch's files, changed, instead of running ranks."""
    def launch(worker, *, run_dir, **_):
        if worker == "group_exit":
            raise LaunchError("group_exit: rank 0 failed", log_path=run_dir / "log.txt", rank=0, exitcode=1)
        for path in source.glob("*"):
            if path.name != "params.json" and path.is_file():
                shutil.copy(path, run_dir / path.name)
        change(run_dir)
        return LaunchResult(argv=["python"], wall_s=0.0, log=run_dir / "log.txt", ended=list(left))
    return launch


def replace_in(name, old, new):
    def change(run_dir):
        path = run_dir / name
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))
    return change


@pytest.mark.parametrize(("change", "left", "noticed"), [
    (replace_in("trace_fsdp2_block+PRE_rank1.json", "gloo:all_gather", "gloo:broadcast"), (),
     "collectives in the trace equal"),
    (replace_in("rank1.jsonl", '"names_differing": []', '"names_differing": ["x"]'), (), "whole parameters"),
    (replace_in("rank0.jsonl", '["backward", "all_gather"', '["forward", "all_gather"'), (), "every collective as"),
    (lambda run_dir: (run_dir / "log.txt").write_text("destroy_process_group() was not called"), (), "barrier, then"),
    (lambda run_dir: None, ("python",), "barrier, then"),
    (lambda run_dir: (run_dir / "rank1.jsonl").write_text('{"kind"'), (), "rank1.jsonl line 1"),
    (lambda run_dir: (run_dir / "trace_alone_rank0.json").write_text("{}"), (), "trace_alone_rank0.json"),
    (lambda run_dir: (run_dir / "rank0.jsonl").write_text('{"kind": "end", "rank": 0}'), (), "cannot be used"),
], ids=["trace", "ranks differ", "order", "log", "left running", "half a line", "no trace", "rank 0 stopped early"])
def test_a_bad_run_is_recorded_as_failed(lab, monkeypatch, change, left, noticed, request):
    _, source, _ = lab
    monkeypatch.setattr(exp, "launch_torchrun", fake_launch(source / "p0", change, left))
    run_id = "bad-" + request.node.callspec.id.replace(" ", "-")
    record = exp.run(exp.Params(**TINY, has_baseline=True, exits=()), run_id=run_id)
    assert record.status == "failed" and load_record(source.parent / run_id) == record
    with pytest.raises(RecordError, match=noticed):
        exp.check(record)


def test_processes_take_the_cases_in_turn(lab, monkeypatch):
    _, source, _ = lab
    monkeypatch.setattr(exp, "launch_torchrun", fake_launch(source / "p0"))
    record = exp.run(exp.Params(**TINY, has_baseline=True, num_processes=3, exits=()), run_id="three")
    told = [json.loads((source.parent / "three" / f"p{i}" / "params.json").read_text()) for i in range(3)]
    orders = [[case["name"] for case in params["cases"]] for params in told]
    everything = [*CASES, "alone"]
    assert orders == [everything[i:] + everything[:i] for i in range(3)]
    assert [params["is_checked"] for params in told] == [True, False, False]
    time = record.results["step_time_ms"]["alone"]
    assert (time["n"], time["num_processes"], len(record.argv)) == (6, 3, 3)


def test_a_failed_launch_is_recorded_with_its_cause(lab, monkeypatch):
    def launch(worker, *, run_dir, **_):
        raise LaunchError("fsdp_steps: rank 1 failed (exit code 1): boom", log_path=run_dir / "log.txt", rank=1)

    monkeypatch.setattr(exp, "launch_torchrun", launch)
    record = exp.run(exp.Params(**TINY), run_id="broken")
    assert record.status == "failed" and record.failure["rank"] == 1 and not record.results
    with pytest.raises(RecordError, match="boom"):
        exp.check(record)
    assert exp.table(record).empty


@pytest.mark.parametrize(("changes", "message"), [
    ({"world_size": 1}, "world_size=1: expected at least 2: one rank has nothing to shard"),
    ({"cases": ()}, r"cases=\(\): expected one or more different cases"),
    ({"cases": ("fsdp2 block+PRE",) * 2}, "cases=.*: expected one or more different cases"),
    ({"cases": ("block+PRE",)}, "cases='block\\+PRE': expected fsdp2 cases on a CPU"),
    ({"cases": ("fsdp2 blocks+PRE",)}, "name='fsdp2 blocks\\+PRE': expected"),
    ({"exits": ("late",)}, r"exits=\('late',\): expected some of ordered"),
    ({"num_heads": 7}, "num_heads=7: expected a divisor of hidden=768"),
    ({"seq_tokens": 257}, "seq_tokens=257: expected at most num_positions=256"),
    ({"precision": "fp16"}, "precision='fp16': expected fp32 on a CPU"),
    ({"learning_rate": 0}, "learning_rate=0: expected above 0"),
    ({"num_timed_steps": 0}, "num_timed_steps=0: expected at least 1"),
])
def test_bad_parameters_are_refused_by_name(changes, message):
    with pytest.raises(ValueError, match=message):
        exp.Params(**changes)


def test_presets_keep_the_reports_wrap_tree():
    assert available_presets(exp.SLUG) == ["smoke", "cpu", "gpu2", "gpu8"]
    for preset in available_presets(exp.SLUG):
        params = build_params(exp.Params, exp.SLUG, preset)
        predicted = exp.predict(params)
        assert predicted["units"] == {"root": 1, "block": 13}
        assert predicted["block_decomposition"] == {"forward_ag": 13, "backward_ag": 12, "rs": 13}
        if preset.startswith("gpu"):
            assert (params.seq_tokens, params.precision, params.world_size) == (256, "fp16", int(preset[3:]))
            assert set(exp.reported()["collectives"]) < set(params.cases)
            assert all(predicted["collectives"][case] == value
                       for case, value in exp.reported()["collectives"].items())
            assert params.num_processes >= 3 and params.num_processes * params.num_timed_steps >= 20


def test_floors_come_from_measured_ceilings_only():
    params = build_params(exp.Params, exp.SLUG, "gpu2")
    found = exp.predict(params, hardware=load_profile("h200"))
    busbw = load_profile("h200").value("all_reduce_busbw_2_gpus_bytes_per_s")
    assert found["comm_floor_ms"]["root+PRE"] == pytest.approx(found["wire_bytes_per_rank"]["root+PRE"] / busbw * 1e3)
    assert found["exposed_floor_ms"]["block+PRE"] < found["exposed_floor_ms"]["block+NONE"]
    assert exp.predict(params, hardware=load_profile("l4"))["comm_floor_ms"] == {}

"""The DDP lab on two real ranks with a tiny model, and what the slice does when a run goes wrong."""

import json
import shutil
from dataclasses import asdict

import pytest

pytest.importorskip("torch")

from labkit.experiments import ddp_buckets as exp
from labkit.hardware import load_profile
from labkit.launch.process import LaunchError, LaunchResult
from labkit.presets import available_presets, build_params
from labkit.records import Oracle, RecordError, check_run, load_record

TINY = dict(num_layers=2, hidden=32, num_heads=2, vocab_size=512, num_positions=16, seq_tokens=8, samples_per_rank=4,
            bucket_caps_mib=(0.01, 0.05), accum_cap_mib=0.05, straggler_sleep_ms=200.0)


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """(record, run directory, progress lines) of one real run on two ranks, with real optimizer steps."""
    root, lines = tmp_path_factory.mktemp("runs"), []
    params = exp.Params(**TINY, num_timed_steps=2, num_accum_timed_steps=2, num_equivalence_steps=2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LABKIT_RUNS_DIR", str(root))
        record = exp.run(params, preset="custom", run_id="tiny", progress=lines.append)
        yield record, root / exp.SLUG / "tiny", lines


def test_two_ranks_pass_every_oracle(lab):
    record, _, _ = lab
    assert record.status == "ok" and record.failure is None
    table = exp.check(record)
    assert table["passed"].all() and len(table) >= 14
    named = {"gradients bitwise equal on all ranks", "loopback carried at least the predicted bytes"}
    assert named <= set(table["name"])


def test_what_two_ranks_did_is_what_was_predicted(lab):
    record, _, _ = lab
    predicted, results = record.prediction["values"], record.results
    for name in ("bucket_sizes_bytes", "initial_bucket_sizes_bytes", "bucket_count", "bucket_max_mib", "gradient_bytes",
                 "collectives_per_step", "accum_collectives", "wire_bytes_per_rank", "num_parameters"):
        assert results[name] == predicted[name], name
    num_buckets = results["bucket_count"]["0.05 MiB"]
    assert results["accum_collectives"] == {
        "m8a1": num_buckets, "m1a8-no_sync": num_buckets, "m1a8-sync-every": 4 * num_buckets}
    assert results["no_sync_backward_only_collectives"] == num_buckets > 1
    assert results["no_sync_forward_only_collectives"] == 0
    assert results["slices_distinct"] is True and all(results["gradients_equal_across_ranks"].values())


def test_gradients_are_close_but_not_the_same(lab):
    record, _, _ = lab
    results = record.results
    assert 0 < results["grad_rel_diff_m1a8_vs_m8a1"] < 1e-5 and results["grad_bitwise_equal_m1a8_vs_m8a1"] is False
    assert results["loss_rel_diff_m1a8_vs_m8a1"] < 1e-5
    assert max(results["equivalence_loss_rel_diff"]) < 1e-3 and results["equivalence_parameter_rel_diff"] < 1e-3


def test_rank_0_alone_hides_the_straggler(lab):
    record, _, _ = lab
    results = record.results
    assert results["straggler_slowest_ms"]["value"] >= 200 and results["straggler_rank0_vs_slowest"] < 1


def test_every_sample_is_kept(lab):
    record, _, _ = lab
    for case, time in record.results["step_time_ms"].items():
        by_rank = record.samples[f"rank_step_time_ms.{case}"]["values"]
        assert [len(steps) for process in by_rank for steps in process] == [2, 2]
        assert time["n"] == 2 and time["num_processes"] == 1
        slowest = [[max(step) for step in zip(*process, strict=True)] for process in by_rank]
        assert record.samples[f"step_time_ms.{case}"]["values"] == slowest
        rate = record.results["tokens_per_s"][case]["value"]
        assert rate * time["value"] / 1e3 == pytest.approx(record.results["tokens_per_step"][case])
        exposed, union = record.results["exposed_comm_ms"][case], record.results["comm_union_ms"][case]
        assert record.results["overlap_pct"][case] == pytest.approx(100 * (1 - exposed / union))


def test_prediction_is_older_than_the_ranks_files(lab):
    record, run_dir, _ = lab
    prediction = json.loads((run_dir / "prediction.json").read_text())
    assert prediction == record.prediction and record.created_utc == prediction["created_utc"] < record.finished_utc
    assert (run_dir / "prediction.json").stat().st_mtime_ns < (run_dir / "p0" / "params.json").stat().st_mtime_ns


def test_the_record_is_whole_and_small(lab):
    record, run_dir, _ = lab
    assert check_run(run_dir) == [] and load_record(run_dir) == record
    names = {artifact["path"] for artifact in record.artifacts}
    assert {"timeline.json", "prediction.json", "p0/rank0.jsonl", "p0/rank1.jsonl"} <= names
    assert (run_dir / "timeline.json").stat().st_size < 100_000 and (run_dir / "record.json").stat().st_size < 100_000
    assert [argv[-2:] for argv in record.argv] == [["--run-dir", "$RUN_DIR/p0"]]


def test_people_see_progress(lab):
    _, _, lines = lab
    assert lines[0] == "process 1/1: 2 ranks on cpu, building the model"
    assert "process 1/1: accumulation m1a8-no_sync: done" in lines and len(lines) >= 7


def test_processes_take_the_caps_in_turn_and_their_samples_are_kept_apart(lab, monkeypatch):
    first, source, _ = lab
    monkeypatch.setattr(exp, "launch_torchrun", fake_launch(source / "p0", lambda run_dir: None))
    params = exp.Params(**TINY, num_processes=3, num_timed_steps=2, num_accum_timed_steps=2, num_equivalence_steps=2)
    record = exp.run(params, run_id="three")
    told = [json.loads((source.parent / "three" / f"p{i}" / "params.json").read_text()) for i in range(3)]
    assert [params["bucket_order_mib"] for params in told] == [[0.01, 0.05], [0.05, 0.01], [0.01, 0.05]]
    assert [params["is_checked"] for params in told] == [True, False, False]
    time = record.results["step_time_ms"]["m8a1"]
    assert time["n"] == 6 and time["num_processes"] == 3 and len(record.argv) == 3
    (alone,) = first.samples["step_time_ms.m8a1"]["values"]
    assert record.samples["step_time_ms.m8a1"]["values"] == [alone] * 3


def test_table_figures_and_comparison(lab):
    record, _, _ = lab
    table = exp.table(record).set_index("case")
    assert list(table.index) == ["0.01 MiB", "0.05 MiB", "m8a1", "m1a8-no_sync", "m1a8-sync-every"]
    assert table["num_samples"].eq(2).all() and table["num_collectives"].sum() == sum(
        [*record.results["collectives_per_step"].values(), *record.results["accum_collectives"].values()])
    figures = exp.figures(record)
    assert set(figures) == {"bucket_sizes", "timeline", "tokens_per_s", "predicted_vs_seen"}
    blocks = [length for trace in figures["bucket_sizes"].data for length in trace.x]
    assert sum(blocks) * 2**20 == pytest.approx(2 * record.results["gradient_bytes"])
    assert "5 of 5" in figures["predicted_vs_seen"].layout.title.text
    assert all(record.run_id in figure.layout.meta["caption"] for figure in figures.values())
    side_by_side = exp.compare([record])
    assert list(side_by_side.columns[:4]) == ["result", "case", "unit", "predicted"]
    assert "8x V100 (quoted)" in side_by_side.columns and len(side_by_side.columns) == 6


def test_comparison_brings_the_reports_figures():
    quoted = exp.reported()
    assert quoted["bucket_count"] == {"1 MiB": 50, "4 MiB": 37, "25 MiB": 13, "100 MiB": 4}
    assert quoted["tokens_per_s"]["m1a8-sync-every"] == 33339 and quoted["step_time_ms"]["4 MiB"] == 124.88
    assert set(quoted) == set(exp.REPORTED)


def test_a_run_is_replayed_from_disk(lab):
    record, _, _ = lab
    assert exp.load("tiny") == record
    with pytest.raises(RecordError, match="no such run"):
        exp.load("never")


def test_a_run_is_never_overwritten(lab):
    with pytest.raises(RecordError, match="never overwritten"):
        exp.run(exp.Params(**TINY), run_id="tiny")


def fake_launch(source, change):
    """A launcher that copies a real process's files, changed, instead of running ranks."""
    def launch(worker, *, run_dir, **_):
        for path in source.glob("*"):
            if path.name != "params.json" and path.is_file():
                shutil.copy(path, run_dir / path.name)
        change(run_dir)
        return LaunchResult(argv=["python"], wall_s=0.0, log=run_dir / "log.txt")
    return launch


def replace_in(name, old, new):
    def change(run_dir):
        path = run_dir / name
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))
    return change


@pytest.mark.parametrize(("change", "noticed"), [
    (replace_in("rank1.jsonl", '"names_differing": []', '"names_differing": ["x"]'), "gradients bitwise equal"),
    (replace_in("trace_m1a8-no_sync_rank1.json", "gloo:all_reduce", "gloo:broadcast"), "all-reduces in the trace"),
    (lambda run_dir: (run_dir / "rank1.jsonl").write_text('{"kind"'), "rank1.jsonl line 1"),
    (lambda run_dir: (run_dir / "trace_m8a1_rank0.json").write_text("{}"), "trace_m8a1_rank0.json"),
    (lambda run_dir: (run_dir / "rank0.jsonl").write_text('{"kind": "end", "rank": 0}'), "cannot be used"),
], ids=["oracle", "trace", "half a line", "no trace", "rank 0 stopped early"])
def test_a_bad_run_is_recorded_as_failed(lab, monkeypatch, change, noticed, request):
    _, source, _ = lab
    monkeypatch.setattr(exp, "launch_torchrun", fake_launch(source / "p0", change))
    params = exp.Params(**TINY, num_timed_steps=2, num_accum_timed_steps=2, num_equivalence_steps=2)
    run_id = "bad-" + request.node.callspec.id.replace(" ", "-")
    record = exp.run(params, run_id=run_id)
    assert record.status == "failed" and load_record(source.parent / run_id) == record
    with pytest.raises(RecordError, match=noticed):
        exp.check(record)


@pytest.fixture
def fast(monkeypatch, tmp_path):
    """A slice whose launch does nothing and whose evaluation gives one oracle, passed or not."""
    monkeypatch.setenv("LABKIT_RUNS_DIR", str(tmp_path))
    monkeypatch.setattr(exp, "_launch", lambda params, folder, **_: ["python"])
    monkeypatch.setattr("labkit.analyze.ddp_results.read_process", lambda folder: None)

    def run(*, passed):
        oracle = Oracle(name="gradients agree", passed=passed, expected=0, seen=0 if passed else 1)
        monkeypatch.setattr(exp, "_evaluate", lambda *given: given[-1].oracles.append(oracle))
        return exp.run(exp.Params(**TINY), run_id=f"passed-{passed}")
    return run


def test_a_failed_oracle_makes_a_failed_record(fast):
    assert fast(passed=True).status == "ok"
    failed = fast(passed=False)
    assert failed.status == "failed" and failed.failure is None
    with pytest.raises(RecordError, match="passed-False: gradients agree"):
        exp.check(failed)


def test_replay_compares_parameters(fast):
    record = fast(passed=True)
    assert exp.load(record.run_id, expect=exp.Params(**TINY)) == record == exp.load("")
    with pytest.raises(RecordError, match=r"made with seed=1, expected 2"):
        exp.load(record.run_id, expect=exp.Params(**TINY, seed=2))


def test_a_failed_launch_is_recorded_with_its_cause(lab, monkeypatch):
    def launch(worker, *, run_dir, **_):
        raise LaunchError("ddp_steps: rank 1 failed (exit code 1): boom", log_path=run_dir / "log.txt", rank=1)

    monkeypatch.setattr(exp, "launch_torchrun", launch)
    record = exp.run(exp.Params(**TINY), run_id="broken")
    assert record.status == "failed" and record.failure["rank"] == 1 and not record.results
    with pytest.raises(RecordError, match="boom"):
        exp.check(record)
    assert exp.table(record).empty


@pytest.mark.parametrize(("changes", "message"), [
    ({"world_size": 0}, "world_size=0: expected at least 1"),
    ({"bucket_caps_mib": (1, 1)}, "bucket_caps_mib=.*: expected different caps above 0"),
    ({"bucket_caps_mib": (-1, 25)}, "bucket_caps_mib=.*: expected different caps above 0"),
    ({"accum_cap_mib": 7}, "accum_cap_mib=7: expected one of bucket_caps_mib"),
    ({"num_heads": 7}, "num_heads=7: expected a divisor of hidden=768"),
    ({"seq_tokens": 513}, "seq_tokens=513: expected at most num_positions=512"),
    ({"precision": "fp16"}, "precision='fp16': expected fp32 on a CPU"),
    ({"device": "gpu"}, "device='gpu': expected cpu or cuda"),
    ({"timeout_s": 0}, "timeout_s=0: expected above 0"),
])
def test_bad_parameters_are_refused_by_name(changes, message):
    with pytest.raises(ValueError, match=message):
        exp.Params(**changes)


def test_presets_keep_the_reports_model():
    assert available_presets(exp.SLUG) == ["smoke", "cpu", "gpu1", "gpu2", "gpu8"]
    for preset in available_presets(exp.SLUG):
        params = build_params(exp.Params, exp.SLUG, preset)
        predicted = exp.predict(params)
        assert predicted["bucket_count"] == {"1 MiB": 50, "4 MiB": 37, "25 MiB": 13, "100 MiB": 4}
        assert predicted["num_parameters"] == 109942272
        if preset.startswith("gpu"):
            assert (params.seq_tokens, params.precision, params.device) == (512, "fp16", "cuda")
            assert params.num_processes >= 3 and params.world_size == int(preset[3:])
            assert params.num_processes * params.num_timed_steps >= 36


def test_floors_come_from_measured_ceilings_only():
    params = build_params(exp.Params, exp.SLUG, "gpu2")
    floors = exp.predict(params, hardware=load_profile("h200"))
    busbw = load_profile("h200").value("all_reduce_busbw_2_gpus_bytes_per_s")
    assert floors["comm_floor_ms"]["25 MiB"] == pytest.approx(439769088 / busbw * 1e3)
    assert floors["comm_floor_ms"]["m1a8-sync-every"] == pytest.approx(8 * floors["comm_floor_ms"]["m8a1"])
    assert floors["compute_floor_ms"]["m8a1"] == pytest.approx(8 * floors["compute_floor_ms"]["1 MiB"])
    unknown = exp.predict(params, hardware=load_profile("l4"))
    assert unknown["comm_floor_ms"] == unknown["compute_floor_ms"] == {}
    assert asdict(params)["bucket_caps_mib"] == (1, 4, 25, 100)

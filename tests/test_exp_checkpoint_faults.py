"""The checkpoint lab: a real run on four ranks with a small model, and what the slice does when a run goes wrong."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch")

from labkit.experiments import checkpoint_faults as exp
from labkit.launch.process import LaunchError, LaunchResult
from labkit.presets import available_presets, build_params
from labkit.records import RecordError, check_run

DATA = Path(__file__).parent / "data" / "checkpoint_ranks"
TINY = dict(hidden=64, inner=128, batch=8, num_steps=4, save_step=2, world_sizes=(4,), num_cost_rounds=2,
            cost_sizes_mb=(1.0,))
REPLAYED = exp.Params(world_sizes=(4,), num_cost_rounds=0, num_faults=15, num_kills=2)
"""What the recorded rank files were made with."""


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """(record, run directory, progress lines) of one real run: four ranks resume, a rank of two exits."""
    root, lines = tmp_path_factory.mktemp("runs"), []
    params = exp.Params(**TINY, num_faults=15, kill_world_size=0, fault_world_size=2, fault_rank=1,
                        cost_saves=("bare", "fast", "async"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LABKIT_RUNS_DIR", str(root))
        record = exp.run(params, run_id="tiny", progress=lines.append)
        yield record, root / exp.SLUG / "tiny", lines


def test_a_real_run_passes_every_oracle(lab):
    record, run_dir, lines = lab
    assert record.status == "ok", (record.failure, [o for o in record.oracles if not o.passed])
    table = exp.check(record)
    assert table["passed"].all() and len(table) >= 18
    assert check_run(run_dir) == [] and not list(run_dir.rglob("*.pt")) and any("DCP" in line for line in lines)


def test_the_real_run_repeats_what_was_predicted(lab):
    record, _, _ = lab
    predicted, results = record.prediction["values"], record.results
    for control, step in results["first_mismatch"].items():
        assert step == predicted["first_mismatch"]["4"][control]
    assert results["cause"] is True and results["bitwise"]["reducer warmed 3x"] is True
    own = results["order"]["4"]["later"]
    assert own["equal_in_own_order"] == own["num_elements"] == predicted["num_parameters"] > own["equal_in_other_order"]
    assert results["fault_exit_seen"] == {"error": "ChildFailedError", "rank": 1, "exitcode": 17}
    assert results["nothing_left"] is True and results["detect_exit"] is True
    assert set(results["save_ms"]["1 MB"]) >= {"bare", "async"}


def test_tables_and_figures_of_the_real_run(lab):
    record, _, _ = lab
    table = exp.table(record)
    assert list(table["control"]) == list(exp.CONTROLS) and set(table["ranks"]) == {4}
    assert set(exp.figures(record)) == {"order", "differing", "save_ms", "faults"}
    compared = exp.compare([record]).set_index(["result", "case"])
    assert compared.loc[("first_mismatch", "4 ranks, fused AdamW"), "predicted"] == "3"
    assert compared.loc[("first_mismatch", "8 ranks, fused AdamW"), "8x V100 (quoted)"] == "4"
    assert compared.loc[("first_mismatch", "8 ranks, reducer warmed 3x"), "8x V100 (quoted)"] == "none"


def place(name, run_dir):
    for path in (DATA / name).glob("*.jsonl"):
        shutil.copy(path, run_dir / path.name)
    (run_dir / "log.txt").write_text("ChildFailedError")


@pytest.fixture
def replayed(monkeypatch, tmp_path):
    """A function that runs the slice on recorded rank files, after `change(run_dir)` of the launch named."""
    monkeypatch.setenv("LABKIT_RUNS_DIR", str(tmp_path))

    def run(change=lambda run_dir: None, where="w4"):
        def torchrun(worker, *, run_dir, **_):
            if worker == "checkpoint_train":
                (run_dir / "log.txt").write_text("ChildFailedError")
                (run_dir / "rank0.jsonl").write_text(json.dumps({"kind": "fault", "rank": 3, "time_s": 1.0}) + "\n")
                raise LaunchError("rank 3 failed", log_path=run_dir / "log.txt", rank=3, exitcode=17)
            return single(worker, run_dir=run_dir)

        def single(worker, *, run_dir, **_):
            place(run_dir.name, run_dir)
            if run_dir.name == where:
                change(run_dir)
            return LaunchResult(argv=["python"], wall_s=1.0, log=run_dir / "log.txt")

        monkeypatch.setattr(exp, "launch_torchrun", torchrun)
        monkeypatch.setattr(exp, "launch_worker", single)
        return exp.run(REPLAYED, run_id="replayed")
    return run


def test_recorded_rank_files_make_a_good_record(replayed):
    record = replayed()
    assert record.status == "ok", [o for o in record.oracles if not o.passed]
    assert record.results["kills"]["num_kills"] == 2 and record.results["proto_atomic_file"] is True
    assert exp.load("replayed", expect=REPLAYED) == record
    with pytest.raises(RecordError, match=r"made with num_kills=2, expected -1"):
        exp.load("replayed", expect=replace(REPLAYED, num_kills=-1))


def replace_in(name, old, new):
    def change(run_dir):
        text = (run_dir / name).read_text()
        assert old in text
        (run_dir / name).write_text(text.replace(old, new, 1))
    return change


@pytest.mark.parametrize(("change", "where", "noticed"), [
    (replace_in("rank0.jsonl", '"dcp_load": "wrong values"', '"dcp_load": "right"'), "w4", "DCP alone"),
    (replace_in("rank0.jsonl", '"is_detected": true', '"is_detected": false'), "drill", "every fault of the drill"),
    (lambda run_dir: (run_dir / "rank2.jsonl").write_text('{"kind"'), "w4", "rank2.jsonl line 1"),
    (lambda run_dir: (run_dir / "rank3.jsonl").unlink(), "w4", "what the processes wrote cannot be used"),
], ids=["oracle", "drill", "half a line", "no rank 3"])
def test_a_bad_run_is_recorded_as_failed(replayed, change, where, noticed):
    record = replayed(change, where)
    assert record.status == "failed"
    with pytest.raises(RecordError, match=noticed):
        exp.check(record)


def test_a_failed_launch_keeps_what_was_there(monkeypatch, replayed):
    def fail(run_dir):
        raise LaunchError("checkpoint_resume: rank 1 failed", log_path=run_dir / "log.txt", rank=1)

    record = replayed(fail)
    assert record.status == "failed" and record.failure["rank"] == 1 and record.results["drill"]["num_faults"] == 15
    assert exp.table(record).empty


@pytest.mark.parametrize(("changes", "message"), [
    ({"world_sizes": (3,)}, "world_sizes=.*: expected different ones of 2, 4, 8 and 16"),
    ({"save_step": 1}, "save_step=1: expected at least 2"),
    ({"num_steps": 3}, "num_steps=3: expected above save_step=3"),
    ({"fault_rank": 4}, "fault_rank=4: expected below fault_world_size=4"),
    ({"straggler_sleep_s": 5}, "straggler_sleep_s=5: expected 0, or above group_timeout_s"),
    ({"controls": ("fused AdamW",)}, "controls=.*: expected the report's five"),
    ({"cost_saves": ("fast",)}, "cost_saves=.*: expected bare"),
    ({"device": "gpu"}, "device='gpu': expected cpu or cuda"),
    ({"num_kills": -2}, "num_kills=-2"),
    ({"timeout_s": 0}, "timeout_s=0: expected above 0"),
])
def test_bad_parameters_are_refused_by_name(changes, message):
    with pytest.raises(ValueError, match=message):
        exp.Params(**changes)


def test_presets_keep_the_reports_settings():
    assert available_presets(exp.SLUG) == ["smoke", "cpu", "gpu2", "gpu8"]
    for preset in available_presets(exp.SLUG):
        params = build_params(exp.Params, exp.SLUG, preset)
        predicted = exp.predict(params)
        assert predicted["num_parameters"] == 4197376 and predicted["state_bytes"] == 50368512
        assert predicted["rebuilt_buckets_bytes"]["fused AdamW"] == [8392704, 8396800]
        assert (params.num_steps, params.save_step, params.batch) == (6, 3, 32)
        if preset.startswith("gpu"):
            assert params.device == "cuda" and params.num_processes >= 3 and params.num_cost_rounds >= 20
    cpu = build_params(exp.Params, exp.SLUG, "cpu")
    assert cpu.num_kills == -1 and cpu.num_faults == 200 and set(cpu.world_sizes) == {2, 4, 8}
    assert (cpu.straggler_sleep_s, cpu.group_timeout_s, cpu.fault_rank) == (11, 6, 3)

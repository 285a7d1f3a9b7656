"""The product lab: one real run on a CPU with small weights, and the slice on a made-up GPU host."""

import json
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from labkit import machine
from labkit.experiments import gemm_roofline as exp
from labkit.hardware import load_profile
from labkit.launch.process import LaunchError
from labkit.machine import Gpu, detect
from labkit.presets import UsageError
from labkit.records import RecordError, check_run
from tests.gemm_lines import CASE, ROWS, SHAPE, ceiling_lines, sweep_lines, write_lines

SMALL = exp.Params(
    shapes=("gate_up 448x256", "down 128x448"), rows=(1, 2, 4, 8, 16, 32, 64, 128), check_rows=(1, 5, 33),
    warm_rows=(1,), num_experts=3, grouped_rows=(1, 4), square=256, buffer_mib=64, rounds=3, num_threads=1,
)  # fmt: skip


@pytest.fixture(scope="module")
def live(tmp_path_factory):
    """One real run through launcher and worker; several tests look at it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LABKIT_RUNS_DIR", str(tmp_path_factory.mktemp("runs")))
        yield exp.run(SMALL, preset="smoke")


def test_live_run_is_right_and_complete(live):
    """Correctness and completeness must hold on a busy machine; the two oracles on times are for a quiet one."""
    on_times = {"not_above_the_roof", "grows_past_the_knee"}
    assert live.failure is None
    assert [o for o in live.oracles if not o.passed and o.name not in on_times] == []
    assert {o.name for o in live.oracles} > {"integers_exact", "counted_twice", "every_point_accounted"}
    assert set(live.results["time_ms"]) == {f"{s} {k}" for s in ("gate_up", "down") for k in SMALL.kinds}
    assert live.results["time_ms"]["down bf16"]["8"]["n"] == SMALL.rounds * SMALL.calls
    assert live.results["bound_used"]["gate_up bf16 grouped"] < 1
    assert live.results["num_threads"] == 1


def test_predictions_are_written_before_the_sweep(live):
    run_dir = Path(os.environ["LABKIT_RUNS_DIR"]) / exp.SLUG / live.run_id
    assert check_run(run_dir) == []
    second = json.loads((run_dir / "prediction_from_ceilings.json").read_text())
    assert live.prediction["created_utc"] < second["created_utc"] < live.finished_utc
    ordered = [run_dir / "prediction.json", run_dir / "prediction_from_ceilings.json", run_dir / "p0" / "rank0.jsonl"]
    stamps = [path.stat().st_mtime_ns for path in ordered]
    assert stamps == sorted(stamps)
    assert second["values"]["time_ms"]["this_machine"] == live.results["predicted_ms"]["this_machine"]


def test_table_figures_and_comparison_of_the_live_run(live):
    frame = exp.table(live)
    assert len(frame) == 2 * 3 * 8 and list(frame["rows"][:8]) == list(SMALL.rows)
    row = frame[(frame["case"] == "down fp32") & (frame["rows"] == 4)].iloc[0]
    flop, moved = 2 * 4 * 128 * 448, 4 * (4 * 128 + 128 * 448 + 4 * 448)
    assert row["intensity_flop_per_byte"] == pytest.approx(flop / moved)
    assert row["gb_per_s"] == pytest.approx(moved / row["p50_us"] / 1e3)
    assert row["tflop_per_s"] == pytest.approx(flop / row["p50_us"] / 1e6)
    figures = exp.figures(live)
    assert set(figures) == {"time gate_up", "time down", "rate", "knees", "residuals", "grouped"}
    assert all(fig.layout.meta["caption"] and fig.layout.title.text for fig in figures.values())
    seen = exp.compare([live])
    assert {"quantity", "case"} < set(seen.columns) and len(seen) > 20


def test_replay_refuses_other_parameters(live):
    assert exp.load(live.run_id, expect=SMALL).run_id == live.run_id
    with pytest.raises(RecordError, match="seed"):
        exp.load(live.run_id, expect=replace(SMALL, seed=1))


def test_a_failed_oracle_is_named(live):
    failed = replace(live, failure=None, oracles=[replace(live.oracles[0], passed=False, seen=7), *live.oracles[1:]])
    with pytest.raises(RecordError, match="integers_exact: expected 0, seen 7"):
        exp.check(failed)


def test_prediction_by_hand():
    """H200, gate and up: ridge 989.5 / 4.8 by data sheet; one row moves the weight at 4.3 TB/s copied."""
    params = exp.Params(kinds=("bf16", "fp8"), grouped_kinds=(), device="cuda", rows=(1, 4096), check_rows=(1,))
    found = exp.predict(params, hardware=load_profile("h200"))
    ridge = 989.5 / 4.8
    assert found["ridge_flop_per_byte"]["datasheet"] == pytest.approx({"bf16": ridge, "fp8": 2 * ridge})
    star = ridge / (1 - ridge * (1 / 7168 + 1 / 4096))
    assert found["mstar_rows"]["gate_up bf16"]["datasheet"] == pytest.approx(star)
    assert found["mstar_rows"]["gate_up fp8"]["profile"] is None, "no FP8 rate was measured before"
    moved = 2 * (7168 + 7168 * 4096 + 4096)
    assert found["bytes"]["gate_up bf16"]["1"] == moved
    assert found["bytes"]["gate_up fp8"]["1"] == 7168 + 7168 * 4096 + 2 * 4096, "operands of one byte, BF16 result"
    assert found["time_ms"]["profile"]["gate_up bf16"]["1"] == pytest.approx(2.7e-3 + moved / 4.3e12 * 1e3)
    assert found["time_ms"]["datasheet"]["down fp8"]["4096"] == pytest.approx(
        2.7e-3 + 2 * 4096 * 2048 * 7168 / 1.979e15 * 1e3)


def test_a_cpu_is_predicted_nothing_that_nobody_knows():
    found = exp.predict(SMALL)
    assert found["time_ms"] == {} and found["mstar_rows"]["down fp32"] == {}
    assert found["flop"]["down fp32"]["4"] == 2 * 4 * 128 * 448


def test_skewed_rows_keep_the_total():
    assert exp.skews(replace(SMALL, num_experts=4)) == {"1": [2, 0, 1, 1], "4": [8, 2, 3, 3]}
    assert exp.skews(replace(SMALL, num_experts=0)) == {}


def fake_gpu_host(monkeypatch, tmp_path, *, fail_in=None):
    """A machine with an H200 whose worker writes the lines of the ideal machine."""
    here = replace(detect(), gpus=(Gpu(index=0, name="NVIDIA H200"),))
    monkeypatch.setattr(machine, "detect", lambda: here)
    monkeypatch.setenv("LABKIT_RUNS_DIR", str(tmp_path))

    def launch(worker, *, run_dir, **options):
        told = json.loads((run_dir / "params.json").read_text())
        assert worker == "gemm_bench" and told["skewed_counts"]["16"] == [16, 16]
        assert (run_dir.parent / "prediction.json").is_file(), "predicted before anything runs"
        if told["mode"] == "ceilings":
            write_lines(run_dir / "rank0.jsonl", ceiling_lines(8))
        else:
            assert (run_dir.parent / "prediction_from_ceilings.json").is_file()
            write_lines(run_dir / "rank0.jsonl", sweep_lines(told["process"]))
            if told["process"] == fail_in:
                raise LaunchError("gemm_bench failed: planted", log_path=run_dir / "log.txt", exitcode=1)
        return SimpleNamespace(argv=["python", "-m", "labkit.workers.gemm_bench"])

    monkeypatch.setattr(exp, "launch_worker", launch)
    return exp.Params(shapes=(SHAPE,), kinds=("bf16",), grouped_kinds=("bf16",), device="cuda", rows=tuple(ROWS),
                      fine_rows=(1024,), num_processes=2)  # fmt: skip


def test_gpu_run_from_launch_to_figures(monkeypatch, tmp_path):
    params = fake_gpu_host(monkeypatch, tmp_path)
    record = exp.run(params, preset="gpu1")
    assert record.status == "ok", [o for o in record.oracles if not o.passed]
    assert len(record.argv) == 3 and check_run(tmp_path / exp.SLUG / record.run_id) == []
    assert set(record.results["residual_pct"]) == {"datasheet", "profile", "this_machine", "this_run"}
    assert record.results["knee_rows"][CASE] == pytest.approx(record.results["mstar_rows"][CASE]["this_machine"])
    assert {"steps", "grouped"} < set(exp.figures(record))
    from labkit.analyze.gemm_tables import grouped_table, knee_table, steps_table

    assert steps_table(record)["ratio"].tolist() == [1.8]
    assert knee_table(record)["residual_pct"].tolist() == [pytest.approx(0, abs=1e-6)]
    assert grouped_table(record)["loop_over_grouped"].tolist() == [2.0, 2.0]


def test_a_process_that_fails_keeps_what_was_measured(monkeypatch, tmp_path):
    params = fake_gpu_host(monkeypatch, tmp_path, fail_in=1)
    record = exp.run(params)
    assert record.status == "failed" and "planted" in record.failure["message"]
    assert record.samples[f"cold {CASE} 1"]["values"], "the samples are kept"
    with pytest.raises(RecordError, match="planted"):
        exp.check(record)


def test_no_gpu_is_a_usage_error(monkeypatch):
    monkeypatch.setattr(machine, "detect", lambda: replace(detect(), gpus=()))
    with pytest.raises(UsageError, match="no GPU"):
        exp.run(exp.Params(device="cuda", kinds=("bf16",), grouped_kinds=()))


@pytest.mark.parametrize(("wrong", "name"), [
    ({"shapes": ("gate_up 8192x10",)}, "shapes"), ({"shapes": ("7168x4096",)}, "shapes"),
    ({"kinds": ("fp7",)}, "kinds"), ({"kinds": ("fp8",), "grouped_kinds": ()}, "kinds"),
    ({"rows": (4, 2)}, "rows"), ({"check_rows": (999,)}, "check_rows"),
    ({"grouped_rows": (1,)}, "grouped_rows"), ({"device": "tpu"}, "device"), ({"rounds": 0}, "rounds"),
    ({"hot_share": 2.0}, "hot_share"), ({"kinds": ("bf16",)}, "grouped_kinds"),
])  # fmt: skip
def test_bad_parameters_name_the_argument(wrong, name):
    with pytest.raises(ValueError, match=name):
        exp.Params(**wrong)

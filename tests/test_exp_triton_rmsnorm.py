"""The RMSNorm lab: kernels against float64 in the interpreter, a planted error, the slice on a made-up GPU host."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from labkit.analyze import rmsnorm as analyze
from labkit.analyze.rmsnorm_part_tables import cache_table
from labkit.experiments import triton_rmsnorm as exp
from labkit.hardware import load_profile
from labkit.launch.process import LaunchError
from labkit.machine import Gpu, detect
from labkit.paths import RECORDS
from labkit.presets import UsageError, available_presets, build_params
from labkit.records import RecordError, check_run
from tests import rmsnorm_part_lines as part_lines
from tests.rmsnorm_lines import LARGE, MOVED, SHAPE, write_run

ROOT = Path(__file__).resolve().parents[1]
SMALL = exp.Params(shapes=("6x768", "6x770 bf16", "20x300", "20x301"), widths=(1, 301),
                   backward_shapes=("9x300", "9x301 bf16"))  # fmt: skip


@pytest.fixture(scope="module")
def live(tmp_path_factory):
    """One real run through launcher and interpreter; several tests look at it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LABKIT_RUNS_DIR", str(tmp_path_factory.mktemp("runs")))
        yield exp.run(SMALL, preset="smoke")


# Kernels, in the interpreter


def test_kernels_match_float64_in_the_interpreter(live):
    assert live.failure is None and live.status == "ok"
    assert live.results["within_bound"] == dict.fromkeys(SMALL.shapes, True)
    assert all(0.5 < used < 1 for kernel in live.results["bound_used"].values() for used in kernel.values())
    exp.check(live)


def test_gradients_match_float64_in_the_interpreter(live):
    assert live.failure is None and live.status == "ok"
    used = live.results["backward_bound_used"]
    assert {name: set(found) for name, found in used.items()} == {"dx": {"9x300", "9x301 bf16"},
                                                                  "dweight": {"9x300", "9x301 bf16"}}  # fmt: skip
    assert all(0.5 < value < 1 for found in used.values() for value in found.values())
    assert set(live.results["gradient_bound_used"]) == {"1", "301"}
    lines = analyze.of_kind(analyze.read_lines(_run_dir(live)), "grad_check", "grad_exact", "grad_canary")
    assert {"autograd", "backward", "grad", "shifted", "wide forward", "wide backward"} == {x["what"] for x in lines}
    assert all(line["passed"] for line in lines)
    assert {o.name for o in live.oracles} >= {"gradient_bound", "exact_sums", "same_bits_twice", "empty_refused"}


def test_every_kernel_and_edge_case_was_checked(live):
    lines = analyze.of_kind(analyze.read_lines(_run_dir(live)), "check")
    cases = {line["case"] for line in lines if "case" in line}
    assert {"one row", "one element", "odd hidden", "rows in a wider tensor, odd stride", "misaligned start",
            "large magnitude: squares overflow fp16", "small magnitude: eps matters"} <= cases
    assert {"tile", "persistent", "loop", "shifted", "report", "fast"} == {line["what"] for line in lines}
    assert all(line["passed"] for line in lines)


def _run_dir(record):
    return Path(os.environ["LABKIT_RUNS_DIR"]) / exp.SLUG / record.run_id


def test_a_planted_kernel_error_ends_the_run_with_one_line_and_exit_1(tmp_path):
    shutil.copytree(ROOT / "labkit", tmp_path / "labkit", ignore=shutil.ignore_patterns("__pycache__"))
    path = tmp_path / "labkit" / "workers" / "rmsnorm_kernels.py"
    text = path.read_text()
    right = "rstd = tl.rsqrt(tl.sum(x * x, axis=0) / hidden + eps)"
    assert text.count(right) == 1
    path.write_text(text.replace(right, right.replace("hidden", "(hidden - 1)")))
    env = {**os.environ, "PYTHONPATH": str(tmp_path), "LABKIT_RUNS_DIR": str(tmp_path / "runs")}
    argv = [sys.executable, "-m", "labkit", "run", "triton_rmsnorm", "--preset", "smoke", "-p", "shapes=[4x768]",
            *(text for name in ("widths", "wide_widths", "backward_shapes") for text in ("-p", f"{name}=[]"))]
    done = subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    told = [line for line in done.stderr.splitlines() if line.startswith("labkit: ")]
    assert len(told) == 1 and "rmsnorm_bench failed" in told[0] and "num_bad" in told[0], done.stderr
    (record,) = (tmp_path / "runs" / exp.SLUG).glob("*/record.json")
    raw = json.loads(record.read_text())
    assert raw["status"] == "failed" and "error_bound" in {o["name"] for o in raw["oracles"] if not o["passed"]}


# The slice


def fake_gpu_host(monkeypatch, tmp_path, *, num_gpus=1, fail_in=None, more=None, **params):
    """A machine with H200s whose worker writes made-up lines, and `more(process)` of them."""
    here = replace(detect(), gpus=tuple(Gpu(index=i, name="NVIDIA H200") for i in range(num_gpus)))
    monkeypatch.setattr(exp.machine, "detect", lambda: here)
    monkeypatch.setenv("LABKIT_RUNS_DIR", str(tmp_path))

    def launch(worker, *, run_dir, num_procs=1, **options):
        process = json.loads((run_dir / "params.json").read_text())["process"]
        assert worker == "rmsnorm_bench" and num_procs == num_gpus
        assert (run_dir.parent / "prediction.json").is_file(), "predicted before anything runs"
        assert options["env"]["LABKIT_CACHE_DIR"] == str(run_dir.parent / "cache"), "all processes share one cache"
        write_run(run_dir.parent, processes=(process,), ranks=range(num_gpus), more=more)
        if process == fail_in:
            raise LaunchError("rank 1: AssertionError: planted", log_path=run_dir / "log.txt", rank=1, exitcode=1)
        return SimpleNamespace(argv=["python", "-m", "labkit.workers.rmsnorm_bench"])

    monkeypatch.setattr(exp, "launch_worker", launch)
    monkeypatch.setattr(exp, "launch_torchrun", launch)
    return exp.Params(shapes=tuple(MOVED), compile_shapes=(LARGE,), device="cuda", num_processes=2, num_gpus=num_gpus,
                      **params)  # fmt: skip


def test_gpu_run_from_launch_to_figures(monkeypatch, tmp_path):
    params = fake_gpu_host(monkeypatch, tmp_path, num_gpus=2)
    record = exp.run(params, preset="gpu2")
    assert record.status == "ok" and check_run(tmp_path / exp.SLUG / record.run_id) == []
    assert record.prediction["values"]["hardware"] == "h200"
    assert record.prediction["created_utc"] <= record.finished_utc
    assert record.samples[f"cold fast {LARGE}"]["values"] == [[0.125, 0.125]] * 4
    assert set(record.results["residual_pct"]) == {"datasheet", "profile", "same_run"}
    frame = exp.table(record).set_index("shape")
    assert frame.loc[LARGE, "copy_fraction"] == pytest.approx(0.96) and "fits L2" in frame.loc[SHAPE, "flags"]
    figures = exp.figures(record)
    assert set(figures) == {"errors", "bandwidth", "speedups", "residuals"}
    assert all(fig.layout.meta["caption"] and fig.layout.title.text for fig in figures.values())
    seen = exp.compare([record]).set_index(["quantity", "shape"])
    assert seen.loc[("time_ms", SHAPE), "V100 PCIe (quoted)"] == 0.05
    assert seen.loc[("fast_ms", LARGE), "predicted"] == pytest.approx(2.7e-3 + 536.872960e6 / 4.3e12 * 1e3)
    assert exp.load(record.run_id, expect=params) in exp.recorded()


def test_gradients_and_two_passes_from_launch_to_figures(monkeypatch, tmp_path):
    params = fake_gpu_host(monkeypatch, tmp_path, more=part_lines.part_lines, **part_lines.PARAMS)
    record = exp.run(params, preset="gpu1")
    assert record.status == "ok", [o for o in record.oracles if not o.passed]
    predicted = record.prediction["values"]["part_time_ms"]["profile"]["backward"][part_lines.SHAPE]
    assert predicted == pytest.approx(2 * 2.7e-3 + part_lines.LEAST / 4.3e12 * 1e3)
    row = exp.part_table(record, "backward").iloc[0]
    assert row["shape"] == part_lines.SHAPE and row["ours_ms"] == 0.20 and row["predicted_ms"] == predicted
    assert row["residual_pct"] == pytest.approx(100 * (0.20 / predicted - 1)) and row["missed"] == ""
    share = part_lines.LEAST / part_lines.COPIED
    assert row["speedup_compile"] == pytest.approx(1.5) and row["compile_copy_fraction"] == pytest.approx(0.65 * share)
    assert row["partial_pct"] == pytest.approx(100 * 8 * 528 * 1024 / part_lines.LEAST)
    wide = exp.part_table(record, "wide_forward").iloc[0]
    assert wide["copy_fraction"] == pytest.approx(2 / 3, rel=1e-3) and wide["speedup_liger"] is None
    figures = exp.figures(record)
    assert {"backward", "backward_times", "wide_forward", "wide_backward_times", "gradient_errors"} <= set(figures)
    assert all(fig.layout.meta["caption"] and fig.layout.title.text for fig in figures.values())
    assert record.samples[f"backward ours {part_lines.SHAPE}"]["values"] == [[0.20, 0.25], [0.20, 0.20]]
    (cached,) = cache_table(record).to_dict("records")
    assert cached["chosen"] == "b" and cached["timings, process 1"] == 0
    seen = exp.compare([record]).set_index(["quantity", "shape"])
    assert seen.loc[("backward_ms", part_lines.SHAPE), "predicted"] == predicted


def test_records_without_gradients_still_make_their_page(monkeypatch, tmp_path):
    """The first committed records were made before there was a backward pass."""
    found = [record for record in exp.recorded() if "widths" not in record.params]
    for record in found:
        assert len(exp.part_table(record, "backward")) == 0 and "backward" not in exp.figures(record)
        assert len(exp.check(record)) and len(exp.table(record))
    assert found or not list(RECORDS.glob(f"{exp.SLUG}/*"))


def test_a_process_that_fails_gives_a_failed_record(monkeypatch, tmp_path):
    params = fake_gpu_host(monkeypatch, tmp_path, fail_in=1)
    record = exp.run(params)
    assert record.status == "failed" and record.failure is not None
    assert record.failure["message"] == "rank 1: AssertionError: planted" and "process 1 failed" in record.notes
    assert record.samples[f"cold fast {LARGE}"]["values"], "what the first process measured is kept"
    with pytest.raises(RecordError, match="planted"):
        exp.check(record)
    assert record.run_id not in [found.run_id for found in exp.recorded()], "a failed run is not shown"


def test_a_failed_oracle_is_named(live):
    failed = replace(live, oracles=[replace(live.oracles[0], passed=False, seen=7), *live.oracles[1:]])
    with pytest.raises(RecordError, match="error_bound: expected 0, seen 7"):
        exp.check(failed)


def test_cpu_record_has_no_times_and_says_so(live):
    assert not [name for name in live.results if name.endswith("_ms")] and live.samples == {}
    assert any("correctness only" in note for note in live.notes)
    assert set(exp.figures(live)) == {"errors", "gradient_errors"} and len(exp.table(live)) == len(SMALL.shapes)
    assert exp.compare([live]).shape[0] == 30


def test_replay_refuses_other_parameters(live):
    assert exp.load(live.run_id, expect=SMALL).run_id == live.run_id
    with pytest.raises(RecordError, match="seed"):
        exp.load(live.run_id, expect=replace(SMALL, seed=1))
    with pytest.raises(RecordError, match="no such run"):
        exp.load("nowhere")


def test_prediction_by_hand():
    params = exp.Params(shapes=("8192x8192", "1024x769 bf16"))
    assert exp.predict(params) == {
        "min_bytes": {"8192x8192": 268451840, "1024x769 bf16": 3151362}, "kernels_per_call": 1,
        "block_size": {"769": 1024, "8192": 8192}, "masked_lane_pct": {"769": 24.902, "8192": 0.0},
    }  # fmt: skip
    h200 = exp.predict(params, hardware=load_profile("h200"))
    assert h200["time_ms"]["datasheet"]["8192x8192"] == pytest.approx(0.0027 + 268451840 / 4.8e12 * 1e3)
    assert h200["time_ms"]["profile"]["8192x8192"] == pytest.approx(0.0027 + 268451840 / 4.3e12 * 1e3)
    b200 = exp.predict(params, hardware=load_profile("b200"))
    assert set(b200["time_ms"]) == {"datasheet"}, "no copy was measured on a B200"


@pytest.mark.parametrize(("changes", "message"), [
    ({"shapes": ()}, "shapes"), ({"shapes": ("1024",)}, "shapes"), ({"shapes": ("0x768",)}, "shapes"),
    ({"shapes": ("8x8", "8x8")}, "each shape once"), ({"device": "gpu"}, "device"), ({"rounds": 0}, "rounds"),
    ({"num_processes": True}, "num_processes"), ({"eps": 0.0}, "eps"), ({"num_gpus": 2}, "num_gpus"),
    ({"compile_shapes": ("8x8",), "device": "cuda"}, "compile_shapes"), ({"device": "cuda", "max_rows": 4}, "max_rows"),
    ({"backward_shapes": ("8x",), "widths": (8,)}, "backward_shapes"), ({"widths": (0,)}, "widths: 0"),
    ({"wide_widths": (2**20 + 1,), "widths": (8,)}, "wide_widths"), ({"wide_widths": (65537,)}, "widths=()"),
    ({"cache_shapes": ("8x8",), "device": "cuda"}, "cache_shapes"),
    ({"wide_shapes": ("8x70000",), "widths": (8,)}, "device='cpu'"),
])  # fmt: skip
def test_bad_parameters_are_named(changes, message):
    with pytest.raises(ValueError, match=message):
        exp.Params(**changes)


def test_presets_and_a_machine_without_gpus(monkeypatch):
    assert available_presets(exp.SLUG) == ["smoke", "cpu", "gpu1", "gpu2", "gpu8"]
    built = {name: build_params(exp.Params, exp.SLUG, name) for name in available_presets(exp.SLUG)}
    assert {name: p.num_gpus for name, p in built.items()} == {"smoke": 1, "cpu": 1, "gpu1": 1, "gpu2": 2, "gpu8": 8}
    for params in built.values():
        assert params.device == "cpu" or (params.num_processes >= 3 and params.rounds >= 20)
    assert set(exp.REPORT_SHAPES) <= set(built["smoke"].shapes) & set(built["gpu1"].shapes)
    large = {s for s, (r, h, b) in exp.sizes(built["gpu1"].shapes).items() if (2 * r * h + h) * b >= 256e6}
    assert large <= set(built["gpu1"].compile_shapes), "every shape of the goal has its compiled baseline"
    monkeypatch.setattr(exp.machine, "detect", lambda: replace(detect(), gpus=()))
    with pytest.raises(UsageError, match="this machine has 0 GPUs"):
        exp.run(built["gpu1"])

"""The launch lab: one real run on a CPU without the compiler, and the slice on a made-up GPU host."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest

from labkit import machine
from labkit.experiments import launch_overhead as exp
from labkit.hardware import load_profile
from labkit.launch.process import LaunchError
from labkit.machine import Gpu, detect
from labkit.presets import UsageError
from labkit.records import RecordError, check_run
from tests.launch_lines import LENGTHS, SIZES, VARIANTS, lines_of, write_run

SMALL = exp.Params(variants=("eager", "paired"), sizes=(16, 1024), lengths=(1, 4, 64), compile_lengths=(),
                   compile_sizes=(), rounds=4)  # fmt: skip


@pytest.fixture(scope="module")
def live(tmp_path_factory):
    """One real run through launcher and worker; several tests look at it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LABKIT_RUNS_DIR", str(tmp_path_factory.mktemp("runs")))
        yield exp.run(SMALL, preset="smoke")


def test_live_run_is_right_and_complete(live):
    assert live.status == "ok" and exp.check(live)["passed"].all()
    assert live.results["ops"] == {"eager": {"64": 64}, "paired": {"64": 32}}
    assert live.results["time_us"]["eager"]["16"]["64"]["n"] == 4
    assert len(exp.table(live)) == 2 * 2 * 3
    assert set(exp.figures(live)) == {"by_length", "by_size", "gain"}
    assert "eager: one more step (us)" in exp.compare([live])["quantity"].tolist()
    assert live.results["hidden_from_elements"] is None and live.results["kernels"] == {}


def test_replay_refuses_other_parameters(live):
    assert exp.load(live.run_id, expect=SMALL).run_id == live.run_id
    with pytest.raises(RecordError, match="rounds"):
        exp.load(live.run_id, expect=replace(SMALL, rounds=5))


def test_prediction_uses_the_profile_where_there_is_one():
    found = exp.predict(replace(SMALL, device="cuda", op_us=4.0), hardware=load_profile("h200"))
    assert found["hiding_elements"] == pytest.approx(4e-6 * 4.3e12 / 8)
    alone = exp.predict(SMALL)
    assert alone["hiding_elements"] is None
    assert alone["time_us"]["eager"]["1024"]["64"] == pytest.approx(64 * (2.0 + 8 * 1024 / 20e9 * 1e6))


def fake_gpu_host(monkeypatch, tmp_path, *, fail_in=None):
    """A machine with an H200 whose worker writes made-up lines."""
    here = replace(detect(), gpus=(Gpu(index=0, name="NVIDIA H200"),))
    monkeypatch.setattr(machine, "detect", lambda: here)
    monkeypatch.setenv("LABKIT_RUNS_DIR", str(tmp_path))

    def launch(worker, *, run_dir, **options):
        process = json.loads((run_dir / "params.json").read_text())["process"]
        assert worker == "launch_chain" and (run_dir.parent / "prediction.json").is_file()
        write_run(run_dir.parent, processes=(process,), lines=lines_of)
        if process == fail_in:
            raise LaunchError("launch_chain failed: planted", log_path=run_dir / "log.txt", exitcode=1)
        return SimpleNamespace(argv=["python", "-m", "labkit.workers.launch_chain"])

    monkeypatch.setattr(exp, "launch_worker", launch)
    return exp.Params(device="cuda", variants=VARIANTS, sizes=SIZES, lengths=LENGTHS, compile_lengths=(8, 32),
                      compile_sizes=(16,), num_processes=2, op_us=4.0)  # fmt: skip


def test_gpu_run_from_launch_to_figures(monkeypatch, tmp_path):
    params = fake_gpu_host(monkeypatch, tmp_path)
    record = exp.run(params, preset="gpu1")
    assert record.status == "ok", [o for o in record.oracles if not o.passed]
    assert check_run(tmp_path / exp.SLUG / record.run_id) == []
    assert record.results["op_us"] == pytest.approx(4) and record.results["hidden_from_elements"] == SIZES[1]
    assert record.samples["eager 16 32"]["values"] == [[130.0] * 20] * 2
    seen = exp.compare([record]).set_index("quantity")
    assert seen.loc["graph: one more step (us)", f"{record.hardware_tag} gpu1"] == pytest.approx(1.5)
    assert all(fig.layout.meta["caption"] for fig in exp.figures(record).values())


def test_a_process_that_fails_keeps_what_was_measured(monkeypatch, tmp_path):
    record = exp.run(fake_gpu_host(monkeypatch, tmp_path, fail_in=1))
    assert record.status == "failed" and "planted" in record.failure["message"]
    assert record.samples["eager 16 32"]["values"]


def test_no_gpu_is_a_usage_error(monkeypatch):
    monkeypatch.setattr(machine, "detect", lambda: replace(detect(), gpus=()))
    with pytest.raises(UsageError, match="no GPU"):
        exp.run(exp.Params(device="cuda"))


@pytest.mark.parametrize(("wrong", "name"), [
    ({"device": "tpu"}, "device"), ({"variants": ("eager",)}, "variants"), ({"lengths": (4,)}, "lengths"),
    ({"variants": ("eager", "paired", "graph")}, "variants"), ({"sizes": (4, 2)}, "sizes"), ({"rounds": 0}, "rounds"),
    ({"compile_lengths": (3,)}, "compile_lengths"), ({"op_us": 0.0}, "op_us"),
])  # fmt: skip
def test_bad_parameters_name_the_argument(wrong, name):
    with pytest.raises(ValueError, match=name):
        exp.Params(**wrong)

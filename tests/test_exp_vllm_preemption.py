"""The preemption lab from parameters to figures on stand-ins for the servers; bad input, faults, the wish to stop."""

from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from labkit import claims, conduct
from labkit.analyze import preemption as analyze
from labkit.calc.scheduler import Step
from labkit.engine.find import Engine, EngineMissing
from labkit.experiments import vllm_preemption as exp
from labkit.launch.process import LaunchError
from labkit.machine import Gpu, detect
from labkit.presets import build_params
from labkit.records import RecordError, check_run
from tests.preemption_engine import StandIn, log_line
from tests.test_analyze_preemption import SMALL

PARAMS = exp.Params(**SMALL)


@pytest.fixture
def engine(monkeypatch, tmp_path):
    """Stand-ins instead of servers; `state` says what they were asked and where they fail."""
    state = {"settings": [], "samples": 0, "die_at": None, "rounds": 0}

    @contextmanager
    def servers(settings, *, engine_python, model, run_dirs, explain, progress, **options):
        assert (model / "config.json").is_file() and (run_dirs[0].parent / "prediction.json").is_file()
        state["settings"] += settings
        for folder in run_dirs:
            folder.mkdir()
        yield [StandIn(one, folder) for one, folder in zip(settings, run_dirs)]

    def observe(server, plan, *, concurrency, held, on_sample, should_stop, marker, find_marker, num_finished,
                read_sample, **_):
        state["rounds"] += 1
        if state["rounds"] == state["die_at"]:
            raise LaunchError("vLLM server start0-1gib died: planted", log_path=server.log)
        seen = server.observe(plan, concurrency=concurrency, held=held)
        step = Step(context_requests=1, context_tokens=len(marker.prompt_ids), generation_requests=0,
                    generation_tokens=0, running=0, waiting=0, usage=0.0)
        line = log_line(10**6, step)
        assert marker.output_tokens == 1 and find_marker(seen.log_text) == -1 == find_marker(line)
        assert seen.log_text.endswith("\n") and find_marker(seen.log_text + line) > len(seen.log_text)
        assert num_finished(seen.after) - num_finished(seen.before) == len(plan)
        assert read_sample(seen.after)["preemptions"] >= 0
        if on_sample:
            on_sample(seen.samples[0])
        return seen

    found = Engine(python=Path("python"), version="0.32.0", torch="2.13.0+cpu", device="cpu")
    monkeypatch.setattr(exp, "find_engine", lambda device: replace(found, device=device))
    monkeypatch.setattr(exp, "vllm_servers", servers)
    monkeypatch.setattr(exp, "observe", observe)
    monkeypatch.setenv("LABKIT_RUNS_DIR", str(tmp_path))
    return state


def test_a_run_from_parameters_to_figures(engine, tmp_path):
    heard, told = [], []
    record = exp.run(PARAMS, preset="smoke", progress=told.append, on_sample=heard.append)
    assert record.status == "ok", [oracle for oracle in record.oracles if not oracle.passed]
    assert check_run(tmp_path / exp.SLUG / record.run_id) == [] and exp.check(record)["passed"].all()
    assert record.results["engine"]["vllm"] == "0.32.0" and len(record.argv) == 2
    assert record.results["released"] == ["held by /pause, released by /resume"]
    small, large = engine["settings"]
    assert (small.num_blocks, large.num_blocks, small.kv_cache_memory_bytes) == (36, 144, None)
    assert not small.enable_prefix_caching and "--no-async-scheduling" in small.extra
    assert {sample["round"] for sample in heard} >= {"1 GiB / 8", "4 GiB cold", "1 GiB every 40 ms"}
    assert any("1 GiB / 8" in line and "preemptions" in line for line in told)
    assert record.results["settings"] == {
        "eager": True, "prefix_cache": False, "max_num_seqs": 8, "max_num_batched_tokens": 256, "requests": 8,
        "prompt": 96, "output": 80, "ignore_eos": True, "poll_ms": pytest.approx(50)}
    assert exp.table(record)["point"].tolist() == ["1 GiB / 3", "1 GiB / 8", "4 GiB / 8"]
    assert len(record.samples["ttft_s 1 GiB / 8"]["values"]) == 2 and record.samples["curve 4 GiB / 8"]["values"]
    assert exp.load(record.run_id, expect=PARAMS).run_id == record.run_id
    with pytest.raises(RecordError, match="rounds"):
        exp.load(record.run_id, expect=replace(PARAMS, rounds=3))


def test_tables_and_figures_of_a_record(engine):
    from labkit.analyze import preemption_tables as tables

    record = exp.run(PARAMS, preset="smoke")
    seen = exp.compare([record])
    row = seen[(seen["quantity"] == "preemptions") & (seen["point"] == "1 GiB / 8")].iloc[0]
    column = f"{record.hardware_tag} smoke"
    assert row[column] == row[f"{column} predicted"] == record.results["count"]["1 GiB / 8"]
    left = tables.residuals_table(record)
    tested = left[left["point"] == "1 GiB / 8"]  # the round that preempts: nothing of it is used
    assert abs(tested["calibrated_off_pct"]).max() < 2 and not tested["used"].any() and left["used"].sum() == 3
    assert set(left["metric"]) == {"tokens/s", "mean TTFT (ms)", "mean TPOT (ms)", "mean E2EL (s)"}
    assert tables.costs_table(record)["step_ms"].tolist() == [10.0, pytest.approx(10.0, rel=0.05)]
    assert tables.stagger_table(record)["gap_ms"].tolist() == [0, 40]
    assert len(tables.requests_table(record)) == 9
    ratios = tables.ratios_table([record], reported=exp.reported_ratios())
    assert ratios["8x V100 report"].tolist() == [66.0, 11.0, 11.3]
    drawn = exp.figures(record)
    assert set(drawn) == {"kv_curve", "requests", "timeline", "metrics"}
    assert all(fig.layout.meta["caption"] for fig in drawn.values())


def test_ratios_come_from_both_caches():
    times = {name: {"1 GiB / 8": {"value": small}, "4 GiB / 8": {"value": large}} for name, small, large in (
        ("throughput", 742.7, 1125.4), ("tpot", 40.86, 36.83), ("ttft", 2601, 2931))}
    seen = analyze.ratios(times, {"cache_gib": [1, 4], "small_concurrency": [3, 8], "large_concurrency": [8]})
    assert {name: round(value, 1) for name, value in seen.items()} == {
        "throughput_pct": 66.0, "tpot_slower_pct": 10.9, "ttft_lower_pct": 11.3}, "erratum E07: not 11.0"


def test_the_report_stands_beside():
    figures = exp.reported()
    assert figures["count"] == {"1 GiB / 8": 0, "1 GiB / 16": 4, "4 GiB / 16": 0}
    assert figures["throughput"]["1 GiB / 16"] == 742.7


def test_a_gpu_gets_bytes_and_blocks_of_sixteen(engine, monkeypatch, tmp_path):
    monkeypatch.setattr(conduct.machine, "detect", lambda: replace(detect(), gpus=(Gpu(index=0, name="NVIDIA H200"),)))
    params = replace(build_params(exp.Params, exp.SLUG, "gpu1"), rounds=1, stagger_ms=())
    record = exp.run(params, preset="gpu1")
    assert record.status == "ok", [oracle for oracle in record.oracles if not oracle.passed]
    small, large = engine["settings"]
    assert (small.kv_cache_memory_bytes, large.kv_cache_memory_bytes, small.num_blocks) == (2**30, 2**32, None)
    assert small.gpu_index == 0 and "--gpu-memory-utilization" in small.extra
    assert record.results["count"] == {"1 GiB / 8": 0, "1 GiB / 16": 4, "4 GiB / 16": 0}
    assert record.results["kv_tokens"] == {"1 GiB / 8": 18720, "1 GiB / 16": 18720, "4 GiB / 16": 74896}
    rows = {row.id: row for row in claims.verify(lab=exp.SLUG, roots=(tmp_path, tmp_path / "none"), tag="h200-x1")}
    for name in ("engine", "load", "kv-tokens", "count", "peak-kv", "running-waiting", "decode-overflows", "c8-fits"):
        assert (rows[f"preempt-{name}"].status, rows[f"preempt-{name}"].record) == ("verified", record.run_id), name
    assert rows["preempt-66"].status == rows["preempt-tpot-11"].status == "verified"
    assert "no direction" in rows["preempt-ttft-11"].reason, "the schedule gives both caches the same"
    assert rows["preempt-implicit-throttle"].status == "differs" and not claims.failed(rows.values())


def test_every_preset_predicts_the_report_s_counts():
    for preset in ("smoke", "cpu", "gpu1"):
        told = exp.predict(build_params(exp.Params, exp.SLUG, preset))
        assert [point["preemptions"] for point in told["points"].values()] == [0, 4, 0]
        assert told["tokens"]["1 GiB"] == 18720 and told["plan"]["quiet_concurrency"] == 12
        assert told["plan"]["preemptions"]["12"] == 0 < told["plan"]["preemptions"]["13"]
        assert round(told["points"]["1 GiB / 8"]["peak_kv_pct"], 1) == (65.7 if preset == "gpu1" else 65.8)


def test_fresh_pairs_are_started_for_each_start(engine):
    record = exp.run(replace(PARAMS, num_starts=2, rounds=1, stagger_ms=(), plan_waves=0))
    assert record.status == "ok" and len(engine["settings"]) == 4 and engine["rounds"] == 2 * (2 + 3)
    assert record.results["ttft"]["1 GiB / 8"]["num_processes"] == 2
    assert "preemptions at the planner's concurrency" not in {oracle.name for oracle in record.oracles}


def test_a_server_that_dies_keeps_what_was_measured(engine):
    engine["die_at"] = 5
    record = exp.run(PARAMS)
    assert record.status == "failed" and "died: planted" in record.failure["message"]
    assert record.samples["ttft_s 1 GiB / 3"]["values"] and record.results["engine"]
    with pytest.raises(RecordError, match="planted"):
        exp.check(record)


def test_the_wish_to_stop_ends_the_run(engine):
    asked = []
    record = exp.run(PARAMS, should_stop=lambda: asked.append(1) or len(asked) > 3)
    assert record.status == "failed" and record.failure["message"] == "stopped by the user"
    assert engine["rounds"] == 3


def test_a_missing_engine_is_told_before_anything_is_made(monkeypatch, tmp_path):
    def missing(device):
        raise EngineMissing("vLLM is not installed: python -m labkit engine install --cpu")

    monkeypatch.setattr(exp, "find_engine", missing)
    monkeypatch.setenv("LABKIT_RUNS_DIR", str(tmp_path))
    with pytest.raises(EngineMissing, match="not installed"):
        exp.run(PARAMS)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("wrong", "name"), [
    ({"device": "tpu"}, "device"), ({"cache_gib": (4, 1)}, "cache_gib"), ({"num_blocks": (9,)}, "num_blocks"),
    ({"num_blocks": ()}, "num_blocks"), ({"small_concurrency": (64,)}, "small_concurrency"),
    ({"large_concurrency": (5,)}, "large_concurrency"), ({"output_tokens": 2000}, "max_model_len"),
    ({"output_tokens": 1}, "output_tokens"), ({"rounds": 0}, "rounds"), ({"stagger_ms": (-1.0,)}, "stagger_ms"),
    ({"period_s": 0.0}, "period_s"), ({"request_us": -1.0}, "request_us"), ({"seed": -1}, "seed"),
])
def test_bad_parameters_name_the_argument(wrong, name):
    with pytest.raises(ValueError, match=name):
        exp.Params(**wrong)

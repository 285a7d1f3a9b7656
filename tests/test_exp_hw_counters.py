"""The hardware counter lab: live on this machine's CPU; a GPU run written by rule, right and with planted faults."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from labkit.analyze.hw_counters import METRICS, calls_of, one_call, parts, split
from labkit.analyze.hw_counters_oracles import gpu_oracles, replay
from labkit.analyze.hw_counters_plan import workloads
from labkit.analyze.hw_counters_results import values_of
from labkit.experiments import hw_counters as exp
from labkit.hardware import load_profile
from labkit.launch.ncu import NcuOutput
from labkit.launch.ncu_stand_ins import TEXTS
from labkit.launch.process import LaunchError, LaunchResult
from labkit.presets import UsageError, available_presets, build_params
from labkit.records import RecordError, check_run, load_record
from tests import hw_counters_run as made

SMALL = dict(rows=(512, 8192), compile_rows=(8192,), again_rows=(512, 8192), warps=(4, 8), warps_hidden=(8192,),
             num_processes=2, count_processes=2, rounds=4)


@pytest.fixture(scope="module")
def host(tmp_path_factory):
    """(record, run directory) of one real run without a GPU; no committed GPU record is looked at."""
    root = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LABKIT_RUNS_DIR", str(root))
        patch.setattr(exp, "recorded", list)
        yield exp.run(exp.Params(touch_mib=(2, 8), rounds=3), preset="smoke", run_id="host"), root / exp.SLUG / "host"


@pytest.fixture
def gpu(tmp_path, monkeypatch):
    """run(change=, query=, fail=, **params) -> record of a GPU run whose tool and worker are written by rule."""
    monkeypatch.setenv("LABKIT_RUNS_DIR", str(tmp_path / "runs"))

    def run(*, change=None, query=None, fail=None, preset="gpu1", run_id="gpu", lines=None, after_count=None, **params):
        def launch(worker, *, run_dir, **how):
            made.worker_lines(run_dir)
            if lines:
                lines(run_dir)
            return LaunchResult(argv=["python", "-m", worker], wall_s=1.0, log=run_dir / "log.txt")

        def count(worker, *, run_dir, metrics, read, **how):
            if fail:
                raise LaunchError(fail, log_path=run_dir / "log.txt", error=fail)
            told = made.worker_lines(run_dir)
            text = made.table(told["workloads"], told["calls"], metrics, change=change)
            assert read(text)["kernels"]
            if after_count:
                after_count(run_dir)
            argv = ["ncu", "python", "-m", worker]
            return NcuOutput(argv=argv, exitcode=0, wall_s=1.0, text=text, last_line=""), []

        answer = NcuOutput(argv=["ncu"], exitcode=0, wall_s=1.0, text=query or "", last_line="")
        monkeypatch.setattr(exp, "launch_worker", launch)
        monkeypatch.setattr(exp, "count_worker", count)
        offered = set() if query else {metric.split(".")[0] for metric in METRICS.values()}
        monkeypatch.setattr(exp, "query_metrics", lambda **how: (offered, answer))
        monkeypatch.setattr(exp.machine, "detect", lambda: replace(REAL, gpus=(GPU,)))
        return exp.run(exp.Params(device="cuda", **{**SMALL, **params}), preset=preset, run_id=run_id)

    return run


REAL = exp.machine.detect()
GPU = exp.machine.Gpu(index=0, name="NVIDIA H200", memory_bytes=150754820096, compute_capability="9.0", mig=False,
                      power_limit_w=700.0)


def failed(record):
    return {oracle.name for oracle in record.oracles if not oracle.passed}


def test_a_machine_without_a_gpu_measures_what_it_can_and_says_what_it_cannot(host):
    record, run_dir = host
    assert record.status == "ok" and check_run(run_dir) == [] and exp.check(record)["passed"].all()
    assert record.results["counters"] == "not on a CPU" and any("no GPU counter was read" in n for n in record.notes)
    assert not any(name.startswith(("dram", "l2", "achieved")) for name in record.results)
    assert any("no recorded GPU run" in note for note in record.notes)
    table = exp.table(record)
    assert (table.predicted_faults == [512, 2048]).all() and len(exp.figures(record)) == 1
    assert exp.compare([record]).empty


def test_page_faults_are_what_the_page_size_predicts(host):
    record, _ = host
    if not any("counts no page faults" in note for note in record.notes):
        for entry in record.results["page_faults"].values():
            assert abs(entry["getrusage"] - entry["predicted"]) <= 8 and entry["second"] <= 8


def test_a_tool_that_measured_nothing_is_refused_in_spite_of_exit_code_0(host):
    results = host[0].results
    assert set(results["exit_0_refused"]) == {
        "no permission", "no kernel matched", "unknown metric", "driver mismatch", "program failed"}
    assert all(results["exit_0_refused"].values()) and results["right_table_accepted"]
    assert results["right_table_bytes"] == 134234112
    assert results["unreadable_without_permission"] == [
        "achieved occupancy", "dram bytes", "L2 hit", "stall reasons"]


def test_a_run_by_rule_passes_every_oracle(gpu):
    record = gpu()
    assert record.status == "ok", (record.failure, failed(record))
    results = record.results
    assert results["counters"] == "read" and results["counters_read"] == [
        "achieved occupancy", "dram bytes", "L2 hit", "stall reasons"]
    assert results["dram_read_bytes"]["report w4 8192x8192"]["value"] == 134217728 + 16384
    # Two fifths of a 60 MiB cache hold what was written last: reads are kept there one time and a half.
    assert results["retained_write_bytes"]["copy 8192x8192"] == 25165824
    assert results["retained_write_bytes"]["copy 512x8192"] == 8388608
    assert results["passes_seen_by_memory"] | {"copy again 512x8192": 1, "copy again 8192x8192": 4} == results[
        "passes_seen_by_memory"]
    assert "copy again 8192x8192" not in results["retained_write_bytes"]
    assert results["retained_pct_of_l2"]["copy 8192x8192"] == pytest.approx(40)
    assert results["lookups_per_access"]["copy 8192x8192"] == 1.5
    counted = 2 * 134217728 - 25165824
    assert results["dram_over_min_bytes"]["copy 8192x8192"] == counted / (2 * 134217728)
    assert results["dram_gb_per_s"]["copy 8192x8192"] == pytest.approx(counted / (2000 + 2 * 134217728 // 4000))
    assert results["tensor_flop_over_needed"] == {"gemm 4096x4096x7168": 1, "gemm 1x4096x7168": 1}
    assert results["kernels_per_call"].get("memcpy 8192x8192") is None
    assert results["rule_occupancy_pct"]["report w4 8192x8192"] == 25.0
    assert results["top_stall"]["copy 8192x8192"] == "long_scoreboard"
    moved, time = 2 * 134217728, results["cold_time_us"]["copy 8192x8192"]
    assert results["effective_gb_per_s"]["copy 8192x8192"]["value"] == pytest.approx(moved / time["value"] / 1e3)
    assert time["n"] == 8 and time["num_processes"] == 2
    assert results["residual_pct"]["retained_write_bytes"]["copy 8192x8192"] == 0
    assert results["residual_pct"]["retained_one_cache_bytes"]["copy 8192x8192"] == -20


def test_prediction_comes_from_the_gpus_profile_and_before_the_run(gpu):
    record = gpu()
    predicted = record.prediction["values"]
    assert predicted["hardware"] == "h200" and predicted["l2_bytes"] == 62914560
    assert predicted["retained_one_cache_bytes"]["copy evict first 8192x8192"] == 62914560
    assert predicted["retained_write_bytes"]["copy evict first 8192x8192"] == 25165824
    assert predicted["dram_read_bytes"]["copy again 8192x8192"] == 4 * 134217728
    assert predicted["tensor_flop"]["gemm 4096x4096x7168"] == 2 * 4096 * 4096 * 7168
    assert record.prediction["created_utc"] == record.created_utc <= record.finished_utc
    assert exp.predict(exp.Params(), hardware=load_profile("h200"))["min_bytes"]["copy 512x8192"] == 2 * 512 * 8192 * 2


def test_the_page_can_show_everything(gpu):
    record = gpu()
    table = exp.table(record)
    assert len(table) == len(record.results["min_bytes"]) and table["top_stall"].notna().sum() >= 10
    figures = exp.figures(record)
    assert set(figures) == {"traffic", "retained", "passes", "bandwidth", "occupancy", "stalls"}
    assert all(json.loads(figure.to_json())["data"] for figure in figures.values())
    side = exp.compare([record])
    assert {"quantity", "workload", "unit", "v100_report"} <= set(side.columns) and len(side) > 20
    assert side["v100_report"].str.contains("no permission").all()


FAULTS = {
    "more left in L2 than it holds": (lambda spec, v: v | {"dram_write_bytes": 0},
                                      "written bytes that memory did not see fit in L2"),
    "reads that are too few": (lambda spec, v: v | {"dram_read_bytes": int(0.8 * v["dram_read_bytes"])},
                               "a cold kernel reads at least its minimum from memory"),
    "another occupancy rule": (lambda spec, v: v | {"theoretical_occupancy_pct": 31.25},
                               "theoretical occupancy is what our rule gives"),
    "achieved above theoretical": (lambda spec, v: v | {"achieved_occupancy_pct": 99.0},
                                   "achieved occupancy does not pass the theoretical one"),
    "tensor cores in a copy": (lambda spec, v: v | {"tensor_flop": 7},
                               "tensor cores did the products' operations and nothing else"),
    "a product without tensor cores": (lambda spec, v: v | {"tensor_flop": 0},
                                       "tensor cores did the products' operations and nothing else"),
    "a reason is missing": (lambda spec, v: v | {"stall_long_scoreboard": 10.0},
                            "stall reasons add up to the cycles an instruction takes"),
    "a clock too fast": (lambda spec, v: v | {"time_ns": v["time_ns"] // 2},
                         "counted bytes over time stay below the datasheet"),
    "no occupancy": (lambda spec, v: v | {"achieved_occupancy_pct": None},
                     "the four kinds of counters that the report lacked were read"),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_each_planted_fault_fails_its_oracle(gpu, name):
    change, oracle = FAULTS[name]
    record = gpu(change=change)
    assert record.status == "failed" and oracle in failed(record)
    with pytest.raises(RecordError, match="expected"):
        exp.check(record)


def test_no_oracle_passes_on_nothing(gpu):
    """Every oracle of a run without a single number fails: none may hold because there is nothing to compare."""
    record = gpu()
    plan = workloads(record.params)
    kept = {"device": record.results["device"], "datasheet_gb_per_s": 4800.0, "dram_read_bytes": {},
            "registers": {}}  # fmt: skip
    assert not [oracle.name for oracle in gpu_oracles(kept, plan, []) if oracle.passed]


def test_a_failed_check_of_the_worker_fails_the_run(gpu):
    def spoil(folder):
        path = folder / "rank0.jsonl"
        path.write_text(path.read_text().replace('"passed": true, "num_bad": 0', '"passed": false, "num_bad": 3', 1))

    assert "outputs are right" in failed(gpu(lines=spoil))


def test_no_permission_says_what_an_administrator_must_change(gpu):
    record = gpu(query=TEXTS["no permission"])
    assert record.status == "failed" and record.results["counters"] == "not read"
    told = record.failure["message"]
    assert "ERR_NVGPUCTRPERM" in told and "NVreg_RestrictProfilingToAdminUsers=0" in told and "--cap-add" in told
    assert record.results["ncu_query"]["exit_code"] == 0
    with pytest.raises(RecordError, match="ERR_NVGPUCTRPERM"):
        exp.check(record)


def test_a_tool_that_fails_later_keeps_what_was_measured(gpu):
    record = gpu(fail="ncu: no kernels were profiled")
    assert record.failure["message"] == "ncu: no kernels were profiled" and record.oracles == []
    assert record.argv == [] and "min_bytes" in record.results


def test_a_table_that_lost_a_marker_ends_the_run_in_one_line(gpu):
    def announce_more(folder):
        with open(folder / "rank0.jsonl", "a") as stream:
            stream.write('{"kind": "profiled", "name": "one more", "calls": 1, "is_marked": true}\n')

    record = gpu(change=None, lines=None, after_count=announce_more)
    assert record.status == "failed"
    assert "6 markers in the table, the worker set 7" in record.failure["message"]
    with pytest.raises(ValueError, match="before the first marker"):
        parts([{"name": "k"}], 0, "p0")
    with pytest.raises(ValueError, match="3 kernels in 2 calls"):
        calls_of([{"name": "k"}] * 3, 2, "p0")
    with pytest.raises(ValueError, match="p0: 3 kernels for a to b, expected 2"):
        split([{"name": "k"}] * 3, [{"name": "a", "calls": 1}, {"name": "b", "calls": 1}], "p0")


def test_kernels_of_one_call_are_added():
    per_size = {"dram__bytes_read.sum": 10.0, "dram__bytes_write.sum": 7.0, "gpu__time_duration.sum_ns": 5.0,
                "sm__warps_active.avg.pct_of_peak_sustained_active": 30.0}
    kernels = [{"name": name, "block": [64, 1, 1], "metrics": {key: size * value for key, value in per_size.items()}}
               for name, size in (("a", 1), ("b", 2))]  # fmt: skip
    row = one_call(kernels)
    assert (row["dram_read_bytes"], row["dram_write_bytes"], row["time_ns"]) == (30.0, 21.0, 15.0)
    assert row["achieved_occupancy_pct"] == 60.0 and row["kernels"] == ["a", "b"]  # of the longer one


def test_values_are_kept_apart_by_process():
    rows = [{"workload": "w", "process": process, "call": call, "x": 10 * process + call}
            for process in (1, 0) for call in (0, 1)]  # fmt: skip
    assert values_of(rows, "x", "w") == [[0, 1], [10, 11]] and values_of(rows, "y", "w") == []


def test_a_record_is_read_again_on_a_machine_without_a_gpu(gpu, tmp_path, monkeypatch):
    record = gpu()
    committed = tmp_path / "committed"
    shutil.copytree(tmp_path / "runs" / exp.SLUG, committed / exp.SLUG)
    monkeypatch.undo()
    monkeypatch.setenv("LABKIT_RUNS_DIR", str(tmp_path / "local"))
    monkeypatch.setattr(exp, "RECORDS", committed)
    monkeypatch.setattr(exp, "recorded", lambda: [record])
    again = exp.run(exp.Params(touch_mib=(2,), rounds=1), run_id="again")
    assert again.status == "ok" and again.results["replayed"]["run_id"] == "gpu"
    assert sum(oracle.name.startswith("recorded:") for oracle in again.oracles) >= 10
    table = committed / exp.SLUG / "gpu" / "p0-count" / "ncu.csv"
    table.write_text(table.read_text().replace("134,217,728", "134,217,729", 1))
    spoiled = exp.run(exp.Params(touch_mib=(2,), rounds=1), run_id="spoiled")
    assert "recorded: the results follow from the table" in failed(spoiled)


def test_the_record_holds_no_path_of_this_machine(gpu, tmp_path):
    gpu()
    assert "device__attribute" not in (tmp_path / "runs" / exp.SLUG / "gpu" / "p0-count" / "ncu.csv").read_text()
    for path in (tmp_path / "runs" / exp.SLUG / "gpu").rglob("*"):
        if path.is_file():
            assert "Connected" not in path.read_text() and str(tmp_path) not in path.read_text()


def test_load_and_expect(gpu):
    record = gpu()
    assert exp.load("gpu") == record == exp.load("gpu", expect=exp.Params(device="cuda", **SMALL))
    with pytest.raises(RecordError, match="rounds"):
        exp.load("gpu", expect=exp.Params(device="cuda", **{**SMALL, "rounds": 5}))


@pytest.mark.parametrize("preset", available_presets(exp.SLUG))
def test_presets(preset):
    params = build_params(exp.Params, exp.SLUG, preset)
    assert (params.device == "cuda") is preset.startswith("gpu")
    if preset.startswith("gpu"):
        assert params.num_processes >= 3 and params.rounds >= 20


def test_a_gpu_preset_needs_a_gpu(monkeypatch):
    monkeypatch.setattr(exp.machine, "detect", lambda: replace(REAL, gpus=()))
    with pytest.raises(UsageError, match="no GPU"):
        exp.run(exp.Params(device="cuda"))


@pytest.mark.parametrize(("values", "match"), [
    ({"device": "tpu"}, "device"), ({"rows": ()}, "rows"), ({"rows": (0,)}, "rows"), ({"rounds": 0}, "rounds"),
    ({"warps": (3,)}, "warps"), ({"again_rows": (0,)}, "again_rows"),
    ({"read_copies": 0}, "read_copies"), ({"warps": (64,)}, "warps"), ({"products": ("1x2",)}, "products"),
    ({"products": ("1x2xz",)}, "products"), ({"num_processes": True}, "num_processes"), ({"timeout_s": 0}, "timeout_s"),
    ({"touch_mib": (1.5,)}, "touch_mib"), ({"eps": "x"}, "eps"),
])  # fmt: skip
def test_bad_parameters_are_named(values, match):
    with pytest.raises(ValueError, match=match):
        exp.Params(**values)


def test_params_are_plain():
    assert json.loads(json.dumps(asdict(exp.Params())))


@pytest.mark.parametrize("run_dir", sorted((Path(__file__).parents[1] / "data" / "runs" / exp.SLUG).glob("*")),
                         ids=lambda path: path.name)  # fmt: skip
def test_committed_records_can_be_read_again(run_dir):
    record = load_record(run_dir)
    if record.results.get("counters") == "read":
        assert all(oracle.passed for oracle in replay(record, run_dir, workloads(record.params)))

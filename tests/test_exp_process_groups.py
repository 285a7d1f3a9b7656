"""The process-group lab on two real ranks, what each oracle notices, and what the slice does when a run goes wrong."""

import copy
import shutil

import pytest

pytest.importorskip("torch")

from labkit.analyze import mesh_oracles, mesh_results
from labkit.analyze.ddp_rank_files import read_ranks
from labkit.analyze.flight_recorder import analyze_flight_recorder
from labkit.analyze.flight_recorder_files import load_dump
from labkit.analyze.mesh_tables import detectors_frame, placements_frame, real_faults_frame
from labkit.experiments import process_groups as exp
from labkit.hardware import load_profile
from labkit.launch.process import LaunchError, LaunchResult
from labkit.presets import available_presets, build_params
from labkit.records import RecordError, check_run, load_record

TINY = dict(tp=2, pp=1, dp=1, mappings=("tp_local",), payload_mib=0.01, num_timed_steps=2, num_faults=200,
            slow_link_mbit_per_s=200.0, slow_payload_mib=1.0, num_slow_steps=1, num_real_faults=4, fault_steps=2,
            call_timeout_s=2.0)


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """(record, run directory, progress lines) of one real run on two ranks, with four broken schedules on eight."""
    root, lines = tmp_path_factory.mktemp("runs"), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LABKIT_RUNS_DIR", str(root))
        record = exp.run(exp.Params(**TINY), run_id="tiny", progress=lines.append)
        yield record, root / exp.SLUG / "tiny", lines


def test_two_ranks_pass_every_oracle(lab):
    record, run_dir, lines = lab
    assert record.status == "ok" and record.failure is None and check_run(run_dir) == []
    table = exp.check(record)
    assert table["passed"].all() and len(table) >= 8
    assert lines[0] == "process 1/1: 2 ranks on cpu"
    assert "faults: 4 of 4 broken schedules played on real ranks" in lines


def test_the_pair_gives_the_reports_numbers(lab):
    record, _, _ = lab
    results = record.results
    assert results["ordered_result"] == {"A": 2001, "B": 4001}
    assert results["swapped_result"] == {"A": 3001, "B": 3001, "hang": False}
    assert results["swapped_by_rank"] == {"A": [3001, 3001], "B": [3001, 3001]} and results["matching"] is True
    assert results["order_setup"] == {"ranks": 2, "shapes_equal": True}


def test_real_ranks_and_the_player_agree(lab):
    record, _, _ = lab
    real = record.results["real_faults"]
    assert real["named"] == real["num_cases"] == 4 and real["values_differing"] == 0 < real["values_compared"]
    assert {case["kind"] for case in real["cases"]} == {"swapped_order", "missing_call", "wrong_shape", "wrong_group"}
    assert record.results["silent_corruption"] is True and real["aborted"] >= 1
    assert record.results["faults"]["named_pct"] >= 95 and record.results["faults"]["num_cases"] == 200


def test_the_recorder_names_the_missing_call_and_is_blind_to_the_swap(lab):
    record, run_dir, _ = lab
    if record.results["recorder"] is None:
        pytest.skip("this torch has no recorder for Gloo")
    assert record.results["recorder"]["missing_named"] == [1] and record.results["recorder"]["sees_swap"] is False
    found = analyze_flight_recorder([run_dir / "p0" / "flight"])
    assert found["first_mismatch"]["missing_ranks"] == [1] and found["first_mismatch"]["op"] == "gloo:all_reduce"
    dump = load_dump(run_dir / "p0" / "flight" / "trace_rank_0")
    assert dump["entries"] and not any(entry.get("frames") for entry in dump["entries"]), "frames hold paths"


def test_a_slow_wire_is_slow_or_refused_in_words(lab):
    record, _, _ = lab
    refusal = record.results["slow_link_refusal"]
    if refusal is not None:
        assert any("predicted only" in note and refusal in note for note in record.notes)
        pytest.skip(f"no network namespaces here: {refusal}")
    floor = record.prediction["values"]["slow_floor_ms"]["tp_local"]["TP"]
    assert floor == pytest.approx(1e3 * (4 * 2**20 - 2**18) / 25e6)
    seen = record.results["slow_tp_phase"]["tp_local"]["value"]
    assert floor <= seen < 3 * floor


def test_table_figures_and_comparison(lab):
    record, _, _ = lab
    table = exp.table(record)
    assert {"tp_phase", "serial", "concurrent"} <= set(table["phase"]) and (table["time_ms"] > 0).all()
    figures = exp.figures(record)
    assert {"mapping_search", "report_phases", "detectors"} <= set(figures)
    frame = exp.compare([record]).set_index(["phase", "mapping"])
    assert frame.loc[("tp_phase", "tp_cross"), "8x V100 (quoted)"] == 77.92
    assert frame.loc[("tp_phase", "tp_cross"), "residual_pct"] == pytest.approx(4.3, abs=0.1)
    assert len(placements_frame(record.prediction["values"]["search"])) == 8
    assert detectors_frame(record.results["faults"]).loc["missing_call", "log with names"] == 100
    assert len(real_faults_frame(record.results["real_faults"])) == 4 and real_faults_frame(None).empty


def test_a_run_is_replayed_and_compared(lab):
    record, _, _ = lab
    assert exp.load("tiny", expect=exp.Params(**TINY)) == record
    with pytest.raises(RecordError, match="made with seed=1, expected 2"):
        exp.load("tiny", expect=exp.Params(**TINY, seed=2))


def judged(rows, record, *, detection=None, real=None, recorder=None, slow=None):
    """Names of the oracles that fail."""
    results = record.results
    timed = {name: value for name, value in results.items() if name.startswith("slow_") and isinstance(value, dict)}
    oracles = mesh_oracles.mesh_oracles(
        rows, record.prediction["values"], detection=detection or results["faults"],
        real=real or results["real_faults"], recorder=recorder or results["recorder"], is_cuda=False,
        slow=timed if slow is None else slow, num_ranks=2)
    return {oracle.name for oracle in oracles if not oracle.passed}


def changed(rows, kind, **values):
    rows = copy.deepcopy(rows)
    next(row for row in rows if row["kind"] == kind and row["rank"] == 1).update(values)
    return rows


def test_each_oracle_notices_its_error(lab):
    record, run_dir, _ = lab
    rows, results = read_ranks(run_dir / "p0"), record.results
    assert judged(rows, record) == set()
    assert judged(changed(rows, "sum", value=[3.0, 3.0, 3.0, 2.0]), record) == {
        "first sum of every group is the closed form"}
    assert judged(changed(rows, "phase", wrong={"TP": 1}), record) == {
        "payload after every timed phase is the closed form"}
    assert judged(changed(rows, "created", order=[["x", [0, 1]]]), record) == {
        "every rank made all groups in one order"}
    assert judged(changed(rows, "created", mine={"TP": [1]}), record) == {"groups of every mapping as planned"}
    assert judged(changed(rows, "order", values={"A": [2001.0], "B": [2001.0]}), record) == {
        "the pair's values, in order and swapped"}
    assert judged(rows, record, detection={**results["faults"], "named_pct": 94.9}) == {
        "faults named by rank and call"}
    assert judged(rows, record, detection={**results["faults"], "num_cases": 199}) == {
        "faults named by rank and call"}
    assert judged(rows, record, real={**results["real_faults"], "named": 3}) == {
        "faults on real ranks named by rank and call"}
    assert judged(rows, record, real={**results["real_faults"], "values_differing": 1}) == {
        "real ranks hold what the in-process player says"}
    if results["recorder"] is not None:
        assert judged(rows, record, recorder={**results["recorder"], "missing_named": [0]}) == {
            "flight recorder names who left out a call"}
    fast = {"slow_tp_phase": {"tp_local": {"p10": 1.0}}}
    assert judged(rows, record, slow=fast) == {"no phase beats the slow wire"}


def fake_launch(source, change):
    def launch(worker, *, run_dir, **_):
        for path in source.glob("*.jsonl"):
            shutil.copy(path, run_dir / path.name)
        change(run_dir)
        return LaunchResult(argv=["python"], wall_s=0.0, log=run_dir / "log.txt")
    return launch


def test_processes_are_kept_apart_and_only_one_checks(lab, monkeypatch):
    _, source, _ = lab
    monkeypatch.setattr(exp, "launch_torchrun", fake_launch(source / "p0", lambda run_dir: None))
    record = exp.run(exp.Params(**{**TINY, "num_processes": 2, "num_real_faults": 0}), run_id="two")
    assert record.status == "ok" and record.results["tp_phase"]["tp_local"]["n"] == 4
    assert record.results["real_faults"] is None and "silent_corruption" not in record.results


def test_a_bad_run_is_recorded_as_failed(lab, monkeypatch):
    _, source, _ = lab
    monkeypatch.setattr(exp, "launch_torchrun", fake_launch(
        source / "p0", lambda d: (d / "rank1.jsonl").write_text("{")))
    record = exp.run(exp.Params(**{**TINY, "num_real_faults": 0}), run_id="bad")
    assert record.status == "failed" and load_record(source.parent / "bad") == record
    with pytest.raises(RecordError, match=r"rank1\.jsonl line 1"):
        exp.check(record)


def test_a_failed_launch_is_recorded_with_its_cause(lab, monkeypatch):
    def launch(worker, *, run_dir, **_):
        raise LaunchError("mesh_groups: rank 1 failed (exit code 1): boom", log_path=run_dir / "log.txt", rank=1)

    monkeypatch.setattr(exp, "launch_torchrun", launch)
    record = exp.run(exp.Params(**TINY), run_id="broken")
    assert record.status == "failed" and record.failure["rank"] == 1 and exp.table(record).empty


def test_slowest_rank_and_one_clock_by_hand():
    """Own time of the slowest rank; over the wire from the first start (1.000 s) to the last end (1.050 s)."""
    rows = [{"kind": kind, "rank": rank, "mapping": "m", "phase": "TP", "index": 0, "start_s": start, "time_s": time}
            for kind in ("phase", "slow_phase") for rank, start, time in ((0, 1.0, 0.03), (1, 1.02, 0.03))]
    assert mesh_results.phase_ms([rows], "m", "TP")[0] == pytest.approx([30.0])
    assert mesh_results.phase_ms([rows], "m", "TP", kind="slow_phase")[0] == pytest.approx([50.0])


@pytest.mark.parametrize(("changes", "message"), [
    ({"tp": 0}, "tp=0: expected at least 1"), ({"mappings": ("tp_odd",)}, "mappings=.*tp_local or tp_cross"),
    ({"num_faults": 199}, "num_faults=199: expected at least 200"), ({"device": "gpu"}, "device='gpu'"),
    ({"payload_mib": 0}, "payload_mib=0: expected above 0"), ({"tp": 1, "pp": 1, "dp": 1}, "two ranks or more"),
    ({"device": "cuda", "slow_link_mbit_per_s": 10}, "slow_link_mbit_per_s=10: expected 0 on GPUs"),
])
def test_bad_parameters_are_refused_by_name(changes, message):
    with pytest.raises(ValueError, match=message):
        exp.Params(**changes)


def test_presets_keep_the_reports_mesh():
    assert available_presets(exp.SLUG) == ["smoke", "cpu", "gpu2", "gpu8"]
    for preset in available_presets(exp.SLUG):
        params = build_params(exp.Params, exp.SLUG, preset)
        assert params.calls == {"TP": 4, "PP": 1, "DP": 1} and params.num_faults >= 200
        if params.world_size == 8:
            groups = exp.predict(params)["groups"]
            assert groups["tp_local"]["DP"] == groups["tp_cross"]["TP"] == [[0, 4], [1, 5], [2, 6], [3, 7]]
        if preset.startswith("gpu"):
            assert params.payload_mib == 64 and params.num_processes >= 3 and params.num_timed_steps >= 20
            assert params.world_size == int(preset[3:])


def test_floor_on_two_gpus_from_the_measured_rate():
    params = build_params(exp.Params, exp.SLUG, "gpu2")
    busbw = load_profile("h200").value("all_reduce_busbw_2_gpus_bytes_per_s")
    assert exp.predict(params, hardware=load_profile("h200"))["floor_ms"]["tp_phase"] == pytest.approx(
        1e3 * 4 * 2**26 / busbw)
    assert exp.predict(params)["floor_ms"] == {}


def test_the_ledger_gives_the_rates_that_predict_section_12():
    """PIX and SYS from section 4.4 by hand: 47.14 / 4 and 13.21 / 4 GB/s."""
    links = exp.report_links()
    assert links["PIX"]["bytes_per_s"] == pytest.approx(11.785e9)
    assert links["SYS"]["bytes_per_s"] == pytest.approx(3.3025e9)
    assert exp.mapping_search()["num_best"] == 2 and exp.mapping_search(tp_calls=1)["num_best"] > 2

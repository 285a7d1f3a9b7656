"""The expert-parallel lab on two real ranks, what each oracle notices, and what a run that goes wrong leaves."""

import copy
import json
import shutil

import pytest

pytest.importorskip("torch")

from labkit.analyze import moe_oracles, moe_results
from labkit.analyze.ddp_rank_files import read_ranks
from labkit.experiments import moe_alltoall as exp
from labkit.hardware import load_profile
from labkit.launch.process import LaunchError, LaunchResult
from labkit.presets import available_presets, build_params
from labkit.records import RecordError, check_run, load_record

TINY = dict(world_size=2, tokens_per_rank=96, hidden=16, ffn=32, sweep_shares=(1.0,), dedup_tokens=64,
            dedup_experts_per_rank=3, large_tokens_per_rank=160, num_timed_steps=3, late_ms=150.0, num_late_repeats=2)


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """(record, run directory, progress lines) of one real run on two ranks."""
    root, lines = tmp_path_factory.mktemp("runs"), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LABKIT_RUNS_DIR", str(root))
        record = exp.run(exp.Params(**TINY), run_id="tiny", progress=lines.append)
        yield record, root / exp.SLUG / "tiny", lines


def test_two_ranks_pass_every_oracle(lab):
    record, run_dir, lines = lab
    assert record.status == "ok" and record.failure is None and check_run(run_dir) == []
    table = exp.check(record)
    assert table["passed"].all() and len(table) == 8
    assert lines[0] == "process 1/1: 2 ranks on cpu" and "process 1/1: hot: done" in lines


def test_rows_by_hand(lab):
    """96 tokens: 48 and 48; 72 and 24 from each of two sources; everything to rank 0, so that rank 1 gets nothing."""
    record, _, _ = lab
    results = record.results
    assert results["received"] == {"balanced": [96, 96], "hot": [144, 48], "100 % hot": [192, 0],
                                   "balanced, large": [160, 160], "hot, large": [240, 80]}
    assert results["max_mean"] == {"balanced": 1.0, "hot": 1.5, "100 % hot": 2.0, "balanced, large": 1.0,
                                   "hot, large": 1.5}
    assert results["fabric_bytes"] == record.prediction["values"]["fabric_bytes"]
    assert set(results["fabric_bytes"].values()) == {96 * 16 * 4, 160 * 16 * 4}
    assert results["ids_checked"] == 3 * 192 + 2 * 320 and results["token_id_oracle"] is True
    assert results["count_exchange"] == {"count_exchanges": 1} and results["calls_per_step"] == 3


def test_one_row_a_rank_saves_what_the_formula_says(lab):
    record, _, _ = lab
    found = record.results["dedup"]
    assert found["pair_rows"] > found["rank_rows"] > 0 and found["rel_diff"] < 1e-5
    assert found["saved_share"] == pytest.approx(1 - found["distinct_ranks"] / 4)


def test_waiting_is_told_from_transfer(lab):
    record, _, _ = lab
    late = record.results["late"]
    assert record.results["collective_includes_wait"] is True and late["late_ms"] - late["in_time_ms"] > 120
    assert "kernel_length_misread" not in record.results  # no kernels on a CPU: nothing is claimed
    for name in ("rank_combine_ms", "rank_wait_ms", "rank_transfer_ms"):
        assert len(record.results[name]["hot"]) == 2
    for case, step in record.results["step_ms"].items():
        assert step["n"] == 3 and record.results["tokens_per_s"][case]["n"] == 3
        (steps,) = record.samples[f"step_ms.{case}"]["values"]
        assert len(steps) == 3


def test_table_figures_and_comparison(lab):
    record, _, _ = lab
    table = exp.table(record)
    assert list(table["case"]) == ["balanced", "balanced, large", "hot", "hot, large", "100 % hot"]
    assert table["max_rows"].tolist() == [96, 160, 144, 240, 192]
    figures = exp.figures(record)
    assert set(figures) == {"received", "wait_split", "skew", "capacity"}
    assert all(record.run_id in figure.layout.meta["caption"] for figure in figures.values())
    frame = exp.compare([record]).set_index(["result", "case"])
    assert frame.loc[("max_mean", "hot"), "8x V100 (quoted)"] == 6
    assert frame.loc[("max_mean", "hot"), "predicted"] == 1.5
    assert frame.loc[("step_ms", "hot"), "8x V100 (quoted)"] == 13.953


def test_a_run_is_replayed_and_compared(lab):
    record, _, _ = lab
    assert exp.load("tiny", expect=exp.Params(**TINY)) == record
    with pytest.raises(RecordError, match="made with seed=1, expected 2"):
        exp.load("tiny", expect=exp.Params(**TINY, seed=2))


def judged(rows, record, **changes):
    """Names of the oracles that fail on changed rows."""
    predicted = {**record.prediction["values"], **changes}
    cases = list(record.prediction["values"]["splits"])
    oracles = moe_oracles.moe_oracles(
        rows, moe_results.structure(rows, cases), predicted, cases=cases,
        calls=moe_results.calls_per_step(rows), dedup=moe_results.dedup(rows),
        bound=moe_oracles.row_bound(dtype="fp32", hidden=16, ffn=32))
    return {oracle.name for oracle in oracles if not oracle.passed}


def change_first(rows, kind, **values):
    changed = copy.deepcopy(rows)
    next(row for row in changed if row["kind"] == kind and row["rank"] == 1).update(values)
    return changed


def test_each_oracle_notices_its_error(lab):
    record, run_dir, _ = lab
    rows = read_ranks(run_dir / "p0")
    assert judged(rows, record) == set()
    assert judged(change_first(rows, "case", num_ids_wrong=1), record) == {"token ids come back in place"}
    assert judged(change_first(rows, "case", received_rows=95), record) == {
        "rows received as predicted, every rank"}
    assert judged(change_first(rows, "case", ids_distinct=95), record) == {"every id arrives exactly once"}
    assert judged(change_first(rows, "case", out_rel_diff=1e-3), record) == {"every output row is its own expert's"}
    assert judged(change_first(rows, "case", out_norm=0.0), record) == {"every output row is its own expert's"}
    assert judged(change_first(rows, "calls", all_to_alls=4), record) == {"all-to-alls in one step"}
    assert judged(change_first(rows, "dedup", rel_diff=1e-3), record) == {
        "one row per rank gives the same output"}
    assert judged(rows, record, dedup_distinct_ranks=1.0) == {"ranks of a token as the formula says"}
    swapped = {**record.prediction["values"]["splits"], "hot": [24, 72]}
    assert judged(rows, record, splits=swapped) == {"traffic matrix as planned"}


def fake_launch(source, change):
    def launch(worker, *, run_dir, **_):
        for path in source.glob("*.jsonl"):
            shutil.copy(path, run_dir / path.name)
        change(run_dir)
        return LaunchResult(argv=["python"], wall_s=0.0, log=run_dir / "log.txt")
    return launch


def test_processes_rotate_cases_and_keep_samples_apart(lab, monkeypatch):
    first, source, _ = lab
    monkeypatch.setattr(exp, "launch_torchrun", fake_launch(source / "p0", lambda run_dir: None))
    record = exp.run(exp.Params(**TINY, num_processes=3), run_id="three")
    told = [json.loads((source.parent / "three" / f"p{i}" / "params.json").read_text()) for i in range(3)]
    assert [t["case_order"][0] for t in told] == ["balanced", "hot", "100 % hot"]
    assert [t["is_checked"] for t in told] == [True, False, False]
    assert record.results["step_ms"]["hot"]["n"] == 9 and record.results["step_ms"]["hot"]["num_processes"] == 3
    (alone,) = first.samples["step_ms.hot"]["values"]
    assert record.samples["step_ms.hot"]["values"] == [alone] * 3


@pytest.mark.parametrize(("change", "noticed"), [
    (lambda d: (d / "rank1.jsonl").unlink(), "cannot be used|expected"),
    (lambda d: (d / "rank0.jsonl").write_text("{"), "rank0.jsonl line 1"),
], ids=["a rank is missing", "half a line"])
def test_a_bad_run_is_recorded_as_failed(lab, monkeypatch, change, noticed, request):
    _, source, _ = lab
    monkeypatch.setattr(exp, "launch_torchrun", fake_launch(source / "p0", change))
    record = exp.run(exp.Params(**TINY), run_id="bad-" + request.node.callspec.id.replace(" ", "-"))
    assert record.status == "failed" and load_record(source.parent / record.run_id) == record
    with pytest.raises(RecordError, match=noticed):
        exp.check(record)


def test_a_failed_launch_is_recorded_with_its_cause(lab, monkeypatch):
    def launch(worker, *, run_dir, **_):
        raise LaunchError("moe_dispatch: rank 1 failed (exit code 1): boom", log_path=run_dir / "log.txt", rank=1)

    monkeypatch.setattr(exp, "launch_torchrun", launch)
    record = exp.run(exp.Params(**TINY), run_id="broken")
    assert record.status == "failed" and record.failure["rank"] == 1 and exp.table(record).empty


def phase_row(rank, index, *, is_split=False, **times):
    return {"kind": "step", "rank": rank, "case": "hot", "index": index, "is_split": is_split, "counts_s": 0.0,
            "dispatch_s": 0.0, "expert_s": 0.0, "combine_s": 0.0, **times}


def test_slowest_rank_of_each_step_by_hand():
    """Rank 0 computes long, rank 1 waits in combine: maxima of phases are of two ranks and exceed the step."""
    rows = [phase_row(0, 0, expert_s=0.005, combine_s=0.001), phase_row(1, 0, expert_s=0.001, combine_s=0.0051),
            phase_row(0, 0, is_split=True, wait_s=0.0), phase_row(1, 0, is_split=True, wait_s=0.004, combine_s=0.001)]
    results, samples = moe_results.timing([rows], {"hot": 12})
    assert [results[name]["hot"]["value"] for name in ("expert_ms", "combine_ms", "step_ms")] == pytest.approx(
        [5.0, 5.1, 6.1])
    assert results["rank_wait_ms"]["hot"] == pytest.approx([0.0, 4.0])
    assert results["rank_combine_ms"]["hot"] == pytest.approx([1.0, 5.1])
    assert moe_results.waits_in_combine(results) is True and moe_results.waits_in_combine({}) is None
    alike = {**results, "rank_wait_ms": {"hot": [4.0, 4.0]}}
    assert moe_results.waits_in_combine(alike) is False
    assert results["tokens_per_s"]["hot"]["value"] == pytest.approx(12 / 6.1e-3)
    assert samples["rank_wait_ms.hot"]["values"] == [[[0.0], [4.0]]]


def test_bandwidth_and_kernels_by_hand():
    rows = [{"kind": "bandwidth", "rank": r, "num_tokens": 8, "remote_bytes": 2 * 2**20, "times_s": [t, t / 2]}
            for r, t in ((0, 0.001), (1, 0.002))]
    rows += [{"kind": "peer_copy", "rank": 0, "is_both": False, "num_bytes": 4 * 10**9, "times_s": [1.0, 2.0]}]
    results, _ = moe_results.bandwidth([rows])
    rate = 2 * 2**20 / 1e9
    assert results["dispatch_gb_per_s"]["2 MiB"]["value"] == pytest.approx((rate / 0.002 + rate / 0.001) / 2)
    assert results["dispatch_vs_peer_copy"]["one_way"] == pytest.approx(1.5 * rate / 0.002 / 3)
    kernels = [{"kind": "kernels", "rank": 0, "is_late": late, "delay_s": 0.05, "names": ["ncclDevKernel"],
                "kernel_s": [0.0001 + 0.05 * late]} for late in (False, True)]
    assert moe_results.kernel_lengths(kernels)["is_misread"] is True
    assert moe_results.kernel_lengths(kernels[:1]) == {} and moe_results.bandwidth([[]]) == ({}, {})


@pytest.mark.parametrize(("changes", "message"), [
    ({"world_size": 0}, "world_size=0: expected at least 1"), ({"hot_share": 2.0}, "hot_share=2.0"),
    ({"sweep_shares": (0.5, -1.0)}, "sweep_shares="), ({"dtype": "fp8"}, "dtype='fp8'"),
    ({"dedup_top_k": 99}, "dedup_top_k=99"), ({"bandwidth_tokens": (8,)}, "bandwidth_tokens=.*none on a CPU"),
    ({"device": "gpu"}, "device='gpu'"), ({"late_ms": 0}, "late_ms"),
])
def test_bad_parameters_are_refused_by_name(changes, message):
    with pytest.raises(ValueError, match=message):
        exp.Params(**changes)


def test_presets_keep_the_reports_tokens():
    assert available_presets(exp.SLUG) == ["smoke", "cpu", "gpu2", "gpu8"]
    for preset in available_presets(exp.SLUG):
        params = build_params(exp.Params, exp.SLUG, preset)
        assert params.tokens_per_rank == 4096 and params.hot_share == 0.75
        if params.world_size == 8:
            predicted = exp.predict(params)
            assert predicted["received_rows"]["hot"] == [24576, 1176, 1176, 1168, 1168, 1168, 1168, 1168]
            assert predicted["max_mean"]["hot"] == 6.0
        if preset.startswith("gpu"):
            assert (params.hidden, params.ffn, params.dtype) == (1024, 4096, "fp16")
            assert params.num_processes >= 3 and params.num_timed_steps >= 20


def test_floors_come_from_measured_rates_only():
    params = build_params(exp.Params, exp.SLUG, "gpu2")
    h200 = load_profile("h200")
    floor = exp.predict(params, hardware=h200)["floor_ms"]["hot"]
    assert floor["dispatch"] == pytest.approx(1e3 * 3072 * 2048 / h200.value("peer_copy_bytes_per_s"))
    assert floor["expert"] == pytest.approx(1e3 * 6144 * 4 * 1024 * 4096 / h200.value("bf16_matmul_flop_per_s"))
    assert exp.predict(params, hardware=load_profile("l4"))["floor_ms"] == {}
    assert exp.predict(params)["floor_ms"] == {}

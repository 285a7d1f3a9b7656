"""Lines of the product lab: an ideal machine must come out as it went in; what is planted must be noticed."""

import pytest

from labkit.analyze import gemm as analyze
from labkit.analyze import gemm_model as model
from labkit.analyze import gemm_oracles as oracles
from tests.gemm_lines import CASE, FOUND, RATES, ROWS, K, N, ceiling_lines, sweep_lines, time_ms, write_lines

PARAMS = {"check_rows": [1, 5, 33], "num_processes": 2, "rows": ROWS, "device": "cuda", "max_call_ms": 0.0}


def run_of(tmp_path, lines=None):
    for process in (0, 1):
        write_lines(tmp_path / f"p{process}" / "rank0.jsonl", (lines or sweep_lines)(process))
    write_lines(tmp_path / "c0" / "rank0.jsonl", [*ceiling_lines(8), {"kind": "done"}])
    found = analyze.read_lines(tmp_path)
    predicted = model.prediction(FOUND, ROWS, {"this_machine": RATES})
    results = analyze.results(found, analyze.read_lines(tmp_path, "c*"), FOUND, predicted=predicted, num_experts=2,
                              skewed_counts={"1": [1, 1], "16": [16, 16]})  # fmt: skip
    return found, results


def judged(tmp_path, lines=None):
    found, results = run_of(tmp_path, lines)
    return {oracle.name: oracle for oracle in oracles.oracles(PARAMS, found, results, FOUND)}


def test_an_ideal_machine_comes_out_as_it_went_in(tmp_path):
    """Ceilings, ridge 200, M* by hand, knee = M*, residuals zero."""
    _, results = run_of(tmp_path)
    assert results["read_gb_per_s"]["value"] == pytest.approx(2000)
    assert results["copy_gb_per_s"]["value"] == pytest.approx(1600)
    assert results["gemm_tflop_per_s"]["bf16"]["value"] == pytest.approx(400)
    assert results["ridge_flop_per_byte"]["this_run"]["bf16"] == pytest.approx(200)
    star = 200 / (1 - 200 * (1 / K + 1 / N))
    assert results["mstar_rows"][CASE]["this_run"] == pytest.approx(star) == pytest.approx(234.4, abs=0.1)
    seen = results["knee"][CASE]
    assert seen["rows"] == pytest.approx(star) and seen["crossing_rows"] == pytest.approx(star)
    assert seen["half_double_rows"] == pytest.approx(200)
    assert results["knee_in_graph_rows"][CASE] == pytest.approx(star)
    assert seen["by_process"] == [pytest.approx(star)] * 2
    assert seen["flat_rows"] == [1, 2, 4, 8, 16, 32, 64] and seen["steep_rows"] == [512, 1024, 2048]
    assert seen["steep_tflop_per_s"] == pytest.approx(400)
    assert set(results["residual_pct"]["this_run"][CASE].values()) == {0.0}


def test_half_the_bandwidth_moves_the_knee_and_shows_as_residual(tmp_path):
    """A product that reaches half of the read rate: memory-bound points take twice the transfer, the knee doubles."""
    slow = lambda process: sweep_lines(process, time=lambda m: time_ms(m, bandwidth=1e12))  # noqa: E731
    _, results = run_of(tmp_path, slow)
    moved = 2 * (K + K * N + N)
    expected = 100 * ((2e-6 + moved / 1e12) / (2e-6 + moved / 2e12) - 1)
    assert results["residual_pct"]["this_machine"][CASE]["1"] == pytest.approx(expected, abs=0.01)
    assert results["residual_pct"]["this_machine"][CASE]["2048"] == 0.0
    assert results["knee"][CASE]["rows"] > 400


def test_percentile_needs_a_hundred_samples():
    assert analyze.p99([list(range(1, 51)), list(range(51, 101))]) == 99
    assert analyze.p99([list(range(99))]) is None


def test_rounds_of_a_process_are_joined_and_processes_kept_apart(tmp_path):
    found, results = run_of(tmp_path)
    assert [len(part) for part in analyze.times(found, "cold")[CASE]["64"]] == [20, 20]
    assert results["time_ms"][CASE]["64"]["n"] == 40 and results["time_ms"][CASE]["64"]["num_processes"] == 2
    assert analyze.samples(found)[f"cold {CASE} 1"]["unit"] == "us"
    assert analyze.samples(found)["ceiling read"]["values"][0] == [500.0, 500.0]


def test_a_large_record_keeps_the_samples_of_the_main_modes(tmp_path, monkeypatch):
    found, _ = run_of(tmp_path)
    assert {name.split()[0] for name in analyze.samples(found)} == {
        "cold", "graph", "warm", "fine", "grouped", "skewed", "loop", "ceiling"}
    monkeypatch.setattr(analyze, "MOST_SAMPLES", 10)
    assert {name.split()[0] for name in analyze.samples(found)} == {*analyze.MAIN_MODES, "ceiling"}


def test_one_more_row_starts_a_wave(tmp_path):
    """256 x 128 in cuBLAS' name is 128 rows x 256 columns: 8 x 8 tiles, then 9 x 8; both one wave on 132 SMs."""
    assert analyze.tile_of(["nvjet_tst_256x128_64x4_1x2_h_bz_coopA_TNT"]) == (128, 256)
    assert analyze.tile_of(["void gemv2T_kernel"]) is None
    _, results = run_of(tmp_path)
    (step,) = results["steps"]
    assert (step["rows"], step["ratio"], step["tile"]) == (1024, 1.8, "128x256")
    assert (step["waves"], step["waves_next"], step["predicted_ratio"]) == (1, 1, 1.0)
    found, _ = run_of(tmp_path)
    (narrow,) = analyze.steps(found, FOUND, num_sms=64)
    assert (narrow["waves"], narrow["waves_next"], narrow["predicted_ratio"]) == (1, 2, 2.0)


def test_a_split_of_k_has_no_predicted_step(tmp_path):
    def lines(process):
        out = sweep_lines(process)
        for line in out:
            if line["kind"] == "kernel":
                line["names"] = ["nvjet_tst_64x8_64x16_2x1_v_bz_splitK_TNT", "splitKreduce_kernel"]
        return out

    _, results = run_of(tmp_path, lines)
    assert results["steps"][0]["predicted_ratio"] is None and results["steps"][0]["tile"] == "8x64 split K"


def test_grouped_ratios_and_prediction(tmp_path):
    _, results = run_of(tmp_path)
    assert results["loop_over_grouped"][CASE]["16"] == 2.0 and results["skewed_over_grouped"][CASE]["1"] == 1.2
    weights = 2 * 2 * K * N
    expected = 1e3 * (2e-6 + (weights + 2 * 2 * 16 * (K + N)) / 2e12)
    assert results["grouped_predicted_ms"][CASE]["16"] == pytest.approx(expected)


def test_no_knee_says_why():
    case = FOUND[CASE]
    rates = {**RATES, "flop_per_s": {"bf16": 1e12}}  # ridge 0.5: bound by arithmetic from the first row on
    seen = analyze.knee({str(m): time_ms(m, rate=1e12) for m in ROWS}, case, rates)
    assert seen["rows"] is None and "first rows" in seen["why"]
    few = analyze.knee({"1": 0.01, "512": 0.02}, case, RATES)
    assert few["rows"] is None and "two compute-bound points" in few["why"]
    level = analyze.knee({str(m): 0.01 for m in ROWS}, case, RATES)
    assert level["rows"] is None and level["why"]
    assert analyze.knee({"1": 0.1}, case, {**RATES, "flop_per_s": {}})["why"] == "no ceiling for this kind"


def test_oracles_pass_on_the_ideal_machine(tmp_path):
    seen = judged(tmp_path)
    assert all(oracle.passed for oracle in seen.values()), [o for o in seen.values() if not o.passed]
    assert {"integers_exact", "normal_within_bound", "cases_checked", "counted_twice", "processes_ended",
            "every_point_accounted", "not_above_the_roof", "grows_past_the_knee"} == set(seen)  # fmt: skip


def changed(kind, **values):
    def lines(process):
        return [{**line, **values} if line["kind"] == kind else line for line in sweep_lines(process)]

    return lines


@pytest.mark.parametrize(("name", "lines"), [
    ("integers_exact", changed("exact", num_bad=1)),
    ("normal_within_bound", changed("bound", num_bad=1)),
    ("counted_twice", changed("count", flop=33 * K * N)),
    ("counted_twice", changed("count", bytes=1)),
    ("counted_twice", changed("count", flop=None)),
    ("cases_checked", lambda p: [line for line in sweep_lines(p) if line["kind"] != "exact"]),
    ("processes_ended", lambda p: sweep_lines(p)[:-1] if p else sweep_lines(p)),
    ("every_point_accounted", lambda p: [line for line in sweep_lines(p) if line.get("rows") != 64]),
    ("not_above_the_roof", lambda p: sweep_lines(p, time=lambda m: time_ms(m) * 0.6)),
    ("grows_past_the_knee", lambda p: sweep_lines(p, time=lambda m: time_ms(min(m, 512)))),
])  # fmt: skip
def test_oracles_notice(tmp_path, name, lines):
    assert not judged(tmp_path, lines)[name].passed


def test_a_ceiling_that_a_busy_machine_lowered_is_not_taken_for_the_roof(tmp_path):
    """Ceilings a fifth slower in the sweep than before it: the roof is the higher one, and the times are not too good.
    Twice as slow: nobody can say, so nothing is judged.
    """

    def slower(factor):
        return lambda process: [
            {**line, "ms": [factor * ms for ms in line["ms"]]} if line["kind"] == "ceiling" else line
            for line in sweep_lines(process)]  # fmt: skip

    oracle = judged(tmp_path, slower(1.2))["not_above_the_roof"]
    assert oracle.passed and oracle.seen == pytest.approx(1.0, abs=0.1) and oracle.expected == "at least 0.70"
    found, results = run_of(tmp_path, slower(2.0))
    assert oracles.is_busy(results)
    names = {oracle.name for oracle in oracles.oracles(PARAMS, found, results, FOUND)}
    assert "integers_exact" in names and not names & {"not_above_the_roof", "grows_past_the_knee"}


def test_a_point_left_out_or_refused_is_accounted_for(tmp_path):
    def lines(process):
        out = [line for line in sweep_lines(process) if not (line.get("rows") == 2048 and line.get("mode") == "cold")]
        return [*out, {"kind": "left_out", "case": CASE, "mode": "cold", "rows": 2048, "ms": 900.0}]

    assert judged(tmp_path, lines)["every_point_accounted"].passed
    found, _ = run_of(tmp_path, lines)
    assert any("left out" in note for note in oracles.notes(PARAMS, found))


def test_a_file_that_was_cut_off_keeps_its_whole_lines(tmp_path):
    path = tmp_path / "p0" / "rank0.jsonl"
    write_lines(path, [{"kind": "done"}])
    path.write_text(path.read_text() + '{"kind": "tim')
    assert [line["kind"] for line in analyze.read_lines(tmp_path)] == ["done"]
    path.write_text('{"kind": "tim\n' + path.read_text())
    with pytest.raises(ValueError, match=r"p0/rank0\.jsonl line 1"):
        analyze.read_lines(tmp_path)

"""What the lines of an RMSNorm run say: pooled times, paired ratios, flags, residuals, oracles, all by hand."""

from dataclasses import asdict

import pytest

from labkit.analyze import rmsnorm as analyze
from labkit.analyze import rmsnorm_oracles, rmsnorm_times
from labkit.experiments import triton_rmsnorm as exp
from tests.rmsnorm_lines import LARGE, MOVED, SHAPE, write_run


@pytest.fixture
def lines(tmp_path):
    write_run(tmp_path)
    return analyze.read_lines(tmp_path)


def test_times_are_pooled_over_processes_and_ratios_paired_by_round(lines):
    out = rmsnorm_times.timing_results(lines, list(MOVED), MOVED)
    fast = out["fast_ms"][SHAPE]
    assert (fast["value"], fast["n"], fast["num_processes"]) == (pytest.approx(0.005), 4, 2)
    # copy / fast by round: 4/4, 4/5, 5/5, 3/6, whose median is 0.9; the ratio of the medians would be 0.8.
    assert out["copy_fraction"][SHAPE]["value"] == pytest.approx(0.9)
    assert out["speedup_native"][SHAPE]["value"] == 0.5
    assert out["speedup_native_gpu"][SHAPE]["value"] == pytest.approx(2.0)
    assert out["speedup_composite"][LARGE]["value"] == pytest.approx(0.9 / 0.13)
    assert out["time_ms"][SHAPE]["p90"] == 0.04 and out["launch_floor_ms"]["value"] == 0.015
    assert out["fast_gb_per_s"][LARGE]["value"] == pytest.approx(536.872960 / 0.125)
    assert out["min_bytes_gb_per_s"][SHAPE]["value"] == pytest.approx(3.147264 / 0.02)
    assert (out["kernels_per_call"], out["native_kernels_per_call"], out["composite_kernels_per_call"]) == (1, 1, 9)


def test_flags_and_the_goal(lines):
    out = rmsnorm_times.timing_results(lines, list(MOVED), MOVED)
    assert out["flags"][SHAPE] == {"host_bound": ["fast"], "l2_hot": True, "compile_fell_back": None}
    assert out["flags"][LARGE] == {"host_bound": ["native"], "l2_hot": False, "compile_fell_back": False}
    assert out["noise_floor_pct"] == {LARGE: pytest.approx(1.0)}
    # 0.120 / 0.125 = 96 % of the copy; 0.1225 / 0.125 = 2 % below the compiled one, and two copies differ by 1 %.
    assert out["goal_missed"] == {LARGE: ["96.0 % of copy_", "0.980 x torch.compile"]}
    for line in lines:
        if line.get("provider") == "compile" and line["kind"] == "timing":
            line["ms"] = [0.1240, 0.1240]  # 0.8 % below: within the noise
    again = rmsnorm_times.timing_results(lines, list(MOVED), MOVED)
    assert again["goal_missed"] == {LARGE: ["96.0 % of copy_"]}


def test_residuals_by_hand(lines):
    out = rmsnorm_times.timing_results(lines, list(MOVED), MOVED)
    got = rmsnorm_times.residuals(out, MOVED, floor_ms=0.002, ceilings={"datasheet": 4.8e12, "profile": None})
    assert set(got) == {"datasheet", "same_run"}
    predicted_ms = 0.002 + 536.872960e6 / 4.8e12 * 1e3  # 0.1138485 ms
    assert got["datasheet"][LARGE] == pytest.approx(100 * (0.125 / predicted_ms - 1))
    # This run's floor, 0.003 ms, and its largest copy, 0.120 ms: the copy itself would be predicted exactly.
    assert got["same_run"][LARGE] == pytest.approx(100 * (0.125 / 0.120 - 1))


def test_card_spread(tmp_path):
    write_run(tmp_path, ranks=(0, 1), slower={1: 1.05})
    lines = analyze.read_lines(tmp_path)
    out = rmsnorm_times.card_spread(lines, list(MOVED))
    assert out["card_spread_pct"]["fast"] == {s: pytest.approx(5.0) for s in MOVED}
    assert out["fast_ms_by_gpu"][LARGE] == {"0": 0.125, "1": pytest.approx(0.13125)}
    assert rmsnorm_times.card_spread([x for x in lines if x["rank"] == 0], list(MOVED)) == {}


def test_a_line_cut_off_is_left_out_and_a_bad_one_is_named(tmp_path):
    write_run(tmp_path, processes=(0,))
    path = tmp_path / "p0" / "rank0.jsonl"
    whole = len(analyze.read_lines(tmp_path))
    path.write_text(path.read_text()[:-9])
    assert len(analyze.read_lines(tmp_path)) == whole - 1
    path.write_text("{bad}\n" + path.read_text())
    with pytest.raises(ValueError, match=r"p0/rank0.jsonl line 1: not JSON"):
        analyze.read_lines(tmp_path)


def plain(**changes):
    return {**asdict(exp.Params(shapes=tuple(MOVED), device="cuda", num_processes=2)), **changes}


def results_of(lines):
    fixed = {"min_bytes": MOVED, "datasheet_gb_per_s": 4800.0}
    return {**fixed, **analyze.errors(lines, list(MOVED)), **rmsnorm_times.timing_results(lines, list(MOVED), MOVED)}


def test_oracles_hold_on_good_lines(lines):
    found = rmsnorm_oracles.oracles(plain(), lines, results_of(lines))
    assert [o.name for o in found if not o.passed] == []
    names = {"error_bound", "canaries", "right_after_timing", "one_kernel_a_call", "not_faster_than_memory"}
    assert names <= {oracle.name for oracle in found}
    assert rmsnorm_oracles.notes(plain(), lines) == [f"liger ({s}): ImportError: no" for s in MOVED]


@pytest.mark.parametrize(("kind", "change", "oracle"), [
    ("check", {"num_bad": 3, "passed": False}, "error_bound"), ("recheck", {"unwritten": 1}, "every_element_written"),
    ("check", {"guards_touched": 1}, "nothing_else_written"), ("check", {"input_changed": 1}, "input_unchanged"),
    ("canary", {"rows_wrong": ["nan (row 1)"]}, "canaries"), ("recheck", {"passed": False}, "right_after_timing"),
    ("profile", {"kernels": 2}, "one_kernel_a_call"), ("done", {"kind": "was"}, "processes_ended"),
    ("canary", {"kind": "was"}, "canaries_ran"), ("timing", {"ms": [0.08, 0.08]}, "not_faster_than_memory"),
    ("check", {"passed": False}, "shapes_right"), ("timing", {"mode": "none"}, "shapes_timed"),
])  # fmt: skip
def test_each_oracle_can_fail(lines, kind, change, oracle):
    """0.08 ms for 537 MB, of which 60 MB may stay in L2: 5.96 TB/s through a memory of 4.8."""
    for line in [line for line in lines if line["kind"] == kind]:
        line.update(change)
    found = rmsnorm_oracles.oracles(plain(), lines, results_of(lines))
    assert oracle in {o.name for o in found if not o.passed}

"""What the lines say about gradients, two passes and the shape cache: ratios, residuals, oracles, tables, by hand."""

from dataclasses import asdict

import pytest

from labkit.analyze import rmsnorm_grad_oracles, rmsnorm_parts
from labkit.experiments import triton_rmsnorm as exp
from tests import rmsnorm_part_lines as made
from tests.rmsnorm_part_lines import BACKWARD, COPIED, FORWARD, LEAST, SHAPE, WIDE


@pytest.fixture
def lines():
    return [{**line, "process": process, "rank": 0} for process in (0, 1)
            for line in [{"kind": "device", "l2_bytes": 60_000_000}, *made.part_lines(process)]]  # fmt: skip


def fixed():
    params = exp.Params(device="cuda", **made.PARAMS)
    return rmsnorm_parts.structure(exp.sizes(params.backward_shapes), exp.sizes(params.wide_shapes))


def test_bytes_of_the_parts():
    found = fixed()
    assert found["backward_min_bytes"] == {SHAPE: LEAST}
    assert found["wide_forward_min_bytes"] == {WIDE: FORWARD} and found["wide_backward_min_bytes"] == {WIDE: BACKWARD}
    once = 1024 * 131072 * 2
    assert found["wide_forward_two_pass_bytes"] == {WIDE: FORWARD + once}
    assert found["wide_backward_two_pass_bytes"] == {WIDE: BACKWARD + 2 * once}


def test_share_of_a_copy_compares_bandwidths_round_by_round(lines):
    out = rmsnorm_parts.part_results(lines, fixed())
    # copy / ours by round: 0.95, 0.76, 0.9, 1.0, whose median is 0.925; the least bytes are a little over the copy's.
    assert out["backward_copy_fraction"][SHAPE]["value"] == pytest.approx(0.925 * LEAST / COPIED)
    assert out["backward_copy_fraction"][SHAPE]["n"] == 4
    assert out["backward_gb_per_s"][SHAPE]["value"] == pytest.approx(LEAST / 0.20e6)
    assert out["backward_copy_gb_per_s"][SHAPE]["value"] == pytest.approx(COPIED / 0.19e6)
    assert out["backward_speedup_compile"][SHAPE]["value"] == pytest.approx(1.5)
    assert out["backward_speedup_liger"][SHAPE]["value"] == pytest.approx(2.0)
    assert out["backward_speedup_native"][SHAPE]["value"] == pytest.approx(5.0)
    assert out["backward_noise_floor_pct"][SHAPE] == pytest.approx(1.0)
    assert out["backward_kernels_per_call"] == {"ours": 2} and out["backward_compile_fell_back"] == {SHAPE: False}
    assert out["backward_partial_sum_bytes"] == {SHAPE: 8 * 528 * 1024}
    assert out["wide_forward_copy_fraction"][WIDE]["value"] == pytest.approx(2 / 3, rel=1e-3)
    assert out["wide_backward_copy_fraction"][WIDE]["value"] == pytest.approx(0.6, rel=1e-3)
    assert "wide_forward_partial_sum_bytes" not in out and "wide_forward_liger_ms" not in out
    assert out["backward_goal_missed"] == {}


def test_the_goal_of_the_backward_pass(lines):
    for line in lines:
        if line["kind"] == "part_timing" and line["provider"] == "copy":
            line["ms"] = [0.17, 0.17]  # 0.85, 0.68, 0.85, 0.85 of ours
    out = rmsnorm_parts.part_results(lines, fixed())
    assert out["backward_goal_missed"] == {SHAPE: "85.1 % of copy_"}


def test_prediction_has_a_floor_for_each_kernel_and_its_own_bytes(lines):
    found = rmsnorm_parts.predicted_ms(fixed(), bytes_per_s=4e12, launch_floor_s=1e-5)
    assert found["backward"][SHAPE] == pytest.approx(0.02 + LEAST / 4e9)
    assert found["wide_forward"][WIDE] == pytest.approx(0.02 + (FORWARD + 1024 * 131072 * 2) / 4e9)
    assert found["wide_backward"][WIDE] == pytest.approx(0.03 + (BACKWARD + 2 * 1024 * 131072 * 2) / 4e9)
    out = rmsnorm_parts.part_results(lines, fixed())
    residual = rmsnorm_parts.residuals(out, {"profile": found})
    assert residual["backward"]["profile"][SHAPE] == pytest.approx(100 * (0.20 / (0.02 + LEAST / 4e9) - 1))
    assert rmsnorm_parts.residuals(out, {}) == {}


def test_errors_of_gradients(lines):
    out = rmsnorm_parts.gradient_errors(lines, [SHAPE])
    assert out["backward_bound_used"] == {"dx": {SHAPE: 0.95}, "dweight": {SHAPE: 0.8}}
    assert out["gradient_bound_used"] == {"1": {"dx": 0.1, "dweight": 0.8}, "769": {"dx": 0.9, "dweight": 0.8}}
    assert out["two_pass_widths"] == [65537]
    assert rmsnorm_parts.gradient_errors([], [SHAPE]) == {}, "a run without gradients says nothing about them"


def test_shape_cache(lines):
    out = rmsnorm_parts.cache_results(lines)
    name = f"backward {SHAPE}"
    assert out["cache_timings"] == {"process 0": {name: 14}, "process 1": {name: 0}}
    assert out["cache_chosen"] == {name: "b"} and out["cache_gain_pct"][name] == pytest.approx(5.0)
    assert out["cache_ms"] == {name: {"a": 0.21, "b": 0.20}}


def plain(**changes):
    return {**asdict(exp.Params(device="cuda", num_processes=2, **made.PARAMS)), **changes}


def oracles(lines, **changes):
    results = {**fixed(), "datasheet_gb_per_s": 4800.0, **rmsnorm_parts.part_results(lines, fixed())}
    return rmsnorm_grad_oracles.gradient_oracles(plain(**changes), lines, results)


def test_oracles_hold_on_good_lines(lines):
    found = oracles(lines)
    assert [oracle.name for oracle in found if not oracle.passed] == []
    assert {"gradient_bound", "exact_sums", "same_bits_twice", "other_processes_do_not_tune", "backward_timed",
            "wide_backward_kernels_a_call", "gradients_not_faster_than_memory"} <= {o.name for o in found}  # fmt: skip


def test_records_from_before_the_gradients_have_no_such_oracles(lines):
    old = {name: value for name, value in plain().items() if name not in made.PARAMS}
    assert rmsnorm_grad_oracles.gradient_oracles(old, lines, {}) == []


@pytest.mark.parametrize(("kind", "change", "oracle"), [
    ("grad_check", {"num_bad": 1}, "gradient_bound"), ("grad_check", {"unwritten": 1}, "every_gradient_written"),
    ("grad_check", {"guards_touched": 1}, "no_other_gradient_written"),
    ("grad_check", {"input_changed": 1}, "gradient_inputs_unchanged"),
    ("grad_check", {"bits_changed": 1}, "same_bits_twice"), ("grad_check", {"passed": False}, "gradients_at_widths"),
    ("grad_check", {"passed": False}, "gradients_of_shapes"), ("grad_check", {"passed": False}, "long_rows"),
    ("grad_exact", {"passed": False}, "exact_sums"), ("grad_canary", {"rows_wrong": ["x nan"]}, "gradient_canaries"),
    ("grad_canary", {"kind": "was"}, "gradient_canaries_ran"), ("grad_refusal", {"passed": False}, "empty_refused"),
    ("part_timing", {"part": "none"}, "backward_timed"),
    ("grad_recheck", {"passed": False}, "backward_right_after_timing"),
    ("part_profile", {"kernels": 5}, "backward_kernels_a_call"), ("cache", {"num_timings": 0}, "first_process_tunes"),
    ("cache", {"num_timings": 3}, "other_processes_do_not_tune"),
    ("part_timing", {"ms": [0.10, 0.10]}, "gradients_not_faster_than_memory"),
])  # fmt: skip
def test_each_oracle_can_fail(lines, kind, change, oracle):
    """0.10 ms for 806 MB, of which 60 MB may stay in L2: 7.5 TB/s through a memory of 4.8."""
    for line in [line for line in lines if line["kind"] == kind]:
        line.update(change)
    assert oracle in {found.name for found in oracles(lines) if not found.passed}


def test_a_process_that_never_asks_the_cache_is_noticed(lines):
    found = oracles([line for line in lines if line["kind"] != "cache" or line["process"] == 0])
    assert "other_processes_do_not_tune" in {oracle.name for oracle in found if not oracle.passed}
    assert not [o for o in oracles(lines, num_gpus=2) if "tune" in o.name], "several GPUs may tune at the same time"

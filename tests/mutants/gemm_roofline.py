"""Errors planted in the product lab, and the test that must notice each."""

CALC, MODEL = "labkit/calc/gemm_time.py", "labkit/analyze/gemm_model.py"
LINES, ORACLES = "labkit/analyze/gemm.py", "labkit/analyze/gemm_oracles.py"
OPERANDS, CHECK, TIMING = (f"labkit/workers/gemm_{name}.py" for name in ("operands", "check", "timing"))
T_CALC, T_LINES, T_WORK = (f"tests/test_{name}.py" for name in ("calc_gemm_time", "analyze_gemm", "workers_gemm"))
IDEAL = f"{T_LINES}::test_an_ideal_machine_comes_out_as_it_went_in"
CHECKER = f"{T_WORK}::test_checker_notices_one_wrong_element_a_lost_block_and_nan"

MUTANTS = [
    dict(name="transfer_and_arithmetic_added", file=CALC, old="+ max(arithmetic, transfer)",
         new="+ arithmetic + transfer", tests=[f"{T_CALC}::test_both_roofs_meet_at_critical_rows"]),
    dict(name="idle_expert_reads_its_weight", file=CALC, old="used = [count for count in counts if count]",
         new="used = [max(1, count) for count in counts]",
         tests=[f"{T_CALC}::test_grouped_work_counted_element_by_element"]),
    dict(name="last_wave_not_rounded_up", file=CALC, old="waves = -(-tiles // slots)",
         new="waves = max(1, tiles // slots)", tests=[f"{T_CALC}::test_waves_by_hand"]),
    dict(name="knee_ignores_the_slope_of_the_floor", file=CALC, old="/ (steep_slope_s - flat_slope_s)",
         new="/ steep_slope_s", tests=[f"{T_CALC}::test_knee_by_hand_and_where_there_is_none"]),
    dict(name="slowest_memory_roof_taken", file=LINES,
         old='1e9 * max(measured["copy_gb_per_s"][pick]', new='1e9 * min(measured["copy_gb_per_s"][pick]',
         tests=[IDEAL]),
    dict(name="result_not_counted_in_the_floor", file=LINES,
         old='slope_s = (case.widths["bytes_a"] * case.k + case.widths["bytes_c"] * case.n)',
         new='slope_s = (case.widths["bytes_a"] * case.k)', tests=[IDEAL]),
    dict(name="residual_upside_down", file=LINES, old="100 * (ms / predicted[case][m] - 1)",
         new="100 * (predicted[case][m] / ms - 1)",
         tests=[f"{T_LINES}::test_half_the_bandwidth_moves_the_knee_and_shows_as_residual"]),
    dict(name="tile_not_turned_back", file=LINES, old="return int(seen[2]), int(seen[1])",
         new="return int(seen[1]), int(seen[2])", tests=[f"{T_LINES}::test_one_more_row_starts_a_wave"]),
    dict(name="percentile_of_too_few_samples", file=LINES, old="if len(ordered) >= P99_SAMPLES else None",
         new="if ordered else None", tests=[f"{T_LINES}::test_percentile_needs_a_hundred_samples"]),
    dict(name="processes_mixed", file=LINES, old="parts.setdefault(line[\"process\"], []).extend",
         new="parts.setdefault(0, []).extend",
         tests=[f"{T_LINES}::test_rounds_of_a_process_are_joined_and_processes_kept_apart"]),
    dict(name="fp8_result_of_one_byte", file=MODEL, old='"fp8": (1, 2)', new='"fp8": (1, 1)',
         tests=["tests/test_exp_gemm_roofline.py::test_prediction_by_hand"]),
    dict(name="too_good_a_time_is_fine", file=ORACLES, old="passed=shares[lowest] >= allowed",
         new="passed=shares[lowest] >= 0", tests=[f"{T_LINES}::test_oracles_notice"]),
    dict(name="uncounted_flop_is_fine", file=ORACLES, old="passed=bool(with_flop) and not wrong",
         new="passed=not wrong", tests=[f"{T_LINES}::test_oracles_notice"]),
    dict(name="left_out_points_forgotten", file=ORACLES, old="len(timed | left) + gone", new="expected",
         tests=[f"{T_LINES}::test_oracles_notice"]),
    dict(name="weights_fit_the_cache", file=OPERANDS, old="return max(2, -(-4 * cache_bytes // weight_bytes) + 1)",
         new="return 2", tests=[f"{T_WORK}::test_weights_rotate_through_more_than_four_times_the_cache"]),
    dict(name="loop_multiplies_by_the_first_expert", file=OPERANDS, old="weights[expert].t()", new="weights[0].t()",
         tests=[f"{T_WORK}::test_grouped_call_and_loop_give_each_expert_its_own_weight"]),
    dict(name="nan_passes_the_bound", file=CHECK, old="(~(used <= 1)).sum()", new="(used.clamp(max=9) > 10).sum()",
         tests=[CHECKER]),
    dict(name="bound_of_matrix_units_on_a_cpu", file=CHECK, old="unit = 2.0**-22 if on_gpu else 2.0**-24",
         new="unit = 2.0**-22", tests=[f"{T_WORK}::test_bound_is_gamma_k_and_one_rounding"]),
    dict(name="fp8_bound_ten_times_too_wide", file=CHECK, old="+ 2 * (k / FP8_STEP_PRODUCTS) * 2.0**-13",
         new="+ 20 * (k / FP8_STEP_PRODUCTS) * 2.0**-13",
         tests=[f"{T_WORK}::test_fp8_result_is_judged_as_a_whole"]),
    dict(name="warm_weights_rotate", file=TIMING, old="return 0 if is_warm else self.index",
         new="return self.index", tests=[f"{T_WORK}::test_clock_rotates_when_cold_and_stays_when_warm"]),
    dict(name="first_call_kept_as_a_sample", file=TIMING, old="for ms in found[1:]]", new="for ms in found]",
         tests=[f"{T_WORK}::test_clock_rotates_when_cold_and_stays_when_warm"]),
]  # fmt: skip

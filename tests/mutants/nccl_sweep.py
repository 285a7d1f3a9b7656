"""Planted errors in the collective lab: mistakes people make when they time, check or read collectives."""

CALLS, TIMING, CELLS = (f"labkit/workers/collective_{name}.py" for name in ("calls", "timing", "cells"))
FILES, RESULTS, PAIRS, ORACLES, PROGRAM = (
    f"labkit/analyze/collective_{name}.py" for name in ("files", "results", "pairs", "oracles", "program"))
FIT, PLAN = "labkit/calc/collective_fit.py", "labkit/calc/collective_plan.py"
TESTS, TEXT, LOG = (f"labkit/analyze/nccl_{name}.py" for name in ("tests", "tests_text", "log"))
CASES = "test_analyze_cases::test_expected_answer"


def plant(name, file, old, new, *tests):
    """One planted error; tests are `file::test` without `tests/` and `.py`."""
    paths = ["tests/" + test.replace("::", ".py::") for test in tests]
    return dict(name=name, file=file, old=old, new=new, tests=paths)


MUTANTS = [
    plant("all_reduce_moves_its_bytes_once", FIT, '"all_reduce": 2 * (n - 1)', '"all_reduce": (n - 1)',
          "test_calc_collective_fit::test_fewest_bytes_on_the_wire"),
    plant("the_held_out_sizes_are_fitted_too", FIT, "fitted, held = pairs[::2], pairs[1::2]",
          "fitted, held = pairs, pairs[1::2]",
          "test_calc_collective_fit::test_a_size_that_is_held_out_cannot_move_the_fit"),
    plant("large_messages_outweigh_small_ones", FIT, "x = [1 / time for time in times_s]", "x = [1.0 for _ in times_s]",
          "test_calc_collective_fit::test_small_messages_count_as_much_as_large_ones"),
    plant("the_crossing_is_on_the_wrong_side", FIT, '(second["alpha_s"] - first["alpha_s"]) / slopes',
          '(first["alpha_s"] - second["alpha_s"]) / slopes',
          "test_calc_collective_fit::test_lines_cross_where_a_search_says"),
    plant("a_forced_tree_is_asked_for_a_broadcast", PLAN, '"sizes": {"all_reduce": list(sizes_bytes)}, **common',
          '"sizes": {name: list(sizes_bytes) for name in collectives}, **common',
          "test_calc_collective_fit::test_only_forced_cells_force_and_only_all_reduce"),
    plant("only_the_lower_bound_of_channels_is_set", PLAN, 'for bound in ("MIN", "MAX")', 'for bound in ("MIN",)',
          "test_calc_collective_fit::test_only_forced_cells_force_and_only_all_reduce"),
    plant("receives_from_the_rank_after", CALLS, "before = (rank + 1) % num_ranks, (rank - 1) % num_ranks",
          "before = (rank + 1) % num_ranks, (rank + 1) % num_ranks",
          "test_workers_collectives::test_a_right_collective_has_no_wrong_element"),
    plant("every_rank_has_the_same_data", CALLS, "    return ((index * (rank + 3) + 5 * rank + 1) % 251).float()",
          "    return ((index * 3 + 1) % 251).float()",
          "test_workers_collectives::test_data_are_exact_and_differ_by_rank_and_place"),
    plant("only_the_first_piece_is_compared", CALLS, "for start in range(0, count, CHUNK):",
          "for start in range(0, min(count, CHUNK), CHUNK):",
          "test_workers_collectives::test_large_buffers_are_filled_and_compared_piece_by_piece"),
    plant("the_warm_up_is_left_out", TIMING, "for _ in range(num_warmup):", "for _ in range(0):",
          "test_workers_collectives::test_the_clock_times_every_call_and_only_calls"),
    plant("a_mistake_of_ours_is_called_a_refusal", CELLS, 'status = "refused" if refused else "failed"',
          'status = "refused"', "test_workers_collectives::test_a_cell_ends_measured_refused_late_or_broken"),
    plant("the_fastest_rank_counts", FILES, "times = [max(sample)", "times = [min(sample)",
          "test_analyze_collectives::test_the_slowest_rank_of_each_sample_counts"),
    plant("pairs_that_overlap_are_called_apart", PAIRS, "all(first[1] <= second[0]", "all(first[0] <= second[0]",
          "test_analyze_collectives::test_pairs_that_did_not_run_as_said_are_noticed"),
    plant("samples_without_contention_count_as_together", PAIRS, 'return kept or list(row["times_us"])',
          'return list(row["times_us"])',
          "test_analyze_collectives::test_samples_outside_the_common_time_do_not_count"),
    plant("the_smaller_median_is_a_clear_winner", RESULTS, 'at[first]["p90"] < other["p10"]',
          'at[first]["value"] < other["value"]',
          "test_analyze_collectives::test_a_winner_is_clear_only_beyond_the_spread"),
    plant("any_number_of_bytes_will_do", ORACLES, "passed=shares[worst] >= 1,", "passed=shares[worst] >= 0,",
          "test_analyze_collectives::test_each_oracle_can_fail"),
    plant("nothing_compared_is_nothing_wrong", ORACLES,
          'passed = results["wrong_elements"] == 0 and results["num_checked"] > 0',
          'passed = results["wrong_elements"] == 0',
          "test_analyze_collectives::test_nothing_checked_is_no_pass"),
    plant("the_in_place_column_is_taken", PROGRAM, 'SIDE = "out_of_place"', 'SIDE = "in_place"',
          "test_exp_nccl_sweep::test_nccl_tests_is_the_engine_where_it_is_found"),
    plant("protocols_are_numbered_from_simple", LOG, 'PROTOCOLS = ("LL", "LL128", "Simple")',
          'PROTOCOLS = ("Simple", "LL", "LL128")', "test_analyze_nccl_log::test_the_choice_in_every_known_form"),
    plant("no_check_is_a_pass", TESTS, "if not failed and validated and finished and oob is not None:",
          "if not failed and finished and oob is not None:", CASES),
    plant("all_ranks_are_in_one_operation", TESTS, '"nranks": total // num_groups if even else None',
          '"nranks": total', CASES),
    plant("cpu_time_is_taken_for_device_time", TEXT, '"time_us": None if layout.is_cpu_time else time_us',
          '"time_us": time_us', CASES),
    plant("ranks_that_are_listed_are_all_ranks", TEXT, "    if not _all_ranks(run, rows):\n        numbers = []\n", "",
          "test_analyze_nccl_tests::test_a_list_of_ranks_that_is_cut_is_no_number_of_ranks"),
    plant("a_warning_is_an_error", TEXT, 'if failure and finished and answer["passed"] is not False:', "if False:",
          "test_analyze_nccl_tests::test_a_warning_in_a_run_that_passed_is_no_error"),
    plant("one_side_is_always_the_out_of_place_one", TEXT,
          '("in_place",) if one_side and layout.num_sides == 1 else SIDES', "SIDES",
          "test_analyze_nccl_tests::test_one_side_only_and_what_was_chosen"),
    plant("a_secret_in_a_value_is_told", "labkit/records/redact.py",
          "_SECRET_NAME.search(name) or _SECRET_VALUE.search(value)", "_SECRET_NAME.search(name)",
          "test_analyze_nccl_tests::test_secrets_are_named_and_not_told"),
]

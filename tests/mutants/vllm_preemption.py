"""Errors planted in the preemption lab, and the test that must notice each."""

RUNS, STEPS = "labkit/calc/scheduler_runs.py", "labkit/analyze/vllm_iterations.py"
LINES, RESULTS = "labkit/analyze/preemption_lines.py", "labkit/analyze/preemption.py"
ORACLES, RELEASE = "labkit/analyze/preemption_oracles.py", "labkit/launch/release.py"
ROUND = "labkit/launch/observed_round.py"
PLAN, TELL = "labkit/calc/capacity_plan.py", "labkit/calc/preemption_prediction.py"
T_STEPS, T_LAB = "tests/test_analyze_vllm_iterations.py", "tests/test_analyze_preemption.py"
T_PLAN, T_TELL = "tests/test_calc_capacity_plan.py", "tests/test_calc_preemption_prediction.py"
T_RELEASE, T_MODEL = "tests/test_launch_release.py", "tests/test_calc_scheduler.py"
T_EXP = "tests/test_exp_vllm_preemption.py"
REAL = f"{T_STEPS}::test_the_model_makes_every_step_that_vllm_made"
NOTICE, COUNTS = f"{T_LAB}::test_oracles_notice", f"{T_LAB}::test_counts_that_went_in_come_out"


def plant(name, file, old, new, *tests):
    return dict(name=name, file=file, old=old, new=new, tests=list(tests))


MUTANTS = [
    plant("engines_steps_are_mixed", STEPS, "by_engine.setdefault(step.engine, [])", "by_engine.setdefault(0, [])",
          f"{T_STEPS}::test_each_engine_counts_its_own_steps"),
    plant("an_arrival_is_a_step_late", RUNS, "pending[0][1] <= now and", "pending[0][1] < now and", REAL),
    plant("an_idle_engine_waits_for_the_next_request", RUNS,
          "now = engine.num_steps - steps if not engine.is_idle else max(engine.num_steps - steps, pending[0][1])",
          "now = engine.num_steps - steps", f"{T_MODEL}::test_an_idle_engine_makes_no_steps"),
    plant("the_search_stops_one_early", RUNS, "            high = low + reach - 1", "            high = low",
          f"{T_PLAN}::test_one_above_the_quiet_number_is_not_quiet"),
    plant("a_preempted_prompt_counts_as_a_prompt_again", "labkit/calc/scheduler.py",
          "if sequence.num_output == 0]", "if sequence.num_output == 0 or tokens > 1]", REAL),
    plant("the_trace_sees_the_cache_before_the_ends", "labkit/calc/scheduler.py",
          "usage=self.pool.usage))", "usage=self.peak_usage))",
          f"{T_MODEL}::test_a_trace_adds_up_to_the_counts"),
    plant("dummy_steps_are_steps", STEPS, 'if match["dummy"]:', "if False:", f"{T_STEPS}::test_both_forms_of_the_line"),
    plant("arrivals_one_request_behind", STEPS, "len(arrivals) * prompt_tokens < seen",
          "len(arrivals) * prompt_tokens <= seen", REAL),
    plant("generation_tokens_are_not_compared", STEPS,
          'TOKENS = ("context_requests", "context_tokens", "generation_requests", "generation_tokens")',
          'TOKENS = ("context_requests", "context_tokens", "generation_requests")', COUNTS,
          f"{T_STEPS}::test_both_forms_of_the_line"),
    plant("missing_steps_are_equal", STEPS, "len(differ) + abs(len(engine.trace) - len(steps))", "len(differ)",
          f"{T_STEPS}::test_one_step_that_differs_is_one_difference"),
    plant("the_last_token_is_computed", STEPS, "num_requests * (prompt_tokens + output_tokens - 1)",
          "num_requests * (prompt_tokens + output_tokens)", REAL),
    plant("any_use_of_the_cache_is_near_enough", STEPS, "> 0.0501", "> 5",
          f"{T_STEPS}::test_use_of_the_cache_is_compared_where_the_log_has_it"),
    plant("times_count_the_pause", LINES, "sent_s=released_s if held else answer.sent_s", "sent_s=answer.sent_s",
          f"{T_LAB}::test_times_from_the_release"),
    plant("the_wall_counts_the_pause", LINES, '"wall_s": ended_s - released_s', '"wall_s": ended_s - started_s',
          f"{T_LAB}::test_times_from_the_release"),
    plant("a_page_that_cannot_be_used_is_good", LINES, 'None if pair["valid"] else pair["error"]', "None",
          f"{T_LAB}::test_a_restarted_server_is_noticed"),
    plant("the_round_that_preempts_calibrates", "labkit/analyze/preemption_costs.py",
          'return [("tpot", few[0]), ("tpot", large), ("ttft", large)] if few else []',
          'return [("tpot", contrast(params)[0]), ("tpot", large), ("ttft", large)] if few else []',
          f"{T_LAB}::test_unit_costs_that_went_in_come_out"),
    plant("ttft_is_called_lower_when_higher", RESULTS, '100 * (1 - value("ttft", small) / value("ttft", large))',
          '100 * (1 - value("ttft", small) / value("ttft", small))', f"{T_EXP}::test_ratios_come_from_both_caches"),
    plant("failed_requests_pass", ORACLES, 'not (r["success"] and', 'not (True and', NOTICE),
    plant("short_outputs_pass", ORACLES, 'and r["output_tokens"] == line["output_tokens"])', "and True)", NOTICE),
    plant("the_prediction_is_not_asked", ORACLES,
          '{label: [line["counts"]["preemptions"] for line in rounds] for label, rounds in points.items()}',
          '{label: [predicted["points"][label]["preemptions"]] * len(r) for label, r in points.items()}', NOTICE),
    plant("peaks_above_the_model_pass", ORACLES, "0 < value <= bound[label] + TOLERANCE_PCT", "0 < value", NOTICE),
    plant("one_above_may_be_quiet", ORACLES, "passed=bool(above)", "passed=above is not None",
          f"{T_LAB}::test_a_planner_that_is_too_careful_is_noticed"),
    plant("released_before_all_are_there", RELEASE, ">= count:", ">= 1:",
          f"{T_RELEASE}::test_the_release_waits_for_the_last_answer_to_begin"),
    plant("never_paused", RELEASE, 'status = server.post("/pause?mode=keep")', "status = 200",
          f"{T_RELEASE}::test_nothing_starts_before_the_release"),
    plant("a_server_that_does_not_go_on_is_believed", RELEASE, "if is_held and status != 200:", "if False:",
          f"{T_RELEASE}::test_a_server_that_does_not_go_on_is_a_failure"),
    plant("the_null_block_is_planned_with", PLAN, "usable_blocks(num_blocks=num_blocks) if num_blocks else 0",
          "num_blocks", f"{T_PLAN}::test_limits"),
    plant("the_weights_are_not_there", PLAN, 'taken = require_int("weight_bytes", weight_bytes, least=0) + ',
          'taken = 0 * require_int("weight_bytes", weight_bytes, least=0) + ',
          f"{T_PLAN}::test_bytes_left_for_the_cache"),
    plant("a_past_computed_again_is_free", TELL,
          "(step.context_tokens + step.generation_tokens - step.generation_requests)", "step.context_tokens",
          f"{T_TELL}::test_a_step_that_computes_a_past_again_pays_for_it"),
    plant("a_log_is_taken_before_the_marker_is_in_it", ROUND, "find_marker(told := server.log_text()[said:])) < 0 or",
          "find_marker(told := server.log_text()[said:])) < -1 or", f"{T_RELEASE}::test_a_load_is_seen_from_all_sides"),
    plant("the_marker_may_stand_anywhere", STEPS, "if computed >= after_tokens and found", "if found",
          f"{T_STEPS}::test_the_marker_is_a_lone_prompt_behind_the_tokens_that_were_needed"),
    plant("tpot_counts_the_first_token", TELL, "(b - a) / (output_tokens - 1)", "(b - a) / output_tokens",
          f"{T_TELL}::test_times_by_hand"),
]

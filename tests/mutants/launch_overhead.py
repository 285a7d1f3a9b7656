"""Errors planted in the launch lab, and the test that must notice each."""

LINES, WORKER = "labkit/analyze/launch_chain.py", "labkit/workers/launch_chain.py"
T_LINES, T_WORK = "tests/test_analyze_launch_chain.py", "tests/test_workers_launch_chain.py"
SAME = f"{T_WORK}::test_all_ways_give_the_same_bits"
COSTS = f"{T_LINES}::test_costs_that_went_in_come_out"
NOTICE = f"{T_LINES}::test_oracles_notice"

MUTANTS = [
    dict(name="paired_drops_a_last_single_step", file=WORKER, old="        if length % 2:\n            torch.mul",
         new="        if False:\n            torch.mul", tests=[SAME]),
    dict(name="eager_starts_with_the_addition", file=WORKER,
         old="            if step % 2 == 0:\n                torch.mul",
         new="            if step % 2:\n                torch.mul", tests=[SAME]),
    dict(name="chain_writes_into_its_input", file=WORKER, old="buffers.pong\n        for step in range(length):",
         new="buffers.x\n        for step in range(length):", tests=[SAME]),
    dict(name="buffers_not_poisoned", file=WORKER, old='            buffers.pong.fill_(float("nan"))\n', new="",
         tests=[f"{T_WORK}::test_a_result_that_is_left_over_is_not_taken_for_a_new_one"]),
    dict(name="compared_with_itself", file=WORKER, old="out.view(torch.int32) != expected.view(torch.int32)",
         new="out.view(torch.int32) != out.view(torch.int32)",
         tests=[f"{T_WORK}::test_a_planted_error_is_judged_wrong"]),
    dict(name="bound_of_the_exact_value_too_wide", file=WORKER, old="return 2 * 2.0**-24 *", new="return 2 * 2.0**-4 *",
         tests=[f"{T_WORK}::test_exact_value_with_fractions"]),
    dict(name="exact_value_without_the_last_halving", file=WORKER, old="return value * 0.5 if length % 2 else value",
         new="return value", tests=[f"{T_WORK}::test_exact_value_with_fractions"]),
    dict(name="operators_counted_twice", file=WORKER, old="        self.count += 1\n", new="        self.count += 2\n",
         tests=[f"{T_WORK}::test_operators_are_counted_at_the_dispatcher"]),
    dict(name="gpu_launch_and_work_added", file=LINES, old='node_s = max(run_us, costs_us["node"]) * 1e-6',
         new='node_s = (run_us + costs_us["node"]) * 1e-6', tests=[f"{T_LINES}::test_prediction_by_hand"]),
    dict(name="cpu_hides_launches", file=LINES,
         old='else ops[name][str(n)] * (costs_us["op" if name in STEPS_PER_OP else name] + run_us)',
         new='else ops[name][str(n)] * max(costs_us["op" if name in STEPS_PER_OP else name], run_us)',
         tests=[f"{T_LINES}::test_on_a_cpu_launch_and_work_add_up"]),
    dict(name="fixed_cost_taken_for_the_step", file=LINES,
         old='{"fixed_us": line["intercept"], "step_us": line["slope"]}',
         new='{"fixed_us": line["slope"], "step_us": line["intercept"]}', tests=[COSTS]),
    dict(name="gain_upside_down", file=LINES, old='round(eager[size][n]["value"] / q["value"], 4)',
         new='round(q["value"] / eager[size][n]["value"], 4)', tests=[COSTS]),
    dict(name="one_hidden_size_is_enough", file=LINES,
         old='if eager[str(size)]["step_us"] <= HIDDEN_RATIO *', new='if eager[str(size)]["step_us"] <= 99 *',
         tests=[COSTS, f"{T_LINES}::test_launches_that_stay_visible_have_no_size"]),
    dict(name="break_even_adds_the_costs", file=LINES, old='(compiled["fixed_us"] - eager["fixed_us"])',
         new='(compiled["fixed_us"] + eager["fixed_us"])', tests=[COSTS]),
    dict(name="wrong_bits_pass", file=LINES, old='               sum(line["num_bad"] for line in exact)),',
         new="               0),", tests=[NOTICE]),
    dict(name="missing_chains_pass", file=LINES, old="len(asked & (timed | refused))", new="len(asked)",
         tests=[NOTICE]),
    dict(name="one_process_stands_for_all", file=LINES,
         old='params["num_processes"],\n               len(of_kind(lines, "done"))',
         new='params["num_processes"],\n               params["num_processes"]', tests=[NOTICE]),
]  # fmt: skip

"""Planted errors in the FSDP lab: each is a mistake people make when they shard, count, compare or leave."""

CASES, STEPS, EXIT = (f"labkit/workers/{name}.py" for name in ("fsdp_cases", "fsdp_steps", "group_exit"))
TRACES, RESULTS, ORACLES = (f"labkit/analyze/fsdp_{name}.py" for name in ("traces", "results", "oracles"))
JOB_EXIT, FORMULAS, PREDICTION = "labkit/analyze/job_exit.py", "labkit/calc/fsdp.py", "labkit/calc/fsdp_prediction.py"
EVERY_CALL = "test_workers_fsdp::test_every_call_and_every_byte_is_predicted"
TRAINS = "test_workers_fsdp::test_a_sharded_model_trains_as_an_unsharded_one"
BY_HAND = "test_analyze_fsdp::test_a_step_by_hand"


def plant(name, file, old, new, *tests):
    """One planted error; tests are `file::test` without `tests/` and `.py`."""
    paths = ["tests/" + test.replace("::", ".py::") for test in tests]
    return dict(name=name, file=file, old=old, new=new, tests=paths)


MUTANTS = [
    plant("blocks_stay_whole_after_forward", CASES,
          'reshard_after_forward=not case["keeps_parameters"]', "reshard_after_forward=False", EVERY_CALL),
    plant("only_the_root_is_wrapped", CASES,
          'list(model.blocks) if case["wrap"] == "block" else []', "[]", EVERY_CALL),
    plant("no_prefetch_still_prefetches", CASES,
          'if case["prefetch"] != "PRE":', 'if case["prefetch"] == "POST":', EVERY_CALL),
    plant("post_never_prefetches", CASES,
          'if case["prefetch"] == "POST":\n', "if False:\n", EVERY_CALL),
    plant("forward_prefetch_of_itself", CASES,
          "module.set_modules_to_forward_prefetch([following])", "module.set_modules_to_forward_prefetch([module])",
          EVERY_CALL),
    plant("the_template_is_sharded_itself", CASES,
          "model = copy.deepcopy(template)", "model = template",
          "test_workers_fsdp::test_the_baseline_is_not_sharded"),
    plant("moments_not_counted", CASES,
          '"optimizer": _local_bytes(moments)', '"optimizer": _local_bytes(moments[:1])', EVERY_CALL),
    plant("whole_tensors_counted_as_shards", CASES,
          "tensor.to_local() if isinstance(tensor, DTensor) else tensor for tensor in tensors",
          "tensor.full_tensor() if isinstance(tensor, DTensor) else tensor for tensor in tensors", EVERY_CALL),
    plant("gradients_of_the_step_before_stay", STEPS,
          "    trainer.optimizer.zero_grad(set_to_none=True)\n    loss = loss_of(trainer.model, rows)\n"
          "    loss.backward()",
          "    loss = loss_of(trainer.model, rows)\n    loss.backward()",
          "test_workers_fsdp::test_gradients_are_of_this_step_alone"),
    plant("the_reference_sees_one_ranks_samples", STEPS,
          'num_samples = session.world_size * params["microbatch"]', 'num_samples = params["microbatch"]',
          "test_workers_fsdp::test_the_reference_takes_the_whole_batch"),
    plant("the_reference_has_another_learning_rate", STEPS,
          'dtype=torch.float32),\n                           learning_rate=params["learning_rate"])',
          'dtype=torch.float32),\n                           learning_rate=2 * params["learning_rate"])', TRAINS),
    plant("the_group_goes_before_the_peers", EXIT,
          "        session.barrier()\n        dist.destroy_process_group()",
          "        dist.destroy_process_group()\n        session.barrier()",
          "test_workers_fsdp::test_the_right_order_waits_for_peers_before_it_destroys"),
    plant("exposed_is_what_overlaps", TRACES,
          '"exposed_ms": total_ns(subtract(busy, compute))', '"exposed_ms": total_ns(subtract(compute, busy))',
          BY_HAND),
    plant("sum_instead_of_union", TRACES,
          '"comm_ms": total_ns(comm) / 1e6', '"comm_ms": float(dur[cls == "comm"].sum()) / 1e6', BY_HAND),
    plant("transfer_is_the_longest_rank", TRACES,
          "transfer += min(call)", "transfer += max(call)",
          "test_analyze_fsdp::test_waiting_is_what_exceeds_the_last_rank"),
    plant("the_rank_that_waited_most_is_shown", RESULTS,
          "min(each, key=lambda facts", "max(each, key=lambda facts",
          "test_analyze_fsdp::test_the_median_process_and_its_least_waiting_rank_are_shown"),
    plant("limiter_that_never_waits_is_a_limiter", RESULTS,
          "waits[on] > waits[off] == 0", "waits[on] >= waits[off] == 0", "test_analyze_fsdp::test_verdicts"),
    plant("a_written_result_is_success", RESULTS,
          'early["exitcode"] != 0 and early["results_written"] == world_size', 'early["results_written"] == world_size',
          "test_analyze_fsdp::test_verdicts_on_leaving"),
    plant("a_left_process_is_clean", JOB_EXIT,
          "exitcode == 0 and not found and not left", "exitcode == 0 and not found",
          "test_analyze_fsdp::test_an_exit_is_clean_only_if_nothing_is_left"),
    plant("root_is_gathered_again", FORMULAS,
          'calls.append(["backward", "reduce_scatter", f"blocks.{i}", done])',
          'calls += [["backward", "reduce_scatter", f"blocks.{i}", done]] + [["backward", "all_gather", "root", done]] '
          "* (i == 0)", "test_calc_fsdp::test_the_reports_counts"),
    plant("post_asks_like_pre", FORMULAS,
          'start if gathers == "PRE" else done', "start",
          "test_calc_fsdp::test_prefetch_moves_a_gather_across_one_blocks_products"),
    plant("padding_forgotten", FORMULAS,
          "-(-shape[0] // num_ranks) * num_ranks * prod(shape[1:])", "prod(shape)",
          "test_calc_fsdp::test_messages_and_shards_equal_the_written_out_ones"),
    plant("one_moment", PREDICTION,
          '"optimizer": 8}', '"optimizer": 4}',
          "test_calc_fsdp::test_state_is_zero_stage_3_and_traffic_is_three_passes_less_the_root"),
    plant("collectives_side_by_side", PREDICTION,
          "start = max(now, busy_until)", "start = now",
          "test_calc_fsdp::test_exposed_time_equals_a_walk_in_small_steps"),
    plant("movement_bound_without_the_root", ORACLES,
          "return 2 * math.sqrt(gradient_bound)", "return 2 * gradient_bound",
          "test_analyze_fsdp::test_movement_bound_holds_where_gradients_have_errors"),
]

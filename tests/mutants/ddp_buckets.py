"""Planted errors in the DDP lab: each is a mistake people make in training loops, measurements or their reading."""

TRAINER, STEPS, GRADIENTS = (f"labkit/workers/{name}.py" for name in ("ddp_trainer", "ddp_steps", "gradients"))
RANK_FILES, RESULTS, ORACLES = (f"labkit/analyze/ddp_{name}.py" for name in ("rank_files", "results", "oracles"))
PREDICTION = "labkit/calc/ddp_prediction.py"
ONE_RANK = "test_workers_ddp::test_a_run_of_one_rank_passes_every_oracle"
RANDOM_MODELS = "test_workers_ddp::test_prediction_equals_a_live_reducer_on_random_models"


def plant(name, file, old, new, *tests):
    """One planted error; tests are `file::test` without `tests/` and `.py`."""
    paths = ["tests/" + test.replace("::", ".py::") for test in tests]
    return dict(name=name, file=file, old=old, new=new, tests=paths)


MUTANTS = [
    plant(
        "loss_not_divided_by_the_micro_steps", TRAINER,
        "loss = self.loss(ddp, micro_rows) / num_micro", "loss = self.loss(ddp, micro_rows)",
        ONE_RANK,
    ),
    plant(
        "no_sync_around_backward_only", TRAINER,
        """            with ddp.no_sync() if is_silent else nullcontext():
                loss = self.loss(ddp, micro_rows) / num_micro
""",
        """            loss = self.loss(ddp, micro_rows) / num_micro
            with ddp.no_sync() if is_silent else nullcontext():
""",
        ONE_RANK,
    ),
    plant(
        "no_sync_on_the_last_micro_step_too", TRAINER,
        "sync == \"last\" and i < num_micro - 1", 'sync == "last"',
        ONE_RANK,
    ),
    plant(
        "gradients_of_the_step_before_stay", TRAINER,
        "        self.model.zero_grad(set_to_none=True)\n        self.micro_rows", "        self.micro_rows",
        ONE_RANK,
    ),
    plant(
        "every_micro_step_sees_the_same_samples", TRAINER,
        "list(rows.chunk(num_micro))", "[rows[: len(rows) // num_micro]] * num_micro",
        ONE_RANK,
    ),
    plant(
        "every_rank_reads_rank_0s_slice", TRAINER,
        "start = (step * self.session.world_size + self.session.rank) * samples_per_rank",
        "start = step * self.session.world_size * samples_per_rank",
        "test_workers_ddp::test_ranks_get_disjoint_slices_of_one_batch",
    ),
    plant(
        "targets_are_the_inputs", TRAINER,
        "rows[:, 1:].flatten()", "rows[:, :-1].flatten()",
        "test_workers_ddp::test_the_loss_predicts_the_next_token",
    ),
    plant(
        "the_timed_steps_train", STEPS,
        "make_trainer(session, params, learning_rate=0.0)",
        'make_trainer(session, params, learning_rate=params["learning_rate"])',
        ONE_RANK,
    ),
    plant(
        "clock_stops_before_the_device", STEPS,
        "        session.synchronize()\n        time_s = time.perf_counter() - start\n",
        "        time_s = time.perf_counter() - start\n        session.synchronize()\n",
        "test_workers_ddp::test_a_timed_step_waits_for_the_device",
    ),
    plant(
        "ranks_start_when_they_like", STEPS,
        "        session.barrier()\n        carried = loopback_bytes()", "        carried = loopback_bytes()",
        "test_workers_ddp::test_a_timed_step_waits_for_the_device",
    ),
    plant(
        "cap_not_given_to_ddp", TRAINER,
        "bucket_cap_mb=cap_mib", "bucket_cap_mb=None",
        RANDOM_MODELS,
    ),
    plant(
        "rebuilt_and_initial_buckets_confused", TRAINER,
        '_numbers(log.get("rebuilt_bucket_sizes"))', '_numbers(log["bucket_sizes"])',
        RANDOM_MODELS,
    ),
    plant(
        "digest_of_the_name_not_the_bytes", GRADIENTS,
        "hashlib.sha256(tensor.detach().contiguous().cpu().view(torch.uint8).numpy().data)",
        "hashlib.sha256(name.encode())",
        "test_workers_ddp::test_names_differing_sees_one_changed_bit_on_one_rank",
    ),
    plant(
        "rank_0_alone_counts", RANK_FILES,
        "return [max(step) for step in zip(*times_ms, strict=True)]", "return list(times_ms[0])",
        "test_analyze_ddp::test_a_step_takes_as_long_as_its_slowest_rank",
    ),
    plant(
        "rate_is_a_median_of_rates", RESULTS,
        'rate = {end: tokens / time[of] * 1e3 for end, of in (("value", "value"), ("p10", "p90"), ("p90", "p10"))}',
        'rate = quantity([tokens / ms * 1e3 for ms in pooled], "tokens/s")',
        "test_analyze_ddp::test_rate_and_time_invert_to_each_other_for_an_even_sample",
    ),
    plant(
        "waiting_passes_for_communication", RESULTS,
        "places = [(min(ranks), process, ranks.index(min(ranks)))", "places = [(ranks[0], process, 0)",
        "test_analyze_ddp::test_recorded_numbers_come_from_the_rank_that_waits_least",
    ),
    plant(
        "compute_after_the_first_collective_counts_as_before", RANK_FILES,
        "before = union(pieces.clip(max=first))", "before = pieces",
        "test_analyze_ddp::test_first_communication_by_hand",
    ),
    plant(
        "slices_may_repeat", RESULTS,
        "        and len({digest for row in rows for digest in row[\"micro_digests\"]}) == len(ids)\n", "",
        "test_analyze_ddp::test_slices_must_cover_the_batch_once",
    ),
    plant(
        "a_comparison_with_nothing_passes", ORACLES,
        "passed=bool(seen) and max(seen.values()) <= bound", "passed=all(value <= bound for value in seen.values())",
        "test_analyze_ddp::test_a_check_with_nothing_to_compare_fails",
    ),
    plant(
        "wire_bytes_without_the_ring_factor", PREDICTION,
        "case: wire_bytes_per_rank(sizes_bytes=sizes, world_size=world_size)", "case: float(sum(sizes))",
        "test_analyze_ddp::test_prediction_of_the_report",
    ),
    plant(
        "norm_bias_is_ready_before_its_weight", PREDICTION,
        "(is_norm_weight and order[-1:] == [f\"{module}.bias\"])", "0",
        RANDOM_MODELS,
    ),
]

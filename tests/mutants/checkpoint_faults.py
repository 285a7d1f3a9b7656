"""Planted errors in the checkpoint lab: mistakes people make in saving, in restoring, in reading what they see."""

SAVE, VERIFY, HASHING = (f"labkit/checkpoints/{name}.py" for name in ("save", "verify", "hashing"))
MANIFEST = "labkit/checkpoints/manifest.py"
STATE, IO, ORDER = (f"labkit/workers/checkpoint_{name}.py" for name in ("state", "io", "order"))
RESUME, FAULTS, COST = (f"labkit/analyze/checkpoint_{name}.py" for name in ("resume", "faults", "cost"))
RING, PREDICTED = "labkit/calc/ring_order.py", "labkit/calc/checkpoint_resume.py"
DAMAGE = "test_checkpoints::test_damage_is_noticed_and_the_checkpoint_before_is_found"
RESTORED = "test_workers_checkpoint::test_a_restored_job_takes_the_same_steps"
LIE = "test_analyze_checkpoint::test_a_lie_fails_its_oracle"


def plant(name, file, old, new, *tests):
    """One planted error; tests are `file::test` without `tests/` and `.py`."""
    return dict(name=name, file=file, old=old, new=new, tests=["tests/" + t.replace("::", ".py::") for t in tests])


MUTANTS = [
    plant("the_manifest_is_written_in_place", SAVE,
          'temporary = directory / f".{name}.{os.getpid()}.tmp"', "temporary = directory / name",
          "test_checkpoints::test_the_manifest_comes_last_and_under_a_temporary_name"),
    plant("a_silent_rank_is_not_missed", SAVE,
          "if silent := sorted(set(range(world_size)) - {entry.rank for entry in files}):", "if silent := []:",
          "test_checkpoints::test_no_manifest_if_a_rank_did_not_write"),
    plant("lengths_are_not_looked_at_before_the_commit", SAVE,
          "if path.stat().st_size != entry.bytes:", "if False:",
          "test_checkpoints::test_no_manifest_if_a_file_is_not_there_in_full"),
    plant("a_committed_checkpoint_is_overwritten", SAVE,
          "if (directory / MANIFEST_NAME).exists():", "if False:",
          "test_checkpoints::test_a_committed_checkpoint_is_never_written_into_again"),
    plant("temporary_files_stay_after_an_error", SAVE,
          "temporary.unlink(missing_ok=True)", "pass",
          "test_checkpoints::test_a_full_disk_leaves_no_checkpoint_and_no_temporary_file"),
    plant("an_unfinished_dcp_save_is_sealed", SAVE,
          'if any(_DCP_RANK.match(name) for name in names) and ".metadata" not in names:', "if False:",
          "test_checkpoints::test_an_unfinished_save_of_dcp_is_not_sealed_and_is_called_incomplete"),
    plant("contents_are_not_compared", VERIFY, "if digest != entry.digest:", "if False:", DAMAGE),
    plant("another_world_size_is_let_in", VERIFY,
          "if world_size is not None and world_size != manifest.world_size:", "if False:",
          "test_checkpoints::test_another_world_size_is_refused"),
    plant("the_oldest_step_comes_first", VERIFY, "reverse=True)", "reverse=False)", DAMAGE),
    plant("a_missing_commit_mark_is_only_damage", VERIFY,
          'kind = "commit_mark" if entry.role == "commit_mark" else "missing"', 'kind = "missing"',
          "test_checkpoints::test_a_directory_of_dcp_is_sealed_with_rank_and_commit_mark"),
    plant("a_changed_manifest_is_believed", MANIFEST, "if found.to_json() != text:", "if False:", DAMAGE,
          "test_checkpoints::test_a_manifest_that_was_changed_is_refused"),
    plant("only_the_end_is_hashed", HASHING,
          "            state.update(chunk)\n",
          "            state = new_hash(algorithm)\n            state.update(chunk)\n",
          "test_checkpoints::test_sums_of_long_files_are_those_of_the_whole"),
    plant("the_data_generator_is_not_restored", STATE,
          '    job.data.set_state(own["data_generator"])\n', "", RESTORED),
    plant("the_dropout_generator_is_not_restored", STATE,
          '    torch.set_rng_state(own["cpu_rng"])\n', "", RESTORED),
    plant("the_cursor_is_not_restored", STATE,
          'job.step, job.cursor = own["step"], own["cursor"]', 'job.step = own["step"]', RESTORED),
    plant("the_optimizer_is_not_restored", STATE,
          '    job.optimizer.load_state_dict(main["optimizer"])\n', "", RESTORED),
    plant("states_of_two_saves_are_mixed", STATE, 'if main["step"] != own["step"]:', "if False:",
          "test_workers_checkpoint::test_states_of_two_saves_do_not_mix"),
    plant("the_background_save_keeps_references", IO,
          'return value.detach().to("cpu", copy=True)', 'return value.detach().to("cpu")',
          "test_workers_checkpoint::test_a_background_save_holds_the_state_of_its_start",
          "test_workers_checkpoint::test_a_host_copy_shares_nothing"),
    plant("an_error_in_the_background_is_swallowed", IO, "self._error = error", "self._error = None",
          "test_workers_checkpoint::test_a_background_save_holds_the_state_of_its_start"),
    plant("the_last_steps_gradients_are_added", ORDER,
          "    job.optimizer.zero_grad(set_to_none=True)  # what the last step left would be added to\n", "",
          "test_workers_checkpoint::test_the_own_gradients_leave_no_trace_and_are_those_of_the_next_step"),
    plant("sums_are_taken_in_rank_order", ORDER, 'for rank in span["ranks"])', 'for rank in sorted(span["ranks"]))',
          "test_workers_checkpoint::test_sums_follow_their_order"),
    plant("the_ring_turns_the_other_way", RING, "(chunk - 1 - i) % world_size", "(chunk + 1 + i) % world_size",
          "test_calc_ring_order::test_a_ring_ends_at_the_owner_of_the_chunk"),
    plant("segments_are_one_mebibyte", RING,
          "segment = -(-total_bytes // (per_chunk * world_size))", "segment = GLOO_SEGMENT_BYTES",
          "test_calc_ring_order::test_chunk_of_the_reports_gradients_by_hand"),
    plant("two_ranks_can_differ", RING, "if world_size == 2:", "if world_size == 1:",
          "test_calc_ring_order::test_two_ranks_have_one_order"),
    plant("a_warm_reducer_is_taken_for_a_fresh_one", PREDICTED,
          'later if settings.get("num_warm_passes") else bucket_names(', "bucket_names(",
          "test_calc_ring_order::test_only_a_layout_that_changes_reorders"),
    plant("only_rank_0s_data_is_compared", RESUME,
          'for own in pairs for a, b in own for name in ("batch_sha", "cursor"))',
          'for a, b in pairs[0] for name in ("batch_sha", "cursor"))', LIE),
    plant("one_told_rank_is_enough", RESUME,
          '"all_told": all(row["error"]', '"all_told": any(row["error"]', LIE),
    plant("a_kill_may_lose_a_step", FAULTS, 'if row["newest_good_step"] != expected:', "if False:", LIE),
    plant("files_after_a_kill_are_not_looked_at", FAULTS,
          'if fault == "kill" and not _files_fit(row, points):', "if False:", LIE),
    plant("the_fastest_rank_is_timed", COST, "append(max(times))", "append(min(times))",
          "test_analyze_checkpoint::test_a_save_takes_as_long_as_its_slowest_rank_and_cost_is_paired"),
]

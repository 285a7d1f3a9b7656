"""Planted errors in the scheduler model, the load client and the readers of vLLM's output."""

POOL, SCHEDULER, T = "labkit/calc/block_pool.py", "labkit/calc/scheduler.py", "tests/test_calc_scheduler.py"
ENGINE = f"{T}::test_the_real_engine_counted_the_same"


def plant(name, file, old, new, *tests):
    return dict(name=name, file=file, old=old, new=new, tests=list(tests))


MUTANTS = [
    plant("the_null_block_is_given_out", POOL, "self.num_usable = num_blocks - 1", "self.num_usable = num_blocks",
          ENGINE),
    plant("a_whole_prompt_can_be_cached", SCHEDULER, "range((sequence.num_tokens - 1) // self.config.block_size)",
          "range(sequence.num_tokens // self.config.block_size)",
          f"{T}::test_a_request_that_fills_its_blocks_leaves_one_token_to_compute"),
    plant("the_first_to_run_is_preempted", SCHEDULER, "victim = self.running.pop()", "victim = self.running.pop(0)",
          ENGINE),
    plant("the_preempted_goes_to_the_end", SCHEDULER, "self.waiting.insert(0, victim)", "self.waiting.append(victim)",
          ENGINE),
    plant("a_prefix_is_freed_before_its_tail", POOL, "for block in reversed(blocks):", "for block in blocks:",
          f"{T}::test_a_tail_is_evicted_before_its_prefix"),
    plant("idle_cached_blocks_count_as_room", SCHEDULER,
          "new + sum(self.pool.references[block] == 0 for block in found)", "new", ENGINE, f"{T}::test_invariants"),
    plant("admission_by_the_first_chunk", SCHEDULER, "if self.config.reserve_full_prompt and not",
          "if False and not", ENGINE),
    plant("partial_blocks_wait_their_turn", POOL, "if self.reuse_partial_first:", "if False:", ENGINE),
    plant("salts_are_ignored", SCHEDULER, "else self.job.salt", "else ''", f"{T}::test_a_salt_keeps_tenants_apart"),
    plant("admission_after_a_preemption", SCHEDULER, "if not preempted:", "if True:", ENGINE),
    plant("an_html_page_is_a_page", "labkit/analyze/prometheus.py", "if num_odd:", "if False:",
          "tests/test_analyze_vllm.py::test_pages_that_are_none"),
    plant("old_and_new_names_are_both_counted", "labkit/analyze/vllm_metrics.py",
          "                    return self._samples[name + suffix]\n        return {}",
          "                    return dict(self._samples[name + suffix], **{(('x', 'y'),): 1e9})\n        return {}",
          "tests/test_analyze_cases.py::test_expected_answer"),
    plant("a_restart_is_clamped", "labkit/analyze/vllm_metrics.py", "if (why := restart(before, after)) is not None:",
          "if (why := restart(before, after)) == '':", "tests/test_analyze_vllm.py::test_a_restart_gives_no_numbers"),
    plant("an_error_event_is_a_success", "labkit/analyze/sse.py",
          'if name == "error" or _error(chunk) is not None:', "if False:",
          "tests/test_analyze_vllm.py::test_what_a_request_came_to"),
    plant("a_cut_stream_is_a_success", "labkit/analyze/sse.py", 'if not found["done"]:', "if False:",
          "tests/test_analyze_vllm.py::test_what_a_request_came_to"),
    plant("zero_ttft_is_a_time", "labkit/analyze/vllm_bench.py", "if any(times[name] == 0 for name in",
          "if any(False for name in", "tests/test_analyze_cases.py::test_expected_answer",
          "tests/test_analyze_vllm.py::test_results_that_cannot_be_believed"),
    plant("a_chunk_is_stamped_by_its_first_byte", "labkit/analyze/load_results.py", "times.append(when(end))",
          "times.append(when(line_end))",
          "tests/test_load_client.py::test_any_cut_of_the_bytes_gives_the_same_body_and_rising_times"),
    plant("a_short_output_counts", "labkit/analyze/load_results.py", '!= wanted:', '> wanted:',
          "tests/test_load_client.py::test_a_failed_request_has_no_times"),
    plant("failed_requests_in_the_averages", "labkit/analyze/load_results.py",
          "    if why is not None:\n        return Result(**common)",
          "    if why is not None:\n        return Result(**common, ttft_s=0.0)",
          "tests/test_load_client.py::test_a_failed_request_has_no_times"),
    plant("tpot_counts_the_first_token", "labkit/analyze/load_results.py", "(last - first) / (tokens - 1)",
          "(last - first) / tokens", "tests/test_load_client.py::test_two_tokens_in_a_chunk_are_told"),
    plant("a_late_client_is_believed", "labkit/launch/load_client.py", "if load.lag_p99_s > max_lag_p99_s:",
          "if False:", "tests/test_load_client.py::test_a_late_loop_gives_no_result"),
]

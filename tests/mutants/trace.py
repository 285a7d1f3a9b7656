"""Planted errors in the trace analyzer and the readers of tool output: each must make the named tests fail."""

FORMS = "tests/test_analyze_trace_forms.py"
FACTS = "tests/test_analyze_trace_facts.py"
RANKS = "tests/test_analyze_trace_ranks.py"
GLOO = "tests/test_analyze_gloo_recorded.py"
CASES = "tests/test_analyze_cases.py"
SPANS = "tests/test_analyze_intervals.py"

MUTANTS = [
    dict(
        name="touching_intervals_stay_apart",
        file="labkit/analyze/intervals.py",
        old="np.greater(pieces[1:, 0], reach[:-1], out=first[1:])",
        new="np.greater_equal(pieces[1:, 0], reach[:-1], out=first[1:])",
        tests=[f"{SPANS}::test_union_covers_the_same_ticks_and_is_disjoint"],
    ),
    dict(
        name="union_forgets_the_longest_reach",
        file="labkit/analyze/intervals.py",
        old="reach = np.maximum.accumulate(pieces[:, 1])",
        new="reach = pieces[:, 1]",
        tests=[f"{SPANS}::test_union_covers_the_same_ticks_and_is_disjoint"],
    ),
    dict(
        name="whole_microseconds",
        file="labkit/analyze/trace_time.py",
        old="ns = (whole * 1000 + np.rint((us - whole) * 1000)).astype(np.int64)",
        new="ns = (whole * 1000).astype(np.int64)",
        tests=[f"{CASES}::test_trace_times_are_exact_nanoseconds"],
    ),
    dict(
        name="doubles_trusted_at_epoch_scale",
        file="labkit/analyze/trace_time.py",
        old="DOUBLE_LIMIT_US = 2.0**43",
        new="DOUBLE_LIMIT_US = 2.0**53",
        tests=[f"{FACTS}::test_one_nanosecond_survives_at_epoch_scale"],
    ),
    dict(
        name="annotations_are_device_work",
        file="labkit/analyze/trace_columns.py",
        old='    "concurrent_kernel": KERNEL,',
        new='    "concurrent_kernel": KERNEL,\n    "gpu_user_annotation": KERNEL,',
        tests=[f"{FORMS}::test_same_answer_in_every_form"],
    ),
    dict(
        name="copies_are_compute",
        file="labkit/analyze/trace_columns.py",
        old='    "gpu_memcpy": MEMCPY,',
        new='    "gpu_memcpy": KERNEL,',
        tests=[f"{CASES}::test_expected_answer"],
    ),
    dict(
        name="sync_markers_are_work",
        file="labkit/analyze/trace_work.py",
        old="order = order[~sync_name[name[order]]]",
        new="order = order[sync_name[name[order]] < 2]",
        tests=[f"{FORMS}::test_same_answer_in_every_form"],
    ),
    dict(
        name="template_arguments_make_a_kernel_communication",
        file="labkit/analyze/trace_names.py",
        old='return re.split(r"[<(]", name, maxsplit=1)[0].strip()',
        new='return name.replace("<", " ").strip()',
        tests=[f"{FACTS}::test_everything_else_on_a_device_is_compute"],
    ),
    dict(
        name="send_recv_name_believed",
        file="labkit/analyze/trace_names.py",
        old='    ("broadcast", "broadcast"),\n    ("reduce", "reduce"),',
        new='    ("broadcast", "broadcast"),\n    ("sendrecv", "send_recv"),\n    ("reduce", "reduce"),',
        tests=[f"{FACTS}::test_a_kernel_name_names_the_collective_only_where_it_can"],
    ),
    dict(
        name="message_size_is_the_input",
        file="labkit/analyze/trace_detail.py",
        old="size = max(elements) * element_bytes if elements and element_bytes else None",
        new="size = elements[0] * element_bytes if elements and element_bytes else None",
        tests=[f"{FACTS}::test_collectives_by_name_with_bytes_as_nccl_tests_counts_them"],
    ),
    dict(
        name="steps_by_the_time_of_the_kernel",
        file="labkit/analyze/trace_work.py",
        old="step = _step_of(trace, launch_start, launch_pid)",
        new='step = _step_of(trace, columns["start"], launch_pid)',
        tests=[f"{CASES}::test_expected_answer"],
    ),
    dict(
        name="the_later_of_two_launch_calls",
        file="labkit/analyze/trace_work.py",
        old="place = np.minimum(np.searchsorted(known, correlation), len(known) - 1)",
        new='place = np.maximum(np.searchsorted(known, correlation, side="right") - 1, 0)',
        tests=[f"{FACTS}::test_steps_follow_the_launch_even_when_work_runs_later"],
    ),
    dict(
        name="no_communication_is_zero_overlap",
        file="labkit/analyze/trace.py",
        old="overlap_ns / comm_ns if comm_ns else None",
        new="overlap_ns / comm_ns if comm_ns else 0.0",
        tests=[f"{CASES}::test_expected_answer"],
    ),
    dict(
        name="sum_of_communication_instead_of_the_union",
        file="labkit/analyze/trace.py",
        old='"comm_us": comm_ns / 1000,',
        new='"comm_us": int(durations[rows][cls == COMM].sum()) / 1000,',
        tests=[f"{CASES}::test_trace_times_are_exact_nanoseconds"],
    ),
    dict(
        name="enqueueing_calls_are_compute",
        file="labkit/analyze/trace_work.py",
        old='_ENQUEUE = re.compile(r"^(?:_?c10d|record_param_comms|ProfilerStep)")',
        new='_ENQUEUE = re.compile(r"^(?:record_param_comms|ProfilerStep)")',
        tests=[f"{GLOO}::test_times_match_a_sweep_over_every_edge"],
    ),
    dict(
        name="cut_file_is_complete",
        file="labkit/analyze/trace_read.py",
        old='        """The file ends before the list does."""\n        self.trace.complete = False',
        new='        """The file ends before the list does."""',
        tests=[f"{FORMS}::test_a_list_that_is_never_closed_is_read_and_called_incomplete"],
    ),
    dict(
        name="damage_swallows_the_next_event",
        file="labkit/analyze/trace_salvage.py",
        old="        position = next_start\n    scan.position",
        new='        position = text.find("{", next_start + 1)\n    scan.position',
        tests=[f"{FORMS}::test_one_damaged_event_costs_one_event"],
    ),
    dict(
        name="wait_by_the_mean_over_ranks",
        file="labkit/analyze/trace_ranks.py",
        old="transfer = min(call.dur_ns for call in calls)",
        new="transfer = sum(call.dur_ns for call in calls) // len(calls)",
        tests=[f"{RANKS}::test_three_ranks_and_clocks_an_hour_apart"],
    ),
    dict(
        name="straggler_is_who_waited_most",
        file="labkit/analyze/trace_ranks.py",
        old="worst = max(caused, key=lambda label: caused[label])",
        new="worst = max(wait, key=lambda label: wait[label])",
        tests=[f"{RANKS}::test_three_ranks_and_clocks_an_hour_apart"],
    ),
    dict(
        name="first_listed_failure_is_the_cause",
        file="labkit/analyze/torchrun_log.py",
        old="chosen = named[0] if named else failures[0]",
        new="chosen = failures[0]",
        tests=[
            "tests/test_analyze_torchrun_log.py::test_if_all_are_victims_torchrun_is_believed",
            f"{CASES}::test_expected_answer",
        ],
    ),
    dict(
        name="an_old_attempts_error_counts",
        file="labkit/analyze/torchrun_untagged.py",
        old="if len(attempts) > 1:",
        new="if False:",
        tests=["tests/test_analyze_torchrun_log.py::test_a_restarted_attempt_is_no_failed_job"],
    ),
    dict(
        name="a_chained_cause_is_an_error_of_its_own",
        file="labkit/analyze/torchrun_untagged.py",
        old="found, is_chained = found[:-1], True",
        new="is_chained = True",
        tests=["tests/test_analyze_torchrun_log.py::test_the_only_untagged_traceback_is_the_root_causes"],
    ),
    dict(
        name="a_scheduler_is_not_heard",
        file="labkit/analyze/torchrun_log.py",
        old="if root is None and (told := outside_failure(texts)):",
        new="if told := None:",
        tests=["tests/test_analyze_torchrun_log.py::test_a_failure_told_only_from_outside_the_ranks"],
    ),
    dict(
        name="unknown_memory_is_text",
        file="labkit/analyze/smi.py",
        old="if _UNKNOWN_CELL.match(cell) or not cell:",
        new="if not cell:",
        tests=["tests/test_analyze_smi.py::test_what_the_driver_does_not_tell_is_none_with_a_reason"],
    ),
]

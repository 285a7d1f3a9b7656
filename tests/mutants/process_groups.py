"""Planted errors in the process-group lab: mistakes people make in groups, placement, matching and diagnosis."""

CALC = {name: f"labkit/calc/{name}.py" for name in ("mesh_mapping", "collective_schedule", "mesh_prediction")}
LOG, RESULTS, ORACLES = (f"labkit/analyze/{name}.py" for name in ("collective_log", "mesh_results", "mesh_oracles"))
RECORDER, FILES = "labkit/analyze/flight_recorder.py", "labkit/analyze/flight_recorder_files.py"


def plant(name, file, old, new, *tests):
    """One planted error; tests are `file::test` without `tests/` and `.py`."""
    paths = ["tests/" + test.replace("::", ".py::") for test in tests]
    return dict(name=name, file=file, old=old, new=new, tests=paths)


MUTANTS = [
    plant(
        "outermost_axis_first", CALC["mesh_mapping"],
        "        stride *= degree\n", "        stride = world // (stride * degree) or 1\n",
        "test_calc_mesh_mapping::test_report_groups_by_bits_of_the_rank",
    ),
    plant(
        "lowest_bit_decides_the_link", CALC["mesh_mapping"],
        "links[(a ^ b).bit_length() - 1]", "links[((a ^ b) & -(a ^ b)).bit_length() - 1]",
        "test_calc_mesh_mapping::test_the_machine_of_the_report",
    ),
    plant(
        "fastest_link_of_a_group_counts", CALC["mesh_mapping"],
        "return min(classes, key=", "return max(classes, key=",
        "test_calc_mesh_mapping::test_the_machine_of_the_report",
    ),
    plant(
        "last_group_of_a_phase_counts", CALC["mesh_mapping"],
        "        worst = max(worst, steps", "        worst = max(worst and 0, steps",
        "test_calc_mesh_mapping::test_time_by_hand",
    ),
    plant(
        "shared_link_not_shared", CALC["mesh_mapping"],
        "above=0) / sharing[name])", "above=0))",
        "test_calc_mesh_mapping::test_time_by_hand",
    ),
    plant(
        "calls_are_not_weighed", CALC["mesh_mapping"],
        'calls.get(axis, 0)) * time for axis', 'calls.get(axis, 0)) ** 0 * time for axis',
        "test_calc_mesh_mapping::test_report_step_from_its_own_rates",
    ),
    plant(
        "all_devices_taken_for_alike", CALC["mesh_mapping"],
        "if image not in start and all(topology[device][other] == topology[image][start[other]]\n"
        "                                                 for other in range(device))]",
        "if image not in start]",
        "test_calc_mesh_mapping::test_search_finds_every_time_and_no_more",
    ),
    plant(
        "wire_counts_pairs_inside_a_half", CALC["mesh_prediction"],
        "sum(min(group) < half <= max(group) for group in found if len(group) == 2)", "len(found)",
        "test_calc_mesh_mapping::test_wire_and_pair_and_names",
    ),
    plant(
        "calls_matched_by_name", CALC["collective_schedule"],
        'total = sum(tensor_value(entry["tensor"], rank) for entry, rank in zip(entries, ranks))',
        'total = sum(tensor_value(entries[0]["tensor"], rank) for entry, rank in zip(entries, ranks))',
        "test_calc_collective_schedule::test_values_match_reduction_by_position",
    ),
    plant(
        "other_shapes_go_through", CALC["collective_schedule"],
        'MATCHED = ("op", "shape", "dtype")', 'MATCHED = ("op", "dtype")',
        "test_calc_collective_schedule::test_a_fault_changes_one_rank_from_the_named_place_on",
    ),
    plant(
        "a_rank_alone_may_go_on", CALC["collective_schedule"],
        'if any(entry is None or entry["group"] != name for entry in arrived):',
        'if all(entry is None or entry["group"] != name for entry in arrived):',
        "test_calc_collective_schedule::test_hangs_match_the_wait_for_model",
    ),
    plant(
        "the_rank_that_waits_is_blamed", LOG,
        'return {"rank": odd[0] if is_clear and len(odd) == 1 else None',
        'return {"rank": min(range(len(logs)), key=lambda r: len(logs[r])) if is_clear else None',
        "test_analyze_collective_log::test_faults_are_named_by_rank_and_call",
    ),
    plant(
        "groups_compared_instead_of_axes", LOG,
        'SEQUENCE_FIELDS = ("step", "axis", "op", "shape", "dtype")',
        'SEQUENCE_FIELDS = ("step", "group", "op", "shape", "dtype")',
        "test_analyze_collective_log::test_no_fault_no_finding",
    ),
    plant(
        "tie_blames_rank_1", LOG,
        "is_clear = votes > len(keys) - votes", "is_clear = votes >= len(keys) - votes",
        "test_analyze_collective_log::test_two_ranks_give_no_majority",
    ),
    plant(
        "silent_faults_counted_as_loud", RESULTS,
        "        silent += not is_loud\n", "        silent += is_loud\n",
        "test_analyze_collective_log::test_detection_counts_by_hand",
    ),
    plant(
        "first_rank_counts_for_the_wire", RESULTS,
        "found.append([1e3 * (max(end for _, end in ranks) - min(start for start, _ in ranks))",
        "found.append([1e3 * (ranks[0][1] - ranks[0][0])",
        "test_exp_process_groups::test_slowest_rank_and_one_clock_by_hand",
    ),
    plant(
        "two_hundred_cases_not_required", ORACLES,
        'passed=detection["num_cases"] >= 200 and detection["named_pct"]', 'passed=detection["named_pct"]',
        "test_analyze_mesh::test_too_few_or_too_few_named_faults_fail",
    ),
    plant(
        "dropped_records_are_missing_calls", RECORDER,
        "    return None if dump.num_dropped else 0 ", "    return 0 ",
        "test_analyze_flight_recorder::test_a_group_of_which_all_records_are_lost_is_unknown_unless_the_status_tells",
    ),
    plant(
        "whoever_waits_is_the_cause", RECORDER,
        "key=lambda mismatch: (_all_wait_elsewhere(mismatch, dumps), mismatch", "key=lambda mismatch: (mismatch",
        "test_analyze_flight_recorder::test_the_cause_is_named_before_those_who_wait",
    ),
    plant(
        "uneven_sizes_are_a_mismatch", RECORDER,
        'return short in SIZES_MUST_AGREE or not any(part in short for part in SIZES_MAY_DIFFER)', "return True",
        "test_analyze_flight_recorder::test_uneven_all_to_all_is_no_mismatch",
    ),
    plant(
        "first_number_in_the_name_is_the_rank", FILES,
        'lambda stem: re.search(r"(\\d+)$", stem),', 'lambda stem: re.search(r"(\\d+)", stem),',
        "test_analyze_flight_recorder::test_host_numbers_that_could_be_ranks",
    ),
    plant(
        "a_pickle_may_call_anything", FILES,
        '        raise pickle.UnpicklingError(f"refused to load {module}.{name}")\n',
        "        return super().find_class(module, name)\n",
        "test_analyze_flight_recorder::test_what_is_no_dump_is_refused_in_one_line",
    ),
    plant(
        "groups_of_one_name_are_one_group", FILES,
        "{dump.rank: dump for dump in _apart(dumps)}", "{dump.rank: dump for dump in dumps}",
        "test_analyze_flight_recorder::test_parts_of_a_split_group_share_a_name_and_no_calls",
    ),
    plant(
        "the_status_goes_by_the_groups_name", FILES,
        'names.get(clean_text(key), "0" if clean_text(key) == "0" and "0" not in names.values() else None)',
        "clean_text(key)",
        "test_analyze_flight_recorder::test_the_status_goes_by_a_number_that_is_not_the_groups_name",
    ),
    plant(
        "gloos_retired_calls_are_open", FILES,
        ' or bool(raw.get("retired"))', "",
        "test_analyze_flight_recorder::test_gloo_keeps_scheduled_but_retires",
    ),
]

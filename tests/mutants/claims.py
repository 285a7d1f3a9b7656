"""Planted errors in the claim ledger: each would make a wrong claim look right, or hide a right one."""

SHELF, COMPARE, SCOPE = "labkit/ledger/shelf.py", "labkit/ledger/compare.py", "labkit/ledger/scope.py"
CLAIMS, CHECKS, LOAD = "labkit/claims.py", "labkit/ledger/checks.py", "labkit/ledger/load.py"
REPORT = "data/claims/v100_report.yaml"


def plant(name, file, old, new, *tests):
    """One planted error; tests are `file::test` without `tests/` and `.py`."""
    paths = ["tests/" + test.replace("::", ".py::") for test in tests]
    return dict(name=name, file=file, old=old, new=new, tests=paths)


MUTANTS = [
    plant(
        "a_failed_run_verifies", SHELF,
        'record.status == "ok" and',
        "",
        "test_claims::test_a_bad_record_never_verifies_and_the_older_good_one_counts",
    ),
    plant(
        "a_simulated_run_verifies", SHELF,
        ' and record.evidence == "measured"',
        "",
        "test_claims::test_a_bad_record_never_verifies_and_the_older_good_one_counts",
    ),
    plant(
        "oldest_record_counts", SHELF,
        "entry[0].name, reverse=True",
        "entry[0].name",
        "test_claims::test_the_newest_record_counts",
    ),
    plant(
        "other_hardware_goes_first", SHELF,
        "not entry[1])",
        "entry[1])",
        "test_claims::test_this_machine_is_asked_before_a_newer_record_of_another",
    ),
    plant(
        "every_committed_record_is_of_this_machine", SHELF,
        "record is not None and record.hardware_tag == self.tag",
        "record is not None",
        "test_claims::test_a_committed_record_of_other_hardware_is_elsewhere",
    ),
    plant(
        "settings_of_the_run_ignored", SHELF,
        "if record.params.get(name) != value:",
        "if False:",
        "test_claims::test_a_record_with_other_settings_is_passed_over",
    ),
    plant(
        "gpu_claims_take_cpu_runs", SHELF,
        'if where and not record.environment',
        'if False and not record.environment',
        "test_claims::test_a_claim_for_gpus_ignores_records_without_one",
    ),
    plant(
        "rounding_twice_too_wide", COMPARE,
        "return 0.5 * 10.0 ** -rule.amount",
        "return 10.0 ** -rule.amount",
        "test_ledger_rules::test_rules",
    ),
    plant(
        "reachable_is_always_true", COMPARE,
        "seen.low <= expected + allowed and seen.high >= expected - allowed",
        "True",
        "test_ledger_rules::test_reachable_is_what_rounding_allows",
    ),
    plant(
        "inputs_are_not_rounded", SCOPE,
        "return 0.0 if exact else 0.5 * 10.0**-decimals",
        "return 0.0",
        "test_ledger_rules::test_reachable_is_what_rounding_allows",
    ),
    plant(
        "only_one_corner_is_tried", SCOPE,
        "for corner in itertools.product(*(ranges[token] for token in tokens)):",
        "for corner in [tuple(ranges[token][0] for token in tokens)]:",
        "test_ledger_rules::test_reachable_is_what_rounding_allows",
    ),
    plant(
        "spread_is_ignored", COMPARE,
        "if low <= pivot <= high:",
        "if seen.value == pivot:",
        "test_claims::test_spread_over_the_pivot_is_no_direction",
    ),
    plant(
        "any_direction_is_the_same", COMPARE,
        'return "same" if (seen.value > pivot) == (expected > pivot) else "opposite"',
        'return "same"',
        "test_claims::test_the_opposite_direction_differs",
    ),
    plant(
        "a_longer_list_passes", COMPARE,
        "if short or not isinstance(found, Seen)",
        "if not isinstance(found, Seen)",
        "test_ledger_rules::test_every_entry_counts_and_a_longer_list_is_wrong",
    ),
    plant(
        "true_is_one", COMPARE,
        "return isinstance(value, int | float) and not isinstance(value, bool)",
        "return isinstance(value, int | float)",
        "test_ledger_rules::test_rules",
    ),
    plant(
        "other_times_are_judged_right", CLAIMS,
        '    if check.compare == "beside":\n        reason =',
        "    if False:\n        reason =",
        "test_claims::test_another_machine_s_time_is_shown_beside_and_never_judged",
    ),
    plant(
        "a_wrong_figure_is_excused", CHECKS,
        "corrected = not disagreements(check.corrected, seen, exact, decimals)",
        "corrected = True",
        "test_claims::test_a_recomputed_value_that_is_not_the_corrected_one_is_no_known_erratum",
    ),
    plant(
        "a_record_hides_wrong_arithmetic", CLAIMS,
        '    if row.status == "differs":\n        return _make_again',
        "    if False:\n        return _make_again",
        "test_claims::test_wrong_arithmetic_differs_whatever_a_record_says",
    ),
    plant(
        "nothing_ever_fails", CLAIMS,
        'row.status == "differs" and claims[row.id].must_hold',
        'row.status == "wrong" and claims[row.id].must_hold',
        "test_claims::test_only_must_hold_claims_that_differ_fail",
    ),
    plant(
        "a_power_may_fill_the_memory", "labkit/ledger/expression.py",
        "left.bit_length() * right > LARGEST_POWER_BITS",
        "False",
        "test_ledger_rules::test_arithmetic_that_cannot_be_done_is_one_line",
    ),
    plant(
        "any_function_may_be_called", CHECKS,
        "if not module_name.startswith(CALLABLE_PACKAGES) or",
        "if",
        "test_ledger_rules::test_a_call_outside_our_packages_is_refused_when_it_is_made",
    ),
    plant(
        "unknown_fields_load", LOAD,
        "    unknown = sorted(set(data) - known)\n",
        "    unknown = []\n",
        "test_ledger_rules::test_a_bad_claim_is_one_line_that_names_file_and_claim",
    ),
    plant(
        "promised_counts_unchecked", LOAD,
        "if found.get(key) != expected:",
        "if False:",
        "test_ledger_rules::test_counts_that_the_file_promises_must_come_out",
    ),
    plant(
        "a_retyped_figure", REPORT,
        "value: {1 MiB: 127.1, 4 MiB: 124.88,",
        "value: {1 MiB: 127.1, 4 MiB: 128.44,",
        "test_claims_report::test_every_formula_holds_or_is_a_listed_erratum",
    ),
    plant(
        "a_dropped_factor_in_a_formula", REPORT,
        "      expr: 100 * ref('preempt-throughput', '1 GiB / 16')",
        "      expr: 99 * ref('preempt-throughput', '1 GiB / 16')",
        "test_claims_report::test_every_formula_holds_or_is_a_listed_erratum",
    ),
]

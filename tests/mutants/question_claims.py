"""Planted errors in the interview text's ledger: a wrong figure or program that would count, a badge too many."""

QUESTIONS, PROGRAMS = "data/claims/questions.yaml", "data/claims/programs/"
CHECKS, LOAD, CLAIMS = "labkit/ledger/checks.py", "labkit/ledger/load.py", "labkit/claims.py"
COMPILED, FUNCTIONS = "labkit/ledger/compiled.py", "labkit/ledger/question_checks.py"
LOOKUP = "labkit/book/lookup.py"
T = "test_claims_questions::test_"


def plant(name, file, old, new, *tests):
    """One planted error; tests are `file::test` without `tests/` and `.py`."""
    paths = ["tests/" + test.replace("::", ".py::") for test in tests]
    return dict(name=name, file=file, old=old, new=new, tests=paths)


MUTANTS = [
    plant(
        "a_retyped_figure", QUESTIONS,
        "    value: 362.6\n", "    value: 363.6\n",
        f"{T}no_check_accepts_another_figure[q01-mstar-down]",
    ),
    plant(
        "the_ring_figure_is_set_right", QUESTIONS,
        "    value: 8\n    unit: transfers\n", "    value: 7\n    unit: transfers\n",
        f"{T}the_ring_needs_seven_transfers_not_eight",
    ),
    plant(
        "an_added_claim_counts_as_printed", QUESTIONS,
        "    role: added\n    value: [[false, true, true]", "    role: printed\n    value: [[false, true, true]",
        f"{T}all_claims_of_the_29_answers_are_here",
    ),
    plant(
        "every_entry_by_the_first_rule", CHECKS,
        "disagreements(want, found, parse_rule(text), decimals)",
        "disagreements(want, found, parse_rule(check.compare[0]), decimals)",
        f"{T}each_entry_is_judged_by_its_own_rule",
    ),
    plant(
        "an_imported_name_is_a_program", CHECKS,
        'if not callable(function) or getattr(function, "__module__", "") != programs.__name__:',
        "if not callable(function):",
        f"{T}only_functions_of_the_module_are_programs[compile_program]",
    ),
    plant(
        "only_the_first_key_of_a_part", CHECKS,
        "for key in check.part if isinstance(check.part, list) else [check.part]:",
        "for key in check.part[:1] if isinstance(check.part, list) else [check.part]:",
        f"{T}a_part_is_followed_through_keys_and_positions",
    ),
    plant(
        "a_missing_compiler_verifies", CLAIMS,
        'return _make(claim, "not_run", reason=f"{check.needs or check.program}: {missing}")',
        'return _make(claim, "verified", reason=f"{check.needs or check.program}: {missing}")',
        f"{T}without_a_compiler_a_program_is_not_run_and_says_so",
    ),
    plant(
        "refused_anywhere_is_enough", COMPILED,
        "refused += _first_error_line(compiler, options, source) == line",
        "refused += _first_error_line(compiler, options, source) is not None",
        f"{T}only_the_marked_line_may_be_refused",
    ),
    plant(
        "nothing_forbidden_is_compiled", COMPILED,
        'f"-DFORBIDDEN={number}"', 'f"-DALLOWED={number}"',
        f"{T}only_the_marked_line_may_be_refused",
    ),
    plant(
        "a_program_that_does_not_compile_passes", COMPILED,
        '"compiles": _first_error_line(compiler, ("-std=c++20",), source) is None',
        '"compiles": True',
        f"{T}only_the_marked_line_may_be_refused",
    ),
    plant(
        "a_shallow_copy_in_the_deep_program", PROGRAMS + "q25_self_assignment_and_move.cpp",
        "data(other.data ? new int(*other.data) : nullptr)", "data(other.data)",
        f"{T}every_program_is_a_claim_s_and_proves_it[q25_self_assignment_and_move]",
    ),
    plant(
        "a_swap_by_reference_where_value_is_meant", PROGRAMS + "q23_by_value_does_nothing.cpp",
        "static_assert(after(by_value) == 12);", "static_assert(after(by_value) == 21);",
        f"{T}every_program_is_a_claim_s_and_proves_it[q23_by_value_does_nothing]",
    ),
    plant(
        "any_two_scores_tie", FUNCTIONS,
        "abs(first / second - 10) < 1e-9", "first > second",
        f"{T}functions_notice_what_does_not_hold",
    ),
    plant(
        "equal_blocks_need_not_be_equal", FUNCTIONS,
        "return equal_blocks and other", "return other",
        f"{T}functions_notice_what_does_not_hold",
    ),
    plant(
        "items_may_hold_anything", LOAD,
        '        _only(item, FIELDS_OF_ITEM, name, f"{where}: items")\n', "",
        f"{T}a_bad_claim_is_one_line_that_names_it",
    ),
    plant(
        "items_are_not_looked_into", LOAD,
        "        _check_expressions(ledger, item, where)\n", "        pass\n",
        f"{T}a_bad_claim_is_one_line_that_names_it",
    ),
    plant(
        "any_verified_claim_has_the_badge", LOOKUP,
        "return type(judged) is type(shown) and judged == shown", "return True",
        f"{T}badges_stand_for_the_figure_shown",
    ),
    plant(
        "the_first_unit_for_every_entry", LOOKUP,
        'claim.unit[int(key.split(".")[0])]', "claim.unit[0]",
        f"{T}badges_stand_for_the_figure_shown",
    ),
    plant(
        "what_a_version_does_is_derived", LOOKUP,
        'claim.kind in ("mechanism", "boundary"))', 'claim.kind in ("mechanism", "boundary", "version-bound"))',
        f"{T}badges_stand_for_the_figure_shown",
    ),
]

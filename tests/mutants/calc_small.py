"""Planted errors in three small calculators: checkpoint intervals, order of collectives, copies."""

CHECKPOINTS, ORDER, COPIES = (f"labkit/calc/{name}.py" for name in ("checkpointing", "collective_order", "copying"))


def plant(name, file, old, new, test):
    """One planted error, caught by a test in the calculator's own test file."""
    topic = file.removeprefix("labkit/calc/").removesuffix(".py")
    return dict(name=name, file=file, old=old, new=new, tests=[f"tests/test_calc_{topic}.py::{test}"])


MUTANTS = [
    plant("the_save_is_free", CHECKPOINTS, "math.expm1((tau + save) / mtbf)", "math.expm1(tau / mtbf)",
          "test_matches_played_failures"),
    plant("restart_paid_once_per_interval", CHECKPOINTS, "mtbf * math.exp(restart / mtbf) * math.expm1",
          "restart + mtbf * math.expm1", "test_matches_played_failures"),
    plant("first_order_only", CHECKPOINTS, "math.log1p(-middle) + middle + save / mtbf > 0",
          "save / mtbf - middle * middle / 2 > 0", "test_daly_2006_captions"),
    plant("the_longest_interval_is_the_best", CHECKPOINTS, "(middle, high) if is_short else (low, middle)",
          "(low, middle) if is_short else (middle, high)", "test_no_other_interval_gives_more"),
    plant("no_restart_after_a_failure", CHECKPOINTS, "is_down = not is_saved", "is_down = False",
          "test_matches_played_failures"),
    plant("a_failed_attempt_takes_no_time", CHECKPOINTS, "wall += needed if is_saved else alive",
          "wall += needed if is_saved else 0.0", "test_matches_played_failures"),
    plant("matched_by_name", ORDER,
          "total = sum(held[name][rank] for rank, name in enumerate(names))",
          "total = sum(held[names[0]])", "test_report_values"),
    plant("only_the_first_rank_gets_the_sum", ORDER, "            held[name][rank] = total",
          "            held[name][rank] = total if rank == 0 else held[name][rank]",
          "test_one_order_for_all_gives_the_sums"),
    plant("the_last_rank_is_left_out", ORDER, "for rank, name in enumerate(names))",
          "for rank, name in enumerate(names[:-1]))", "test_report_values"),
    plant("unequal_lengths_are_cut", ORDER, "len(orders) < 2 or len({len(order) for order in orders}) > 1",
          "len(orders) < 2", "test_bad_input_names_the_argument"),
    plant("only_the_last_growth_copies", COPIES, "relocations + capacity, growths + 1", "capacity, growths + 1",
          "test_doubling_relocates_one_less_than_its_elements"),
    plant("grows_by_one_at_a_time", COPIES, "max(capacity + 1, int(capacity * ratio))", "capacity + 1",
          "test_growth_is_what_a_filled_vector_does"),
    plant("rounded_up_growth", COPIES, "int(capacity * ratio)", "-int(-capacity * ratio // 1)",
          "test_growth_is_what_a_filled_vector_does"),
    plant("one_growth_too_many", COPIES, "while capacity < wanted:", "while capacity <= wanted:",
          "test_growth_is_what_a_filled_vector_does"),
    plant("a_copy_is_only_written", COPIES, '"traffic_bytes": 2 * size', '"traffic_bytes": size',
          "test_a_deep_copy_is_as_large_as_its_original"),
]

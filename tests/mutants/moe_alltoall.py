"""Planted errors in the expert-parallel lab: mistakes people make in routing, timing and reading a hot expert."""

ROUTING, LAYER, WORKER, DEDUP = (
    "labkit/calc/moe_routing.py", "labkit/workers/moe_layer.py", "labkit/workers/moe_dispatch.py",
    "labkit/workers/moe_dedup.py")
RESULTS, ORACLES, SLICE = (
    "labkit/analyze/moe_results.py", "labkit/analyze/moe_oracles.py", "labkit/experiments/moe_alltoall.py")
TWO_RANKS = "test_exp_moe_alltoall::test_two_ranks_pass_every_oracle"
ROUND_TRIP = "test_workers_groups::test_combine_undoes_dispatch_with_the_splits_exchanged"
NOTICES = "test_analyze_moe::test_one_wrong_number_fails_one_check"


def plant(name, file, old, new, *tests):
    """One planted error; tests are `file::test` without `tests/` and `.py`."""
    paths = ["tests/" + test.replace("::", ".py::") for test in tests]
    return dict(name=name, file=file, old=old, new=new, tests=paths)


MUTANTS = [
    plant(
        "remainder_dropped", ROUTING,
        "return [share + (i < extra) for i in range(parts)]", "return [share for _ in range(parts)]",
        "test_calc_moe_routing::test_report_splits",
    ),
    plant(
        "rows_of_the_source_not_of_the_destination", ROUTING,
        "return [sum(row[to] for row in matrix) for to in range(len(matrix))]", "return [sum(row) for row in matrix]",
        "test_calc_moe_routing::test_report_splits",
    ),
    plant(
        "own_rows_counted_as_traffic", ROUTING,
        "sent = [size * sum(matrix[rank][to] for to in range(n) if to != rank)",
        "sent = [size * sum(matrix[rank][to] for to in range(n))",
        "test_calc_moe_routing::test_bytes_row_by_row",
    ),
    plant(
        "mean_rank_decides", ROUTING,
        '"dispatch": moved, "expert": max(times), "combine"', '"dispatch": moved, "expert": sum(times) / n, "combine"',
        "test_calc_moe_routing::test_floor_by_hand",
    ),
    plant(
        "one_matrix_product", ROUTING,
        'return 4 * rows * require_int("hidden"', 'return 2 * rows * require_int("hidden"',
        "test_calc_moe_routing::test_floor_by_hand",
    ),
    plant(
        "capacity_rounded_down", ROUTING,
        "slots = math.ceil(", "slots = math.floor(-1 + ",
        "test_calc_moe_routing::test_capacity_row_by_row",
    ),
    plant(
        "rows_left_in_order_of_arrival", LAYER,
        "    placed[route.order] = back\n", "    placed[:] = back\n",
        ROUND_TRIP,
    ),
    plant(
        "permutation_applied_instead_of_undone", LAYER,
        "    placed[route.order] = back\n    return placed", "    return back[route.order]",
        ROUND_TRIP,
    ),
    plant(
        "combine_keeps_the_splits_of_dispatch", LAYER,
        "dist.all_to_all_single(back, rows.contiguous(), output_split_sizes=route.send, input_split_sizes=receive)",
        "dist.all_to_all_single(back, rows.contiguous(), output_split_sizes=receive, input_split_sizes=route.send)",
        ROUND_TRIP,
    ),
    plant(
        "the_neighbours_expert", WORKER,
        "weights = expert_weights(session.rank, params", "weights = expert_weights(session.rank ^ 1, params",
        TWO_RANKS,
    ),
    plant(
        "counts_exchanged_twice", WORKER,
        "        receive = exchange_counts(route, session)\n        combine(apply_expert(",
        "        receive = exchange_counts(route, session)\n        exchange_counts(route, session)\n"
        "        combine(apply_expert(",
        TWO_RANKS,
    ),
    plant(
        "a_token_twice_on_a_rank_loses_a_share", DEDUP,
        "share = (part * hit).sum(dim=1)[mine]", "share = (part * hit).max(dim=1).values[mine] / part.sum(dim=1)[mine]",
        TWO_RANKS,
    ),
    plant(
        "rank_0_is_the_step", RESULTS,
        "slowest = [[max(step) for step in zip(*ranks, strict=True)] for ranks in by_process]",
        "slowest = [list(ranks[0]) for ranks in by_process]",
        "test_exp_moe_alltoall::test_slowest_rank_of_each_step_by_hand",
    ),
    plant(
        "transfer_with_the_wait_in_it", RESULTS,
        '("rank_wait_ms", "wait", True)', '("rank_wait_ms", "combine", False)',
        "test_exp_moe_alltoall::test_slowest_rank_of_each_step_by_hand",
    ),
    plant(
        "fastest_rank_gives_the_bandwidth", RESULTS,
        "rates.append([size / max(times) / 1e9", "rates.append([size / min(times) / 1e9",
        "test_exp_moe_alltoall::test_bandwidth_and_kernels_by_hand",
    ),
    plant(
        "nothing_in_nothing_wrong", ORACLES,
        '               and all(row["out_norm"] > 0 for of in checks.values() for row in of),\n',
        "               and True,\n",
        NOTICES,
    ),
    plant(
        "ids_may_arrive_twice", ORACLES,
        '{case: [sum(row["ids_sum"] for row in of), sum(row["ids_distinct"] for row in of)]',
        '{case: [sum(row["ids_sum"] for row in of), tokens[case]]',
        NOTICES,
    ),
    plant(
        "hot_case_balanced", SLICE,
        '{"balanced": None, "hot": params.hot_share}', '{"balanced": None, "hot": None}',
        "test_exp_moe_alltoall::test_presets_keep_the_reports_tokens",
    ),
]

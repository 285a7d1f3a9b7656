"""Checks of the expert-parallel lab on rows written by hand: no rank is started."""

import pytest

from labkit.analyze import moe_oracles, moe_results

SPLIT = [3, 1]
"""Rows that each of two sources sends: rank 0 receives 6 of 8, rank 1 receives 2."""
PREDICTED = {"splits": {"hot": SPLIT}, "received_rows": {"hot": [6, 2]}, "dedup_distinct_ranks": 1.5,
             "dedup_tolerance": 0.1}


def rows(rank_changed=1, **changes):
    found = []
    for rank, received, ids in ((0, 6, [0, 1, 2, 4, 5, 6]), (1, 2, [3, 7])):
        found += [
            {"kind": "case", "rank": rank, "case": "hot", "matrix": [SPLIT, SPLIT], "received_rows": received,
             "num_ids": 4, "num_ids_wrong": 0, "ids_sum": sum(ids), "ids_distinct": len(ids), "out_norm": 2.0,
             "out_rel_diff": 0.0},
            {"kind": "calls", "rank": rank, "all_to_alls": 3},
            {"kind": "dedup", "rank": rank, "num_tokens": 4, "pair_matrix": [[4, 4], [4, 4]],
             "rank_matrix": [[3, 3], [3, 3]], "rel_diff": 0.0},
        ]
    for kind, values in changes.items():
        next(row for row in found if row["kind"] == kind and row["rank"] == rank_changed).update(values)
    return found


def failed(found, **predicted):
    oracles = moe_oracles.moe_oracles(
        found, moe_results.structure(found, ["hot"]), {**PREDICTED, **predicted}, cases=["hot"], bound=1e-5,
        calls=moe_results.calls_per_step(found), dedup=moe_results.dedup(found))
    return {oracle.name for oracle in oracles if not oracle.passed}


def test_right_rows_pass():
    assert failed(rows()) == set()
    seen = moe_results.structure(rows(), ["hot"])
    assert seen["received"] == {"hot": [6, 2]} and seen["max_mean"] == {"hot": 1.5}
    assert moe_results.dedup(rows()) == {"pair_rows": 8, "rank_rows": 6, "num_tokens": 8, "saved_share": 0.25,
                                         "distinct_ranks": 1.5, "rel_diff": 0.0}


@pytest.mark.parametrize(("changes", "name"), [
    ({"case": {"num_ids_wrong": 1}}, "token ids come back in place"),
    ({"case": {"received_rows": 3}}, "rows received as predicted, every rank"),
    ({"case": {"ids_distinct": 1}}, "every id arrives exactly once"),
    ({"case": {"ids_sum": 11}}, "every id arrives exactly once"),
    ({"case": {"out_rel_diff": 1e-3}}, "every output row is its own expert's"),
    ({"case": {"out_norm": 0.0}}, "every output row is its own expert's"),
    ({"calls": {"all_to_alls": 4}}, "all-to-alls in one step"),
    ({"dedup": {"rel_diff": 1e-3}}, "one row per rank gives the same output"),
])
def test_one_wrong_number_fails_one_check(changes, name):
    assert failed(rows(**changes)) == {name}


def test_plan_and_formula_are_compared_too():
    assert failed(rows(rank_changed=0, case={"matrix": [SPLIT, [1, 3]]})) == {"traffic matrix as planned"}
    assert failed(rows(), dedup_distinct_ranks=1.2) == {"ranks of a token as the formula says"}


def test_a_rank_that_did_not_check_is_an_error():
    with pytest.raises(LookupError):
        moe_results.structure([row for row in rows() if (row["kind"], row["rank"]) != ("case", 0)], ["hot"])


def test_a_bound_tells_rounding_from_another_row():
    for dtype, most in (("fp32", 1e-4), ("fp16", 0.01), ("bf16", 0.1)):
        assert 0 < moe_oracles.row_bound(dtype=dtype, hidden=1024, ffn=4096) < most

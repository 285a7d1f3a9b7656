"""Where a claim stands: hand-built miniature ledgers and records for every status and every rule."""

from dataclasses import asdict

import pytest

from labkit import claims
from labkit.ledger.compare import Seen, direction
from labkit.presets import UsageError
from labkit.records import open_run_dir, quantity
from tests.toy_ledger import Place, a_claim, an_erratum, from_record, slip, write_ledger


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path)


def test_a_formula_verifies(place):
    row = place.row(a_claim())
    assert asdict(row) == {
        "id": "toy-sum", "kind": "structural", "role": "result", "status": "verified", "expected": 4, "seen": 4,
        "tolerance": 0.0, "record": None, "reason": "follows from the source's own figures",
    }


def test_a_changed_value_differs(place):
    row = place.row(a_claim(value=5))
    assert (row.status, row.expected, row.seen) == ("differs", 5, 4)


def test_a_calculator_verifies_and_its_unit_can_be_changed(place):
    check = {"by": "calc", "call": "labkit.calc.ddp:num_parameters", "args": {"parameters": [["w", [2, 3]]]},
             "expr": "out / 3"}
    assert place.row(a_claim(value=2, check=check)).status == "verified"
    assert place.row(a_claim(value=3, check=check)).status == "differs"


def test_text_to_read_is_not_run(place):
    row = place.row(a_claim(check={"by": "read", "reason": "advice"}))
    assert (row.status, row.seen, row.reason) == ("not_run", None, "advice")


def test_no_record_is_not_run_and_says_what_it_needs(place):
    row = place.row(a_claim(check=from_record(needs="2 gloo ranks")))
    assert row.status == "not_run"
    assert row.reason == "no record of toy yet; needs 2 gloo ranks"


def test_a_local_record_verifies(place):
    run_id = place.run(1, {"count": 4})
    row = place.row(a_claim(check=from_record()))
    assert (row.status, row.record, row.seen) == ("verified", run_id, 4)


def test_a_record_that_gives_another_count_differs(place):
    place.run(1, {"count": 5})
    assert place.row(a_claim(check=from_record())).status == "differs"


def test_a_committed_record_of_this_hardware_is_this_machine(place):
    place.run(1, {"count": 4}, root=place.committed)
    assert place.row(a_claim(check=from_record())).status == "verified"


def test_a_committed_record_of_other_hardware_is_elsewhere(place):
    run_id = place.run(1, {"count": 4}, root=place.committed, tag="h200-x2")
    row = place.row(a_claim(check=from_record()))
    assert (row.status, row.record) == ("reproduced_elsewhere", run_id)


def test_other_hardware_that_differs_is_not_reproduced(place):
    place.run(1, {"count": 5}, root=place.committed, tag="h200-x2")
    assert place.row(a_claim(check=from_record())).status == "differs"


def test_this_machine_is_asked_before_a_newer_record_of_another(place):
    place.run(1, {"count": 5})
    place.run(2, {"count": 4}, root=place.committed, tag="h200-x2")
    row = place.row(a_claim(check=from_record()))
    assert (row.status, row.seen) == ("differs", 5)


def test_the_newest_record_counts(place):
    place.run(1, {"count": 4})
    place.run(2, {"count": 5})
    assert place.row(a_claim(check=from_record())).status == "differs"
    place.run(3, {"count": 4})
    assert place.row(a_claim(check=from_record())).status == "verified"


def test_among_this_machine_s_records_the_newest_counts_local_or_committed(place):
    place.run(1, {"count": 5})
    place.run(2, {"count": 4}, root=place.committed)
    assert place.row(a_claim(check=from_record())).status == "verified"


@pytest.mark.parametrize(
    "bad", [{"status": "failed", "passed": False}, {"status": "failed"}, {"evidence": "simulated"}])
def test_a_bad_record_never_verifies_and_the_older_good_one_counts(place, bad):
    place.run(2, {"count": 4}, **bad)
    row = place.row(a_claim(check=from_record()))
    assert row.status == "not_run" and "1 failed, incomplete, changed or simulated" in row.reason
    good = place.run(1, {"count": 4})
    assert place.row(a_claim(check=from_record())).record == good


def test_an_incomplete_run_is_passed_over(place):
    open_run_dir("toy", "20260109T000000Z_cpu-2c_abc", params={}, root=place.local)
    good = place.run(1, {"count": 4})
    assert place.row(a_claim(check=from_record())).record == good


def test_a_changed_byte_and_a_moved_record_are_passed_over(place):
    run_id = place.run(1, {"count": 4})
    path = place.local / "toy" / run_id / "record.json"
    path.write_text(path.read_text().replace('"count": 4', '"count": 5'))
    assert place.row(a_claim(value=5, check=from_record())).status == "not_run"
    place.run(2, {"count": 4})
    (place.local / "toy").rename(place.local / "other")
    assert place.row(a_claim(check=from_record(experiment="other"))).status == "not_run"


def test_a_record_without_the_result_or_a_key_is_passed_over(place):
    good = place.run(1, {"count": {"extra": 1, "b": 6, "a": 4}})
    place.run(2, {"count": {"a": 9}})
    place.run(3, {})
    row = place.row(a_claim(value={"a": 4, "b": 6}, check=from_record()))
    assert (row.status, row.record) == ("verified", good)
    assert list(row.seen.items()) == [("a", 4), ("b", 6)]  # what the claim speaks of, in its order


def test_a_record_without_the_result_is_named_when_none_fits(place):
    run_id = place.run(3, {"other": 1})
    row = place.row(a_claim(check=from_record()))
    assert row.status == "not_run"
    assert run_id in row.reason and "count" in row.reason


def test_a_record_with_other_settings_is_passed_over(place):
    good = place.run(1, {"count": 4}, params={"layers": 12})
    place.run(2, {"count": 5}, params={"layers": 2})
    of_check = place.row(a_claim(check=from_record(params={"layers": 12})))
    of_experiment = place.row(a_claim(check=from_record()), experiments={"toy": {"params": {"layers": 12}}})
    assert of_check.record == of_experiment.record == good
    assert of_check.status == of_experiment.status == "verified"


def test_a_record_with_too_few_ranks_is_passed_over(place):
    place.run(2, {"count": 5}, params={"world_size": 1})
    place.run(3, {"count": 6})
    rules = {"toy": {"at_least": {"world_size": 2}}}
    row = place.row(a_claim(check=from_record()), experiments=rules)
    assert row.status == "not_run" and "world_size=None, the claim needs at least 2" in row.reason
    good = place.run(1, {"count": 4}, params={"world_size": 2})
    assert place.row(a_claim(check=from_record()), experiments=rules).record == good


def test_a_record_on_which_an_expression_fails_is_passed_over(place):
    check = {"by": "record", "experiment": "toy", "expr": "8 / result('count') * param('n')", "expect": 4}
    good = place.run(1, {"count": 4}, params={"n": 2})
    place.run(2, {"count": 0}, params={"n": 2})
    place.run(3, {"count": None}, params={"n": 2})
    place.run(4, {"count": 4})
    row = place.row(a_claim(check=check))
    assert (row.status, row.record) == ("verified", good)


def test_a_claim_for_gpus_ignores_records_without_one(place):
    place.run(2, {"count": 4})
    row = place.row(a_claim(check=from_record(hardware="gpu")))
    assert (row.status, row.reason) == ("not_run", "no record of toy on a GPU yet")
    run_id = place.run(1, {"count": 4}, root=place.committed, tag="h200-x2")
    assert place.row(a_claim(check=from_record(hardware="gpu"))).record == run_id


def test_one_entry_of_a_result(place):
    place.run(1, {"count": {"a": 4}})
    assert place.row(a_claim(check=from_record(key="a"))).status == "verified"
    assert place.row(a_claim(check=from_record(key="z"))).status == "not_run"


def test_an_expression_on_a_record(place):
    place.run(1, {"count": {"a": 4, "b": 2}})
    check = {"by": "record", "experiment": "toy", "expr": "result('count', 'a') / result('count', 'b')", "expect": 2}
    assert place.row(a_claim(check=check)).status == "verified"
    assert place.row(a_claim(check=check | {"expect": 3})).status == "differs"


# --- timing


def timing(**changes):
    return a_claim(kind="timing", value=2.59, check=from_record(
        result="", expr="result('rate', 'a') / result('rate', 'b')", compare="direction 1", **changes))


def rates(a, b):
    return {"rate": {"a": quantity(a, "tokens/s"), "b": quantity(b, "tokens/s")}}


def test_direction_is_judged_not_size(place):
    place.run(1, rates([9.0, 10.0, 11.0], [1.0, 1.1, 1.2]))
    assert place.row(timing()).status == "verified"


def test_the_opposite_direction_differs(place):
    place.run(1, rates([1.0, 1.1, 1.2], [9.0, 10.0, 11.0]))
    row = place.row(timing())
    assert row.status == "differs" and "opposite" in row.reason


def test_spread_over_the_pivot_is_no_direction(place):
    place.run(1, rates([9.0, 10.0, 12.0], [8.0, 9.5, 11.0]))  # 9/11 .. 12/8 reaches over 1, although 10 > 9.5
    row = place.row(timing())
    assert row.status == "differs" and "p10-p90" in row.reason


@pytest.mark.parametrize(
    ("expected", "seen", "pivot", "word"),
    [
        (2.0, Seen(1.5, 1.2, 1.9), 1, "same"), (0.5, Seen(1.5, 1.2, 1.9), 1, "opposite"),
        (2.0, Seen(1.5, 0.9, 1.9), 1, "unresolved"), (1.0, Seen(0.2), 1, "not judged"), (-3, Seen(-0.1), 0, "same"),
        (-3, Seen(0.0), 0, "unresolved"),
    ],
)
def test_direction(expected, seen, pivot, word):
    assert direction(expected, seen, pivot) == word


def test_another_machine_s_time_is_shown_beside_and_never_judged(place):
    run_id = place.run(1, {"step_ms": {"a": quantity([1.0], "ms")}}, root=place.committed, tag="h200-x2")
    row = place.row(a_claim(kind="timing", value={"a": 127.1}, check=from_record(result="step_ms", compare="beside")))
    assert (row.status, row.seen, row.record) == ("not_run", {"a": 1}, run_id)


# --- arithmetic and a record together


def two_part(value=4, expr="2 + 2", compare="exact", **changes):
    check = {"by": "formula", "expr": expr, "compare": compare}
    return a_claim(value=value, check=check, measure=from_record(), **changes)


def test_a_prediction_counts_until_a_record_answers(place):
    assert place.row(two_part()).status == "verified"
    assert "no record of toy yet" in place.row(two_part()).reason
    place.run(1, {"count": 4}, root=place.committed, tag="h200-x2")
    assert place.row(two_part()).status == "reproduced_elsewhere"
    place.run(1, {"count": 4})
    assert place.row(two_part()).status == "verified"
    place.run(2, {"count": 3})
    row = place.row(two_part())
    assert (row.status, row.seen) == ("differs", 3)


def test_wrong_arithmetic_differs_whatever_a_record_says(place):
    place.run(1, {"count": 4})
    assert place.row(two_part(expr="2 + 3")).status == "differs"


# --- errata and must-hold


def test_a_known_erratum_differs_and_is_named(place):
    row = place.row(slip(), errata=[an_erratum()])
    assert (row.status, row.expected, row.seen) == ("differs", 5, 4)
    assert "printed value is erratum E1" in row.reason


def test_a_recomputed_value_that_is_not_the_corrected_one_is_no_known_erratum(place):
    row = place.row(slip(corrected=3), errata=[an_erratum()])
    assert row.status == "differs" and "erratum" not in row.reason


def test_only_must_hold_claims_that_differ_fail(place):
    good, bad = a_claim(must_hold=True), a_claim(id="toy-bad", value=5, must_hold=True)
    shown = a_claim(id="toy-shown", value=5)
    unseen = a_claim(id="toy-unseen", must_hold=True, check=from_record())
    write_ledger(place.ledger, good, bad, shown, unseen)
    rows = claims.verify(roots=(place.local, place.committed), tag="cpu-2c", folder=place.ledger)
    assert [row.id for row in claims.failed(rows, folder=place.ledger)] == ["toy-bad"]
    assert claims.summary(rows)["by_status"] == {"verified": 1, "reproduced_elsewhere": 0, "differs": 2, "not_run": 1}


def test_a_part_of_a_calculators_answer(place):
    args = {"registers_per_thread": 32, "threads_per_block": 256, "compute_capability": "7.0"}
    check = {"by": "calc", "call": "labkit.calc.occupancy:naive_occupancy", "part": "warps_per_sm", "args": args}
    assert place.row(a_claim(value=64, check=check)).status == "verified"  # 65,536 registers hold 2,048 threads of 32
    with pytest.raises(claims.LedgerError, match=r"toy-sum: .* has no 'warps' \(there is: blocks_per_sm"):
        place.row(a_claim(value=64, check=check | {"part": "warps"}))


def test_report_figures_are_those_of_the_claims_by_case():
    found = claims.report_figures({"count": "ddp-bucket-count", "both": ("ddp-bucket-tokens", "ddp-accum-tokens")})
    assert found["count"] == claims.get_claim("ddp-bucket-count").value
    assert found["both"].keys() > claims.get_claim("ddp-accum-tokens").value.keys()
    with pytest.raises(ValueError, match="preempt-66: has one figure"):
        claims.report_figures({"x": "preempt-66"})
    assert claims.report_figures({"x": "preempt-66"}, single="pct") == {"x": {"pct": 66.0}}


def test_a_lab_without_a_claim_has_no_rows_and_an_unknown_lab_is_refused(monkeypatch):
    monkeypatch.setattr(claims, "available_presets", lambda slug: ["smoke"] if slug == "new_lab" else [])
    assert claims.verify(lab="new_lab") == []
    with pytest.raises(UsageError, match="no_lab"):
        claims.verify(lab="no_lab")

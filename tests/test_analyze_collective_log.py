"""Diagnosis of logs that a player wrote: which rank, which call, and what each weaker detector misses."""

import pytest

from labkit.analyze.collective_log import (
    SEQUENCE_FIELDS,
    diagnose,
    is_found,
    total_is_kept,
    wrong_sums,
)
from labkit.analyze.mesh_results import detection
from labkit.calc.collective_schedule import FAULTS, mesh_schedule, play
from labkit.calc.mesh_mapping import mesh_groups
from labkit.calc.mesh_prediction import random_faults, report_members


@pytest.fixture(scope="module")
def many():
    return random_faults(num_cases=400, num_steps=4, first_seed=0)


def test_faults_are_named_by_rank_and_call(many):
    """The promise: 95 % of at least 200 random faults; here each one has to be."""
    cases, played = many
    found = [diagnose(result["logs"]) for result in played]
    hits = [is_found(f, rank=case["rank"], index=case["index"]) for f, case in zip(found, cases, strict=True)]
    assert len(cases) >= 200 and all(hits)
    for f, case in zip(found, cases, strict=True):
        assert f["expected"]["tensor"] == case["call"]["tensor"] and f["expected"]["axis"] == case["call"]["axis"]


def test_kind_is_never_wrong_and_mostly_known(many):
    cases, played = many
    kinds = [(case["kind"], diagnose(result["logs"])["kind"]) for case, result in zip(cases, played, strict=True)]
    assert all(guess in (kind, "order") for kind, guess in kinds)
    assert sum(guess == kind for kind, guess in kinds) > 0.8 * len(kinds)


def test_no_fault_no_finding():
    groups = mesh_groups(axes=[["TP", 2], ["PP", 2], ["DP", 2]])
    healthy = mesh_schedule(groups=groups, calls={"TP": 4, "PP": 1, "DP": 1}, num_steps=2)
    logs = play(schedule=healthy, members=report_members())["logs"]
    assert diagnose(logs) is None and not wrong_sums(logs) and total_is_kept(logs)


def test_a_checksum_of_everything_never_sees_a_swap(many):
    cases, played = many
    for case, result in zip(cases, played, strict=True):
        if case["kind"] == "swapped_order" and not result["hang"] and not result["error"]:
            assert total_is_kept(result["logs"])


def test_a_log_without_names_takes_the_wrong_call(many):
    """Four all-reduces of one shape in a row: when the first is left out, the log differs only after the fourth."""
    cases, played = many
    late = 0
    for case, result in zip(cases, played, strict=True):
        found = diagnose(result["logs"], fields=SEQUENCE_FIELDS)
        if case["kind"] == "missing_call" and found and found["index"] > case["index"]:
            assert found["rank"] == case["rank"]  # the rank is still right
            late += 1
    assert late > 10


def test_detection_counts_by_hand():
    cases, played = random_faults(num_cases=8, num_steps=1, first_seed=3)
    found = detection(cases, played)
    assert found["num_cases"] == 8 and found["named_pct"] == 100 and found["missed"] == []
    loud = [result["hang"] or result["error"] for result in played]
    assert found["silent_pct"] == pytest.approx(100 * loud.count(False) / 8)
    assert set(found["noticed_pct"]) == set(FAULTS)
    assert found["noticed_pct"]["wrong_shape"]["hang or error"] == 100
    blind = detection(cases, [{**result, "logs": [log[:0] for log in result["logs"]]} for result in played])
    assert blind["named_pct"] == 0 and len(blind["missed"]) == 8


def test_two_ranks_give_no_majority():
    entry = {"step": 0, "axis": "P", "op": "all_reduce", "shape": [4], "dtype": "float32"}
    found = diagnose([[{**entry, "tag": 1}, {**entry, "tag": 2}], [{**entry, "tag": 2}, {**entry, "tag": 1}]])
    assert found["rank"] is None and found["ranks"] == [0, 1] and found["index"] == 0


def test_a_rank_that_ended_early_is_the_odd_one():
    entry = {"step": 0, "axis": "P", "op": "all_reduce", "shape": [4], "dtype": "float32", "tag": 1}
    found = diagnose([[entry, entry], [entry, entry], [entry, {"end": True}]])
    assert (found["rank"], found["index"], found["seen"], found["kind"]) == (2, 1, None, "missing_call")
    found = diagnose([[entry, {"end": True}], [entry, {"end": True}], [entry, entry]])
    assert (found["rank"], found["kind"]) == (2, "extra_call")

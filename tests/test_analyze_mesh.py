"""Checks of the process-group lab on rows written by hand: no rank is started."""

import json

import pytest

from labkit.analyze import mesh_oracles, mesh_results
from labkit.analyze.mesh_results import real_faults, recorder_facts
from labkit.calc.mesh_prediction import pair_values, random_faults

PREDICTED = {"groups": {"m": {"TP": [[0, 1]]}}, "order_values": pair_values(), "slow_floor_ms": {"m": {"TP": 10.0}}}
SHAPES = {"A": [8], "B": [8]}
DETECTION = {"num_cases": 200, "named_pct": 95.0}


def rows(**changes):
    found = []
    for rank in (0, 1):
        found += [
            {"kind": "created", "prefix": "m", "order": [["m.TP0", [0, 1]]], "mine": {"TP": [0, 1]}},
            {"kind": "sum", "mapping": "m", "axis": "TP", "ranks": [0, 1], "value": [3.0] * 4, "expected": 3.0},
            {"kind": "phase", "mapping": "m", "phase": "TP", "index": 0, "start_s": 0.0, "time_s": 0.01,
             "wrong": {"TP": 0}},
            {"kind": "order", "is_swapped": False, "values": {"A": [2001.0], "B": [4001.0]}, "shapes": dict(SHAPES)},
            {"kind": "order", "is_swapped": True, "values": {"A": [3001.0], "B": [3001.0]}, "shapes": dict(SHAPES)},
        ]
        for row in found[-5:]:
            row["rank"] = rank
    for kind, values in changes.items():
        next(row for row in found if row["kind"] == kind and row["rank"] == 1).update(values)
    return found


def failed(found, *, detection=None, real=None, slow=None):
    oracles = mesh_oracles.mesh_oracles(found, PREDICTED, detection=detection or DETECTION, real=real, recorder=None,
                                        is_cuda=False, slow=slow or {}, num_ranks=2)
    return {oracle.name for oracle in oracles if not oracle.passed}


def test_right_rows_pass():
    assert failed(rows()) == set()


@pytest.mark.parametrize(("changes", "name"), [
    ({"sum": {"value": [3.0, 3.0, 2.0, 3.0]}}, "first sum of every group is the closed form"),
    ({"sum": {"ranks": [0, 1, 2]}}, "first sum of every group is the closed form"),
    ({"phase": {"wrong": {"TP": 1}}}, "payload after every timed phase is the closed form"),
    ({"created": {"order": [["m.TP0", [1, 0]]]}}, "every rank made all groups in one order"),
    ({"created": {"mine": {"TP": [0, 2]}}}, "groups of every mapping as planned"),
    ({"order": {"values": {"A": [2001.0], "B": [4001.0, 0.0]}}}, "the pair's values, in order and swapped"),
])
def test_one_wrong_row_fails_one_check(changes, name):
    assert failed(rows(**changes)) == {name}


def test_a_rank_that_reports_nothing_fails():
    assert len(failed([row for row in rows() if row["rank"] == 0])) >= 3
    assert "payload after every timed phase is the closed form" in failed(
        [row for row in rows() if row["kind"] != "phase"])


def test_too_few_or_too_few_named_faults_fail():
    for detection in ({"num_cases": 199, "named_pct": 100.0}, {"num_cases": 200, "named_pct": 94.9}):
        assert failed(rows(), detection=detection) == {"faults named by rank and call"}
    assert failed(rows(), real={"num_cases": 4, "named": 3, "values_compared": 5, "values_differing": 0}) == {
        "faults on real ranks named by rank and call"}
    assert failed(rows(), real={"num_cases": 4, "named": 4, "values_compared": 0, "values_differing": 0}) == {
        "real ranks hold what the in-process player says"}


def test_a_phase_faster_than_its_wire_fails():
    assert failed(rows(), slow={"slow_tp_phase": {"m": {"p10": 9.9}}}) == {"no phase beats the slow wire"}
    assert failed(rows(), slow={"slow_tp_phase": {"m": {"p10": 10.0}}}) == set()


def test_real_logs_are_read_back_and_judged(tmp_path):
    """One case written as the worker writes it, by the player: named, every value compared; then one value changed."""
    cases, played = random_faults(num_cases=1, num_steps=1, first_seed=5)
    for rank, log in enumerate(played[0]["logs"]):
        lines = []
        for index, entry in enumerate(log):
            if entry.get("end"):
                lines.append({"event": "end"})
                continue
            call = {key: entry[key] for key in ("step", "axis", "group", "op", "shape", "dtype", "tensor", "seq")}
            lines.append({"event": "call", "index": index, **call})
            if entry["state"] == "completed":
                lines.append({"event": "done", "index": index, "values": [entry["value"]]})
            elif entry["state"] == "error":
                lines.append({"event": "error", "index": index, "error": "refused"})
        (tmp_path / f"case0_rank{rank}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (tmp_path / "faults.jsonl").write_text(json.dumps({"kind": "case", "case": 0, "exit_codes": [0] * 8}) + "\n")
    found = real_faults(tmp_path, cases, played)
    assert (found["named"], found["values_differing"], found["aborted"]) == (1, 0, 0) and found["values_compared"] > 0
    path = next(p for p in sorted(tmp_path.glob("case0_rank*")) if '"values": [' in p.read_text())
    path.write_text(path.read_text().replace('"values": [', '"values": [1', 1))
    assert real_faults(tmp_path, cases, played)["values_differing"] == 1
    (tmp_path / "case0_rank3.jsonl").write_text("{")
    with pytest.raises(ValueError, match=r"case0_rank3\.jsonl"):
        real_faults(tmp_path, cases, played)


def test_recorder_facts_by_hand():
    groups = {"0": {"desc": "default_pg"}, "5": {"desc": "pair"}, "9": {"desc": "missing"}}
    mismatch = {"group": "9", "seq": 2, "missing_ranks": [1]}
    found = recorder_facts({"ranks": [0, 1], "num_entries": {"0": 3, "1": 2}, "groups": groups,
                            "mismatches": [mismatch]})
    assert found == {"ranks": 2, "num_entries": 5, "sees_swap": False, "missing_named": [1], "missing_seq": 2,
                     "other_mismatches": []}
    assert mesh_results.order_setup(rows()) == {"ranks": 2, "shapes_equal": True}
    odd = rows(order={"shapes": {"A": [8], "B": [4]}})
    assert mesh_results.order_setup(odd) == {"ranks": 2, "shapes_equal": False}
    assert mesh_results.order_values(rows(), is_swapped=True) == {"A": [3001, 3001], "B": [3001, 3001]}

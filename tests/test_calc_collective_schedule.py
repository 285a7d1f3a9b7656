"""The player of schedules against two formulas that share no code with it, and what the faults do to a program."""

import random

import pytest

from labkit.calc.collective_choice import call_order
from labkit.calc.collective_order import reduced_by_position
from labkit.calc.collective_schedule import FAULTS, group_members, inject_fault, mesh_schedule, play, tensor_value
from labkit.calc.mesh_mapping import mesh_groups

GROUPS = mesh_groups(axes=[["TP", 2], ["PP", 2], ["DP", 2]])
MEMBERS = group_members(groups=GROUPS)
CALLS = {"TP": 4, "PP": 1, "DP": 1}


def one_group(orders):
    return [[{"step": 0, "axis": "P", "group": "P", "op": "all_reduce", "shape": [4], "dtype": "float32",
              "tensor": name} for name in order] for order in orders]


@pytest.mark.parametrize("seed", range(40))
def test_values_match_reduction_by_position(seed):
    """Random orders of five tensors on three ranks of one group."""
    draw = random.Random(seed)
    names = list("ABCDE")
    orders = [draw.sample(names, 5) for _ in range(3)]
    played = play(schedule=one_group(orders), members={"P": [0, 1, 2]})
    expected = reduced_by_position(
        orders=orders, values={name: [tensor_value(name, rank) for rank in range(3)] for name in names})
    seen = {name: [next(e["value"] for e in log if e.get("tensor") == name) for log in played["logs"]]
            for name in names}
    assert seen == expected and not played["hang"] and not played["error"]


@pytest.mark.parametrize("seed", range(60))
def test_hangs_match_the_wait_for_model(seed):
    """Random programs over all twelve groups, right and wrong: who gets how far, and whether anything is left."""
    draw = random.Random(seed)
    schedule = mesh_schedule(groups=GROUPS, calls=CALLS, num_steps=1)
    for own in schedule:
        if draw.random() < 0.3:
            draw.shuffle(own)
        if draw.random() < 0.2:
            own.pop()
    for own in schedule:
        for call in own:
            call["shape"] = [8]
    played = play(schedule=schedule, members=MEMBERS)
    model = call_order(calls=[[call["group"] for call in own] for own in schedule], members=MEMBERS)
    done = [sum(entry.get("state") == "completed" for entry in log) for log in played["logs"]]
    assert played["hang"] == model["deadlock"] and done == model["completed"]


def test_a_right_program_ends_with_right_sums():
    played = play(schedule=mesh_schedule(groups=GROUPS, calls=CALLS, num_steps=3), members=MEMBERS)
    entries = [entry for log in played["logs"] for entry in log if not entry.get("end")]
    assert len(entries) == 8 * 18 and all(entry["value"] == entry["expected"] for entry in entries)
    assert not played["hang"] and not played["error"] and all(log[-1] == {"end": True} for log in played["logs"])


def test_every_rank_runs_one_program_with_its_own_groups():
    schedule = mesh_schedule(groups=GROUPS, calls=CALLS, num_steps=2)
    assert len({tuple(call["tensor"] for call in own) for own in schedule}) == 1
    names = [call["tensor"] for call in schedule[0]]
    assert len(set(names)) == len(names) == 12
    assert all(rank in MEMBERS[call["group"]] for rank, own in enumerate(schedule) for call in own)


@pytest.mark.parametrize("kind", FAULTS)
@pytest.mark.parametrize("seed", range(25))
def test_a_fault_changes_one_rank_from_the_named_place_on(kind, seed):
    schedule = mesh_schedule(groups=GROUPS, calls=CALLS, num_steps=2)
    case = inject_fault(schedule=schedule, kind=kind, seed=seed)
    changed = [rank for rank in range(8) if case["schedule"][rank] != schedule[rank]]
    own, index = case["schedule"][case["rank"]], case["index"]
    assert changed == [case["rank"]] and own[:index] == schedule[case["rank"]][:index]
    assert case["call"] == schedule[case["rank"]][index] and own[index: index + 1] != [case["call"]]
    assert len(own) == 12 - (kind == "missing_call")
    played = play(schedule=case["schedule"], members=MEMBERS)
    if kind == "missing_call":
        assert played["hang"]
    if kind == "wrong_shape":
        assert played["error"]


def test_kinds_and_arguments_are_checked():
    schedule = mesh_schedule(groups={"TP": [[0, 1]]}, calls={"TP": 1}, num_steps=1)
    with pytest.raises(ValueError, match="kind='late'"):
        inject_fault(schedule=schedule, kind="late", seed=0)
    with pytest.raises(ValueError, match="at least two to swap"):
        inject_fault(schedule=schedule, kind="swapped_order", seed=0)
    with pytest.raises(ValueError, match="two or more for wrong_group"):
        inject_fault(schedule=schedule, kind="wrong_group", seed=0)
    with pytest.raises(ValueError, match="expected rank 1, which calls it"):
        play(schedule=schedule, members={"TP0": [0]})

"""Parts of the mesh and expert workers that need no process group: closed forms, routes, refusals."""

import os
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from labkit.calc import collective_schedule  # noqa: E402
from labkit.workers import mesh_groups, moe_layer, order_faults, two_nodes  # noqa: E402
from labkit.workers.moe_layer import Route, check_splits, make_route  # noqa: E402


def session(rank, gathered):
    return SimpleNamespace(rank=rank, world_size=2, gather=lambda value: gathered or [value])


def test_payloads_are_exact_and_one_wrong_element_is_seen():
    """Ranks 0 and 5 after three calls of two members: (1 + 6) * 2 * 2 times the pattern."""
    base = mesh_groups.pattern(1000, torch.device("cpu"))
    assert base.max() == 251 and base[251] == base[0] == 1
    right = base * (1 + 6) * 4
    assert mesh_groups.wrong_elements(right, base, [0, 5], 3) == 0
    assert mesh_groups.wrong_elements(right, base, [0, 5], 2) == 1000
    right[17] += 1
    assert mesh_groups.wrong_elements(right, base, [0, 5], 3) == 1
    assert mesh_groups.wrong_elements(base.roll(1) * 28, base, [0, 5], 3) > 900  # a piece in another place
    assert mesh_groups.wrong_elements(torch.zeros(3), torch.ones(3), [0, 1], 0) == 0  # no call: nothing summed


def test_without_rights_nothing_changes(monkeypatch):
    monkeypatch.setattr(two_nodes, "_new_namespace", lambda: "network namespace: Operation not permitted")
    monkeypatch.setattr(two_nodes, "_set_namespace", lambda handle: None)
    monkeypatch.setenv(two_nodes.IFNAME, "eth7")
    with two_nodes.two_nodes(session(0, None), mbit_per_s=10) as refusal:
        assert refusal == "network namespace: Operation not permitted" and os.environ[two_nodes.IFNAME] == "eth7"
    monkeypatch.delenv(two_nodes.IFNAME)
    with two_nodes.two_nodes(session(0, [None, "tc: not found"]), mbit_per_s=10) as refusal:
        assert refusal == "tc: not found"  # another rank's problem is everybody's
    assert two_nodes.IFNAME not in os.environ


def test_a_missing_command_is_a_sentence():
    assert two_nodes._command("no-such-command-of-labkit") == "no-such-command-of-labkit: FileNotFoundError"
    assert two_nodes._command("false").startswith("false: ")
    assert two_nodes._command("true") is None


@pytest.mark.parametrize("split", [[3, 0, 5], [0, 0, 4], [1], [2, 2]])
def test_a_route_sorts_by_destination_and_loses_nothing(split):
    route = make_route(split, seed=3, device=torch.device("cpu"))
    assert route.send == split and sorted(route.order.tolist()) == list(range(sum(split)))
    other = make_route(split, seed=4, device=torch.device("cpu"))
    assert sum(split) < 5 or len(split) < 2 or not torch.equal(route.order, other.order)


def test_splits_that_do_not_fit_are_refused_before_anything_is_sent():
    route = Route(torch.arange(3), [1, 2])
    assert check_splits(route, [1, 4], session(0, [([1, 2], [1, 4]), ([4, 0], [2, 0])])) == [[1, 2], [4, 0]]
    with pytest.raises(RuntimeError, match=r"rank 1 expects \[3, 0\] rows from the others, they send \[2, 0\]"):
        check_splits(route, [1, 4], session(0, [([1, 2], [1, 4]), ([4, 0], [3, 0])]))


def test_an_expert_can_be_made_anywhere_and_no_rows_give_none():
    params = {"seed": 2, "hidden": 4, "ffn": 8, "dtype": "fp32"}
    one, again, other = (moe_layer.expert_weights(expert, params, torch.device("cpu")) for expert in (1, 1, 2))
    assert torch.equal(one[0], again[0]) and not torch.equal(one[0], other[0])
    assert moe_layer.apply_expert(torch.empty(0, 4), one).shape == (0, 4)
    rows = torch.randn(5, 4)
    by_hand = torch.nn.functional.gelu(rows.double() @ one[0].double()) @ one[1].double()
    assert torch.allclose(moe_layer.apply_expert(rows, one).double(), by_hand, atol=1e-5)


@pytest.mark.parametrize("name", ["A", "s3.TP.2", "s0.DP.0"])
def test_worker_and_player_fill_tensors_alike(name):
    """Written twice, because workers import no formulas: they must not drift apart."""
    for rank in range(8):
        assert order_faults.tensor_value(name, rank) == collective_schedule.tensor_value(name, rank) < 2**24 / 8


def test_combine_undoes_dispatch_with_the_splits_exchanged(monkeypatch):
    """One rank that talks to itself: four rows out in the order of their destinations, back in their own."""
    calls = []

    def exchange(out, rows, *, output_split_sizes, input_split_sizes):
        assert len(out) == sum(output_split_sizes) and len(rows) == sum(input_split_sizes)
        calls.append((output_split_sizes, input_split_sizes))
        out.copy_(rows[: len(out)] if len(out) <= len(rows) else torch.cat([rows, rows])[: len(out)])

    monkeypatch.setattr(moe_layer.dist, "all_to_all_single", exchange)
    route, rows = Route(torch.tensor([2, 0, 3, 1]), [4]), torch.tensor([10.0, 11.0, 12.0, 13.0])
    arrived = moe_layer.dispatch(rows, route, [4])
    assert arrived.tolist() == [12.0, 10.0, 13.0, 11.0]
    assert torch.equal(moe_layer.combine(arrived, route, [4]), rows)
    calls.clear()
    moe_layer.dispatch(rows, route, [6])
    moe_layer.combine(torch.zeros(6), route, [6])
    assert calls == [([6], [4]), ([4], [6])]

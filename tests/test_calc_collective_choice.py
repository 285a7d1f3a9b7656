"""Ring or tree, protocols, meshes and call orders: printed figures, times put back, small cases played by hand."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.calc import collective_choice as choice
from labkit.calc import collectives


def test_printed_figures():
    """Extra questions 7, 9 and 11: 912 MB; 0.5, 0.9375, 400 kB; 224 groups."""
    cross = choice.ring_tree_crossover_bytes(world_size=64, alpha_s=5e-6, bytes_per_s=50e9)
    assert cross / 1e6 == pytest.approx(912)
    assert [choice.protocol_efficiency(p) for p in ("LL", "LL128")] == [0.5, 0.9375]
    kilo = choice.protocol_crossover_bytes(
        fast_start="LL", full_rate="Simple", fast_latency_s=2e-6, full_latency_s=10e-6, bytes_per_s=50e9)
    assert kilo / 1e3 == pytest.approx(400)
    assert choice.num_mesh_groups(degrees=[8, 4, 16]) == 224


@given(power=st.integers(1, 10), alpha=st.floats(1e-7, 1e-3), rate=st.floats(1e6, 1e12))
def test_ring_and_tree_take_equally_long_at_the_crossover(power, alpha, rate):
    """Identity with the alpha-beta times, at powers of two where no step is rounded."""
    n = 2**power
    size = choice.ring_tree_crossover_bytes(world_size=n, alpha_s=alpha, bytes_per_s=rate)
    ring, tree = (collectives.all_reduce_time_s(
        size_bytes=size, world_size=n, alpha_s=alpha, bytes_per_s=rate, algorithm=a) for a in ("ring", "tree"))
    assert ring == pytest.approx(tree) and (size == 0) == (n == 2)


def test_mesh_groups_by_listing_lines():
    """Slow version: the coordinates of 2 x 3 x 4 ranks, with one axis left open at a time."""
    degrees = (2, 3, 4)
    ranks = list(itertools.product(*map(range, degrees)))
    lines = {(axis, rank[:axis] + rank[axis + 1 :]) for rank in ranks for axis in range(3)}
    assert choice.num_mesh_groups(degrees=list(degrees)) == len(lines)


@pytest.mark.parametrize(
    ("calls", "deadlock"),
    [
        ([["A", "B"], ["B", "A"]], True),
        ([["A", "B"], ["A", "B"]], False),
        ([["A"], ["A", "A"]], True),  # one call too many
        ([[["A", "ar", 10]], [["A", "ar", 11]]], True),  # other size
        ([["A", "B"], ["A"], ["B"]], False),  # overlapping groups in one order
        ([["A", "C"], ["B", "A"], ["C", "B"]], True),  # a cycle over three groups
        ([[], []], False),
    ],
)
def test_call_orders(calls, deadlock):
    """Extra question 10."""
    found = choice.call_order(calls=calls)
    assert found["deadlock"] is deadlock
    assert bool(found["waiting"]) is deadlock
    if not deadlock:
        assert found["completed"] == [len(own) for own in calls]


def test_a_group_waits_for_members_that_never_call():
    found = choice.call_order(calls=[["A"], []], members={"A": [0, 1]})
    assert found == {"deadlock": True, "completed": [0, 0], "waiting": {"0": ["A"]}}


@given(order=st.permutations(["A", "B", "C", "D"]), ranks=st.integers(1, 5))
def test_one_order_for_all_never_hangs(order, ranks):
    assert not choice.call_order(calls=[list(order)] * ranks)["deadlock"]


def test_first_mismatch():
    """Extra question 43: rank 2 is one call short."""
    log = [["ar", 10], ["ag", 5], ["ar", 7]]
    assert choice.first_mismatch(logs=[log, log, log[:2], log]) == {"index": 2, "ranks": [2]}
    assert choice.first_mismatch(logs=[log, log]) is None
    assert choice.first_mismatch(logs=[[["ar", 9], *log[1:]], log, log]) == {"index": 0, "ranks": [0]}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: choice.ring_tree_crossover_bytes(world_size=1, alpha_s=1, bytes_per_s=1), "world_size=1"),
        (lambda: choice.protocol_efficiency("LL64"), "protocol='LL64'"),
        (lambda: choice.protocol_crossover_bytes(
            fast_start="Simple", full_rate="LL", fast_latency_s=1, full_latency_s=2, bytes_per_s=1), "full_rate='LL'"),
        (lambda: choice.protocol_crossover_bytes(
            fast_start="LL", full_rate="Simple", fast_latency_s=2, full_latency_s=1, bytes_per_s=1),
         "full_latency_s=1"),
        (lambda: choice.num_mesh_groups(degrees=[]), "degrees="),
        (lambda: choice.num_mesh_groups(degrees=[2, 0]), "degrees=0"),
        (lambda: choice.call_order(calls=[[[]]]), r"calls\[0\]"),
        (lambda: choice.call_order(calls=[["A"]], members={"A": [1]}), r"members\[A\]"),
        (lambda: choice.first_mismatch(logs=[[]]), "logs: 1 ranks"),
    ],
)
def test_bad_input_names_the_argument(call, message):
    with pytest.raises(ValueError, match=message):
        call()

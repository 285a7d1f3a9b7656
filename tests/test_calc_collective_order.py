"""Order of collectives: the formula, and the same calls on two real Gloo ranks."""

import threading
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.calc.collective_choice import call_order
from labkit.calc.collective_order import reduced_by_position

VALUES = {"A": [1000, 1001], "B": [2000, 2001]}
ORDERED, SWAPPED = [["A", "B"], ["A", "B"]], [["A", "B"], ["B", "A"]]


def two_gloo_ranks(orders, *, group_of, waits, timeout_s=20.0):
    """Values after the all-reduces, by name and rank, or the error that each rank got."""
    torch = pytest.importorskip("torch")
    dist = torch.distributed
    store, results = dist.HashStore(), [None, None]

    def rank_main(rank):
        groups = {name: dist.ProcessGroupGloo(dist.PrefixStore(name, store), rank, 2, timedelta(seconds=timeout_s))
                  for name in sorted(set(group_of.values()))}
        tensors = {name: torch.full((4,), float(VALUES[name][rank])) for name in VALUES}
        works = []
        try:
            for name in orders[rank]:
                works.append(groups[group_of[name]].allreduce([tensors[name]]))
                if waits:
                    works[-1].wait()
            for work in works:
                work.wait()
            results[rank] = {name: tensor[0].item() for name, tensor in tensors.items()}
        except RuntimeError as error:
            results[rank] = str(error)

    threads = [threading.Thread(target=rank_main, args=(rank,)) for rank in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if all(isinstance(result, dict) for result in results):
        return {name: [result[name] for result in results] for name in VALUES}
    return results


def test_report_values():
    """Report section 12.3: 2001 and 4001 in order; 3001 twice when one rank swaps."""
    assert reduced_by_position(orders=ORDERED, values=VALUES) == {"A": [2001, 2001], "B": [4001, 4001]}
    assert reduced_by_position(orders=SWAPPED, values=VALUES) == {"A": [3001, 3001], "B": [3001, 3001]}
    pairs = [["A", [1000, 1001]], ["B", [2000, 2001]]]
    assert reduced_by_position(orders=SWAPPED, values=pairs) == reduced_by_position(orders=SWAPPED, values=VALUES)


@pytest.mark.parametrize("waits", [True, False])
@pytest.mark.parametrize("orders", [ORDERED, SWAPPED])
def test_real_ranks_match_by_position(orders, waits):
    """One group: the swapped order does not hang, it is wrong."""
    found = two_gloo_ranks(orders, group_of={"A": "one", "B": "one"}, waits=waits)
    assert found == reduced_by_position(orders=orders, values=VALUES)


def test_real_ranks_deadlock_on_two_groups_only_if_they_wait():
    """Two groups in opposite orders: blocking calls hang until the timeout, asynchronous ones are right."""
    groups = {"A": "first", "B": "second"}
    assert call_order(calls=SWAPPED)["deadlock"]
    errors = two_gloo_ranks(SWAPPED, group_of=groups, waits=True, timeout_s=1.0)
    assert isinstance(errors, list) and any("Timed out" in str(error) for error in errors), errors
    assert two_gloo_ranks(SWAPPED, group_of=groups, waits=False) == {"A": [2001, 2001], "B": [4001, 4001]}


@given(order=st.permutations("ABCD"), data=st.data())
def test_one_order_for_all_gives_the_sums(order, data):
    values = {name: data.draw(st.lists(st.integers(-99, 99), min_size=3, max_size=3)) for name in order}
    found = reduced_by_position(orders=[order] * 3, values=values)
    assert found == {name: [sum(values[name])] * 3 for name in order}


@given(orders=st.lists(st.permutations("ABC"), min_size=2, max_size=4))
def test_a_wrong_order_loses_nothing_in_total(orders):
    """Every value goes into exactly one sum, so the sums of all positions add up to everything."""
    values = {name: [10 ** (3 * rank + i) for rank in range(len(orders))] for i, name in enumerate("ABC")}
    found = reduced_by_position(orders=orders, values=values)
    for rank in range(len(orders)):
        assert sum(found[name][rank] for name in "ABC") == sum(map(sum, values.values()))


@pytest.mark.parametrize(("orders", "values", "message"), [
    ([["A"]], {"A": [1]}, "expected two or more ranks"),
    ([["A"], ["A", "A"]], {"A": [1, 2]}, "expected two or more ranks with equally many"),
    ([["A"], ["A"]], {"A": [1]}, r"values\[A\]=\[1\]: expected 2"),
    ([["A"], ["C"]], {"A": [1, 2]}, "no values for C"),
    ([["A"], ["A"]], {"A": [1, "x"]}, r"values\[A\]='x'"),
])  # fmt: skip
def test_bad_input_names_the_argument(orders, values, message):
    with pytest.raises(ValueError, match=message):
        reduced_by_position(orders=orders, values=values)

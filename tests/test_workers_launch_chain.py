"""The chains themselves, on the CPU: the same bits, and a value that can be worked out."""

from fractions import Fraction

import pytest
import torch

from labkit.workers import launch_chain as chain
from labkit.workers.json_lines import JsonLines


def bits(tensor):
    return tensor.view(torch.int32).tolist()


@pytest.mark.parametrize("length", [1, 2, 3, 8, 33, 128])
@pytest.mark.parametrize("size", [1, 7, 1000])
def test_all_ways_give_the_same_bits(length, size):
    buffers = chain.Buffers(size, device="cpu", seed=length)
    expected = buffers.x.clone()
    for step in range(length):
        expected = expected * 0.5 if step % 2 == 0 else expected + 1.0
    before = buffers.x.clone()
    for make in (chain.eager, chain.paired):
        run = make(buffers, length)
        assert bits(run()) == bits(expected) and bits(run()) == bits(expected), "also when run again"
        assert bits(buffers.x) == bits(before), "the input stays"
    assert bits(chain.plain_chain(buffers.x, length)) == bits(expected)


@pytest.mark.parametrize("length", [1, 2, 5, 16])
def test_exact_value_with_fractions(length):
    """The chain in exact arithmetic; FP32 stays within the bound, and one step more or less does not."""
    buffers = chain.Buffers(50, device="cpu", seed=1)
    exact = []
    for value in buffers.x.tolist():
        x = Fraction(value)
        for step in range(length):
            x = x / 2 if step % 2 == 0 else x + 1
        exact.append(float(x))
    assert chain.closed_form(buffers.x, length).tolist() == pytest.approx(exact, rel=1e-15)
    out = chain.eager(buffers, length)().double()
    bound = chain.closed_form_bound(buffers.x)
    assert bool(((out - chain.closed_form(buffers.x, length)).abs() <= bound).all())
    assert not bool(((out - chain.closed_form(buffers.x, length + 1)).abs() <= bound).all())
    assert float(bound.max()) < 1e-6, "a few units in the last place, no more"


def test_a_planted_error_is_judged_wrong(tmp_path):
    buffers = chain.Buffers(64, device="cpu", seed=0)
    with open(tmp_path / "x", "w") as stream:
        lines = JsonLines(stream)
        good = {name: chain.MAKERS[name](buffers, 8) for name in ("eager", "paired")}
        chain.check(lines, good, buffers, 8)
        assert lines.failed == []
        chain.check(lines, {**good, "paired": chain.paired(buffers, 6)}, buffers, 8)
        assert len(lines.failed) == 1 and "exact" in lines.failed[0]
        chain.check(lines, {"eager": chain.eager(buffers, 7)}, buffers, 8)
        assert len(lines.failed) == 2 and "closed_form" in lines.failed[1]


def test_a_result_that_is_left_over_is_not_taken_for_a_new_one(tmp_path):
    """A variant that does nothing would find the eager result in the buffers, were they not poisoned."""
    buffers = chain.Buffers(64, device="cpu", seed=0)
    with open(tmp_path / "x", "w") as stream:
        lines = JsonLines(stream)
        chain.check(lines, {"eager": chain.eager(buffers, 2), "paired": lambda: buffers.pong}, buffers, 2)
    assert len(lines.failed) == 1


def test_operators_are_counted_at_the_dispatcher():
    buffers = chain.Buffers(4, device="cpu", seed=0)
    for make, expected in ((chain.eager, 9), (chain.paired, 5)):
        with chain.CountOps() as counter:
            make(buffers, 9)()
        assert counter.count == expected


def test_what_cannot_be_made_here_is_refused_and_the_rest_goes_on(tmp_path):
    with open(tmp_path / "x", "w") as stream:
        params = {"device": "cpu", "sizes": [8], "lengths": [1, 2], "variants": ["eager", "paired", "graph"],
                  "compile_lengths": [], "compile_sizes": [], "rounds": 2, "seed": 0, "process": 1}  # fmt: skip
        bench = chain.Bench(params, JsonLines(stream))
        bench.time()
    text = (tmp_path / "x").read_text()
    assert {name for name, *_ in bench.chains} == {"eager", "paired"}
    assert text.count('"refusal"') == 2 and text.count('"timing"') == 4

"""Speculative decoding: printed figures, the accept loop enumerated, the rule by enumeration."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.calc import speculative as spec

alpha = st.floats(0, 1)


def test_printed_figures():
    """Interview question 8, extra question 20."""
    assert [spec.tokens_per_pass(acceptance=a, draft_tokens=1) for a in (0.85, 0.9)] == pytest.approx([1.85, 1.9])
    over = [100 * spec.overhead_share(acceptance=a, measured_speedup=1.8) for a in (0.85, 0.9)]
    assert over == pytest.approx([2.8, 5.6], abs=0.05)
    assert spec.tokens_per_pass(acceptance=0.8, draft_tokens=4) == pytest.approx(3.3616)
    assert spec.best_draft_length(acceptance=0.8, draft_cost=0.05) == pytest.approx(
        {"draft_tokens": 8, "speedup": 3.092}, abs=5e-4)


@given(acceptance=alpha, length=st.integers(0, 8))
def test_tokens_by_enumerating_acceptances(acceptance, length):
    """Slow version: every pattern of accepted and refused drafts with its chance."""
    mean = 0.0
    for pattern in itertools.product((True, False), repeat=length):
        chance = 1.0
        for accepted in pattern:
            chance *= acceptance if accepted else 1 - acceptance
        run = next((i for i, accepted in enumerate(pattern) if not accepted), length)
        mean += chance * (run + 1)
    assert spec.tokens_per_pass(acceptance=acceptance, draft_tokens=length) == pytest.approx(mean)


@given(weights=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=6))
def test_the_residual_rule_gives_the_target(weights):
    p, q = ([x / sum(w) for x in w] if sum(w) else None for w in zip(*weights))
    if p and q:
        assert spec.output_distribution(target=p, draft=q) == pytest.approx(p, abs=1e-9)
        assert sum(spec.output_distribution(target=p, draft=q, rule="target")) == pytest.approx(1)


def test_the_wrong_rule_does_not():
    """Extra question 21: drawing from the target again favours what the draft proposes."""
    wrong = spec.output_distribution(target=[0.5, 0.3, 0.2], draft=[0.2, 0.2, 0.6], rule="target")
    assert wrong == pytest.approx([0.4, 0.32, 0.28])


@given(acceptance=alpha, cost=st.floats(0, 2))
def test_limits(acceptance, cost):
    assert spec.speedup(acceptance=acceptance, draft_tokens=0, draft_cost=cost) == 1
    best = spec.best_draft_length(acceptance=acceptance, draft_cost=cost, most=12)
    assert best["speedup"] >= 1
    assert spec.tokens_per_pass(acceptance=1, draft_tokens=5) == 6
    assert spec.tokens_per_pass(acceptance=0, draft_tokens=5) == 1


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: spec.tokens_per_pass(acceptance=1.1, draft_tokens=1), "acceptance=1.1"),
        (lambda: spec.tokens_per_pass(acceptance=0.5, draft_tokens=-1), "draft_tokens=-1"),
        (lambda: spec.speedup(acceptance=0.5, draft_tokens=1, draft_cost=-1), "draft_cost=-1"),
        (lambda: spec.overhead_share(acceptance=0.5, measured_speedup=0), "measured_speedup=0"),
        (lambda: spec.output_distribution(target=[0.5, 0.6], draft=[0.5, 0.5]), "target=.*sum 1"),
        (lambda: spec.output_distribution(target=[1.0], draft=[0.5, 0.5]), "draft: 2 probabilities: expected 1"),
        (lambda: spec.output_distribution(target=[1.0], draft=[1.0], rule="x"), "rule='x'"),
    ],
)
def test_bad_input_names_the_argument(call, message):
    with pytest.raises(ValueError, match=message):
        call()

"""Failures: printed figures, the interval searched for, chances by simulation-free identities."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from labkit.calc import reliability as rel

seconds = st.floats(0.1, 1e6)


def test_printed_figures():
    """Extra questions 38, 39 and 42."""
    found = rel.checkpoint_interval(checkpoint_s=60, mtbf_s=10800, restart_s=600)
    assert found["interval_s"] == pytest.approx(1138.42, abs=0.005)
    assert 100 * found["waste_share"] == pytest.approx(16.096, abs=5e-4)
    job = rel.mtbf_from_incidents(
        duration_s=54 * 86400, num_incidents=419, num_components=16384, other_components=100000)
    assert job["job_s"] / 3600 == pytest.approx(3.093, abs=5e-4)
    assert job["component_s"] / 3600 == pytest.approx(50677.0, abs=0.05)
    assert job["other_job_s"] / 60 == pytest.approx(30.41, abs=0.005)
    assert 100 * rel.any_slow_chance(slow_chance=0.001, num_ranks=4096) == pytest.approx(98.34, abs=0.005)


@given(save=st.floats(0.1, 1e3), mtbf=st.floats(1e3, 1e6), restart=st.floats(0, 1e3), factor=st.floats(0.1, 10))
def test_no_other_interval_wastes_less(save, mtbf, restart, factor):
    best = rel.checkpoint_interval(checkpoint_s=save, mtbf_s=mtbf, restart_s=restart)
    other = rel.waste_share(
        interval_s=factor * best["interval_s"], checkpoint_s=save, mtbf_s=mtbf, restart_s=restart)
    assert other >= best["waste_share"] * (1 - 1e-12)


@given(save=seconds, mtbf=seconds)
def test_at_the_best_interval_saving_costs_what_failures_do(save, mtbf):
    """Identity: delta / tau = tau / (2 M)."""
    tau = rel.checkpoint_interval(checkpoint_s=save, mtbf_s=mtbf)["interval_s"]
    assert save / tau == pytest.approx(tau / 2 / mtbf)


@given(chance=st.floats(0, 1), a=st.integers(0, 10**6), b=st.integers(0, 1000))
def test_chances_multiply(chance, a, b):
    """All fast in a + b ranks = all fast in a, times all fast in b."""
    fast = [1 - rel.any_slow_chance(slow_chance=chance, num_ranks=n) for n in (a, b, a + b)]
    assert fast[0] * fast[1] == pytest.approx(fast[2], abs=1e-9)


@given(mtbf=seconds, n=st.integers(1, 10**6))
def test_more_components_fail_sooner(mtbf, n):
    assert rel.job_mtbf_s(component_mtbf_s=mtbf, num_components=n) * n == pytest.approx(mtbf)


@given(values=st.lists(st.integers(-100, 100), min_size=3, max_size=20), shift=st.integers(-50, 50))
def test_scores_do_not_see_shift_or_scale(values, shift):
    middle = sorted(values)[len(values) // 2]
    assume(sum(v != middle for v in values) > len(values) / 2 + 1)
    base = rel.robust_scores(values=values)
    moved = rel.robust_scores(values=[3 * v + shift for v in values])
    assert moved == pytest.approx(base)


def test_one_straggler_stands_out():
    """Hand numbers: median 100.5, deviations 1.5, 0.5, 0.5, 9.5, MAD 1; 9.5 / 1.4826 = 6.41."""
    assert rel.robust_scores(values=[99, 100, 101, 110])[3] == pytest.approx(6.41, abs=0.005)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: rel.checkpoint_interval(checkpoint_s=0, mtbf_s=1), "checkpoint_s=0"),
        (lambda: rel.checkpoint_interval(checkpoint_s=1, mtbf_s=1, restart_s=-1), "restart_s=-1"),
        (lambda: rel.waste_share(interval_s=0, checkpoint_s=1, mtbf_s=1), "interval_s=0"),
        (lambda: rel.job_mtbf_s(component_mtbf_s=1, num_components=0), "num_components=0"),
        (lambda: rel.mtbf_from_incidents(
            duration_s=1, num_incidents=0, num_components=1, other_components=1), "num_incidents=0"),
        (lambda: rel.any_slow_chance(slow_chance=1.1, num_ranks=1), "slow_chance=1.1"),
        (lambda: rel.robust_scores(values=[1, 2]), "values="),
        (lambda: rel.robust_scores(values=[5, 5, 5]), "median absolute deviation 0"),
    ],
)
def test_bad_input_names_the_argument(call, message):
    with pytest.raises(ValueError, match=message):
        call()

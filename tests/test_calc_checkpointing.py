"""Goodput without approximation: Daly's printed optima, simulated failures, limits."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.calc.checkpointing import best_interval_s, goodput, simulated_goodput
from labkit.calc.reliability import checkpoint_interval, waste_share


@pytest.mark.parametrize(("mtbf_min", "printed_min"), [(24 * 60, 117), (6 * 60, 57), (15, 9.1)])
def test_daly_2006_captions(mtbf_min, printed_min):
    """Figures 3 to 5 of the paper, 5 minutes to save: printed from his series, which the exact root stays close to."""
    x = 5 / (2 * mtbf_min)
    series = math.sqrt(2 * 5 * mtbf_min) * (1 + math.sqrt(x) / 3 + x / 9) - 5
    assert round(series, 1 if printed_min < 10 else 0) == printed_min
    assert best_interval_s(checkpoint_s=300, mtbf_s=60 * mtbf_min) / 60 == pytest.approx(series, rel=4e-3)


@given(save=st.floats(0.1, 1e4), mtbf=st.floats(10, 1e6), factor=st.floats(0.1, 10), restart=st.floats(0, 1000))
def test_no_other_interval_gives_more(save, mtbf, factor, restart):
    rest = {"checkpoint_s": save, "mtbf_s": mtbf, "restart_s": restart}
    best = best_interval_s(checkpoint_s=save, mtbf_s=mtbf)
    assert 0 < best <= mtbf
    assert goodput(interval_s=factor * best, **rest) <= goodput(interval_s=best, **rest) * (1 + 1e-9)


@given(save=st.floats(1e-4, 1e-2), restart=st.floats(0, 1e-2))
def test_rare_failures_give_the_first_order_model(save, restart):
    """For delta and R far below M both models agree to second order in tau / M."""
    first = checkpoint_interval(checkpoint_s=save, mtbf_s=1e4, restart_s=restart)
    assert best_interval_s(checkpoint_s=save, mtbf_s=1e4) == pytest.approx(first["interval_s"], rel=2e-3)
    exact = goodput(interval_s=first["interval_s"], checkpoint_s=save, mtbf_s=1e4, restart_s=restart)
    assert 1 - exact == pytest.approx(first["waste_share"], rel=5e-3)


@pytest.mark.parametrize(("tau", "save", "restart"), [(1000, 60, 600), (3000, 300, 0), (200, 60, 1200), (9000, 9, 90)])
def test_matches_played_failures(tau, save, restart):
    rest = {"interval_s": tau, "checkpoint_s": save, "mtbf_s": 10800, "restart_s": restart}
    assert simulated_goodput(**rest, num_intervals=40000) == pytest.approx(goodput(**rest), rel=0.02)


def test_a_failure_while_restarting_starts_the_restart_again():
    """R as long as M: the first-order model wastes more than everything, the exact one does not."""
    rest = {"interval_s": 100, "checkpoint_s": 10, "mtbf_s": 1000, "restart_s": 1000}
    assert waste_share(**rest) > 1
    assert 0 < goodput(**rest) == pytest.approx(simulated_goodput(**rest, num_intervals=40000), rel=0.03)


def test_hopeless_and_perfect_machines():
    assert goodput(interval_s=1e6, checkpoint_s=1, mtbf_s=1) == 0
    assert goodput(interval_s=90, checkpoint_s=10, mtbf_s=1e12) == pytest.approx(0.9)
    assert best_interval_s(checkpoint_s=1e9, mtbf_s=1) == pytest.approx(1)


@pytest.mark.parametrize(("call", "message"), [
    (lambda: goodput(interval_s=0, checkpoint_s=1, mtbf_s=1), "interval_s=0: expected"),
    (lambda: goodput(interval_s=1, checkpoint_s=-1, mtbf_s=1), "checkpoint_s=-1: expected"),
    (lambda: goodput(interval_s=1, checkpoint_s=1, mtbf_s=0), "mtbf_s=0: expected"),
    (lambda: goodput(interval_s=1, checkpoint_s=1, mtbf_s=1, restart_s=-1), "restart_s=-1: expected"),
    (lambda: best_interval_s(checkpoint_s=0, mtbf_s=1), "checkpoint_s=0: expected"),
    (lambda: simulated_goodput(interval_s=6, checkpoint_s=1, mtbf_s=1), "interval_s=6: expected"),
    (lambda: simulated_goodput(interval_s=1, checkpoint_s=1, mtbf_s=1, num_intervals=0), "num_intervals=0: expected"),
])  # fmt: skip
def test_bad_input_names_the_argument(call, message):
    with pytest.raises(ValueError, match=message):
        call()

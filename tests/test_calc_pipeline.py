"""Pipelines: printed bubbles, and a schedule played step by step."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.calc import pipeline

stages, batches = st.integers(1, 8), st.integers(1, 24)


def test_printed_bubbles():
    """Extra question 12: 21.875, 5.469 and 7.292 %. Extra question 13: 64 and 8 micro-batches."""
    found = [100 * pipeline.bubble_ratio(s, num_stages=8, num_micro_batches=32, num_chunks=4)
             for s in ("1f1b", "interleaved", "zb_h1")]
    assert found == pytest.approx([21.875, 5.46875, 7.291666667])
    held = [pipeline.micro_batches_in_flight(s, num_stages=8, num_micro_batches=64) for s in ("gpipe", "1f1b")]
    assert held == [64, 8]


@given(p=stages, m=batches, forward=st.floats(0.1, 3), backward=st.floats(0.1, 3),
       schedule=st.sampled_from(["gpipe", "1f1b"]))
def test_a_played_schedule_has_the_predicted_bubble(p, m, forward, backward, schedule):
    found = pipeline.simulated_step(
        schedule, num_stages=p, num_micro_batches=m, forward_s=forward, backward_s=backward)
    assert found["bubble_ratio"] == pytest.approx(
        pipeline.bubble_ratio(schedule, num_stages=p, num_micro_batches=m), abs=1e-9)
    assert found["most_in_flight"] == pipeline.micro_batches_in_flight(
        schedule, num_stages=p, num_micro_batches=m)


def test_hand_timeline():
    """Two stages, one micro-batch, forward 1 s, backward 2 s: 1 + 1 + 2 + 2 = 6 s for 3 s of work."""
    found = pipeline.simulated_step("1f1b", num_stages=2, num_micro_batches=1)
    assert found == {"step_s": 6, "ideal_s": 3, "bubble_ratio": 1, "most_in_flight": 1}


@given(p=stages, m=batches, stage=st.integers(0, 7))
def test_limits(p, m, stage):
    """One stage has no bubble; more micro-batches shrink it; later stages hold no more than earlier ones."""
    assert pipeline.bubble_ratio("gpipe", num_stages=1, num_micro_batches=m) == 0
    a, b = (pipeline.bubble_ratio("1f1b", num_stages=p, num_micro_batches=x) for x in (m, m + 1))
    assert b <= a
    if stage < p:
        shape = dict(num_stages=p, num_micro_batches=m)
        held = [pipeline.micro_batches_in_flight("1f1b", stage=s, **shape) for s in (0, stage)]
        assert 1 <= held[1] <= held[0] <= min(m, p)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: pipeline.bubble_ratio("zigzag", num_stages=1, num_micro_batches=1), "schedule='zigzag'"),
        (lambda: pipeline.bubble_ratio("1f1b", num_stages=0, num_micro_batches=1), "num_stages=0"),
        (lambda: pipeline.bubble_ratio("interleaved", num_stages=4, num_micro_batches=6), "num_micro_batches=6"),
        (lambda: pipeline.micro_batches_in_flight("1f1b", num_stages=2, num_micro_batches=1, stage=2), "stage=2"),
        (lambda: pipeline.micro_batches_in_flight("zb_h1", num_stages=2, num_micro_batches=1), "schedule='zb_h1'"),
        (lambda: pipeline.simulated_step("gpipe", num_stages=65, num_micro_batches=1), "num_stages=65"),
        (lambda: pipeline.simulated_step("gpipe", num_stages=2, num_micro_batches=1, forward_s=0), "forward_s=0"),
    ],
)
def test_bad_input_names_the_argument(call, message):
    with pytest.raises(ValueError, match=message):
        call()

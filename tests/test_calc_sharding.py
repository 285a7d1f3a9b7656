"""ZeRO and FSDP: printed gigabytes, every byte of every rank added up, limits."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.calc import sharding

count = st.integers(1, 10**10)
ranks = st.integers(1, 4096)


def test_printed_memory():
    """Extra question 4: 120, 31.4, 16.6 and 1.875 GB for 7.5B parameters on 64 GPUs. Question 6: 28 and 14.875."""
    found = [sharding.model_state_bytes(num_parameters=7_500_000_000, num_ranks=64, stage=s) / 1e9 for s in range(4)]
    assert found == [120, 31.40625, 16.640625, 1.875]
    peaks = [sharding.fsdp_peak_bytes(num_parameters=7_000_000_000, num_ranks=8, num_units=u) / 1e9 for u in (1, 32)]
    assert peaks == [28, 14.875]


def test_printed_traffic():
    """Extra question 5: 28, 28 and 42 GB."""
    found = [sharding.step_traffic_bytes(num_parameters=7_000_000_000, stage=s) / 1e9 for s in (0, 2, 3)]
    assert found == [28, 28, 42]


@pytest.mark.parametrize("stage", range(4))
def test_all_ranks_together(stage):
    """Slow version: 12 parameters on 4 ranks; a sharded array exists once, a replicated one on every rank."""
    optimizer, gradient, parameter = (1 if stage >= first else 4 for first in (1, 2, 3))
    total = 12 * (12 * optimizer + 2 * gradient + 2 * parameter)
    assert 4 * sharding.model_state_bytes(num_parameters=12, num_ranks=4, stage=stage) == total


@given(psi=count, n=ranks)
def test_each_stage_needs_less_and_one_rank_needs_all(psi, n):
    sizes = [sharding.model_state_bytes(num_parameters=psi, num_ranks=n, stage=s) for s in range(4)]
    assert sizes == sorted(sizes, reverse=True) and sizes[0] == 16 * psi
    assert sizes[3] * n == pytest.approx(sizes[0])
    assert sharding.model_state_bytes(num_parameters=psi, num_ranks=1, stage=2) == sizes[0]


@given(psi=count, n=ranks, stage=st.integers(0, 3))
def test_traffic_approaches_its_limit(psi, n, stage):
    exact = sharding.step_traffic_bytes(num_parameters=psi, stage=stage, num_ranks=n)
    limit = sharding.step_traffic_bytes(num_parameters=psi, stage=stage)
    assert exact == pytest.approx(limit * (1 - 1 / n))


@given(psi=count, n=ranks, units=st.integers(1, 200), alive=st.integers(1, 4))
def test_more_units_never_raise_the_peak(psi, n, units, alive):
    shape = dict(num_parameters=psi, num_ranks=n, units_alive=alive)
    a, b = (sharding.fsdp_peak_bytes(num_units=u, **shape) for u in (units, units + 1))
    assert b <= a * (1 + 1e-12) and a >= sharding.model_state_bytes(num_parameters=psi, num_ranks=n, stage=3)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: sharding.model_state_bytes(num_parameters=1, num_ranks=1, stage=4), "stage=4: expected 0, 1, 2 or 3"),
        (lambda: sharding.model_state_bytes(num_parameters=0, num_ranks=1, stage=0), "num_parameters=0"),
        (lambda: sharding.model_state_bytes(num_parameters=1, num_ranks=0, stage=0), "num_ranks=0"),
        (lambda: sharding.step_traffic_bytes(num_parameters=1, stage=3, num_gathers=0), "num_gathers=0"),
        (lambda: sharding.step_traffic_bytes(num_parameters=1, stage=0, bytes_per_element=0), "bytes_per_element=0"),
        (lambda: sharding.fsdp_peak_bytes(num_parameters=1, num_ranks=1, num_units=0), "num_units=0"),
        (lambda: sharding.fsdp_peak_bytes(num_parameters=1, num_ranks=1, num_units=1, units_alive=0), "units_alive=0"),
    ],
)
def test_bad_input_names_the_argument(call, message):
    with pytest.raises(ValueError, match=message):
        call()

"""Projection: printed example, the nearest point searched for, degenerate and huge coordinates."""

import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from labkit.calc import projection

point = st.lists(st.floats(-100, 100), min_size=3, max_size=3)


def test_printed_example():
    """Interview question 28: t = 0.64, foot (2.92, 3.56)."""
    found = projection.project_point(a=[1, 1], b=[4, 5], c=[5, 2])
    assert found["t"] == pytest.approx(0.64, abs=5e-7) and found["point"] == pytest.approx([2.92, 3.56], abs=5e-7)
    assert [projection.clamped_parameter(t=t) for t in (-0.5, 1.7, 0.3)] == [0, 1, 0.3]


@given(a=point, b=point, c=point, t=st.floats(-3, 3))
def test_no_other_point_is_nearer(a, b, c, t):
    assume(math.dist(a, b) > 1e-3)
    for segment in (False, True):
        found = projection.project_point(a=a, b=b, c=c, segment=segment)
        u = min(1, max(0, t)) if segment else t
        other = [x + u * (y - x) for x, y in zip(a, b)]
        assert found["distance"] <= math.dist(c, other) + 1e-9
        assert not segment or 0 <= found["t"] <= 1


@given(a=point, b=point, c=point, scale=st.sampled_from([1e-150, 1e-7, 1.0, 1e8, 1e150]))
def test_scaling_the_plane_changes_nothing_but_the_size(a, b, c, scale):
    assume(math.dist(a, b) > 1e-3)
    base = projection.project_point(a=a, b=b, c=c)
    big = projection.project_point(*(), a=[x * scale for x in a], b=[x * scale for x in b], c=[x * scale for x in c])
    assert big["t"] == pytest.approx(base["t"], rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("dims", [1, 2, 3, 7, 50])
def test_the_residual_is_orthogonal(dims):
    """Coordinates of size 5: products of size 25 times 50 dimensions, rounded at 2^-53."""
    assert projection.residual_dot(num_dims=dims) < 1e-9


def test_ends_are_exact():
    a, b = [0.1, 0.7], [0.3, -0.2]
    assert projection.project_point(a=a, b=b, c=a)["point"] == a
    assert projection.project_point(a=a, b=b, c=b, segment=True)["point"] == b


def test_scale_decides_what_is_degenerate():
    """Interview question 28: a fixed 1e-12 rejects a good segment of 1e-7; 1e8 + 1e-9 cannot be told from 1e8."""
    assert projection.fixed_tolerance_rejects(length=1e-7) and not projection.is_degenerate(a=[0.0], b=[1e-7])
    assert projection.is_degenerate(a=[1e8], b=[1e8 + 1e-9]) and projection.is_degenerate(a=[0, 0], b=[0, 0])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: projection.project_point(a=[1, 1], b=[1, 1], c=[0, 0]), "b=.*differs from a"),
        (lambda: projection.project_point(a=[1, 1], b=[2], c=[0, 0]), "b=.*expected 2 coordinates"),
        (lambda: projection.project_point(a=[1], b=[math.inf], c=[0]), r"b\[0\]=inf"),
        (lambda: projection.project_point(a=[], b=[], c=[]), "a="),
        (lambda: projection.clamped_parameter(t=math.nan), r"t\[0\]=nan"),
        (lambda: projection.fixed_tolerance_rejects(length=-1), "length and tolerance"),
        (lambda: projection.residual_dot(num_dims=0), "num_dims=0"),
    ],
)
def test_bad_input_names_the_argument(call, message):
    with pytest.raises(ValueError, match=message):
        call()

"""Logistic function: printed figures, the plain formula in exact arithmetic, overflow edges."""

import math
from decimal import Decimal, localcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.calc import sigmoid as sg

x_values = st.floats(-700, 700)


def exact(x):
    """Slow version: the definition in 60 decimal digits."""
    with localcontext() as context:
        context.prec = 60
        one_plus = 1 + (-Decimal(x)).exp()
        return 1 / one_plus, one_plus.ln()


def test_printed_figures():
    """Interview question 29."""
    assert (sg.sigmoid(x=0), sg.sigmoid_derivative(x=0)) == (0.5, 0.25)
    assert sg.sigmoid_derivative(x=10) == pytest.approx(4.54e-5, rel=0.01)
    assert [sg.gradient_product(x=x, num_layers=6) for x in (10, 0)] == [
        pytest.approx(8.75e-27, rel=0.01), pytest.approx(0.000244, rel=0.01)]
    assert [sg.overflow_at(dtype=d) for d in ("float32", "float64")] == pytest.approx([88.72, 709.78], abs=0.005)
    assert sg.logit_loss(x=-110, y=1) == pytest.approx(110, abs=5e-7) and sg.narrow_sigmoid(x=-110) == 0
    assert sg.derivative_error(points=[-6, -1.3, 0, 0.7, 4]) < 1e-9


def test_plain_forms_at_the_edges():
    """Interview question 29: overflow gives the right limit in one form and not-a-number in the other."""
    assert sg.plain_forms(x=-710)["one_over"] == 0 and sg.plain_forms(x=710)["exp_over"] is None
    with pytest.raises(OverflowError):
        math.exp(710)
    assert not sg.plain_forms(x=700)["python_raises"]


@given(x=x_values)
def test_value_and_loss_by_exact_arithmetic(x):
    """A few roundings of 2^-53 each; the loss of y = 1 is log(1 + e^-x)."""
    value, loss = exact(x)
    assert sg.sigmoid(x=x) == pytest.approx(float(value), rel=1e-13)
    assert sg.logit_loss(x=x, y=1) == pytest.approx(float(loss), rel=1e-13, abs=1e-13)


@given(x=x_values, y=st.floats(0, 1))
def test_symmetries(x, y):
    assert sg.sigmoid(x=x) + sg.sigmoid(x=-x) == pytest.approx(1)
    assert sg.sigmoid_derivative(x=x) == sg.sigmoid_derivative(x=-x) <= 0.25
    assert sg.logit_loss(x=x, y=y) == pytest.approx(sg.logit_loss(x=-x, y=1 - y), rel=1e-9, abs=1e-9)
    assert sg.logit_loss(x=x, y=y) >= 0


@given(a=st.floats(-1e308, 1e308), b=st.floats(-1e308, 1e308))
def test_never_falls_and_never_overflows(a, b):
    low, high = sorted((a, b))
    assert 0 <= sg.sigmoid(x=low) <= sg.sigmoid(x=high) <= 1
    assert math.isfinite(sg.logit_loss(x=low, y=0.5))


@given(x=st.floats(-80, 80))
def test_fp32_is_near_the_double(x):
    """Three roundings of 2^-24."""
    assert sg.narrow_sigmoid(x=x) == pytest.approx(sg.sigmoid(x=x), rel=4 * 2.0**-24)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: sg.sigmoid(x=math.nan), "x=nan"),
        (lambda: sg.sigmoid_derivative(x=math.inf), "x=inf"),
        (lambda: sg.logit_loss(x=0, y=1.5), "y=1.5"),
        (lambda: sg.gradient_product(x=0, num_layers=-1), "num_layers=-1"),
        (lambda: sg.narrow_sigmoid(x=0, dtype="int8"), "dtype='int8'"),
        (lambda: sg.derivative_error(points=[0], step=0), "step=0"),
        (lambda: sg.plain_forms(x="a"), "x='a'"),
    ],
)
def test_bad_input_names_the_argument(call, message):
    with pytest.raises(ValueError, match=message):
        call()

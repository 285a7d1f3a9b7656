"""Sums in a format: struct as oracle, bounds, order and splits."""

import itertools
import math
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit.calc import summation as sums

small = st.lists(st.floats(-1e6, 1e6, width=32), max_size=30)


def c_sum(values):
    total = 0.0
    for value in values:
        total = struct.unpack("f", struct.pack("f", total + struct.unpack("f", struct.pack("f", value))[0]))[0]
    return total


def test_printed_order():
    """Interview question 16: 3.14 and 0."""
    found = [sums.rounded_sum("serial", values=v) for v in ([1e20, -1e20, 3.14], [3.14, -1e20, 1e20])]
    assert found == [pytest.approx(3.14, abs=0.005), 0]


@given(values=small)
def test_serial_is_what_c_adds(values):
    assert sums.rounded_sum("serial", values=values) == c_sum(values)


@given(values=small)
def test_errors_stay_within_the_bounds(values):
    exact, sizes = math.fsum(values), math.fsum(map(abs, values))
    for method in ("serial", "pairwise"):
        bound = sums.error_bound(method, num_values=max(1, len(values)), sum_of_sizes=sizes)
        assert abs(sums.rounded_sum(method, values=values) - exact) <= bound * (1 + 1e-5)
    kahan = abs(sums.rounded_sum("kahan", values=values) - exact)
    assert kahan <= 2.0**-24 * 2.01 * sizes + 2.0**-24 * abs(exact)


@given(values=st.lists(st.integers(-1000, 1000), max_size=40))
def test_exact_numbers_add_exactly_in_every_way(values):
    assert {sums.rounded_sum(m, values=values) for m in sums.METHODS} == {sum(values)}


def test_order_and_splits_change_bits():
    """Interview question 16, extra question 47: several patterns; one for a fixed split; Kahan is better, not fixed."""
    assert sums.num_patterns("order", num_values=256, num_orders=20) > 1
    assert sums.num_patterns("order", num_values=400, num_orders=30, method="kahan", seed=1) > 1
    assert sums.num_patterns("splits", num_values=1024, splits=[1, 2, 4, 8, 16], seed=3) > 1
    assert sums.num_patterns("splits", num_values=1024, splits=[8] * 5, seed=3) == 1
    assert sums.error_ratio(num_orders=5) < 1
    assert sums.mean_error("kahan", num_orders=5) < sums.mean_error("serial", num_orders=5)


def test_a_split_of_one_is_the_serial_sum():
    values = [2.0**24, 1.0, 1.0, 1.0]
    assert [sums.split_sum(values=values, num_splits=n) for n in (1, 2, 4)] == [2**24, 2**24 + 2, 2**24]


@settings(max_examples=30)
@given(values=st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=5))
def test_integer_sums_do_not_depend_on_order(values):
    found = [sums.wrapped_sum(values=values, order=o) for o in itertools.permutations(range(len(values)))]
    assert {x["sum"] for x in found} == {sum(values) % 2**32}


def test_but_the_returned_old_values_do():
    values = [3000000000, 2000000000, 7, 11]
    a, b = (sums.wrapped_sum(values=values, order=o) for o in ([0, 1, 2, 3], [3, 2, 1, 0]))
    assert a["sum"] == b["sum"] and a["old"] != b["old"]


def test_printed_small_facts():
    """Interview question 16: 1 against 2 increments, argmax 1 then 0. Extra question 46: 256 of 1000 ones."""
    assert [sums.interleaved_increments(atomic=a) for a in (False, True)] == [1, 2]
    assert [sums.argmax_after_ulps(logit=10.0, ulps=u) for u in ([0, 1], [2, 1])] == [1, 0]
    assert [sums.ones_until_stalled(num_ones=1000, dtype=d) for d in ("bfloat16", "float16", "float32")] == [
        256, 1000, 1000]


@given(n=st.integers(1, 10**9))
def test_pairwise_is_never_worse_bounded(n):
    assert sums.error_bound("pairwise", num_values=n) <= sums.error_bound("serial", num_values=n) or n < 3


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: sums.rounded_sum("naive", values=[]), "method='naive'"),
        (lambda: sums.rounded_sum("serial", values=[3e38, 3e38]), "a sum overflows float32"),
        (lambda: sums.num_patterns("tree"), "what='tree'"),
        (lambda: sums.num_patterns("splits"), "splits="),
        (lambda: sums.num_patterns("order", num_orders=1001), "num_orders=1001"),
        (lambda: sums.split_sum(values=[1.0], num_splits=2), "num_splits=2"),
        (lambda: sums.mean_error("serial", num_values=0), "num_values=0"),
        (lambda: sums.error_ratio(num_values=1), "num_values=1: expected more"),
        (lambda: sums.error_bound("kahan", num_values=2), "method='kahan'"),
        (lambda: sums.wrapped_sum(values=[1, 2], order=[0, 0]), "order="),
        (lambda: sums.wrapped_sum(values=[1], order=[0], bits=0), "bits=0"),
        (lambda: sums.interleaved_increments(atomic=True, num_threads=0), "num_threads=0"),
        (lambda: sums.argmax_after_ulps(logit=1.0, ulps=[]), "ulps="),
        (lambda: sums.ones_until_stalled(num_ones=-1), "num_ones=-1"),
    ],
)
def test_bad_input_names_the_argument(call, message):
    with pytest.raises(ValueError, match=message):
        call()

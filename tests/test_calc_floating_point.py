"""Formats: the C representation through struct as oracle, printed bit patterns, every small number enumerated."""

import itertools
import math
import struct
import sys

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from labkit.calc import floating_point as fp

SMALL = ["float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"]


def as_c(value, code="f"):
    return struct.unpack(code, struct.pack(code, value))[0]


def all_numbers(dtype):
    """Slow version: every finite non-negative number of a format, built from its definition."""
    bits, least, most, largest = fp.FORMATS[dtype]
    tiny = [i * 2.0 ** (least - bits + 1) for i in range(2 ** (bits - 1))]
    half = 2 ** (bits - 1)
    rest = [(half + i) * 2.0 ** (e - bits + 1) for e in range(least, most + 1) for i in range(half)]
    return [x for x in tiny + rest if x <= largest]


def test_printed_spacing_and_patterns():
    """Interview question 17."""
    assert fp.ulp(value=9.9e9) == 1024 and 1e-9 / fp.ulp(value=9.9e9) == 9.765625e-13
    assert fp.ulp(value=9.9e9, dtype="float64") == math.ulp(9.9e9)
    literal, product = fp.round_to(value=9.9e9), fp.product(x=9.9, y=1e9)
    assert (literal, fp.float32_bits(value=literal)) == (9900000256, "0x50138581")
    assert (product, fp.float32_bits(value=product)) == (9899999232, "0x50138580")
    for x, bits in ((literal, "0x50138581"), (product, "0x50138580")):
        assert fp.subtraction(x=x, y=1e-9) == {"x": x, "y": as_c(1e-9), "result": x, "moved": False, "bits": bits}
    assert fp.round_to(value=9.9) == pytest.approx(9.8999996185, abs=5e-11)
    around = fp.neighbours(value=9.9e9)
    assert (around["in_ulps"], around["below"], around["above"]) == (9667968.75, 9899999232, 9900000256)
    assert fp.significant_bits(large=9.9e9, small=1e-9) == pytest.approx(63.1, abs=0.05)


def test_printed_half_ulp_and_parity():
    """Interview question 17, erratum E26: at exactly half a spacing the odd pattern moves and the even one does not."""
    moves = [[fp.subtraction(x=x, y=d)["moved"] for d in (511, 512, 513)] for x in (9900000256.0, 9899999232.0)]
    assert moves == [[False, True, True], [False, False, True]]


def test_printed_limits():
    """Interview questions 17 and 29, extra question 45."""
    single = fp.float_limits()
    assert single["max"] == pytest.approx(3.402823466e38, rel=5e-10)
    assert single["min_normal"] == pytest.approx(1.17549435e-38, rel=5e-9)
    assert single["log_max"] == pytest.approx(88.72, abs=0.005)
    double = fp.float_limits(dtype="float64")
    assert (double["max"], double["epsilon"], double["min_normal"]) == (
        sys.float_info.max, sys.float_info.epsilon, sys.float_info.min)
    assert fp.float_limits(dtype="float16")["min_subnormal"] == 2.0**-24
    assert [fp.float_limits(dtype=d)["max"] for d in SMALL if d != "bfloat16"] == [65504, 448, 57344]
    assert fp.float_limits(dtype="bfloat16")["epsilon"] == 0.0078125


@given(value=st.floats(width=64, allow_nan=False, allow_infinity=False))
def test_float32_is_what_c_stores(value):
    assume(abs(value) < fp.FORMATS["float32"][3])
    found = fp.round_to(value=value)
    assert struct.pack("f", found) == struct.pack("f", value) and as_c(found) == found
    assert int(fp.float32_bits(value=value), 16) == struct.unpack("I", struct.pack("f", value))[0]


@given(value=st.floats(-65503, 65503))
def test_float16_is_what_c_stores(value):
    assert fp.round_to(value=value, dtype="float16") == as_c(value, "e")


@given(x=st.floats(-(2.0**100), 2.0**100, width=32), y=st.floats(-(2.0**100), 2.0**100, width=32))
def test_arithmetic_is_what_c_computes(x, y):
    assert fp.subtraction(x=x, y=y)["result"] == as_c(x - y)
    assume(abs(x * y) < 1e38)
    assert fp.product(x=x, y=y) == as_c(x * y)


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_rounding_to_the_nearest_of_all_numbers(dtype):
    """Slow version: midpoints, points beside them and the numbers themselves, against a search over all numbers."""
    numbers = all_numbers(dtype)
    for i, (low, high) in enumerate(itertools.pairwise(numbers)):
        middle = (low + high) / 2
        even = low if i % 2 == 0 else high
        for value, expected in ((low, low), (middle, even), (math.nextafter(middle, low), low),
                                (math.nextafter(middle, high), high)):
            assert fp.round_to(value=value, dtype=dtype) == expected
        assert low < 2.0 ** fp.FORMATS[dtype][1] or fp.ulp(value=low, dtype=dtype) == high - low


@given(value=st.floats(1e-30, 1e30), dtype=st.sampled_from(["float32", "bfloat16", "float64"]))
def test_rounding_moves_by_at_most_half_a_spacing(value, dtype):
    rounded = fp.round_to(value=value, dtype=dtype)
    assert abs(rounded - value) <= fp.ulp(value=value, dtype=dtype) / 2
    assert fp.round_to(value=rounded, dtype=dtype) == rounded
    assert fp.round_to(value=-value, dtype=dtype) == -rounded


def test_past_the_range():
    assert fp.round_to(value=1e39) == math.inf and fp.round_to(value=-7e4, dtype="float16") == -math.inf
    assert fp.round_to(value=464.0, dtype="float8_e4m3fn") == 448  # halfway to 480: ties go to the even 448
    assert math.copysign(1, fp.round_to(value=-0.0)) == -1


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: fp.ulp(value=1.0, dtype="float128"), "dtype='float128': expected one of float64"),
        (lambda: fp.ulp(value=math.nan), "value=nan"),
        (lambda: fp.ulp(value=1e39), "value=1e.39"),
        (lambda: fp.round_to(value=500, dtype="float8_e4m3fn"), "value=500: expected at most 448"),
        (lambda: fp.float32_bits(value=1e39), "value=1e.39"),
        (lambda: fp.subtraction(x=1e39, y=0), "within the range of float32"),
        (lambda: fp.product(x="1", y=1), "value='1'"),
        (lambda: fp.significant_bits(large=0, small=1), "large=0"),
    ],
)
def test_bad_input_names_the_argument(call, message):
    with pytest.raises(ValueError, match=message):
        call()

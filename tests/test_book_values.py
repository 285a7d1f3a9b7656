"""What a page prints for a value: worked by hand."""

import pytest

from labkit.book.values import LookupProblem, convert, show_value, split_format, unit_of_name, walk

NB = "\N{NO-BREAK SPACE}"


@pytest.mark.parametrize(
    ("value", "spec", "unit", "text"),
    [
        (13, "", None, "13"),
        (13, "", "buckets", "13 buckets"),
        (9999, "", None, "9999"),
        (10000, "", None, "10,000"),
        (109942272, "", "parameters", "109,942,272 parameters"),
        (56.04, "", "ms", "56.04 ms"),
        (0.000123456, "", None, "0.0001235"),
        (32235.4, "", "tokens/s", "32,235 tokens/s"),
        (9.89e14, "", "FLOP/s", "989 TFLOP/s"),
        (9.891e15, ".3e", "FLOP/s", "9.891e+15 FLOP/s"),
        (13.0, "", None, "13"),
        (True, "", None, "yes"),
        (False, "", None, "no"),
        ("AllReduce", "", None, "AllReduce"),
        ([50, 37, 13, 4], "", "buckets", "50, 37, 13, 4 buckets"),
        (93.75, ".1f", "MiB", "93.8 MiB"),
        (98304000, ".2f MiB", "bytes", "93.75 MiB"),
        (98304000, ".2f MB", "bytes", "98.30 MB"),
        (4.8e12, ".1f TB/s", "bytes/s", "4.8 TB/s"),
        (0.05604, ".1f ms", "s", "56.0 ms"),
        (56.04, ".5f s", "ms", "0.05604 s"),
        (9.895e14, ".1f TFLOP/s", "FLOP/s", "989.5 TFLOP/s"),
        (0.2044, ".1f %", "ratio", "20.4 %"),
        (98304000, "bytes", "bytes", "93.75 MiB"),
        (4800000000000, "decimal-bytes", "bytes", "4.80 TB"),
        (0.0000234, "seconds", "s", "23.4 µs"),
        (0.125, "percent", None, "12.5 %"),
        (104, "bare", "kernels/step", "104"),
        (23.4, "", "us", "23.4 µs"),
        (1.5, "", "ratio", "1.5"),
        (3.05, "", "x", "3.05 ×"),
        ({"value": 2.0, "unit": "ms", "n": 3, "p10": 1.0, "p90": 3.0}, ".1f", None, "2.0 ms"),
        ({"value": 2.0, "unit": "ms"}, ".0f us", None, "2000 us"),
    ],
)
def test_shown(value, spec, unit, text):
    assert show_value(value, spec, unit=unit).replace(NB, " ") == text.replace("2000 us", "2000 µs")


@pytest.mark.parametrize(
    ("value", "spec", "unit", "message"),
    [
        (None, "", None, "unknown"),
        ({"value": None, "unit": "ms"}, "", None, "unknown"),
        ({"1 MiB": 50, "4 MiB": 37}, "", None, "1 MiB, 4 MiB; name one"),
        ([[1], [2]], "", None, "nested"),
        ("text", ".1f", None, "does not fit"),
        (1.5, "d", None, "does not fit"),
        (1.5, ".1f MiB", "ms", "in ms, the format asks for MiB"),
        (1.5, ".1f MiB", "tokens", "in tokens, the format asks for MiB"),
        ("text", ".1f s", "ms", "in ms"),
    ],
)
def test_refused(value, spec, unit, message):
    with pytest.raises(LookupProblem, match=message):
        show_value(value, spec, unit=unit)


def test_conversion_goes_there_and_back():
    for unit, wanted in (("GiB", "bytes"), ("GB/s", "TB/s"), ("ns", "min"), ("FLOP/s", "PFLOP/s"), ("%", "ratio")):
        assert convert(convert(7.0, unit, wanted), wanted, unit) == pytest.approx(7.0)
    assert convert(1, "GiB", "MiB") == 1024 and convert(1, "GB", "MB") == pytest.approx(1000)


def test_walk_finds_keys_that_hold_dots():
    tree = {"step_ms": {"0.5 MiB": [7, 8], "0": {"5 MiB": 9}}, "a.b": 1}
    assert walk(tree, "step_ms.0.5 MiB.1") == 8
    assert walk(tree, "step_ms.0.5 MiB") == [7, 8], "the longest key wins"
    assert walk(tree, "a.b") == 1
    assert walk(tree, "") is tree


@pytest.mark.parametrize("path", ["nothing", "step_ms.2 MiB", "step_ms.0.5 MiB.2", "step_ms.0.5 MiB.x"])
def test_walk_names_what_there_is(path):
    with pytest.raises(LookupProblem, match="there is: "):
        walk({"step_ms": {"0.5 MiB": [7, 8]}}, path)


def test_format_is_split_at_the_last_bar():
    assert split_format("f(x='a | b') | .1f") == ("f(x='a | b')", ".1f")
    assert split_format("id:25 MiB") == ("id:25 MiB", "")


def test_unit_of_name():
    names = {
        "busbw_bytes_per_s": "bytes/s",
        "ridge_flop_per_byte": "FLOP/B",
        "gradient_bytes": "bytes",
        "time_s": "s",
        "num_buckets": None,
        "overlap_ratio": "ratio",
        "peak_flop_per_s": "FLOP/s",
        "steps": None,
    }
    assert {name: unit_of_name(name) for name in names} == names


def test_printed_figures_keep_every_digit():
    assert show_value(102.07, exact=True) == "102.07" and show_value(25.0, exact=True) == "25.0"
    assert show_value(102.07) == "102.1"
    assert show_value([62.99, 102.07], exact=True) == "62.99, 102.07"


def test_a_value_of_any_shape_on_one_line():
    from labkit.book.ledger_page import short_value

    assert short_value({"a": 102.07, "b": [1, [2, 3.5]]}) == "a: 102.07; b: 1, [2, 3.5]"
    assert short_value({"a": 2.08}, "x", decimals=3) == "a: 2.080 (x)"
    assert short_value({"a": 333.12249}, exact=False) == "a: 333.1"
    assert short_value(None) == "" and short_value({"a": None}) == "a: unknown"
    assert short_value("word " * 50, limit=20) == "word word word word …"


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (98304000, "bytes", "93.75 MiB"),
        (2, "bytes", "2 bytes"),
        (4.3e12, "bytes/s", "4.3 TB/s"),
        (0.0000234, "s", "23.4 µs"),
        (75.0, "s", "75 s"),
        (0, "s", "0 s"),
        (1.979e15, "FLOP/s", "1.979 PFLOP/s"),
        (1023, "bytes", "1023 bytes"),
    ],
)
def test_base_units_become_readable_without_a_format(value, unit, text):
    assert show_value(value, unit=unit).replace(NB, " ") == text
    assert show_value(value, "bare", unit=unit) != text, "a format says what it wants"

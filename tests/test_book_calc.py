"""The expression of a {calc} role: formulas, literals and arithmetic come out; nothing else gets in."""

import pytest

from labkit.book.calc_call import calc_modules, evaluate, formulas
from labkit.book.values import LookupProblem


def hardware(profile, field):
    return {("h200", "memory_bandwidth_bytes_per_s"): 4.8e12}[profile, field]


@pytest.mark.parametrize(
    ("text", "value", "name"),
    [
        ('ddp.gradient_bytes(parameters=[["w", [2, 3]], ["b", [2], "bfloat16"]])', 28, "ddp.gradient_bytes"),
        ('ddp.num_parameters(parameters=[["w", (2, 3)]])', 6, "ddp.num_parameters"),
        ('ddp.num_parameters(parameters=[["w", [2 * 3, 2**3 - 1]]]) / 2', 21.0, "ddp.num_parameters"),
        (
            'collectives.busbw_bytes_per_s("all_reduce", size_bytes=8, time_s=1.0, world_size=4)',
            12.0,
            "collectives.busbw_bytes_per_s",
        ),
        (
            'collectives.algbw_bytes_per_s(size_bytes=ddp.num_parameters(parameters=[["w", [4]]]), time_s=2.0)',
            2.0,
            "collectives.algbw_bytes_per_s",
        ),
        (
            "roofline.ridge_flop_per_byte(peak_flop_per_s=9.6e14, bytes_per_s="
            'hw("h200", "memory_bandwidth_bytes_per_s"))',
            200.0,
            "roofline.ridge_flop_per_byte",
        ),
    ],
)
def test_evaluates(text, value, name):
    assert evaluate(text, hardware=hardware) == (value, name)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1 + 1", "calls no function of labkit.calc"),
        ("ddp.", "not a call"),
        ("ddp", "is not a number, text or formula call"),
        ("__import__('os').system('true')", "is not a number, text or formula call"),
        ("ddp.num_parameters.__globals__", "not a number, text or formula call"),
        ("ddp._entries(parameters=[])", "unknown formula of ddp '_entries'"),
        ("ddp.require_int(1)", "unknown formula of ddp"),
        ("ddp.num_parameter(parameters=[])", "did you mean 'num_parameters'"),
        ("dpp.num_parameters(parameters=[])", "did you mean 'ddp'"),
        ("ddp.num_parameters(nothing=1)", "ddp.num_parameters: "),
        ("ddp.num_parameters(parameters=[x for x in [1]])", "is not a number, text or formula call"),
        ("ddp.num_parameters(parameters=open('x'))", "is not a number, text or formula call"),
        ("ddp.num_parameters(parameters=lambda: 1)", "is not a number, text or formula call"),
        ("ddp.num_parameters(parameters=2**4096)", "exponent 4096"),
        ("ddp.num_parameters(parameters=1/0)", "division by zero"),
        ("ddp.num_parameters(parameters='a' * 9)", "'a'\" is not a number"),
        ("ddp.num_parameters(parameters=[['w', [1]]])['x']", "has no \\['x'\\]"),
        ("ddp.num_parameters(parameters=[['w', [1]]])._x", "is not a number, text or formula call"),
        ("ddp.num_parameters(parameters=hw('h200'))", "expected hw"),
        ("collectives.busbw_bytes_per_s('all_reduce', size_bytes=8, time_s=1.0, world_size=1)", "world_size"),
        ("ddp.num_parameters(parameters=" + "1," * 400 + ")", "longer than"),
    ],
)
def test_refuses_with_one_line(text, message):
    with pytest.raises(LookupProblem, match=message) as caught:
        evaluate(text, hardware=hardware)
    assert "\n" not in str(caught.value)


def test_formulas_are_the_modules_own_and_in_file_order():
    found = formulas(calc_modules()["collectives"])
    assert "busbw_bytes_per_s" in found and not [name for name in found if name.startswith(("_", "require"))]
    lines = [function.__code__.co_firstlineno for function in found.values()]
    assert lines == sorted(lines)

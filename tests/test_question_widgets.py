"""Forms over the calculators: fields from the signature, answers at once, refusals in words; no browser."""

import pytest

from labkit.calc import moe
from labkit.plots import question_widgets as qw


def fields(box):
    return {child.description: child for child in box.children[:-1]}


def answer(box):
    return box.children[-1].value


@pytest.mark.parametrize("name", qw.EXAMPLES)
def test_every_example_is_a_form_with_an_answer(name):
    box = qw.calculator(name)
    assert "<table>" in answer(box) and "not defined" not in answer(box)
    assert len(box.children) > 1


def test_the_answer_follows_a_change():
    """Interview question 9: target 16 gives 32 ranks, 333 gives 666 and cannot be reached."""
    box = qw.calculator("moe.ranks_for_rows")
    assert "<b>32</b>" in answer(box) and "<b>True</b>" in answer(box)
    fields(box)["rows"].value = 333.0
    expected = moe.ranks_for_rows(rows=333.0, local_tokens=16, top_k=8, num_experts=256)
    assert f"<b>{expected['ranks']:.0f}</b>" in answer(box) and "<b>False</b>" in answer(box)


def test_a_refusal_is_shown_and_goes_away():
    box = qw.calculator("smt.speedup_bound")
    fields(box)["utilisation"].value = 0.0
    assert "not defined: utilisation=0.0: expected a fraction" in answer(box)
    fields(box)["utilisation"].value = 0.5
    assert "<b>2</b>" in answer(box)


def test_sliders_menus_and_lists():
    box = qw.calculator("gemm.critical_rows", k=(512, 8192), n=4096, ridge_flop_per_byte=[295.4, 153.0])
    assert (fields(box)["k"].min, fields(box)["k"].max, fields(box)["k"].value) == (512, 8192, 512)
    before = answer(box)
    fields(box)["ridge_flop_per_byte"].value = 153.0
    assert answer(box) != before
    merge = qw.calculator("online_softmax.merge_lse")
    fields(merge)["lses"].value = "[0, 0]"
    assert "[0.5]" in answer(merge)
    fields(merge)["lses"].value = "[0, 0"
    assert "expected a number, a list or other JSON" in answer(merge)


def test_an_empty_optional_field_is_none():
    box = qw.calculator("eviction.value_per_byte")
    assert "<b>1e-07</b>" in answer(box)
    fields(box)["reload_s"].value = ""
    assert "<b>1e-06</b>" in answer(box)


def test_text_of_an_error_is_escaped():
    box = qw.calculator("pipeline.bubble_ratio")
    fields(box)["schedule"].value = "<script>"
    assert "<script>" not in answer(box) and "&lt;script&gt;" in answer(box)


def test_all_calculators_are_listed():
    assert set(qw.EXAMPLES) <= set(qw.calculators()) and len(qw.calculators()) > 100
    assert not [name for name in qw.calculators() if "._" in name or name.startswith("_")]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: qw.calculator("moe.rows_per_expertt"), "did you mean 'moe.rows_per_expert'"),
        (lambda: qw.calculator("moe.rows_per_expert", topk=8), "unknown argument 'topk'; did you mean 'top_k'"),
        (lambda: qw.calculator("moe.layout_gpus", data_parallel=1), "'tensor_parallel' has no default"),
        (lambda: qw.calculator("moe.layout_gpus", data_parallel=1, tensor_parallel=(4, 4)), "tensor_parallel="),
    ],
)
def test_bad_names_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()

"""The notebooks' calculator: the shown value is the function's own, after every change."""

import pytest

from labkit.plots.widgets import calculator


def area(scale, *, width_m, height_m, kind="plain"):
    if height_m > 50:
        raise ValueError("height_m=51: expected at most 50")
    return scale * width_m * height_m


def test_value_follows_every_control():
    box = calculator(area, 10, width_m=[2, 3], height_m=(4, 60), kind="plain", show=lambda v: f"{v} m2")
    width, height, kind, answer = box.children
    assert answer.value == "<code>area</code> = <b>80 m2</b>"  # 10 * 2 * 4
    width.value = 3
    assert "<b>120 m2</b>" in answer.value
    height.value = 5
    assert "<b>150 m2</b>" in answer.value
    assert kind.disabled and kind.value == "plain"


def test_a_refused_input_shows_the_message():
    *_, answer = (box := calculator(area, 1, width_m=[2], height_m=(4, 60))).children
    box.children[1].value = 51
    assert "not defined: height_m=51" in answer.value


def test_fractions_move_on_a_logarithmic_scale():
    slider = calculator(area, 1, width_m=(1e-6, 1e-2), height_m=1).children[0]
    assert slider.value == pytest.approx(1e-6) and (slider.min, slider.max) == pytest.approx((-6, -2))


@pytest.mark.parametrize("spec", [(5, 5), (0.0, 1.0), (2.0, 1.0), [], (1, 2, 3), None])
def test_a_control_that_is_none_is_refused(spec):
    with pytest.raises(ValueError, match="width_m"):
        calculator(area, 1, width_m=spec, height_m=1)

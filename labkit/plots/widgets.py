"""Sliders over a calculator, for notebooks in JupyterLab.

A widget needs a running kernel, and the static page says so in words. So whatever it would show must also stand in a
figure, a table or the text.

    calculator(collectives.busbw_bytes_per_s, "all_reduce", size_bytes=[2**20, 2**28], time_s=(1e-5, 1e-2),
               world_size=(2, 8), show=lambda value: f"{value / 1e9:.1f} GB/s")

Everything a calculator refuses is shown as its own one-line message.
"""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from math import log10
from typing import Any

import ipywidgets as widgets


def calculator(
    function: Callable[..., Any], *arguments: Any, show: Callable[[Any], str] = "{:.6g}".format, **controls: Any
) -> widgets.VBox:
    """Controls above the value that `function` gives for them; the value follows every change.

    Args:
        function: a formula, usually of labkit.calc; units are those of its arguments.
        arguments: fixed positional arguments.
        show: value -> text, with its unit.
        controls: argument name -> a list of choices, or (low, high) for a slider (whole numbers step by one, others
            move on a logarithmic scale, 0 < low < high), or a single value that stays fixed and is shown.

    Returns: a box: one widget a control, in the order given, then the value. An input that the function refuses shows
        its message instead.
    Raises: ValueError naming a control that is not one of these.
    """
    inputs = {name: _control(name, spec) for name, spec in controls.items()}
    answer = widgets.HTML()

    def update(_: Any = None) -> None:
        try:
            text = show(function(*arguments, **{name: widget.value for name, widget in inputs.items()}))
        except ValueError as error:
            text = f"not defined: {error}"
        answer.value = f"<code>{escape(function.__name__)}</code> = <b>{escape(text)}</b>"

    for widget in inputs.values():
        widget.observe(update, names="value")
    update()
    return widgets.VBox([*inputs.values(), answer])


def _control(name: str, spec: Any) -> Any:
    look = {"description": name, "style": {"description_width": "12em"}, "layout": {"width": "32em"}}
    if isinstance(spec, list) and spec:
        return widgets.Dropdown(options=spec, value=spec[0], **look)
    if isinstance(spec, tuple) and len(spec) == 2 and all(isinstance(end, int | float) for end in spec):
        low, high = spec
        if isinstance(low, int) and isinstance(high, int) and low < high:
            return widgets.IntSlider(min=low, max=high, value=low, **look)
        if 0 < low < high:
            return widgets.FloatLogSlider(base=10, min=log10(low), max=log10(high), value=low, **look)
    elif isinstance(spec, int | float | str):
        boxes = {str: widgets.Text, float: widgets.FloatText}
        return boxes.get(type(spec), widgets.IntText)(value=spec, disabled=True, **look)
    raise ValueError(f"{name}={spec!r}: expected choices [a, b], a range (low, high) with low < high, or one value")

"""The figures' palette is measured, not trusted: contrast on both backgrounds, distance for colour-blind readers."""

import itertools

import numpy as np
import pytest

from labkit.plots import style

# Machado, Oliveira, Fernandes 2009: linear RGB as seen without one kind of cone.
BLINDNESS = {
    "none": np.eye(3),
    "protan": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deutan": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritan": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}


def linear(color):
    c = np.array([int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)


def contrast(a, b):
    """WCAG 2 contrast ratio."""
    low, high = sorted(float(linear(c) @ [0.2126, 0.7152, 0.0722]) for c in (a, b))
    return (high + 0.05) / (low + 0.05)


def lab(rgb):
    xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]) @ rgb
    f = [np.cbrt(t) if t > 0.008856 else 7.787 * t + 16 / 116 for t in xyz / [0.9505, 1, 1.089]]
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def test_contrast_formula_by_hand():
    assert contrast("#000000", "#ffffff") == pytest.approx(21)


@pytest.mark.parametrize("color", style.COLORS)
@pytest.mark.parametrize("background", ["#ffffff", "#121212"])
def test_a_series_stands_out_on_light_and_dark(color, background):
    assert contrast(color, background) >= 3  # WCAG 1.4.11, graphical objects


def test_text_grey_is_readable_on_white():
    assert contrast(style.GREY, "#ffffff") >= 4.5  # WCAG 1.4.3; on dark pages the script replaces it


@pytest.mark.parametrize("kind", BLINDNESS)
def test_any_two_series_differ_for_colour_blind_readers(kind):
    seen = [lab(np.clip(np.array(BLINDNESS[kind]) @ linear(c), 0, 1)) for c in style.COLORS]
    closest = min(float(np.linalg.norm(a - b)) for a, b in itertools.combinations(seen, 2))
    assert closest >= 12  # CIE76; about 2.3 is just noticeable side by side, lines need several times that


def test_series_differ_without_any_colour():
    traces = [style.measured([1], [1], name=str(i), index=i) for i in range(len(style.COLORS))]
    assert len({trace.marker.symbol for trace in traces}) == len(style.COLORS)
    bars = [style.bars(["a"], [1], name=str(i), index=i) for i in range(len(style.COLORS))]
    assert len({bar.marker.pattern.shape for bar in bars}) == len(style.COLORS)
    assert all(bar.marker.pattern.fillmode == "overlay" for bar in bars), "else a bar with a pattern has no colour"
    assert style.TEMPLATE.data.bar[0].marker.pattern.fillmode == "overlay", "also for bars made elsewhere"


def test_kinds_of_series_differ_without_any_colour():
    """Measured, predicted and quoted series of the same index share no (mode, dash, open marker) triple."""
    looks = set()
    for make in (style.measured, style.predicted, style.quoted):
        trace = make([1, 2], [1, 2], name="x", index=0)
        looks.add((trace.mode, trace.line.dash or "solid", "open" in str(trace.marker.symbol)))
    assert len(looks) == 3
    assert style.measured([1], [1], name="x").line.dash is None
    for make in (style.predicted, style.quoted):
        assert make([1], [1], name="x").line.dash in ("dash", "dot"), "only a measurement is a solid line"


def test_bars_reach_from_p10_to_p90():
    trace = style.measured([1, 2], [10.0, 20.0], name="x", low=[9.0, 15.0], high=[12.0, 21.0])
    assert list(trace.error_y.array) == [2.0, 1.0] and list(trace.error_y.arrayminus) == [1.0, 5.0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"x": [1, 2], "y": [1.0]}, "y: 1 values, expected 2"),
        ({"x": [1], "y": [1.0], "low": [0.5]}, "both or neither"),
        ({"x": [1], "y": [1.0], "low": [0.5], "high": [1, 2]}, "high: 2 values"),
        ({"x": [1], "y": [1.0], "num_samples": [1, 2]}, "num_samples: 2 values"),
    ],
)
def test_measured_refuses_uneven_input(arguments, message):
    with pytest.raises(ValueError, match=message):
        style.measured(name="x", **arguments)


@pytest.mark.parametrize("missing", ["title", "x", "y"])
def test_a_figure_has_title_and_labels(missing):
    texts = {"title": "t", "x": "size", "y": "time (s)", missing: "  "}
    with pytest.raises(ValueError, match=missing):
        style.figure(texts.pop("title"), **texts)


def test_figure_texts_and_background():
    fig = style.figure("Finding", x="size", y="time (s)", caption="h200-x2", alt="what it shows")
    assert fig.layout.meta == {"alt": "what it shows", "caption": "h200-x2"}
    assert style.figure("Finding", x="size", y="time (s)").layout.meta["alt"] == "Finding"
    assert fig.layout.template.layout.paper_bgcolor == "rgba(0,0,0,0)"


def test_size_axis_has_a_binary_tick_at_each_size():
    fig = style.size_axis(style.figure("t", x="a", y="b"), [2**20, 1024, 2**20, 3 * 2**19])
    assert fig.layout.xaxis.type == "log"
    assert list(fig.layout.xaxis.tickvals) == [1024, 2**20, 3 * 2**19]
    assert list(fig.layout.xaxis.ticktext) == ["1 KiB", "1 MiB", "1.50 MiB"]
    with pytest.raises(ValueError, match="sizes_bytes"):
        style.size_axis(fig, [0])


def test_ceiling_is_labelled():
    fig = style.ceiling(style.figure("t", x="a", y="b"), 5.0, label="peak, data sheet")
    assert fig.layout.shapes[0].y0 == fig.layout.shapes[0].y1 == 5.0
    assert fig.layout.annotations[0].text == "peak, data sheet"
    fig = style.ceiling(style.figure("t", x="a", y="b"), 5.0, label="peak", position="bottom right")
    right = fig.layout.annotations[0]
    assert (right.x, right.yanchor) == (1, "top")
    fig = style.ceiling(style.figure("t", x="a", y="b", log_y=True), 100.0, label="peak")
    assert fig.layout.shapes[0].y0 == 100.0 and fig.layout.annotations[0].y == 2, "labels go by the exponent"

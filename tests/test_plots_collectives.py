"""Figures of the collective lab and its explorer: what is drawn is what was measured or what the model says."""

import pytest

from labkit.plots import collective_explorer as explorer
from labkit.plots import collectives as plots


def quantity(value, spread=0.02):
    return {"value": value, "p10": value * (1 - spread), "p90": value * (1 + spread), "n": 60, "unit": "us"}


def fit(alpha, rate, held):
    return {"alpha_us": alpha, "algbw_gb_per_s": rate, "held_out": held, "worst_held_out_pct": 12.0,
            "median_held_out_pct": 3.0, "residual_pct": {"1 KiB": 1.0, "1 MiB": -12.0}}


TIMES = {"Ring+LL": {"1 MiB": quantity(17.0), "1 KiB": quantity(10.0)},
         "Tree+Simple": {"1 KiB": quantity(20.0), "1 MiB": quantity(25.0)}}


def test_points_stand_at_their_size_whatever_the_order_of_the_record():
    fig = plots.time_by_pair(TIMES, {"1 KiB": "Ring+LL", "1 MiB": "Ring+LL"})
    ring, tree = fig.data
    assert list(ring.x) == [1024, 2**20] and list(ring.y) == [10.0, 17.0] and ring.name == "Ring+LL"
    assert ring.line.dash != tree.line.dash and ring.marker.symbol != tree.marker.symbol
    assert ring.line.color != tree.line.color and "LL as messages grow" in fig.layout.title.text


def test_a_fit_is_dashed_and_open_where_it_was_not_fitted():
    fig = plots.fitted(TIMES, {"Ring+LL": fit(10.0, 150.0, ["1 MiB"])}, caption="run x")
    points, line = fig.data
    assert list(points.marker.symbol) == ["circle", "circle-open"] and line.line.dash == "dash"
    assert line.y[1] == pytest.approx(10.0 + 2**20 / 150.0 / 1e3) and fig.layout.meta["caption"] == "run x"


def test_residuals_are_drawn_as_they_are():
    (trace,) = plots.residuals({"Ring+LL": fit(10.0, 150.0, ["1 MiB"])}).data
    assert list(trace.y) == [1.0, -12.0]


def test_a_channel_is_called_fastest_only_beyond_the_spread():
    apart = plots.channels({"8": quantity(160.0), "1": quantity(20.0)})
    assert apart.layout.title.text.startswith("8 channels") and list(apart.data[0].x) == [1, 8]
    close = plots.channels({"1": quantity(20.0), "2": quantity(20.3)})
    assert "overlap" in close.layout.title.text


def test_pairs_tell_what_is_kept():
    alone = {"PIX": quantity(47.15), "SYS": quantity(27.45)}
    fig = plots.pairs(alone, {"PIX": quantity(47.14), "SYS": quantity(13.21)})
    assert "PIX 100 %; SYS 48 %" in fig.layout.title.text
    assert [list(trace.y) for trace in fig.data] == [[47.15, 27.45], [47.14, 13.21]]


def test_figures_are_only_those_with_data():
    assert plots.all_figures({}, is_gpu=False) == {}
    found = plots.all_figures({"time_us": {"auto": TIMES["Ring+LL"]}, "busbw_gb_per_s": {"auto": TIMES["Ring+LL"]}},
                              is_gpu=True)
    assert list(found) == ["bandwidth"] and "Up to 1 MiB" in found["bandwidth"].layout.title.text


def test_the_models_curves_are_the_models():
    fig = explorer.curves(ranks=8, alpha_us=2.0, gb_per_s=100.0, points={"Ring+LL": {"1 KiB": 9.0}}, size_bytes=2**20)
    names = [trace.name for trace in fig.data]
    assert names == [f"{a}+{p}" for a in ("Ring", "Tree") for p in ("LL", "LL128", "Simple")] + ["Ring+LL measured"]
    ring_ll = fig.data[0]
    assert ring_ll.y[0] == pytest.approx(14 * 2.0 + 1.75 * 1024 / 50e9 * 1e6)  # 14 steps, half of the wire
    assert fig.data[5].y[-1] == pytest.approx(6 * 6.0 + 2 * 2**32 / 100e9 * 1e6)  # tree: 6 steps of Simple
    assert list(fig.data[6].x) == [1024] and list(fig.data[6].y) == [9.0]
    assert fig.data[0].line.dash == "dash" and fig.data[6].mode == "markers"


def test_sliders_change_the_answer():
    box = explorer.explorer(points={"Ring+LL": {"1 KiB": 9.0}}, ranks_of_points=2, alpha_us=3.0, gb_per_s=300.0)
    size, ranks, alpha, rate, ll128, simple, answer, drawing = box.children
    size.value = 2.0**10
    assert answer.value.count("<b>") == 1 and "<td>Ring+LL</td><td><b>6.0" in answer.value
    ranks.value = 8
    assert "<td>Tree+LL</td><td><b>18.0" in answer.value
    rate.value, simple.value, ll128.value, alpha.value = 100.0, 2.0, 1.2, 10.0
    size.value = 2.0**32
    assert "<td>Ring+Simple</td><td><b>" in answer.value and drawing is not None

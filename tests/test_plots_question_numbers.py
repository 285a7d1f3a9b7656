"""Pictures of questions 10 to 18 show the numbers of their pages: each against arithmetic written out here."""

import itertools
import math
import struct

import pytest

from labkit.book.drawing import drawing_function


def draw(name):
    return drawing_function(name)()


def named(fig, name):
    (trace,) = [trace for trace in fig.data if trace.name == name]
    return trace


def words(fig):
    return [note.text for note in fig.layout.annotations]


def test_five_sizes_of_one_exchange():
    (bar,) = draw("questions_moe:byte_counts").data
    pairs, ranks, row = 16 * 8, 32, 7168
    copies = pairs * (ranks - 1)
    reached = ranks * (1 - math.comb(256 - 8, 8) / math.comb(256, 8))
    assert [size * 2**20 for size in bar.x] == pytest.approx([
        copies * (row + row // 128 * 4 + 2 * row), copies * row * 4 * reached / 8, copies * row * 4,
        pairs * ranks * row * 4, 2 * copies * row * 4,
    ])  # fmt: skip


def test_batch_knee_marks_time_memory_and_half_of_the_limit():
    fig = draw("questions_pd_ratio:batch_knee")
    rate = 4 * 4.8e12
    fixed, each = 141.2e9 / rate, 4096 * 327680 / rate
    marks = {note.text: note.x for note in fig.layout.annotations}
    assert marks["half of the limit"] == pytest.approx(fixed / each)
    assert marks["KV pool full"] == 1_180_000 // 4096 < marks["TPOT reached"] == math.floor((0.05 - fixed) / each)
    (curve,) = fig.data
    half = curve.y[list(curve.x).index(104)]
    assert half == pytest.approx(0.5 / each, rel=0.01)


def test_layouts_lie_where_bytes_and_flop_put_them():
    fig = draw("questions_layouts:cache_against_intensity")
    heads = named(fig, "shared heads")
    assert list(zip(heads.x, heads.y)) == [(n * 320 * 2, 128 / n) for n in (128, 8, 1)]
    latent, core = named(fig, "latent"), 2 * 128 * (2 * 512 + 64) / (2 * 576)
    assert set(latent.x) == {1152} and list(latent.y) == pytest.approx([core, 2 * core, core / 2])
    (note,) = fig.layout.annotations
    assert 10**note.y == pytest.approx(989.4 / 3.35)


def test_panel_of_one_step_belongs_to_one_column_of_a_and_one_row_of_b():
    fig = draw("questions_summa:panel_step")
    strips = [shape for shape in fig.layout.shapes if shape.opacity == 0.35]
    (a, b) = strips
    assert (a.x0, a.x1, a.y1 - a.y0) == (0.25, 0.5, 1) and (b.x1 - b.x0, b.y0, b.y1) == (pytest.approx(1), 0.5, 0.75)
    names = [f"P{row}{column}" for row, column in itertools.product((0, 1), repeat=2)]
    assert [text for text in words(fig) if text.startswith("P")] == names * 3


def test_waves_fill_and_break():
    fig = draw("questions_waves:wave_efficiency_by_blocks")
    for name, sms in (("A100, 108 SMs", 108), ("H100, 132 SMs", 132)):
        trace = named(fig, name)
        share = dict(zip(trace.x, trace.y))
        assert share[sms] == share[2 * sms] == 1 and share[sms + 1] == pytest.approx((sms + 1) / (2 * sms))
    assert share[216] == pytest.approx(216 / 264)


def test_only_a_fixed_order_gives_one_sum():
    for trace in draw("questions_order:patterns_by_method").data:
        counts = dict(zip(trace.x, trace.y))
        assert counts.pop("fixed") == 1 and min(counts.values()) > 1 and max(counts.values()) <= 60


def test_number_line_has_the_neighbours_that_c_has():
    fig = draw("questions_absorption:number_line")

    def as_float(x):
        return struct.unpack("f", struct.pack("f", x))[0]

    literal, product = as_float(9.9e9), as_float(as_float(9.9) * as_float(1e9))
    assert named(fig, "9.9e9f").x[0] == literal - 9.9e9 and named(fig, "9.9f * 1e9f").x[0] == product - 9.9e9
    (bits,) = struct.unpack("I", struct.pack("f", literal))
    after = struct.unpack("f", struct.pack("I", bits + 1))[0]
    assert named(fig, "other FP32 numbers").x[1] == after - 9.9e9
    (first, second) = fig.layout.shapes
    assert first.x1 == second.x0 and second.x1 - second.x0 == after - literal


def test_memory_map_names_each_space_once():
    text = " ".join(words(draw("questions_memory_kinds:spaces_and_stores")))
    for name in ("registers", "shared", "tensor memory", "global", "local", "constant", "texture", "mapped"):
        assert text.count(name) == 1 + (name == "constant") + (name == "shared"), name

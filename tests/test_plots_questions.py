"""Pictures of the question pages: every one draws, speaks, fits both themes; mine show the numbers they claim to."""

import importlib
import itertools
import json
import math
import pkgutil

import plotly.graph_objects as go
import pytest

import labkit.plots
from labkit.book.drawing import drawing_function
from labkit.book.plotly_mime import figure_texts
from labkit.plots import diagram
from labkit.plots.style import COLORS, GREY


def all_drawings():
    for info in pkgutil.iter_modules(labkit.plots.__path__):
        if info.name.startswith("questions_"):
            module = importlib.import_module(f"labkit.plots.{info.name}")
            for name, value in vars(module).items():
                own = getattr(value, "__module__", "") == module.__name__ and callable(value) and name[0] != "_"
                if own and value.__annotations__.get("return") == "go.Figure":
                    yield f"{info.name}:{name}"


DRAWINGS = sorted(all_drawings())


def numbers(value):
    if isinstance(value, dict):
        for item in value.values():
            yield from numbers(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from numbers(item)
    elif isinstance(value, float):
        yield value


@pytest.mark.parametrize("name", DRAWINGS)
def test_drawing_is_readable(name):
    fig = drawing_function(name)()
    assert isinstance(fig, go.Figure)
    shown = json.loads(fig.to_json())
    texts = figure_texts(shown)
    assert texts["title"] and len(texts["title"]) <= 110, "a title is the finding, in one sentence"
    assert 200 <= shown["layout"]["height"] <= 760
    assert all(math.isfinite(x) for x in numbers(shown["data"]))
    assert shown["data"] or shown["layout"].get("shapes"), "nothing is drawn"
    for note in shown["layout"].get("annotations", []):
        assert note.get("font", {}).get("color", GREY) in (GREY, *COLORS), "text that a dark page would swallow"
        assert note.get("font", {}).get("size", 12) >= 10
    template = shown["layout"]["template"]["layout"]
    assert template["paper_bgcolor"] == template["plot_bgcolor"] == "rgba(0,0,0,0)"


def test_canvas_and_boxes():
    fig = diagram.canvas("Two boxes", width=4, height=2, alt="a box and an arrow")
    diagram.box(fig, 0, 0, 1, 1, "a<br>b", index=0)
    diagram.box(fig, 2, 0, 1, 1, dashed=True)
    diagram.arrow(fig, 1, 0.5, 2, 0.5, "KV", index=1)
    assert [shape.line.dash for shape in fig.layout.shapes] == ["solid", "dash"]
    assert fig.layout.shapes[0].fillcolor == "rgba(43,114,183,0.16)"
    assert [note.text for note in fig.layout.annotations] == ["a<br>b", "", "KV"]
    assert fig.layout.annotations[1].arrowcolor == COLORS[1]
    with pytest.raises(ValueError, match="width=0"):
        diagram.canvas("t", width=0, height=1, alt="a")
    with pytest.raises(ValueError, match="alt=''"):
        diagram.canvas("t", width=1, height=1, alt="")


def named(fig, name):
    (trace,) = [trace for trace in fig.data if trace.name == name]
    return trace


def test_mstar_sits_where_the_roofs_cross():
    fig = drawing_function("questions_roofline:mstar_curve")()
    ridge = 989.4 / 3.35
    for shape, k, n in (("gate+up, 7168 x 4096", 7168, 4096), ("down, 2048 x 7168", 2048, 7168)):
        (rows,) = named(fig, f"M* of {shape}").x
        assert rows == pytest.approx(ridge / (1 - ridge * (1 / k + 1 / n)))
    assert not [trace for trace in fig.data if trace.name == "M* of 512 x 512"]
    assert max(named(fig, "512 x 512").y) < 256 * 3.35 < 989.4


def words(fig):
    return [note.text for note in fig.layout.annotations]


def test_online_softmax_states_are_the_sums_they_stand_for():
    texts = words(drawing_function("questions_attention:online_softmax")())
    scores = [1.0, 3.0, 2.0, 5.0, 0.0, 4.0]
    total = sum(math.exp(s - 5) for s in scores)
    assert f"m = 5<br>ℓ = {total:.3f}" in texts and f"one merge<br>m = 5, ℓ = {total:.3f}" in texts
    assert f"m = 3<br>ℓ = {1 + math.exp(-2):.3f}" in texts
    assert f"×{math.exp(-2):.2f}" in texts and "×1.00" in texts


def test_block_tables_share_equal_keys_only():
    texts = words(drawing_function("questions_prefix_cache:block_tables")())
    keys = [text.split("<br>")[1] for text in texts if "…" in text and "no key" not in text]
    assert keys[:2] == keys[3:5] and keys[2] != keys[5] and len(set(keys)) == 4
    assert sum("2 users" in text for text in texts) == 2 and sum("no key" in text for text in texts) == 2


def test_expansion_falls_with_the_segment():
    (trace,) = drawing_function("questions_mla:expansion_peak")().data
    assert list(trace.y) == [1152 * 131072 / 2**30, 10, 8, 2, 1, 0.5]


def test_lru_falls_off_a_cliff():
    fig = drawing_function("questions_eviction:paused_session")()
    assert set(named(fig, "LRU").y) == {0, 100} and next(iter(named(fig, "LRU").y)) == 100
    assert set(named(fig, "value per byte").y) == {100}


def test_break_even_is_where_both_ways_take_equally_long():
    fig = drawing_function("questions_pd:break_even")()
    for name, size in (("80-layer GQA", 327680), ("61-layer MLA", 70272)):
        trace = named(fig, name)
        hit, miss = 1000 * trace.x[20], trace.y[20]
        stay = miss / 10000 + 5e-5 * miss
        assert hit == 100000 and stay == pytest.approx(size * (hit + miss) / 50e9 + miss / 20000)


def test_gathering_q_and_kv_cross_where_the_diamond_is():
    fig = drawing_function("questions_context_parallel:bytes_over_queries")()
    assert named(fig, "crossing, GQA").x == (16384,) and named(fig, "crossing, MLA").x == (1843.2,)
    assert named(fig, "GQA: KV or ring").y[0] == pytest.approx(7 / 8 * 131072 * 2048 * 2 / 2**20)
    place = list(named(fig, "GQA: Q and merge").x).index(16384)
    with_lse = named(fig, "GQA: Q and merge").y[place] / named(fig, "GQA: KV or ring").y[0]
    assert with_lse == pytest.approx(1 + 64 * 4 / (2 * 16384))


def test_timeline_places_every_request_once_and_ends_with_the_calculator():
    from labkit.calc.serving import batching_iterations
    from labkit.plots import questions_batching as batching

    found = batching_iterations(lengths=batching.LENGTHS, num_slots=batching.SLOTS)
    for place, key in ((batching.whole_batches(), "whole_batches"), (batching.continuous(), "continuous")):
        assert sorted(length for _, _, length in place) == sorted(batching.LENGTHS)
        assert max(start + length for _, start, length in place) == found[key]
        for slot in range(batching.SLOTS):
            spans = sorted((start, start + length) for s, start, length in place if s == slot)
            assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans)), "two requests in one slot"
    fig = drawing_function("questions_batching:slot_timeline")()
    assert sum(len(trace.y) for trace in fig.data) == 2 * len(batching.LENGTHS)


def test_rows_stop_at_one_expert_a_rank():
    fig = drawing_function("questions_expert_sizing:rows_over_ranks")()
    rows = dict(zip(named(fig, "16 local tokens").x, named(fig, "16 local tokens").y))
    assert rows[32] == 16 and rows[128] == 64 and rows[256] == rows[666] == rows[1024] == 128
    assert max(named(fig, "42 local tokens").y) == 336 > 333

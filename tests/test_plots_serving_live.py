"""The live view without a browser: curves, throttling, the stop button, and silence where nobody watches."""

import threading
import time

import plotly.graph_objects as go
import pytest

from labkit.plots import serving_live
from labkit.plots.serving_live import LiveView, hit_rates, live_or_none


def sample(t_s, **values):
    return {"t_s": t_s, "running": 1, "waiting": 2, "kv_cache_usage": 0.25, "hit_tokens": 0, "query_tokens": 0,
            **values}


def shown(monkeypatch, **options):
    """A view under a cell of nobody."""
    monkeypatch.setattr("IPython.display.display", lambda *_: None)
    view = LiveView(**options)
    view.show()
    return view


def on_page(view):
    """The figure that a reader sees."""
    (output,) = view._page.outputs
    return go.Figure(output["data"]["application/vnd.plotly.v1+json"])


def curve(figure, name):
    return next(list(trace.y) for trace in figure.data if trace.name == name)


def test_curves_are_the_samples(monkeypatch):
    view = shown(monkeypatch, redraw_s=0.0)
    view.on_sample(sample(100.0, running=3, waiting=5, kv_cache_usage=0.5))
    view.on_sample({"t_s": 100.25, "error": "no page"})
    view.on_sample(sample(100.5, running=4))
    view.finish()
    figure = on_page(view)
    assert list(figure.data[0].x) == [0.0, 0.25, 0.5]
    assert curve(figure, "running") == [3, None, 4] and curve(figure, "waiting") == [5, None, 2]
    assert curve(figure, "KV cache used") == [0.5, None, 0.25], "a failed scrape is a gap, not a zero"
    assert "running 4, waiting 2, KV cache 25.0%; 1 failed" in view.status.value
    assert "sampled" in figure.layout.meta["caption"]


def test_drawing_is_throttled_and_the_last_samples_are_drawn(monkeypatch):
    view = shown(monkeypatch, redraw_s=3600.0)
    for number in range(50):
        view.on_sample(sample(number / 4, running=number))
    assert curve(on_page(view), "running") == [0]
    view.finish()
    assert curve(on_page(view), "running")[-1] == 49 and view.button.disabled


def test_nothing_is_drawn_before_it_is_shown():
    view = LiveView(redraw_s=0.0)
    view.on_sample(sample(0.0))
    view.finish()
    assert view.error is None and curve(view.figure(), "running") == [1]


def test_an_error_in_drawing_stays_out_of_the_run(monkeypatch):
    view = shown(monkeypatch, redraw_s=0.0)

    def fail():
        raise RuntimeError("the browser is gone")

    monkeypatch.setattr(view, "figure", fail)
    view.on_sample(sample(0.0))
    view.on_sample(sample(1.0))
    view.finish()
    assert view.error == "RuntimeError: the browser is gone" and "drawing ended early" in view.status.value
    assert not view.should_stop()


@pytest.mark.parametrize("bad", [{}, {"t_s": "now"}, {"t_s": None, "running": 7}, {"t_s": 0.5, "error": "no page"}])
def test_a_sample_that_is_none_ends_neither_run_nor_drawing(monkeypatch, bad):
    view = shown(monkeypatch, redraw_s=0.0)
    view.on_sample(bad)
    view.on_sample(sample(1.0))
    view.finish()
    assert view.error is None and curve(on_page(view), "running")[-1] == 1
    assert "1 failed scrapes" in view.status.value


def test_the_button_stops(monkeypatch):
    view = shown(monkeypatch)
    assert not view.should_stop()
    view.button.click()
    assert view.should_stop() and view.button.disabled
    view.finish()
    assert view.button.description == "Stopped"


def test_samples_may_come_from_any_thread(monkeypatch):
    view = shown(monkeypatch, redraw_s=0.0)
    threads = [threading.Thread(target=lambda k=k: [view.on_sample(sample(k + i / 100)) for i in range(20)])
               for k in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert view.error is None and len(curve(view.figure(), "running")) == 60


def test_an_empty_view_has_axes_and_old_samples_leave():
    view = LiveView()
    assert [list(trace.y) for trace in view.figure().data] == [[]] * 5
    for number in range(serving_live.WINDOW + 10):
        view.on_sample(sample(float(number)))
    assert len(curve(view.figure(), "running")) == serving_live.WINDOW


def test_hit_rates_by_hand():
    rows = [sample(0.0), sample(1.0, query_tokens=100, hit_tokens=50), sample(4.0, query_tokens=200, hit_tokens=150),
            sample(7.0, query_tokens=300, hit_tokens=150), {"t_s": 8.0, "error": "x"},
            sample(9.0, query_tokens=10, hit_tokens=5), sample(10.0, query_tokens=20, hit_tokens=15)]
    assert hit_rates(rows) == [
        (None, None), (0.5, 0.5), (0.75, 0.75),
        (0.5, 0.5),      # the window begins at 1 s: (150 - 50) of (300 - 100)
        (None, None),
        (0.5, None),     # counters fell: another server
        (0.75, 1.0),
    ]


def test_another_round_may_be_another_server(monkeypatch):
    rows = [sample(0.0, query_tokens=100, hit_tokens=0, round="a"),
            sample(1.0, query_tokens=900, hit_tokens=90, round="b"),
            sample(2.0, query_tokens=1000, hit_tokens=140, round="b")]
    assert hit_rates(rows) == [(0.0, None), (0.1, None), (0.14, 0.5)]
    view = shown(monkeypatch, redraw_s=0.0)
    view.on_sample(sample(0.0, round="<4 GiB>"))
    assert view.status.value.startswith("&lt;4 GiB&gt;: running 1")


def test_a_window_of_one_old_sample_is_measured_from_it():
    rows = [sample(0.0, query_tokens=100, hit_tokens=0), sample(60.0, query_tokens=200, hit_tokens=80)]
    assert hit_rates(rows)[-1] == (0.4, 0.8)


def test_no_view_outside_a_notebook():
    assert live_or_none() is None


@pytest.mark.parametrize(("content", "is_watched"), [({"allow_stdin": True}, True), ({"allow_stdin": False}, False),
                                                     ({}, False)])
def test_a_view_only_where_somebody_watches(monkeypatch, content, is_watched):
    class Kernel:
        def get_parent(self, channel):
            return {"content": content}

    class Shell:
        kernel = Kernel()

    monkeypatch.setattr("IPython.core.getipython.get_ipython", lambda: Shell())
    assert (live_or_none() is not None) == is_watched


def test_a_headless_notebook_gets_none():
    """The real thing: nbclient, on which papermill and nbconvert stand."""
    import nbformat
    from nbclient import NotebookClient

    cell = nbformat.v4.new_code_cell(
        "from labkit.plots.serving_live import live_or_none\nprint(live_or_none())")
    notebook = nbformat.v4.new_notebook(cells=[cell])
    NotebookClient(notebook, timeout=60, kernel_name="python3").execute()
    assert notebook.cells[0].outputs[0]["text"] == "None\n"


def test_drawing_takes_little_time_of_a_slow_machine(monkeypatch):
    view = shown(monkeypatch, redraw_s=0.0)
    monkeypatch.setattr(view, "_draw", lambda: time.sleep(0.05))
    view.on_sample(sample(0.0))
    assert view._due_s - time.monotonic() > 0.3, "ten times what the drawing took"

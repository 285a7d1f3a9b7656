"""Curves of a serving run while it runs, in JupyterLab: requests, KV cache and hit rate, with a stop button.

    live = live_or_none()                        # None in papermill, nbconvert or a script: nothing to draw for nobody
    if live is not None:
        live.show()
    ... on_sample=live and live.on_sample, should_stop=live and live.should_stop ...

The page is redrawn in the thread that takes the samples, once a second at most, and never disturbs the run: whatever
goes wrong in drawing ends the drawing only. The button works while the cell runs where the notebook sends widget
messages beside the running cell (JupyterLab from 4.4 on with ipykernel 7); elsewhere the notebook's own interrupt does.
Nothing here is kept: the record of the run has the samples.
"""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Mapping
from html import escape
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from labkit.plots.style import COLORS, TEMPLATE

REDRAW_S = 1.0
WINDOW = 1200
"""Newest samples on the page: five minutes at four a second."""
HEIGHT = 480
RECENT_S = 5.0
"""Of the hit rate that is not averaged over everything before."""


def live_or_none() -> LiveView | None:
    """A view when somebody is watching this cell in a notebook, else None.

    papermill, nbconvert and `labkit batch` say with each cell that nobody is there to answer a question; a script and a
    terminal have no notebook kernel at all.
    """
    try:
        from IPython.core.getipython import get_ipython

        kernel = getattr(get_ipython(), "kernel", None)
        content = (kernel.get_parent("shell") or {}).get("content", {}) if kernel is not None else {}
        return LiveView() if content.get("allow_stdin") else None
    except Exception:  # no IPython, no ipywidgets, another kernel: the run does not need us
        return None


class LiveView:
    """What a running server does, drawn as it happens.

    Samples are those of labkit.launch.metrics_sampler: {"t_s", "running", "waiting", "kv_cache_usage", "hit_tokens",
    "query_tokens"}; a failed one, {"t_s", "error"}, leaves a gap. Counters that fall, or another "round" (a name, if a
    sample has it), may be of another server: the recent rate begins anew.
    """

    def __init__(self, *, redraw_s: float = REDRAW_S) -> None:
        """An empty view; nothing is shown yet.

        Args:
            redraw_s: seconds between two drawings at least.
        """
        import ipywidgets as widgets

        self.button = widgets.Button(description="Stop the run", icon="stop", button_style="warning")
        self.button.on_click(lambda _: self.stop())
        self.status = widgets.HTML("waiting for the first sample")
        self.error: str | None = None
        """Why drawing ended early, one line; None while all is well."""
        self._samples: deque[dict[str, Any]] = deque(maxlen=WINDOW)
        self._redraw_s, self._due_s = redraw_s, 0.0
        self._num_failed = 0
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._page: Any = None

    def show(self) -> None:
        """Put the button and the figure under the current cell."""
        import ipywidgets as widgets
        from IPython.display import display

        # plotly's renderer draws an output once and ignores its updates, so the whole output is replaced; it keeps its
        # height meanwhile, or the page would jump.
        self._page = widgets.Output(layout={"min_height": f"{HEIGHT + 20}px"})
        display(widgets.VBox([widgets.HBox([self.button, self.status]), self._page]))

    def _ipython_display_(self) -> None:
        self.show()

    def on_sample(self, sample: Mapping[str, Any]) -> None:
        """Take one sample, and draw if the last drawing is long enough ago. Never raises; for any thread."""
        try:
            with self._lock:
                if "error" in sample or not isinstance(sample.get("t_s"), int | float):
                    self._num_failed += 1
                if isinstance(sample.get("t_s"), int | float):
                    self._samples.append(dict(sample))
                now = time.monotonic()
                if self._page is None or self.error is not None or now < self._due_s:
                    return
                self._draw()
                # Drawing takes at most a tenth of the sampler's time, however slow the machine.
                self._due_s = time.monotonic() + max(self._redraw_s, 10 * (time.monotonic() - now))
        except Exception as error:
            self.error = f"{type(error).__name__}: {error}"

    def stop(self) -> None:
        """What the button does: ask the run to stop."""
        self._stop.set()
        self.button.disabled = True
        self.button.description = "Stopping"

    def should_stop(self) -> bool:
        """True once the button was pressed; the run asks often."""
        return self._stop.is_set()

    def finish(self) -> None:
        """Draw the last samples and take the button away. Never raises."""
        try:
            with self._lock:
                if self._page is not None and self.error is None:
                    self._draw()
                self.button.disabled = True
                self.button.description = "Stopped" if self._stop.is_set() else "Ended"
                if self.error is not None:
                    self.status.value = f"drawing ended early: {self.error}"
        except Exception as error:
            self.error = f"{type(error).__name__}: {error}"

    def _draw(self) -> None:
        self._page.outputs = ({"output_type": "display_data", "metadata": {}, "data": {
            "application/vnd.plotly.v1+json": json.loads(self.figure().to_json() or "{}"),
            "text/plain": "curves of the server"}},)
        last = next((s for s in reversed(self._samples) if "error" not in s), None)
        text = "no sample yet" if last is None else (
            f"{escape(str(last.get('round', 'now')))}: running {_text(last.get('running'))}, "
            f"waiting {_text(last.get('waiting'))}, "
            f"KV cache {_text(last.get('kv_cache_usage'), '.1%')}")
        self.status.value = text + (f"; {self._num_failed} failed scrapes" if self._num_failed else "")

    def figure(self) -> go.Figure:
        """The samples so far as three plots over one time axis (seconds since the oldest sample shown)."""
        rows = list(self._samples)
        rates = hit_rates(rows)
        start = rows[0]["t_s"] if rows else 0.0
        x = [row["t_s"] - start for row in rows]
        fig = make_subplots(rows=3, cols=1, shared_xaxes=True, vertical_spacing=0.06)
        curves = [
            (1, "running", [row.get("running") for row in rows], 0, "solid"),
            (1, "waiting", [row.get("waiting") for row in rows], 1, "dash"),
            (2, "KV cache used", [row.get("kv_cache_usage") for row in rows], 2, "solid"),
            (3, "hit rate since the server began", [rate for rate, _ in rates], 3, "solid"),
            (3, f"hit rate of the last {RECENT_S:g} s", [rate for _, rate in rates], 4, "dash"),
        ]
        for row, name, y, color, dash in curves:
            fig.add_trace(go.Scatter(x=x, y=y, name=name, mode="lines", line={"color": COLORS[color], "width": 2,
                                                                              "dash": dash}), row=row, col=1)
        fig.update_layout(
            template=TEMPLATE, height=HEIGHT, margin={"t": 88},  # room for a legend of three lines
            meta={"alt": "Requests running and waiting, KV cache used and prefix hit rate over time",
                  "caption": "sampled: a peak between two samples is not seen"})
        fig.update_yaxes(title_text="requests", rangemode="tozero", row=1, col=1)
        fig.update_yaxes(title_text="KV cache", tickformat=".0%", range=[0, 1.02], row=2, col=1)
        fig.update_yaxes(title_text="hit rate", tickformat=".0%", range=[0, 1.02], row=3, col=1)
        fig.update_xaxes(title_text="time (s); sampled, peaks in between are not seen", row=3, col=1)
        return fig


def hit_rates(samples: list[dict[str, Any]], *, recent_s: float = RECENT_S) -> list[tuple[float | None, float | None]]:
    """For each sample (hit rate since the server began, hit rate of the last `recent_s` seconds).

    Args:
        samples: {"t_s", "hit_tokens", "query_tokens"} in order of time, seconds and tokens since the server's start.
        recent_s: length of the recent window, seconds.

    Returns: fractions; None where no token was asked for, or where the counters are not known.

    >>> hit_rates([{"t_s": 0, "hit_tokens": 0, "query_tokens": 100}, {"t_s": 9, "hit_tokens": 80, "query_tokens": 200}])
    [(0.0, None), (0.4, 0.8)]
    """
    found: list[tuple[float | None, float | None]] = []
    window: deque[tuple[float, float, float]] = deque()
    current = None
    for sample in samples:
        hits, queries = sample.get("hit_tokens"), sample.get("query_tokens")
        if hits is None or queries is None:
            found.append((None, None))
            continue
        if window and (queries < window[-1][2] or sample.get("round") != current):
            window.clear()  # another server
        current = sample.get("round")
        window.append((sample["t_s"], hits, queries))
        while len(window) > 2 and window[1][0] <= sample["t_s"] - recent_s:
            window.popleft()  # the newest sample that is old enough stays: the window is measured from it
        _, hits_then, queries_then = window[0]
        asked = queries - queries_then
        found.append((hits / queries if queries else None, (hits - hits_then) / asked if asked > 0 else None))
    return found


def _text(value: float | None, form: str = "g") -> str:
    return "unknown" if value is None else format(value, form)

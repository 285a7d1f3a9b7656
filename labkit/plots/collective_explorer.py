"""An explorer for notebooks: sliders for size, ranks, latency and bandwidth; the model's curves; our points on them.

    explorer(points={"Ring+LL": {"1 KiB": 9.1, ...}}, ranks_of_points=2)

Sliders need a running kernel; `curves` gives the same drawing for fixed values, for the static page.
"""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

import ipywidgets as widgets
import plotly.graph_objects as go
from IPython.display import display

from labkit.calc.collective_fit import label_bytes, model_time_s, size_label
from labkit.plots.collectives import PROTOCOLS, SYMBOLS
from labkit.plots.style import COLORS, GREY, figure, predicted, size_axis

ALGORITHMS = ("Ring", "Tree")
SIZES = [2.0**power for power in range(10, 33)]
"""1 KiB to 4 GiB."""
LATENCY_RATIOS = {"LL": 1.0, "LL128": 1.5, "Simple": 3.0}
"""Latency of a step over LL's: a start for the sliders, not a property of any machine."""
Points = Mapping[str, Mapping[str, float]]


def model_times_us(*, size_bytes: float, ranks: int, alpha_us: float, gb_per_s: float,
                   ratios: Mapping[str, float] = LATENCY_RATIOS) -> dict[str, float]:
    """Time of an all-reduce in the textbook model for each pair of algorithm and protocol, us.

    Args:
        size_bytes: S.
        ranks: n >= 2.
        alpha_us: latency of a step with LL.
        gb_per_s: one direction of a rank's link, 1e9 bytes/s.
        ratios: protocol -> latency over LL's.
    """
    return {f"{algorithm}+{protocol}": 1e6 * model_time_s(
        algorithm, protocol, size_bytes=size_bytes, world_size=ranks, alpha_s=alpha_us / 1e6,
        bytes_per_s=gb_per_s * 1e9, latency_ratio=ratios[protocol])
        for algorithm in ALGORITHMS for protocol in PROTOCOLS}


def curves(*, ranks: int, alpha_us: float, gb_per_s: float, ratios: Mapping[str, float] = LATENCY_RATIOS,
           size_bytes: float | None = None, points: Points | None = None, caption: str = "") -> go.Figure:
    """The model's six curves over size, and measured points where given.

    Args:
        ranks: n >= 2.
        alpha_us: latency of a step with LL.
        gb_per_s: one direction of a rank's link, 1e9 bytes/s.
        ratios: protocol -> latency over LL's.
        size_bytes: drawn as a vertical line.
        points: pair -> size label -> time, us.
        caption: of the points: hardware, record id and date.
    """
    best = [min(times, key=lambda pair: times[pair]) for times in (
        model_times_us(size_bytes=size, ranks=ranks, alpha_us=alpha_us, gb_per_s=gb_per_s, ratios=ratios)
        for size in SIZES)]
    order = list(dict.fromkeys(best))
    fig = figure(f"Model with {ranks} ranks: {', then '.join(order)}", x="size", y="time of an all-reduce (µs)",
                 log_x=True, log_y=True, caption=caption, height=440,
                 alt=f"Six dashed curves; fastest from small to large: {', '.join(order)}.")
    for algorithm in ALGORITHMS:
        for i, protocol in enumerate(PROTOCOLS):
            pair = f"{algorithm}+{protocol}"
            times = [model_times_us(size_bytes=size, ranks=ranks, alpha_us=alpha_us, gb_per_s=gb_per_s,
                                    ratios=ratios)[pair] for size in SIZES]
            line = predicted(SIZES, times, name=pair, index=i)
            fig.add_trace(line.update(line_dash="dash" if algorithm == "Ring" else "longdashdot"))
    for pair, sizes in (points or {}).items():
        algorithm, _, protocol = pair.partition("+")
        color = COLORS[PROTOCOLS.index(protocol)] if protocol in PROTOCOLS else GREY
        labels = sorted(sizes, key=label_bytes)
        fig.add_trace(go.Scatter(
            x=[label_bytes(label) for label in labels], y=[sizes[label] for label in labels], mode="markers",
            name=f"{pair} measured", marker={"color": color, "size": 8, "symbol": SYMBOLS.get(algorithm, "x")},
            hovertemplate="%{x}: %{y:.4g} µs"))
    size_axis(fig, SIZES[::4])
    if size_bytes is not None:
        fig.add_vline(x=size_bytes, line={"color": GREY, "width": 1.2})
    fig.update_layout(margin_t=130)
    return fig


def explorer(*, points: Points | None = None, ranks_of_points: int = 2, alpha_us: float = 3.0, gb_per_s: float = 300.0,
             caption: str = "") -> widgets.VBox:
    """Sliders above the curves; points are drawn while the number of ranks is theirs.

    Args:
        points: pair -> size label -> time, us.
        ranks_of_points: ranks they were measured with; the slider starts there.
        alpha_us: where the latency slider starts.
        gb_per_s: where the bandwidth slider starts.
        caption: of the points.

    Returns: a box: sliders, a table of the times at the chosen size, and the drawing.
    """
    look: dict[str, Any] = {"style": {"description_width": "13em"}, "layout": {"width": "34em"}}
    controls = {
        "size": widgets.SelectionSlider(options=[(size_label(int(size)), size) for size in SIZES], value=2.0**20,
                                        description="size", **look),
        "ranks": widgets.IntSlider(min=2, max=512, value=ranks_of_points, description="ranks", **look),
        "alpha_us": widgets.FloatLogSlider(base=10, min=-1, max=2, value=alpha_us, description="α of LL (µs)", **look),
        "gb_per_s": widgets.FloatLogSlider(base=10, min=0, max=3, value=gb_per_s, description="B (GB/s)", **look),
        "LL128": widgets.FloatSlider(min=1, max=6, value=LATENCY_RATIOS["LL128"], description="α of LL128 / LL",
                                     **look),
        "Simple": widgets.FloatSlider(min=1, max=12, value=LATENCY_RATIOS["Simple"], description="α of Simple / LL",
                                      **look),
    }
    answer, drawing = widgets.HTML(), widgets.Output()

    def update(_: Any = None) -> None:
        chosen = {name: control.value for name, control in controls.items()}
        ratios = {"LL": 1.0, "LL128": chosen["LL128"], "Simple": chosen["Simple"]}
        model = {"ranks": chosen["ranks"], "alpha_us": chosen["alpha_us"], "gb_per_s": chosen["gb_per_s"],
                 "ratios": ratios}
        times = model_times_us(size_bytes=chosen["size"], **model)
        answer.value = _table(times, size_label(int(chosen["size"])))
        shown = points if chosen["ranks"] == ranks_of_points else None
        drawing.clear_output(wait=True)
        with drawing:
            display(curves(size_bytes=chosen["size"], points=shown, caption=caption if shown else "", **model))

    for control in controls.values():
        control.observe(update, names="value")
    update()
    return widgets.VBox([*controls.values(), answer, drawing])


def _table(times: Mapping[str, float], size: str) -> str:
    best = min(times, key=lambda pair: times[pair])
    cells = "".join(f"<tr><td>{escape(pair)}</td><td>{'<b>' if pair == best else ''}{time:.4g} µs"
                    f"{'</b>' if pair == best else ''}</td></tr>" for pair, time in times.items())
    return f"<table><caption>model at {escape(size)}</caption>{cells}</table>"

"""Figures of the checkpoint lab: the order of summation, what differs, what a save costs, which faults were tried.

In: plain values of a record or a prediction. Out: plotly figures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from labkit.plots.style import COLORS, PATTERN, PATTERNS, bars, figure, measured

LEGEND_MARGIN = 84
"""Pixels above the drawing, so that the legend does not run into the title."""


def order(stages: Mapping[str, Sequence[Mapping[str, Any]]], *, caption: str = "") -> go.Figure:
    """Which rank each piece of the gradients is summed from, before and after the reducer rebuilds its buckets.

    Args:
        stages: "initial" and "later" -> spans {"name", "start", "stop", "ranks"}.
        caption: where the values come from.
    """
    names = list(dict.fromkeys(span["name"] for span in stages["initial"]))
    lengths = {name: max(span["stop"] for span in stages["initial"] if span["name"] == name) for name in names}
    starts = {name: sum(lengths[other] for other in names[:i]) for i, name in enumerate(names)}
    labels = {"initial": "resumed, first step", "later": "never stopped"}
    fig = figure("The same element is summed from another rank after a restart",
                 x="gradient element, in the order of the model's parameters (millions)", y="run", caption=caption,
                 height=300, alt="Two strips over all gradient elements, coloured by the rank whose gradient comes "
                 "first in the sum; in most places the two strips have different colours.")
    for rank in sorted({span["ranks"][0] for spans in stages.values() for span in spans}):
        pieces = [(labels[stage], (span["stop"] - span["start"]) / 1e6, (starts[span["name"]] + span["start"]) / 1e6,
                   " + ".join(map(str, span["ranks"])))
                  for stage, spans in stages.items() for span in spans if span["ranks"][0] == rank]
        fig.add_trace(go.Bar(
            y=[piece[0] for piece in pieces], x=[piece[1] for piece in pieces], base=[piece[2] for piece in pieces],
            customdata=[piece[3] for piece in pieces], orientation="h", name=f"rank {rank} first",
            marker={"color": COLORS[rank % len(COLORS)],
                    "pattern": {**PATTERN, "shape": PATTERNS[rank % len(PATTERNS)]}},
            hovertemplate="%{y}: ranks %{customdata}, %{x:.3f} million elements"))
    fig.update_layout(barmode="overlay", margin_t=LEGEND_MARGIN)
    fig.update_yaxes(type="category", categoryorder="array", categoryarray=list(labels.values()))
    return fig


def differing(by_world: Mapping[str, Mapping[str, Mapping[str, Any]]], bound: Mapping[str, Mapping[str, int]], *,
              caption: str = "") -> go.Figure:
    """Gradient elements that differ in the first resumed step, and how many were summed in another order.

    Args:
        by_world: world size -> measure -> control -> value.
        bound: world size -> control -> elements summed in another order.
        caption: hardware, record id and date.
    """
    worlds = [world for world in sorted(by_world, key=int) if int(world) > 2]
    first = by_world[worlds[0]]["gradient_elements_differing"]
    exact = [control for control, count in first.items() if not count]
    fig = figure(f"Where the order of the sum stays, nothing differs: {', '.join(exact) or 'no control'}",
                 x="control", y="gradient elements that differ", caption=caption, height=420,
                 alt="; ".join(f"{world} ranks, {control}: {count} of {bound[world][control]} reordered elements differ"
                               for world in worlds
                               for control, count in by_world[world]["gradient_elements_differing"].items()))
    for i, world in enumerate(worlds):
        counts = by_world[world]["gradient_elements_differing"]
        fig.add_trace(bars(list(counts), list(counts.values()), name=f"{world} ranks", index=i))
        limits = [bound[world][control] for control in counts]
        fig.add_trace(go.Scatter(
            x=list(counts), y=limits, name=f"{world} ranks: summed in another order (predicted)", mode="markers",
            marker={"symbol": "line-ew", "size": 26, "line": {"width": 3, "color": COLORS[i]}},
            hovertemplate="%{x}: %{y:,d}"))
    fig.update_layout(barmode="group", margin_t=LEGEND_MARGIN + 20)
    fig.update_xaxes(type="category")
    return fig


def save_times(save_ms: Mapping[str, Mapping[str, Mapping[str, Any]]], stall_ms: Mapping[str, Mapping[str, Any]], *,
               caption: str = "") -> go.Figure:
    """Time of each kind of save by size of the state, and what training waits for when it is asynchronous.

    Args:
        save_ms: size -> variant -> quantity.
        stall_ms: size -> quantity.
        caption: hardware, record id and date.
    """
    sizes = list(save_ms)
    variants = list(dict.fromkeys(variant for own in save_ms.values() for variant in own))
    num = min(own["n"] for by_variant in save_ms.values() for own in by_variant.values())
    title = f"Too few samples to rank the saves ({num} each)"
    if num >= 20:
        bare = save_ms[sizes[0]]["bare"]["value"]
        fast = min(own["value"] for name, own in save_ms[sizes[0]].items() if name.startswith("protocol"))
        title = f"{sizes[0]}: {bare:.0f} ms bare, {fast:.0f} ms verified"
        title += f", {stall_ms[sizes[0]]['value']:.0f} ms of waiting in the background" if sizes[0] in stall_ms else ""
    fig = figure(title, x="kind of save", y="time (ms)", caption=caption, log_y=True, height=420,
                 alt="; ".join(f"{size}, {variant}: {own['value']:.1f} ms" for size in sizes
                               for variant, own in save_ms[size].items()))
    for i, size in enumerate(sizes):
        own = {**{name: save_ms[size][name] for name in variants if name in save_ms[size]},
               **({"async: stall": stall_ms[size]} if size in stall_ms else {})}
        column = {key: [quantity[key] for quantity in own.values()] for key in ("value", "p10", "p90", "n")}
        points = measured(list(own), column["value"], name=size, low=column["p10"], high=column["p90"],
                          num_samples=column["n"], index=i)
        fig.add_trace(points.update(mode="markers"))
    fig.update_layout(margin_t=LEGEND_MARGIN)
    fig.update_xaxes(type="category")
    return fig


def faults(by_kind: Mapping[str, Mapping[str, int]], *, caption: str = "") -> go.Figure:
    """Faults of the drill by kind: tried, noticed, recovered from.

    Args:
        by_kind: kind -> {"faults", "detected", "recovered"}.
        caption: hardware, record id and date.
    """
    kinds = list(by_kind)
    tried = sum(own["faults"] for own in by_kind.values())
    noticed = sum(own["detected"] for own in by_kind.values())
    fig = figure(f"{noticed} of {tried} faults were noticed", x="fault", y="faults", caption=caption,
                 alt="; ".join(f"{kind}: {own['detected']} of {own['faults']}" for kind, own in by_kind.items()))
    for i, (name, label) in enumerate((("faults", "tried"), ("detected", "noticed"), ("recovered", "step found"))):
        fig.add_trace(bars([kind.replace("_", " ") for kind in kinds], [by_kind[kind][name] for kind in kinds],
                           name=label, index=i))
    fig.update_layout(barmode="group", margin_t=LEGEND_MARGIN)
    fig.update_xaxes(type="category")
    return fig

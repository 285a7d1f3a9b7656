"""Figures of the process-group lab: placements in order, phases predicted and printed, the slow wire, detectors.

In: plain values of a record. Out: plotly figures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from labkit.plots.style import COLORS, GREY, bars, figure, measured

LEGEND_MARGIN = 84
"""Pixels above the drawing, so that the legend does not run into the title."""
PHASES = {"tp_phase": "TP", "pp_phase": "PP", "dp_phase": "DP", "serial": "all in turn",
          "concurrent": "one each at once"}
MAPPINGS = ("tp_local", "tp_cross")
DETECTORS = ("hang or error", "checksum of everything", "checksum of each tensor", "sequence log", "log with names")
"""Weakest first: a record keeps its keys in the order of the alphabet."""


def mesh_figures(results: Mapping[str, Any], prediction: Mapping[str, Any], *, reported: Mapping[str, Any],
                 caption: str = "") -> dict[str, go.Figure]:
    """Every figure that a run has the data for: mapping_search, report_phases, slow_phases, detectors.

    Args:
        results: of a record.
        prediction: values of its prediction.
        reported: result -> mapping -> ms of the report.
        caption: hardware, record id and date.
    """
    found = {}
    if prediction.get("search"):
        found["mapping_search"] = mapping_search(prediction["search"], prediction["v100_ms"])
        found["report_phases"] = report_phases(prediction["v100_ms"], reported)
    if results.get("slow_serial"):
        found["slow_phases"] = slow_phases(results, prediction["slow_floor_ms"], caption=caption)
    if results.get("faults"):
        found["detectors"] = detectors(results["faults"], caption=caption)
    return found


def mapping_search(search: Mapping[str, Any], v100_ms: Mapping[str, Any]) -> go.Figure:
    """Predicted step of every placement that the machine can tell apart, fastest first; the report's two are marked.

    Args:
        search: as `labkit.calc.mesh_prediction.search_summary`.
        v100_ms: mapping -> {"serial": ms}.
    """
    times = search["all_serial_ms"]
    fig = figure(f"The report's local mapping shares the first place: {times[0]:.0f} ms, the worst takes "
                 f"{times[-1]:.0f}", x=f"placements that links can tell apart, fastest first ({len(times)})",
                 y="predicted step, calls in turn (ms)",
                 caption="predicted for the report's machine from its section 4.4; nothing was run",
                 alt=f"{len(times)} predicted step times from {times[0]:.1f} to {times[-1]:.1f} ms.")
    fig.add_trace(go.Scatter(x=list(range(1, len(times) + 1)), y=times, name="predicted", mode="lines",
                             line={"color": COLORS[0], "width": 2, "dash": "dash"}))
    for i, mapping in enumerate(MAPPINGS):
        found = v100_ms[mapping]
        place = min(range(len(times)), key=lambda at: abs(times[at] - found["serial"]))
        points = measured([place + 1], [found["serial"]], name=f"{mapping}, predicted", index=i + 1)
        fig.add_trace(points.update(mode="markers"))
    fig.update_layout(margin_t=LEGEND_MARGIN)
    fig.update_yaxes(rangemode="tozero")
    return fig


def report_phases(v100_ms: Mapping[str, Any], reported: Mapping[str, Any]) -> go.Figure:
    """Phases of both mappings on the report's machine: predicted from one of its experiments, printed in another."""
    names = [(phase, mapping) for phase in PHASES for mapping in MAPPINGS if phase in v100_ms[mapping]]
    labels = [f"{PHASES[phase]}, {mapping}" for phase, mapping in names]
    wanted = [v100_ms[mapping][phase] for phase, mapping in names]
    printed = [reported[phase][mapping] for phase, mapping in names]
    worst = max(abs(a / b - 1) for a, b in zip(wanted, printed))
    fig = figure(f"Rates of single pairs predict the phases to within {100 * worst:.0f} %", x="phase, mapping",
                 y="time (ms)", caption="8x V100: both bars from the report, section 4.4 and section 12.2",
                 alt="; ".join(f"{label}: predicted {a:.1f}, printed {b:.1f} ms"
                               for label, a, b in zip(labels, wanted, printed)))
    fig.add_trace(bars(labels, wanted, name="predicted from section 4.4", index=0))
    fig.add_trace(bars(labels, printed, name="printed in section 12.2", index=1))
    fig.update_layout(barmode="group", margin_t=LEGEND_MARGIN)
    return fig


def slow_phases(results: Mapping[str, Any], floors: Mapping[str, Mapping[str, float]], *, caption: str = ""
                ) -> go.Figure:
    """Phases with a slow wire between the halves of the ranks, and what the bytes that cross it need at least."""
    phases = [phase for phase in PHASES if f"slow_{phase}" in results]
    serial = {mapping: time["value"] for mapping, time in results["slow_serial"].items()}
    ratio = serial["tp_cross"] / serial["tp_local"] if len(serial) == 2 else 1.0
    fig = figure(f"TP over the slow wire: the step takes {ratio:.2g} times as long", x="phase", y="time (ms)",
                 caption=caption,
                 alt="; ".join(f"{PHASES[phase]}, {mapping}: {time['value']:.3g} ms" for phase in phases
                               for mapping, time in results[f"slow_{phase}"].items()))
    for i, mapping in enumerate(name for name in MAPPINGS if name in serial):
        found = [results[f"slow_{phase}"][mapping] for phase in phases]
        fig.add_trace(bars([PHASES[phase] for phase in phases], [time["value"] for time in found], name=mapping,
                           index=i).update(offsetgroup=mapping, error_y={
                               "type": "data", "symmetric": False, "thickness": 1.4, "width": 5,
                               "array": [time["p90"] - time["value"] for time in found],
                               "arrayminus": [time["value"] - time["p10"] for time in found]}))
    for mapping, found in floors.items():
        fig.add_trace(go.Scatter(
            x=list(found), y=list(found.values()), name=f"wire's floor, {mapping}", mode="markers",
            marker={"symbol": "line-ew", "size": 30, "line": {"width": 3, "color": GREY}}))
    fig.update_layout(barmode="group", margin_t=LEGEND_MARGIN)
    return fig


def detectors(faults: Mapping[str, Any], *, caption: str = "") -> go.Figure:
    """Percent of the injected faults of each kind that each detector notices."""
    kinds = list(faults["noticed_pct"])
    names: Sequence[str] = [name for name in DETECTORS if name in faults["noticed_pct"][kinds[0]]]
    shares = [[faults["noticed_pct"][kind][name] for name in names] for kind in kinds]
    fig = figure(f"A log with names finds {faults['named_pct']:.0f} % of the faults, one without "
                 f"{faults['sequence_named_pct']:.0f} %", x="detector", y="fault", caption=caption,
                 alt="; ".join(f"{kind}: " + ", ".join(f"{name} {share:.0f} %" for name, share in zip(names, row))
                               for kind, row in zip(kinds, shares)))
    fig.add_trace(go.Heatmap(
        x=[name.replace(" ", "<br>") for name in names], y=[kind.replace("_", " ") for kind in kinds], z=shares,
        zmin=0, zmax=100, texttemplate="%{z:.0f} %", showscale=False, xgap=3, ygap=3,
        colorscale=[[0, "rgba(128,128,128,0.15)"], [1, COLORS[0]]], hovertemplate="%{y}, %{x}: %{z:.0f} %"))
    fig.update_yaxes(autorange="reversed")
    return fig

"""Figures of the prefix-cache lab. In: results and prediction of a record. Out: plotly figures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import plotly.graph_objects as go

from labkit.calc.prefix_phases import PHASES, ROUTINGS
from labkit.calc.prefix_prediction import CASES
from labkit.calc.session_eviction import POLICIES
from labkit.plots.style import bars, figure, measured, predicted

LEGEND_MARGIN = 84
"""Pixels above the drawing, so that the legend does not run into the title."""


def prefix_figures(
    results: Mapping[str, Any], prediction: Mapping[str, Any], *, block_size: int, source: str
) -> dict[str, go.Figure]:
    """Every figure that a run has the data for: rates, ttft, tails, routing, agent_trace.

    Args:
        results: of a record.
        prediction: its prediction.
        block_size: tokens of a block.
        source: hardware, run and date, for the captions.
    """
    return {
        "rates": rates(results, prediction, source=source), "ttft": ttft(results["ttft_ms"], source=source),
        "tails": tails(results["tail_hits"], block_size=block_size, source=source),
        "routing": routing(results["routing"], source=source),
        "agent_trace": agent_trace(results["simulated_agent_trace"]),
    }


def rates(results: Mapping[str, Any], prediction: Mapping[str, Any], *, source: str) -> go.Figure:
    """Hit rate of each phase as bars, and the rate of a counter read since the start as a line, for both caches."""
    told = [f"{case}: " + ", ".join(f"{name} {phases[name]:.1f} %" for name in PHASES)
            + f", lifetime {results['lifetime_pct'][case]:.1f} %" for case, phases in _by_case(results["hit_pct"])]
    agrees = "as predicted" if results["hit_tokens"] == prediction["hit_tokens"] else "not as predicted"
    fig = figure(
        "The lifetime rate smooths away the one phase in which the caches differ", x="phase", y="hit / queried (%)",
        height=440, caption=f"Bars: this phase alone, {agrees}. Lines: all phases so far. {source}.",
        alt="; ".join(told),
    )  # fmt: skip
    for index, (case, phases) in enumerate(_by_case(results["hit_pct"])):
        fig.add_trace(bars(list(PHASES), [phases[name] for name in PHASES], name=f"{case} cache, phase", index=index))
    for index, (case, phases) in enumerate(_by_case(results["lifetime_pct_after"])):
        fig.add_trace(measured(list(PHASES), [phases[name] for name in PHASES], name=f"{case} cache, lifetime",
                               index=index + 2))
    fig.update_layout(barmode="group", margin_t=LEGEND_MARGIN + 24, legend_traceorder="normal")
    fig.update_yaxes(range=[0, 108])
    return fig


def ttft(times: Mapping[str, Mapping[str, Any]], *, source: str) -> go.Figure:
    """Time to first token by phase: median with p10 to p90 of all starts."""
    fig = figure(
        "A lost prefix shows in the slow requests of a phase more than in its median", x="phase", y="TTFT (ms)",
        log_y=True, height=420, caption=f"Median, p10 to p90, all starts. {source}.",
        alt="; ".join(f"{case}: " + ", ".join(f"{name} {q['value']:.3g} ms" for name, q in phases.items())
                      for case, phases in _by_case(times)),
    )  # fmt: skip
    for index, (case, phases) in enumerate(_by_case(times)):
        found = [phases[name] for name in PHASES if name in phases]
        fig.add_trace(measured([name for name in PHASES if name in phases], [q["value"] for q in found],
                               name=f"{case} cache", index=index, low=[q["p10"] for q in found],
                               high=[q["p90"] for q in found], num_samples=[q["n"] for q in found]))  # fmt: skip
    fig.update_layout(margin_t=LEGEND_MARGIN)
    return fig


def tails(hits: Mapping[str, int], *, block_size: int, source: str) -> go.Figure:
    """Hit tokens over the length of what two prompts share, and the line of whole blocks."""
    pairs = sorted((int(name.split()[1]), seen) for name, seen in hits.items() if name.startswith("tail"))
    low, high = pairs[0][0], pairs[-1][0]
    lengths = range(low, high + block_size)
    fig = figure(
        f"Only whole blocks of {block_size} tokens hit", x="shared tokens", y="hit tokens", height=380,
        caption=f"Points: engine. Dashed: floor(n / {block_size}) x {block_size}. {source}.",
        alt="; ".join(f"{shared} shared, {seen} hit" for shared, seen in pairs),
    )  # fmt: skip
    whole = predicted(list(lengths), [n // block_size * block_size for n in lengths], name="whole blocks")
    whole.update(line_shape="hv")
    fig.add_trace(whole)
    seen = measured([n for n, _ in pairs], [hit for _, hit in pairs], name="engine", index=1)
    seen.mode = "markers"
    fig.add_trace(seen)
    # All but the shortest length lie within a few blocks of each other: there the steps can be seen.
    near = [n for n, _ in pairs if n > high // 2]
    fig.update_xaxes(range=[min(near) - block_size, high + block_size])
    fig.update_yaxes(range=[min(near) - 3 * block_size, high + block_size])
    fig.update_layout(margin_t=LEGEND_MARGIN)
    return fig


def routing(routed: Mapping[str, Mapping[str, Any]], *, source: str) -> go.Figure:
    """Tokens hit and computed at each replica, by routing."""
    places = [(name, server) for name in ROUTINGS for server in routed.get(name, {})]
    labels = [f"{name}<br>replica {number}" for name in ROUTINGS for number, _ in enumerate(routed.get(name, {}))]
    fig = figure(
        "By prefix, each is computed once, and the popular one loads its replica",
        x="routing and replica", y="prompt tokens", height=420, caption=f"{source}.",
        alt="; ".join(f"{name} {server}: {routed[name][server]['requests']} requests, "
                      f"{routed[name][server]['hit_tokens']} tokens hit" for name, server in places),
    )  # fmt: skip
    hit = [routed[name][server]["hit_tokens"] for name, server in places]
    computed = [routed[name][server]["query_tokens"] - seen for (name, server), seen in zip(places, hit)]
    for index, (name, values) in enumerate((("hit", hit), ("computed", computed))):
        fig.add_trace(bars(labels, values, name=name, index=index))
    fig.update_layout(barmode="stack", margin_t=LEGEND_MARGIN)
    return fig


def agent_trace(found: Mapping[str, Any]) -> go.Figure:
    """SIMULATED: returns of agent sessions that found everything they had left, over the size of the cache."""
    sizes = sorted(found["by_cache_tokens"], key=int)
    fig = figure(
        "Simulated: knowing which sessions have ended saves those that return", x="cache (tokens)",
        y="returns that lost nothing (%)", log_x=True, height=400,
        caption=f"Simulated, no engine: {found['num_turns']} turns of {found['num_sessions']} made-up sessions; "
                "labkit.calc.session_eviction. Clairvoyant is a bound, not a policy.",
        alt="Simulated. " + "; ".join(
            f"{size} tokens: " + ", ".join(f"{name} {100 * policies[name]['whole_share']:.0f} %" for name in POLICIES)
            for size in sizes for policies in [found["by_cache_tokens"][size]]),
    )  # fmt: skip
    for index, name in enumerate(POLICIES):
        fig.add_trace(predicted([int(size) for size in sizes],
                                [100 * found["by_cache_tokens"][size][name]["whole_share"] for size in sizes],
                                name=f"{name} (simulated)", index=index))  # fmt: skip
    fig.update_yaxes(range=[0, 105])
    fig.update_xaxes(tickvals=[int(size) for size in sizes], ticktext=[f"{int(size) / 1000:.0f}k" for size in sizes])
    fig.update_layout(margin_t=LEGEND_MARGIN + 24)
    return fig


def _by_case(found: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """The large cache first; a record keeps its keys in the order of the alphabet."""
    return [(case, found[case]) for case in CASES.values() if case in found]

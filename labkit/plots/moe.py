"""Figures of the expert-parallel lab: rows by rank, where a rank's step goes, skew, bandwidth, capacity.

In: plain values of a record. Out: plotly figures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from labkit.plots.style import bars, ceiling, figure, measured, predicted

LEGEND_MARGIN = 84
"""Pixels above the drawing, so that the legend does not run into the title."""


def moe_figures(results: Mapping[str, Any], *, name: str, caption: str = "", link_gb_per_s: float | None = None
                ) -> dict[str, go.Figure]:
    """Every figure that a run has the data for: received, wait_split, skew, capacity, bandwidth.

    Args:
        results: of a record.
        name: hardware, for the legend.
        caption: hardware, record id and date.
        link_gb_per_s: of the link, one direction, by its datasheet; drawn as a limit if given.
    """
    found = {"received": received(results["received"], results["max_mean"], caption=caption)}
    waits = results.get("rank_wait_ms", {})
    if case := next((case for case in ("hot, large", "hot") if case in waits), None):
        found["wait_split"] = wait_split(*(results[key][case] for key in (
            "rank_expert_ms", "rank_wait_ms", "rank_transfer_ms")), caption=caption)
    small = {case: time for case, time in results.get("step_ms", {}).items() if not case.endswith(", large")}
    if len(small) > 2:
        found["skew"] = skew(results["max_mean"], small, results["expert_ms"], name=name, caption=caption)
    if results.get("capacity"):
        found["capacity"] = capacity(results["capacity"], caption=caption)
    if results.get("dispatch_gb_per_s"):
        found["bandwidth"] = bandwidth(results["dispatch_gb_per_s"], results.get("peer_copy_gb_per_s", {}), name=name,
                                       link_gb_per_s=link_gb_per_s, caption=caption)
    return found


def received(rows: Mapping[str, Sequence[int]], max_mean: Mapping[str, float], *, caption: str = "") -> go.Figure:
    """Rows that each rank's expert gets, balanced and hot."""
    ranks = [f"rank {rank}" for rank in range(len(rows["hot"]))]
    fig = figure(f"The hot expert gets {max_mean['hot']:.3g} times the mean", x="rank", y="rows received",
                 caption=caption, alt=f"Rows by rank: balanced {list(rows['balanced'])}, hot {list(rows['hot'])}.")
    for i, case in enumerate(("balanced", "hot")):
        fig.add_trace(bars(ranks, rows[case], name=case, index=i))
    fig.update_layout(barmode="group", margin_t=LEGEND_MARGIN)
    return fig


def wait_split(expert_ms: Sequence[float], wait_ms: Sequence[float], transfer_ms: Sequence[float], *,
               caption: str = "") -> go.Figure:
    """A rank's expert, its wait for the hot rank and the transfer that follows, medians by rank.

    Args:
        expert_ms: by rank.
        wait_ms: at the meeting point before combine, by rank.
        transfer_ms: combine after the meeting point, by rank.
        caption: hardware, record id and date.
    """
    ranks = [f"rank {rank}" for rank in range(len(expert_ms))]
    fig = figure("Cold ranks wait for the hot one; the transfer itself is alike on all of them", x="rank",
                 y="time (ms)", caption=caption,
                 alt="; ".join(f"{rank}: expert {e:.3g} ms, wait {w:.3g}, transfer {t:.3g}"
                               for rank, e, w, t in zip(ranks, expert_ms, wait_ms, transfer_ms)))
    for i, (name, values) in enumerate((("expert", expert_ms), ("wait", wait_ms), ("combine transfer", transfer_ms))):
        fig.add_trace(bars(ranks, values, name=name, index=i))
    fig.update_layout(barmode="stack", margin_t=LEGEND_MARGIN)
    return fig


def skew(max_mean: Mapping[str, float], step_ms: Mapping[str, Any], expert_ms: Mapping[str, Any], *, name: str,
         caption: str = "") -> go.Figure:
    """Step time over imbalance; the line takes the balanced run's own parts and makes the expert longer, nothing else.

    Args:
        max_mean: case -> rows of the fullest rank over the mean.
        step_ms: case -> quantity.
        expert_ms: case -> quantity; `balanced` is used.
        name: hardware, for the legend.
        caption: hardware, record id and date.
    """
    cases = sorted(step_ms, key=lambda case: max_mean[case])
    x = [max_mean[case] for case in cases]
    column = {key: [step_ms[case][key] for case in cases] for key in ("value", "p10", "p90", "n")}
    base, expert = step_ms["balanced"]["value"], expert_ms["balanced"]["value"]
    line = [base + expert * (ratio - 1) for ratio in x]
    is_told = step_ms[cases[-1]]["p10"] > step_ms["balanced"]["p90"]
    grown = column["value"][-1] / base
    title = (f"At {x[-1]:.3g} times the mean a step takes {grown:.2g} times as long" if is_told else
             f"Up to {x[-1]:.3g} times the mean no slower step can be told: the ranges overlap")
    fig = figure(title, x="rows of the fullest rank over the mean", y="step, slowest rank (ms)", caption=caption,
                 alt="; ".join(f"{case}: {value:.3g} ms" for case, value in zip(cases, column["value"])))
    fig.add_trace(measured(x, column["value"], name=name, low=column["p10"], high=column["p90"],
                           num_samples=column["n"]))
    fig.add_trace(predicted(x, line, name="balanced step + expert × (max/mean − 1)"))
    fig.update_layout(margin_t=LEGEND_MARGIN)
    fig.update_yaxes(rangemode="tozero")
    return fig


def capacity(outcomes: Mapping[str, Mapping[str, float]], *, caption: str = "") -> go.Figure:
    """Rows dropped and slots padded by capacity factor, for the hot routing."""
    factors = list(outcomes)
    dropped, padded = ([100 * outcomes[f][key] for f in factors] for key in ("dropped_share", "padded_share"))
    fig = figure("A larger capacity drops fewer rows and computes more padding", x="capacity factor", y="percent",
                 caption=f"{caption}; computed from the received rows" if caption else "",
                 alt="; ".join(f"factor {f}: {d:.0f} % dropped, {p:.0f} % padding"
                               for f, d, p in zip(factors, dropped, padded)))
    for i, (name, values) in enumerate((("rows dropped", dropped), ("slots that are padding", padded))):
        fig.add_trace(bars(factors, values, name=name, index=i))
    fig.update_layout(barmode="group", margin_t=LEGEND_MARGIN)
    fig.update_xaxes(type="category")
    return fig


def bandwidth(rates: Mapping[str, Any], copies: Mapping[str, Any], *, name: str, link_gb_per_s: float | None = None,
              caption: str = "") -> go.Figure:
    """Dispatch bandwidth by payload, beside plain copies between the same GPUs in the same run.

    Args:
        rates: MiB to other ranks -> quantity in GB/s.
        copies: "one_way" and "both_ways" -> quantity in GB/s, one direction.
        name: hardware, for the legend.
        link_gb_per_s: datasheet rate of the link, one direction.
        caption: hardware, record id and date.
    """
    sizes = list(rates)
    column = {key: [rates[size][key] for size in sizes] for key in ("value", "p10", "p90", "n")}
    best = max(column["value"])
    share = f", {100 * best / copies['one_way']['value']:.0f} % of a plain copy" if "one_way" in copies else ""
    fig = figure(f"Dispatch reaches {best:.0f} GB/s{share}", x="bytes that a rank sends to others",
                 y="GB/s, one direction, slowest rank", caption=caption,
                 alt="; ".join(f"{size}: {value:.3g} GB/s" for size, value in zip(sizes, column["value"])))
    fig.add_trace(measured(sizes, column["value"], name=name, low=column["p10"], high=column["p90"],
                           num_samples=column["n"]))
    for key, label in (("one_way", "peer copy, one way, same run"), ("both_ways", "peer copy, both ways at once")):
        if key in copies:
            ceiling(fig, copies[key]["value"], label=label,
                    position="top left" if key == "one_way" else "bottom left")
    if link_gb_per_s:
        ceiling(fig, link_gb_per_s, label="link, datasheet")
    fig.update_layout(margin_t=LEGEND_MARGIN)
    fig.update_xaxes(type="category")
    fig.update_yaxes(rangemode="tozero")
    return fig

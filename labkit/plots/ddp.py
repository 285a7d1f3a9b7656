"""Figures of the DDP bucket lab: bucket sizes, a step's timeline, throughput, predicted and seen counts.

In: plain values of a record, by case (a bucket cap or an accumulation variant). Out: plotly figures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from labkit.calc.collectives import alpha_beta_fit
from labkit.calc.ddp_prediction import in_case_order
from labkit.plots.style import COLORS, GREY, PATTERNS, ceiling, figure, measured, predicted, quoted

MIB = 2**20
PATTERN = {"fgcolor": "rgba(255,255,255,0.75)", "size": 6, "fillmode": "overlay"}
"""Stripes over the bar's colour; without `overlay` they would replace it."""
LEGEND_MARGIN = 84
"""Pixels above the drawing, so that the legend does not run into the title."""


def bucket_sizes(sizes_bytes: Mapping[str, Sequence[int]], *, caption: str = "") -> go.Figure:
    """Each bucket of each cap as a block, in the order in which they fill; the one with the largest tensor is marked.

    Args:
        sizes_bytes: cap -> sizes of its rebuilt buckets, bytes, in fill order.
        caption: hardware, record id and date.
    """
    caps = in_case_order(cases=sizes_bytes)
    counts = ", ".join(f"{len(sizes_bytes[cap])} at {cap}" for cap in caps)
    fig = figure(f"The last bucket holds a tensor that no cap can split: {len(sizes_bytes[caps[0]])} buckets at "
                 f"{caps[0]}, {len(sizes_bytes[caps[-1]])} at {caps[-1]}",
                 x="gradients, in the order in which they become ready (MiB)", y="bucket cap", caption=caption,
                 alt=f"Buckets: {counts}. In every cap the last bucket holds the token table.")
    for is_last, name, color, pattern in ((False, "bucket", COLORS[0], ""), (True, "bucket with the token table",
                                                                             COLORS[1], PATTERNS[1])):
        rows = [(cap, size / MIB, sum(sizes_bytes[cap][:i]) / MIB, i) for cap in caps
                for i, size in enumerate(sizes_bytes[cap]) if (i == len(sizes_bytes[cap]) - 1) == is_last]
        fig.add_trace(go.Bar(
            y=[row[0] for row in rows], x=[row[1] for row in rows], base=[row[2] for row in rows], orientation="h",
            name=name, customdata=[row[3] + 1 for row in rows],
            marker={"color": color, "line": {"color": "rgba(255,255,255,0.9)", "width": 1},
                    "pattern": {**PATTERN, "shape": pattern}},
            hovertemplate="cap %{y}, bucket %{customdata}: %{x:.2f} MiB"))
    fig.update_layout(barmode="overlay", margin_t=LEGEND_MARGIN)
    fig.update_yaxes(type="category", categoryorder="array", categoryarray=caps[::-1])
    return fig


def timeline(cases: Mapping[str, Mapping[str, Any]], *, shown: Sequence[str] | None = None,
             caption: str = "") -> go.Figure:
    """Compute and communication of one recorded step, a pair of lanes for each case and rank.

    Args:
        cases: case -> rank -> what `labkit.analyze.ddp_rank_files.timeline` gives.
        shown: cases to draw; those named by a cap if not given.
        caption: hardware, record id and date.
    """
    chosen = [case for case in in_case_order(cases=cases)
              if (case in shown if shown is not None else case.endswith("MiB"))]
    lanes = [(case, rank) for case in chosen for rank in sorted(cases[case], key=int)]
    fig = figure("Communication starts when the first bucket is full, and what compute does not cover is exposed",
                 x="time from the first work of the step (ms); pale: busy for a part of it", y="cap, rank",
                 caption=caption, height=130 + 46 * len(lanes),
                 alt="For each cap and rank: when compute runs, when communication runs beside it, when it runs alone.")
    kinds: dict[str, list[tuple[str, float, float, int]]] = {
        "compute": [], "communication beside compute": [], "exposed communication": []}
    compute, beside, alone = kinds.values()
    for case, rank in lanes:
        work, label = cases[case][rank], f"{case}, rank {rank}"
        compute += [(label, *run) for run in _runs(work["compute_pct"], work["bin_ms"])]
        pairs = list(zip(work["comm_pct"], work["exposed_pct"]))
        beside += [(label, *run) for run in _runs([c if 2 * e <= c else 0 for c, e in pairs], work["bin_ms"])]
        alone += [(label, *run) for run in _runs([c if 2 * e > c else 0 for c, e in pairs], work["bin_ms"])]
    for i, (kind, pieces) in enumerate(kinds.items()):
        color = GREY if i == 0 else COLORS[i - 1]
        fig.add_trace(go.Bar(
            y=[piece[0] for piece in pieces], x=[piece[2] for piece in pieces], base=[piece[1] for piece in pieces],
            customdata=[piece[3] for piece in pieces], orientation="h", name=kind,
            offsetgroup="compute" if i == 0 else "comm",
            marker={"color": color, "opacity": [max(0.1, piece[3] / 100) for piece in pieces], "line": {"width": 0},
                    "pattern": {**PATTERN, "shape": PATTERNS[1] if i == 2 else ""}},
            hovertemplate="%{y}: " + kind + " %{customdata} % of %{x:.2f} ms from %{base:.1f} ms"))
    fig.update_layout(barmode="group", bargap=0.3, margin_t=LEGEND_MARGIN)
    fig.update_yaxes(type="category", autorange="reversed")
    return fig


def tokens_per_s(rates: Mapping[str, Mapping[str, Any]], *, name: str, quoted_rates: Mapping[str, float] | None = None,
                 caption: str = "") -> go.Figure:
    """Throughput by case with p10 and p90, beside somebody else's figures if given.

    Args:
        rates: case -> quantity in tokens/s.
        name: hardware, for the legend.
        quoted_rates: case -> tokens/s of the report.
        caption: hardware, record id and date.
    """
    cases = in_case_order(cases=rates)
    num = min(rates[case]["n"] for case in cases)
    title = _ranking({case: rate for case, rate in rates.items() if case.endswith("MiB")})
    fig = figure(title, x="bucket cap, or accumulation variant", y="tokens/s", caption=caption,
                 log_y=bool(quoted_rates),
                 alt=f"Tokens per second by case, with p10 to p90; at least {num} samples a case.")
    column = {key: [rates[case][key] for case in cases] for key in ("value", "p10", "p90", "n")}
    points = measured(cases, column["value"], name=name, low=column["p10"], high=column["p90"], num_samples=column["n"])
    fig.add_trace(points.update(mode="markers"))  # cases are categories: a line between them would say nothing
    if quoted_rates:
        both = [case for case in cases if case in quoted_rates]
        points = quoted(both, [quoted_rates[case] for case in both], name="8x V100 (quoted)")
        fig.add_trace(points.update(mode="markers"))
    fig.update_layout(margin_t=LEGEND_MARGIN)
    fig.update_xaxes(type="category")
    if not quoted_rates:
        fig.update_yaxes(rangemode="tozero")
    return fig


def transfer(num_collectives: Mapping[str, int], comm_ms: Mapping[str, float], *, floor_ms: float | None = None,
             name: str = "", caption: str = "") -> go.Figure:
    """Time in collectives over their number, for caps that send the same bytes, and a line through it.

    Args:
        num_collectives: cap -> all-reduces of a step.
        comm_ms: cap -> union of the collectives on the rank that waited least, ms.
        floor_ms: bytes over the measured bus bandwidth, ms; drawn as a limit if given.
        name: hardware, for the legend.
        caption: hardware, record id and date.

    Raises: ValueError when time does not grow with the number, or there are fewer than two different numbers.
    """
    caps = [cap for cap in in_case_order(cases=comm_ms) if cap in num_collectives]
    counts, times = [num_collectives[cap] for cap in caps], [comm_ms[cap] for cap in caps]
    # All caps send the same bytes, so the number takes the place of the size: time = bytes / B + number * alpha.
    fit = alpha_beta_fit(sizes_bytes=[float(count) for count in counts], times_s=[ms / 1e3 for ms in times])
    fixed_ms, each_ms = fit["alpha_s"] * 1e3, 1e3 / fit["bytes_per_s"]
    fig = figure(f"Each collective adds {each_ms * 1e3:.0f} µs to {fixed_ms:.2f} ms for the bytes",
                 x="all-reduces per step", y="time in collectives (ms)", caption=caption,
                 alt="; ".join(f"{cap}: {count} all-reduces, {ms:.2f} ms"
                               for cap, count, ms in zip(caps, counts, times)))
    points = measured(counts, times, name=name or "recorded steps")
    fig.add_trace(points.update(mode="markers+text", text=caps, textposition="bottom right"))
    ends = [0, max(counts) * 1.05]
    fig.add_trace(predicted(ends, [fixed_ms + each_ms * end for end in ends], name="fit: bytes / B + number × α"))
    if floor_ms is not None:
        ceiling(fig, floor_ms, label="bytes / bus bandwidth of a large all-reduce, measured")
    fig.update_layout(margin_t=LEGEND_MARGIN)
    fig.update_yaxes(rangemode="tozero")
    return fig


def predicted_vs_seen(prediction: Mapping[str, Any], results: Mapping[str, Any], *, caption: str = "") -> go.Figure:
    """All-reduces of one optimizer step: computed from parameter shapes, and counted in the trace.

    Args:
        prediction: values of the prediction: collectives_per_step, accum_collectives.
        results: results of the run, the same names.
        caption: hardware, record id and date.
    """
    expected = {**prediction["collectives_per_step"], **prediction["accum_collectives"]}
    seen = {**results["collectives_per_step"], **results["accum_collectives"]}
    cases = in_case_order(cases=expected)
    num_equal = sum(expected[case] == seen.get(case) for case in cases)
    fig = figure(f"{num_equal} of {len(cases)} counts came out as predicted", x="bucket cap, or accumulation variant",
                 y="all-reduces per optimizer step", caption=caption,
                 alt="; ".join(f"{case}: predicted {expected[case]}, seen {seen.get(case)}" for case in cases))
    # Cases are categories: a dash at each, no line between them.
    dash = {"symbol": "line-ew", "size": 34, "line": {"width": 3, "color": COLORS[0]}}
    fig.add_trace(predicted(cases, [expected[case] for case in cases]).update(mode="markers", marker=dash))
    counted = measured(cases, [seen[case] for case in cases], name="counted in the trace", index=1)
    fig.add_trace(counted.update(mode="markers"))
    fig.update_layout(margin_t=LEGEND_MARGIN)
    fig.update_xaxes(type="category")
    fig.update_yaxes(rangemode="tozero")
    return fig


def _ranking(rates: Mapping[str, Mapping[str, Any]]) -> str:
    """What can be said about the caps: the best one stands out only if its range is above all others'."""
    if len(rates) < 2 or min(rate["n"] for rate in rates.values()) < 20:
        return "Too few samples to rank the caps"
    best = max(rates, key=lambda cap: rates[cap]["value"])
    if all(rates[best]["p10"] > rate["p90"] for cap, rate in rates.items() if cap != best):
        return f"A cap of {best} is fastest"
    return "No cap is fastest: the ranges from p10 to p90 overlap"


def _runs(shares_pct: Sequence[int], bin_ms: float) -> list[tuple[float, float, int]]:
    """(start ms, length ms, share %) of neighbouring intervals with the same share to the next 10 %; none for 0."""
    done: list[tuple[float, float, int]] = []
    last = 0
    for i, share in enumerate(shares_pct):
        level = min(100, -(-share // 10) * 10)
        if level and level == last:
            start, length, _ = done[-1]
            done[-1] = (start, length + bin_ms, level)
        elif level:
            done.append((i * bin_ms, bin_ms, level))
        last = level
    return done

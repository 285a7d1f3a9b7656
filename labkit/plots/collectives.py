"""Figures of the collective sweep: time and bandwidth over size, fits and residuals, channels, pairs, directions.

In: the results of a record, by case and size label. Out: plotly figures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from labkit.calc.collective_fit import label_bytes
from labkit.plots.style import COLORS, bars, figure, measured, predicted, size_axis

PROTOCOLS = ("LL", "LL128", "Simple")
DASHES = {"Ring": "solid", "Tree": "dot"}
SYMBOLS = {"Ring": "circle", "Tree": "triangle-up-open"}
LEGEND_MARGIN = 96
"""Pixels above the drawing, so that the legend does not run into the title."""
Sizes = Mapping[str, Mapping[str, Any]]


def all_figures(results: Mapping[str, Any], *, is_gpu: bool, caption: str = "") -> dict[str, go.Figure]:
    """Every figure that the results have data for.

    Args:
        results: of a record of `nccl_sweep`.
        is_gpu: NCCL on GPUs; else gloo.
        caption: hardware, record id and date.

    Returns: of bandwidth, collectives, time_by_pair, fit, residuals, channels, pairs, directions.
    """
    times, busbw = results.get("time_us", {}), results.get("busbw_gb_per_s", {})
    library = "NCCL" if is_gpu else "gloo"
    found: dict[str, go.Figure] = {}
    if busbw.get("auto"):
        found["bandwidth"] = latency_and_bandwidth(times["auto"], library=library, caption=caption)
    others = {name: busbw[name] for name in ("all_gather", "reduce_scatter", "broadcast", "all_to_all", "send_recv")
              if name in busbw}
    if others:
        found["collectives"] = by_collective(others, caption=caption)
    forced = {case: sizes for case, sizes in times.items() if "+" in case}
    if forced:
        found["time_by_pair"] = time_by_pair(forced, results["best_combo"], caption=caption)
    if results.get("fit"):
        found["fit"] = fitted(times, results["fit"], caption=caption)
        found["residuals"] = residuals(results["fit"], caption=caption)
    if len(results.get("channel_busbw", {})) > 1:
        found["channels"] = channels(results["channel_busbw"], caption=caption)
    if results.get("pair_alone"):
        found["pairs"] = pairs(results["pair_alone"], results["pair_together"], caption=caption)
    if results.get("directions"):
        found["directions"] = directions(results["directions"], caption=caption)
    return found


def latency_and_bandwidth(times: Sizes, *, library: str, caption: str = "") -> go.Figure:
    """Time of an all-reduce over size: a floor, then a slope."""
    labels = sorted(times, key=label_bytes)
    least = min(times[label]["value"] for label in labels)
    flat = [label for label in labels if times[label]["value"] < 2 * least]
    fig = figure(f"Up to {flat[-1]} an all-reduce costs less than twice the cheapest one", x="size",
                 y="time of an all-reduce (µs)", caption=caption, log_x=True, log_y=True,
                 alt=f"{library}: {_told(times, labels, 'µs')}")
    fig.add_trace(_points(times, labels, name=f"{library} chooses", index=0))
    return _size_axis(fig, labels)


def by_collective(busbw: Mapping[str, Sizes], *, caption: str = "") -> go.Figure:
    """Bus bandwidth of the other collectives over size; comparable because busbw divides the algorithm's share out."""
    labels = sorted({label for sizes in busbw.values() for label in sizes}, key=label_bytes)
    top = {name: sizes[max(sizes, key=label_bytes)]["value"] for name, sizes in busbw.items()}
    first, last = max(top, key=lambda name: top[name]), min(top, key=lambda name: top[name])
    fig = figure(f"At the largest size {first} has the highest bus bandwidth, {last} the lowest", x="size",
                 y="bus bandwidth (GB/s)", caption=caption, log_x=True, log_y=True,
                 alt="; ".join(f"{name} {value:.3g} GB/s at the largest size" for name, value in top.items()))
    for i, (name, sizes) in enumerate(busbw.items()):
        fig.add_trace(_points(sizes, sorted(sizes, key=label_bytes), name=name, index=i))
    return _size_axis(fig, labels)


def time_by_pair(times: Mapping[str, Sizes], best: Mapping[str, str], *, caption: str = "") -> go.Figure:
    """Time over size for each forced pair of algorithm and protocol."""
    labels = sorted({label for sizes in times.values() for label in sizes}, key=label_bytes)
    order = list(dict.fromkeys(best[label].split("+")[1] for label in labels if label in best))
    fig = figure(f"The fastest protocol goes from {' to '.join(order)} as messages grow" if order else
                 "Time of an all-reduce by forced pair", x="size", y="time of an all-reduce (µs)", caption=caption,
                 log_x=True, log_y=True, alt="; ".join(f"{label}: {best[label]}" for label in labels if label in best))
    for case, sizes in times.items():
        fig.add_trace(_pair_trace(case, sizes))
    return _size_axis(fig, labels)


def fitted(times: Mapping[str, Sizes], fits: Mapping[str, Mapping[str, Any]], *, caption: str = "") -> go.Figure:
    """Measured times and the line that half of the sizes give; the other half is marked by open symbols."""
    cases = [case for case in fits if case in times][:7]
    worst = max(cases, key=lambda case: fits[case]["worst_held_out_pct"])
    fig = figure(f"α + S/B fitted on half of the sizes misses another size by up to "
                 f"{fits[worst]['worst_held_out_pct']:.0f} % ({worst})", x="size", y="time of an all-reduce (µs)",
                 caption=caption, log_x=True, log_y=True,
                 alt="; ".join(f"{case}: {fits[case]['alpha_us']:.3g} µs, {fits[case]['algbw_gb_per_s']:.3g} GB/s"
                               for case in cases))
    labels = sorted({label for case in cases for label in times[case]}, key=label_bytes)
    for i, case in enumerate(cases):
        own = sorted(times[case], key=label_bytes)
        held = set(fits[case]["held_out"])
        color, symbol = COLORS[_color(case, i)], SYMBOLS.get(case.split("+")[0], "square")
        fig.add_trace(go.Scatter(
            x=[label_bytes(label) for label in own], y=[times[case][label]["value"] for label in own], name=case,
            mode="markers", legendgroup=case, hovertemplate="%{x}: %{y:.4g} µs",
            marker={"color": color, "size": 8, "line": {"width": 1.5, "color": color},
                    "symbol": [f"{symbol.removesuffix('-open')}{'-open' if label in held else ''}" for label in own]}))
        line = [fits[case]["alpha_us"] + label_bytes(label) / fits[case]["algbw_gb_per_s"] / 1e3 for label in own]
        fig.add_trace(predicted([label_bytes(label) for label in own], line, name=f"{case} fit",
                                index=_color(case, i)).update(showlegend=False, legendgroup=case))
    return _size_axis(fig, labels)


def residuals(fits: Mapping[str, Mapping[str, Any]], *, caption: str = "") -> go.Figure:
    """What the line misses, in percent of the prediction, at every size."""
    labels = sorted({label for fit in fits.values() for label in fit["residual_pct"]}, key=label_bytes)
    middle = sorted(fit["median_held_out_pct"] for fit in fits.values())
    fig = figure(f"On sizes that were not fitted the median residual is {middle[0]:.0f} to {middle[-1]:.0f} %, by case",
                 x="size", y="measured against the line (%)", caption=caption, log_x=True,
                 alt="; ".join(f"{case}: worst {fit['worst_held_out_pct']:.0f} %" for case, fit in fits.items()))
    for i, (case, fit) in enumerate(fits.items()):
        own = sorted(fit["residual_pct"], key=label_bytes)
        trace = measured([label_bytes(label) for label in own], [fit["residual_pct"][label] for label in own],
                         name=case, index=_color(case, i))
        fig.add_trace(_styled(trace, case))
    return _size_axis(fig, labels)


def channels(busbw: Sizes, *, caption: str = "") -> go.Figure:
    """Bus bandwidth over the number of channels, Ring with Simple."""
    numbers = sorted(busbw, key=int)
    best = max(numbers, key=lambda number: busbw[number]["value"])
    clear = all(busbw[best]["p10"] > busbw[number]["p90"] for number in numbers if number != best)
    title = f"{best} channels are fastest of those tried" if clear else "The two best numbers of channels overlap"
    fig = figure(title, x="channels", y="bus bandwidth (GB/s)", caption=caption,
                 log_x=True, alt=_told(busbw, numbers, "GB/s"))
    column = {key: [busbw[number][key] for number in numbers] for key in ("value", "p10", "p90", "n")}
    fig.add_trace(measured([int(number) for number in numbers], column["value"], name="Ring+Simple", low=column["p10"],
                           high=column["p90"], num_samples=column["n"]))
    fig.update_xaxes(tickvals=[int(number) for number in numbers], ticktext=numbers)
    fig.update_yaxes(rangemode="tozero")
    return fig


def pairs(alone: Sizes, together: Sizes, *, caption: str = "") -> go.Figure:
    """Sum over the pairs of a set: each pair alone, and all at once."""
    families = list(alone)
    kept = {family: together[family]["value"] / alone[family]["value"] for family in families}
    told = "; ".join(f"{family} {100 * share:.0f} %" for family, share in kept.items())
    fig = figure(f"Run at once, the pairs keep of their sum: {told}", x="set of pairs",
                 y="sum of bus bandwidths (GB/s)", caption=caption, alt=told)
    for i, (name, sizes) in enumerate((("each pair alone", alone), ("all at once", together))):
        fig.add_trace(bars(families, [sizes[family]["value"] for family in families], name=name, index=i))
    fig.update_layout(barmode="group", margin_t=LEGEND_MARGIN)
    fig.update_xaxes(type="category")
    return fig


def directions(speeds: Sizes, *, caption: str = "") -> go.Figure:
    """One pair: each direction alone, and each way while both run."""
    names = list(speeds)
    fig = figure("One direction of a pair alone, and each way while both run", x="direction", y="GB/s in one direction",
                 caption=caption, alt=_told(speeds, names, "GB/s"))
    column = {key: [speeds[name][key] for name in names] for key in ("value", "p10", "p90", "n")}
    points = measured(names, column["value"], name="ranks 0 and 1", low=column["p10"], high=column["p90"],
                      num_samples=column["n"])
    fig.add_trace(points.update(mode="markers"))
    fig.update_xaxes(type="category")
    fig.update_yaxes(rangemode="tozero")
    return fig


def _points(sizes: Sizes, labels: Sequence[str], *, name: str, index: int) -> go.Scatter:
    column = {key: [sizes[label][key] for label in labels] for key in ("value", "p10", "p90", "n")}
    return measured([label_bytes(label) for label in labels], column["value"], name=name, index=index,
                    low=column["p10"], high=column["p90"], num_samples=column["n"])


def _pair_trace(case: str, sizes: Sizes) -> go.Scatter:
    return _styled(_points(sizes, sorted(sizes, key=label_bytes), name=case, index=_color(case, 0)), case)


def _styled(trace: go.Scatter, case: str) -> go.Scatter:
    """Colour says the protocol, line and marker the algorithm."""
    algorithm = case.split("+")[0]
    if "+" in case:
        trace.update(line_dash=DASHES.get(algorithm, "dashdot"), marker_symbol=SYMBOLS.get(algorithm, "x"))
    return trace


def _color(case: str, index: int) -> int:
    protocol = case.split("+")[-1]
    return PROTOCOLS.index(protocol) if protocol in PROTOCOLS else 3 + index % 2


def _size_axis(fig: go.Figure, labels: Sequence[str]) -> go.Figure:
    size_axis(fig, [label_bytes(label) for label in labels])
    every = max(1, len(labels) // 6)  # a tick at each of twenty sizes would be unreadable on a phone
    fig.update_xaxes(tickvals=[label_bytes(label) for label in labels[::every]], ticktext=list(labels[::every]))
    fig.update_layout(margin_t=LEGEND_MARGIN)
    return fig


def _told(sizes: Sizes, labels: Sequence[str], unit: str) -> str:
    return "; ".join(f"{label}: {sizes[label]['value']:.3g} {unit}" for label in labels)

"""Figures of the preemption lab. In: records' samples and results, and the model's curves. Out: plotly figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from labkit.calc.preemption_prediction import kv_curve
from labkit.calc.scheduler import SchedulerConfig
from labkit.plots.style import COLORS, TEMPLATE, bars, figure, predicted, quoted


def kv_curves(
    curves: Mapping[str, Sequence[Sequence[float]]], model: Mapping[str, Mapping[str, Any]], *, source: str,
) -> go.Figure:
    """Use of the cache over time, sampled, and the model's over steps drawn on the same time.

    Args:
        curves: point -> [seconds, use (0 to 1), running, waiting], sampled.
        model: point -> {"at_s", "usage_pct": of each step, "wall_s": how long the round took}.
        source: for the caption.
    """
    fig = figure(
        "The small cache runs full, and gives back what it must compute again", x="time since the release (s)",
        y="KV cache used (%)", height=440,
        caption="Points: sampled. Dashed: the model's steps with unit costs from the quiet rounds, stretched to the "
        f"round's time. {source}.",
        alt="Cache use over time: one curve climbs to a hundred percent and falls back in steps.")
    for index, (label, (t_s, usage, *_)) in enumerate(curves.items()):
        inside = [i for i, t in enumerate(t_s) if t >= 0]
        fig.add_trace(go.Scatter(
            x=[t_s[i] for i in inside], y=[100 * usage[i] for i in inside], name=label, mode="markers",
            marker={"color": COLORS[index], "size": 6}, hovertemplate="%{x:.2f} s: %{y:.1f} %"))
        if label in model:
            steps = model[label]["usage_pct"]
            at = [t * model[label]["wall_s"] / model[label]["at_s"][-1] for t in model[label]["at_s"]]
            thin = range(0, len(steps), max(1, len(steps) // 300))
            fig.add_trace(predicted([at[i] for i in thin], [steps[i] for i in thin], name=f"{label}, model",
                                    index=index))
    return fig


def requests_over_steps(model: Mapping[str, Mapping[str, Sequence[float]]], *, source: str) -> go.Figure:
    """Requests that run and wait after each step, by the model that every step of the engine agreed with.

    Args:
        model: point -> {"running", "waiting"}: one number a step.
        source: for the caption.
    """
    fig = make_subplots(rows=len(model), cols=1, shared_xaxes=True, vertical_spacing=0.09,
                        subplot_titles=list(model))
    for row, (_, curve) in enumerate(model.items(), start=1):
        for index, name in enumerate(("running", "waiting")):
            values = list(curve[name])
            thin = [i for i in range(len(values)) if i in (0, len(values) - 1) or values[i] != values[i - 1]
                    or values[i] != values[i + 1]]
            fig.add_trace(go.Scatter(
                x=[i + 1 for i in thin], y=[values[i] for i in thin], name=name, mode="lines", showlegend=row == 1,
                line={"color": COLORS[index], "width": 2, "shape": "hv", "dash": "dot" if index else "solid"},
                hovertemplate="step %{x}: %{y}"), row=row, col=1)
        fig.update_yaxes(title_text="requests", rangemode="tozero", row=row, col=1)
    fig.update_xaxes(title_text="step", row=len(model), col=1)
    fig.update_layout(
        template=TEMPLATE, height=190 * len(model) + 90, title_text="Who runs and who waits, step by step",
        meta={"alt": "Requests running and waiting over the steps of each point; on the small cache four go back to "
              "waiting one after the other and come in again late.",
              "caption": f"The model's steps; the engine's log agreed with each. {source}."})
    return fig


def request_times(times: Mapping[str, Mapping[str, Sequence[float]]], *, source: str) -> go.Figure:
    """First token and end of each request, for a small and a large cache.

    Args:
        times: point -> {"ttft_s", "e2el_s"}: one number a request, in order of arrival.
        source: for the caption.
    """
    fig = figure(
        "The first tokens come alike, the last ones do not", x="request, in order of arrival",
        y="seconds from the release", height=440,
        caption=f"Open: first token. Filled: last token. First round of each point. {source}.",
        alt="First tokens of all requests come at like times on both caches; on the small one the last ones end late.")
    for index, (label, seen) in enumerate(times.items()):
        x = [number + 1 for number in range(len(seen["e2el_s"]))]
        fig.add_trace(go.Scatter(
            x=x, y=list(seen["e2el_s"]), name=f"{label}, last token", mode="markers",
            marker={"color": COLORS[index], "size": 9, "symbol": "circle" if index else "square"},
            hovertemplate="request %{x}: %{y:.2f} s"))
        fig.add_trace(go.Scatter(
            x=x, y=list(seen["ttft_s"]), name=f"{label}, first token", mode="markers",
            marker={"color": COLORS[index], "size": 8, "symbol": "circle-open" if index else "square-open"},
            hovertemplate="request %{x}: %{y:.2f} s"))
    return fig


def metrics_together(small_over_large: Mapping[str, Mapping[str, float]], *, source: str) -> go.Figure:
    """What each metric alone would say of the small cache: its value over the large cache's.

    Args:
        small_over_large: whose (a record, the report, the prediction) -> metric -> ratio.
        source: for the caption.
    """
    fig = figure(
        "TTFT alone sees nothing of a cache that runs full", x="metric", y="small cache / large cache",
        height=420, caption=f"16 requests at once, 1 GiB over 4 GiB. {source}.",
        alt="Bars of four metrics, small cache over large cache, predicted and measured; TTFT is near one.")
    for index, (name, ratios) in enumerate(small_over_large.items()):
        trace = quoted if "report" in name else None
        fig.add_trace(trace(list(ratios), list(ratios.values()), name=name, index=index).update(mode="markers") if trace
                      else bars(list(ratios), list(ratios.values()), name=name, index=index))
    fig.add_hline(y=1, line={"color": "#767676", "width": 1.2})
    return fig


def all_figures(record: Any, *, source: str, costs: Mapping[str, float] | None = None) -> dict[str, go.Figure]:
    """`kv_curve`, `requests`, `timeline` and `metrics` of a record, as far as it has what they need.

    Args:
        record: a run of the lab.
        source: for the captions.
        costs: step_ms, request_us and token_us, for the model's time axis; None: every step alike.
    """
    params, results, told = record.params, record.results, record.prediction["values"]
    small, large = (f"{gib} GiB" for gib in params["cache_gib"])
    order = [f"{small} / {c}" for c in params["small_concurrency"]] + [f"{large} / {c}" for c in
                                                                       params["large_concurrency"]]
    points = [label for label in order if label in results["count"]]
    curves = {label: record.samples[f"curve {label}"]["values"] for label in points
              if f"curve {label}" in record.samples}
    tokens = params["num_requests"] * (params["prompt_tokens"] + params["output_tokens"])
    model = {label: {**_curve(params, told, label, costs),
                     "wall_s": tokens / results["throughput"][label]["value"]} for label in points}
    found = {"kv_curve": kv_curves(curves, model, source=source), "requests": requests_over_steps(model, source=source)}
    pair = [label for label in points if label.endswith(f" / {max(params['large_concurrency'])}")]
    pair = [label for label in pair if label.startswith((small, large))]
    if len(pair) == 2:
        found["timeline"] = request_times({label: {
            name: record.samples[f"{name} {label}"]["values"][0] for name in ("ttft_s", "e2el_s")} for label in pair},
            source=source)
        ours = {name: results[key][pair[0]]["value"] / results[key][pair[1]]["value"] for name, key in (
            ("throughput", "throughput"), ("mean TTFT", "ttft"), ("mean TPOT", "tpot"), ("mean E2EL", "e2el"))}
        before = {name: told["points"][pair[0]][key] / told["points"][pair[1]][key] for name, key in (
            ("throughput", "tokens_per_s"), ("mean TTFT", "ttft_s"), ("mean TPOT", "tpot_s"), ("mean E2EL", "e2el_s"))}
        found["metrics"] = metrics_together({"predicted": before, record.hardware_tag: ours}, source=source)
    return found


def _curve(
    params: Mapping[str, Any], told: Mapping[str, Any], label: str, costs: Mapping[str, float] | None,
) -> dict[str, list[float]]:
    cache, concurrency = label.split(" / ")
    config = SchedulerConfig(
        num_blocks=told["blocks"][cache], block_size=params["block_size"], max_num_seqs=params["max_num_seqs"],
        max_num_batched_tokens=params["max_num_batched_tokens"], enable_prefix_caching=False)
    return kv_curve(config, concurrency=int(concurrency), num_requests=params["num_requests"],
                    prompt_tokens=params["prompt_tokens"], output_tokens=params["output_tokens"], **(costs or {}))

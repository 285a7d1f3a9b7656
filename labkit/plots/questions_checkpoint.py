"""Picture of question 36: goodput over the checkpoint interval."""

from __future__ import annotations

import plotly.graph_objects as go

from labkit.calc.checkpointing import best_interval_s, goodput
from labkit.calc.reliability import job_mtbf_s
from labkit.plots.style import COLORS, GREY, figure, predicted

GPU_MTBF_S = 54 * 86400 * 16384 / 419
"""As reported for Llama 3: 419 unexpected interruptions in 54 days on 16,384 GPUs."""
SAVE_S = 60.0
CASES = (("1,024 GPUs", 1024, 600.0), ("16,384 GPUs", 16384, 600.0), ("100,000 GPUs", 100_000, 600.0),
         ("100,000, restart in 60 s", 100_000, 60.0))  # fmt: skip
MINUTES = [10 ** (-0.3 + i / 20) for i in range(62)]


def goodput_over_interval() -> go.Figure:
    """Exact goodput of a job that saves every so often, for growing clusters."""
    fig = figure(
        "The optimum is flat; its height is set by the restart",
        x="minutes of compute between checkpoints", y="goodput (%)", log_x=True, height=400,
    )  # fmt: skip
    for index, (name, num_gpus, restart_s) in enumerate(CASES):
        rest = {
            "checkpoint_s": SAVE_S, "restart_s": restart_s,
            "mtbf_s": job_mtbf_s(component_mtbf_s=GPU_MTBF_S, num_components=num_gpus),
        }  # fmt: skip
        shares = [100 * goodput(interval_s=60 * minutes, **rest) for minutes in MINUTES]
        fig.add_trace(predicted(MINUTES, shares, name=name, index=index))
        best = best_interval_s(checkpoint_s=SAVE_S, mtbf_s=rest["mtbf_s"])
        fig.add_trace(go.Scatter(
            x=[best / 60], y=[100 * goodput(interval_s=best, **rest)], mode="markers", showlegend=False,
            name=f"best for {name}", hovertemplate="%{x:.1f} min: %{y:.1f} %",
            marker={"color": COLORS[index], "size": 11, "symbol": "diamond", "line": {"color": GREY, "width": 1}},
        ))  # fmt: skip
    fig.update_yaxes(range=[0, 100])
    fig.update_xaxes(tickvals=[1, 10, 100, 600], ticktext=["1", "10", "100", "600"])
    return fig

"""Drawings of the question on decode batch and P:D ratio. In: nothing. Out: plotly figures from labkit.calc."""

from __future__ import annotations

import plotly.graph_objects as go

from labkit.calc.attention import decode_step_floor_s
from labkit.calc.serving import largest_batch
from labkit.calc.transfer import transfer_time_s
from labkit.hardware import load_profile
from labkit.plots.style import GREY, ceiling, figure, predicted

WEIGHT_BYTES = 141.2e9
KV_BYTES_PER_TOKEN = 327680
CONTEXT_TOKENS = 4096
POOL_TOKENS = 1_180_000
TPOT_S = 0.05
NUM_GPUS = 4


def batch_knee() -> go.Figure:
    """Decode throughput against batch for 70B parameters on four H200, with the batch that memory allows."""
    rate = NUM_GPUS * float(load_profile("h200").value("memory_bandwidth_bytes_per_s") or 0)
    fixed = transfer_time_s(num_bytes=WEIGHT_BYTES, bytes_per_s=rate)
    each = decode_step_floor_s(
        num_tokens=CONTEXT_TOKENS, num_sequences=1, kv_bytes_per_token=KV_BYTES_PER_TOKEN, bytes_per_s=rate
    )["time_s"]
    found = largest_batch(
        tpot_s=TPOT_S, fixed_s=fixed, per_sequence_s=each, pool_tokens=POOL_TOKENS, tokens_per_sequence=CONTEXT_TOKENS
    )
    batches = [1, *range(8, found["by_time"] + 1, 8), found["by_time"]]
    fig = figure(
        "Memory stops the batch before latency does",
        x="sequences in a decode step", y="output tokens per second",
    )
    fig.add_trace(predicted(batches, [b / (fixed + b * each) for b in batches], name="B / (t0 + s B)"))
    marks = {"half of the limit": fixed / each, "KV pool full": found["by_memory"], "TPOT reached": found["by_time"]}
    for index, (label, batch) in enumerate(marks.items()):
        fig.add_vline(x=batch, line={"color": GREY, "width": 1.2, "dash": "dot"})
        # One below the other, so that they stay apart on a phone.
        fig.add_annotation(
            x=batch, y=0.3 - 0.11 * index, yref="paper", text=label, showarrow=False,
            xanchor="right" if index == 2 else "left",
        )
    fig.update_layout(showlegend=False).update_yaxes(range=[0, 1.12 / each])
    return ceiling(fig, 1 / each, label="limit 1/s: KV reads alone")

"""Pictures of question 1: where rows of a matrix product meet the ridge."""

from __future__ import annotations

import plotly.graph_objects as go

from labkit.calc.gemm import critical_rows, gemm_intensity_flop_per_byte
from labkit.calc.roofline import attainable_flop_per_s, ridge_flop_per_byte
from labkit.hardware import load_profile
from labkit.plots.style import COLORS, GREY, ceiling, figure, predicted

SHAPES = {"gate+up, 7168 x 4096": (7168, 4096), "down, 2048 x 7168": (2048, 7168), "512 x 512": (512, 512)}
ROWS = sorted({round(2 ** (i / 4)) for i in range(49)})


def mstar_curve() -> go.Figure:
    """Attainable BF16 rate over rows M for the expert shapes of DeepSeek-V3 and one that never gets there, H100 SXM."""
    fields = load_profile("h100_sxm").fields
    roofs = {
        "peak_flop_per_s": float(fields["peak_bf16_dense_flop_per_s"].value or 0),
        "bytes_per_s": float(fields["memory_bandwidth_bytes_per_s"].value or 0),
    }
    fig = figure(
        "Rows buy intensity one for one, until activations weigh as much as weights",
        x="rows M of the product", y="attainable rate (TFLOP/s)", log_x=True, height=400,
    )  # fmt: skip
    for index, (name, (k, n)) in enumerate(SHAPES.items()):
        rates = [
            attainable_flop_per_s(intensity_flop_per_byte=gemm_intensity_flop_per_byte(m=m, n=n, k=k), **roofs) / 1e12
            for m in ROWS
        ]
        fig.add_trace(predicted(ROWS, rates, name=name, index=index))
        found = critical_rows(n=n, k=k, ridge_flop_per_byte=ridge_flop_per_byte(**roofs))
        if found is not None:
            fig.add_trace(go.Scatter(
                x=[found], y=[roofs["peak_flop_per_s"] / 1e12], mode="markers", showlegend=False, name=f"M* of {name}",
                marker={"color": COLORS[index], "size": 11, "symbol": "diamond", "line": {"color": GREY, "width": 1}},
                hovertemplate="M* = %{x:.0f} rows",
            ))  # fmt: skip
    fig.update_yaxes(rangemode="tozero")
    fig.update_xaxes(tickvals=[4**i for i in range(7)], ticktext=[str(4**i) for i in range(7)])
    return ceiling(fig, roofs["peak_flop_per_s"] / 1e12, label="dense BF16 peak, data sheet")

"""Drawings of the question on atomics and order. In: nothing. Out: plotly figures computed from labkit.calc."""

from __future__ import annotations

import plotly.graph_objects as go

from labkit.calc.summation import num_patterns
from labkit.plots.style import bars, figure

NUM_VALUES = 512
NUM_ORDERS = 60
METHODS = {"serial": "serial", "pairwise": "tree", "kahan": "Kahan"}


def patterns_by_method() -> go.Figure:
    """Different sums of one set of numbers over many orders, by method, in FP32 and FP64."""
    fig = figure("Only a fixed order has one result", x="how the numbers are added",
                 y=f"different sums over {NUM_ORDERS} orders")  # fmt: skip
    for index, dtype in enumerate(("float32", "float64")):
        counts = {
            name: num_patterns("order", num_values=NUM_VALUES, num_orders=NUM_ORDERS, method=method, dtype=dtype)
            for method, name in METHODS.items()
        }
        counts["fixed"] = num_patterns(
            "order", num_values=NUM_VALUES, num_orders=1, method="pairwise", dtype=dtype
        )
        bar = bars(list(counts), list(counts.values()), name=dtype.replace("float", "FP"), index=index)
        fig.add_trace(bar.update(text=list(counts.values()), textposition="outside", cliponaxis=False))
    return fig.update_yaxes(rangemode="tozero")

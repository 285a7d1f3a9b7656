"""Drawing of the question on two threads on one core. In: nothing. Out: a plotly figure from labkit.calc."""

from __future__ import annotations

import plotly.graph_objects as go

from labkit.calc.smt import speedup_bound, speedup_random_stalls
from labkit.plots.style import figure


def gain_by_utilisation() -> go.Figure:
    """Gain of a second thread over how busy the first keeps the core: the bound and independent stalls."""
    shares = [share / 100 for share in range(5, 101)]
    fig = figure(
        "A busy core has nothing to give, an idle one gives less than the bound",
        x="utilisation of the busiest resource by one thread", y="throughput of two threads over one",
    )
    lines = {"bound, stalls fit perfectly": speedup_bound, "independent stalls": speedup_random_stalls}
    for name, formula in lines.items():
        fig.add_trace(go.Scatter(x=shares, y=[formula(utilisation=u) for u in shares], mode="lines", name=name))
    fig.update_xaxes(range=[0, 1]).update_yaxes(range=[0.95, 2.05])
    return fig

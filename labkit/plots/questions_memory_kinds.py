"""Drawings of the question on kinds of CUDA memory. In: nothing. Out: plotly figures."""

from __future__ import annotations

import plotly.graph_objects as go

from labkit.plots.diagram import arrow, box, canvas, label


def spaces_and_stores() -> go.Figure:
    """Names a program can use, inside the stores that hold them, from the SM down to host memory."""
    fig = canvas(
        "Nine names, and the stores that hold them", width=10, height=9.3, pixels_per_unit=50,
        alt="An SM with register file, SRAM, constant cache and dashed tensor memory; below it L2, device memory and "
        "host memory, each with the names of the data it holds.",
    )  # fmt: skip
    box(fig, 0, 5.7, 10, 3.6)
    label(fig, 0.15, 9.05, "<b>each SM</b>", anchor="left")
    box(fig, 0.3, 6.0, 2.5, 2.7, "register file<br><br><b>registers</b>", index=0)
    box(fig, 3.0, 6.0, 2.5, 2.7, "SRAM<br><br><b>shared</b><br>and L1", index=1)
    box(fig, 5.7, 7.5, 4.0, 1.2, "constant cache")
    box(fig, 5.7, 6.0, 4.0, 1.2, "<b>tensor memory</b><br>Blackwell only", index=3, dashed=True)
    box(fig, 0, 4.5, 10, 0.7, "L2 cache, shared by all SMs")
    box(fig, 0, 2.0, 10, 2.0, index=2)
    label(fig, 0.15, 3.75, "<b>device memory</b>", anchor="left")
    for index, name in enumerate(("global", "local", "constant,<br>kernel<br>args", "texture")):
        box(fig, 0.3 + 2.4 * index, 2.2, 2.2, 1.2, f"<b>{name}</b>", index=2)
    box(fig, 0, 0, 10, 1.1, index=4)
    label(fig, 0.15, 0.85, "<b>host memory</b>", anchor="left")
    label(fig, 5, 0.35, "pageable · pinned · <b>mapped</b>")
    for top, bottom in ((5.7, 5.2), (4.5, 4.0)):
        arrow(fig, 5, bottom, 5, top)
    arrow(fig, 5, 1.1, 5, 2.0)
    label(fig, 5.2, 1.55, "PCIe or NVLink", anchor="left", size=11)
    return fig

"""Drawing of the question on device addresses in two processes. In: nothing. Out: a plotly figure."""

from __future__ import annotations

import plotly.graph_objects as go

from labkit.plots.diagram import arrow, box, canvas, label


def two_processes() -> go.Figure:
    """Page tables of two processes: one number that means two pages, and two numbers that mean one page."""
    fig = canvas(
        "The same number, two pages; two numbers, the same page", width=10, height=7.4, pixels_per_unit=50,
        alt="Two processes with page tables above device memory. The address 0x7f00 leads to page 1 in process A and "
        "to page 3 in process B. Address 0x7f40 of A and address 0x9c00 of B both lead to the shared page 2.",
    )  # fmt: skip
    for left, name, shared, index in (
        (0, "process A", "0x7f40<br><br>exported", 0), (5.6, "process B", "0x9c00<br><br>imported", 1)
    ):  # fmt: skip
        box(fig, left, 4.0, 4.4, 3.2)
        label(fig, left + 0.2, 6.85, f"<b>{name}</b>: addresses", anchor="left")
        box(fig, left + 0.3, 4.4, 1.8, 1.9, "0x7f00<br><br>private", index=index)
        box(fig, left + 2.3, 4.4, 1.8, 1.9, shared, index=2)
    box(fig, 0, 0, 10, 1.9)
    label(fig, 0.2, 0.3, "<b>device memory</b>: pages", anchor="left")
    for x, name, index in ((0.5, "page 1", 0), (4.1, "page 2, shared", 2), (7.7, "page 3", 1)):
        box(fig, x, 0.65, 1.8 if index != 2 else 2.0, 1.0, name, index=index)
    arrow(fig, 1.2, 4.4, 1.3, 1.7, index=0)
    arrow(fig, 3.2, 4.4, 4.7, 1.7, index=2)
    arrow(fig, 8.8, 4.4, 5.5, 1.7, index=2)
    arrow(fig, 6.8, 4.4, 8.4, 1.7, index=1)
    label(fig, 2.1, 3.1, "page table of A", anchor="center", size=11)
    label(fig, 8.7, 2.5, "page table of B", anchor="center", size=11)
    return fig

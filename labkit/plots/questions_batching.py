"""Picture of question 8: the same requests in four slots, scheduled by whole batches and by iterations."""

from __future__ import annotations

import heapq

import plotly.graph_objects as go

from labkit.plots.style import COLORS, figure

LENGTHS = [256, 16, 16, 16] * 4
SLOTS = 4


def whole_batches() -> list[tuple[int, int, int]]:
    """(slot, start, length) of each request when a batch runs until its longest member is done."""
    placed, now = [], 0
    for first in range(0, len(LENGTHS), SLOTS):
        batch = LENGTHS[first : first + SLOTS]
        placed += [(slot, now, length) for slot, length in enumerate(batch)]
        now += max(batch)
    return placed


def continuous() -> list[tuple[int, int, int]]:
    """(slot, start, length) of each request when a free slot takes the next one at once."""
    free, placed = [(0, slot) for slot in range(SLOTS)], []
    for length in LENGTHS:
        now, slot = heapq.heappop(free)
        placed.append((slot, now, length))
        heapq.heappush(free, (now + length, slot))
    return placed


def slot_timeline() -> go.Figure:
    """Four slots over decode iterations, both ways, long generations apart from short ones."""
    ends = [max(start + length for _, start, length in place) for place in (whole_batches(), continuous())]
    fig = figure(
        f"The same work ends after {ends[0]:,} iterations in whole batches, after {ends[1]} with free slots refilled",
        x="decode iterations", y="slot", height=380,
    )  # fmt: skip
    for index, (wanted, name) in enumerate(((16, "short, 16 tokens"), (256, "long, 256 tokens"))):
        rows, starts, lengths = [], [], []
        for way, place in (("batch", whole_batches()), ("refill", continuous())):
            for slot, start, length in place:
                if length == wanted:
                    rows.append(f"{way} {slot + 1}")
                    starts.append(start)
                    lengths.append(length)
        fig.add_trace(go.Bar(
            y=rows, x=lengths, base=starts, orientation="h", name=name,
            marker={"color": COLORS[index], "line": {"width": 1, "color": "rgba(128,128,128,0.9)"}},
            hovertemplate="%{y}: %{base} to %{x}",
        ))  # fmt: skip
    order = [f"{way} {slot}" for way in ("batch", "refill") for slot in range(1, SLOTS + 1)]
    fig.update_yaxes(categoryorder="array", categoryarray=order[::-1], type="category")
    fig.update_layout(barmode="overlay")
    return fig

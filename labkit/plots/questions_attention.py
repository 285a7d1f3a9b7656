"""Picture of question 2: one softmax over keys that arrive in tiles, in a loop or in parallel splits."""

from __future__ import annotations

import math

import plotly.graph_objects as go

from labkit.calc.online_softmax import merge_states, tile_state
from labkit.plots.diagram import arrow, box, canvas, label

TILES = ([1.0, 3.0], [2.0, 5.0], [0.0, 4.0])
"""Scaled scores of one query against six keys, two keys a tile."""


def _state(state: dict) -> str:
    return f"m = {state['max']:.0f}<br>ℓ = {state['sum']:.3f}"


def online_softmax() -> go.Figure:
    """The state (m, l) of one query: carried through a loop over tiles, and merged from independent splits."""
    own = [tile_state(scores=scores, values=[[1.0]] * len(scores)) for scores in TILES]
    carried = [own[0]]
    for state in own[1:]:
        carried.append(merge_states(first=carried[-1], second=state))
    merged = merge_states(first=merge_states(first=own[2], second=own[0]), second=own[1])
    fig = canvas(
        "A loop over tiles and independent splits end in the same state", width=10, height=8.2,
        alt="Three tiles of keys. Above, one loop carries the largest score and the sum from tile to tile and rescales "
        "the sum when the largest score grows. Below, each tile has its own state and one merge gives the same result.",
    )  # fmt: skip
    label(fig, 0, 8.05, "<b>loop</b>: one tile after the other", anchor="left")
    for i, scores in enumerate(TILES):
        x = 3.5 * i
        box(fig, x, 6.5, 2.6, 1.1, f"KV tile {i + 1}<br>S = {scores[0]:.0f}, {scores[1]:.0f}", index=0)
        arrow(fig, x + 1.3, 6.45, x + 1.3, 5.6)
        box(fig, x, 4.5, 2.6, 1.05, _state(carried[i]), index=1)
        if i:
            factor = math.exp(carried[i - 1]["max"] - carried[i]["max"])
            arrow(fig, x - 0.9, 5.0, x, 5.0, f"×{factor:.2f}", shift=0.28)
    label(fig, 0, 3.75, "<b>splits</b>: all tiles at once, then merge", anchor="left")
    for i, state in enumerate(own):
        box(fig, 3.5 * i, 2.2, 2.6, 1.1, _state(state), index=0)
        arrow(fig, 3.5 * i + 1.3, 2.15, 3.4 + 1.6 * i, 1.3)
    box(fig, 2.6, 0.15, 4.8, 1.1, f"one merge<br>{_state(merged).replace('<br>', ', ')}", index=1)
    return fig

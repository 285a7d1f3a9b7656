"""Picture of question 3: block tables of two requests that share a prefix."""

from __future__ import annotations

from collections.abc import Callable

import plotly.graph_objects as go

from labkit.calc.prefix_cache import block_keys, shared_blocks
from labkit.plots.diagram import arrow, box, canvas, label

BLOCK = 4
STEP, WIDTH = 2.55, 2.1
FIRST = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14]
SECOND = [1, 2, 3, 4, 5, 6, 7, 8, 21, 22, 23, 24, 25]


def block_tables() -> go.Figure:
    """Two requests over one pool of blocks: equal leading keys point at the same block, tails stay private."""
    shared = shared_blocks(first=FIRST, second=SECOND, block_tokens=BLOCK)["leading"]
    fig = canvas(
        "A block's key stands for everything before it, so equal keys can share memory", width=10, height=7,
        alt="Two requests with block tables. Their first two full blocks have equal keys and point at the same two "
        "physical blocks. The next full blocks differ and the partly filled last blocks have no key and are private.",
    )  # fmt: skip
    _table(fig, "request A", FIRST, y=5.4, tip=lambda i: 4.33, above=True)
    _table(fig, "request B", SECOND, y=0.4, tip=lambda i: 3.22 if i < shared else 2.62, above=False)
    for i in range(4):
        x, color, private = STEP * i, 2 if i < shared else 0, i == 3
        if i < shared:
            box(fig, x, 3.25, WIDTH, 1.05, f"block {i}<br>2 users", index=color)
            continue
        for y, number in ((3.5, i), (2.65, i + 2)):
            box(fig, x, y, WIDTH, 0.8, f"block {number}", index=None if private else color, dashed=private)
    return fig


def _table(fig: go.Figure, name: str, tokens: list[int], *, y: float, tip: Callable[[int], float], above: bool) -> None:
    keys = block_keys(tokens=tokens, block_tokens=BLOCK)
    label(fig, 0, y + 1.35 if above else y - 0.3, f"<b>{name}</b>: tokens, start of the key", anchor="left")
    for i in range(-(-len(tokens) // BLOCK)):
        part, full = tokens[i * BLOCK : (i + 1) * BLOCK], i < len(keys)
        span = f"{part[0]}…{part[-1]}" if len(part) > 1 else f"{part[0]}"
        text = f"{span}<br>{keys[i][:4] if full else 'no key'}"
        box(fig, STEP * i, y, WIDTH, 1.05, text, index=0 if full else None, dashed=not full)
        middle = STEP * i + WIDTH / 2
        arrow(fig, middle, y - 0.03 if above else y + 1.08, middle, tip(i))

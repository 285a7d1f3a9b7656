"""The picture of the flow, drawn from one description: inline in the book, and as `book/assets/flow.svg`.

    python -m labkit.book.flow > book/assets/flow.svg

Boxes are placed by hand twice, once for a screen and once for a phone; arrows follow the places.
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

ALT = (
    "Parameters go two ways. The upper way is a prediction, written down before the run. The lower way is a launcher "
    "and a real engine, which leave a run record. An oracle compares the two, the claim ledger keeps the verdict, and "
    "the page shows the number with its evidence."
)


@dataclass(frozen=True, slots=True)
class Box:
    """One step: a name, what it is, and its place in the wide and in the tall drawing."""

    name: str
    note: str
    wide: tuple[int, int]
    tall: tuple[int, int]
    planned: bool = False


BOXES = (
    Box("Parameters", "a preset of the lab", (0, 78), (84, 0)),
    Box("Prediction", "saved before the run", (176, 10), (0, 92), planned=True),
    Box("Launcher", "fresh processes", (176, 146), (168, 92)),
    Box("Engine", "torch, Triton, vLLM", (352, 146), (168, 184)),
    Box("Run record", "samples and hashes", (528, 146), (168, 276)),
    Box("Oracle", "right or wrong", (528, 10), (84, 368)),
    Box("Ledger", "verdict of each claim", (704, 10), (84, 460)),
    Box("Page", "numbers with evidence", (704, 146), (84, 552)),
)
ARROWS = (
    ("Parameters", "Prediction"), ("Parameters", "Launcher"), ("Launcher", "Engine"), ("Engine", "Run record"),
    ("Prediction", "Oracle"), ("Run record", "Oracle"), ("Oracle", "Ledger"), ("Ledger", "Page"),
)
WIDTH, HEIGHT = 152, 60


def flow_svg(*, tall: bool = False, inline: bool = True) -> str:
    """The drawing as SVG text.

    Args:
        tall: top to bottom, for a phone; otherwise left to right.
        inline: for use inside a page (takes the page's text colour); otherwise a file of its own that follows the
            reader's light or dark setting.
    """
    places = {box.name: (box.tall if tall else box.wide) for box in BOXES}
    size = (320, 614) if tall else (856, 218)
    parts = [_arrow(places[start], places[end], tall=tall) for start, end in ARROWS]
    parts += [_box(box, places[box.name]) for box in BOXES]
    style = "" if inline else (
        "<style>svg{color:#24292f;font-family:system-ui,sans-serif}"
        "@media(prefers-color-scheme:dark){svg{color:#d6dbe1}}</style>"
    )
    marker = f"lk-head-{'tall' if tall else 'wide'}"
    head = (
        f'<defs><marker id="{marker}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
        f'orient="auto"><path d="M0 0 8 4 0 8z" fill="currentColor"/></marker></defs>'
    )
    body = "".join(parts).replace("HEAD", marker)
    kind = "lk-flow-tall" if tall else "lk-flow-wide"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="{kind}" viewBox="-2 -2 {size[0] + 4} {size[1] + 4}" '
        f'role="img" aria-label="{escape(ALT)}">{style}{head}{body}</svg>'
    )


def _box(box: Box, place: tuple[int, int]) -> str:
    x, y = place
    dash = ' stroke-dasharray="5 4"' if box.planned else ""
    return (
        f'<g transform="translate({x} {y})"><rect width="{WIDTH}" height="{HEIGHT}" rx="5" fill="currentColor" '
        f'fill-opacity="0.06" stroke="currentColor" stroke-opacity="0.55"{dash}/>'
        f'<text x="{WIDTH // 2}" y="26" text-anchor="middle" font-size="16" font-weight="600" fill="currentColor">'
        f'{escape(box.name)}</text><text x="{WIDTH // 2}" y="46" text-anchor="middle" font-size="12.8" '
        f'fill="currentColor" fill-opacity="0.82">{escape(box.note)}</text></g>'
    )


def _arrow(start: tuple[int, int], end: tuple[int, int], *, tall: bool) -> str:
    """An arrow between two boxes: straight where they share a row or column, else with one bend."""
    (x0, y0), (x1, y1) = start, end
    if y0 == y1:
        path = f"M{x0 + WIDTH} {y0 + HEIGHT // 2}H{x1 - 2}"
    elif x0 == x1:
        down = y1 > y0
        path = f"M{x0 + WIDTH // 2} {y0 + (HEIGHT if down else 0)}V{y1 - 2 if down else y1 + HEIGHT + 2}"
    elif tall:
        middle = (y0 + HEIGHT + y1) // 2 if y1 - y0 < 150 else y1 - 16
        path = f"M{x0 + WIDTH // 2} {y0 + HEIGHT}V{middle}H{x1 + WIDTH // 2}V{y1 - 2}"
    else:
        path = f"M{x0 + WIDTH} {y0 + HEIGHT // 2}H{x0 + WIDTH + 11}V{y1 + HEIGHT // 2}H{x1 - 2}"
    return f'<path d="{path}" fill="none" stroke="currentColor" stroke-opacity="0.7" marker-end="url(#HEAD)"/>'


if __name__ == "__main__":
    print(flow_svg(inline=False))

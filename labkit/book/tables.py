"""Tables as document nodes: searchable, translatable, with an anchor per row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from docutils import nodes

Cell = str | nodes.Node | Sequence[nodes.Node]


@dataclass(frozen=True, slots=True)
class Row:
    """One row: cells in the order of the headers, and the anchor that links point at."""

    cells: Sequence[Cell]
    anchor: str = ""
    classes: list[str] = field(default_factory=list)


def make_table(
    headers: Sequence[str], rows: Sequence[Row], *, sortable: bool = False, cards: bool = False,
    widths: Sequence[int] = (),
) -> nodes.table:
    """A table.

    Args:
        headers: column titles.
        rows: each with as many cells as there are headers.
        sortable: a click on a header sorts.
        cards: on a phone each row becomes a card with its column titles inside.
        widths: parts of the whole width, one a column; without them columns are as wide as they need.

    Raises: ValueError when a row has another number of cells.
    """
    classes = [*["lk-sortable"] * sortable, *["lk-cards"] * cards, *["lk-fixed"] * bool(widths)]
    table = nodes.table(classes=["lk-table", *classes])
    for row in rows:
        if len(row.cells) != len(headers):
            raise ValueError(f"row {row.anchor!r}: {len(row.cells)} cells, expected {len(headers)}")
    group = nodes.tgroup(cols=len(headers))
    table += group
    group += [nodes.colspec(colwidth=width) for width in widths or [1] * len(headers)]
    if widths:
        table["classes"].append("colwidths-given")
    numeric = [all(_is_number(row.cells[i]) for row in rows) for i in range(len(headers))] if rows else []
    head = nodes.thead()
    group += head
    head += _row(Row(list(headers)), numeric)
    body = nodes.tbody()
    group += body
    for row in rows:
        body += _row(row, numeric)
    return table


def _is_number(cell: Cell) -> bool:
    return isinstance(cell, str) and not cell.strip("0123456789.,")


def _row(row: Row, numeric: Sequence[bool]) -> nodes.row:
    node = nodes.row(ids=[row.anchor] if row.anchor else [], classes=row.classes)
    for number, cell in enumerate(row.cells):
        entry = nodes.entry(classes=["lk-right"] if numeric and numeric[number] else [])
        node += entry
        entry += _cell(cell)
    return node


def _cell(cell: Cell) -> nodes.Node:
    if isinstance(cell, str):
        return nodes.paragraph(cell, cell)
    inline = [cell] if isinstance(cell, nodes.Node) else list(cell)
    if any(isinstance(node, nodes.paragraph | nodes.container) for node in inline):
        return nodes.container("", *inline)
    return nodes.paragraph("", "", *inline)


def code(text: str) -> nodes.literal:
    """Text in the fixed-width face."""
    return nodes.literal(text, text)


def pill(text: str, kind: str) -> nodes.inline:
    """A short word with a border; `kind` picks colour and line."""
    return nodes.inline(text, text, classes=["lk-pill", f"lk-pill-{kind}"])


def paragraph(text: str, *, classes: Sequence[str] = ()) -> nodes.paragraph:
    """A paragraph of plain text."""
    return nodes.paragraph(text, text, classes=list(classes))

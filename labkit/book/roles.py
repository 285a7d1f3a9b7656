"""The roles {claim}, {run}, {calc} and {hw}: a number, a badge that names its evidence, a link to its row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from docutils import nodes
from sphinx.errors import NoUri
from sphinx.util import logging
from sphinx.util.docutils import SphinxRole

from labkit.book.lookup import Number, calc_number, claim_number, hardware_number, run_number
from labkit.book.values import LookupProblem

logger = logging.getLogger(__name__)
SCHEME = "labkit:"
"""Marks a link whose target page is known only when the page is written."""


LONGEST_UNBROKEN = 24
"""A number up to this many characters stays on one line with its badge."""


class NumberRole(SphinxRole):
    """A role that looks its text up; a problem is a warning that names the role's text."""

    def __init__(self, name: str, look_up: Callable[[str], Number]) -> None:
        super().__init__()
        self.role_name = name
        self.look_up = look_up

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        """Nodes of the number, or of the raw text beside a warning."""
        try:
            return [number_node(self.look_up(self.text))], []
        except LookupProblem as problem:
            role_text = f"{{{self.role_name}}}`{self.text}`"
            logger.warning("%s: %s", role_text, problem, location=self.get_location(), type="labkit", subtype="number")
            return [nodes.literal(role_text, role_text)], []


def number_node(number: Number) -> nodes.inline:
    """The text, then a badge that is a link; a screen reader hears the meaning, a mouse sees the detail."""
    kind = number.evidence
    box = nodes.inline(classes=["lk-number", *["lk-short"] * (len(number.text) <= LONGEST_UNBROKEN)])
    box += nodes.inline(number.text, number.text, classes=["lk-value"])
    link = nodes.reference(
        "", "", internal=True, refuri=f"{SCHEME}{number.page}#{number.anchor}",
        reftitle=f"{kind.meaning.capitalize()}. {number.detail[:1].upper()}{number.detail[1:]}.",
        classes=["lk-badge", f"lk-{kind.key}"],
    )
    link += nodes.inline(kind.label, kind.label)
    hidden = f" ({kind.meaning})"
    link += nodes.inline(hidden, hidden, classes=["lk-sr"])
    box += link
    return box


def resolve_links(app: Any, doctree: nodes.document, docname: str) -> None:
    """Turn `labkit:page#anchor` into a relative address; without that page in the book the link becomes plain text."""
    for link in list(doctree.findall(nodes.reference)):
        target = link.get("refuri", "")
        if not target.startswith(SCHEME):
            continue
        page, _, anchor = target.removeprefix(SCHEME).partition("#")
        try:
            if page not in app.env.found_docs:
                raise NoUri
            link["refuri"] = f"{app.builder.get_relative_uri(docname, page)}#{anchor}"
        except NoUri:
            plain = nodes.inline("", "", *link.children, classes=link["classes"])
            link.replace_self(plain)


def setup(app: Any) -> None:
    """Register the roles."""
    look_ups = {"claim": claim_number, "run": run_number, "calc": calc_number, "hw": hardware_number}
    for name, look_up in look_ups.items():
        app.add_role(name, NumberRole(name, look_up))
    app.connect("doctree-resolved", resolve_links)

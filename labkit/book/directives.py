"""Directives for generated content; each is one line in a page, e.g. `{claim-ledger}`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from docutils import nodes
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

from labkit.book import evidence, flow, hardware_page, ledger_page, question_list, reports
from labkit.book.drawing import Drawing
from labkit.book.formula_sheet import formula_sections
from labkit.book.tables import Row, make_table
from labkit.book.values import LookupProblem

logger = logging.getLogger(__name__)


class _Generated(SphinxDirective):
    """A directive whose problem is a warning that names it."""

    has_content = False

    def run(self) -> list[nodes.Node]:
        """Nodes of the content."""
        try:
            return list(self.make())
        except LookupProblem as problem:
            name = f"{{{self.name}}} {' '.join(self.arguments)}".strip()
            logger.warning("%s: %s", name, problem, location=self.get_location(), type="labkit", subtype="directive")
            return []

    def make(self) -> Sequence[nodes.Node]:
        raise NotImplementedError


class ClaimLedger(_Generated):
    """`{claim-ledger}`: the table of all claims; `{claim-ledger} summary`: counts by kind and status."""

    optional_arguments = 1

    def make(self) -> Sequence[nodes.Node]:
        what = self.arguments[0] if self.arguments else "table"
        if what not in ("table", "summary"):
            raise LookupProblem(f"{what!r}: expected nothing or summary")
        return [ledger_page.ledger_table() if what == "table" else ledger_page.ledger_summary()]


class StatusWords(_Generated):
    """`{status-words}`: what each status of the ledger means."""

    def make(self) -> Sequence[nodes.Node]:
        rows = [Row([reports.pill(word, look), meaning]) for word, look, meaning in ledger_page.STATUS.values()]
        return [make_table(["status", "meaning"], rows)]


class Errata(_Generated):
    """`{errata} v100_report`: errata of one source."""

    required_arguments = 1

    def make(self) -> Sequence[nodes.Node]:
        return ledger_page.errata_blocks(self.arguments[0])


class HardwareTable(_Generated):
    """`{hardware-table} peaks` and so on: one table of the hardware profiles."""

    required_arguments = 1

    def make(self) -> Sequence[nodes.Node]:
        return hardware_page.hardware_table(self.arguments[0])


class FormulaSheet(_Generated):
    """`{formula-sheet}`: one section a topic of labkit.calc."""

    def make(self) -> Sequence[nodes.Node]:
        sections = formula_sections()
        for section in sections:
            self.state.document.note_implicit_target(section, section)
        return sections


class RunList(_Generated):
    """`{run-list} committed` or `{run-list} here`: records, newest first."""

    required_arguments = 1

    def make(self) -> Sequence[nodes.Node]:
        if self.arguments[0] not in ("committed", "here"):
            raise LookupProblem("expected committed or here")
        return reports.run_list(local=self.arguments[0] == "here")


class Status(_Generated):
    """`{status} notebooks` or `{status} machine`: the status page's two tables."""

    required_arguments = 1

    def make(self) -> Sequence[nodes.Node]:
        if self.arguments[0] not in ("notebooks", "machine"):
            raise LookupProblem("expected notebooks or machine")
        return reports.notebook_times(self.env.app) if self.arguments[0] == "notebooks" else reports.build_machine()


class Flow(_Generated):
    """`{flow}`: the picture of how a number gets onto a page, wide on a screen and tall on a phone."""

    def make(self) -> Sequence[nodes.Node]:
        html = f'<figure class="lk-flow">{flow.flow_svg()}{flow.flow_svg(tall=True)}</figure>'
        return [nodes.raw("", html, format="html")]


class QuestionList(_Generated):
    """`{question-list}`: the interview questions that have a page, with area and lab."""

    def make(self) -> Sequence[nodes.Node]:
        questions = question_list.read_questions()
        for question in questions:
            self.env.note_dependency(str(question.path))
        return [question_list.question_table(questions)]


class EvidenceKinds(_Generated):
    """`{evidence-kinds}`: the badges and what they mean."""

    def make(self) -> Sequence[nodes.Node]:
        badge = lambda kind: nodes.inline(kind.label, kind.label, classes=["lk-badge", f"lk-{kind.key}"])  # noqa: E731
        return [make_table(["badge", "the number was"], [Row([badge(kind), kind.meaning]) for kind in evidence.KINDS])]


DIRECTIVES = {
    "claim-ledger": ClaimLedger, "status-words": StatusWords, "errata": Errata, "formula-sheet": FormulaSheet,
    "hardware-table": HardwareTable, "drawing": Drawing, "question-list": QuestionList,
    "run-list": RunList, "status": Status, "flow": Flow, "evidence-kinds": EvidenceKinds,
}


def setup(app: Any) -> None:
    """Register the directives."""
    for name, directive in DIRECTIVES.items():
        app.add_directive(name, directive)

"""The claim ledger and the errata as tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from docutils import nodes

from labkit.book import sources
from labkit.book.formula_sheet import with_code
from labkit.book.lookup import LEDGER_PAGE, RUNS_PAGE, claim_anchor, run_anchor
from labkit.book.roles import SCHEME
from labkit.book.tables import Row, code, make_table, pill
from labkit.book.values import LookupProblem, show_value
from labkit.claims import ORIGINS, Erratum

STATUS = {
    "verified": ("verified", "good", "reproduced on this machine, or by formula"),
    "reproduced_elsewhere": ("reproduced elsewhere", "fine", "reproduced by a committed record of another machine"),
    "differs": ("differs", "bad", "our check gives another value than the source prints"),
    "not_run": ("not run here", "none", "nothing on this machine or in the records answers it"),
}
LONGEST_VALUE = 150


def ledger_table() -> nodes.table:
    """Every claim with its printed value, our verdict and the reason, one anchor a claim."""
    verdicts = sources.verdicts()
    rows = []
    for claim in sources.claims().values():
        verdict = verdicts.get(claim.id)
        word, look, _ = STATUS[verdict.status if verdict else "not_run"]
        seen = "" if verdict is None or verdict.seen is None else short_value(verdict.seen, exact=False)
        origin = nodes.paragraph("", "", _field("source", sources.source_title(claim)), classes=["lk-small"])
        origin += nodes.Text(f", {_section(claim.section, claim.ledger)}")
        if claim.role in ORIGINS:
            origin += nodes.Text(f", {claim.area}: {claim.role}")
        status = pill(word, look)
        status["classes"].append("lk-f-status")
        rows.append(Row(
            [
                [nodes.paragraph("", "", code(claim.id)), with_code(claim.statement), origin],
                [_field("kind", claim.kind)], printed_value(claim), seen,
                [nodes.paragraph("", "", status), nodes.paragraph("", "", *_reason(verdict), classes=["lk-small"])],
            ],
            anchor=claim_anchor(claim.id),
        ))
    headers = ["claim", "kind", "printed", "seen", "status"]
    table = make_table(headers, rows, sortable=True, cards=True, widths=[40, 12, 17, 14, 17])
    table["classes"].append("lk-filter")
    return table


def ledger_summary() -> nodes.table:
    """How many claims of each kind have each status."""
    verdicts = sources.verdicts()
    count = Counter(
        (claim.kind, verdicts[claim.id].status if claim.id in verdicts else "not_run")
        for claim in sources.claims().values()
    )
    kinds = sorted({kind for kind, _ in count})
    rows = [Row([kind, *[str(count[kind, status]) for status in STATUS]]) for kind in kinds]
    rows.append(Row(["all", *[str(sum(count[kind, status] for kind in kinds)) for status in STATUS]]))
    return make_table(["kind", *[word for word, _, _ in STATUS.values()]], rows)


def _field(name: str, text: str) -> nodes.inline:
    """Text that the table script offers as a filter called `name`."""
    return nodes.inline(text, text, classes=[f"lk-f-{name}"])


def _reason(verdict: Any) -> list[nodes.Node]:
    if verdict is None:
        return [nodes.Text("")]
    parts: list[nodes.Node] = list(with_code(str(verdict.reason or "")).children)
    entry = next((e for e in sources.all_entries() if verdict.record and e.record.run_id in str(verdict.record)), None)
    if entry is not None:
        target = run_anchor(entry.record.experiment, entry.record.run_id)
        link = nodes.reference("", "", internal=True, refuri=f"{SCHEME}{RUNS_PAGE}#{target}")
        link += code(entry.record.run_id)
        parts += [nodes.Text(" "), link]
    return parts


def errata_blocks(seed: str) -> list[nodes.Node]:
    """Errata of one source, a block each: what it prints, what comes out instead, and why.

    Raises: LookupProblem when there is no such source.
    """
    errata = sources.errata()
    chosen = [erratum for erratum in errata if erratum.seed == seed]
    if not chosen:
        raise LookupProblem(f"no errata of {seed!r} (there is: {', '.join(sorted({e.seed for e in errata}))})")
    return [_erratum_block(erratum) for erratum in chosen]


def _erratum_block(erratum: Erratum) -> nodes.container:
    anchor = f"erratum-{erratum.seed}-{erratum.id}".lower().replace("_", "-")
    block = nodes.container(classes=["lk-entry"], ids=[anchor])
    head = nodes.paragraph(classes=["lk-entry-name"])
    head += [code(erratum.id), nodes.Text(f" {_section(erratum.section, erratum.seed)}: {erratum.cls}")]
    block += head
    fields = nodes.field_list(classes=["lk-fields"])
    for label, value in (("Printed", erratum.printed), ("Instead", erratum.corrected), ("Why", erratum.comment)):
        text = short_value(value, limit=1500)
        if text:
            fields += nodes.field("", nodes.field_name(label, label), nodes.field_body("", with_code(text)))
    if erratum.claims:
        links: list[nodes.Node] = []
        for claim_id in erratum.claims:
            links += [nodes.Text(", ")] if links else []
            links.append(claim_link(claim_id))
        body = nodes.field_body("", nodes.paragraph("", "", *links))
        fields += nodes.field("", nodes.field_name("Claims", "Claims"), body)
    block += fields
    return block


def claim_link(claim_id: str) -> nodes.Node:
    """A link to a claim's row; plain text when the ledger has no such claim."""
    if claim_id not in sources.claims():
        return code(claim_id)
    link = nodes.reference("", "", internal=True, refuri=f"{SCHEME}{LEDGER_PAGE}#{claim_anchor(claim_id)}")
    link += code(claim_id)
    return link


def printed_value(claim: Any) -> str:
    """A claim's value on one line: each entry of a list by its name and with its own unit, where it has them."""
    if not isinstance(claim.value, list) or not (isinstance(claim.unit, list) or claim.entries):
        return short_value(claim.value, claim.unit, decimals=claim.decimals)
    units: list[Any] = claim.unit if isinstance(claim.unit, list) else [claim.unit for _ in claim.value]
    names = [f"{name}: " for name in claim.entries] or [""] * len(claim.value)
    parts = (short_value(item, unit, decimals=claim.decimals) for item, unit in zip(claim.value, units))
    return "; ".join(name + part for name, part in zip(names, parts))


def short_value(
    value: Any, unit: str | None = None, *, limit: int = LONGEST_VALUE, decimals: int | None = None, exact: bool = True
) -> str:
    """A value of any shape on one line, cut after `limit` characters; None gives "".

    Args:
        value: number, text, truth value, list or mapping.
        unit: of all its numbers.
        limit: characters.
        decimals: printed decimals, where the numbers do not show them themselves.
        exact: show every digit that was written down; False for what our check calculated.

    >>> short_value({"1 MiB": 50, "4 MiB": [37, 1]}, "buckets")
    '1 MiB: 50; 4 MiB: 37, 1 (buckets)'
    """
    if value is None:
        return ""
    spec = f".{decimals}f" if decimals is not None and decimals >= 0 else ""
    if isinstance(value, Mapping | list | tuple):
        text = _nested(value, spec, exact) + (f" ({unit})" if unit else "")
    else:
        text = show_value(value, spec if isinstance(value, float) else "", unit=unit, exact=exact)
    return text if len(text) <= limit else text[:limit].rsplit(" ", 1)[0] + " …"


def _nested(value: Any, spec: str, exact: bool) -> str:
    if isinstance(value, Mapping):
        return "; ".join(f"{key}: {_nested(item, spec, exact)}" for key, item in value.items())
    if isinstance(value, list | tuple):
        parts = [_nested(item, spec, exact) for item in value]
        return ", ".join(f"[{part}]" if isinstance(item, list | tuple) else part for part, item in zip(parts, value))
    return "unknown" if value is None else show_value(value, spec if isinstance(value, float) else "", exact=exact)


def _section(section: str, source: str) -> str:
    word = {"questions": "question"}.get(source, "section") + ("s" if source == "questions" and "," in section else "")
    return f"{word} {section}" if section and section[0].isdigit() else section

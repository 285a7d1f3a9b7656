"""Text of a role -> Number: what to print, what stands behind it, where its row is."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from typing import Any

from labkit.book import evidence, sources
from labkit.book.calc_call import evaluate
from labkit.book.evidence import Evidence
from labkit.book.values import LookupProblem, is_quantity, show_value, split_format, unit_of_name, walk
from labkit.claims import ORIGINS

LEDGER_PAGE = "book/claim-ledger"
RUNS_PAGE = "book/runs"
EXACT_KINDS = ("structural", "analytic", "numeric")
"""Kinds whose figures a check decides; of the interview text also what a calculation decides, see `_is_exact`."""
FORMULAS_PAGE = "book/formulas"
HARDWARE_PAGE = "book/hardware"


@dataclass(frozen=True, slots=True)
class Number:
    """One number as a page shows it."""

    text: str
    evidence: Evidence
    detail: str
    """One sentence for the tooltip: on what, when, how often."""
    page: str
    anchor: str


def claim_number(text: str) -> Number:
    """`claim-id`, `claim-id:key` or either with ` | format`: the value that the ledger holds.

    The value is ours (here, elsewhere, derived) only where the ledger's check gave this very figure; a claim that is
    proved through another one (a model by its parameter count) is quoted from the source.

    Raises: LookupProblem, one line.
    """
    expression, spec = split_format(text)
    claim_id, _, key = expression.partition(":")
    claim = sources.claims().get(claim_id)
    if claim is None:
        raise LookupProblem(_unknown("claim", claim_id, list(sources.claims())))
    value = walk(claim.value, key)
    if not spec and claim.decimals is not None and claim.decimals >= 0 and isinstance(value, float):
        spec = f".{claim.decimals}f"
    kind, detail = _claim_evidence(claim, key)
    if isinstance(claim.unit, list) and isinstance(value, list) and not key:
        shown = ", ".join(show_value(item, spec, unit=unit, exact=True) for item, unit in zip(value, claim.unit))
    else:
        shown = show_value(value, spec, unit=_unit_at(claim, key), exact=True)
    return Number(shown, kind, detail, LEDGER_PAGE, claim_anchor(claim_id))


def _unit_at(claim: Any, key: str) -> str | None:
    return claim.unit[int(key.split(".")[0])] if isinstance(claim.unit, list) else claim.unit


def _claim_evidence(claim: Any, key: str) -> tuple[Evidence, str]:
    row = sources.verdicts().get(claim.id)
    status = row.status if row else "not_run"
    quoted = _origin(claim)
    if not _is_exact(claim):
        return evidence.QUOTED, f"{quoted}; depends on hardware or version, see the ledger"
    if status in ("verified", "reproduced_elsewhere") and not _is_judged(row, claim, key):
        return evidence.QUOTED, f"{quoted}; our check is about another figure, see the ledger"
    if status == "verified":
        if row and row.record:
            return evidence.HERE, f"{quoted}; the same in run {row.record} on this machine"
        return evidence.DERIVED, f"{quoted}; the same when calculated"
    if status == "reproduced_elsewhere":
        return evidence.ELSEWHERE, f"{quoted}; the same in the recorded run {row.record if row else ''}".rstrip()
    if status == "differs":
        return evidence.QUOTED, f"{quoted}; our check gives another value, see the ledger"
    return evidence.QUOTED, f"{quoted}; not run here"


def _is_exact(claim: Any) -> bool:
    """Whether a check decides the figures: no timing, and in the interview text no statement bound to a version."""
    return claim.kind in EXACT_KINDS or (claim.role in ORIGINS and claim.kind in ("mechanism", "boundary"))


def _is_judged(row: Any, claim: Any, key: str) -> bool:
    """Whether what the check had to give holds the figure that is shown."""
    try:
        judged, shown = walk(row.expected, key), walk(claim.value, key)
    except LookupProblem:
        return False
    return type(judged) is type(shown) and judged == shown


def _origin(claim: Any) -> str:
    title = sources.source_title(claim)
    words = {"rederived": f"rebuilt, {title} lost the formula", "added": f"added by us, not in {title}"}
    return words.get(claim.role, f"as printed in {title}")


_RUN = re.compile(r"(?P<slug>[a-z]\w*)@(?P<where>[A-Za-z0-9][\w.-]*):(?P<path>.+)")


def run_number(text: str) -> Number:
    """`experiment@hardware-tag:result.path`, with `@here` for this machine, either with ` | format`.

    The newest complete record that holds the result is taken. `@here` takes local runs first, then committed records,
    those of a machine like this one before others.

    Raises: LookupProblem, one line.
    """
    expression, spec = split_format(text)
    match = _RUN.fullmatch(expression)
    if match is None:
        raise LookupProblem("expected experiment@hardware:result, for example ddp_buckets@here:bucket_count.25 MiB")
    slug, where, path = match["slug"], match["where"], match["path"]
    known = sources.records(slug)
    if not known:
        raise LookupProblem(_unknown("experiment with a complete record", slug, sources.recorded_experiments()))
    candidates = _candidates(known, where)
    if not candidates:
        tags = sorted({entry.record.hardware_tag for entry in known})
        raise LookupProblem(f"no record of {slug} on {where!r} (there is: {', '.join(tags)})")
    problem: LookupProblem | None = None
    for entry in candidates:
        try:
            value = walk(entry.record.results, path)
            return _number_of_record(entry, value, spec)
        except LookupProblem as error:
            problem = problem or error
    raise problem or LookupProblem(f"no {path!r}")


def _candidates(known: list[sources.Entry], where: str) -> list[sources.Entry]:
    newest_first = sorted(known, key=lambda entry: (entry.record.created_utc, entry.record.run_id), reverse=True)
    if where != "here":
        return [entry for entry in newest_first if entry.record.hardware_tag == where]
    tag = sources.machine_tag()
    return sorted(newest_first, key=lambda entry: (not entry.is_local, entry.record.hardware_tag != tag))


def _number_of_record(entry: sources.Entry, value: Any, spec: str) -> Number:
    record = entry.record
    kind = evidence.HERE if entry.is_local else evidence.ELSEWHERE
    if record.evidence == "simulated":
        kind = evidence.SIMULATED
    detail = f"run {record.run_id} on {record.hardware_tag}, {record.created_utc[:10]}, preset {record.preset}"
    if is_quantity(value):
        ends = [value[name] for name in ("p10", "p90") if value.get(name) is not None]
        spread = [show_value(end, spec, unit=value["unit"]) for end in ends]
        processes = f" from {value['num_processes']} processes" if value.get("num_processes") else ""
        if value.get("n"):
            detail += f"; median of {value['n']} samples{processes}"
        if len(spread) == 2:
            detail += f", p10 to p90 {spread[0]} to {spread[1]}"
    return Number(show_value(value, spec), kind, detail, RUNS_PAGE, run_anchor(record.experiment, record.run_id))


def calc_number(text: str) -> Number:
    """`topic.function(name=value, ...)`, with ` | format`: a formula of labkit.calc, evaluated now.

    Raises: LookupProblem, one line.
    """
    expression, spec = split_format(text)
    value, name = evaluate(expression, hardware=sources.hardware_value)
    # Names end in their unit, so a direct result has one; a part of a result is a bare number.
    unit = unit_of_name(name) if expression.endswith(")") else None
    shown = show_value(value, spec, unit=unit)
    return Number(shown, evidence.DERIVED, f"calculated: {expression}", FORMULAS_PAGE, formula_anchor(name))


def hardware_number(text: str) -> Number:
    """`profile.field`, with ` | format`: a published limit (quoted) or a ceiling measured by us (elsewhere).

    Raises: LookupProblem, one line.
    """
    expression, spec = split_format(text)
    profile, _, name = expression.partition(".")
    field, measured = sources.hardware_field(profile, name)
    kind = evidence.ELSEWHERE if measured else evidence.QUOTED
    note = f"; {field.note}" if field.note else ""
    detail = f"{field.source}, {field.accessed}{note}"
    shown = show_value(field.value, spec, unit=field.unit)
    return Number(shown, kind, detail, HARDWARE_PAGE, hardware_anchor(profile))


def claim_anchor(claim_id: str) -> str:
    """Anchor of a claim's row in the ledger."""
    return f"claim-{claim_id}"


def run_anchor(experiment: str, run_id: str) -> str:
    """Anchor of a record's row in the list of runs."""
    return re.sub(r"[^a-z0-9]+", "-", f"run-{experiment}-{run_id}".lower()).strip("-")


def hardware_anchor(profile: str) -> str:
    """Anchor of a device's sources in the hardware table."""
    return f"hardware-{profile}".replace("_", "-")


def formula_anchor(name: str) -> str:
    """Anchor of `topic.function` in the formula sheet."""
    return "formula-" + re.sub(r"[^a-z0-9]+", "-", name.lower())


def _unknown(kind: str, got: str, known: list[str]) -> str:
    close = difflib.get_close_matches(got, known, n=1)
    return f"unknown {kind} {got!r}" + (f"; did you mean {close[0]!r}?" if close else "")

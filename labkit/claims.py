"""The claim ledger: every figure of the two sources, with the check that proves it, and where each one stands today.

    python -m labkit claims verify --lab ddp_buckets

A claim's kind says how it is proved. Its row has one of four statuses:

- `verified`: a formula or calculator gives the printed value, or a record of this machine does. This machine means a
  local record (`runs/`), or a committed one with the same hardware tag.
- `reproduced_elsewhere`: the newest fitting record that does is committed and of another machine.
- `differs`: it does not come out. `expected` is what the source prints, `seen` what came out.
- `not_run`: nothing to run (advice, provenance, boundaries), no fitting record yet, or a figure that only the source's
  own hardware could give (then a record of other hardware is shown beside it, unjudged).

Rules that keep it honest:

- The newest complete record of status `ok`, all of whose oracles passed, counts; a record of this machine before any
  other. A record that lacks what a check needs, or ran with other settings, is passed over for an older one.
- A printed figure that does not follow from the source's own inputs stays as printed and its row `differs`; `reason`
  names the erratum and `seen` is the recomputed value. Such a claim is never marked must-hold.
- A claim of the interview text says by its role where it comes from: `printed` there, `rederived` (its formula was
  lost and is rebuilt), or `added` by us. A C++ program or child process that this machine cannot run is `not_run`.
- A timing claim is never must-hold. Arithmetic on its printed inputs may be verified; on other hardware only its
  direction is judged, never its size.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.ledger.checks import Outcome, run_arithmetic
from labkit.ledger.load import load_ledger
from labkit.ledger.schema import ORIGINS, CannotRun, Check, Claim, Erratum, Ledger, LedgerError
from labkit.ledger.shelf import Shelf, Standing
from labkit.paths import CLAIMS
from labkit.presets import available_presets, unknown_name

__all__ = [
    "ORIGINS", "Claim", "Erratum", "LedgerError", "Row", "claim_value", "failed", "get_claim", "load_claims",
    "load_errata", "summary", "verify",
]

STATUSES = ("verified", "reproduced_elsewhere", "differs", "not_run")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Where one claim stands; plain JSON values."""

    id: str
    kind: str
    role: str
    status: str
    """One of STATUSES."""
    expected: Any
    """As the source prints it, or what its statement implies."""
    seen: Any
    """What came out; None if nothing was run."""
    tolerance: float | None
    """Largest |seen - expected| that counts as equal; None where the comparison is not a distance."""
    record: str | None
    """Run id of the record that was looked at."""
    reason: str


def load_claims(folder: Path | None = None) -> list[Claim]:
    """All claims, in the order of the files; raises LedgerError if a file is not consistent."""
    return list(load_ledger(folder or CLAIMS).claims.values())


def load_errata(folder: Path | None = None) -> list[Erratum]:
    """All errata of the sources; raises LedgerError if a file is not consistent."""
    return list(load_ledger(folder or CLAIMS).errata.values())


def get_claim(claim_id: str, *, folder: Path | None = None) -> Claim:
    """One claim; raises UsageError with the close name if there is none."""
    claims = load_ledger(folder or CLAIMS).claims
    if claim_id not in claims:
        close = [name for name in claims if name.split("-")[0] == claim_id.split("-")[0]] or list(claims)
        raise unknown_name("claim", claim_id, close[:40])
    return claims[claim_id]


def report_figures(
    wanted: Mapping[str, str | Sequence[str]], *, single: str | None = None
) -> dict[str, dict[str, Any]]:
    """Figures of the report, for the tables of a lab.

    Args:
        wanted: result name of the lab -> the claim that gives its figures by case, or several claims that share them.
        single: case under which a claim's lone figure stands; None: every claim has to have cases.

    Returns: result name -> case -> figure as printed.
    Raises: UsageError for an unknown claim, ValueError for a lone figure without `single`.
    """
    found: dict[str, dict[str, Any]] = {}
    for result, ids in wanted.items():
        for claim_id in (ids,) if isinstance(ids, str) else ids:
            value = get_claim(claim_id).value
            if not isinstance(value, Mapping):
                if single is None:
                    raise ValueError(f"claim {claim_id}: has one figure, expected figures by case")
                value = {single: value}
            found.setdefault(result, {}).update(value)
    return found


def claim_value(claim: Claim, key: str | None = None) -> Any:
    """The printed value of a claim, or one entry of it.

    Args:
        claim: from `get_claim`.
        key: names joined by dots, list positions as numbers; a name may itself hold dots. None: the whole value.

    Returns: number, text, truth value, None, list or mapping; the unit is `claim.unit`.
    Raises: UsageError naming the entries there are.
    """
    return claim.value if not key else _entry(claim, claim.value, key)


def _entry(claim: Claim, value: Any, key: str) -> Any:
    parts = key.split(".")
    for length in range(len(parts), 0, -1):
        head, rest = ".".join(parts[:length]), ".".join(parts[length:])
        found = next((name for name in value if str(name) == head), None) if isinstance(value, Mapping) else None
        if isinstance(value, list) and head.isdigit() and int(head) < len(value):
            found = int(head)
        if found is not None:
            return _entry(claim, value[found], rest) if rest else value[found]
    known = [str(name) for name in (value if isinstance(value, Mapping) else range(len(value)))] if isinstance(
        value, Mapping | list) else []
    raise unknown_name(f"entry of {claim.id}", key, known)


def verify(
    *, lab: str | None = None, roots: Sequence[Path] | None = None, tag: str | None = None, folder: Path | None = None
) -> list[Row]:
    """Check every claim that can be checked here.

    Args:
        lab: only the claims of this experiment (a slug).
        roots: folder of local runs, then folders of committed ones; None: `runs/` and `data/runs/`.
        tag: hardware tag of this machine; None: detect it.
        folder: the ledger's folder; None: `data/claims`.

    Returns: one row a claim, in the order of the files.
    Raises: UsageError for an unknown lab, LedgerError for a file that is not consistent.
    """
    ledger = load_ledger(folder or CLAIMS)
    labs = sorted({claim.lab for claim in ledger.claims.values() if claim.lab})
    if lab is not None and lab not in labs and not available_presets(lab):  # a lab may have no claim in the ledger
        raise unknown_name("lab", lab, labs)
    shelf = Shelf(ledger, roots=roots, tag=tag)
    return [_row(claim, ledger, shelf) for claim in ledger.claims.values() if lab is None or claim.lab == lab]


def summary(rows: Iterable[Row]) -> dict[str, Any]:
    """Counts of rows: {"claims", "by_status": {status: n}, "by_kind": {kind: {status: n}}, "by_role": likewise}."""
    rows = list(rows)
    kinds, roles = (sorted({getattr(row, name) for row in rows}) for name in ("kind", "role"))
    return {
        "claims": len(rows),
        "by_status": {status: sum(row.status == status for row in rows) for status in STATUSES},
        "by_kind": {kind: dict(Counter(row.status for row in rows if row.kind == kind)) for kind in kinds},
        "by_role": {role: dict(Counter(row.status for row in rows if row.role == role)) for role in roles},
    }


def failed(rows: Iterable[Row], *, folder: Path | None = None) -> list[Row]:
    """Rows that differ although their claim is marked must-hold: the reason for exit code 1."""
    claims = load_ledger(folder or CLAIMS).claims
    return [row for row in rows if row.status == "differs" and claims[row.id].must_hold]


def _row(claim: Claim, ledger: Ledger, shelf: Shelf) -> Row:
    check = claim.check
    if check.by == "read":
        return _make(claim, "not_run", reason=check.reason)
    if check.by == "record":
        return _from_record(claim, check, shelf.find(claim, check))
    try:
        outcome = run_arithmetic(claim, check, ledger)
    except CannotRun as missing:
        return _make(claim, "not_run", reason=f"{check.needs or check.program}: {missing}")
    row = _from_arithmetic(claim, check, outcome, ledger)
    if claim.measure is None:
        return row
    return _with_measure(claim, row, claim.measure, shelf.find(claim, claim.measure))


def _make(claim: Claim, status: str, *, reason: str, outcome: Outcome | None = None, record: str | None = None) -> Row:
    return Row(
        id=claim.id, kind=claim.kind, role=claim.role, status=status, reason=reason, record=record,
        expected=outcome.expected if outcome else claim.value, seen=outcome.seen if outcome else None,
        tolerance=outcome.tolerance if outcome else None,
    )


def _from_arithmetic(claim: Claim, check: Check, outcome: Outcome, ledger: Ledger) -> Row:
    if not outcome.holds:
        return _make(claim, "differs", outcome=outcome, reason=_difference(claim, check, outcome, ledger))
    if check.by == "program":
        reason = f"computed by {check.program}" if not check.needs else f"{check.needs}: comes out as stated"
    elif check.by == "calc":
        calls = dict.fromkeys(item.call for item in check.items if item.call) if check.items else [check.call]
        reason = f"calculated by {', '.join(calls)}"
        reason += " from the source's own figures" if claim.kind == "timing" else ""
    elif claim.kind == "structural" and claim.measure is not None:
        reason = "predicted from the settings"
    else:
        reason = "follows from the source's own figures"
    if claim.kind == "timing":
        reason += ", which are measured there, not here"
    return _make(claim, "verified", outcome=outcome, reason=reason)


def _difference(claim: Claim, check: Check, outcome: Outcome, ledger: Ledger) -> str:
    where = f" at {', '.join(outcome.wrong)}" if any(outcome.wrong) else ""
    if outcome.corrected_holds:
        named = ", ".join(f"{name} ({ledger.errata[name].cls})" for name in claim.errata)
        what = "printed value is" if check.expect is None else "statement has"
        return f"{what} erratum {named}{where}; seen is the recomputed value"
    return f"recomputed value differs{where}"


def _from_record(claim: Claim, check: Check, standing: Standing) -> Row:
    if standing.outcome is None:
        return _make(claim, "not_run", reason=_needs(check, standing))
    run_id, outcome = standing.run_id, standing.outcome
    if check.compare == "beside":
        reason = f"only the source's hardware can give this figure; {standing.tag} is shown beside it"
        return _make(claim, "not_run", outcome=outcome, record=run_id, reason=reason)
    if outcome.holds:
        status = "verified" if standing.here else "reproduced_elsewhere"
        judged = f"same direction on {standing.tag}" if outcome.detail else f"{check.experiment} on {standing.tag}"
        return _make(claim, status, outcome=outcome, record=run_id, reason=judged)
    where = f" at {', '.join(outcome.wrong)}" if any(outcome.wrong) else ""
    reason = {
        "opposite": f"opposite direction on {standing.tag}",
        "unresolved": f"no direction on {standing.tag}: p10-p90 reaches over {check.compare.split()[-1]}",
    }.get(outcome.detail, f"{check.experiment} on {standing.tag} differs{where}")
    return _make(claim, "differs", outcome=outcome, record=run_id, reason=reason)


def _needs(check: Check, standing: Standing) -> str:
    needs = f"; needs {check.needs}" if check.needs else ""
    return f"{standing.missing}{needs}"


def _with_measure(claim: Claim, row: Row, check: Check, standing: Standing) -> Row:
    """Put a record's answer to the same question on top of the arithmetic."""
    if standing.outcome is None:
        return _make_again(row, reason=f"{row.reason}; {_needs(check, standing)}")
    measured = _from_record(claim, check, standing)
    if check.compare == "beside":
        text = f"{row.reason}; {standing.tag} measured {_short(standing.outcome.seen)}"
        return _make_again(row, reason=text, record=measured.record)
    if row.status == "differs":
        return _make_again(row, reason=f"{row.reason}; {measured.reason}", record=measured.record)
    return _make_again(measured, reason=f"{row.reason}; {measured.reason}")


def _make_again(row: Row, *, reason: str, record: str | None = None) -> Row:
    return Row(
        id=row.id, kind=row.kind, role=row.role, status=row.status, expected=row.expected, seen=row.seen,
        tolerance=row.tolerance, record=record or row.record, reason=reason,
    )


def _short(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {_short(item)}" for key, item in value.items())
    return f"{value:.4g}" if isinstance(value, float) else str(value)

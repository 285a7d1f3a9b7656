"""Everything the pages are made from, read once a build: ledger, verdicts, records, hardware.

Caches live for one build: `on_builder_inited` clears them, so that a second build in one process sees new files.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from labkit import paths
from labkit.book.values import LookupProblem
from labkit.claims import Claim, Erratum, LedgerError, Row, load_claims, load_errata, verify
from labkit.hardware import Field, load_profile
from labkit.records import RecordError, RunRecord, list_runs, load_record

SOURCE_TITLES = {"v100_report": "the 8x V100 report", "questions": "the interview text"}


@dataclass(frozen=True, slots=True)
class Entry:
    """A complete record and where it lies."""

    record: RunRecord
    run_dir: Path
    is_local: bool
    """In runs/ (made on this machine), not in data/runs/."""


@lru_cache(maxsize=1)
def _ledger() -> tuple[dict[str, Claim], list[Erratum], dict[str, Row]] | str:
    """Claims, errata and verdicts, or why the ledger cannot be used (kept, so that it is read once either way)."""
    try:
        claims_by_id = {claim.id: claim for claim in load_claims()}
        return claims_by_id, load_errata(), {row.id: row for row in verify()}
    except LedgerError as error:
        return f"the ledger cannot be used: {error}"


def _usable() -> tuple[dict[str, Claim], list[Erratum], dict[str, Row]]:
    ledger = _ledger()
    if isinstance(ledger, str):
        raise LookupProblem(ledger)
    return ledger


def claims() -> dict[str, Claim]:
    """Claim id -> claim, in the order of the files; raises LookupProblem when the ledger is not consistent."""
    return _usable()[0]


def errata() -> list[Erratum]:
    """Errata of the sources, in their order; raises LookupProblem when the ledger is not consistent."""
    return _usable()[1]


def verdicts() -> dict[str, Row]:
    """Claim id -> row of labkit.claims.verify(); raises LookupProblem when the ledger is not consistent."""
    return _usable()[2]


@lru_cache(maxsize=1)
def all_entries() -> list[Entry]:
    """Every complete record, oldest first; incomplete or unreadable run directories are left out."""
    found = []
    for root, is_local in ((paths.runs_root(), True), (paths.RECORDS, False)):
        for run_dir in list_runs(roots=[root]):
            try:
                found.append(Entry(load_record(run_dir), run_dir, is_local))
            except RecordError:
                continue
    return sorted(found, key=lambda entry: (entry.record.created_utc, entry.record.run_id))


def records(experiment: str) -> list[Entry]:
    """Records of one experiment that pages may quote: complete and with every oracle passed."""
    return [e for e in all_entries() if e.record.experiment == experiment and e.record.status == "ok"]


def recorded_experiments() -> list[str]:
    """Experiments with at least one record that pages may quote."""
    return sorted({entry.record.experiment for entry in all_entries() if entry.record.status == "ok"})


@lru_cache(maxsize=1)
def machine_tag() -> str:
    """Hardware tag of the machine that builds the book."""
    from labkit.machine import detect

    return detect().tag


def hardware_value(profile: str, field: str) -> Any:
    """One number of a hardware profile.

    Raises: LookupProblem when the profile or the field is unknown, or its value is not known.
    """
    return hardware_field(profile, field)[0].value


def hardware_field(profile: str, field: str) -> tuple[Field, bool]:
    """A field of a hardware profile that has a value, and whether we measured it.

    Raises: LookupProblem when the profile or the field is unknown, or its value is not known.
    """
    try:
        found = load_profile(profile)
        found.value(field)
    except ValueError as error:
        raise LookupProblem(str(error)) from None
    measured = field in found.measured
    entry = found.measured[field] if measured else found.fields[field]
    if entry.value is None:
        raise LookupProblem(f"{profile}: {field} is not known")
    return entry, measured


def source_title(claim: Claim) -> str:
    """What a claim was printed in, in a few words."""
    return SOURCE_TITLES.get(claim.ledger, claim.ledger)


def clear() -> None:
    """Forget everything read so far."""
    for cached in (_ledger, all_entries, machine_tag):
        cached.cache_clear()


def on_builder_inited(app: Any) -> None:
    """Start each build from what is on disk now."""
    clear()

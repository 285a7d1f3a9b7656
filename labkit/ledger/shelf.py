"""Which run record answers a check: the newest good one of this machine, else the newest good one of another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from labkit.ledger.checks import Outcome, run_on_record
from labkit.ledger.expression import ExpressionError
from labkit.ledger.schema import Check, Claim, Ledger
from labkit.paths import RECORDS, runs_root
from labkit.records import RecordError, RunRecord, list_runs, load_record


@dataclass(frozen=True, slots=True)
class Standing:
    """What the records say about one check."""

    outcome: Outcome | None = None
    """None when no record fits."""
    run_id: str | None = None
    tag: str = ""
    here: bool = False
    missing: str = ""
    """Why no record fits; one phrase."""


class Shelf:
    """Records of one verification, each file read at most once."""

    def __init__(self, ledger: Ledger, *, roots: Sequence[Path] | None = None, tag: str | None = None) -> None:
        self._ledger = ledger
        self._roots = tuple(roots) if roots is not None else (runs_root(), RECORDS)
        self._tag = tag
        self._loaded: dict[Path, RunRecord | None] = {}
        self._listed: dict[str, list[tuple[Path, bool]]] = {}

    @property
    def tag(self) -> str:
        """Hardware tag of this machine; detected only when a committed record has to be told from others."""
        if self._tag is None:
            from labkit import machine

            self._tag = machine.detect().tag
        return self._tag

    def find(self, claim: Claim, check: Check) -> Standing:
        """Judge a check by the first record that holds what it needs: this machine's newest first, then the others'."""
        why, where = "", " on a GPU" if check.hardware == "gpu" else ""
        for record, here in self._candidates(check.experiment):
            if where and not record.environment.get("hardware", {}).get("gpus"):
                continue
            problem = self._unfit(check, record)
            if problem is None:
                try:
                    outcome = run_on_record(claim, check, self._ledger, record)
                    return Standing(outcome=outcome, run_id=record.run_id, tag=record.hardware_tag, here=here)
                except ExpressionError as error:  # a result is missing, unknown, or zero where it divides
                    problem = str(error)
            why = why or f"no fitting record of {check.experiment}: {record.run_id}: {problem}"
        num_bad = sum(self._load(path) is None for path, _ in self._listed[check.experiment])
        bad = f" ({num_bad} failed, incomplete, changed or simulated)" if num_bad else ""
        return Standing(missing=why or f"no record of {check.experiment}{where} yet{bad}")

    def _candidates(self, experiment: str) -> Iterator[tuple[RunRecord, bool]]:
        if experiment not in self._listed:
            local, *committed = self._roots
            found = [(path, True) for path in list_runs(experiment, roots=[local])]
            for path in list_runs(experiment, roots=committed):
                record = self._load(path)
                found.append((path, record is not None and record.hardware_tag == self.tag))
            # Newest last by run id, which starts with the UTC time; then this machine's records in front.
            found.sort(key=lambda entry: entry[0].name, reverse=True)
            found.sort(key=lambda entry: not entry[1])
            self._listed[experiment] = found
        for path, here in self._listed[experiment]:
            record = self._load(path)
            if record is not None:
                yield record, here

    def _load(self, path: Path) -> RunRecord | None:
        """A record that may prove something: complete, unchanged, measured, and ok, which a failed oracle excludes."""
        if path not in self._loaded:
            try:
                record = load_record(path)
            except RecordError:
                record = None
            good = record is not None and record.status == "ok" and record.evidence == "measured"
            self._loaded[path] = record if good and record.experiment == path.parent.name else None  # type: ignore[union-attr]
        return self._loaded[path]

    def _unfit(self, check: Check, record: RunRecord) -> str | None:
        """Why a record does not count for a check; None if it does."""
        rules = self._ledger.experiments.get(check.experiment, {})
        for name, value in {**rules.get("params", {}), **check.params}.items():
            if record.params.get(name) != value:
                return f"run with {name}={record.params.get(name)!r}, the claim needs {value!r}"
        for name, least in rules.get("at_least", {}).items():
            if not isinstance(record.params.get(name), int | float) or record.params[name] < least:
                return f"run with {name}={record.params.get(name)!r}, the claim needs at least {least!r}"
        return None

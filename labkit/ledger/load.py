"""Read data/claims and check every line of it: what loads is consistent."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from labkit.ledger.checks import CALLABLE_PACKAGES, expected_of
from labkit.ledger.compare import is_number, leaves, parse_rule
from labkit.ledger.expression import LOOKUPS, ExpressionError, lookups_in, names_in, parse
from labkit.ledger.schema import (
    EVIDENCE,
    FIELDS_OF_CHECK,
    FIELDS_OF_ITEM,
    KINDS,
    ROLES,
    Check,
    Claim,
    Erratum,
    Ledger,
    LedgerError,
)
from labkit.ledger.scope import claim_entry, is_per_key, profile_entry

ERRATA_FILE = "errata.yaml"
LEDGER_KEYS = {"report", "profiles", "experiments", "claims"}
CLAIM_FIELDS = {name for name in Claim.__dataclass_fields__ if name != "ledger"}
REQUIRED = ("id", "section", "statement", "kind", "role", "value", "unit", "check")


def load_ledger(folder: Path) -> Ledger:
    """Every ledger file of a folder, validated; parsed once for as long as no file changes.

    Raises: LedgerError, one line that names the file and the claim.
    """
    files = sorted(folder.glob("*.yaml"))
    stamps = tuple((path.name, path.stat().st_mtime_ns, path.stat().st_size) for path in files)
    return _load(folder, stamps)


@lru_cache(maxsize=8)
def _load(folder: Path, stamps: tuple[Any, ...]) -> Ledger:
    claims: dict[str, Claim] = {}
    errata: dict[str, Erratum] = {}
    profiles: dict[str, Any] = {}
    experiments: dict[str, Any] = {}
    reports: dict[str, Any] = {}
    for name, *_ in stamps:
        data = _read(folder / name)
        if name == ERRATA_FILE:
            for erratum in _errata(name, data):
                _add(errata, erratum.id, erratum, name)
            continue
        _only(data, LEDGER_KEYS, name, "the file")
        reports[Path(name).stem] = data.get("report", {})
        for profile, entry in (data.get("profiles") or {}).items():
            _add(profiles, profile, entry, name)
        for slug, entry in (data.get("experiments") or {}).items():
            _only(entry, {"params", "at_least"}, name, f"experiments: {slug}")
            _add(experiments, slug, entry, name)
        for raw in data.get("claims") or []:
            claim = _claim(name, raw)
            _add(claims, claim.id, claim, name)
    ledger = Ledger(claims=claims, errata=errata, profiles=profiles, experiments=experiments, reports=reports)
    _check_references(ledger)
    return ledger


def _read(path: Path) -> dict[str, Any]:
    try:
        data = yaml.load(path.read_text(encoding="utf-8"), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (OSError, yaml.YAMLError) as error:
        raise LedgerError(f"{path.name}: cannot be read: {' '.join(str(error).split())}") from None
    if not isinstance(data, dict):
        raise LedgerError(f"{path.name}: expected a mapping, got {type(data).__name__}")
    return data


def _only(data: Mapping[str, Any], known: set[str], name: str, where: str) -> None:
    unknown = sorted(set(data) - known)
    if unknown:
        raise LedgerError(f"{name}: {where}: unknown field {unknown[0]!r} (known: {', '.join(sorted(known))})")


def _add(found: dict[str, Any], key: str, entry: Any, name: str) -> None:
    if key in found:
        raise LedgerError(f"{name}: {key}: this id appears twice")
    found[key] = entry


def _errata(name: str, data: Mapping[str, Any]) -> Iterator[Erratum]:
    _only(data, {"errata"}, name, "the file")
    fields = set(Erratum.__dataclass_fields__)
    for raw in data.get("errata") or []:
        where = str(raw.get("id", "an erratum without id"))
        _only(raw, fields, name, where)
        missing = sorted(fields - set(raw))
        if missing:
            raise LedgerError(f"{name}: {where}: field {missing[0]!r} is missing")
        yield Erratum(**{**raw, "claims": tuple(raw["claims"])})


def _claim(name: str, raw: Any) -> Claim:
    where = str(raw.get("id", "a claim without id")) if isinstance(raw, dict) else "a claim"
    if not isinstance(raw, dict):
        raise LedgerError(f"{name}: {where}: expected a mapping, got {type(raw).__name__}")
    _only(raw, CLAIM_FIELDS, name, where)
    for field in REQUIRED:
        if field not in raw:
            raise LedgerError(f"{name}: {where}: field {field!r} is missing")
    for field, known in (("kind", KINDS), ("role", ROLES), ("evidence", EVIDENCE)):
        if raw.get(field, known[0]) not in known:
            raise LedgerError(f"{name}: {where}: {field}={raw[field]!r}, expected one of {', '.join(known)}")
    for field in ("id", "section", "statement"):
        if not isinstance(raw[field], str) or not raw[field]:
            raise LedgerError(f"{name}: {where}: {field}={raw[field]!r}, expected text")
    lists = {field: tuple(raw.get(field, ())) for field in ("errata", "also_in", "entries")}
    checks = {field: _check(name, where, raw[field]) for field in ("check", "measure") if field in raw}
    claim = Claim(**{**raw, **lists, **checks, "ledger": Path(name).stem})
    problem = _problem(claim)
    if problem:
        raise LedgerError(f"{name}: {where}: {problem}")
    return claim


def _check(name: str, where: str, raw: Any) -> Check:
    by = raw.get("by") if isinstance(raw, dict) else None
    if by not in FIELDS_OF_CHECK:
        raise LedgerError(f"{name}: {where}: check by {by!r}, expected one of {', '.join(FIELDS_OF_CHECK)}")
    _only(raw, FIELDS_OF_CHECK[by], name, f"{where}: check by {by}")
    items = []
    for item in raw.get("items", ()):
        if not isinstance(item, dict):
            raise LedgerError(f"{name}: {where}: items: expected mappings, got {item!r}")
        _only(item, FIELDS_OF_ITEM, name, f"{where}: items")
        items.append(Check(by="calc" if "call" in item else "formula", **item))
    return Check(**{**raw, "items": tuple(items)})


def _problem(claim: Claim) -> str | None:
    """What is wrong with one claim on its own; None if nothing."""
    first = claim.check
    if claim.must_hold:
        if first.by == "read" or first.compare == "beside":
            return "must_hold, but its check proves nothing"
        if claim.kind == "timing":
            return "must_hold, but a timing depends on the hardware"
        if first.corrected is not None:
            return "must_hold, but its printed value is an erratum"
    if first.corrected is not None and not claim.errata:
        return "corrected without an erratum"
    if claim.measure is not None and (claim.measure.by != "record" or first.by not in ("formula", "calc")):
        return "measure is the record check of a claim whose check is formula or calc"
    for check in (first, claim.measure):
        problem = _check_problem(claim, check) if check is not None else None
        if problem:
            return problem
    for field, found in (("unit", claim.unit), ("entries", claim.entries)):
        fits = isinstance(claim.value, list) and isinstance(found, list | tuple) and len(claim.value) == len(found)
        if isinstance(found, list | tuple) and found and not fits:
            return f"{field} has {len(found)} entries, value={claim.value!r} does not"
    return None


def _check_problem(claim: Claim, check: Check) -> str | None:
    if check.by == "read":
        return None if check.reason else "read without a reason"
    if check.by == "formula" and check.expr is None:
        return "formula without expr"
    if check.by == "program" and not (check.program.isidentifier() and not check.program.startswith("_")):
        return f"program={check.program!r}, expected a function of labkit.ledger.question_checks"
    if check.items:
        problem = _items_problem(check)
        if problem:
            return problem
    elif check.by == "calc" and not _is_call(check.call):
        return f"call={check.call!r}, expected labkit.calc.<topic>:<function>"
    if check.by == "record" and not (check.experiment and (check.result or check.expr is not None)):
        return "record without experiment, or without result and expr"
    if check.hardware not in ("any", "gpu"):
        return f"hardware={check.hardware!r}, expected any or gpu"
    expected = expected_of(claim, check)
    if isinstance(check.compare, list):
        return _list_problem(check.compare, expected)
    try:
        rule = parse_rule(check.compare)
    except ValueError as error:
        return str(error)
    if rule.mode == "beside":
        return None if check.by == "record" else "compare=beside is for records"
    judged = [leaf for _, leaf in leaves(expected) if leaf is not None]
    if rule.mode == "direction":
        judged = [leaf for leaf in judged if is_number(leaf) and leaf != rule.amount]
    if not judged:
        return "nothing to compare with: neither value nor expect holds anything"
    if any(isinstance(leaf, float) and not math.isfinite(leaf) for leaf in judged):
        return "a value that is not finite"
    return None


def _is_call(text: str) -> bool:
    return text.startswith(CALLABLE_PACKAGES) and ":" in text


def _items_problem(check: Check) -> str | None:
    if check.call or check.part or check.expr is not None or check.args or check.inputs:
        return "items stand alone: call, part, args, expr and inputs belong into them"
    for item in check.items:
        if item.by == "calc" and not _is_call(item.call):
            return f"call={item.call!r}, expected labkit.calc.<topic>:<function>"
        if item.by == "formula" and not isinstance(item.expr, str):
            return "an item without call and expr"
    return None


def _list_problem(rules: list[Any], expected: Any) -> str | None:
    """What is wrong with a rule for each entry of a list."""
    if not isinstance(expected, list) or len(expected) != len(rules):
        return f"compare has {len(rules)} rules, expected one for each entry of a list"
    try:
        wrong = [text for text in rules if parse_rule(text).mode not in ("exact", "dp", "sig", "rel")]
    except ValueError as error:
        return str(error)
    return f"compare={wrong[0]!r} cannot stand in a list" if wrong else None


def _check_references(ledger: Ledger) -> None:
    """Every id that a claim, an expression or an erratum names exists, and counts are what the report says."""
    for claim in ledger.claims.values():
        where = f"{claim.ledger}.yaml: {claim.id}"
        for erratum in claim.errata:
            if erratum not in ledger.errata:
                raise LedgerError(f"{where}: unknown erratum {erratum!r}")
        profile = claim.settings.get("profile")
        if profile is not None and profile not in ledger.profiles:
            raise LedgerError(f"{where}: unknown profile {profile!r}")
        for check in (claim.check, claim.measure):
            if check is not None:
                _check_expressions(ledger, check, where)
    for erratum in ledger.errata.values():
        if erratum.seed in ledger.reports:  # a ledger that is not here yet cannot be looked into
            for claim_id in erratum.claims:
                if claim_id not in ledger.claims:
                    raise LedgerError(f"{ERRATA_FILE}: {erratum.id}: unknown claim {claim_id!r}")
    _check_counts(ledger)


def _check_expressions(ledger: Ledger, check: Check, where: str) -> None:
    for item in check.items:
        _check_expressions(ledger, item, where)
    allowed = {"key", "out", *check.inputs} if check.by == "calc" else {"key", *check.inputs}
    lookups = set(LOOKUPS) if check.by == "record" else {"ref", "refs", "setting"}
    try:
        for text in _texts(check):
            tree = parse(text)
            unknown = sorted(names_in(tree) - allowed)
            if unknown:
                raise ExpressionError(f"{text!r}: unknown name {unknown[0]!r}")
            for function, arguments in lookups_in(tree):
                if function not in lookups:
                    raise ExpressionError(f"{text!r}: {function}() needs a record")
                _check_lookup(ledger, function, arguments)
        is_per_key(check)
    except ExpressionError as error:
        raise LedgerError(f"{where}: {error}") from None


def _texts(check: Check) -> Iterator[str]:
    yield from (leaf for _, leaf in leaves(check.expr) if isinstance(leaf, str))
    yield from (value[1:] for value in check.args.values() if isinstance(value, str) and value.startswith("="))


def _check_lookup(ledger: Ledger, function: str, arguments: list[Any]) -> None:
    if not arguments or not isinstance(arguments[0], str):
        raise ExpressionError(f"{function}(): expected a name in quotes first")
    owner, path = arguments[0], tuple(arguments[1:])
    path = path[: path.index(...)] if ... in path else path
    if function in ("ref", "refs"):
        if owner not in ledger.claims:
            raise ExpressionError(f"{function}({owner!r}): unknown claim")
        claim_entry(ledger.claims[owner], path)
    elif function == "setting":
        profile_entry(ledger, owner, path)


def _check_counts(ledger: Ledger) -> None:
    for name, report in ledger.reports.items():
        claims = [claim for claim in ledger.claims.values() if claim.ledger == name]
        counts = report.get("counts", {})
        found = {
            "claims": len(claims),
            "by_kind": dict(Counter(claim.kind for claim in claims)),
            "by_role": dict(Counter(claim.role for claim in claims)),
        }
        for key, expected in counts.items():
            if found.get(key) != expected:
                raise LedgerError(f"{name}.yaml: report.counts.{key} says {expected}, the file holds {found.get(key)}")

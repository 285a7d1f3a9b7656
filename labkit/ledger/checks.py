"""Run one check of one claim: arithmetic, a call into labkit.calc, or a look at one run record."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from labkit.ledger.compare import (
    MODES_WITH_RANGE,
    Rule,
    allowance,
    at,
    direction,
    disagreements,
    is_number,
    leaves,
    parse_rule,
    printed_decimals,
)
from labkit.ledger.expression import ExpressionError
from labkit.ledger.schema import CannotRun, Check, Claim, Ledger, LedgerError
from labkit.ledger.scope import Scope, as_seen, evaluate_check, inputs_at, is_per_key, per_key, plain, record_entry
from labkit.records import RunRecord

CALLABLE_PACKAGES = ("labkit.calc.", "labkit.analyze.")
"""Packages that `call` may name: pure functions of our own."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one check gave."""

    holds: bool
    expected: Any
    seen: Any
    """Plain JSON value."""
    tolerance: float | None
    wrong: tuple[str, ...] = ()
    """Entries that do not agree, as text; one empty text for a scalar."""
    corrected_holds: bool = False
    """The values that did come out are the corrected ones of a listed erratum."""
    detail: str = ""


def run_arithmetic(claim: Claim, check: Check, ledger: Ledger) -> Outcome:
    """Run a `formula`, `calc` or `program` check.

    Raises: LedgerError when it cannot be evaluated: a mistake in the ledger, not a claim that differs. CannotRun when
        a program needs something that this machine lacks.
    """
    scope = Scope(ledger, needs_range=_needs_range(check))
    expected = expected_of(claim, check)
    try:
        if check.items:
            seen: Any = [_one(item, None, scope) for item in check.items]
        else:
            seen = _one(check, expected, scope)
    except ExpressionError as error:
        raise LedgerError(f"{claim.ledger}.yaml: {claim.id}: {error}") from None
    return judge(claim, check, expected, seen)


def run_on_record(claim: Claim, check: Check, ledger: Ledger, record: RunRecord) -> Outcome:
    """Run a `record` check on one record.

    Raises: ExpressionError when the record does not hold what the check needs, or it cannot be evaluated on it; the
        caller then tries an older one.
    """
    expected = expected_of(claim, check)
    if check.expr is not None:
        scope = Scope(ledger, record, needs_range=_needs_range(check))
        return judge(claim, check, expected, evaluate_check(check, expected, scope))
    found = as_seen(record_entry(record, (check.result,) if check.key is None else (check.result, check.key)))
    if isinstance(expected, Mapping) and isinstance(found, Mapping):
        for key in expected:
            record_entry(record, (check.result, *(() if check.key is None else (check.key,)), key))
    return judge(claim, check, expected, found)


def _one(check: Check, expected: Any, scope: Scope) -> Any:
    if check.by == "formula":
        return evaluate_check(check, expected, scope)
    return _program(check) if check.by == "program" else _call(check, expected, scope)


def _program(check: Check) -> Any:
    """What a function of labkit.ledger.question_checks returns."""
    programs = importlib.import_module("labkit.ledger.question_checks")
    function = getattr(programs, check.program, None)
    # Imported names are not programs: only what the module itself defines.
    if not callable(function) or getattr(function, "__module__", "") != programs.__name__:
        raise ExpressionError(f"program={check.program!r}: not a function of {programs.__name__}")
    try:
        return as_seen(function(**check.args))
    except CannotRun:
        raise
    except (TypeError, ValueError, ArithmeticError) as error:
        raise ExpressionError(f"{check.program}: {error}") from None


def _needs_range(check: Check) -> bool:
    return not isinstance(check.compare, list) and parse_rule(check.compare).mode in MODES_WITH_RANGE


def expected_of(claim: Claim, check: Check) -> Any:
    """What a check must give: its own `expect`, else the claim's value, cut to the entries that are recomputed."""
    if check.expect is not None:
        return check.expect
    if isinstance(check.expr, Mapping) and isinstance(claim.value, Mapping):
        return _cut(claim.value, check.expr)
    return claim.value


def _cut(value: Any, shape: Any) -> Any:
    if isinstance(shape, Mapping) and isinstance(value, Mapping):
        return {key: _cut(value[key], item) for key, item in shape.items() if key in value}
    return value


def judge(claim: Claim, check: Check, expected: Any, seen: Any) -> Outcome:
    """Compare a tree of Seen with the expected value by the check's rule."""
    decimals = decimals_of(claim)
    if isinstance(check.compare, list):
        return _judge_list(check, expected, seen, decimals)
    rule = parse_rule(check.compare)
    wrong = disagreements(expected, seen, rule, decimals)
    corrected = False
    if check.corrected is not None and wrong:
        # Corrected values are exact to the digits they are written with; what agreed before must still agree.
        exact = Rule("dp", printed_decimals(check.corrected))
        corrected = not disagreements(check.corrected, seen, exact, decimals)
    return Outcome(
        holds=not wrong, expected=expected, seen=plain(_like(expected, seen)),
        tolerance=_tolerance(expected, rule, decimals),
        wrong=tuple(".".join(map(str, path)) for path in wrong), corrected_holds=corrected,
        detail=_directions(expected, seen, rule) if rule.mode == "direction" else "",
    )


def _judge_list(check: Check, expected: list[Any], seen: Any, decimals: int) -> Outcome:
    """Compare entry by entry, each by its own rule."""
    if not isinstance(seen, list) or len(seen) != len(expected):
        wrong = [str(i) for i in range(len(expected))]
    else:
        wrong = [
            ".".join(map(str, (i, *path)))
            for i, (text, want, found) in enumerate(zip(check.compare, expected, seen))
            for path in disagreements(want, found, parse_rule(text), decimals)
        ]
    return Outcome(holds=not wrong, expected=expected, seen=plain(seen), tolerance=None, wrong=tuple(wrong))


def _like(expected: Any, seen: Any) -> Any:
    """The entries of `seen` that the claim speaks of, in its order; all of them where it speaks of none."""
    if not isinstance(expected, Mapping) or not isinstance(seen, Mapping):
        return seen
    return {key: _like(item, seen[key]) for key, item in expected.items() if key in seen}


def decimals_of(claim: Claim) -> int:
    """Printed decimals of a claim's numbers."""
    return printed_decimals(claim.value) if claim.decimals is None else claim.decimals


def _tolerance(expected: Any, rule: Rule, decimals: int) -> float | None:
    """The allowed distance, where it is one number for the whole value."""
    found = {allowance(leaf, rule, decimals) for _, leaf in leaves(expected) if is_number(leaf)}
    return found.pop() if len(found) == 1 else (0.0 if rule.mode == "exact" else None)


def _directions(expected: Any, seen: Any, rule: Rule) -> str:
    """How the direction came out, worst first: `opposite`, `unresolved` or `same`."""
    answers = set()
    for path, leaf in leaves(expected):
        if is_number(leaf):
            try:
                answers.add(direction(leaf, at(seen, path), rule.amount))
            except (KeyError, IndexError):
                answers.add("unresolved")
    return next((word for word in ("opposite", "unresolved") if word in answers), "same")


def _call(check: Check, expected: Any, scope: Scope) -> Any:
    """Call the calculator, once, or once for each key of the value."""
    function = resolve_call(check.call)

    def answer(key: Any) -> Any:
        names = inputs_at(check, key)

        def compute() -> Any:
            args = {
                name: scope.value(value[1:], names) if isinstance(value, str) and value.startswith("=") else value
                for name, value in check.args.items()
            }
            try:
                out = function(**args)
            except (TypeError, ValueError, ArithmeticError) as error:
                raise ExpressionError(f"{check.call}: {error}") from None
            out = out.tolist() if hasattr(out, "tolist") else out  # numpy to plain values
            out = _part(out, check) if check.part else out
            return out if check.expr is None else scope.value(check.expr, {**names, "out": out})

        return scope.explore(compute)

    return per_key(expected, answer) if is_per_key(check) and isinstance(expected, Mapping | list) else answer(None)


def _part(out: Any, check: Check) -> Any:
    for key in check.part if isinstance(check.part, list) else [check.part]:
        in_list = isinstance(out, list | tuple) and isinstance(key, int) and 0 <= key < len(out)
        if not in_list and not (isinstance(out, Mapping) and key in out):
            known = ", ".join(map(str, out)) if isinstance(out, Mapping) else f"a {type(out).__name__}"
            raise ExpressionError(f"{check.call}: its answer has no {key!r} (there is: {known})")
        out = out[key]
    return out


def resolve_call(text: str) -> Any:
    """The function that `labkit.calc.<topic>:<function>` names; raises ExpressionError."""
    module_name, _, name = text.partition(":")
    if not module_name.startswith(CALLABLE_PACKAGES) or not name or name.startswith("_"):
        raise ExpressionError(f"call={text!r}: expected labkit.calc.<topic>:<function>")
    try:
        function = getattr(importlib.import_module(module_name), name)
    except (ImportError, AttributeError) as error:
        raise ExpressionError(f"call={text!r}: {error}") from None
    if not callable(function):
        raise ExpressionError(f"call={text!r}: not a function")
    return function

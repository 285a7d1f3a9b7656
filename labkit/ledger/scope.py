"""What an expression may look up, and how far each number could be off.

`ref('claim-id', 'key')` is a printed value, rounded: a timing value could be anywhere within half a unit of its last
printed digit. `result('name', 'key')` is a record's value, with the p10-p90 of its samples. An expression is evaluated
once at the values themselves, then at every corner of those ranges: the lowest and highest answer are its range.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

from labkit.ledger.compare import Seen, is_number, leaves, printed_decimals
from labkit.ledger.expression import ExpressionError, evaluate, names_in, parse
from labkit.ledger.schema import Check, Claim, Ledger
from labkit.records import RunRecord

MOST_RANGES = 10
"""2**10 corners an expression; more would make `claims verify` slow, and no claim needs it."""


class Scope:
    """Lookups of one check. `ranges` fills up with what was used; `pinned` overrides it at a corner."""

    def __init__(self, ledger: Ledger, record: RunRecord | None = None, *, needs_range: bool = True) -> None:
        self.ledger = ledger
        self.record = record
        self.needs_range = needs_range
        self.ranges: dict[tuple[Any, ...], tuple[float, float]] = {}
        self.pinned: dict[tuple[Any, ...], float] = {}

    def lookups(self) -> dict[str, Any]:
        """The lookup functions by name; `result` only where there is a record."""
        found: dict[str, Any] = {"ref": self.ref, "refs": self.refs, "setting": self.setting}
        return found | ({"result": self.result, "param": self.param} if self.record is not None else {})

    def ref(self, claim_id: str, *path: Any) -> Any:
        """Value of another claim, or the entry that `path` names."""
        return self._ranged(("ref", claim_id, *path), claim_entry(self.ledger.claims[claim_id], path),
                            half_unit(self.ledger.claims[claim_id]))

    def refs(self, claim_id: str, *path: Any) -> list[Any]:
        """All numbers of another claim's mapping or list, in order."""
        entry = claim_entry(self.ledger.claims[claim_id], path)
        return [self.ref(claim_id, *path, *rest) for rest, leaf in leaves(entry) if is_number(leaf)]

    def setting(self, profile: str, *path: Any) -> Any:
        """Entry of a settings profile; what the profile it is based on states counts too."""
        return profile_entry(self.ledger, profile, path)

    def result(self, name: str, *path: Any) -> Any:
        """Value of the record; a quantity gives its median, with p10 and p90 as its range."""
        assert self.record is not None
        value = record_entry(self.record, (name, *path))
        if is_quantity(value):
            token = ("result", name, *path)
            if is_number(value.get("p10")) and is_number(value.get("p90")):
                self.ranges[token] = (value["p10"], value["p90"])
            return self.pinned.get(token, value["value"])
        return value

    def param(self, name: str) -> Any:
        """Parameter the record was run with."""
        assert self.record is not None
        if name not in self.record.params:
            raise ExpressionError(f"params has no {name!r}")
        return self.record.params[name]

    def _ranged(self, token: tuple[Any, ...], value: Any, half: float) -> Any:
        if not is_number(value) or not half:
            return value
        self.ranges[token] = (value - half, value + half)
        return self.pinned.get(token, value)

    def explore(self, compute: Callable[[], Any]) -> Any:
        """Run `compute` at the values themselves and at every corner of their ranges: a Seen, or a tree of them."""
        self.ranges, self.pinned = {}, {}
        value = compute()
        tokens, ranges = list(self.ranges), dict(self.ranges)
        if not is_number(value) or not tokens or not self.needs_range:
            return as_seen(value)
        if len(tokens) > MOST_RANGES:
            raise ExpressionError(f"{len(tokens)} rounded values in one expression, expected at most {MOST_RANGES}")
        answers = []
        for corner in itertools.product(*(ranges[token] for token in tokens)):
            self.pinned = dict(zip(tokens, corner))
            answers.append(compute())
        self.pinned = {}
        return Seen(value, min(answers), max(answers))

    def value(self, text: str, names: Mapping[str, Any]) -> Any:
        """Value of one expression under the ranges pinned now."""
        return evaluate(parse(text), names=names, lookups=self.lookups())


def as_seen(value: Any, low: float | None = None, high: float | None = None) -> Any:
    """Turn every leaf of a value into a Seen."""
    if isinstance(value, Mapping):
        if is_quantity(value):
            return Seen(value["value"], value.get("p10"), value.get("p90"))
        return {key: as_seen(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [as_seen(item) for item in value]
    return Seen(value, low, high)


def plain(seen: Any) -> Any:
    """The values of a tree of Seen, ready for JSON; ten digits, and 512.0 as 512."""
    if isinstance(seen, Mapping):
        return {key: plain(item) for key, item in seen.items()}
    if isinstance(seen, list):
        return [plain(item) for item in seen]
    value = seen.value if isinstance(seen, Seen) else seen
    if isinstance(value, float):
        value = float(f"{value:.10g}")
        return int(value) if value.is_integer() and abs(value) < 1e15 else value
    return value


def is_quantity(value: Any) -> bool:
    """Whether a result is a quantity of `records.quantity`."""
    return isinstance(value, Mapping) and "value" in value and "unit" in value


def half_unit(claim: Claim) -> float:
    """Half of the last printed digit of a claim's numbers; 0 where they are exact (counts, settings)."""
    decimals = printed_decimals(claim.value) if claim.decimals is None else claim.decimals
    exact = claim.kind != "timing" and decimals == 0
    return 0.0 if exact else 0.5 * 10.0**-decimals


def claim_entry(claim: Claim, path: tuple[Any, ...]) -> Any:
    """Entry of a claim's value; raises ExpressionError naming the claim and the key."""
    return _entry(claim.value, path, claim.id)


def profile_entry(ledger: Ledger, profile: str, path: tuple[Any, ...]) -> Any:
    """Entry of a profile or of the ones it is based on; raises ExpressionError."""
    name: Any = profile
    while name is not None:
        if name not in ledger.profiles:
            raise ExpressionError(f"unknown profile {name!r}")
        for part in ("stated", "inferred"):
            block = ledger.profiles[name].get(part, {})
            if isinstance(block, Mapping) and path and path[0] in block:
                return _entry(block, path, profile)
        name = ledger.profiles[name].get("base")
    raise ExpressionError(f"profile {profile!r} has no {'.'.join(map(str, path))!r}")


def record_entry(record: RunRecord, path: tuple[Any, ...]) -> Any:
    """Entry of a record's results; raises ExpressionError."""
    return _entry(record.results, path, "results")


def _entry(value: Any, path: tuple[Any, ...], owner: str) -> Any:
    for part in path:
        in_list = isinstance(value, list) and isinstance(part, int) and 0 <= part < len(value)
        if not in_list and not (isinstance(value, Mapping) and part in value):
            known = ", ".join(map(str, value)) if isinstance(value, Mapping) else f"a {type(value).__name__}"
            raise ExpressionError(f"{owner} has no {part!r} (there is: {known})")
        value = value[part]
    return value


def evaluate_check(check: Check, expected: Any, scope: Scope) -> Any:
    """Evaluate a check's expressions in the shape of the expected value: a tree of Seen.

    One expression stands for every key of a mapping or list when it uses `key` or an input given per key; a mapping or
    list of expressions is evaluated entry by entry.
    """
    if is_per_key(check) and isinstance(expected, Mapping | list):
        return per_key(expected, lambda key: _shaped(check.expr, scope, inputs_at(check, key)))
    return _shaped(check.expr, scope, inputs_at(check, None))


def per_key(expected: Any, answer: Callable[[Any], Any]) -> Any:
    """`answer(key)` for each key of a mapping, or index of a list, in the same shape."""
    if isinstance(expected, Mapping):
        return {key: answer(key) for key in expected}
    return [answer(i) for i in range(len(expected))]


def is_per_key(check: Check) -> bool:
    """Whether one expression or call stands for every key of the value."""
    texts = [check.expr] if isinstance(check.expr, str) else []
    texts += [value[1:] for value in check.args.values() if isinstance(value, str) and value.startswith("=")]
    return any(isinstance(value, Mapping) for value in check.inputs.values()) or any(
        "key" in names_in(parse(text)) for text in texts
    )


def inputs_at(check: Check, key: Any) -> dict[str, Any]:
    """Values of a check's inputs at one key of the value; `key` itself is one of them."""
    names: dict[str, Any] = {} if key is None else {"key": key}
    for name, value in check.inputs.items():
        if isinstance(value, Mapping) and key not in value:
            raise ExpressionError(f"input {name!r} has no {key!r}")
        names[name] = value[key] if isinstance(value, Mapping) else value
    return names


def _shaped(expr: Any, scope: Scope, names: Mapping[str, Any]) -> Any:
    if isinstance(expr, Mapping):
        return {key: _shaped(item, scope, names) for key, item in expr.items()}
    if isinstance(expr, list):
        return [_shaped(item, scope, names) for item in expr]
    return scope.explore(lambda: scope.value(expr, names)) if isinstance(expr, str) else Seen(expr)

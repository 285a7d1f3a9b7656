"""What the ledger's files may hold: claims with a way to check each, and errata of the sources.

`data/claims/<ledger>.yaml` has `report` (facts about the source and the counts that must come out), `profiles`
(settings the claims refer to), `experiments` (settings a record needs to count at all) and `claims`. `errata.yaml` has
`errata`. Everything is validated at load: an unknown field, a duplicate id or a dangling reference is one error that
names the file and the claim.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

KINDS = ("structural", "analytic", "timing", "mechanism", "boundary", "numeric", "version-bound")
"""The interview text's own kinds are numeric, analytic, boundary, mechanism and version-bound."""
ORIGINS = ("printed", "rederived", "added")
"""Roles in the interview text's ledger: it prints the figure; it lost the formula, which we rebuilt; our own check."""
ROLES = ("result", "setting", "definition", "advice", "provenance", "artifact", "open-work", "derived", *ORIGINS)
EVIDENCE = ("direct", "causal-control", "consistent", "not-proven")
"""How strongly the source itself supports a claim."""

FIELDS_OF_CHECK = {
    "formula": {"by", "expr", "inputs", "expect", "corrected", "compare"},
    "calc": {"by", "call", "part", "args", "inputs", "expr", "items", "expect", "corrected", "compare"},
    "program": {"by", "program", "args", "expect", "corrected", "compare", "needs"},
    "record": {
        "by", "experiment", "result", "key", "expr", "inputs", "expect", "compare", "hardware", "params", "needs",
        "how",
    },
    "read": {"by", "reason"},
}
"""Fields that each kind of check may have."""
FIELDS_OF_ITEM = {"call", "part", "args", "expr"}
"""Fields of one entry of `items`: a call, or an expression alone."""


class LedgerError(ValueError):
    """A ledger file that cannot be used; one line that names the file and the claim."""


class CannotRun(RuntimeError):
    """A program that this machine cannot run; one phrase that says what is missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One way to prove a claim. Which fields may be set depends on `by`: see FIELDS_OF_CHECK."""

    by: str
    """`formula`, `calc`, `program`, `record` or `read`."""
    compare: Any = "exact"
    """exact | dp N | sig N | rel X | reachable | direction PIVOT | beside: see labkit.ledger.compare. A list has one
    of the first four for each entry of a list."""
    expr: Any = None
    """Expression, or a mapping or list of expressions shaped like the value; `key` stands for each of its keys."""
    inputs: Mapping[str, Any] = field(default_factory=dict)
    """Names for the expression: a number, an expression, or a number for each key of the value."""
    expect: Any = None
    """What must come out, where that is not the claim's own value (a statement without a number, a part of one)."""
    corrected: Any = None
    """What does come out, where the source's number is a listed erratum."""
    call: str = ""
    """`labkit.calc.<topic>:<function>`; `expr` may then turn its answer `out` into the claim's unit."""
    part: Any = ""
    """Entry of the answer that counts, where the function returns a mapping: a key, or a list of keys and positions."""
    args: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments; text that starts with `=` is an expression."""
    items: tuple[Check, ...] = ()
    """One call or expression for each entry of a list, instead of `call` and `expr`."""
    program: str = ""
    """Function of labkit.ledger.question_checks: several calls, a compiled C++ file, a child process."""
    experiment: str = ""
    result: str = ""
    """Name in the record's results; `expr` may use `result('name', 'key')` instead."""
    key: str | None = None
    hardware: str = "any"
    """`any` machine, or `gpu`: only records of a machine with a GPU."""
    params: Mapping[str, Any] = field(default_factory=dict)
    """Parameters a record must have been run with, beside those of `experiments`."""
    needs: str = ""
    """What it takes to run, e.g. `2 gloo ranks`."""
    how: str = ""
    reason: str = ""
    """Why there is nothing to run (`by: read`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One statement of a source, as printed there."""

    id: str
    ledger: str
    """Name of the file it stands in, without `.yaml`."""
    section: str
    statement: str
    kind: str
    role: str
    value: Any
    """The figure as printed: number, text, list or mapping; None for a statement without one."""
    unit: Any
    """Text, None, or a list with a text or None for each entry of a list."""
    check: Check
    measure: Check | None = None
    """Second check, on a record, of a claim whose first check is arithmetic."""
    evidence: str = "direct"
    settings: Mapping[str, Any] = field(default_factory=dict)
    """`profile` names an entry of `profiles`; other keys override it."""
    lab: str | None = None
    """Slug of the experiment that answers it; None where no lab does."""
    must_hold: bool = False
    """`labkit claims verify` exits 1 when this claim differs."""
    errata: tuple[str, ...] = ()
    entries: tuple[str, ...] = ()
    """What each entry of a list is, where one unit does not say it."""
    area: str | None = None
    """Area of an interview question: roofline, attention, cpp and so on."""
    also_in: tuple[str, ...] = ()
    decimals: int | None = None
    """Printed decimals, where the number in YAML does not show them (2.080 is 2.08); negative for 6.988M."""
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Erratum:
    """Something a source prints that is wrong, incomplete or needs a condition."""

    id: str
    seed: str
    """Ledger of the source: `v100_report` or `questions`."""
    section: str
    """Section of the report, or numbers of the questions."""
    cls: str
    claims: tuple[str, ...]
    printed: Any
    corrected: Any
    comment: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """Everything under data/claims, checked."""

    claims: Mapping[str, Claim]
    errata: Mapping[str, Erratum]
    profiles: Mapping[str, Mapping[str, Any]]
    experiments: Mapping[str, Mapping[str, Any]]
    """Slug -> {"params": {...}, "at_least": {...}}: what a record must have been run with to count for a claim."""
    reports: Mapping[str, Mapping[str, Any]]
    """Ledger -> facts about the source and the counts that must come out."""

"""Arithmetic written in a ledger file: numbers, operators, comparisons and a fixed set of functions, nothing else.

Text from YAML is parsed with `ast` and walked node by node. Attributes, subscripts, keyword arguments, comprehensions
and unknown names are refused when the ledger is loaded, so a data file can never run code.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any

LARGEST_POWER_BITS = 4096
"""Bits that an integer power may have: an expression in a data file must not be able to fill the memory."""
LARGEST_TEXT = 2000

_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Pow: operator.pow,
}
_UNARY: dict[type[ast.unaryop], Callable[[Any], Any]] = {
    ast.USub: operator.neg, ast.UAdd: operator.pos, ast.Not: operator.not_,
}
_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge,
    ast.Eq: operator.eq, ast.NotEq: operator.ne,
}


class ExpressionError(ValueError):
    """An expression that is not allowed or cannot be evaluated; one line that quotes it."""


def next_power_of_2(n: int) -> int:
    """Smallest power of two >= n, n >= 1.

    >>> next_power_of_2(768), next_power_of_2(1024)
    (1024, 1024)
    """
    if not isinstance(n, int) or n < 1:
        raise ValueError(f"n={n!r}: expected an integer >= 1")
    return 1 << (n - 1).bit_length()


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "min": min, "max": max, "sum": sum, "round": round, "len": len, "abs": abs, "sqrt": math.sqrt, "floor": math.floor,
    "ceil": math.ceil, "next_power_of_2": next_power_of_2,
}
LOOKUPS = ("ref", "refs", "setting", "result", "param")
"""Functions that read the ledger or a record; the caller supplies them."""


@lru_cache(maxsize=4096)
def parse(text: str) -> ast.expr:
    """Parse and check one expression.

    Raises: ExpressionError when it is not an expression of the allowed kind.
    """
    if len(text) > LARGEST_TEXT:
        raise ExpressionError(f"expression of {len(text)} characters: expected at most {LARGEST_TEXT}")
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ExpressionError(f"{text!r}: not an expression") from None
    for node in ast.walk(tree):
        problem = _problem(node)
        if problem:
            raise ExpressionError(f"{text!r}: {problem}")
    return tree


def _problem(node: ast.AST) -> str | None:
    if isinstance(node, ast.BinOp):
        return None if type(node.op) in _BINARY else f"operator {type(node.op).__name__} is not allowed"
    if isinstance(node, ast.UnaryOp):
        return None if type(node.op) in _UNARY else f"operator {type(node.op).__name__} is not allowed"
    if isinstance(node, ast.Compare):
        wrong = [type(op).__name__ for op in node.ops if type(op) not in _COMPARE]
        return f"comparison {wrong[0]} is not allowed" if wrong else None
    if isinstance(node, ast.Constant):
        allowed = isinstance(node.value, bool | int | float | str) or node.value is None
        return None if allowed else f"{node.value!r} is not allowed"
    if isinstance(node, ast.Call):
        if not isinstance(node.func, ast.Name) or node.func.id not in (*FUNCTIONS, *LOOKUPS):
            return f"unknown function {ast.unparse(node.func)!r}"
        return "keyword and starred arguments are not allowed" if node.keywords else None
    if isinstance(node, ast.BoolOp | ast.List | ast.Name | ast.expr_context | ast.operator | ast.unaryop):
        return None
    if isinstance(node, ast.cmpop | ast.boolop):
        return None
    return f"{type(node).__name__} is not allowed"


def names_in(tree: ast.expr) -> set[str]:
    """Free names of an expression: inputs, `key`, `out`; function names are not among them."""
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and id(node) not in called}


def lookups_in(tree: ast.expr) -> Iterator[tuple[str, list[Any]]]:
    """(function, arguments) of every lookup; an argument that is not a constant is given as Ellipsis."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in LOOKUPS:
            yield node.func.id, [a.value if isinstance(a, ast.Constant) else ... for a in node.args]


def evaluate(tree: ast.expr, *, names: Mapping[str, Any], lookups: Mapping[str, Callable[..., Any]]) -> Any:
    """Value of a parsed expression.

    Args:
        tree: from `parse`.
        names: values of the free names.
        lookups: functions of LOOKUPS, as far as the expression may use them.

    Returns: a number, truth value, text, None, or a list of those.
    Raises: ExpressionError when a name or lookup is unknown or the arithmetic fails.
    """
    try:
        return _value(tree, names, lookups)
    except ExpressionError:
        raise
    except (ArithmeticError, TypeError, ValueError, KeyError, IndexError) as error:
        raise ExpressionError(f"{ast.unparse(tree)}: {error}") from None


def _value(node: ast.expr, names: Mapping[str, Any], lookups: Mapping[str, Callable[..., Any]]) -> Any:
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name):
        if node.id not in names:
            raise ExpressionError(f"unknown name {node.id!r} (known: {', '.join(sorted(names)) or 'none'})")
        return names[node.id]
    if isinstance(node, ast.List):
        return [_value(item, names, lookups) for item in node.elts]
    if isinstance(node, ast.UnaryOp):
        return _UNARY[type(node.op)](_value(node.operand, names, lookups))
    if isinstance(node, ast.BinOp):
        left, right = _value(node.left, names, lookups), _value(node.right, names, lookups)
        if not all(isinstance(side, int | float) for side in (left, right)):
            raise ExpressionError(f"{ast.unparse(node)}: {left!r} and {right!r}: expected numbers")
        if isinstance(node.op, ast.Pow) and isinstance(left, int) and left.bit_length() * right > LARGEST_POWER_BITS:
            raise ExpressionError(f"{ast.unparse(node)}: the power is too large")
        return _BINARY[type(node.op)](left, right)
    if isinstance(node, ast.BoolOp):
        values = (_value(item, names, lookups) for item in node.values)
        return all(values) if isinstance(node.op, ast.And) else any(values)
    if isinstance(node, ast.Compare):
        left = _value(node.left, names, lookups)
        for op, comparator in zip(node.ops, node.comparators):
            right = _value(comparator, names, lookups)
            if not _COMPARE[type(op)](left, right):
                return False
            left = right
        return True
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        function = FUNCTIONS.get(node.func.id) or lookups.get(node.func.id)
        if function is None:
            raise ExpressionError(f"{node.func.id}() is not available here")
        return function(*[_value(item, names, lookups) for item in node.args])
    raise ExpressionError(f"{ast.unparse(node)}: not allowed")

"""The expression of a {calc} role, read from its syntax tree: no eval, no names but formulas and hardware.

    roofline.ridge_flop_per_byte(peak_flop_per_s=hw("h200", "peak_bf16_dense_flop_per_s"), bytes_per_s=4.8e12)
    ddp.num_collectives(num_buckets=13, micro_steps=8)
    kv_cache.plan(num_layers=28)["tokens"]

The parts that are allowed are listed in `_Reader.value`; everything else is a LookupProblem.
"""

from __future__ import annotations

import ast
import difflib
import importlib
import inspect
import operator
import pkgutil
from collections.abc import Callable
from types import ModuleType
from typing import Any

from labkit.book.values import LookupProblem

_ARITHMETIC = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}
_MAX_POWER = 2**7
_MAX_LENGTH = 400


def calc_modules() -> dict[str, ModuleType]:
    """Name -> module of labkit.calc."""
    import labkit.calc as package

    names = sorted(info.name for info in pkgutil.iter_modules(package.__path__) if not info.name.startswith("_"))
    return {name: importlib.import_module(f"{package.__name__}.{name}") for name in names}


def formulas(module: ModuleType) -> dict[str, Callable[..., Any]]:
    """Name -> public function that a calc module defines itself, in the order of the file."""
    found = {
        name: function
        for name, function in vars(module).items()
        if inspect.isfunction(function) and not name.startswith("_") and function.__module__ == module.__name__
    }
    return dict(sorted(found.items(), key=lambda item: item[1].__code__.co_firstlineno))


def evaluate(text: str, *, hardware: Callable[[str, str], Any] | None = None) -> tuple[Any, str]:
    """Value of the expression and the `module.function` it is about (the outermost formula).

    Args:
        text: a call of a labkit.calc function; arguments are literals, arithmetic on numbers, further such calls, or
            `hw(profile, field)`.
        hardware: resolves hw(...) to a number.

    Raises: LookupProblem with one line that says what is wrong.
    """
    if len(text) > _MAX_LENGTH:
        raise LookupProblem(f"longer than {_MAX_LENGTH} characters")
    try:
        tree = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError):
        raise LookupProblem("not a call such as topic.function(name=1)") from None
    reader = _Reader(hardware)
    value = reader.value(tree)
    if reader.outermost is None:
        raise LookupProblem("calls no function of labkit.calc")
    return value, reader.outermost


class _Reader:
    def __init__(self, hardware: Callable[[str, str], Any] | None) -> None:
        self.hardware = hardware
        self.outermost: str | None = None

    def value(self, node: ast.expr) -> Any:
        match node:
            case ast.Constant():
                return node.value
            case ast.List() | ast.Tuple():
                return [self.value(item) for item in node.elts]
            case ast.UnaryOp(op=ast.USub()):
                return -self._number(node.operand)
            case ast.BinOp(op=ast.Pow()):
                base, power = self._number(node.left), self._number(node.right)
                if abs(power) > _MAX_POWER:
                    raise LookupProblem(f"exponent {power} is larger than {_MAX_POWER}")
                return base**power
            case ast.BinOp() if type(node.op) in _ARITHMETIC:
                try:
                    return _ARITHMETIC[type(node.op)](self._number(node.left), self._number(node.right))
                except ZeroDivisionError:
                    raise LookupProblem("division by zero") from None
            case ast.Subscript():
                return _entry(self.value(node.value), self.value(node.slice))
            case ast.Call(func=ast.Name(id="hw")):
                return self._hardware(node)
            case ast.Call(func=ast.Attribute(value=ast.Name())):
                return self._formula(node)
            case ast.Attribute() if not node.attr.startswith("_"):
                owner = self.value(node.value)
                if not hasattr(owner, node.attr):
                    raise LookupProblem(f"the result has no {node.attr!r}")
                return getattr(owner, node.attr)
        raise LookupProblem(f"{ast.unparse(node)!r} is not a number, text or formula call")

    def _number(self, node: ast.expr) -> Any:
        value = self.value(node)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise LookupProblem(f"{ast.unparse(node)!r} is not a number")
        return value

    def _hardware(self, node: ast.Call) -> Any:
        names = [self.value(argument) for argument in node.args]
        if self.hardware is None or node.keywords or len(names) != 2:
            raise LookupProblem('expected hw("profile", "field")')
        return self.hardware(str(names[0]), str(names[1]))

    def _formula(self, node: ast.Call) -> Any:
        assert isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name)
        topic, name = node.func.value.id, node.func.attr
        modules = calc_modules()
        if topic not in modules:
            raise LookupProblem(_unknown("topic", topic, list(modules)))
        known = formulas(modules[topic])
        if name not in known:
            raise LookupProblem(_unknown(f"formula of {topic}", name, list(known)))
        if self.outermost is None:
            self.outermost = f"{topic}.{name}"
        arguments = [self.value(argument) for argument in node.args]
        try:
            keywords = {str(keyword.arg): self.value(keyword.value) for keyword in node.keywords}
            return known[name](*arguments, **keywords)
        except LookupProblem:
            raise
        except Exception as error:
            raise LookupProblem(f"{topic}.{name}: {error}") from None


def _entry(value: Any, key: Any) -> Any:
    try:
        return value[key]
    except (KeyError, IndexError, TypeError):
        raise LookupProblem(f"the result has no [{key!r}]") from None


def _unknown(kind: str, got: str, known: list[str]) -> str:
    close = difflib.get_close_matches(got, known, n=1)
    return f"unknown {kind} {got!r}" + (f"; did you mean {close[0]!r}?" if close else "")

"""The formula sheet: every public function of labkit.calc, read from its docstring."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from docutils import nodes

from labkit.book.calc_call import calc_modules, formulas
from labkit.book.lookup import formula_anchor
from labkit.book.tables import Row, code, make_table

SECTIONS = ("Args", "Returns", "Raises", "Assumes", "Used in", "Source")


@dataclass(slots=True)
class Docstring:
    """A docstring in the project's form, cut into its parts."""

    summary: str = ""
    paragraphs: list[str] = field(default_factory=list)
    arguments: dict[str, str] = field(default_factory=dict)
    sections: dict[str, str] = field(default_factory=dict)
    example: str = ""


def parse_docstring(text: str) -> Docstring:
    """Cut a docstring at `Args:`, `Returns:`, `Raises:`, `Assumes:`, `Used in:`, `Source:` and the first `>>>`.

    Lines of one paragraph are joined; arguments are `name: text` lines, indented under `Args:`.
    """
    text = inspect.cleandoc(text)
    prose, arrow, example = text.partition(">>>")
    found = Docstring(example=(arrow + example).strip())
    name, block = "", ""
    parts: list[tuple[str, str]] = []
    for line in prose.splitlines():
        start = re.match(rf"({'|'.join(SECTIONS)}):\s*(.*)", line)
        if start:
            parts.append((name, block))
            name, block = start[1], f"{start[2]}\n"
        else:
            block += f"{line}\n"
    parts.append((name, block))
    for name, block in parts:
        if name == "Args":
            found.arguments = _arguments(block)
        elif name:
            found.sections[name] = _join(block)
        else:
            found.summary, *found.paragraphs = [_join(part) for part in re.split(r"\n\s*\n", block.strip())] or [""]
    return found


def _arguments(block: str) -> dict[str, str]:
    arguments: dict[str, str] = {}
    lines = block.splitlines()
    depth = min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)
    current = ""
    for line in lines:
        start = re.match(rf" {{{depth}}}(\w+(?:, \w+)*):\s*(.*)", line)
        if start:
            current = start[1]
            arguments[current] = start[2]
        elif current and line.strip():
            arguments[current] += f" {line.strip()}"
    return arguments


def _join(block: str) -> str:
    return " ".join(block.split())


def formula_sections() -> list[nodes.section]:
    """One section a topic, one block a formula."""
    sections = []
    for topic, module in calc_modules().items():
        found = formulas(module)
        if not found:
            continue
        section = nodes.section(ids=[f"topic-{topic}".replace("_", "-")], names=[])
        title, colon, intro = _join(inspect.cleandoc(module.__doc__ or "").split("\n\n")[0]).partition(": ")
        section += nodes.title("", title if colon else topic.replace("_", " ").capitalize())
        section += with_code(intro[:1].upper() + intro[1:] if colon else title)
        section += [_block(topic, name, function) for name, function in found.items()]
        sections.append(section)
    return sections


def _block(topic: str, name: str, function: Callable[..., Any]) -> nodes.container:
    doc = parse_docstring(function.__doc__ or "")
    block = nodes.container(classes=["lk-entry"], ids=[formula_anchor(f"{topic}.{name}")])
    block += nodes.paragraph("", "", code(f"{topic}.{name}"), classes=["lk-entry-name"])
    block += with_code(doc.summary)
    block += [with_code(text, classes=["lk-entry-line"]) for text in doc.paragraphs]
    items = nodes.field_list(classes=["lk-fields"])
    for label in ("Returns", "Assumes", "Source"):
        if doc.sections.get(label):
            items += nodes.field(
                "", nodes.field_name(label, label), nodes.field_body("", with_code(doc.sections[label]))
            )
    block += items
    if doc.arguments or doc.example:
        fold = nodes.admonition(classes=["dropdown", "lk-fold"])
        fold += nodes.title("", "Arguments and an example")
        if doc.arguments:
            rows = [Row([code(key), list(with_code(text).children)]) for key, text in doc.arguments.items()]
            fold += make_table(["argument", "meaning, unit"], rows)
        if doc.example:
            fold += nodes.literal_block(doc.example, doc.example, language="pycon")
        block += fold
    return block


def with_code(text: str, *, classes: list[str] | None = None) -> nodes.paragraph:
    """A paragraph in which `text between backticks` is set as code."""
    node = nodes.paragraph(classes=classes or [])
    for number, part in enumerate(re.split(r"`+", text)):
        if part:
            node += code(part) if number % 2 else nodes.Text(part)
    return node

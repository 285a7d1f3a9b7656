"""The table of interview questions: read from the pages that are there, so that no title is written twice."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from docutils import nodes

from labkit.book.roles import SCHEME
from labkit.book.tables import Cell, Row, make_table
from labkit.book.values import LookupProblem
from labkit.paths import NOTEBOOKS, ROOT

FOLDER = ROOT / "book" / "questions"
AREAS = {
    1: "roofline", **dict.fromkeys((2, 13), "attention"), **dict.fromkeys((3, 5), "KV cache"),
    4: "MLA", **dict.fromkeys((6, 8, 10), "serving"), **dict.fromkeys((7, 12), "parallelism"),
    **dict.fromkeys((9, 11), "MoE"), 14: "kernels", 15: "hardware", **dict.fromkeys((16, 17), "numerics"),
    **dict.fromkeys((18, 19, 20), "CUDA memory"), 21: "CPU", **dict.fromkeys(range(22, 28), "C++"),
    **dict.fromkeys((28, 29), "mathematics"),
}  # fmt: skip
"""Area of each question of the text. A page of another number says its own: `% area: training`."""
LABS = {
    1: "gemm_roofline", 3: "vllm_prefix_cache", 5: "vllm_prefix_cache", 8: "vllm_preemption", 9: "moe_alltoall",
    10: "vllm_decode_roofline", 11: "moe_alltoall", 13: "vllm_decode_roofline", 14: "triton_rmsnorm",
    15: "triton_resources",
}  # fmt: skip
"""Lab that measures what a question is about. A page can name another: `% lab: ddp_buckets`."""
_HEAD = re.compile(r"\(q(?P<label>\d\d)\)=\n# Q(?P<number>\d+)\. (?P<title>.+)\n")


@dataclass(frozen=True, slots=True)
class Question:
    """One page of the bank."""

    number: int
    title: str
    """As plain text, without Markdown."""
    area: str
    lab: str
    """Slug of an experiment; "" when no lab measures it."""
    path: Path


def read_questions(folder: Path = FOLDER) -> list[Question]:
    """The pages q01_... to q99_... in the order of their numbers.

    Raises: LookupProblem naming a page whose first lines are not its label and its numbered title.
    """
    found = []
    for path in sorted(folder.glob("q[0-9][0-9]_*.md")):
        text = path.read_text(encoding="utf-8")
        head = _HEAD.match(text)
        if head is None or int(head["label"]) != int(head["number"]) or path.name[1:3] != head["label"]:
            raise LookupProblem(f"{path.name}: expected (qNN)= and '# QN. ...?' with the number of the file")
        number = int(head["number"])
        title = re.sub(r"\\(?=[<>*_^])|[`$]", "", head["title"]).strip()
        found.append(Question(
            number, title, _comment(text, "area") or AREAS.get(number, "systems"),
            _comment(text, "lab") or LABS.get(number, ""), path,
        ))  # fmt: skip
    return found


def question_table(questions: list[Question]) -> nodes.table:
    """Number, question with a link to its page, area, lab with a link where its notebook is there."""
    rows = [
        Row([str(q.number), _link(q.title, f"book/questions/{q.path.stem}", f"q{q.number:02d}"), q.area, _lab(q.lab)])
        for q in questions
    ]
    return make_table(["", "question", "area", "lab"], rows, sortable=True, cards=True, widths=[8, 54, 18, 20])


def _lab(slug: str) -> Cell:
    if not slug:
        return "-"
    notebook = next(iter(sorted(NOTEBOOKS.glob(f"[0-9]*_{slug}.ipynb"))), None)
    if notebook is None:
        return f"{slug} (not here yet)"
    return _link(slug, f"notebooks/{notebook.stem}", "")


def _link(text: str, page: str, anchor: str) -> nodes.reference:
    return nodes.reference(text, text, internal=True, refuri=f"{SCHEME}{page}#{anchor}")


def _comment(text: str, name: str) -> str:
    found = re.search(rf"^% {name}: *(\S.*)$", text, flags=re.M)
    return found[1].strip() if found else ""

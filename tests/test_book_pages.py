"""The sources of the book: what is built, what is not, and that no result is typed into prose."""

import json
import re
import subprocess
from fnmatch import fnmatch

import nbformat
import pytest
import yaml

from labkit.paths import ROOT

CONFIG = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))
TOC = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))
CHAPTERS = [c for part in TOC["parts"] for chapter in part["chapters"] for c in (chapter, *chapter.get("sections", []))]
GLOBBED = [path for c in CHAPTERS if "glob" in c for path in sorted(ROOT.glob(f"{c['glob']}.md"))]
PAGES = [
    TOC["root"],
    *[chapter["file"] for chapter in CHAPTERS if "file" in chapter],
    *[path.relative_to(ROOT).with_suffix("").as_posix() for path in GLOBBED],
]


def prose(path):
    """Text of a page or notebook without code, roles, links and tables' code."""
    if path.suffix == ".ipynb":
        text = "\n\n".join(c.source for c in nbformat.read(path, as_version=4).cells if c.cell_type == "markdown")
    else:
        text = path.read_text(encoding="utf-8")
    text = re.sub(r"^(`{3,}|~{3,}).*?^\1\s*$", "", text, flags=re.M | re.S)
    return re.sub(r"(\{[\w:-]+\})?(`+)[^`]*\2", "", text)


TYPED = re.compile(
    r"\d[\d.,]*\s*(?:ms|us|µs|ns|GB/s|TB/s|GiB/s|MB/s|FLOP/s|TFLOP/s|GFLOP/s|tok(?:ens)?/s|req/s"
    r"|(?:tokens|samples) per second|kernels|buckets|collectives|times (?:faster|slower))\b|\d\.\d+\s*[x×]\b"
)
SOURCES = sorted([*(ROOT / "book").glob("*.md"), *(ROOT / "notebooks").glob("*.ipynb")])


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: p.name)
def test_no_result_is_typed_into_prose(path):
    found = [match.group(0) for match in TYPED.finditer(prose(path))]
    assert not found, f"use a role instead: {found}"


def test_the_guard_sees_a_planted_number(tmp_path):
    page = tmp_path / "x.md"
    page.write_text(
        "It took 56.0 ms, and 13 buckets; 3.05x.\n\n```python\nt = 1  # 5 ms\n```\n\n{claim}`a:25 ms` and `7 ms`.\n"
    )
    assert TYPED.findall(prose(page)) == ["56.0 ms", "13 buckets", "3.05x"]


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: p.name)
def test_words_that_help_nobody_stay_out(path):
    assert not re.findall(
        r"\b(?:simply|obviously|blazing|seamless\w*|cutting-edge|state-of-the-art|leverag\w+)\b", prose(path), re.I
    )
    assert not re.findall("[\U0001f300-\U0001faff\u2600-\u27bf]", prose(path))


@pytest.mark.parametrize("page", PAGES)
def test_every_page_of_the_contents_exists_and_has_one_title(page):
    (path,) = [path for path in (ROOT / f"{page}.md", ROOT / f"{page}.ipynb") if path.is_file()]
    assert len(re.findall(r"^# ", prose(path), re.M)) == 1


def test_every_page_of_the_book_folder_is_in_the_contents():
    found = {path.relative_to(ROOT).with_suffix("").as_posix() for path in (ROOT / "book").rglob("*.md")}
    assert found == {page for page in PAGES if page.startswith("book/")}


def test_only_pages_are_built():
    """Every tracked file that Sphinx could take for a page is in the contents or excluded."""
    listed = subprocess.run(["git", "ls-files", "*.md", "*.ipynb", "*.rst"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    names = [name for name in listed.stdout.split() if name.rsplit(".", 1)[0] not in PAGES]
    kept = [name for name in names if not any(fnmatch(name, pattern) for pattern in CONFIG["exclude_patterns"])]
    assert kept == []
    assert CONFIG["only_build_toc_files"] is True and CONFIG["execute"]["execute_notebooks"] == "off"


def test_template_notebook_has_the_twelve_parts():
    cells = nbformat.read(ROOT / "notebooks" / "_template.ipynb", as_version=4).cells
    (parameters,) = [c for c in cells if "parameters" in c.metadata.get("tags", [])]
    assert re.findall(r"^(\w+) = ", parameters.source, re.M)[:3] == ["mode", "preset", "run_id"]
    text = json.dumps([c.source for c in cells])
    for call in ("exp.predict(", "exp.run(", "exp.load(", "exp.check(", "exp.table(", "exp.figures("):
        assert call in text
    order = [
        text.index(word)
        for word in (
            "Predict before",
            "exp.run(",
            "exp.check(",
            "exp.figures(",
            "Exercise",
            "Follow-ups",
            "Evidence boundary",
        )
    ]
    assert order == sorted(order)

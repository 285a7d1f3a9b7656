"""A page shows the executed copy of a notebook, and only one that is fresh, complete and without a failed cell."""

import copy
import io
import json
import re

import pytest
from sphinx.application import Sphinx
from sphinx.util.docutils import docutils_namespace, patch_docutils

from labkit.book import vendor
from labkit.book.executed import WIDGET_NOTE, WIDGET_VIEW, copy_problem, for_page


def code(source, *, tags=(), outputs=(), count=1):
    return {
        "cell_type": "code",
        "id": f"c{abs(hash(source)) % 10**8}",
        "metadata": {"tags": list(tags)},
        "source": source,
        "outputs": list(outputs),
        "execution_count": count,
    }


def text(value):
    return {"output_type": "stream", "name": "stdout", "text": value}


def notebook(*cells):
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return {"nbformat": 4, "nbformat_minor": 5, "metadata": {"kernelspec": kernel}, "cells": list(cells)}


def markdown(source):
    return {"cell_type": "markdown", "id": f"m{abs(hash(source)) % 10**8}", "metadata": {}, "source": source}


SOURCE = notebook(
    markdown("# Lab\n"), code('preset = "auto"', tags=["parameters"], count=None), code("print(6 * 7)", count=None)
)


def executed():
    nb = copy.deepcopy(SOURCE)
    nb["cells"][1]["execution_count"] = 1
    nb["cells"].insert(2, code('preset = "smoke"', tags=["injected-parameters"], count=2))
    nb["cells"][3] |= {"execution_count": 3, "outputs": [text("42\n")]}
    nb["metadata"]["papermill"] = {"input_path": "/home/someone/lab.ipynb"}
    nb["cells"][2]["metadata"]["papermill"] = {"duration": 1.0}
    return nb


def test_a_good_copy_is_accepted():
    assert copy_problem(SOURCE, executed()) is None


def changed_source(nb):
    nb["cells"][3]["source"] = "print(6 * 8)"


def dropped_cell(nb):
    del nb["cells"][3]


def failed_cell(nb):
    nb["cells"][3]["outputs"] = [
        {"output_type": "error", "ename": "RecordError", "evalue": "oracle failed\nmore", "traceback": []}
    ]


def never_run(nb):
    nb["cells"][3]["execution_count"] = None


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (changed_source, "another version"),
        (dropped_cell, "another version"),
        (failed_cell, "cell 4 failed with RecordError"),
        (never_run, "cell 4 was never run"),
    ],
)
def test_a_bad_copy_is_refused(spoil, message):
    nb = executed()
    spoil(nb)
    assert message in (copy_problem(SOURCE, nb) or "")
    assert "\n" not in copy_problem(SOURCE, nb)


def test_the_page_hides_the_runner():
    nb = executed()
    nb["cells"][3]["outputs"].append(
        {"output_type": "display_data", "metadata": {}, "data": {WIDGET_VIEW: {}, "text/plain": "x"}}
    )
    shown = for_page(nb)
    assert "papermill" not in json.dumps(shown) and "/home/someone" not in json.dumps(shown)
    assert "hide-input" in shown["cells"][2]["metadata"]["tags"]
    assert shown["cells"][3]["outputs"][1]["data"] == {"text/markdown": f"*{WIDGET_NOTE}*"}


def build(folder, *, copied):
    src = folder / "src"
    (src / "notebooks").mkdir(parents=True, exist_ok=True)
    (src / "index.md").write_text("# Start\n\n```{toctree}\nnotebooks/lab\n```\n", encoding="utf-8")
    (src / "notebooks" / "lab.ipynb").write_text(json.dumps(SOURCE), encoding="utf-8")
    if copied is not None:
        target = src / "done" / "notebooks" / "lab.ipynb"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(copied if isinstance(copied, str) else json.dumps(copied), encoding="utf-8")
    warnings = io.StringIO()
    config = {
        "extensions": ["myst_nb", "labkit.book"],
        "nb_execution_mode": "off",
        "labkit_executed_dir": "done",
        "exclude_patterns": ["done"],
        "html_theme": "basic",
        "source_suffix": {".md": "myst-nb", ".ipynb": "myst-nb"},
    }
    with patch_docutils(str(src)), docutils_namespace():
        Sphinx(
            str(src),
            None,
            str(folder / "out"),
            str(folder / "trees"),
            "html",
            confoverrides=config,
            status=None,
            warning=warnings,
            freshenv=True,
        ).build()
    html = (folder / "out" / "notebooks" / "lab.html").read_text(encoding="utf-8")
    return html, [line for line in re.sub(r"\x1b\[[\d;]*m", "", warnings.getvalue()).splitlines() if "WARNING" in line]


@pytest.fixture(autouse=True)
def no_vendored_copies(monkeypatch):
    monkeypatch.setattr(vendor, "vendored_files", dict)


def test_the_page_shows_the_executed_copy(tmp_path):
    html, warnings = build(tmp_path, copied=executed())
    assert warnings == [] and "42" in html and "/home/someone" not in html


def test_without_a_copy_the_build_warns(tmp_path):
    _, warnings = build(tmp_path, copied=None)
    assert len(warnings) == 1 and "no executed copy done/notebooks/lab.ipynb" in warnings[0]


def test_a_failed_cell_is_a_warning(tmp_path):
    nb = executed()
    failed_cell(nb)
    _, warnings = build(tmp_path, copied=nb)
    assert len(warnings) == 1 and "cell 4 failed with RecordError" in warnings[0]


def test_a_broken_copy_is_a_warning_not_a_traceback(tmp_path):
    _, warnings = build(tmp_path, copied='{"cells": [')
    assert len(warnings) == 1 and "not a notebook" in warnings[0]

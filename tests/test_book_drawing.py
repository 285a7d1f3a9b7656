"""The {drawing} directive: a plot function's figure in a page, or one line that says why not."""

import re

import plotly.graph_objects as go
import pytest

import labkit.plots
from labkit.book import drawing
from labkit.book.values import LookupProblem


@pytest.fixture
def toy(tmp_path, monkeypatch):
    """A module of labkit.plots for this test alone."""
    (tmp_path / "questions_toy.py").write_text(
        "import plotly.graph_objects as go\n"
        "from labkit.plots.style import figure\n"
        "def curve():\n    return figure('Found', x='x', y='y', caption='own caption')\n"
        "def mute():\n    return go.Figure()\n"
        "def needy(rows):\n    return rows\n"
        "def broken():\n    raise ValueError('rows=0: expected more')\n"
        "def _private():\n    return None\n",
        encoding="utf-8",
    )
    monkeypatch.setattr(labkit.plots, "__path__", [*labkit.plots.__path__, str(tmp_path)])
    yield "questions_toy"
    import sys

    sys.modules.pop("labkit.plots.questions_toy", None)


def test_html_of_a_drawing(toy):
    html = drawing.drawing_html(f"{toy}:curve", alt='a "b"', caption="said <here>")
    assert 'aria-label="a &quot;b&quot;"' in html and "<figcaption>said &lt;here&gt;</figcaption>" in html
    assert "lk-plotly" in html and '<p class="lk-plot-title">Found</p>' in html
    html = drawing.drawing_html(f"{toy}:curve")
    assert 'aria-label="Found"' in html and "own caption" in html


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("curve", "expected topic:function"),
        ("a b:c", "expected topic:function"),
        ("questions_tox:curve", "unknown module of labkit.plots 'questions_tox'; did you mean 'questions_toy'?"),
        ("questions_toy:curv", "unknown function of labkit.plots.questions_toy 'curv'; did you mean 'curve'?"),
        ("questions_toy:_private", "expected topic:function"),
        ("questions_toy:figure", "unknown function"),
        ("questions_toy:needy", "needs arguments (rows)"),
        ("questions_toy:broken", "ValueError: rows=0: expected more"),
        ("questions_toy:mute", "no alternative text"),
    ],
)
def test_a_problem_is_one_line(toy, name, message):
    with pytest.raises(LookupProblem, match=re.escape(message)) as caught:
        drawing.drawing_html(name)
    assert "\n" not in str(caught.value)


def test_alt_of_the_page_rescues_a_mute_figure(toy):
    assert 'aria-label="two boxes"' in drawing.drawing_html(f"{toy}:mute", alt="two boxes")


def test_the_directive_draws_and_warns(toy, tmp_path):
    from io import StringIO

    from sphinx.application import Sphinx
    from sphinx.util.docutils import docutils_namespace, patch_docutils

    source = tmp_path / "source"
    source.mkdir()
    (source / "conf.py").write_text("extensions = ['myst_parser', 'toy_ext']\n", encoding="utf-8")
    (tmp_path / "toy_ext.py").write_text(
        "def setup(app):\n    from labkit.book.drawing import Drawing\n    app.add_directive('drawing', Drawing)\n",
        encoding="utf-8",
    )
    (source / "index.md").write_text(
        "# T\n\n```{drawing} questions_toy:curve\n:alt: a curve\n:caption: with text\n```\n\n"
        "```{drawing} questions_toy:none\n```\n",
        encoding="utf-8",
    )
    warnings, out = StringIO(), tmp_path / "out"
    import sys

    sys.path.insert(0, str(tmp_path))
    try:
        with patch_docutils(str(source)), docutils_namespace():
            app = Sphinx(source, source, out, tmp_path / "trees", "html", status=None, warning=warnings)
            app.build()
    finally:
        sys.path.remove(str(tmp_path))
        sys.modules.pop("toy_ext", None)
    html = (out / "index.html").read_text(encoding="utf-8")
    assert html.count('class="lk-plotly"') == 1 and 'aria-label="a curve"' in html and "with text" in html
    assert "{drawing} questions_toy:none: unknown function" in warnings.getvalue()
    assert "index.md:8" in warnings.getvalue()
    assert isinstance(drawing.drawing_function("questions_toy:curve")(), go.Figure)

"""Figures and scripts of a page: texts around the drawing, data that cannot break out, nothing from another host."""

import json
import re
from types import SimpleNamespace

import pytest
from sphinx.errors import ExtensionError

from labkit.book import offline, vendor
from labkit.book.flow import ALT, ARROWS, BOXES, HEIGHT, WIDTH, flow_svg
from labkit.book.plotly_mime import PLOTLY, PlotlyMime, figure_html, figure_texts
from labkit.paths import ROOT
from labkit.plots import style


def plotly_json(fig):
    return json.loads(fig.to_json())


def test_title_caption_and_alt_surround_the_drawing():
    html = figure_html(plotly_json(style.figure("A <b> & c", x="x", y="y", caption="run r1", alt='says "so"')))
    assert '<p class="lk-plot-title">A &lt;b&gt; &amp; c</p>' in html
    assert 'aria-label="says &quot;so&quot;"' in html and "<figcaption>run r1</figcaption>" in html


def test_data_survives_and_cannot_close_its_script():
    fig = plotly_json(style.figure("t", x="x", y="</script><!-- <script>alert(1)</script>", height=333))
    html = figure_html(fig)
    (payload,) = re.findall(r'<script type="application/json">(.*?)</script>', html, re.S)
    assert html.count("</script>") == 1 and "<!--" not in payload
    shown = json.loads(payload)
    assert shown["layout"]["yaxis"]["title"]["text"] == "</script><!-- <script>alert(1)</script>"
    assert "title" not in shown["layout"], "the page prints the title, the drawing must not repeat it"
    assert "min-height:333px" in html


def test_texts_of_foreign_figures():
    assert figure_texts({"data": []}) == {"title": "", "alt": "", "caption": ""}
    assert figure_texts({"layout": {"title": "old style"}})["alt"] == "old style"


def test_a_figure_without_alternative_text_warns(monkeypatch):
    from labkit.book import plotly_mime

    seen = []
    monkeypatch.setattr(plotly_mime.logger, "warning", lambda message, **_: seen.append(message))
    data = SimpleNamespace(mime_type=PLOTLY, content={"data": [], "layout": {}})
    assert PlotlyMime.handle_mime(None, data, inline=False) and len(seen) == 1
    data.content = plotly_json(style.figure("t", x="x", y="y"))
    assert PlotlyMime.handle_mime(None, data, inline=False) and len(seen) == 1
    data.mime_type = "text/html"
    assert PlotlyMime.handle_mime(None, data, inline=False) is None


def test_assets_from_other_hosts_are_dropped():
    asset = lambda name, body="": SimpleNamespace(filename=name, attributes={"body": body})  # noqa: E731
    context = {
        "css_files": [
            asset("https://cdn.example/x.css"),
            asset("//cdn.example/y.css"),
            asset("_static/labkit.css"),
            "_static/a.css",
        ],
        "script_files": [
            asset("http://cdn.example/x.js"),
            asset("_static/sphinx-thebe.js"),
            asset(None, 'const THEBE_JS_URL = "x"'),
            asset("_static/tables.js"),
            asset(None, "let ours = 1"),
        ],
    }
    offline.drop_outside_assets(None, "page", "page.html", context, None)
    assert [getattr(a, "filename", a) for a in context["css_files"]] == ["_static/labkit.css", "_static/a.css"]
    assert [(a.filename, a.attributes["body"]) for a in context["script_files"]] == [
        ("_static/tables.js", ""),
        (None, "let ours = 1"),
    ]


def test_vendored_files_are_whole_and_ask_for_nothing(tmp_path):
    files = vendor.vendored_files()
    assert set(files) == {"tex-svg.js", "plotly.min.js"} and all(
        path.stat().st_size > 1_000_000 for path in files.values()
    )
    app = SimpleNamespace(builder=SimpleNamespace(format="html"), outdir=tmp_path)
    vendor.copy_vendored(app)
    for name, source in files.items():
        assert (tmp_path / "_static" / "vendor" / name).read_bytes() == source.read_bytes()
    app.builder.format, app.outdir = "latex", tmp_path / "other"
    vendor.copy_vendored(app)
    assert not (tmp_path / "other").exists()


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setattr(vendor.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ExtensionError, match="install django-static-mathjax"):
        vendor.vendored_files()


@pytest.mark.parametrize("tall", [False, True])
def test_boxes_of_the_flow_do_not_touch(tall):
    places = [box.tall if tall else box.wide for box in BOXES]
    for i, (x, y) in enumerate(places):
        for a, b in places[i + 1 :]:
            assert abs(x - a) >= WIDTH + 10 or abs(y - b) >= HEIGHT + 10
    svg = flow_svg(tall=tall)
    width, height = map(int, re.search(r'viewBox="-2 -2 (\d+) (\d+)"', svg).groups())
    assert max(x for x, _ in places) + WIDTH <= width and max(y for _, y in places) + HEIGHT <= height
    assert svg.count("<path d=") == len(ARROWS) + 1 and ALT.split(".")[0] in svg


def test_the_committed_picture_is_the_drawn_one():
    """Else: python -m labkit.book.flow > book/assets/flow.svg."""
    assert (ROOT / "book" / "assets" / "flow.svg").read_text(encoding="utf-8").strip() == flow_svg(inline=False)

"""The built book in a browser: whole, readable on a phone and in the dark, and silent on the network."""

import re
from pathlib import Path

import pytest

from tests.site.conftest import HTML, SCREENS, TIMEOUT_MS, pages

pytestmark = pytest.mark.site

CHECKS = (Path(__file__).parent / "checks.js").read_text(encoding="utf-8")


def ask(page, name):
    return page.evaluate(f"() => ({CHECKS}).{name}()")


def wait_until_none(page, name):
    page.wait_for_function(f"() => ({CHECKS}).{name}() === 0", timeout=TIMEOUT_MS)


def screenshot(page, path, width, scheme):
    SCREENS.mkdir(parents=True, exist_ok=True)
    name = f"{path.removesuffix('.html').replace('/', '_')}-{width}-{scheme}.png"
    page.evaluate("scrollTo(0, 0)")
    page.screenshot(path=SCREENS / name, full_page=False)


def test_there_are_pages(site):
    assert len(pages()) >= 10, "the book lost its pages"


VIEWS = (("desktop", "light"), ("phone", "light"), ("phone", "dark"), ("desktop", "dark"))
"""What a page is looked at with: those of LONG in all four views, others in two, with both widths and both schemes."""
LONG = ("notebooks/", "book/index", "book/hardware", "book/claim-ledger")
SHOWN = (("desktop", "light"), ("phone", "dark"))


def look(tab, path, views):
    """Check an open page in each view; returns nothing, fails on the first problem."""
    page = tab.page
    page.wait_for_load_state("load", timeout=TIMEOUT_MS)
    page.bring_to_front()
    page.evaluate("() => dispatchEvent(new Event('beforeprint'))")  # draws the figures further down too
    for width, scheme in views:
        tab.show(width, scheme)
        page.wait_for_selector(f"html[data-theme={scheme}]", state="attached", timeout=TIMEOUT_MS)
        wait_until_none(page, "unready")
        assert ask(page, "problems") == [], f"{width}, {scheme}"
        if (width, scheme) in SHOWN:
            screenshot(page, path, width, scheme)
    assert tab.seen.outside == [], "the page asked another host"
    assert tab.seen.errors == [] and tab.seen.missing == []


def test_every_page(two_tabs, subtests):
    """Each page in each view; while one tab is looked at, the other loads the next page."""
    plan = []
    for number, path in enumerate(pages()):
        views = VIEWS[:: 1 if number % 2 else -1]  # every other page is opened in the dark
        plan.append((path, views if path.startswith(LONG) else views[::2]))
    two_tabs[0].start(*plan[0])
    for number, (path, views) in enumerate(plan):
        if number + 1 < len(plan):
            two_tabs[(number + 1) % 2].start(*plan[number + 1])
        with subtests.test(page=path):
            look(two_tabs[number % 2], path, views)


def test_start_page_leads_to_the_book(visit):
    page, seen = visit("index.html")
    page.wait_for_url("**/book/index.html")
    assert "claims that run" in page.title() and seen.missing == []
    assert page.locator("svg.lk-flow-wide").is_visible() and not page.locator("svg.lk-flow-tall").is_visible()


def test_flow_is_upright_on_a_phone(visit):
    page, _ = visit("book/index.html", width="phone")
    assert page.locator("svg.lk-flow-tall").is_visible() and not page.locator("svg.lk-flow-wide").is_visible()


def test_internal_links_lead_somewhere(site):
    """Every link between pages has its file, and every anchor its element."""
    names = [*pages(), "index.html", "search.html", "genindex.html"]
    text = {path: (HTML / path).read_text(encoding="utf-8") for path in names}
    ids = {path: set(re.findall(r'\bid="([^"]+)"', html)) for path, html in text.items()}
    broken = set()
    for path in pages():
        body = text[path].split("<article", 1)[-1].split("</article>", 1)[0]
        for href in re.findall(r'<a [^>]*href="([^"]+)"', body):
            if re.match(r"[a-z]+:", href):
                continue
            file, _, anchor = href.partition("#")
            target = ((HTML / path).parent / file).resolve() if file else (HTML / path).resolve()
            name = target.relative_to(HTML.resolve()).as_posix()
            if not target.is_file() or (anchor and name in ids and anchor not in ids[name]):
                broken.add(f"{path}: {href}")
    assert not broken


def test_every_number_has_a_badge_with_a_link(site):
    for path in pages():
        html = (HTML / path).read_text(encoding="utf-8")
        badges = re.findall(r'class="lk-badge lk-\w+ reference internal" href="[^"]*#', html)
        assert len(re.findall(r'class="lk-number[ "]', html)) == len(badges), path


def test_search_finds_a_page(visit):
    page, seen = visit("search.html?q=oracle")
    page.wait_for_selector("#search-results li a", timeout=15000)
    results = page.locator("#search-results li a").all_inner_texts()
    assert any("evidence" in text.lower() or "rules" in text.lower() for text in results), results
    assert seen.outside == [] and seen.errors == []


@pytest.mark.parametrize("width", ["desktop", "phone"])
def test_ledger_filters_sorts_and_shows_what_is_linked(visit, width):
    page, seen = visit("book/claim-ledger.html", width=width)
    table, rows = page.locator("table.lk-filter"), page.locator("table.lk-filter tbody tr")
    total = rows.count()
    visible = lambda: page.locator("table.lk-filter tbody tr:not([hidden])")  # noqa: E731
    assert total > 100 and visible().count() == total
    page.get_by_label("contains").fill("ddp-bucket-count")
    few = visible().count()
    assert 1 <= few < 20 and all("ddp-bucket-count" in text for text in visible().all_text_contents())
    assert f"{few} of {total}" in page.locator(".lk-tools output").inner_text()
    page.get_by_label("contains").fill("")
    page.locator(".lk-tools select[name=status]").select_option("differs")
    assert 0 < visible().count() < total
    assert all(text.strip() == "differs" for text in visible().locator(".lk-f-status").all_text_contents())
    page.evaluate("() => { location.hash = '#claim-ddp-bucket-count'; }")
    page.wait_for_function("() => !document.getElementById('claim-ddp-bucket-count').hidden")
    if width == "desktop":
        page.get_by_role("button", name="claim").click()
        assert table.locator("th[aria-sort=ascending]").count() == 1
        ids = "(rows) => rows.map((row) => row.id.split('-')[1])"
        topics = lambda: rows.evaluate_all(ids)  # noqa: E731
        assert topics() == sorted(topics())
        page.get_by_role("button", name="claim").click()
        assert topics() == sorted(topics(), reverse=True) and table.locator("th[aria-sort=descending]").count() == 1
    assert seen.errors == []


def test_a_badge_can_be_reached_and_heard(visit):
    page, _ = visit("book/index.html")
    badge = page.locator("article .lk-number a.lk-badge").first
    badge.focus()
    assert page.evaluate("() => document.activeElement.classList.contains('lk-badge')")
    assert re.search(r"\(.+\)", badge.text_content()) and badge.get_attribute("title").endswith(".")
    badge.click()
    page.wait_for_url(re.compile(r"\.html#(claim|run|formula|hardware)-"))
    assert page.evaluate("() => !!document.querySelector(':target')")


def test_theme_switch_repaints_figures(visit):
    path = next((path for path in pages() if 'class="lk-plotly"' in (HTML / path).read_text(encoding="utf-8")), None)
    assert path, "no page has a figure"
    page, _ = visit(path)
    box = page.locator(".lk-plotly").first
    box.scroll_into_view_if_needed()
    page.wait_for_selector(".lk-plotly[data-ready]")
    tick = "() => getComputedStyle(document.querySelector('.lk-plotly .xtick text, .lk-plotly .ytick text')).fill"
    before = page.evaluate(tick)
    page.evaluate("() => { document.documentElement.dataset.theme = 'dark'; }")
    page.wait_for_function(f"(before) => ({tick})() !== before", arg=before)
    assert page.evaluate("() => document.querySelectorAll('.lk-plotly .main-svg').length") > 0


def test_folded_answers_open(visit):
    page, _ = visit("book/formulas.html")
    fold = page.locator("article .admonition.dropdown").first
    body = fold.locator("> :not(.admonition-title)").first
    assert not body.is_visible()
    fold.locator(".admonition-title").first.click()
    body.wait_for(state="visible")

"""A server for the built book and one headless Chromium; whatever leaves localhost is blocked and recorded.

The tests read build/_build/html. They fail, not skip, when it is not there: `make book` first. They skip only without a
Chromium, and say so.
"""

import functools
import http.server
import shutil
import threading
from dataclasses import dataclass, field

import pytest

from labkit.paths import BUILD

HTML = BUILD / "_build" / "html"
SCREENS = BUILD / "screens"
WIDTHS = {"desktop": 1280, "phone": 390}
TIMEOUT_MS = 30_000
# Everything but this machine goes to a proxy that does not exist: nothing leaves, and the attempt is seen.
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--proxy-server=127.0.0.1:1",
]


def pages():
    """Paths of all pages of the built book, as addresses below the root."""
    skipped = {"genindex.html", "search.html", "index.html"}
    found = (path.relative_to(HTML).as_posix() for path in HTML.rglob("*.html") if "_static" not in path.parts)
    return sorted(set(found) - skipped)


@dataclass
class Visit:
    """What happened while a page was open."""

    outside: list = field(default_factory=list)
    errors: list = field(default_factory=list)
    missing: list = field(default_factory=list)


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *arguments):
        pass


@pytest.fixture(scope="session")
def site():
    assert (HTML / "index.html").is_file(), f"the book is not built: {HTML} has no index.html; run make book"
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(QuietHandler, directory=str(HTML)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join(timeout=10)


@pytest.fixture(scope="session")
def chromium():
    from playwright.sync_api import sync_playwright

    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("no chromium on this machine (Debian: apt-get install chromium)")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def contexts(chromium):
    """(width name, scheme) -> browser context, each made once, so that scripts are cached between pages."""
    made = {}

    def get(width, scheme):
        if (width, scheme) not in made:
            context = chromium.new_context(viewport={"width": WIDTHS[width], "height": 900}, color_scheme=scheme)
            made[width, scheme] = context
        return made[width, scheme]

    yield get
    for context in made.values():
        context.close()


@pytest.fixture
def visit(contexts, site):
    """Open a page: (page, Visit)."""
    opened = []

    def go(path, *, width="desktop", scheme="light", wait_until="load"):
        page, seen = contexts(width, scheme).new_page(), Visit()
        opened.append(page)
        ours = (site, "data:", "blob:")
        page.on("request", lambda r: seen.outside.append(r.url) if not r.url.startswith(ours) else None)
        page.on("pageerror", lambda error: seen.errors.append(str(error)))
        page.on("response", lambda r: seen.missing.append(f"{r.status} {r.url}") if r.status >= 400 else None)
        page.goto(f"{site}/{path}", wait_until=wait_until, timeout=TIMEOUT_MS)
        return page, seen

    yield go
    for page in opened:
        page.close()

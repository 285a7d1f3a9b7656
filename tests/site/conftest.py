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


class Tab:
    """A browser tab that notes what its page asks for and what goes wrong."""

    def __init__(self, context, site):
        self.page, self.site, self.seen = context.new_page(), site, Visit()
        self.page.on("request", self._request)
        self.page.on("pageerror", lambda error: self.seen.errors.append(str(error)))
        self.page.on("response", self._response)

    def _request(self, request):
        if not request.url.startswith((self.site, "data:", "blob:")):
            self.seen.outside.append(request.url)

    def _response(self, response):
        if response.status >= 400:
            self.seen.missing.append(f"{response.status} {response.url}")

    def show(self, width, scheme):
        self.page.set_viewport_size({"width": WIDTHS[width], "height": 900})
        self.page.emulate_media(color_scheme=scheme)

    def go(self, path, *, wait_until="load"):
        self.seen = Visit()
        self.page.goto(f"{self.site}/{path}", wait_until=wait_until, timeout=TIMEOUT_MS)

    def start(self, path, views):
        """Begin to load a page in the first of its views."""
        self.show(*views[0])
        self.go(path, wait_until="commit")


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


@pytest.fixture
def two_tabs(chromium, site):
    """Two tabs that share no process, so that two cores can work."""
    contexts = [chromium.new_context() for _ in range(2)]
    yield [Tab(context, site) for context in contexts]
    for context in contexts:
        context.close()


@pytest.fixture(scope="session")
def context(chromium):
    with chromium.new_context() as shared:
        yield shared


@pytest.fixture
def visit(context, site):
    """Open a page: (page, Visit)."""
    tabs = []

    def go(path, *, width="desktop", scheme="light"):
        tabs.append(Tab(context, site))
        tabs[-1].show(width, scheme)
        tabs[-1].go(path)
        return tabs[-1].page, tabs[-1].seen

    yield go
    for tab in tabs:
        tab.page.close()

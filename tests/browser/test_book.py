"""The built book in Chromium: it asks for nothing but its own files, fits narrow screens, and changes its language."""

from __future__ import annotations

from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

SITE = Path(__file__).parents[2] / "build" / "site"
needs_site = pytest.mark.skipif(not (SITE / "index.html").exists(), reason="run make docs first")
PAGES = ("index", "family/bert", "family/t5", "tutorials/nsmc", "coming-from/transformers", "reference/settings")


class QuietHandler(SimpleHTTPRequestHandler):
    """Answers without a log."""

    def log_message(self, *words: object) -> None:
        pass


@pytest.fixture(scope="module")
def served_site():
    """The site behind HTTP: axe-core reads style sheets, which a browser refuses it for files."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietHandler, directory=str(SITE)))
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@needs_site
@pytest.mark.parametrize("language", ["en", "ko"])
@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1440, "light")])
def test_pages_ask_for_their_own_files_alone_and_fit_the_screen(language, width, scheme, open_page, save_shot):
    for name in PAGES:
        watch = open_page((SITE / language / f"{name}.html").as_uri(), width, 844, scheme)
        assert not watch.list_requests("file:")
        assert watch.page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, name
        save_shot(watch.page, f"book-{language}-{name.replace('/', '-')}-{width}-{scheme}")


@needs_site
def test_a_page_leads_to_its_counterpart_and_the_root_remembers_the_language(open_page):
    page = open_page((SITE / "en" / "family" / "bert.html").as_uri()).page
    page.click(".book-language a")
    page.wait_for_url("**/ko/family/bert.html")
    assert page.inner_text(".toc-title").strip() == "이 페이지에서"
    page.goto((SITE / "index.html").as_uri())
    page.wait_for_url("**/ko/index.html")


@needs_site
@pytest.mark.parametrize("language", ["en", "ko"])
def test_the_book_is_accessible(language, served_site, open_page, check_access):
    for name in ("index", "family/gpt2", "tutorials/serve"):
        check_access(open_page(f"{served_site}/{language}/{name}.html").page)


@needs_site
def test_a_search_finds_korean_words_with_particles(open_page):
    page = open_page((SITE / "ko" / "search.html").as_uri() + "?q=어텐션을").page
    # Results appear one after the other while the search continues.
    page.wait_for_function("document.querySelectorAll('#search-results li a').length > 5")

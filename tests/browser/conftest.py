"""Headless Chromium for the tests of the pages. They run by `make browser`, which sets FORMERS_BROWSER."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from .helpers import SECONDS
from .stub_server import run_stub_server

if not os.environ.get("FORMERS_BROWSER"):
    collect_ignore_glob = ["test_*.py"]

# Chromium's own services are switched off: whatever is asked for is asked by the page. No name resolves but loopback.
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
]  # fmt: skip
SERIOUS = ("serious", "critical")


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    from playwright.sync_api import expect, sync_playwright

    program = os.environ.get("FORMERS_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    expect.set_options(timeout=1000 * SECONDS)
    assert program, "no Chromium: apt-get install chromium, or set FORMERS_CHROMIUM to one"
    with sync_playwright() as playwright:
        # With scroll bars, as people have them: they take room, which headless Chromium would hide.
        bars = ["--hide-scrollbars"]
        started = playwright.chromium.launch(executable_path=program, args=FLAGS, ignore_default_args=bars)
        yield started
        started.close()


class Watch:
    """A page with a record of its requests and errors."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.requests: list[str] = []
        self.errors: list[str] = []
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("console", lambda line: self.errors.append(line.text) if line.type == "error" else None)

    def list_requests(self, allowed: str) -> list[str]:
        """Requests to anywhere but an address and the page itself (data and blob addresses stay in the browser)."""
        return [url for url in self.requests if not url.startswith((allowed, "data:", "blob:"))]


@pytest.fixture
def open_page(browser: Any) -> Iterator[Callable[..., Watch]]:
    """Open a page of a size, a colour scheme and a language; it must end without an error."""
    watches, contexts = [], []

    def open_one(
        address: str, width: int = 1280, height: int = 860, scheme: str = "light", language: str = "en-US"
    ) -> Watch:
        view = {"width": width, "height": height}
        context = browser.new_context(viewport=view, color_scheme=scheme, locale=language, accept_downloads=True)
        context.set_default_timeout(1000 * SECONDS)
        contexts.append(context)
        watch = Watch(context.new_page())
        watches.append(watch)
        watch.page.goto(address)
        return watch

    yield open_one
    errors = [error for watch in watches for error in watch.errors]
    for context in contexts:
        context.close()
    assert not errors


@pytest.fixture
def save_shot() -> Callable[[Any, str], None]:
    """Keep a picture of the page in FORMERS_SHOTS, if it is set, for somebody to look at."""
    folder = os.environ.get("FORMERS_SHOTS")

    def save(page: Any, name: str) -> None:
        if folder:
            Path(folder).mkdir(parents=True, exist_ok=True)
            page.screenshot(path=Path(folder) / f"{name}.png", full_page=True)

    return save


@pytest.fixture
def check_access() -> Callable[[Any], None]:
    """Run axe-core on a page: nothing serious or critical may be found."""
    path = os.environ.get("FORMERS_AXE", "")
    source = Path(path).read_text(encoding="utf-8") if path else None
    assert source, "axe-core is missing: run `make browser`, which fetches it"

    def check(page: Any) -> None:
        page.evaluate(source)
        found = page.evaluate("async () => (await axe.run(document, {resultTypes: ['violations']})).violations")
        bad = [
            f"{one['impact']} {one['id']}: {one['nodes'][0]['html'][:160]} {one['nodes'][0].get('failureSummary')}"
            for one in found
            if one["impact"] in SERIOUS
        ]
        assert not bad, "\n".join(bad)

    return check


@pytest.fixture(scope="session")
def stub_address() -> Iterator[str]:
    with run_stub_server() as address:
        yield address

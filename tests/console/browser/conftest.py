"""A real Chromium that looks at the console of a real server.

Playwright's synchronous face keeps an event loop running in its thread, so the browser lives as long as one module and
no longer: tests of other folders may want a loop of their own. Whatever the page complains about (errors, refused
scripts, answers that were not expected) fails the test that made it do so.
"""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from tests.console.browser.pages import ARGUMENTS, Look, Watched

INSTALL = "apt-get install chromium, or scripts/install-test-tools.sh"
expect.set_options(timeout=30_000)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    if found is None:
        if os.environ.get("CI"):
            pytest.fail(f"There is no chromium, so nothing was seen of the console: {INSTALL}")
        pytest.skip(f"NO BROWSER: the console was not looked at. {INSTALL}")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=found, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture
def unused_port() -> int:
    """Free just now."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


@pytest.fixture(scope="module")
def desk(browser: Browser) -> BrowserContext:
    """For all pages that need nothing special: its cache makes them quicker."""
    return browser.new_context(viewport={"width": 1280, "height": 860})


@pytest.fixture
def look(browser: Browser, desk: BrowserContext) -> Iterator[Look]:
    """Opens pages; at the end of the test none of them may have complained."""
    opened: list[Watched] = []
    contexts = []

    def open_page(url: str, *, forgives: str = "", **options: Any) -> Page:
        context = desk
        if options:
            context = browser.new_context(**{"viewport": {"width": 1280, "height": 860}, **options})
            contexts.append(context)
        context.set_default_timeout(30_000)
        page = context.new_page()
        opened.append(Watched(page, forgives))
        page.goto(url)
        return page

    yield open_page
    complaints = [text for watched in opened for text in watched.complaints]
    for watched in opened:
        watched.page.close()
    for context in contexts:
        context.close()
    assert not complaints, "\n".join(complaints)

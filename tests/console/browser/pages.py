"""What the tests of the console share: a page that is watched, and words for what is done on it."""

from __future__ import annotations

import re
from typing import Protocol

from playwright.sync_api import ConsoleMessage, Locator, Page, Request, expect

ARGUMENTS = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--disable-dev-shm-usage"),
]


class Look(Protocol):
    def __call__(self, url: str, *, forgives: str = "", **options: object) -> Page: ...


class Watched:
    """Collects what a page complains about, except for what the pattern `forgives` matches, and where it goes."""

    def __init__(self, page: Page, forgives: str) -> None:
        self.page = page
        self.complaints: list[str] = []
        self._forgives = re.compile(forgives) if forgives else None
        page.on("console", self._on_console)
        page.on("pageerror", lambda error: self._note(f"uncaught: {error}"))
        page.on("request", self._on_request)

    def _on_console(self, said: ConsoleMessage) -> None:
        if said.type in ("error", "warning"):
            self._note(f"{said.type}: {said.text} ({said.location.get('url', '')})")

    def _on_request(self, request: Request) -> None:
        if not re.match(r"http://(127\.0\.0\.1|localhost):\d+/", request.url):
            self._note(f"it reached out to {request.url}")

    def _note(self, text: str) -> None:
        if self._forgives is None or not self._forgives.search(text):
            self.complaints.append(text)


def heading(page: Page, text: str) -> None:
    expect(page.locator("main h1")).to_contain_text(text)


def dialog(page: Page) -> Locator:
    found = page.locator("dialog[open]")
    expect(found).to_be_visible()
    return found


def confirm(page: Page, button: str) -> None:
    """Press this button of the dialog and see it close; another one may follow."""
    title = dialog(page).get_attribute("aria-labelledby")
    dialog(page).get_by_role("button", name=button, exact=True).click()
    expect(page.locator(f"dialog[aria-labelledby={title}]")).to_have_count(0)


def told(page: Page, text: str | re.Pattern[str]) -> None:
    """A note says so; it is closed afterwards, so that the next one is not mistaken for it."""
    note = page.locator(".toast").filter(has_text=text)
    expect(note.first).to_be_visible()
    note.first.get_by_role("button").click()


def row(page: Page, table: str, text: str) -> Locator:
    return page.get_by_role("table", name=table).locator("tbody tr").filter(has_text=text)

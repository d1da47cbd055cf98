"""Makes the pictures of docs/console: a real server with some load, a real Chromium, one picture for each view.

    python -m scripts.console_pictures [--url http://127.0.0.1:7480]     # takes about three minutes

Without --url it starts a server and the load of console_load.py itself. Colours are reduced to a
palette, so that pictures stay small.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, Page, expect, sync_playwright

from fairlead.testing import Server
from tests.console.browser.pages import ARGUMENTS

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "docs" / "console"
BYTES_MAX = 150_000
WARM_S = 150.0


@contextlib.contextmanager
def shop() -> Iterator[str]:
    """A server under load, long enough for its charts to show something, and a live update in the middle of it."""
    with Server(console=True, managers=2) as server:
        server.wait_until(lambda report: report["messages"]["state"] == "active", 30)
        load = subprocess.Popen([sys.executable, str(ROOT / "scripts" / "console_load.py"), server.url])
        try:
            time.sleep(WARM_S / 2)
            server.update("router")
            time.sleep(WARM_S / 2)
            yield server.console_url
        finally:
            load.terminate()
            load.wait(30)


def reduced(image: Image.Image) -> Image.Image:
    """With 256 colours: the most frequent ones exactly, and for the rest such as come near to the rare ones, too."""
    frequent = sorted(image.getcolors(1 << 24), reverse=True)[:192]
    rare = image.quantize(64, method=Image.Quantize.MAXCOVERAGE).getpalette() or []
    palette = Image.new("P", (1, 1))
    palette.putpalette([*(part for _, colour in frequent for part in colour), *rare][: 3 * 256])
    return image.quantize(palette=palette, dither=Image.Dither.NONE)


def replace_router(page: Page) -> None:
    """A live update as an operator orders it, so that the picture shows one."""
    page.locator("[data-name=router]").click()
    page.get_by_role("button", name="Replace it live …").click()
    page.locator("dialog[open]").get_by_role("button", name="Replace it").click()
    page.locator(".toast").get_by_role("button").click(timeout=60_000)
    page.get_by_role("button", name="Close", exact=True).click()


def picture(page: Page, name: str) -> None:
    page.mouse.move(0, 0)
    page.wait_for_timeout(1500)
    image = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    path = OUT / f"{name}.png"
    reduced(image).save(path, optimize=True)
    assert path.stat().st_size < BYTES_MAX
    print(f"{path.relative_to(ROOT)}: {path.stat().st_size:,} bytes")


def visit(page: Page, url: str, where: str) -> None:
    page.goto(f"{url}/#/{where}")
    expect(page.locator("[data-line=live]").first).to_be_attached(timeout=30_000)
    expect(page.locator("main [aria-busy]")).to_have_count(0, timeout=30_000)


def take(browser: Browser, url: str) -> None:
    page = browser.new_context(viewport={"width": 1280, "height": 800}).new_page()
    for where in ("topology", "destinations", "dead", "charts", "connections", "events", "schedules"):
        visit(page, url, where)
        if where == "topology":
            replace_router(page)
        if where == "charts":
            page.get_by_role("button", name="5 min", exact=True).click()
        picture(page, where)
    visit(page, url, "destinations/orders")
    picture(page, "destination")
    visit(page, url, "destinations/emails")
    page.get_by_role("table", name="Messages").get_by_role("button").first.click()
    page.locator(".message pre").scroll_into_view_if_needed()
    page.evaluate("document.querySelector('.message').scrollIntoView({ block: 'start' })")
    picture(page, "message")
    visit(page, url, "dead")
    page.get_by_role("button", name="Redrive …").first.click()
    expect(page.locator("dialog[open]")).to_be_visible(timeout=30_000)
    picture(page, "redrive")
    dark = browser.new_context(viewport={"width": 1280, "height": 800}, color_scheme="dark").new_page()
    visit(dark, url, "topology")
    picture(dark, "topology-dark")
    phone = browser.new_context(viewport={"width": 390, "height": 844}, is_mobile=True, has_touch=True).new_page()
    visit(phone, url, "destinations")
    picture(phone, "phone")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="", help="of a console that runs already, under some load")
    asked = parser.parse_args()
    OUT.mkdir(exist_ok=True)
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    if found is None:
        sys.exit("There is no chromium: apt-get install chromium, or scripts/install-test-tools.sh")
    with contextlib.ExitStack() as stack:
        url = asked.url or stack.enter_context(shop())
        driver = stack.enter_context(sync_playwright())
        browser = driver.chromium.launch(executable_path=found, args=ARGUMENTS)
        take(browser, url)
        browser.close()


if __name__ == "__main__":
    main()

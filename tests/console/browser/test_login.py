"""The door of the console, where there are users."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from fairlead import sync
from fairlead.testing import Server
from tests.console.browser.pages import Look, heading

pytestmark = pytest.mark.processes


def add_user(data: Path, name: str, *rights: str) -> None:
    command = [sys.executable, "-m", "fairlead", "user", "add", name, "--password-stdin", "--data", str(data), *rights]
    subprocess.run(command, input=f"{name}-secret\n", text=True, check=True, capture_output=True, timeout=60)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    data = tmp_path_factory.mktemp("guarded")
    add_user(data, "alice", "--admin", "_ADMIN")
    add_user(data, "bob", "--publish", "public.>", "--subscribe", "public.>")
    with Server(console=True, data=data) as one:
        one.wait_until(lambda report: report["messages"]["state"] == "active", 30)
        with sync.connect(one.url, user="alice", password="alice-secret") as connection:
            connection.queue("public.offers").send(b"one")
            connection.queue("secret.plans").send(b"two")
        yield one


def log_in(page: Page, user: str, password: str) -> None:
    page.get_by_label("User").fill(user)
    page.get_by_label("Password").fill(password)
    page.get_by_role("button", name="Log in").click()


def test_a_wrong_password_is_told_and_the_right_one_opens(server: Server, look: Look) -> None:
    page = look(server.console_url, forgives="401", locale="en")
    expect(page.get_by_role("heading", name="Fairlead console")).to_be_visible()
    log_in(page, "alice", "guessed")
    expect(page.get_by_role("alert")).to_contain_text("password")
    expect(page.get_by_label("Password")).to_have_value("")
    log_in(page, "alice", "alice-secret")
    heading(page, "Topology")
    expect(page.locator(".side footer")).to_contain_text("You are alice")
    expect(page.locator("[data-line=live]").first).to_be_attached()
    page.reload()
    heading(page, "Topology")
    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_label("Password")).to_be_visible()
    page.reload()
    expect(page.get_by_label("Password")).to_be_visible()


def test_who_may_not_is_refused_with_a_sentence(server: Server, look: Look) -> None:
    page = look(server.console_url, forgives="403", locale="en")
    log_in(page, "bob", "bob-secret")
    heading(page, "Destinations")
    expect(page.get_by_role("link", name="Topology")).to_have_count(0)
    expect(page.get_by_role("link", name="public.offers")).to_be_visible()
    expect(page.get_by_role("link", name="secret.plans")).to_have_count(0)
    page.evaluate("location.hash = '#/destinations/secret.plans'")
    expect(page.get_by_role("alert")).to_contain_text("'bob' may not see this destination")
    page.evaluate("location.hash = '#/connections'")
    expect(page.get_by_role("alert").first).to_contain_text("'bob' may not administer this server.")
    page.evaluate("location.hash = '#/destinations/public.offers'")
    heading(page, "public.offers")
    expect(page.get_by_role("button", name="Purge …")).to_have_count(0)

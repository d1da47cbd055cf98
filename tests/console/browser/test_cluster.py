"""A failover of a real cluster, as the page of a client manager shows it."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from fairlead.testing import Cluster
from tests.console.browser.pages import Look

pytestmark = [pytest.mark.processes, pytest.mark.nodes]
CONSOLE = '\n[console]\nenabled = true\nlisten = ["127.0.0.1:{port}"]\n'


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_failover_is_seen_happening(look: Look, unused_port: int) -> None:
    cluster = Cluster(cms=1, groups=1)
    file = cluster.directory / "cm1" / "node.toml"
    file.write_text(file.read_text() + CONSOLE.format(port=unused_port))
    with cluster:
        page = look(f"http://127.0.0.1:{unused_port}")
        before = cluster.primary("a")
        drawing = page.locator("svg.topology")
        expect(drawing.locator(f"[data-name={before}]")).to_contain_text("a primary")
        cluster.kill(before)
        expect(page.locator(".changes")).to_contain_text(f"(before: {before})", timeout=60_000)
        after = {"mm1": "mm2", "mm2": "mm1"}[before]
        expect(page.locator(".changes")).to_contain_text(f"Group a: {after} leads at epoch")
        expect(drawing.locator(f"[data-name={after}]")).to_contain_text("a primary")
        expect(drawing.locator(f"[data-name={before}]")).to_contain_text("does not answer")
        cluster.start(before)
        expect(page.locator(".changes")).to_contain_text(f"Node {before} is there again", timeout=60_000)

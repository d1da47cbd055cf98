"""Links where users have passwords: the bridge needs the right to `_LINK`, and who sent a message stays known."""

from __future__ import annotations

from pathlib import Path

import pytest

import fairlead
from fairlead.security.passwords import hash_password
from fairlead.testing import Server
from tests.sites.tools import SMALL, are_up, free_ports, reached

pytestmark = pytest.mark.processes


@pytest.mark.requirement("SRV-117")
async def test_the_sender_s_user_is_known_beyond_a_link_and_a_bridge_needs_the_right(tmp_path: Path) -> None:
    secret = hash_password("secret")
    lists = 'publish = [">", "_LINK"]\nsubscribe = [">", "_LINK"]\n'
    for name in ("root", "leaf"):
        (tmp_path / name).mkdir()
        file = tmp_path / name / "users.toml"
        may_link = lists if name == "leaf" else ""
        file.write_text(f'[users.alice]\nhash = "{secret}"\n[users.bridge]\nhash = "{secret}"\n{may_link}')
        file.chmod(0o600)
    [port] = free_ports(1)
    with Server(managers=1, data=tmp_path / "root", **SMALL) as root:
        links = {
            "links.parents": root.url.replace("//", "//bridge:secret@"),
            "links.own": f"fairlead://bridge:secret@127.0.0.1:{port}",
        }
        with Server(managers=1, data=tmp_path / "leaf", listen=f"127.0.0.1:{port}", **{**SMALL, **links}) as leaf:
            report = leaf.wait_until(lambda report: bool(report["links"]) and report["links"][0]["refused"] != "", 20)
            assert report["links"][0]["state"] == "down"
            assert "_LINK" in report["links"][0]["refused"]
            with (tmp_path / "root" / "users.toml").open("a") as rules:
                rules.write(lists)
            root.ask("reload")
            leaf.wait_until(lambda report: are_up(report, 1), 20)
            async with (
                fairlead.connect(leaf.url, user="alice", password="secret") as sender,
                fairlead.connect(root.url, user="alice", password="secret") as reader,
                reader.subscribe("x") as inbox,
            ):
                await reached(sender, "x", inbox)
                await sender.publish("x", b"hello")
                message = await inbox.next(5)
                assert (message.body, message.user) == (b"hello", "alice")

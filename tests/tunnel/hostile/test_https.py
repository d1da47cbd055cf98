"""HTTPS through a forward proxy with a login: a proxy that sees nothing but a name and bytes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.tunnel.gateway_parts import certificate
from tests.tunnel.hostile.harness import World
from tests.tunnel.middlebox.proxy import Middlebox


@pytest.mark.requirement("TUN-41", "TUN-54", "TUN-64")
@pytest.mark.parametrize("websocket", ["never", "auto"])
def test_https_by_connect(own_world: Callable[..., World], tmp_path: Path, websocket: str) -> None:
    pem, _ = certificate(tmp_path)
    pem.chmod(0o600)
    world = own_world(certificate=str(pem), key=str(pem)).start()
    with Middlebox(login=("ann", "secret")) as proxy:
        host, port = proxy.address
        options = {"websocket": websocket, "ca": str(pem), "proxy": f"http://ann:secret@{host}:{port}"}
        client = world.client(up=3_000_000, down=3_000_000, options=options)
        client.results()
        assert {one.method for one in proxy.capture.exchanges} == {"CONNECT"}
        assert {one.target for one in proxy.capture.exchanges} == {f"127.0.0.1:{world.address[1]}"}
        # One that trusts nobody of ours, and one that does not know the password.
        stranger = world.client(up=1, options={"websocket": websocket, "proxy": options["proxy"]}, timeout_s=10)
        assert "BadCertificate" in stranger.wait("failed")[0]["error"]
        guess = {**options, "proxy": f"http://ann:guess@{host}:{port}"}
        wrong = world.client(up=1, options=guess, timeout_s=10)
        assert "ProxyAuthentication" in wrong.wait("failed")[0]["error"]
        world.stop_clients()

"""Through proxies people really have: nginx before the gateway, tinyproxy and squid before the client."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tunnel.hostile.harness import World
from tests.tunnel.hostile.real import Nginx, RealProxy, Squid, Tinyproxy
from tests.tunnel.middlebox.proxy import Middlebox

UP = DOWN = 5_000_000


@pytest.mark.requirement("TUN-40", half="a reverse proxy that buffers")
@pytest.mark.parametrize(("upgrades", "carrier"), [(True, "websocket"), (False, "push/pull")])
def test_nginx_that_buffers(world: World, tmp_path: Path, upgrades: bool, carrier: str) -> None:
    with Nginx(tmp_path, world.address, upgrades=upgrades, body_max="2m") as nginx:
        client = world.client(nginx.address, up=20_000_000, down=20_000_000, options={"websocket": "auto"})
        (result,) = client.results()
        assert result["carrier"] == carrier
        world.stop_clients()


@pytest.mark.requirement("TUN-23", "TUN-31", half="nginx with small limits")
def test_nginx_with_small_limits(world: World, tmp_path: Path) -> None:
    with Nginx(tmp_path, world.address, upgrades=False, body_max="100k", read_s=1) as nginx:
        world.client(nginx.address, up=UP, down=DOWN, options={"websocket": "never"}).results()
        idle = world.client(nginx.address, mode="echo", rounds=3, pause_s=2, options={"websocket": "never"})
        idle.results()
        world.stop_clients()


@pytest.mark.requirement("TUN-100", scaled="killed twice")
def test_nginx_killed_and_started_again(world: World, tmp_path: Path) -> None:
    nginx = Nginx(tmp_path, world.address, body_max="2m")
    nginx.start()
    try:
        client = world.client(nginx.address, up=30_000_000, down=30_000_000, options={"websocket": "auto"})
        for mib in (4, 16):
            client.moved(mib)
            nginx.kill()
            nginx.start()
        client.results()
        world.stop_clients()
    finally:
        nginx.stop()


@pytest.mark.requirement("TUN-40", half="the client could also go directly")
@pytest.mark.parametrize("kind", [Tinyproxy, Squid])
@pytest.mark.parametrize("websocket", ["never", "auto"])
def test_forward_proxies(world: World, tmp_path: Path, kind: type[RealProxy], websocket: str) -> None:
    with kind(tmp_path, world.address) as proxy:
        client = world.client(up=UP, down=DOWN, options={"websocket": websocket, "proxy": proxy.url})
        client.results()
        world.stop_clients()


@pytest.mark.requirement("TUN-41", half="Basic, plain HTTP")
def test_tinyproxy_with_a_login(world: World, tmp_path: Path) -> None:
    with Tinyproxy(tmp_path, world.address, login=("ann", "secret")) as proxy:
        host, port = proxy.address
        right = world.client(
            up=UP, down=DOWN, options={"websocket": "never", "proxy": f"http://ann:secret@{host}:{port}"}
        )
        right.results()
        wrong = world.client(up=UP, options={"proxy": f"http://ann:guess@{host}:{port}"}, timeout_s=10)
        (event,) = wrong.wait("failed")
        assert "roxy" in event["error"]
        world.stop_clients()


@pytest.mark.requirement("TUN-41", half="Basic, plain HTTP")
def test_a_login_never_reaches_the_gateway(world: World) -> None:
    with Middlebox(world.address) as before_gateway, Middlebox(login=("ann", "sec:ret")) as proxy:
        host, port = proxy.address
        client = world.client(
            before_gateway.address,
            up=UP,
            down=DOWN,
            options={"websocket": "never", "proxy": f"http://ann:sec%3Aret@{host}:{port}"},
        )
        client.results()
        assert before_gateway.capture.exchanges
        for one in before_gateway.capture.exchanges:
            assert not [name for name, _ in one.request_headers if name.lower().startswith("proxy-")]
            assert not [value for _, value in one.request_headers if "YW5uOnNlYzpyZXQ=" in value]
        wrong = world.client(
            before_gateway.address, up=UP, options={"proxy": f"http://ann:guess@{host}:{port}"}, timeout_s=10
        )
        (event,) = wrong.wait("failed")
        assert "ProxyAuthentication" in event["error"]
        world.stop_clients()

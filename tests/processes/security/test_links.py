"""Certificates between servers: links of sites, and links of brokers to a gateway; and the gateway's own, renewed."""

from __future__ import annotations

import asyncio
import shutil
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import fairlead
from fairlead import errors
from fairlead.testing import Server
from tests.authority import Authority, Pair
from tests.bus.rig import free_port
from tests.processes.tools import until

pytestmark = pytest.mark.processes


class Site(NamedTuple):
    """The server above, which wants certificates from everybody, and is a gateway for others."""

    authority: Authority
    server: Server
    own: Pair
    link_port: int

    @property
    def url(self) -> str:
        return f"fairleads://localhost:{self.server.port}"

    def shown(self, name: str) -> dict[str, Any]:
        pair = self.authority.sign(name)
        return {"certificate": pair.certificate, "key": pair.key, "ca": self.authority.ca}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder: Path = tmp_path_factory.mktemp("site")
    authority = Authority(folder)
    own = authority.sign("parent", loopback=True)
    port = free_port(socket.SOCK_STREAM)
    settings = {
        "security.tls_certificate": own.pem,
        "security.tls_key": str(own.key),
        "security.tls_client_ca": str(authority.ca),
        "security.client_certificates": "require",
        "tunnel.link_listen": f"127.0.0.1:{port}",
        "tunnel.link_ca": str(authority.ca),
    }
    with Server(managers=1, **settings) as server:
        yield Site(authority, server, own, port)


async def test_a_bridge_shows_its_certificate_to_the_parent(site: Site) -> None:
    pair = site.authority.sign("branch")
    settings = {
        "links.parents": site.url,
        "links.tls_ca": str(site.authority.ca),
        "links.tls_certificate": pair.pem,
        "links.tls_key": str(pair.key),
        "tunnel.enabled": False,
    }
    with Server(managers=1, **settings) as branch:
        async with (
            fairlead.connect(site.url, **site.shown("reader")) as above,
            fairlead.connect(branch.url) as below,
            above.subscribe("news") as news,
        ):
            for _ in range(300):  # until the link is there, what is published stays where it is
                await below.publish("news", b"hello")
                try:
                    assert (await news.next(0.2)).body == b"hello"
                    break
                except errors.RequestTimeout:
                    continue
            else:
                pytest.fail("nothing came over the link")


async def test_a_broker_shows_the_certificate_of_its_server_to_the_gateway(site: Site) -> None:
    pair = site.authority.sign("behind")
    settings = {
        "server.insecure": True,
        "tunnel.name": "behind",
        "tunnel.gateways": f"localhost:{site.link_port}",
        "tunnel.gateway_ca": str(site.authority.ca),
        "tunnel.link_certificate": pair.pem,
        "tunnel.link_key": str(pair.key),
    }
    tunnel = f"https://localhost:{site.server.port}/tunnel/"
    with Server(managers=1, **settings) as behind:

        async def reached(name: str) -> str:
            async with fairlead.connect(tunnel + name, ca=site.authority.ca, connect_timeout_s=30) as connection:
                return connection.server

        deadline_s = asyncio.get_running_loop().time() + 60
        while True:
            try:
                found = await reached("behind")
                break
            except errors.FairleadError:
                assert asyncio.get_running_loop().time() < deadline_s
                await asyncio.sleep(0.2)
        async with fairlead.connect(behind.url) as direct:
            assert found == direct.server
        with pytest.raises(errors.BadCredentials, match="client certificate"):  # no tunnel to the gateway's own server
            await reached("fairlead")


async def test_a_reload_renews_what_the_gateway_shows(site: Site) -> None:
    def shown() -> bytes:
        context = ssl.create_default_context(cafile=site.authority.ca)
        context.set_alpn_protocols(["http/1.1"])
        with (
            socket.create_connection(("127.0.0.1", site.server.port), 30) as line,
            context.wrap_socket(line, server_hostname="localhost") as secure,
        ):
            assert secure.selected_alpn_protocol() == "http/1.1"
            return secure.getpeercert(binary_form=True) or b""

    before = await asyncio.to_thread(shown)
    for file, kept in zip(site.authority.sign("parent", file="renewed", loopback=True), site.own, strict=True):
        shutil.copy(file, kept)
    site.server.ask("reload")
    await until(lambda: shown() != before, 30)

"""A real server that keeps a directory, reached in every way, and coroutines as tests."""

from __future__ import annotations

import asyncio
import inspect
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import fairlead.sync
from fairlead.testing import Server
from tests.processes.test_access import certificate

STORY_S = 100.0


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """A test that is a coroutine function runs on a loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    asyncio.run(asyncio.wait_for(pyfuncitem.obj(**arguments), STORY_S))
    return True


class Keeper(NamedTuple):
    """A directory server with a certificate."""

    server: Server
    certificate: Path

    def tls(self) -> ssl.SSLContext:
        """Of a client that trusts it; a tunnel makes its context one for HTTP, so each has its own."""
        return ssl.create_default_context(cafile=self.certificate)

    def url(self, scheme: str = "fairlead+directory") -> str:
        return f"{scheme}://localhost:{self.server.port}"


@pytest.fixture(scope="package")
def keeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Keeper]:
    pem, _ = certificate(tmp_path_factory.mktemp("keeper"))
    settings = {
        "directory.serve": "true",
        "directory.lease_s": 600,  # nobody renews here
        "security.tls_certificate": str(pem),
        "security.tls_key": str(pem),
    }
    with Server(managers=1, **settings) as server:  # type: ignore[arg-type]
        yield Keeper(server, pem)
        assert server.stop() == 0


@pytest.fixture(scope="package")
def other() -> Iterator[Server]:
    """A server without a directory, at another address."""
    with Server(managers=1, listen="[::1]:0") as server:
        yield server
        assert server.stop() == 0


@pytest.fixture
def empty(keeper: Keeper) -> Keeper:
    """With nothing in its tables."""
    with fairlead.sync.open_directory(keeper.url()) as directory:
        for app in directory.list_apps().apps:
            for link in app.links:
                directory.connection_closed(app=app.name, identity=link.identity, broker=link.broker)
            if app.kind == "static":
                directory.deregister_app(app.name)
        for broker in directory.list_brokers().brokers:
            directory.remove_broker(broker.name)
        for cluster in directory.list_clusters().clusters:
            directory.set_cluster(cluster.name, heuristic="default", rule="default")
    return keeper

"""One real server for all tests that leave it as they found it, and coroutines as tests."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from fairlead.testing import Server
from tests.processes.tools import NEVER_FROZEN, Dial, RawClient, RawDial, at_rest
from tests.protocol.second_client import Client

STORY_S = 100.0


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """A test that is a coroutine function runs on a loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    asyncio.run(asyncio.wait_for(pyfuncitem.obj(**arguments), STORY_S))
    return True


@pytest.fixture(scope="session")
def lasting_server() -> Iterator[Server]:
    with Server(managers=4, **NEVER_FROZEN) as one:
        one.wait_until(lambda report: [c["state"] for c in report["components"]].count("standby") == 2)
        yield one
        assert one.stop() == 0


@pytest.fixture
def shared(lasting_server: Server) -> Iterator[Server]:
    """A server with four managers and no clients; the test must leave it so, with nothing stored and no faults."""
    yield lasting_server
    lasting_server.wait_until(at_rest)


@pytest.fixture
def dial() -> Iterator[Dial]:
    """Makes second clients; those still open at the end are closed."""
    with ExitStack() as stack:

        def make(server: Server, **options: Any) -> Client:
            client = Client("127.0.0.1", server.port, **options)
            stack.callback(client._socket.close)
            return client

        yield make


@pytest.fixture
def dial_raw() -> Iterator[RawDial]:
    """Makes clients that say only what they are told to; those still open at the end are closed."""
    with ExitStack() as stack:

        def make(server: Server, **options: Any) -> RawClient:
            client = RawClient(server, **options)
            stack.callback(client.close)
            return client

        yield make

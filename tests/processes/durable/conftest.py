"""A server for the tests that leave it running, and names nobody else uses."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

import fairlead
from fairlead.testing import Server
from tests.processes.tools import NEVER_FROZEN

_numbers = itertools.count()


@pytest.fixture(scope="session")
def durable_server() -> Iterator[Server]:
    with Server(managers=2, **NEVER_FROZEN) as server:
        yield server
        assert server.stop() == 0


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A destination of this test only."""
    return f"{request.node.name.partition('[')[0]}.{next(_numbers)}"


Join = Callable[..., Any]


@pytest.fixture
def join(durable_server: Server) -> Join:
    """Opens connections: `async with join() as connection`."""

    @asynccontextmanager
    async def opened(client: str = "tester", **options: Any) -> AsyncIterator[fairlead.Connection]:
        async with fairlead.connect(durable_server.url, name=client, **options) as connection:
            yield connection

    return opened

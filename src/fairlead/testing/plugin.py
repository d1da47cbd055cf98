"""Fixtures for pytest: a real server for the whole run, and connections to it for one test.

They are there as soon as Fairlead is installed beside pytest. Nothing is started before a test asks for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:  # imported when a fixture is used: this file is loaded in every run of pytest
    import fairlead
    import fairlead.sync
    from fairlead.testing.server import Server


@pytest.fixture(scope="session")
def fairlead_settings() -> dict[str, Any]:
    """Settings of the server, by name. Override it in your `conftest.py`: `{"messages.quota_bytes": 1 << 30}`."""
    return {}


@pytest.fixture(scope="session")
def fairlead_server(fairlead_settings: dict[str, Any]) -> Iterator[Server]:
    """A real server on a temporary directory and a port of its own, from the first test that needs it to the last."""
    from fairlead.testing.server import Server

    with Server(**fairlead_settings) as server:
        yield server


@pytest.fixture
def fairlead_connection(fairlead_server: Server, request: pytest.FixtureRequest) -> fairlead.Connection:
    """A connection that is not open yet: `async with fairlead_connection as connection`, in whichever event loop."""
    import fairlead

    return fairlead.connect(fairlead_server.url, name=request.node.name[:64])


@pytest.fixture
def fairlead_sync(fairlead_server: Server, request: pytest.FixtureRequest) -> Iterator[fairlead.sync.Connection]:
    """An open connection for code without an event loop; closed when the test ends."""
    import fairlead.sync

    with fairlead.sync.connect(fairlead_server.url, name=request.node.name[:64]) as connection:
        yield connection

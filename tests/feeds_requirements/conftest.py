"""A stream with two adapters that lasts for all files of this folder, put right again before each test."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead.testing.feeds import FeedWorld

HERE = Path(__file__).parent
STORY_S = 150.0
HEARTBEAT_S = 0.4


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.processes)
            if not any(item.iter_markers("timeout")):
                item.add_marker(pytest.mark.timeout(2 * STORY_S))


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """A test that is a coroutine function runs on a loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    limit_s = 600.0 if pyfuncitem.get_closest_marker("long") else STORY_S

    async def story() -> None:
        async with asyncio.timeout(limit_s):
            await pyfuncitem.obj(**arguments)

    asyncio.run(story())
    return True


@pytest.fixture(scope="session")
def lasting_world() -> Iterator[FeedWorld]:
    """Adapters a and b. Tests may do anything to it but use up its time.

    Its heart beats half as often as it would by default: a machine with others to serve may stall for half a second,
    and a failover that nobody ordered would be right, and not what the test is about.
    """
    with FeedWorld("ab", adapter={"feed.heartbeat_s": HEARTBEAT_S}) as made:
        yield made


@pytest.fixture
def world(lasting_world: FeedWorld) -> FeedWorld:
    asyncio.run(lasting_world.restore())
    return lasting_world

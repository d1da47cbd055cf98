"""Two real clusters for the tests of this folder, which leave them as they found them, and names nobody else uses."""

from __future__ import annotations

import asyncio
import inspect
import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

import fairlead
from fairlead.testing.cluster import Cluster
from tests.cluster_requirements.tools import all_linked

_numbers = itertools.count()
STORY_S = 150.0

QUICK = {"detection_s": 1.5, "lease_s": 1.5, "margin_s": 0.5}
"""So that tests need not wait the seconds that guard a real installation against long pauses."""


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """A test that is a coroutine function runs on a loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    asyncio.run(asyncio.wait_for(pyfuncitem.obj(**arguments), STORY_S))
    return True


@pytest.fixture(scope="session")
def lasting_cluster() -> Iterator[Cluster]:
    """Three client managers, and two groups of two copies on two nodes."""
    with Cluster(cms=3, groups=2, backups=1, faults=True, essential=QUICK, settings={"removal_s": 2.0}) as made:
        yield made


@pytest.fixture
def cluster(lasting_cluster: Cluster) -> Iterator[Cluster]:
    """The same, with every client manager linked to every group: a test may kill what it likes."""
    lasting_cluster.wait_until(lambda: all_linked(lasting_cluster), "every client manager has all groups")
    yield lasting_cluster
    lasting_cluster.start_all()


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A destination of this test only."""
    return f"{request.node.name.partition('[')[0]}.{next(_numbers)}"


Join = Callable[..., Any]


@pytest.fixture
def join(lasting_cluster: Cluster) -> Join:
    """Opens connections, each at the next client manager: `async with join() as connection`."""
    urls = itertools.cycle(lasting_cluster.urls())

    @asynccontextmanager
    async def opened(client: str = "tester", **options: Any) -> AsyncIterator[fairlead.Connection]:
        async with fairlead.connect(next(urls), name=client, **options) as connection:
            yield connection

    return opened

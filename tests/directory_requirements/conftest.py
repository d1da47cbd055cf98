"""A world of directory servers and brokers for each file of this folder, and a stage on which clients appear."""

from __future__ import annotations

import asyncio
import inspect
import itertools
from collections.abc import Iterator

import pytest

from fairlead.testing.directory_world import World
from tests.directory_requirements.tools import Stage

STORY_S = 150.0
_numbers = itertools.count(1)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """A test that is a coroutine function runs on a loop of its own; its clients are closed when it ends."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}

    async def story() -> None:
        async with asyncio.timeout(STORY_S):
            try:
                await pyfuncitem.obj(**arguments)
            finally:
                if isinstance(stage := arguments.get("stage"), Stage):
                    await stage.close()

    asyncio.run(story())
    return True


@pytest.fixture(scope="session")
def lasting_world() -> Iterator[World]:
    """Two directory servers; cluster-A = A, B, C and cluster-B = A, D. Tests leave it as they found it.

    These brokers speak to the directory through HTTP, those of the other files over TCP.
    """
    clusters = {"cluster-A": "ABC", "cluster-B": "AD"}
    with World("ABCD", servers=2, clusters=clusters, scheme="http+directory") as made:
        yield made


@pytest.fixture(scope="module")
def world(lasting_world: World) -> World:
    return lasting_world


@pytest.fixture
def stage(world: World) -> Stage:
    return Stage(world)


@pytest.fixture
def app() -> str:
    """The name of an application nobody has used before."""
    return f"AX{next(_numbers)}"

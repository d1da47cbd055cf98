"""Coroutines as tests, and a tree of real servers for those that leave it as they found it."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator

import pytest

from tests.sites.tools import Servers, started

STORY_S = 60.0


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """A test that is a coroutine function runs on a loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    asyncio.run(asyncio.wait_for(pyfuncitem.obj(**arguments), STORY_S))
    return True


@pytest.fixture(scope="module")
def tree() -> Iterator[Servers]:
    """SRV-118: a root with two children with two leaves each."""
    parents = {"root": [], "left": ["root"], "right": ["root"]}
    parents |= {"left-1": ["left"], "left-2": ["left"], "right-1": ["right"], "right-2": ["right"]}
    with started(parents) as servers:
        yield servers

"""A gateway and a broker's program for each file of tests, and boxes in front of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.tunnel.hostile.harness import World
from tests.tunnel.middlebox.proxy import Middlebox


@pytest.fixture(scope="module")
def shared_world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    world = World(tmp_path_factory.mktemp("world"))
    try:
        yield world.start()
    finally:
        world.stop()


@pytest.fixture
def world(shared_world: World) -> Iterator[World]:
    """Shared by the tests of a file, which kill nothing but their own clients."""
    yield shared_world
    shared_world.stop_clients()


@pytest.fixture
def own_world(tmp_path: Path) -> Iterator[Callable[..., World]]:
    """For tests that kill or set up their own."""
    made: list[World] = []

    def make(**gateway: Any) -> World:
        made.append(World(tmp_path, **gateway))
        return made[-1]

    yield make
    for one in made:
        one.stop()


@pytest.fixture
def box(world: World) -> Iterator[Middlebox]:
    with ExitStack() as stack:
        yield stack.enter_context(Middlebox(world.address))
        stack.callback(world.stop_clients)  # before the box: nobody is left to wait for it

"""One gateway process for each file of tests; brokers and clients come and go."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.tunnel.hostile.harness import World
from tests.tunnel.http.conftest import pytest_pyfunc_call
from tests.tunnel.middlebox.proxy import Middlebox

__all__ = ["pytest_pyfunc_call"]  # tests here are coroutines too


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    world = World(tmp_path_factory.mktemp("world"))
    world.start_gateway()
    yield world
    world.stop()


@pytest.fixture
def box(world: World) -> Iterator[Middlebox]:
    with Middlebox(world.address) as box:
        yield box


@pytest.fixture
def own_world(tmp_path: Path) -> Iterator[Callable[..., World]]:
    """For tests that kill, or have settings of their own; the gateway is started by them."""
    made: list[World] = []

    def make(**gateway: Any) -> World:
        directory = tmp_path / f"world{len(made)}"
        directory.mkdir()
        made.append(World(directory, **gateway))
        return made[-1]

    yield make
    for one in made:
        one.stop()

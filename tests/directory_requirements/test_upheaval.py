"""One loss after another, in an order drawn by lot: the tables come to say what the clients know of themselves."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from fairlead.testing.directory_world import World
from tests.directory_requirements.test_failures import LEASE_S, all_available, same_everywhere
from tests.directory_requirements.tools import Stage, off

pytestmark = [pytest.mark.processes, pytest.mark.nodes, pytest.mark.timeout(900)]

CONNECTIONS = 18


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with World("ABC", servers=3, directory={"directory.lease_s": LEASE_S}) as made:
        yield made


async def lose_a_broker(world: World, chance: random.Random) -> str:
    name = chance.choice("ABC")
    await off(world.kill, name)
    await asyncio.sleep(chance.uniform(0, 2 * LEASE_S))
    await off(world.start_again, name)
    return f"broker {name} killed"


async def lose_a_registrar(world: World, chance: random.Random) -> str:
    name = chance.choice("ABC")
    await off(world.brokers[name].kill, "registrar")
    return f"registrar of {name} killed"


async def lose_a_directory_server(world: World, chance: random.Random) -> str:
    assert world.directories is not None
    name = chance.choice(world.directories.names)
    await off(world.directories.kill, name)
    await asyncio.sleep(chance.uniform(0, 2 * LEASE_S))
    await off(world.directories.start, name)
    return f"directory server {name} killed"


async def cut_a_directory_server(world: World, chance: random.Random) -> str:
    assert world.directories is not None
    name = chance.choice(world.directories.names)
    await off(world.directories.cut, name)
    await asyncio.sleep(chance.uniform(0, 2 * LEASE_S))
    await off(world.directories.heal)
    return f"directory server {name} cut off"


async def freeze_a_broker(world: World, chance: random.Random) -> str:
    name = chance.choice("ABC")
    await off(world.freeze, name)
    await asyncio.sleep(chance.uniform(0, 2 * LEASE_S))
    await off(world.thaw, name)
    return f"broker {name} stood still"


LOSSES: list[Callable[[World, random.Random], Awaitable[str]]] = [
    lose_a_broker,
    lose_a_registrar,
    lose_a_directory_server,
    cut_a_directory_server,
    freeze_a_broker,
]


async def agree(world: World, app: str, connections: list[Any]) -> bool:
    """Are the rows just what the connections say of themselves?"""
    rows = {(row.identity, row.broker, row.label) for row in await world.rows(app)}
    own = {(one.identity, one.broker, one.label) for one in connections}
    return rows == own and len(own) == len(connections)


async def story(world: World, stage: Stage, app: str, losses: list[Any], chance: random.Random) -> None:
    halves = [stage.client(n, placement=kind) for n, kind in ((1, "centralised"), (2, "decentralised"))]
    for client in halves:
        client.anywhere = True
    opened = [await halves[number % 2].open(app) for number in range(CONNECTIONS)]
    owners: dict[str, str] = {}
    history: list[str] = []
    for lose in losses:
        await world.until(lambda: agree(world, app, opened), f"rows and clients agree after {history}", 90)
        once_each(owners, opened)
        history.append(await lose(world, chance))
        await world.until(lambda: all_available(world), f"all brokers are back after {history}", 90)
    await world.until(lambda: agree(world, app, opened), f"rows and clients agree after {history}", 90)
    await world.until(lambda: same_everywhere(world), f"all servers have the same tables after {history}", 90)
    once_each(owners, opened)


def once_each(owners: dict[str, str], connections: list[Any]) -> None:
    """No label is ever given to two connections."""
    for one in connections:
        assert owners.setdefault(one.label, one.identity) == one.identity, f"{one.label} was another connection's"


@pytest.mark.parametrize("lose", LOSSES, ids=lambda lose: str(lose.__name__))
@pytest.mark.long
async def test_one_loss(world: World, stage: Stage, app: str, lose: Any) -> None:
    await story(world, stage, app, [lose], random.Random(app))


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
async def test_many_losses(world: World, stage: Stage, app: str, seed: int) -> None:
    chance = random.Random(seed)
    await story(world, stage, app, [chance.choice(LOSSES) for _ in range(5)], chance)

"""Brokers with users and a directory, and how to look at them: for the tests of the registrar."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import fairlead
from fairlead.errors import FairleadError
from fairlead.testing.directory_world import World
from tests.processes.directory.registrar_parts import ADMIN, write_users

LEASE_S = 8
NUMBERS = itertools.count(1)


class Scene(NamedTuple):
    """Brokers A, B and C, where C takes five connections, and one directory server."""

    world: World
    files: dict[str, Path]

    def url(self, broker: str) -> str:
        return self.world.brokers[broker].url

    def settings(self, name: str) -> dict[str, Any]:
        """Of one more broker."""
        return broker_settings(self.files) | {"directory.name": name, "directory.servers": self.world.url()}

    def registrar(self, broker: str) -> dict[str, Any]:
        found: dict[str, Any] = self.world.brokers[broker].status()["registrar"]
        return found


def broker_settings(files: dict[str, Path]) -> dict[str, Any]:
    return {
        "security.users": str(files["brokers.toml"]),
        "directory.user": "broker",
        "directory.password_file": str(files["password"]),
        "directory.lease_s": LEASE_S,
    }


@asynccontextmanager
async def opened(*connections: fairlead.Connection) -> AsyncIterator[list[fairlead.Connection]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(one) for one in connections]


async def no_rows(world: World, app: str) -> None:
    async def are_gone() -> bool:
        return not await world.rows(app)

    await world.until(are_gone, f"{app} has no rows")


@contextmanager
def begun(folder: Path) -> Iterator[Scene]:
    files = write_users(folder)
    with World(
        "ABC",
        servers=1,
        settings=broker_settings(files),
        own={"C": {"directory.limit": 5}},
        directory={"security.users": str(files["directory.toml"]), "directory.lease_s": LEASE_S},
        admin=ADMIN,
    ) as world:
        yield Scene(world, files)


async def are(found: Any, wanted: object) -> bool:
    return bool(await found == wanted)


async def is_kind(world: World, app: str, kind: str) -> bool:
    found = await world.application(app)
    return found is not None and found.kind == kind


async def is_gone(world: World, app: str) -> bool:
    return await world.application(app) is None


async def refusal(connection: fairlead.Connection) -> FairleadError:
    with pytest.raises(FairleadError) as caught:
        async with connection:
            pass
    return caught.value

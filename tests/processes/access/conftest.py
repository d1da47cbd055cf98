"""One server with users, groups and tenants for all tests of a module; each changes the users file as it likes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import fairlead
from fairlead.security import users
from fairlead.security.passwords import hash_password
from fairlead.security.quotas import Quota
from fairlead.security.users import Group, Lists, User, Users
from fairlead.testing import Server

PATIENCE_S = 30.0
HASH = hash_password("secret")  # of everybody: hashing is slow on purpose

FIRST = Users(
    {
        "root": User(hash=HASH, admin=["_ADMIN"], consume=[">", "_LOG", "_DMQ"], browse=[">", "_DMQ"]),
        "ann": User(hash=HASH, groups=["desk"]),
        "bob": User(
            hash=HASH,
            send=["orders"],
            consume=["events.>"],
            browse=["orders"],
            create=["events.>", "orders"],
            publish=["news.>"],
            subscribe=["news.>"],
            serve=["calc"],
            admin=["orders.>", "orders"],
        ),
        "nil": User(hash=HASH, publish=[], subscribe=[], serve=[], create=[], admin=[]),
        "red": User(hash=HASH, tenant="red", admin=["_ADMIN"], browse=[">", "_DMQ"], consume=[">", "_DMQ"]),
        "rosa": User(hash=HASH, tenant="red"),
        "blue": User(hash=HASH, tenant="blue", admin=["_ADMIN"]),
    },
    {
        "desk": Group(
            publish=["news.>", "prices.>"],
            subscribe=["news.>", "prices.>"],
            consume=["events.>", "prices.>"],
            create=[">"],
            deny=Lists(publish=["news.secret.>"], subscribe=["news.secret.>"], consume=["events.secret"]),
        ),
    },
    {"red": Quota(), "blue": Quota()},
)


class Guarded:
    """The server, and its users as they are just now."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.users = FIRST

    def connect(self, user: str, **options: Any) -> fairlead.Connection:
        return fairlead.connect(self.server.url, user=user, password="secret", **options)

    @property
    def file(self) -> Path:
        return self.server.data / "users.toml"

    async def change(self, changed: Users, until: Callable[[], Awaitable[bool]]) -> None:
        """Write the file and wait until it counts; the server notices by itself."""
        self.users = changed
        users.write(self.file, changed)
        await eventually(until)

    async def events(self, code: str, **facts: Any) -> list[dict[str, Any]]:
        """Events of this code in `_LOG` with these facts."""
        async with self.connect("root") as root:
            bodies = [json.loads(message.body) async for message in root.topic("_LOG").replay()]
        return [one for one in bodies if one["code"] == code and facts.items() <= one.items()]


async def eventually(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not await condition():
            await asyncio.sleep(0.05)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    data = tmp_path_factory.mktemp("access")
    users.write(data / "users.toml", FIRST)
    with Server(data=data, managers=2) as server:
        yield Guarded(server)
        assert server.stop() == 0

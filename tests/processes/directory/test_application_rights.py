"""Applications with users files: who may send to whom, also from another broker."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

import fairlead
from fairlead.errors import FairleadError, NotAllowed
from fairlead.security import users
from fairlead.security.passwords import hash_password
from fairlead.security.users import User, Users
from fairlead.testing.directory_world import World

WAIT_S = 30.0
PASSWORD = "of-all-of-them"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("rights")
    word = hash_password(PASSWORD)
    everybody = {
        "ax": User(hash=word, consume=["app.AX"], send=["app.AZ"], publish=[], subscribe=[], serve=[]),
        "ev": User(hash=word, consume=["app.EV"], send=["app.EV", "carry.>"], publish=[], subscribe=[], serve=[]),
        "az": User(hash=word, consume=["app.AZ"], send=[], publish=[], subscribe=[], serve=[]),
        "broker": User(hash=word, serve=["_BROKER.>"], send=["app.>"], publish=[], subscribe=[], consume=[]),
        "admin": User(hash=word, admin=["_DIRECTORY", "_ADMIN"]),
    }
    users.write(folder / "users.toml", Users(everybody))
    (folder / "password").write_text(PASSWORD)
    (folder / "password").chmod(0o600)
    settings = {
        "security.users": str(folder / "users.toml"),
        "directory.user": "broker",
        "directory.password_file": str(folder / "password"),
    }
    with World("AC", servers=0, settings=settings, admin=("admin", PASSWORD)) as made:
        yield made


def at(world: World, broker: str, app: str) -> fairlead.Connection:
    return fairlead.connect(world.brokers[broker].url, application=app, user=app.lower(), password=PASSWORD)


async def test_narrow_rights_are_enough_and_do_not_reach_further(world: World) -> None:
    async with (
        at(world, "A", "AX") as ax,
        at(world, "A", "EV") as evil,
        at(world, "C", "AZ") as az,
        at(world, "C", "EV") as neighbour,
        az.application() as inbox,
    ):
        asking = asyncio.create_task(ax.call("AZ", b"may I?", timeout=WAIT_S))
        message = await inbox.receive(WAIT_S)
        assert message is not None
        await message.answer(b"you may")
        assert (await asking).body == b"you may"

        with pytest.raises(NotAllowed):  # at the same broker the server itself says so
            await neighbour.send_to("AZ", b"not I")
        with pytest.raises(NotAllowed):  # and by way of another broker nobody may do more
            await evil.send_to("AZ", b"not I")
        before = world.brokers["A"].status()["registrar"]["carrying"]["dead"]
        forged = {"to": "AZ", "id": "1", "queue": "app.AZ"}
        await ax.send_to("AZ", b"now C is known")
        message = await inbox.receive(WAIT_S)
        assert message is not None
        assert message.body == b"now C is known"
        message.ack()
        for queue in ("carry.C::EV", "carry.C::"):
            await evil.queue(queue).send(b"not I", properties=forged)
        world.brokers["A"].wait_until(lambda status: status["registrar"]["carrying"]["dead"] == before + 2)
        assert await inbox.receive(0.5) is None
        with pytest.raises(FairleadError):
            await fairlead.connect(world.brokers["A"].url, application="AZ", user="ev", password=PASSWORD)

"""Who may do what with which queue and topic, on two managers; and what a withdrawn right does (CLU-203…208)."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Iterator
from typing import Any

import pytest

import fairlead
from fairlead.errors import FairleadError, NotAllowed
from fairlead.security.passwords import hash_password
from fairlead.security.users import User, Users, read, write
from fairlead.testing import Server
from tests.processes.tools import NEVER_FROZEN, placed

pytestmark = pytest.mark.processes

PATIENCE_S = 20.0
SECRET = "open sesame, says nobody"
HASH = hash_password(SECRET)

USERS = {
    "root": User(hash=HASH, admin=["_ADMIN"], consume=[">", "_DMQ", "_LOG"], browse=[">", "_DMQ"]),
    "anyone": User(hash=HASH),
    "worker": User(hash=HASH, send=["work.>"], consume=["work.>"], browse=[], create=["work.new.>"]),
    "reader": User(hash=HASH, publish=[], send=[], consume=["open.>"], browse=["open.>", "work.>"], create=[]),
    "nobody": User(hash=HASH, publish=[], subscribe=[], serve=[]),
}
# user -> operation -> destinations it may do that with; all other combinations are refused.
QUEUES = ("work.a", "open.a", "_DMQ")
ALLOWED: dict[str, dict[str, set[str]]] = {
    "root": {"send": {"work.a", "open.a"}, "consume": set(QUEUES), "browse": set(QUEUES),
             "create": {"work.new.q", "open.new.q"}, "admin": {"_ADMIN"}},
    "anyone": {"send": {"work.a", "open.a"}, "consume": {"work.a", "open.a"}, "browse": {"work.a", "open.a"},
               "create": {"work.new.q", "open.new.q"}, "admin": set()},
    "worker": {"send": {"work.a"}, "consume": {"work.a"}, "browse": set(), "create": {"work.new.q"}, "admin": set()},
    "reader": {"send": set(), "consume": {"open.a"}, "browse": {"work.a", "open.a"}, "create": set(), "admin": set()},
    "nobody": {"send": set(), "consume": set(), "browse": set(), "create": set(), "admin": set()},
}  # fmt: skip


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    data = tmp_path_factory.mktemp("guarded-durable")
    write(data / "users.toml", Users(USERS))
    with Server(managers=2, data=data, **NEVER_FROZEN) as server:
        yield server
        assert server.stop() == 0


def as_user(server: Server, user: str) -> Any:
    return fairlead.connect(server.url, name=user, user=user, password=SECRET)


async def attempt(connection: Any, operation: str, name: str) -> None:
    """NotAllowed if it is refused."""
    queue = connection.queue(name, create=False)
    match operation:
        case "send":
            await queue.send("x", timeout=PATIENCE_S)
        case "consume":
            async with queue.consume(prefetch=1):
                pass
        case "browse":
            async with queue.browse() as browser:
                await browser.receive(timeout=PATIENCE_S)
        case "create":
            await connection.queue(name, create=True).send("x", timeout=PATIENCE_S)
        case "admin":
            await connection.admin.execute("status", timeout=PATIENCE_S)


async def made(server: Server) -> None:
    async with as_user(server, "root") as root:
        for name in QUEUES[:2]:
            await root.queue(name, create=True).send("there")


@pytest.mark.requirement("CLU-205")
@pytest.mark.requirement("CLU-180", state="half", note="refused without the right on _ADMIN")
@pytest.mark.parametrize("user", list(USERS))
async def test_the_matrix_of_user_operation_and_destination(guarded: Server, user: str) -> None:
    await made(guarded)
    options = {"name": user, "user": user, "password": SECRET}
    async with placed(guarded, 0, 1, options=options) as managers:
        cases = [
            *itertools.product(("send", "consume", "browse"), QUEUES),
            *itertools.product(("create",), ("work.new.q", "open.new.q", "_new")),
            ("admin", "_ADMIN"),
        ]
        for connection, (operation, name) in itertools.product(managers, cases):
            expected = name in ALLOWED[user][operation]
            try:
                await attempt(connection, operation, name)
            except NotAllowed:
                assert not expected, (operation, name)
            else:
                assert expected, (operation, name)
        for name in ("work.new.q", "open.new.q"):
            if name in ALLOWED[user]["create"]:
                async with as_user(guarded, "root") as root:
                    await root.admin.delete(destination=name)
    assert user == "root" or "denied" in (guarded.data / "log" / "fairlead.log").read_text()


@pytest.mark.requirement("CLU-205")
async def test_wildcards_and_publishes_are_no_way_around(guarded: Server) -> None:
    async with as_user(guarded, "root") as root, as_user(guarded, "reader") as reader:
        topic = root.topic("work.news", create=True)
        await topic.send("opens it")
        await root.topic("open.news", create=True).send("opens it")
        for pattern in ("work.*", ">", "*.news"):
            with pytest.raises(NotAllowed):
                async with reader.topic(pattern).subscribe():
                    pass
        async with reader.topic("open.*").subscribe() as allowed:
            await topic.send("not for it")
            await root.topic("open.news").send("for it")
            message = await allowed.receive(timeout=PATIENCE_S)
            assert message is not None
            assert message.text() == "for it"
            assert await allowed.receive(timeout=0.2) is None
        depth = (await root.admin.destination(destination="work.news"))["next"]
        await reader.publish("work.news", b"forged")
        for name in ("_DMQ", "_LOG", "_ADMIN"):
            await reader.publish(name, b'{"command": "purge", "args": {"destination": "work.a"}}')
        await reader.flush()
        assert (await root.admin.destination(destination="work.news"))["next"] == depth
        await made(guarded)
        assert (await root.admin.destination(destination="work.a"))["depth"] >= 1
        with pytest.raises(NotAllowed):
            await reader.topic("work.news").replay().start()


@pytest.mark.requirement("CLU-206")
async def test_a_withdrawn_right_ends_the_consumer_and_fails_the_next_send(guarded: Server) -> None:
    await made(guarded)
    path = guarded.data / "users.toml"
    before = read(path)
    options = {"name": "worker", "user": "worker", "password": SECRET}
    try:
        async with placed(guarded, 0, 1, options=options) as managers, as_user(guarded, "anyone") as other:
            kept = other.queue("work.a").consume(prefetch=1)
            await kept.start()
            consumers = [one.queue("work.a", create=False).consume(prefetch=1) for one in managers]
            for consumer in consumers:
                await consumer.start()
            for connection in managers:
                await connection.queue("work.a", create=False).send("allowed")
            changed = User(hash=HASH, send=["work.>"], consume=[], browse=[], create=[])
            write(path, before.with_user("worker", changed))
            began_s = time.monotonic()
            assert (await asyncio.to_thread(guarded.ask, "reload"))["ok"]
            for consumer in consumers:
                with pytest.raises(NotAllowed):
                    async with asyncio.timeout(PATIENCE_S):
                        while True:
                            await consumer.receive(timeout=PATIENCE_S)
            assert time.monotonic() - began_s < PATIENCE_S / 2
            for connection in managers:
                await connection.queue("work.a", create=False).send("still allowed", timeout=PATIENCE_S)
            changed = User(hash=HASH, send=[], consume=[], browse=[], create=[])
            write(path, before.with_user("worker", changed))
            assert (await asyncio.to_thread(guarded.ask, "reload"))["ok"]
            for connection in managers:
                with pytest.raises(FairleadError) as refused:
                    for _ in range(20):
                        await connection.queue("work.a", create=False).send("no more", timeout=PATIENCE_S)
                        await asyncio.sleep(0.05)
                assert refused.value.code == "not-allowed"
            assert not kept.closed  # others are not concerned
            assert await kept.receive(timeout=PATIENCE_S)
            await kept.close()
    finally:
        write(path, before)
        await asyncio.to_thread(guarded.ask, "reload")


@pytest.mark.requirement(
    "CLU-203", "CLU-204", "CLU-208", state="half", note="passwords; certificates and TLS: SRV tests"
)
async def test_secrets_are_kept_nowhere_and_strangers_get_in_nowhere(guarded: Server) -> None:
    for user, password in (("root", "wrong"), ("stranger", SECRET), ("", "")):
        with pytest.raises(FairleadError) as refused:
            await fairlead.connect(guarded.url, user=user, password=password)
        assert refused.value.code == "bad-credentials"
    async with as_user(guarded, "root") as root:
        texts = [str(await root.admin.execute(command)) for command in ("status", "sessions", "connections", "log")]
    files = [one for one in guarded.data.rglob("*") if one.is_file() and one.suffix != ".seg"]
    texts += [one.read_bytes().decode(errors="replace") for one in files if one.stat().st_size < 1 << 22]
    assert not any(SECRET in text for text in texts)
    assert any(HASH in text for text in texts)  # a salted, slow hash is all there is
    assert (guarded.data / "users.toml").stat().st_mode & 0o077 == 0

"""Tenants on a real server: name spaces that nobody looks into, whatever is tried."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

import fairlead
from fairlead import errors
from tests.processes.access.conftest import PATIENCE_S, Guarded

pytestmark = pytest.mark.processes


async def test_the_same_names_are_different_names_in_each_tenant(guarded: Guarded) -> None:
    async with guarded.connect("red") as red, guarded.connect("rosa") as rosa, guarded.connect("blue") as blue:
        async with red.subscribe("chat.>") as of_red, blue.subscribe("chat.>") as of_blue:
            await rosa.publish("chat.x", b"red")
            await blue.publish("chat.x", b"blue")
            await rosa.publish(["chat.a", "chat.b"], b"joined")
            message = await of_red.next(timeout=PATIENCE_S)
            assert (message.topic, message.body, message.user) == ("chat.x", b"red", "rosa")
            assert (await of_red.next(timeout=PATIENCE_S)).body == b"joined"
            assert (await of_blue.next(timeout=PATIENCE_S)).body == b"blue"
        for client, text in ((red, "r"), (blue, "b")):
            await client.queue("jobs").send(text)
        for client, body in ((rosa, b"r"), (blue, b"b")):
            async with client.queue("jobs").consume() as jobs:
                got = await jobs.receive(timeout=PATIENCE_S)
                assert got is not None
                assert got.body == body


async def test_requests_names_and_replies_stay_inside(guarded: Guarded) -> None:
    async with (
        guarded.connect("red", name="svc") as red,
        guarded.connect("rosa") as rosa,
        guarded.connect("blue") as blue,
    ):
        await red.respond("calc", lambda request: request.body[::-1])
        assert (await rosa.request("calc", b"ab", timeout=PATIENCE_S)).body == b"ba"
        with pytest.raises(errors.NoReceiver):
            await blue.request("calc", b"ab", timeout=5)
        await red.respond_direct(lambda request: b"direct")
        assert (await rosa.call(red.address, b"", timeout=PATIENCE_S)).body == b"direct"
        for guess in (red.address, red.uid, "_T.red." + red.address):
            with pytest.raises((errors.NoReceiver, errors.BadTopic, ValueError)):
                await blue.call(guess, b"", timeout=5)
        with pytest.raises(errors.NoReceiver):
            async for _ in blue.request_all("calc", b"", timeout=2):
                pass


HOSTILE = [
    ">", "*.*.*", "_T.red.>", "_T.>", "_T.*.chat.x", "_?.red.>", "_?.*.>", "glob:*", "glob:_T*", "glob:_*chat*",
    "regex:.*", "regex:_T.*", "regex:a|_T\\.red\\..*", "regex:(a|_T.red.chat.x)", "regex:_.*", "*.red.>", "??.red.>",
]  # fmt: skip


async def test_no_pattern_reaches_into_another_tenant_or_out_of_one(guarded: Guarded) -> None:
    async with guarded.connect("rosa") as rosa:
        for user in ("blue", "ann", "root", "bob"):
            async with guarded.connect(user) as other:
                inboxes = []
                for pattern in HOSTILE:
                    inbox = other.subscribe(pattern)
                    try:
                        await inbox.start()
                    except (errors.NotAllowed, errors.BadPattern):
                        continue
                    inboxes.append(inbox)
                await rosa.publish("chat.x", b"hidden")
                await rosa.flush()
                await other.flush()
                for inbox in inboxes:
                    assert [message.body for message in inbox.queue] == [], inbox.pattern
        async with rosa.subscribe(">") as everything, guarded.connect("bob") as bob:
            await bob.publish("news.outside", b"hidden")
            await bob.flush()
            await rosa.publish("mine", b"seen")
            assert (await everything.next(timeout=PATIENCE_S)).topic == "mine"


async def test_names_cannot_be_spelled_around_the_prefix(guarded: Guarded) -> None:
    async with guarded.connect("red") as red:
        await red.queue("vault").send("secret")
        handle = await red.temporary_queue()
        for user in ("blue", "ann", "bob"):
            async with guarded.connect(user) as other:
                for name in ("_T.red.vault", "_T/red/vault", "../red/vault", "x._T.red.vault", "temporary:red:00:1",
                             handle.name, handle.name.replace(":red:", ":blue:"), "_T.red._DMQ"):  # fmt: skip
                    with pytest.raises((errors.NotAllowed, errors.NoDestination, errors.BadName)):
                        await read(other.queue(name, create=False))
                with pytest.raises((errors.NotAllowed, errors.NoDestination, errors.BadParameter)):
                    await other.queue("trap", parameters={"dead_queue": "_T.red.vault"}).send("x")
        async with red.queue("vault").consume() as vault:
            got = await vault.receive(timeout=PATIENCE_S)
            assert got is not None
            assert got.body == b"secret"


async def read(queue: fairlead.Queue) -> Any:
    async with queue.consume() as consumer:
        return await consumer.receive(timeout=0.5)


async def test_separators_in_a_topic_do_not_lead_out(guarded: Guarded) -> None:
    async with guarded.connect("bob") as bob, guarded.connect("rosa") as rosa, bob.subscribe("news.>") as outside:
        await rosa.publish(["a", "news.x", "_T.blue.news.x"], b"hidden")
        await rosa.flush()
        await bob.publish("news.x", b"seen")
        assert (await outside.next(timeout=PATIENCE_S)).body == b"seen"


async def test_a_durable_topic_of_a_tenant_reaches_its_transient_subscribers_by_its_own_name(guarded: Guarded) -> None:
    async with (
        guarded.connect("red") as red,
        guarded.connect("rosa") as rosa,
        rosa.subscribe("feed.>") as transient,
        rosa.topic("feed.*").subscribe() as durable,
    ):
        await red.topic("feed.eur").send("1.08")
        message = await transient.next(timeout=PATIENCE_S)
        assert (message.topic, message.body) == ("feed.eur", b"1.08")
        got = await durable.receive(timeout=PATIENCE_S)
        assert got is not None
        assert got.body == b"1.08"
        await rosa.publish("feed.eur", b"1.09")
        got = await durable.receive(timeout=PATIENCE_S)
        assert got is not None
        assert got.body == b"1.09"


async def test_dead_messages_of_a_tenant_are_its_own(guarded: Guarded) -> None:
    async with guarded.connect("red") as red, guarded.connect("blue") as blue, guarded.connect("root") as root:
        await red.queue("mortal").send("dies")
        async with red.queue("mortal").consume() as consumer:
            got = await consumer.receive(timeout=PATIENCE_S)
            assert got is not None
            got.reject()
        async with red.queue("_DMQ", create=False).consume() as dead:
            got = await dead.receive(timeout=PATIENCE_S)
            assert got is not None
            assert got.body == b"dies"
            assert got.dead["destination"] == "mortal"
        with pytest.raises(errors.NotAllowed):
            await read(blue.queue("_DMQ", create=False))
        assert [one async for one in root.queue("_DMQ", create=False).browse()] == []
        done = await red.admin.redrive()
        assert (done["moved"], done["to"]) == (1, {"mortal": 1})


async def test_administration_of_a_tenant_is_about_its_own(guarded: Guarded) -> None:
    async with guarded.connect("red") as red, guarded.connect("blue") as blue, guarded.connect("rosa") as rosa:
        await red.queue("mine").send("x")
        await blue.queue("theirs").send("y")
        names = {one["name"] for one in (await red.admin.destinations())["destinations"]}
        assert "mine" in names
        assert not any("theirs" in name or name.startswith("_T") for name in names)
        for command in ("status", "connections", "sessions", "subscriptions"):
            with pytest.raises(errors.NotAllowed):
                await red.admin.execute(command)
        with pytest.raises(errors.NoDestination):
            await red.admin.purge(destination="theirs")
        with pytest.raises(errors.FairleadError):
            await red.admin.purge(destination="_T.blue.theirs")
        with pytest.raises(errors.NotAllowed):
            await rosa.admin.purge(destination="mine")
        assert (await red.admin.purge(destination="mine"))["messages"] == 1
        async with blue.queue("theirs").consume() as left:
            got = await left.receive(timeout=PATIENCE_S)
            assert got is not None
            assert got.body == b"y"
    async with guarded.connect("root") as root:
        names = {one["name"] for one in (await root.admin.destinations(pattern="_T.red.>"))["destinations"]}
        assert "_T.red.mine" in names


async def test_errors_do_not_speak_of_the_prefix(guarded: Guarded) -> None:
    async with guarded.connect("rosa") as rosa:
        for attempt in (rosa.queue("none", create=False).send("x"), rosa.subscribe("_LOG").start()):
            with pytest.raises(errors.FairleadError) as caught:
                await attempt
            assert "_T" not in str(caught.value)


async def test_the_directory_is_not_for_tenants(guarded: Guarded) -> None:
    async with guarded.connect("rosa") as rosa:
        await rosa.publish("_ADMIN", json.dumps({"command": "status", "reply": "news.x"}).encode())
        with pytest.raises(errors.FairleadError):
            await asyncio.wait_for(rosa.request("_REGISTRAR", b"{}", timeout=3), PATIENCE_S)

"""Each action allowed and refused on a real server, live changes, and what the event log says of it."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

import fairlead
from fairlead import errors
from fairlead.security.users import Lists
from tests.processes.access.conftest import PATIENCE_S, Guarded, eventually

pytestmark = pytest.mark.processes


async def test_groups_give_rights_and_what_is_denied_stays_denied(guarded: Guarded) -> None:
    async with guarded.connect("ann") as ann, ann.subscribe("news.>") as seen:
        with pytest.raises(errors.NotAllowed):
            await ann.subscribe("orders.x").start()
        with pytest.raises(errors.NotAllowed):
            await ann.subscribe("news.secret.x").start()
        with pytest.raises(errors.NotAllowed):
            await ann.subscribe("news.secret.*").start()
        with pytest.raises(errors.NotAllowed):
            await ann.request("news.secret.ask", b"", timeout=5)
        async with guarded.connect("bob") as bob:
            await bob.publish("news.secret.plan", b"not for ann")
            await bob.publish("news.today", b"for ann")
            message = await seen.next(timeout=PATIENCE_S)
            assert (message.topic, message.body) == ("news.today", b"for ann")
            await bob.publish(["news.secret.plan", "news.more"], b"joined")
            assert (await seen.next(timeout=PATIENCE_S)).body == b"joined"


async def test_send_consume_browse_and_create_each_need_their_right(guarded: Guarded) -> None:
    async with guarded.connect("bob") as bob, guarded.connect("nil") as nil:
        await bob.queue("orders").send("one")
        assert [message.body async for message in bob.queue("orders").browse()] == [b"one"]
        with pytest.raises(errors.NotAllowed):
            await first(bob.queue("orders"))
        with pytest.raises(errors.NotAllowed):
            await bob.queue("elsewhere").send("x")
        for attempt in (nil.queue("orders").send("x"), first(nil.queue("orders"))):
            with pytest.raises(errors.NotAllowed):
                await attempt
        with pytest.raises(errors.NotAllowed):
            assert [message async for message in nil.queue("orders").browse()] == []


async def first(queue: fairlead.Queue) -> bytes | None:
    async with queue.consume() as consumer:
        message = await consumer.receive(timeout=1)
        return None if message is None else message.body


async def test_who_may_send_to_a_name_may_not_make_it_without_that_right(guarded: Guarded) -> None:
    changed = guarded.users.with_user(
        "max", msgspec.structs.replace(guarded.users.entries["nil"], send=["drop"], create=[])
    )
    await guarded.change(changed, lambda: can_come(guarded, "max"))
    async with guarded.connect("max") as max_, guarded.connect("root") as root:
        with pytest.raises(errors.NotAllowed, match="create"):
            await max_.queue("drop").send("x")
        await root.admin.create(destination="drop")
        await max_.queue("drop").send("x")


async def can_come(guarded: Guarded, user: str) -> bool:
    try:
        async with guarded.connect(user):
            return True
    except errors.BadCredentials:
        return False


async def test_a_consumer_by_pattern_gets_the_permitted_topics_also_those_made_later(guarded: Guarded) -> None:
    async with guarded.connect("root") as root, guarded.connect("ann") as ann:
        await root.admin.create(destination="events.open", kind="topic")
        await root.admin.create(destination="events.secret", kind="topic")
        async with ann.topic("events.*").subscribe() as inbox:
            await root.admin.create(destination="events.later", kind="topic")
            for topic in ("events.secret", "events.open", "events.later"):
                await root.topic(topic).send(topic)
            received = [await inbox.receive(timeout=PATIENCE_S) for _ in range(2)]
            got = {message.body for message in received if message is not None}
            assert got == {b"events.open", b"events.later"}
            assert await inbox.receive(timeout=0.3) is None


async def test_a_right_taken_away_stops_what_stands(guarded: Guarded) -> None:
    before = guarded.users
    async with guarded.connect("ann") as ann:
        news = ann.subscribe("news.>")
        await news.start()
        entry = msgspec.structs.replace(
            before.groups["desk"], subscribe=["prices.>"], deny=Lists(publish=["news.>"], consume=["events.>"])
        )
        consumer = ann.topic("events.open").subscribe()
        await consumer.__aenter__()

        async def ended() -> bool:
            try:
                await news.next(timeout=0.05)
            except errors.NotAllowed as error:
                return "news.>" in str(error)
            except errors.RequestTimeout:
                pass
            return False

        await guarded.change(before.with_group("desk", entry), ended)
        with pytest.raises(errors.NotAllowed):
            async with asyncio.timeout(PATIENCE_S):
                while True:
                    await consumer.receive(timeout=0.2)
        events: list[fairlead.Event] = []
        ann.on_event(events.append)

        async def refused() -> bool:
            await ann.publish("news.today", b"")
            return any(isinstance(event.error, errors.NotAllowed) for event in events)

        await eventually(refused)
        await guarded.change(before, lambda: _subscribes(guarded, "ann", "news.>"))


async def _subscribes(guarded: Guarded, user: str, pattern: str) -> bool:
    async with guarded.connect(user) as client:
        try:
            async with client.subscribe(pattern):
                return True
        except errors.NotAllowed:
            return False


async def test_a_removed_user_is_disconnected_and_the_log_says_who_came_and_went(guarded: Guarded) -> None:
    before = guarded.users
    with_eve = before.with_user("eve", before.entries["nil"])
    await guarded.change(with_eve, lambda: can_come(guarded, "eve"))
    eve = await guarded.connect("eve")
    lost = asyncio.Event()
    eve.on_event(lambda event: lost.set() if event.name == "lost" else None)

    async def is_lost() -> bool:
        return lost.is_set()

    await guarded.change(before, is_lost)
    await eve.close()

    async def told() -> bool:
        texts = [one["text"] for one in await guarded.events("users-changed")]
        return any("user eve was added" in text for text in texts) and any("eve was removed" in text for text in texts)

    await eventually(told)
    assert not any("scrypt" in str(one) for one in await guarded.events("users-changed"))


async def test_logins_and_refusals_are_in_the_log(guarded: Guarded) -> None:
    with pytest.raises(errors.BadCredentials):
        await fairlead.connect(guarded.server.url, user="mallory", password="hunter2-wrong")
    async with guarded.connect("nil") as nil:
        with pytest.raises(errors.NotAllowed):
            await nil.queue("orders").send("x")

    async def told() -> bool:
        failed = await guarded.events("login-refused", user="mallory", reason="bad-credentials")
        return bool(
            failed and await guarded.events("login", user="nil") and await guarded.events("refused", user="nil")
        )

    await eventually(told)
    async with guarded.connect("root") as root:
        assert not [one async for one in root.topic("_LOG").replay() if b"hunter2" in one.body]

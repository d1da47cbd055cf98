"""Messages between applications, on real brokers: A (which keeps the directory too), B and C."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

import fairlead
from fairlead.client.aio.app_message import AppMessage
from fairlead.errors import BadParameter, Busy, HandlerFailed, LocalProtocolError, RequestTimeout, Undeliverable
from fairlead.testing.directory_world import World
from tests.spans import Tracer, is_child

WAIT_S = 30.0
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with World("ABC", servers=0) as made:
        yield made


@pytest.fixture
def names() -> tuple[str, str, str]:
    """AX, AY and AZ of a test, which nobody has used before."""
    number = next(_numbers)
    return f"AX{number}", f"AY{number}", f"AZ{number}"


class Stage(AsyncExitStack):
    """Connections of a test, closed at its end."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self.world = world

    async def at(self, broker: str, app: str, **options: Any) -> fairlead.Connection:
        """A connection of an application to this broker."""
        url = self.world.brokers[broker].url
        return await self.enter_async_context(fairlead.connect(url, application=app, **options))


async def take(inbox: Any, count: int) -> list[AppMessage]:
    """So many messages, each acknowledged."""
    found: list[AppMessage] = []
    while len(found) < count:
        message = await inbox.receive(WAIT_S)
        assert message is not None, f"{len(found)} of {count} came"
        message.ack()
        found.append(message)
    return found


async def echo(message: AppMessage) -> bytes:
    return b"to " + message.body


# --- Delivery ---------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("DIR-73")
@pytest.mark.parametrize("recipient", ["A", "C"])
async def test_a_message_finds_its_recipient_by_name_alone(world: World, names: Any, recipient: str) -> None:
    ax, _, az = names
    async with Stage(world) as stage:
        sender, receiver = await stage.at("A", ax), await stage.at(recipient, az)
        assert (sender.broker, receiver.broker) == ("A", recipient)
        bodies: list[Any] = [b"\x00\xff bytes", "täxt", {"a": [1, b"x"]}, [1, 2.5], b""]
        for body in bodies:
            receipt = await sender.send_to(az, body, headers={"colour": "red"})
            assert receipt is not None
            assert receipt.destination == (f"app.{az}" if recipient == "A" else f"carry.C::{az}")
        async with receiver.application() as inbox:
            came = await take(inbox, len(bodies))
            assert await inbox.receive(0.3) is None
        assert [message.body for message in came] == [
            b"\x00\xff bytes",
            "täxt".encode(),
            came[2].body,
            came[3].body,
            b"",
        ]
        assert [came[1].text(), came[2].data(), came[3].data()] == bodies[1:4]
        assert all(message.headers == {"colour": "red"} and message.hops == (recipient == "C") for message in came)


@pytest.mark.requirement("DIR-72")
async def test_delivery_instructions(world: World, names: Any) -> None:
    ax, _, az = names
    async with Stage(world) as stage:
        sender, receiver = await stage.at("A", ax), await stage.at("C", az)
        await sender.labelled(WAIT_S)
        for nobody in ("", None, "any*", "@A"):
            with pytest.raises(BadParameter):
                await sender.send_to(nobody, b"to whom?")  # type: ignore[arg-type]
        with pytest.raises(BadParameter, match="'from'"):
            await sender.send_to(az, b"", headers={"from": "somebody else"})
        async with receiver.application() as inbox:
            await sender.send_to(az, b"plain")
            (plain,) = await take(inbox, 1)
            assert (plain.to, plain.sender, plain.label, plain.redelivered) == (az, ax, sender.label, False)
            assert len(plain.id) == 32
            assert not plain.correlation
            assert not plain.wants_answer
            with pytest.raises(LocalProtocolError, match="Nobody waits"):
                await plain.answer(b"")
            asking = asyncio.create_task(sender.call(az, b"asked", timeout=WAIT_S))
            asked = await inbox.receive(WAIT_S)
            assert asked is not None
            assert asked.correlation
            assert asked.reply_to
            assert asked.reply_broker == "A"
            assert asked.wants_answer
            await asked.answer(b"answered")
            answer = await asking
            assert (answer.body, answer.correlation, answer.sender, answer.to) == (
                b"answered",
                asked.correlation,
                az,
                ax,
            )
        assert sender._applications.unsettled == receiver._applications.unsettled == 0
        # The identifier of the recipient's host: one client of the same broker, told apart by the slash.
        other = await stage.at("A", az)
        direct = other.inbox()
        assert await sender.send_to(other.address, b"direct") is None
        assert (await direct.next(WAIT_S)).body == b"direct"
        with pytest.raises(BadParameter, match="ttl"):
            await sender.send_to(other.address, b"", ttl=3)


@pytest.mark.requirement("DIR-77")
async def test_a_static_recipient_that_is_away_gets_it_later_and_nobody_is_told_at_once(
    world: World, names: Any
) -> None:
    ax, _, az = names
    async with Stage(world) as stage:
        sender = await stage.at("A", ax)
        begun_s = time.monotonic()
        with pytest.raises(Undeliverable, match="nobody"):
            await sender.send_to("nobody", b"")
        with pytest.raises(Undeliverable, match="nobody"):
            await sender.call("nobody", b"")
        assert time.monotonic() - begun_s < 2 * 2.0
        async with fairlead.connect(world.brokers["C"].url, application=az, kind="static") as registered:
            await registered.labelled(WAIT_S)
            await world.until(lambda: _is_static(world, az), "it is registered for good")

        async def is_away() -> bool:
            return not await world.rows(az)

        await world.until(is_away, "it is away")
        for number in range(3):
            await sender.send_to(az, b"%d" % number)
        waiting = world.brokers["C"]

        async def waits() -> bool:
            async with fairlead.connect(waiting.url) as look:
                return bool((await look.admin.destination(destination=f"app.{az}"))["depth"] == 3)

        await world.until(waits, "three messages wait at the recipient's broker")
        returned = await stage.at("C", az, kind="static")
        async with returned.application() as inbox:
            assert [message.body for message in await take(inbox, 3)] == [b"0", b"1", b"2"]


async def _is_static(world: World, app: str) -> bool:
    found = await world.application(app)
    return found is not None and found.kind == "static"


@pytest.mark.requirement("DIR-77")
async def test_what_expires_while_the_recipient_is_away_does_not_come(world: World, names: Any) -> None:
    ax, _, az = names
    async with Stage(world) as stage:
        sender, receiver = await stage.at("A", ax), await stage.at("C", az)
        await sender.send_to(az, b"soon gone", ttl=0.2)
        await sender.send_to(az, b"stays", ttl=3600)
        await asyncio.sleep(0.3)
        async with receiver.application() as inbox:
            assert [message.body for message in await take(inbox, 1)] == [b"stays"]
            assert await inbox.receive(0.2) is None


# --- Synchronous and asynchronous -------------------------------------------------------------------------------------


@pytest.mark.requirement("DIR-7", state="half", note="the count of unsettled messages; the cache is shown with placing")
@pytest.mark.requirement("DIR-69")
async def test_an_asynchronous_connection_never_waits(world: World, names: Any) -> None:
    ax, _, az = names
    async with Stage(world) as stage:
        sender, receiver = await stage.at("A", ax), await stage.at("C", az)
        calls = [asyncio.create_task(sender.call(az, b"%d" % number, timeout=60)) for number in range(50)]
        sends = [sender.send_to(az, b"%d" % number) for number in range(50, 100)]
        await asyncio.gather(*sends)
        async with receiver.application(window=20) as inbox:
            came = sorted(int(message.body) for message in await take(inbox, 100))
        assert came == list(range(100))
        assert not any(call.done() for call in calls)
        assert sender.directory_status()["unsettled"] == 50  # DIR-7: the count follows the traffic
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        assert sender.directory_status()["unsettled"] == 0


@pytest.mark.requirement("DIR-68")
async def test_a_synchronous_connection_is_busy_until_it_is_answered(world: World, names: Any) -> None:
    ax, _, az = names
    async with Stage(world) as stage:
        sender = await stage.at("A", ax, mode="synchronous")
        queueing = await stage.at("A", ax, mode="synchronous", when_busy="queue")
        receiver = await stage.at("C", az)
        async with receiver.application(window=10) as inbox:
            call = asyncio.create_task(sender.call(az, b"slow", timeout=WAIT_S))
            slow = await inbox.receive(WAIT_S)
            assert slow is not None
            with pytest.raises(Busy):
                await sender.send_to(az, b"meanwhile")
            with pytest.raises(Busy):
                await sender.call(az, b"meanwhile")
            await slow.answer(b"at last")
            assert (await call).body == b"at last"
            await sender.send_to(az, b"allowed again")
            assert (await take(inbox, 1))[0].body == b"allowed again"

            first = asyncio.create_task(queueing.call(az, b"first", timeout=WAIT_S))
            asked = await inbox.receive(WAIT_S)
            second = asyncio.create_task(queueing.call(az, b"second", timeout=WAIT_S))
            third = asyncio.create_task(queueing.send_to(az, b"third"))
            with pytest.raises(Busy):  # it is queued, and not for ever
                await queueing.call(az, b"impatient", timeout=0.1)
            assert await inbox.receive(0.3) is None
            assert asked is not None
            await asked.answer(b"one")
            assert (await first).body == b"one"
            asked = await inbox.receive(WAIT_S)
            assert asked is not None
            assert asked.body == b"second"
            await asked.answer(b"two")
            assert (await second).body == b"two"
            await third
            assert (await take(inbox, 1))[0].body == b"third"


@pytest.mark.requirement("DIR-71")
async def test_a_late_answer_is_not_taken_for_that_of_a_later_call(world: World, names: Any) -> None:
    ax, _, az = names
    async with Stage(world) as stage:
        sender, receiver = await stage.at("A", ax, mode="synchronous"), await stage.at("C", az)
        async with receiver.application(window=10) as inbox:
            call = asyncio.create_task(sender.call(az, b"1", timeout=2))
            first = await inbox.receive(WAIT_S)
            assert first is not None
            with pytest.raises(RequestTimeout):
                await call
            call = asyncio.create_task(sender.call(az, b"2", timeout=WAIT_S))
            second = await inbox.receive(WAIT_S)
            assert second is not None
            assert second.body == b"2"
            await first.answer(b"answer to 1")
            await world.until(lambda: sender._applications.late == 1, "the late answer has come and was dropped")
            assert not call.done()
            await second.answer(b"answer to 2")
            assert (await call).body == b"answer to 2"


@pytest.mark.requirement("DIR-74")
async def test_a_slow_conversation_does_not_hold_up_another(world: World, names: Any) -> None:
    ax, ay, az = names
    async with Stage(world) as stage:
        one, two = await stage.at("A", ax, mode="synchronous"), await stage.at("B", ax, mode="synchronous")
        slow, fast = await stage.at("C", az), await stage.at("B", ay)
        await stage.enter_async_context(await fast.serve_app(echo))
        async with slow.application() as inbox:
            waiting = asyncio.create_task(one.call(az, b"slow", timeout=60))
            asked = await inbox.receive(WAIT_S)
            assert asked is not None
            for number in range(10):
                assert (await two.call(ay, b"%d" % number)).body == b"to %d" % number
            assert not waiting.done()
            await asked.answer(b"done")
            assert (await waiting).body == b"done"


@pytest.mark.requirement("DIR-76")
async def test_answers_return_to_the_connection_that_asked(world: World, names: Any) -> None:
    ax, _, az = names
    async with Stage(world) as stage:
        asking = [await stage.at("ABC"[number % 3], ax, mode="synchronous") for number in range(9)]
        receiver = await stage.at("C", az)
        async with receiver.application(window=9) as inbox:
            calls = [asyncio.create_task(one.call(az, b"%d" % n, timeout=60)) for n, one in enumerate(asking)]
            asked = [await inbox.receive(WAIT_S) for _ in calls]
            for message in reversed(asked):  # none of them is the answer to the call at the head of a line
                assert message is not None
                await message.answer(b"%s for %s" % (message.body, message.label.encode()))
            answers = await asyncio.gather(*calls)
        for number, (one, answer) in enumerate(zip(asking, answers, strict=True)):
            assert answer.body == b"%d for %s" % (number, one.label.encode())
        assert len({one.label for one in asking}) == 9
        assert all(one._applications.late == 0 for one in asking)


@pytest.mark.requirement("DIR-70")
async def test_a_pool_opens_on_demand_and_uses_idle_connections_first(world: World, names: Any) -> None:
    ax, _, az = names
    async with Stage(world) as stage:
        receiver = await stage.at("C", az)
        pool = fairlead.Pool(world.url("cluster-A"), ax, maximum=9, wait_s=WAIT_S, placement="central")
        async with receiver.application(window=20) as inbox, pool:
            assert pool.size == 0
            calls = [asyncio.create_task(pool.call(az, b"%d" % number, timeout=60)) for number in range(10)]
            asked = [await inbox.receive(WAIT_S) for _ in range(9)]
            assert pool.facts() == {"idle": 0, "used": 9, "opening": 0, "waiting": 1}
            rows = await world.rows(ax)
            assert Counter(row.broker for row in rows) == {"A": 3, "B": 3, "C": 3}
            assert {row.kind for row in rows} == {"synchronous"}
            assert await inbox.receive(0.3) is None  # the tenth waits
            for message in asked:
                assert message is not None
                await message.answer(b"to " + message.body)
            tenth = await inbox.receive(WAIT_S)
            assert tenth is not None
            await tenth.answer(b"to " + tenth.body)
            assert [answer.body for answer in await asyncio.gather(*calls)] == [b"to %d" % n for n in range(10)]
            assert pool.facts() == {"idle": 9, "used": 0, "opening": 0, "waiting": 0}
            call = asyncio.create_task(pool.call(az, b"once more"))
            (again,) = [await inbox.receive(WAIT_S)]
            assert again is not None
            assert again.label in {row.label for row in rows}
            await again.answer(b"")
            await call
            assert pool.size == 9
            assert len(await world.rows(ax)) == 9


async def test_a_pool_has_a_minimum_and_drops_what_is_broken(world: World, names: Any) -> None:
    ax, _, az = names
    async with Stage(world) as stage:
        receiver = await stage.at("C", az)
        await stage.enter_async_context(await receiver.serve_app(echo))
        async with fairlead.Pool(world.url("cluster-A"), ax, minimum=2, maximum=2, wait_s=0.2) as pool:
            assert pool.facts()["idle"] == 2
            async with pool.connection() as one, pool.connection() as two:
                assert one is not two
                with pytest.raises(RequestTimeout, match="in use"):
                    await pool.call(az, b"")
                _break(one)
                await world.until(lambda: not one.connected, "it is broken")
            await world.until(lambda: pool.size == 1, "the broken one is dropped")
            async with pool.connection() as again, pool.connection() as new:
                assert again is two
                assert new is not one
                assert (await new.call(az, b"x")).body == b"to x"
        with pytest.raises(LocalProtocolError):
            await pool.call(az, b"")


def _break(connection: fairlead.Connection) -> None:
    """The line of this connection ends without a word."""
    line = connection._carrier._line
    assert line is not None
    line.transport.abort()


# --- Many connections -------------------------------------------------------------------------------------------------


@pytest.mark.requirement("DIR-75")
async def test_each_message_goes_to_one_connection_and_none_is_missing_when_one_dies(world: World, names: Any) -> None:
    ax, _, az = names
    async with Stage(world) as stage:
        sender = await stage.at("A", ax)
        receivers = [await stage.at("C", az, reconnect=False) for _ in range(3)]
        came: list[tuple[int, int, bool]] = []
        unsettled: set[int] = set()

        async def work(number: int, connection: fairlead.Connection) -> None:
            async with connection.application() as inbox:
                while True:
                    message = await inbox.receive()
                    assert message is not None
                    body = int(message.body)
                    if number == 0 and len(came) > 100:
                        unsettled.add(body)  # it dies with this one in its hands
                        _break(connection)
                        return
                    came.append((number, body, message.redelivered))
                    message.ack()

        tasks = [asyncio.create_task(work(number, one)) for number, one in enumerate(receivers)]
        for begin in range(0, 300, 50):
            await asyncio.gather(*(sender.send_to(az, b"%d" % n) for n in range(begin, begin + 50)))
        await world.until(lambda: len({body for _, body, _ in came}) == 300, "all 300 have come")
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert len(unsettled) == 1
        again = {body for _, body, redelivered in came if redelivered}
        assert again >= unsettled
        # What the one that died had acknowledged may not have been taken in before it died; nothing else comes twice.
        twice = {body for body, count in Counter(body for _, body, _ in came).items() if count > 1}
        assert twice <= again
        assert len(again) <= 2
        assert all(count > 30 for count in Counter(number for number, _, _ in came if number).values())


async def test_an_idle_connection_gets_the_next_message(world: World, names: Any) -> None:
    ax, _, az = names
    async with Stage(world) as stage:
        sender, busy, idle = await stage.at("A", ax), await stage.at("A", az), await stage.at("A", az)
        async with busy.application() as one, idle.application() as two:
            await sender.send_to(az, b"0")
            await sender.send_to(az, b"1")
            held = [await one.receive(WAIT_S), await two.receive(WAIT_S)]
            assert sorted(message.body for message in held if message is not None) == [b"0", b"1"]
            for number in range(2, 8):  # one of them is at work with its first for all this time
                await sender.send_to(az, b"%d" % number)
                (message,) = await take(two, 1)
                assert message.body == b"%d" % number


@pytest.mark.requirement("DIR-30", state="half", note="two processes of one application are shown with the registrar")
async def test_several_applications_share_a_process(world: World, names: Any) -> None:
    ax, ay, az = names
    async with Stage(world) as stage:
        made = {name: [await stage.at("AB"[n], name) for n in range(2)] for name in (ax, ay, az)}
        for connection in itertools.chain(*made.values()):
            await stage.enter_async_context(await connection.serve_app(lambda m: f"{m.to} hears {m.sender}"))
        for asking, asked in itertools.permutations((ax, ay, az), 2):
            assert (await made[asking][1].call(asked, b"")).text() == f"{asked} hears {asking}"
        for name in made:
            assert len(await world.labelled(name, 2)) == 2


async def test_a_handler_that_fails_is_an_error_for_the_caller_and_a_second_try_for_a_message(
    world: World, names: Any
) -> None:
    ax, _, az = names
    async with Stage(world) as stage:
        sender, receiver = await stage.at("A", ax), await stage.at("C", az)
        tried: list[bool] = []

        def handler(message: AppMessage) -> bytes:
            if message.wants_answer:
                raise ValueError("no such order")
            tried.append(message.redelivered)
            if len(tried) == 1:
                raise ValueError("not now")
            return b"nobody waits for this"

        await stage.enter_async_context(await receiver.serve_app(handler))
        with pytest.raises(HandlerFailed, match="ValueError: no such order"):
            await sender.call(az, b"", timeout=WAIT_S)
        await sender.send_to(az, b"")
        await world.until(lambda: tried == [False, True], "it came again")
        ending = await stage.at("C", f"{az}.2", reconnect=False)
        service = await ending.serve_app(handler)
        _break(ending)
        await world.until(lambda: service.error is not None, "the service says that its connection is lost")
        await service.close()


async def test_a_very_large_message_goes_to_another_broker(world: World, names: Any) -> None:
    ax, _, az = names
    body = b"0123456789abcdef" * 200_000
    async with Stage(world) as stage:
        sender, receiver = await stage.at("A", ax), await stage.at("C", az)
        await sender.send_to(az, body)
        async with receiver.application() as inbox:
            message = await inbox.receive(WAIT_S)
            assert message is not None
            assert await message.read() == body
            message.ack()


async def test_without_an_application_there_is_nobody_to_speak_for(world: World) -> None:
    async with fairlead.connect(world.brokers["A"].url) as connection:
        with pytest.raises(LocalProtocolError, match="no application name"):
            await connection.send_to("AZ", b"")
        with pytest.raises(LocalProtocolError, match="no application name"):
            connection.application()
        with pytest.raises(BadParameter):
            await fairlead.connect(world.brokers["A"].url, when_busy="perhaps")  # type: ignore[arg-type]


def test_the_same_without_an_event_loop(world: World, names: Any) -> None:
    ax, ay, az = names
    at_a, at_c = world.brokers["A"].url, world.brokers["C"].url
    with (
        fairlead.sync.connect(at_a, application=ax) as sender,
        fairlead.sync.connect(at_c, application=az) as receiver,
        fairlead.sync.connect(at_c, application=ay) as serving,
        serving.serve_app(lambda message: message.body.upper()),
        receiver.application() as inbox,
    ):
        assert sender.send_to(az, "hello") is not None
        message = inbox.receive(WAIT_S)
        assert message is not None
        assert (message.text(), message.sender, message.to) == ("hello", ax, az)
        message.ack(confirm=True)
        assert inbox.receive(0.1) is None
        answer = sender.call(ay, b"shout")
        assert (answer.body, answer.sender) == (b"SHOUT", ay)
        with pytest.raises(Undeliverable):
            sender.send_to("nobody", b"")
        with fairlead.sync.Pool(world.url("cluster-A"), f"{ax}p", maximum=2) as pool:
            assert pool.call(ay, b"x").body == b"X"
            with pool.connection() as one, pool.connection() as two:
                assert one.call(ay, b"y").body == two.call(ay, b"y").body == b"Y"
            assert pool.size == 2


# --- Traces -----------------------------------------------------------------------------------------------------------


async def test_a_trace_goes_with_messages_and_calls_to_another_broker(world: World, names: Any) -> None:
    ax, _, az = names
    tracer = Tracer()
    async with Stage(world) as stage:
        sender = await stage.at("A", ax, tracing=tracer.provider)
        recipient = await stage.at("C", az, tracing=tracer.provider)
        service = await recipient.serve_app(echo)
        with tracer.tracer.start_as_current_span("work"):
            await sender.send_to(az, b"hello", timeout=WAIT_S)
            assert (await sender.call(az, b"you", timeout=WAIT_S)).body == b"to you"
        await tracer.wait_for(f"process {az}")
        await tracer.wait_for(f"respond {az}")
        await service.close()
    call, respond, process = tracer.one(f"call {az}"), tracer.one(f"respond {az}"), tracer.one(f"process {az}")
    assert is_child(call, tracer.one("work"))
    assert is_child(respond, call)
    assert any(is_child(process, span) for span in tracer.named("send "))
    assert any(is_child(span, respond) for span in tracer.named("send ")), "the answer is sent inside"

"""Messages on their way between brokers while registrars and brokers are killed and recipients move: none lost, none
doubled. A keeps the directory and is left in peace; B and C are hurt."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

import fairlead
import fairlead.sync
from fairlead.client.aio.destinations import Queue
from fairlead.directory.rows import AppKind
from fairlead.errors import ConnectionLost, FairleadError
from fairlead.testing.directory_world import World

WAIT_S = 60.0
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    clusters = {"cluster-A": "ABC", "pair": "BA"}
    with World("ABC", servers=0, clusters=clusters, directory={"directory.lease_s": 4}) as made:
        yield made


@pytest.fixture
def names() -> tuple[str, str]:
    number = next(_numbers)
    return f"BX{number}", f"BZ{number}"


class Reader:
    """Reads an application's messages at one broker after another, and writes down what it is done with."""

    def __init__(self, world: World, app: str, kind: AppKind = "dynamic") -> None:
        self._world, self._app, self._kind = world, app, kind
        self._tasks: list[asyncio.Task[None]] = []
        self.done: list[int] = []
        self.unsure: set[int] = set()  # acknowledged, and whether in time was never said

    async def at(self, broker: str) -> None:
        """Be there; and, once it is, nowhere else."""
        before, opened = self._tasks, asyncio.Event()
        self._tasks = [asyncio.create_task(self._read(broker, opened))]
        await asyncio.wait_for(opened.wait(), WAIT_S)
        await self._end(before)

    async def _read(self, broker: str, opened: asyncio.Event) -> None:
        url = self._world.url(f"only-{broker}")
        async with (
            fairlead.connect(url, name=self._app, kind=self._kind, reconnect_limit_s=WAIT_S) as connection,
            connection.application() as inbox,
        ):
            opened.set()
            while True:
                message = await inbox.receive()
                assert message is not None
                number = int(message.body)
                try:
                    await asyncio.shield(message.ack(confirm=True))
                except FairleadError:
                    self.unsure.add(number)
                except asyncio.CancelledError:
                    self.unsure.add(number)
                    raise
                else:
                    self.done.append(number)

    async def more_than(self, count: int) -> None:
        await self._world.until(lambda: len(self.done) > count, f"{count} have come", WAIT_S)

    async def until(self, count: int) -> None:
        """All of so many numbers have come, and nothing more comes."""
        everything = set(range(count))
        await self._world.until(lambda: everything <= {*self.done, *self.unsure}, "all messages", WAIT_S)
        await asyncio.sleep(1.5)
        assert {*self.done, *self.unsure} == everything
        assert [number for number, times in Counter(self.done).items() if times > 1] == []

    async def close(self) -> None:
        await self._end(self._tasks)

    async def _end(self, tasks: list[asyncio.Task[None]]) -> None:
        for task in tasks:
            task.cancel()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            if not isinstance(result, asyncio.CancelledError):
                raise AssertionError("the reader ended") from result


async def stream(sender: Any, to: str, begin: int, count: int) -> None:
    """Numbers one by one; each is sent when the last one is safe."""
    for number in range(begin, begin + count):
        await sender.send_to(to, b"%d" % number, timeout=WAIT_S)


@pytest.mark.requirement("DIR-78")
async def test_the_recipient_moves_during_a_stream(world: World, names: Any) -> None:
    ax, az = names
    reader = Reader(world, az)
    await reader.at("C")
    async with fairlead.connect(world.brokers["A"].url, application=ax) as sender:
        sending = asyncio.create_task(stream(sender, az, 0, 400))
        for count, broker in ((50, "B"), (120, "C"), (200, "B")):  # back and forth: nothing is mistaken for a repeat
            await reader.more_than(count)
            await reader.at(broker)
        await sending
        await reader.until(400)
    await reader.close()
    for name in "BC":
        carrying = world.brokers[name].status()["registrar"]["carrying"]
        assert carrying["dead"] == 0


@pytest.mark.requirement("DIR-73")
async def test_a_killed_registrar_loses_and_doubles_nothing(world: World, names: Any) -> None:
    ax, az = names
    reader = Reader(world, az, "static")
    await reader.at("C")
    async with fairlead.connect(world.brokers["B"].url, application=ax) as sender:
        sending = asyncio.create_task(stream(sender, az, 0, 300))
        for count, name in ((40, "B"), (120, "C"), (200, "B")):
            await reader.more_than(count)
            world.brokers[name].kill("registrar")
        await sending
        await reader.until(300)
    await reader.close()


@pytest.mark.requirement("DIR-73")
@pytest.mark.requirement("DIR-75")
@pytest.mark.parametrize("hurt", [pytest.param("B", marks=pytest.mark.long), "C"])
async def test_a_killed_broker_loses_and_doubles_nothing(world: World, names: Any, hurt: str) -> None:
    """That of the sender, then that of the recipient; it comes back at another port."""
    ax, az = names
    reader = Reader(world, az, "static")
    await reader.at("C")
    async with fairlead.connect(world.url("only-B"), name=ax, reconnect_limit_s=WAIT_S) as sender:
        sending = asyncio.create_task(stream(sender, az, 0, 200))
        await world.until(lambda: len(reader.done) > 60, "some have come")
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, world.kill, hurt)
        await asyncio.sleep(0.5)
        await loop.run_in_executor(None, world.start_again, hurt)
        await sending
        await reader.until(200)
    await reader.close()


@pytest.mark.requirement("DIR-73")
@pytest.mark.requirement("DIR-75")
async def test_a_sender_whose_broker_is_killed_goes_on_at_another(world: World, names: Any) -> None:
    """What was under way at that moment is sent again, and stored once; what the dead one has comes later."""
    ax, az = names
    reader = Reader(world, az, "static")
    await reader.at("C")
    loop = asyncio.get_running_loop()
    async with fairlead.connect(world.url("pair"), name=ax, placement="central", reconnect_limit_s=WAIT_S) as sender:
        assert sender.broker == "B"
        sending = asyncio.create_task(stream(sender, az, 0, 150))
        await world.until(lambda: len(reader.done) > 30, "some have come")
        await loop.run_in_executor(None, world.kill, "B")
        try:
            await sending
            assert sender.broker == "A"
        finally:
            await loop.run_in_executor(None, world.start_again, "B")
        await reader.until(150)
    await reader.close()


@pytest.mark.requirement("DIR-73")
@pytest.mark.requirement("DIR-75")
@pytest.mark.parametrize("where", ["BC", "C"])
async def test_what_a_killed_broker_may_have_stored_is_not_sent_elsewhere(
    world: World, names: Any, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The confirmations are lost with the broker: the messages were read there, or are on their way from there."""
    ax, az = names
    readers = [Reader(world, az, "static") for _ in where]
    for reader, broker in zip(readers, where, strict=True):
        await reader.at(broker)
    stored, killed, really_send = 0, asyncio.Event(), Queue.send

    async def unconfirmed(self: Queue, *args: Any, **options: Any) -> Any:
        nonlocal stored
        receipt = await really_send(self, *args, **options)
        if not killed.is_set():
            stored += 1
            await killed.wait()
            raise ConnectionLost("the confirmation was lost")
        return receipt

    def done() -> list[int]:
        return sorted(number for reader in readers for number in reader.done)

    monkeypatch.setattr(Queue, "send", unconfirmed)
    loop = asyncio.get_running_loop()
    async with fairlead.connect(world.url("pair"), name=ax, placement="central", reconnect_limit_s=WAIT_S) as sender:
        assert sender.broker == "B"
        sending = asyncio.gather(*(sender.send_to(az, b"%d" % number, timeout=WAIT_S) for number in range(8)))
        await world.until(lambda: stored == 8 and len(done()) == 8, "all are stored, and read")
        await loop.run_in_executor(None, world.kill, "B")
        killed.set()
        try:
            await sending  # safe at A, from where they are taken to B
            assert sender.broker == "A"
        finally:
            await loop.run_in_executor(None, world.start_again, "B")
        await world.until(lambda: waiting(world, "A", f"carry.B::{az}") == 0, "B was asked")
        await sender.send_to(az, b"8", timeout=WAIT_S)
        await world.until(lambda: 8 in done(), "it goes on")
    assert done() == list(range(9))
    for reader in readers:
        await reader.close()


def waiting(world: World, broker: str, queue: str) -> int:
    """How many messages are in a queue that was there."""
    with fairlead.sync.connect(world.brokers[broker].url) as connection:
        return int(connection.admin.destination(destination=queue)["depth"])


@pytest.mark.requirement("DIR-75")
async def test_what_was_given_out_at_a_killed_broker_comes_from_another_with_a_mark(world: World, names: Any) -> None:
    """The reader had it and did not settle it; it goes to C, and so does the message after B is back."""
    ax, az = names
    loop = asyncio.get_running_loop()
    async with (
        fairlead.connect(world.brokers["A"].url, application=ax) as sender,
        fairlead.connect(world.url("only-B"), name=az, kind="static", reconnect_limit_s=WAIT_S) as reader,
        reader.application() as inbox,
    ):
        await sender.send_to(az, b"once", timeout=WAIT_S)
        first = await inbox.receive(timeout=WAIT_S)
        assert first is not None
        assert not first.redelivered
        await loop.run_in_executor(None, world.kill, "B")
    await loop.run_in_executor(None, world.start_again, "B")
    async with (
        fairlead.connect(world.url("only-C"), name=az, kind="static", reconnect_limit_s=WAIT_S) as reader,
        reader.application() as inbox,
    ):
        again = await inbox.receive(timeout=WAIT_S)
        assert again is not None
        assert (again.body, again.redelivered, again.delivery.redelivered) == (b"once", True, False)
        await again.ack(confirm=True)


@pytest.mark.requirement("DIR-75")
async def test_a_recipient_whose_broker_is_killed_goes_on_at_another(world: World, names: Any) -> None:
    """Its inbox goes with it; calls that were under way fail or time out, and the next ones are answered."""
    ax, az = names
    loop = asyncio.get_running_loop()
    async with (
        fairlead.connect(world.brokers["A"].url, application=ax) as asking,
        fairlead.connect(world.url("pair"), name=az, placement="central", reconnect_limit_s=WAIT_S) as serving,
        await serving.serve_app(lambda message: b"to " + message.body),
    ):
        assert serving.broker == "B"
        assert (await asking.call(az, b"1", timeout=WAIT_S)).body == b"to 1"
        await loop.run_in_executor(None, world.kill, "B")
        try:

            async def is_answered() -> bool:
                return bool((await asking.call(az, b"2", timeout=2)).body == b"to 2")

            await world.until(is_answered, "it is answered from A", WAIT_S)
            assert serving.broker == "A"
        finally:
            await loop.run_in_executor(None, world.start_again, "B")


async def test_what_nobody_reads_here_goes_to_where_somebody_does(world: World, names: Any) -> None:
    """A connection of an application need not read: messages find one that does, at whatever broker."""
    ax, az = names
    async with (
        fairlead.connect(world.brokers["C"].url, application=az),
        fairlead.connect(world.brokers["B"].url, application=az),
        fairlead.connect(world.brokers["A"].url, application=az) as reading,
        fairlead.connect(world.brokers["C"].url, application=ax) as sender,
    ):
        for number in range(20):
            await sender.send_to(az, b"%d" % number)
        async with reading.application() as inbox:
            came: list[int] = []
            while len(came) < 20:
                message = await inbox.receive(WAIT_S)
                assert message is not None
                message.ack()
                came.append(int(message.body))
            assert sorted(came) == list(range(20))
            assert await inbox.receive(0.5) is None


async def test_what_a_dynamic_application_left_goes_after_it_and_its_queue_goes(world: World, names: Any) -> None:
    ax, az = names
    async with fairlead.connect(world.brokers["C"].url, application=ax) as sender:
        async with fairlead.connect(world.brokers["C"].url, application=az):
            for number in range(5):
                await sender.send_to(az, b"%d" % number)
        async with (
            fairlead.connect(world.brokers["B"].url, application=az) as moved,
            moved.application() as inbox,
        ):
            came: list[int] = []
            while len(came) < 5:
                message = await inbox.receive(WAIT_S)
                assert message is not None
                message.ack()
                came.append(int(message.body))
            assert came == list(range(5))

            async def is_gone() -> bool:
                found = await sender.admin.destinations(pattern=f"app.{az}")
                return not found["destinations"]

            await world.until(is_gone, "the queue at C is deleted", WAIT_S)
            await sender.send_to(az, b"5")  # what it knew of the way is not true any more
            message = await inbox.receive(WAIT_S)
            assert message is not None
            assert message.body == b"5"


async def test_hostile_messages_in_a_carry_queue_are_dead_ones(world: World, names: Any) -> None:
    """Whoever may send to a carry queue may not, by that, reach any queue of any broker."""
    ax, az = names
    async with (
        fairlead.connect(world.brokers["A"].url, application=ax) as sender,
        fairlead.connect(world.brokers["C"].url, application=az) as receiver,
        receiver.application() as inbox,
        fairlead.connect(world.brokers["A"].url) as hostile,
        fairlead.connect(world.brokers["C"].url) as victim,
    ):
        await sender.send_to(az, b"makes the way")
        first = await inbox.receive(WAIT_S)
        assert first is not None
        first.ack()
        await victim.queue("orders").send(b"warm up")
        carry = hostile.queue(f"carry.C::{az}", create=False)
        proper: dict[str, Any] = {"to": az, "id": "1" * 32, "queue": f"app.{az}"}
        before = world.brokers["A"].status()["registrar"]["carrying"]["dead"]
        for properties in (
            {},
            proper | {"queue": "orders"},
            proper | {"queue": "_DMQ"},
            proper | {"hops": 4},
            proper | {"hops": -1},
            proper | {"hops": "many"},
            proper | {"id": 7},
            proper | {"to": "", "queue": "app."},
        ):
            await carry.send(b"hostile", properties=properties)
        await carry.send(b"proper", properties=proper)
        message = await inbox.receive(WAIT_S)
        assert message is not None
        assert message.body == b"proper"
        message.ack()
        world.brokers["A"].wait_until(lambda status: status["registrar"]["carrying"]["dead"] == before + 8)
        async with victim.queue("orders").browse() as seen:
            assert [one.body async for one in seen] == [b"warm up"]
        assert await inbox.receive(0.2) is None


@pytest.mark.long
@pytest.mark.requirement("DIR-73")
@pytest.mark.requirement("DIR-78")
async def test_everything_at_once_loses_and_doubles_nothing(world: World, names: Any) -> None:
    """Two senders, a recipient that moves, registrars and brokers killed, 1600 numbered messages."""
    ax, az = names
    chance, loop = random.Random(20), asyncio.get_running_loop()
    reader = Reader(world, az, "static")
    await reader.at("C")
    async with (
        fairlead.connect(world.url("pair"), name=ax, reconnect_limit_s=WAIT_S) as one,
        fairlead.connect(world.url("only-C"), name=ax, reconnect_limit_s=WAIT_S) as two,
    ):
        sending = [asyncio.create_task(stream(one, az, 0, 800)), asyncio.create_task(stream(two, az, 800, 800))]
        while not all(task.done() for task in sending):
            await asyncio.sleep(chance.uniform(0.2, 1.5))
            what, name = chance.choice(["registrar", "registrar", "move", "move", "broker"]), chance.choice("BC")
            if what == "registrar":
                with contextlib.suppress(IndexError):  # it is being started
                    world.brokers[name].kill("registrar")
            elif what == "move":
                await reader.at(name)
            else:
                await loop.run_in_executor(None, world.kill, name)
                await asyncio.sleep(chance.uniform(0, 1))
                await loop.run_in_executor(None, world.start_again, name)
        await asyncio.gather(*sending)
        await reader.until(1600)
    await reader.close()

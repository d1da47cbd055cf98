"""Every fault of the way to the server, at every moment of a client's life: it ends well when the fault does, and with
the documented exception in time when it does not; never with a hang, never with a success that is none (CLU-121).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

import fairlead
from fairlead.client.aio.connection import Connection
from fairlead.errors import (
    CommitUnknown,
    ConnectionLost,
    NoMessageManager,
    NoReceiver,
    RemoteProtocolError,
    RequestTimeout,
    Stale,
    TransactionAborted,
)
from tests.client.gate import FAULTS, Gate
from tests.client.test_durable import Server

LIMIT_S = 2.0  # for coming back, where nobody can
PATIENT_S = 30.0  # for coming back, where it must succeed or must not matter: a busy machine takes its time
IN_TIME_S = 10.0  # far below that, and far above what any machine needs
CONNECT_S = 0.8
KEEP_ALIVE_S = 0.4
HARD_S = 60.0
HEAL_S = 0.25
LOOK_S = 0.005

LOST = (ConnectionLost, NoMessageManager)
GOES_ON = {"slow", "go-away"}
"""Faults with which everything goes on, in time or at another place."""

GREETS = {*GOES_ON, "no-manager"}
"""Faults with which a connection can be made all the same."""

QUIET = {"half-open", "slow"}
"""Faults that only a missing sign of life tells of, or that must not be taken for one."""


class Case:
    """A server, a door, a connection through it, and the fault that comes."""

    def __init__(self, fault: str, heals: bool) -> None:
        self.fault = fault
        self.heals = heals
        self.server = Server()
        self.gate = Gate(self.server)

    @property
    def ends_well(self) -> bool:
        return self.heals or self.fault in GOES_ON

    async def open(self) -> None:
        await self.server.start()
        await self.gate.open()

    async def close(self) -> None:
        if self.gate.other is not None:
            await self.gate.other.close()
        await self.gate.close()
        await self.server.stop()
        await asyncio.sleep(0.01)
        await self.server.stop()  # those that came meanwhile

    def connect(self, limit_s: float = 0.0) -> Connection:
        return fairlead.connect(
            f"fairlead://{self.gate.address}", name="test",
            keep_alive_s=KEEP_ALIVE_S if self.fault in QUIET else IN_TIME_S,
            reconnect_limit_s=limit_s or (PATIENT_S if self.ends_well else LIMIT_S),
            connect_timeout_s=IN_TIME_S if self.fault in GREETS else CONNECT_S,
        )  # fmt: skip

    async def connected(self, limit_s: float = 0.0) -> Connection:
        """Before anything goes wrong or after it is over, however busy this machine is."""
        while True:
            try:
                return await self.connect(limit_s)
            except ConnectionLost:
                await asyncio.sleep(0.05)

    async def flushed(self, connection: Connection) -> None:
        """A line that was taken for dead on a busy machine is another one by now."""
        while True:
            try:
                return await connection.flush()
            except ConnectionLost:
                if connection.closed:
                    raise

    async def strike(self) -> None:
        """The fault begins, and heals after a while if it does."""
        await self.gate.begin(self.fault)
        if self.heals:
            asyncio.get_running_loop().call_later(HEAL_S, lambda: asyncio.ensure_future(self.gate.heal()))

    async def over(self) -> None:
        """What is to be seen was seen: nobody need wait for what would come."""
        if self.gate.fault and not self.heals:
            await self.gate.heal()

    async def until(self, condition: Callable[[], object]) -> None:
        while not condition():
            await asyncio.sleep(LOOK_S)

    def stored(self, name: str) -> list[bytes]:
        found = self.server.manager.destinations.get(name)
        return [] if found is None else sorted(found.bodies)

    def has_hidden(self) -> bool:
        """Has the server something of an open transaction?"""
        return any(session.hidden for session in self.server.manager.sessions.values())

    async def ends(self, work: Awaitable[object], *documented: type[Exception]) -> bool:
        """True: it succeeded. It may fail with what is documented, unless the fault passes."""
        try:
            await work
        except documented as error:
            assert not self.ends_well, f"the fault has passed, and yet: {error!r}"
            return False
        return True


async def connect(case: Case) -> None:
    """The first connection is made at once, or the reason said; another try succeeds when the fault is over."""
    await case.strike()
    try:
        connection = await case.connect()
    except (ConnectionLost, RemoteProtocolError):
        assert case.fault not in GREETS
        if case.heals:
            await case.until(lambda: not case.gate.fault)
            async with await case.connected() as connection:
                await case.flushed(connection)
        return
    try:
        await case.flushed(connection)
    finally:
        await connection.close()


async def idle(case: Case) -> None:
    """Nobody does anything: it is noticed all the same, and mended or told."""
    connection = await case.connected()
    events: list[str] = []
    connection.on_event(lambda event: events.append(event.name))
    await case.strike()
    if case.fault in ("slow", "no-manager"):
        await case.flushed(connection)
    elif case.ends_well:
        await case.until(lambda: "reconnected" in events)
        await case.flushed(connection)
    else:
        await case.until(lambda: connection.closed)
        assert events[-1] == "closed"
        with pytest.raises(ConnectionLost):
            await connection.publish("a", b"b")
    await connection.close()


async def publish(case: Case) -> None:
    """Fire and forget: it waits for a line, or says that there will be none."""
    connection = await case.connected()
    await case.strike()

    async def work() -> None:
        while True:
            await connection.publish("prices", b"1")
            try:
                await connection.flush()
                return
            except ConnectionLost:
                if connection.closed:
                    raise

    done = await case.ends(work(), ConnectionLost)
    assert done or connection.closed
    await connection.close()


async def send(case: Case) -> None:
    """The server has it, and the answer is lost."""
    connection = await case.connected()
    queue = connection.queue("orders")
    await queue.send(b"first")
    case.gate.mute = True
    sending = asyncio.ensure_future(queue.send(b"second"))
    await case.until(lambda: len(case.stored("orders")) == 2)
    await case.strike()
    await case.ends(sending, *LOST)
    assert case.stored("orders") == [b"first", b"second"], "once"
    await connection.close()


async def send_many(case: Case) -> None:
    """Some are there, some are under way, some are not sent yet."""
    connection = await case.connected()
    queue = connection.queue("orders")
    bodies = [b"%04d" % number for number in range(300)]
    await queue.send(b"first")
    sending = asyncio.ensure_future(queue.send_many(bodies))
    await asyncio.sleep(0)
    await case.strike()
    if await case.ends(sending, *LOST):
        assert case.stored("orders") == [*bodies, b"first"]
    else:
        assert len(set(case.stored("orders"))) == len(case.stored("orders")), "none twice"
    await connection.close()


async def consume(case: Case) -> None:
    """A loop over messages: what comes later is seen, once."""
    connection = await case.connected()
    async with case_sender(case) as sender:
        seen: list[bytes] = []

        async def work() -> None:
            async for message in connection.queue("orders").consume():
                message.ack()
                seen.append(message.body)
                if message.body == b"after":
                    return

        loop = asyncio.ensure_future(work())
        await sender.queue("orders").send(b"before")
        await case.until(lambda: seen)
        await case.strike()
        if case.fault == "no-manager" and not case.heals:
            sent = False
        else:
            if case.fault == "no-manager":
                await case.until(lambda: not case.gate.fault)
            await sender.queue("orders").send(b"after")
            sent = True
        done = await case.ends(loop, *LOST)
        assert not done or (sent and set(seen) == {b"before", b"after"})
    await connection.close()


async def receive(case: Case) -> None:
    """With a time limit: it is kept, whatever happens."""
    connection = await case.connected(PATIENT_S)
    consumer = connection.queue("orders").consume()
    await consumer.start()
    await case.strike()
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    assert await consumer.receive(timeout=0.15) is None
    assert loop.time() - began_s < IN_TIME_S
    await case.over()
    await connection.close()


async def ack(case: Case) -> None:
    """Awaited: it is safe, or it came too late and the message comes again, or nobody can say."""
    connection = await case.connected()
    queue = connection.queue("orders")
    await queue.send(b"one")
    consumer = queue.consume()
    message = await consumer.receive(timeout=IN_TIME_S)
    assert message is not None
    await case.strike()
    try:
        done = await case.ends(asyncio.ensure_future(_awaited(message)), *LOST)
    except Stale:  # it comes again, or the first acknowledgement was heard after all
        if case.stored("orders"):
            again = await consumer.receive(timeout=IN_TIME_S)
            assert again is not None
            assert again.redelivered
            await again.ack(confirm=True)
        done = True
    assert not done or case.stored("orders") == []
    await connection.close()


async def _awaited(message: fairlead.Delivery) -> None:
    await message.ack(confirm=True)


async def open_transaction(case: Case) -> None:
    """It only sent: begun anew by itself."""
    connection = await case.connected()

    async def work() -> None:
        async with connection.transaction() as transaction:
            await transaction.send("orders", b"one")
            await case.until(case.has_hidden)
            await case.strike()
            await transaction.send("orders", b"two")

    if await case.ends(work(), *LOST, TransactionAborted, CommitUnknown):
        assert case.stored("orders") == [b"one", b"two"]
    else:
        assert case.stored("orders") in ([], [b"one", b"two"]), "all or nothing"
    await connection.close()


async def commit(case: Case) -> None:
    """It happened, and the answer is lost: asked about, never said again."""
    connection = await case.connected()
    await connection.queue("orders").send(b"warm")
    transaction = connection.transaction()
    await transaction.send("orders", b"one")
    await case.until(case.has_hidden)
    case.gate.mute = True
    committing = asyncio.ensure_future(transaction.commit())
    await case.until(lambda: len(case.stored("orders")) == 2)
    await case.strike()
    await case.ends(committing, *LOST, CommitUnknown)
    assert case.stored("orders") == [b"one", b"warm"], "once, and not undone"
    commits = [(one["session"], one["transaction"]) for one in case.server.manager.commands if one["do"] == "commit"]
    assert len(commits) == 1
    await connection.close()


async def request(case: Case) -> None:
    """It fails with the line it was on; another one is answered when the fault is over."""
    connection = await case.connected(PATIENT_S)
    async with case_sender(case) as other:
        await other.respond("double", lambda request: request.body * 2)
        await case.strike()
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        try:
            assert (await connection.request("double", b"2", timeout=0.4)).body == b"22"
        except (ConnectionLost, RequestTimeout, NoReceiver):
            pass
        assert loop.time() - began_s < IN_TIME_S
        if case.ends_well:
            for _ in range(20):
                try:
                    assert (await connection.request("double", b"4", timeout=0.5)).body == b"44"
                    break
                except (ConnectionLost, RequestTimeout):
                    await asyncio.sleep(0.05)
            else:
                raise AssertionError("it is never answered again")
    await case.over()
    await connection.close()


async def close(case: Case) -> None:
    """With a session, a consumer and something unconfirmed: it ends, and so does whatever waits."""
    connection = await case.connected()
    queue = connection.queue("orders")
    await queue.send(b"one")
    consumer = await queue.consume().start()
    case.gate.mute = True
    sending = asyncio.ensure_future(queue.send(b"two"))
    waiting = asyncio.ensure_future(consumer.receive_many(9))
    await case.until(lambda: len(case.stored("orders")) == 2)
    await case.strike()
    await connection.close()
    assert connection.closed
    await asyncio.wait([sending, waiting], timeout=IN_TIME_S)
    assert sending.done()
    assert waiting.done()
    if sending.exception() is None:
        assert case.stored("orders") == [b"one", b"two"]


def case_sender(case: Case) -> Connection:
    """Somebody else, who comes by another way."""
    return fairlead.connect(case.server.url, name="other")


MOMENTS = (
    connect, idle, publish, send, send_many, consume, receive, ack, open_transaction, commit, request, close,
)  # fmt: skip


@pytest.mark.requirement("CLU-121", "CLU-117", "CLU-127")
@pytest.mark.parametrize("fault", FAULTS)
def test_every_moment_ends_in_time_and_truthfully(fault: str) -> None:
    async def one(moment: Callable[[Case], Awaitable[None]], heals: bool) -> None:
        case = Case(fault, heals)
        await case.open()
        try:
            async with asyncio.timeout(HARD_S):
                await moment(case)
        except TimeoutError:
            raise AssertionError(f"{moment.__name__} hangs, heals: {heals}") from None
        except Exception as error:
            error.add_note(f"while: {moment.__name__}, {'heals' if heals else 'stays'}")
            raise
        finally:
            await case.close()

    async def all_at_once() -> None:
        cases = [one(moment, heals) for moment in MOMENTS for heals in (True, False)]
        results = await asyncio.gather(*cases, return_exceptions=True)
        errors = [result for result in results if isinstance(result, BaseException)]
        if errors:
            raise BaseExceptionGroup(f"{len(errors)} of {len(results)}", errors)

    asyncio.run(all_at_once())

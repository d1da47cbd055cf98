"""Sessions: what belongs together is sent, received and settled on one of them, in order."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Self

from fairlead.client.aio.consuming import ACK_MODES, AckMode, Consumer
from fairlead.client.aio.courier import Courier, limited
from fairlead.client.aio.destinations import Queue, Topic
from fairlead.client.durable.commands import Command, Facts, moot
from fairlead.client.durable.session import DurableSession, State
from fairlead.client.durable.transaction import DurableTransaction
from fairlead.errors import BadParameter, ConnectionLost, LocalProtocolError

if TYPE_CHECKING:
    from fairlead.client.aio.delivery import Delivery

__all__ = ["Session"]

CLOSE_S = 10.0


class Session:
    """Made by `connection.session()`. Its consumers acknowledge in its mode unless they are told otherwise."""

    def __init__(self, courier: Courier, ack: AckMode) -> None:
        if ack not in ACK_MODES:
            raise BadParameter(f"The mode of acknowledgement is one of {', '.join(ACK_MODES)}, and not {ack!r}.")
        self.courier = courier
        self.ack: AckMode = ack
        self.consumers: set[Consumer] = set()
        self.callbacks = asyncio.Lock()
        """Held while a listener runs: within a session they run one at a time (CLU-30)."""
        self.stopped = False
        self._machine = courier.road.session(ack)
        self._closed = False

    @property
    def machine(self) -> DurableSession:
        """The session at the server; another one when the last was given up for lost."""
        if self._machine.state is State.ENDED and not self._closed and self.courier.road.ended is None:
            self._machine = self.courier.road.session(self.ack)
            self._machine.stopped = self.stopped
        return self._machine

    @property
    def id(self) -> str:
        """The server's id of it; empty before its first use."""
        return self._machine.id

    @property
    def is_transacted(self) -> bool:
        return self.ack == "transacted"

    @property
    def is_reusable(self) -> bool:
        """Nothing is left of what it was used for."""
        machine = self._machine
        return not (self._closed or self.consumers or machine.state is State.ENDED or machine.transaction)

    def queue(self, name: str, *, create: bool = True, parameters: Mapping[str, Any] | None = None) -> Queue:
        return Queue(self, name, create=create, parameters=parameters)

    def topic(self, name: str, *, create: bool = True, parameters: Mapping[str, Any] | None = None) -> Topic:
        return Topic(self, name, create=create, parameters=parameters)

    async def temporary(self, kind: str) -> str:
        """The name of a destination that goes with the session."""
        name = str((await self.ask("temporary", {"kind": kind}))["name"])
        if self.courier.road.is_cluster:
            self.courier.road.places.learn(name, self.machine.home.group.name)
        return name

    async def temporary_queue(self) -> Queue:
        return Queue(self, await self.temporary("queue"), create=False, parameters=None)

    async def temporary_topic(self) -> Topic:
        return Topic(self, await self.temporary("topic"), create=False, parameters=None)

    def acknowledge(self) -> None:
        """Client mode: everything this session has handed out so far is done with."""
        for consumer in self.consumers:
            if consumer.ack == "client":
                for message in consumer.take_handed():
                    consumer.machine.acknowledge(message._delivered, message._epoch)

    async def recover(self) -> None:
        """Client mode: give back what was handed out and not acknowledged; it comes again."""
        from fairlead.wire.durable import RETURN

        for consumer in list(self.consumers):
            if consumer.ack == "client":
                handed: list[Delivery] = consumer.take_handed()
                consumer.machine.release_unseen()
                for message in handed:
                    consumer.machine.settle(message._delivered, RETURN, 0, message._epoch)

    async def stop(self) -> None:
        """No deliveries until `start`; returns when running listeners have finished."""
        self.stopped = True
        await self._flow(True)
        async with self.callbacks:
            pass

    async def start(self) -> None:
        """Deliveries again; a session begins started."""
        self.stopped = False
        for consumer in self.consumers:
            consumer._wake()
        await self._flow(False)

    async def _flow(self, stop: bool) -> None:
        future, told = self.courier.reply()
        self._machine.flow(stop, told)
        await future

    # Transactions.

    def current(self) -> DurableTransaction:
        """The open transaction; the next one begins at once when one ends (CLU-154)."""
        if not self.is_transacted:
            raise LocalProtocolError("This session is not transacted: open it with ack='transacted'.")
        machine = self.machine
        return machine.transaction or DurableTransaction(machine)

    async def commit(self, timeout: float | None = None) -> None:
        """All that was sent and received since the last commit or rollback becomes effective, or nothing of it."""
        tracing = self.courier.tracing
        with nullcontext() if tracing is None else tracing.committing("commit"):
            future, told = self.courier.reply()
            self.current().commit(told)
            await limited(future, timeout)

    async def rollback(self) -> None:
        """Nothing of it happened: what was received comes again."""
        tracing = self.courier.tracing
        with nullcontext() if tracing is None else tracing.committing("rollback"):
            future, told = self.courier.reply()
            self.current().rollback(told)
            await future

    # Its end.

    async def ask(self, do: str, fields: Facts, timeout: float | None = None) -> Facts:
        future, told = self.courier.reply()
        self.machine.ask(Command(do, fields, told))
        return await limited(future, timeout)

    async def flush(self) -> None:
        """Wait until everything sent is confirmed or refused."""
        while not self._machine.is_idle and self._machine.state is not State.ENDED:
            await self.courier.changed()

    async def close(self) -> None:
        """Everything sent is confirmed or has failed; consumers are closed; what was open is rolled back."""
        if self._closed:
            return
        self._closed = True
        machine = self._machine
        try:
            async with asyncio.timeout(CLOSE_S):
                if machine.transaction is not None and self.is_transacted:
                    await self.rollback()
                await asyncio.gather(*(consumer.close() for consumer in list(self.consumers)), return_exceptions=True)
                await self.flush()
                future, told = self.courier.reply()
                machine.end(told)
                await future
        except TimeoutError:
            machine.end(moot)  # it is said, though nobody waits for the answer
        machine.fail(ConnectionLost("The session was closed by this program."))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, *exc: object) -> None:
        await self.close()

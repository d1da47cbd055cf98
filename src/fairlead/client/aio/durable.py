"""The part of a connection that has queues and topics: see `destinations`, `consuming` and `transactions`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from fairlead.client.aio.administration import Admin
from fairlead.client.aio.consuming import AckMode
from fairlead.client.aio.courier import Courier, limited
from fairlead.client.aio.destinations import Queue, Topic
from fairlead.client.aio.sessions import Session
from fairlead.client.aio.transactions import Transaction
from fairlead.client.durable.commands import Facts
from fairlead.client.durable.commit import ask_outcome
from fairlead.errors import TransactionAborted

if TYPE_CHECKING:
    from fairlead.client.aio.carrier import Carrier
    from fairlead.client.aio.connection import Connection

__all__ = ["DurableConnection"]

T = TypeVar("T")
PAUSE_S = 0.02
PAUSE_MAX_S = 1.0
IDLE_MAX = 16


class DurableConnection:
    """What `Connection` adds to broadcast, requests and conversations."""

    _durable_limit_s: float
    _courier: Courier | None = None
    _main: Session | None = None
    _sessions: list[Session]
    _idle: list[Session]  # transacted, and between two transactions

    if TYPE_CHECKING:

        @property
        def _carrier(self) -> Carrier: ...

        @property
        def type(self) -> str: ...

    @property
    def courier(self) -> Courier:
        if self._courier is None:
            self._courier = Courier(self._carrier, client_name=self.type, limit_s=self._durable_limit_s)
            self._sessions, self._idle = [], []
        return self._courier

    def _own_session(self) -> Session:
        if self._main is None:
            self._main = self.session()
        return self._main

    def queue(self, name: str, *, create: bool = True, parameters: Mapping[str, Any] | None = None) -> Queue:
        """A queue, which is made if there is none (unless `create` is False) when it is first used."""
        return self._own_session().queue(name, create=create, parameters=parameters)

    def topic(self, name: str, *, create: bool = True, parameters: Mapping[str, Any] | None = None) -> Topic:
        """A topic whose messages are stored, for durable subscriptions among others."""
        return self._own_session().topic(name, create=create, parameters=parameters)

    async def temporary_queue(self) -> Queue:
        """A queue only this connection may consume from; it goes when the connection does."""
        return await self._own_session().temporary_queue()

    async def temporary_topic(self) -> Topic:
        return await self._own_session().temporary_topic()

    def session(self, ack: AckMode = "individual") -> Session:
        """A session of its own: another order of sending, another mode of acknowledgement, or transactions."""
        made = Session(self.courier, ack)
        self._sessions = [session for session in self._sessions if not session._closed]
        self._sessions.append(made)
        return made

    def transaction(self) -> Transaction:
        """One transaction: `async with connection.transaction() as transaction`.

        If the connection is lost before the commit, TransactionAborted says so and that it can be done again; see
        `run_transaction`.
        """
        self._own_session()
        session = self._idle.pop() if self._idle else self.session("transacted")
        return Transaction(session, self._finished)

    def _finished(self, session: Session) -> None:
        """A transaction is over: the next one need not open a session of its own."""
        if session.is_reusable and len(self._idle) < IDLE_MAX:
            self._idle.append(session)
        else:
            self.courier.carrier.spawn(session.close())

    async def run_transaction(self, function: Callable[[Transaction], Awaitable[T]], *, attempts: int = 10) -> T:
        """Call `function(transaction)` and commit; again from the start when the transaction was undone on the way."""
        pause_s = PAUSE_S
        for attempt in range(attempts):
            try:
                async with self.transaction() as transaction:
                    return await function(transaction)
            except TransactionAborted as error:
                if not error.retryable or attempt == attempts - 1:
                    raise
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, PAUSE_MAX_S)
        raise TransactionAborted("There was no attempt.")

    async def outcome(self, transaction: str, timeout: float | None = None) -> str:
        """`committed` or `rolled-back`: the truth about a transaction that ended with CommitUnknown."""
        future, told = self.courier.reply()
        ask_outcome(self.courier.road, transaction, told)
        return str((await limited(future, timeout))["outcome"])

    async def _ask_directory(self, op: str, arguments: Mapping[str, Any], timeout: float | None = None) -> Facts:
        """One operation of the directory this server keeps (directory/operations.py); it is not asked again."""
        return await self.courier.ask_once("directory", {"op": op, **arguments}, timeout)

    async def stop(self) -> None:
        """No deliveries from queues and topics until `start`; returns when running listeners have finished."""
        self._own_session()
        await asyncio.gather(*(session.stop() for session in self._sessions))

    async def start(self) -> None:
        """Deliveries again; a connection begins started."""
        self._own_session()
        await asyncio.gather(*(session.start() for session in self._sessions))

    @property
    def admin(self) -> Admin:
        """Administration of the server: see docs/administration.md."""
        if TYPE_CHECKING:
            assert isinstance(self, Connection)
        return Admin(self)

    async def _close_durable(self) -> None:
        """Orderly, and not for ever."""
        if self._courier is not None:
            await asyncio.gather(*(session.close() for session in self._sessions), return_exceptions=True)
            self._courier.stop()

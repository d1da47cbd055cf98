"""Transactions as a block: committed at its end, rolled back when it raises.

::

    async with connection.transaction() as transaction:
        order = await transaction.receive("orders", timeout=1)
        await transaction.send("invoices", order.body)
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Self

from fairlead.client.aio.consuming import Consumer
from fairlead.client.aio.delivery import Delivery
from fairlead.client.aio.destinations import Body, Destination, Queue, Topic
from fairlead.client.aio.sessions import Session

__all__ = ["Transaction"]


class Transaction:
    """One unit of work. What it opened is closed with it; its session is used again by the next one."""

    def __init__(self, session: Session, done: Callable[[Session], None]) -> None:
        self._session = session
        self._done = done
        self._consumers: dict[str, Consumer] = {}
        self._over = False

    @property
    def id(self) -> str:
        """Session and number of the transaction, as `fairlead admin transactions` shows them."""
        return f"{self._session.id}/{self._session.current().number}"

    def queue(self, name: str, *, create: bool = True, parameters: Mapping[str, Any] | None = None) -> Queue:
        return self._session.queue(name, create=create, parameters=parameters)

    def topic(self, name: str, *, create: bool = True, parameters: Mapping[str, Any] | None = None) -> Topic:
        return self._session.topic(name, create=create, parameters=parameters)

    async def send(self, destination: str | Destination, body: Body, **options: Any) -> None:
        """Send when the transaction is committed; the options are those of `Queue.send`.

        A name stands for the queue or topic of that name, and for a new queue where there is none.
        """
        target = Named(self._session, destination if isinstance(destination, str) else destination.name)
        if isinstance(destination, Destination):
            target.kind = destination.kind
        await target.send(body, **options)

    async def receive(self, queue: str | Destination, timeout: float | None = None, **options: Any) -> Delivery | None:
        """The next message of a queue, which is gone when the transaction is committed; None if none comes in time."""
        name = queue if isinstance(queue, str) else queue.name
        consumer = self._consumers.get(name)
        if consumer is None:
            options.setdefault("prefetch", 1)
            consumer = self._consumers[name] = self._session.queue(name).consume(**options)
        return await consumer.receive(timeout)

    async def commit(self, timeout: float | None = None) -> None:
        self._over = True
        await self._session.commit(timeout)

    async def rollback(self) -> None:
        self._over = True
        await self._session.rollback()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, *exc: object) -> None:
        try:
            if not self._over:
                if kind is None:
                    await self.commit()
                else:
                    await self.rollback()
        finally:
            await asyncio.gather(*(consumer.close() for consumer in list(self._session.consumers)))
            self._done(self._session)


class Named(Destination):
    """A destination of whatever kind it is."""

    def __init__(self, session: Session, name: str) -> None:
        super().__init__(session, name, create=True, parameters=None)

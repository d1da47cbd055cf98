"""Listeners: a callback for each message of a consumer, one at a time within its session (CLU-30)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, TypeAlias

from fairlead.client.aio.delivery import Delivery
from fairlead.errors import LocalProtocolError

if TYPE_CHECKING:
    from fairlead.client.aio.consuming import AckMode
    from fairlead.client.aio.sessions import Session
    from fairlead.client.aio.tracing import Tracing

__all__ = ["CLOSE_S", "Listener", "Listening"]

logger = logging.getLogger("fairlead.client")

Listener: TypeAlias = Callable[[Delivery], Any]
CLOSE_S = 5.0


class Listening:
    """The part of a consumer that calls back."""

    session: Session
    ack: AckMode
    tracing: Tracing | None
    _listener: asyncio.Task[None] | None = None
    _next: Delivery | None = None  # taken for the callback, which is not free yet

    if TYPE_CHECKING:

        async def take_batch(self, limit: int) -> list[Delivery]: ...

        def return_unseen(self, messages: list[Delivery]) -> None: ...

        def comes_again(self, message: Delivery) -> bool: ...

    def listen(self, callback: Listener) -> asyncio.Task[None]:
        """Call `callback(message)` for each message, one at a time within the session; returns the task that does.

        A callback that raises gives its message back; in auto mode one that returns acknowledges it.
        """
        if self._listener is not None:
            raise LocalProtocolError("This consumer has a listener already.")
        self._listener = self.session.courier.carrier.spawn(self._listen(callback))
        return self._listener

    async def _listen(self, callback: Listener) -> None:
        while found := await self.take_batch(1):
            self._next = message = found[0]
            async with self.session.callbacks:
                self._next = None
                if self.comes_again(message):
                    self.return_unseen(found)
                    continue
                try:
                    if self.tracing is not None:
                        message._in_span = True
                    with nullcontext() if self.tracing is None else self.tracing.processing(message):
                        result = callback(message)
                        if isinstance(result, Awaitable):
                            await result
                except Exception:
                    logger.exception("A listener failed; its message is given back.")
                    if self.ack in ("auto", "individual"):
                        message.retry()
                else:
                    if self.ack == "auto":
                        message.ack()

    async def _stop_listening(self, listener: asyncio.Task[None]) -> None:
        """When the callback that may be running has finished."""
        try:
            async with asyncio.timeout(CLOSE_S), self.session.callbacks:
                listener.cancel()
        except TimeoutError:
            listener.cancel()
        await asyncio.gather(listener, return_exceptions=True)

"""A subscription: messages of the topics its pattern stands for, in the order they arrived.

::

    async with connection.subscribe("prices.>") as prices:
        async for message in prices: ...
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from fairlead.client.aio.mailbox import Mailbox
from fairlead.client.aio.waiting import agreed
from fairlead.message import Message
from fairlead.topics import validate_pattern

if TYPE_CHECKING:
    from fairlead.client.aio.carrier import Carrier

__all__ = ["Subscription"]


class Subscription(Mailbox[Message]):
    """`interruptions` counts lost connections: after each, messages may be missing."""

    def __init__(self, carrier: Carrier, pattern: str, *, no_local: bool, buffer: int) -> None:
        validate_pattern(pattern)
        super().__init__(carrier, buffer=buffer)
        self.pattern = pattern
        self.no_local = no_local
        self.interruptions = 0
        self._number = 0
        self.deliver = self.put

    async def start(self) -> None:
        """Subscribe, and wait until the server has agreed; from here on nothing is missed."""
        if self._number or self._ended:
            return
        await self._carrier.room()
        self._enlist()
        answer, wait = agreed(self._carrier)
        self._number = self._carrier.session.subscribe(self.pattern, self, answer, no_local=self.no_local)
        try:
            await wait
        except BaseException as error:
            await self.close()
            if isinstance(error, Exception):
                self._error = error
            raise

    async def close(self) -> None:
        """Unsubscribe; what was not read yet is dropped."""
        if self._number and not self._ended:
            self.end()
            self.queue.clear()
            self._carrier.session.unsubscribe(self._number, lambda error: None)
            self._carrier.consumed()
            self._carrier.pushed()
        self.end()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

"""Waiting for responses: one (`Reply`), several of one receiver (`ReplyStream`), those of many (`FanOut`)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

from fairlead.client.aio.mailbox import Mailbox
from fairlead.errors import RequestTimeout, from_wire
from fairlead.message import Message
from fairlead.wire.kinds import FLAG_LAST

if TYPE_CHECKING:
    from fairlead.client.aio.carrier import Carrier
    from fairlead.client.aio.spanned import Spanned

__all__ = ["Ask", "FanOut", "Reply", "ReplyStream", "failure"]


def failure(message: Message) -> Exception | None:
    """The exception a receiver answered with, if that is what it did."""
    headers = message.headers
    if headers and (code := headers.get("error")) is not None:
        return from_wire(code.decode(errors="replace"), message.body.decode(errors="replace"))
    return None


@dataclass(frozen=True, slots=True)
class Ask:
    """A question as it goes on the wire."""

    kind: int
    flags: int
    peer: int
    topic: bytes
    headers: bytes
    body: bytes


class Reply:
    """One response is awaited: a future, and nothing more."""

    __slots__ = ("deadline_s", "future")

    def __init__(self, future: asyncio.Future[Message], deadline_s: float) -> None:
        self.future = future
        self.deadline_s = deadline_s

    def on_message(self, message: Message) -> bool:
        future = self.future
        if not future.done():
            error = failure(message)
            if error is None:
                future.set_result(message)
            else:
                future.set_exception(error)
        return True

    def on_asked(self, count: int) -> bool:
        return False

    def on_receiver_lost(self) -> bool:
        return False

    def fail(self, error: Exception) -> None:
        if not self.future.done():
            self.future.set_exception(error)

    def on_timeout(self) -> None:
        self.fail(RequestTimeout("No answer arrived in time; the request may still be acted on."))


class ReplyStream(Mailbox[Message]):
    """Responses of one receiver until its last; asked when the iteration begins."""

    def __init__(self, carrier: Carrier, ask: Ask, timeout: float | None, spanned: Spanned | None = None) -> None:
        super().__init__(carrier)
        self._spanned = spanned
        self.deadline_s = inf
        self._ask = ask
        self._timeout = timeout
        self._correlation = 0

    async def start(self) -> None:
        if self._correlation or self._ended:
            return
        carrier = self._carrier
        if self._timeout is not None:
            self.deadline_s = carrier.loop.time() + self._timeout
        if carrier.brake:
            await carrier.room(self.deadline_s)
        self._enlist()
        ask = self._ask
        self._correlation = carrier.session.request(
            self, ask.kind, ask.flags, ask.peer, ask.topic, ask.headers, ask.body
        )
        carrier.watch()
        carrier.pushed()

    async def __aiter__(self) -> AsyncIterator[Message]:
        try:
            async for message in super().__aiter__():
                yield message
        finally:
            await self.close()

    async def close(self) -> None:
        """Give up what is still to come."""
        if not self._ended:
            self._carrier.session.give_up(self._correlation)
            self._carrier.pushed()
            self.end()

    def on_message(self, message: Message) -> bool:
        error = failure(message)
        if error is not None:
            self.fail(error)
            return True
        self.put([message])
        if message.flags & FLAG_LAST:
            self.end()
            return True
        return False

    def end(self) -> None:
        if self._spanned is not None and not self._ended:
            self._spanned.end(self._error)
        super().end()

    def on_asked(self, count: int) -> bool:
        return False

    def on_receiver_lost(self) -> bool:
        return False

    def on_timeout(self) -> None:
        self.fail(RequestTimeout("The last answer did not arrive in time."))


class FanOut(ReplyStream):
    """Responses of everybody who was asked. The iteration ends when all are in, or when the time is up.

    `asked` is how many were asked, `answered` how many finished, `lost` how many disappeared before that. A
    receiver that failed answers with a header `error`, like any other response.
    """

    answered = 0
    lost = 0
    _here: int | None = None  # asked by our server
    _beyond = 0  # … and more than that by links to others

    @property
    def asked(self) -> int | None:
        return None if self._here is None else self._here + self._beyond

    @property
    def is_complete(self) -> bool:
        """Has everybody who was asked answered or been reported lost?"""
        asked = self.asked
        return asked is not None and self.answered + self.lost >= asked

    def on_message(self, message: Message) -> bool:
        is_last = bool(message.flags & FLAG_LAST)
        if (stands_for := message.protocol_header(":asked")) is not None:  # a link: it asked others in its turn
            self._beyond += (int(stands_for) if stands_for.isdigit() else 1) - 1
        elif message.protocol_header(":lost") is not None:
            self.lost += 1
        else:
            self.put([message])
            self.answered += is_last or message.protocol_header(":last") is not None
        return self._end_if_complete()

    def on_asked(self, count: int) -> bool:
        self._here = count
        return self._end_if_complete()

    def on_receiver_lost(self) -> bool:
        self.lost += 1
        return self._end_if_complete()

    def on_timeout(self) -> None:
        self.end()

    def _end_if_complete(self) -> bool:
        if self.is_complete:
            self.end()
        return self.is_complete

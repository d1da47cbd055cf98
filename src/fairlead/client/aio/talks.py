"""Conversations: both sides send as often as they like, always to the same other side, until one of them ends it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Self

from fairlead.client.aio.asking import failure
from fairlead.client.aio.mailbox import Mailbox
from fairlead.client.aio.serving import Registration, as_bytes
from fairlead.errors import ConversationLost, FairleadError
from fairlead.message import Message
from fairlead.wire.headers import application_pairs, encode_headers
from fairlead.wire.kinds import FLAG_LAST, KIND_CONVERSE

if TYPE_CHECKING:
    from fairlead.client.aio.carrier import Carrier

__all__ = ["Acceptor", "Conversation"]


class Conversation(Mailbox[Message]):
    """One side of a conversation. Leaving `async with` ends it for both."""

    def __init__(
        self,
        carrier: Carrier,
        *,
        correlation: int | None = None,
        topic: str = "",
        address: tuple[int, int, bytes] = (0, 0, b""),
        headers: bytes = b"",
    ) -> None:
        super().__init__(carrier)
        self.topic = topic
        self.sender = 0
        self.user: str | None = None
        self._flags, self._peer, self._wire_topic = address
        self._first_headers = headers  # of ours: they go with the first message only
        self._correlation = carrier.session.open_talk(self) if correlation is None else correlation
        self._count = 0
        self._said_last = False
        self._enlist()

    async def send(
        self, body: bytes | str, *, last: bool = False, headers: Mapping[str, bytes | str] | None = None
    ) -> None:
        """Say something; with `last=True` the conversation is over after it."""
        if self._carrier.brake:
            await self._carrier.room()
        if self._ended or self._said_last:
            raise self._error or self._nothing_more()
        section, self._first_headers = self._first_headers, b""
        if headers:
            section += encode_headers(application_pairs(headers))
        session = self._carrier.session
        self._count += 1
        session.message(
            KIND_CONVERSE,
            self._flags | (FLAG_LAST if last else 0),
            self._count,
            self._correlation,
            self._peer,
            self._wire_topic,
            section,
            as_bytes(body),
        )
        if last:
            self._said_last = True
            session.talks.pop(self._correlation, None)
            self.end()
        self._carrier.pushed()

    async def receive(self, timeout: float | None = None) -> Message:
        """What the other side says next; ConversationLost when it has ended or is gone."""
        return await self.next(timeout)

    async def close(self) -> None:
        """End it, unless it has ended."""
        if self._ended:
            return
        if self._count or self.sender:
            try:
                await self.send(b"", last=True)
            except FairleadError:
                pass
        self._carrier.session.talks.pop(self._correlation, None)
        self.end()

    def deliver(self, run: list[Message]) -> None:
        for message in run:
            error = failure(message)
            if error is not None:
                self.fail(error)
                return
            is_last = bool(message.flags & FLAG_LAST)
            if message.body or not is_last:  # an empty last one only says that it is over
                self.put([message])
            if is_last:
                self.end()

    def _nothing_more(self) -> Exception:
        return ConversationLost("The conversation is over.")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()


class Acceptor(Registration, Mailbox[Conversation]):
    """Conversations others begin with us."""

    def __init__(self, carrier: Carrier, topic: str) -> None:
        Registration.__init__(self, carrier, topic)
        Mailbox.__init__(self, carrier)

    async def start(self) -> None:
        self._enlist()
        await Registration.start(self)

    def deliver(self, run: list[Message]) -> None:
        for message in run:
            talk = Conversation(self._owner, correlation=message.correlation, topic=message.topic)
            talk.sender, talk.user = message.sender, message.user
            if not message.flags & FLAG_LAST:
                self._owner.session.talks[message.correlation] = talk
            talk.deliver([message])
            self.put([talk])

    def fail(self, error: Exception) -> None:
        self._closed = True
        Mailbox.fail(self, error)

    def _register(self, answer: Callable[[Exception | None], None]) -> int:
        return self._owner.session.register(self.topic, answer, talks=self)

    async def close(self) -> None:
        """Unregister, and end the conversations nobody took."""
        await Registration.close(self)
        self.end()
        while self.queue:
            await self.queue.popleft().close()

"""The session of a bridge at one server: an ordinary client's, but what arrives goes to the bridge whole.

Subscriptions and registrations are the bridge's to say anew after a loss, so this session keeps none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from fairlead.client.effects import Effect, Lost
from fairlead.client.link import Link, control
from fairlead.client.outgoing import SERVER_MADE
from fairlead.client.session import Session
from fairlead.message import Message
from fairlead.wire import kinds
from fairlead.wire.handshake import Connect

Answer = Callable[[Exception | None], None]


class Taker(Protocol):
    """Who is told what happens at this server."""

    def on_live(self) -> None: ...
    def on_lost(self) -> None: ...
    def on_interest(self, body: bytes) -> None: ...
    def on_publish(self, run: list[Message]) -> None: ...
    def on_request(self, message: Message) -> None: ...
    def on_converse(self, message: Message) -> None: ...
    def on_send(self, message: Message) -> None: ...


class LinkSession(Session):
    """One bridge at one server."""

    def __init__(self, hello: Connect, taker: Taker) -> None:
        super().__init__(hello)
        self._taker = taker
        self._takers[kinds.KIND_INTEREST] = self._on_interest

    def claim(self, kind: int, key: str, answer: Answer, flags: int = 0) -> int:
        """Subscribe or register; the number by which `disclaim` ends it."""
        number = self._next_number()
        self._answers[number] = answer
        self.send(control(kind, number=number, topic=key.encode(), flags=flags))
        return number

    def disclaim(self, kind: int, number: int, answer: Answer) -> None:
        self._end_number(kind, number, answer)

    def on_lost(self, link: Link, error: Exception | None = None) -> list[Effect]:
        effects = super().on_lost(link, error)
        if any(isinstance(effect, Lost) for effect in effects):
            self._answers.clear()
            self._taker.on_lost()
        return effects

    def _on_live(self, link: Link) -> None:
        super()._on_live(link)
        if self.link is link:
            self._taker.on_live()

    def _on_interest(self, run: list[Message]) -> None:
        for message in run:
            self._taker.on_interest(message.body)

    def _on_publish(self, run: list[Message]) -> None:
        self._taker.on_publish(run)

    def _on_request(self, run: list[Message]) -> None:
        for message in run:
            self._taker.on_request(message)

    def _on_converse(self, run: list[Message]) -> None:
        for message in run:
            if message.correlation not in self.talks and message.correlation & SERVER_MADE:
                self._taker.on_converse(message)
            else:
                super()._on_converse([message])

    def _on_send(self, run: list[Message]) -> None:
        for message in run:
            self._taker.on_send(message)

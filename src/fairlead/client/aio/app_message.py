"""A message from another application: what it says, who sent it, and how to answer."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from fairlead.client.aio.delivery import Delivery, Done
from fairlead.client.durable.content import Value, decode_body
from fairlead.directory.delivery.instructions import NAMES, Instructions
from fairlead.wire.trace_context import TraceContext

if TYPE_CHECKING:
    from fairlead.client.aio.applications import Applications
    from fairlead.client.durable.receipt import Receipt
    from fairlead.sealing import Opened

__all__ = ["AppMessage"]


class AppMessage:
    """Settle it with `ack`, `answer` (which acknowledges too), `retry` or `reject`."""

    def __init__(
        self,
        owner: Applications,
        delivery: Delivery,
        instructions: Instructions,
        *,
        opened: Opened | None = None,
    ) -> None:
        self._owner = owner
        self._opened = opened
        self._settled = False
        self.delivery = delivery
        self.instructions = instructions
        self.body_kind = delivery.body_kind if opened is None else instructions.sealed

    # What it says.

    @property
    def body(self) -> bytes:
        """The body, opened if it was sealed; that of a very large message is read with `read`."""
        return self.delivery.body if self._opened is None else self._opened.body

    async def read(self) -> bytes:
        """The whole body, however large."""
        if self._opened is not None or not self.delivery.is_large:
            return self.body
        return await self.delivery.read()

    def text(self) -> str:
        return self.body.decode()

    def data(self) -> Any:
        """The body as what was sent: a map or a list; a text or plain bytes are read as JSON."""
        return decode_body(self.body, self.body_kind)

    @property
    def sealed(self) -> bool:
        """Did only sender and recipient know the body?"""
        return self._opened is not None

    @property
    def sealed_under(self) -> str:
        """The name of the shared key it was sealed with; empty if it was sealed for this application, or not at all."""
        return self._opened.under if self._opened is not None else ""

    @property
    def headers(self) -> Mapping[str, Value]:
        """What the sender said beside the body."""
        return {name: value for name, value in self.delivery.properties.items() if name not in NAMES}

    @property
    def trace(self) -> TraceContext | None:
        """The trace it belongs to, as its sender said (docs/tracing.md)."""
        return self.delivery.trace

    def span_facts(self) -> tuple[str, dict[str, Any]]:
        """For spans about it: the application and their attributes."""
        return self.to, {**self.delivery.span_facts()[1], "messaging.message.id": self.id}

    # Its delivery instructions (DIR-72).

    @property
    def to(self) -> str:
        """The application it is for."""
        return self.instructions.to

    @property
    def sender(self) -> str:
        """The application that sent it, by its own word."""
        return self.instructions.sender

    @property
    def label(self) -> str:
        """The connection that sent it, such as AX-4; empty if it had no label yet."""
        return self.instructions.label

    @property
    def id(self) -> str:
        """Made by the sender; the same however often the message comes."""
        return self.instructions.id

    @property
    def correlation(self) -> str:
        """Of a call and its answer; empty for other messages."""
        return self.delivery.correlation_id or ""

    @property
    def reply_to(self) -> str:
        """The address of the answer: the queue of the asking connection, at `reply_broker`."""
        return self.delivery.reply_to or ""

    @property
    def reply_broker(self) -> str:
        return self.instructions.reply_broker

    @property
    def wants_answer(self) -> bool:
        """Does somebody wait for `answer`?"""
        return bool(self.reply_to and self.correlation)

    @property
    def redelivered(self) -> bool:
        """Was it given to a connection before, which did not settle it; or may it have been, at another broker?"""
        return self.delivery.redelivered or self.instructions.again

    @property
    def hops(self) -> int:
        """How many brokers passed it on."""
        return self.instructions.hops

    @property
    def timestamp(self) -> datetime:
        return self.delivery.timestamp

    # What becomes of it.

    def ack(self, confirm: bool = False) -> Done | asyncio.Future[None]:
        """It is done with. Said at once; with `confirm` it is awaited, and Stale raised if it came too late."""
        self._settle()
        return self.delivery.ack(confirm)

    def retry(self, delay: float = 0) -> None:
        """Give it back: it comes again, to any connection of this application, marked as redelivered."""
        self._settle()
        self.delivery.retry(delay)

    def reject(self) -> None:
        """It cannot be worked on: to the dead message queue with it."""
        self._settle()
        self.delivery.reject()

    async def answer(self, body: Any, *, headers: Mapping[str, Value] | None = None) -> Receipt | None:
        """Answer a call over the connection that asked, and acknowledge it. None: nobody waits for it any more."""
        receipt = await self._owner.answer(self, body, headers=headers)
        self.ack()
        return receipt

    async def fail(self, text: str) -> None:
        """Answer that it cannot be done: the caller gets HandlerFailed with this text."""
        await self._owner.answer(self, text, failed=True)
        self.ack()

    def _settle(self) -> None:
        if not self._settled:
            self._settled = True
            self._owner.held -= 1

    def __repr__(self) -> str:
        again = ", redelivered" if self.redelivered else ""
        return f"<AppMessage {self.id} from {self.sender or 'nobody'} to {self.to}{again}>"

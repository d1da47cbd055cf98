"""A message from a queue or topic as the application gets it: what it says, and what becomes of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Generator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from fairlead.client.aio.streams import Stream
from fairlead.client.durable.content import Value, decode_body
from fairlead.errors import LocalProtocolError
from fairlead.wire.durable import ENTRY_LARGE, REJECT, RETURN
from fairlead.wire.entry_codec import Delivered
from fairlead.wire.trace_context import TraceContext

if TYPE_CHECKING:
    from pathlib import Path

    from fairlead.client.aio.consuming import Consumer

__all__ = ["DONE", "Delivery"]


class Done:
    """To await for something that is already as good as done."""

    def __await__(self) -> Generator[Any, None, None]:
        return
        yield


DONE: Final = Done()


class Delivery:
    """Everything about it is read-only. Settle it with `ack`, `retry` or `reject`, or work on it inside `process`."""

    __slots__ = ("_consumer", "_delivered", "_epoch", "_in_span", "_settled", "_stream")

    def __init__(self, delivered: Delivered, consumer: Consumer, epoch: int) -> None:
        self._delivered = delivered
        self._consumer = consumer
        self._epoch = epoch
        self._settled = False
        self._stream: Stream | None = None

    _in_span: bool
    """Set only where a listener has made the span of working on it."""

    # What it says.

    @property
    def body(self) -> bytes:
        """The body; that of a very large message has to be read from its `stream`."""
        if self._delivered.flags & ENTRY_LARGE:
            raise LocalProtocolError("This message is very large: read it with stream(), read() or save().")
        return self._delivered.body

    def text(self) -> str:
        """The body as text."""
        return self.body.decode()

    def data(self) -> Any:
        """The body as what was sent: a map or a list; a text or plain bytes are read as JSON."""
        return decode_body(self.body, self.body_kind)

    @property
    def body_kind(self) -> str:
        """`text`, `bytes`, `map` or `list`: what the sender sent."""
        return self._delivered.body_kind

    @property
    def id(self) -> str:
        """The message id, which the server gave: 40 hexadecimal digits."""
        return self._delivered.id_text

    @property
    def order(self) -> int:
        """Its number at its destination."""
        return self._delivered.order

    @property
    def destination(self) -> str:
        return self._consumer.machine.name_of(self._delivered)

    @property
    def key(self) -> str | None:
        return self._delivered.key

    @property
    def priority(self) -> int:
        return self._delivered.priority

    @property
    def properties(self) -> Mapping[str, Value]:
        return self._delivered.properties

    @property
    def correlation_id(self) -> str | None:
        return self._delivered.correlation_id

    @property
    def reply_to(self) -> str | None:
        return self._delivered.reply_to

    @property
    def type(self) -> str | None:
        return self._delivered.type

    @property
    def user(self) -> str | None:
        """Who sent it, vouched for by the server."""
        return self._delivered.user

    @property
    def timestamp(self) -> datetime:
        """When it was sent, by the sender's clock."""
        return _time(self._delivered.timestamp_ms)

    @property
    def arrival(self) -> datetime:
        """When the server took it, by the server's clock."""
        return _time(self._delivered.arrival_ms)

    @property
    def expiration(self) -> datetime | None:
        expiration_ms = self._delivered.expiration_ms
        return None if expiration_ms is None else _time(expiration_ms + self._due_later_ms)

    @property
    def delivery_time(self) -> datetime:
        """From when on it could be delivered: later than its arrival if it was delayed."""
        return _time(self._delivered.delivery_time_ms + self._due_later_ms)

    @property
    def _due_later_ms(self) -> int:
        """How much later than its delay says it became available, if its sender named the time."""
        due_ms = self._delivered.own(":due")
        return max(due_ms - self._delivered.delivery_time_ms, 0) if isinstance(due_ms, int) else 0

    @property
    def persistent(self) -> bool:
        return self._delivered.persistent

    @property
    def redelivered(self) -> bool:
        """Was it delivered before, to anybody?"""
        return self._delivered.delivery_count > 1

    @property
    def delivery_count(self) -> int:
        """1 the first time."""
        return self._delivered.delivery_count

    @property
    def dead(self) -> Mapping[str, Value]:
        """Of a message in a dead message queue: why it died, where it came from (`reason`, `destination`, …)."""
        names = ("reason", "destination", "count", "ms", "id")
        found = {name: self._delivered.own(f":dead-{name}") for name in names}
        return {name: value for name, value in found.items() if value is not None}

    @property
    def trace(self) -> TraceContext | None:
        """The trace it belongs to, as its sender said (docs/tracing.md); None if it did not, or not in due form."""
        return TraceContext.of(self._delivered.properties)

    def header(self, name: str) -> Value | None:
        """One of Fairlead's own headers, such as `:dedup`."""
        return self._delivered.own(name)

    # Very large ones.

    @property
    def is_large(self) -> bool:
        return bool(self._delivered.flags & ENTRY_LARGE)

    @property
    def size(self) -> int:
        """Bytes of the body."""
        large = self._delivered.large
        return len(self._delivered.body) if large is None else large[1]

    def stream(self) -> Stream:
        """The body piece by piece; also that of an ordinary message."""
        if self._stream is None:
            self._stream = Stream(self._consumer, self._delivered, self._epoch)
        return self._stream

    async def read(self, size: int = -1) -> bytes:
        """The next bytes of the stream; all that are left without `size`."""
        return await self.stream().read(size)

    async def save(self, path: str | Path) -> int:
        """Write the body to a file; how many bytes it has."""
        return await self.stream().save(path)

    # What becomes of it.

    def ack(self, confirm: bool = False) -> Done | asyncio.Future[None]:
        """It is done with. Said at once; with `confirm` the result is awaited, and Stale raised if it came too late."""
        consumer = self._consumer
        if not self._settled:
            self._settled = True
            consumer.acknowledge(self._delivered, self._epoch)
            if consumer.tracing is not None:
                return consumer.settled_in_span("ack", [self], confirm)
        return consumer.told(self._delivered, self._epoch) if confirm else DONE

    def ack_through(self, confirm: bool = False) -> Done | asyncio.Future[None]:
        """Acknowledge this one and all this consumer handed out before it."""
        self._settled = True
        self._consumer.acknowledged_through(self._delivered, self._epoch)
        if self._consumer.tracing is not None:
            return self._consumer.settled_in_span("ack_through", [self], confirm)
        return self._consumer.told(self._delivered, self._epoch) if confirm else DONE

    def retry(self, delay: float = 0, confirm: bool = False) -> Done | asyncio.Future[None]:
        """Give it back: it comes again, to anybody, with its count raised, after `delay` seconds."""
        return self._settle(RETURN, max(round(delay * 1000), 0), confirm)

    def reject(self, confirm: bool = False) -> Done | asyncio.Future[None]:
        """It cannot be worked on: to the dead message queue with it."""
        return self._settle(REJECT, 0, confirm)

    def _settle(self, action: int, delay_ms: int, confirm: bool) -> Done | asyncio.Future[None]:
        if not self._settled:
            self._settled = True
            self._consumer.settled(self._delivered, action, delay_ms, self._epoch)
            if self._consumer.tracing is not None:
                name = "reject" if action == REJECT else "retry"
                return self._consumer.settled_in_span(name, [self], confirm)
        return self._consumer.told(self._delivered, self._epoch) if confirm else DONE

    @asynccontextmanager
    async def process(self, delay: float = 0) -> AsyncIterator[Delivery]:
        """Work on it: acknowledged when the block ends well, given back when it raises.

        With tracing, what is sent inside belongs to the same trace.
        """
        tracing = self._consumer.tracing
        if tracing is not None and not hasattr(self, "_in_span"):
            with tracing.processing(self):
                try:
                    yield self
                except BaseException:
                    self.retry(delay)
                    raise
                self.ack()
            return
        try:
            yield self
        except BaseException:
            self.retry(delay)
            raise
        self.ack()

    def span_facts(self) -> tuple[str, dict[str, Any]]:
        """For spans about it: its destination and their attributes."""
        facts: dict[str, Any] = {
            "messaging.message.id": self.id,
            "messaging.message.body.size": self.size,
            "messaging.fairlead.order": self.order,
            "messaging.fairlead.delivery_count": self.delivery_count,
        }
        if (conversation := self.correlation_id) is not None:
            facts["messaging.message.conversation_id"] = conversation
        if (reason := self._delivered.own(":dead-reason")) is not None:
            facts["messaging.fairlead.dead_reason"] = str(reason)
        return self.destination, facts

    def __repr__(self) -> str:
        again = f", delivered {self.delivery_count} times" if self.redelivered else ""
        return f"<Delivery {self.destination!r} {self.order}, {self.size} bytes{again}>"


def _time(ms: int) -> datetime:
    try:
        return datetime.fromtimestamp(ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):  # a clock of somebody else said it
        return datetime.max.replace(tzinfo=UTC)

"""Queues and topics, as applications use them.

::

    orders = connection.queue("orders")
    receipt = await orders.send({"id": 7})
    async for message in orders.consume(): ...
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Callable, Iterable, Mapping
from datetime import UTC, datetime
from math import inf
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

from fairlead.client.aio.consuming import AckMode, Consumer, is_pattern
from fairlead.client.aio.courier import Courier, limited
from fairlead.client.aio.sending import Gatherer, OnBlocked, Sender, blocked
from fairlead.client.aio.streams import Readable, Source, is_stream
from fairlead.client.aio.uploading import send_large
from fairlead.client.durable.commands import Command
from fairlead.client.durable.content import PLAIN, Content, Value, content, encode_body
from fairlead.client.durable.producer import Producer
from fairlead.client.durable.receipt import Receipt
from fairlead.errors import BadParameter, LocalProtocolError

if TYPE_CHECKING:
    from fairlead.client.aio.sessions import Session
    from fairlead.client.aio.spanned import Spanned
    from fairlead.client.durable.commands import Facts

__all__ = ["Body", "Destination", "Queue", "Start", "Topic"]

Body: TypeAlias = bytes | str | dict[str, Any] | list[Any] | Readable | AsyncIterable[bytes]
Start: TypeAlias = Literal["new", "first"] | int | datetime
T = TypeVar("T")
PREFETCH = 100
PREFETCH_BYTES = 1 << 20
TURN = 4096
SMALL_BYTES = 65_536

_TEXT = content("text")


class Destination:
    """What queues and topics have in common: sending. Nothing is said to the server before the first use."""

    kind = ""

    def __init__(self, session: Session, name: str, *, create: bool, parameters: Mapping[str, Any] | None) -> None:
        self.session = session
        self.name = name
        self.courier: Courier = session.courier
        self.tracing = session.courier.tracing
        self._create = create
        self._parameters = dict(parameters or {})
        self._producer: Producer | None = None  # of the last send; never one of a transaction

    @property
    def is_blocked(self) -> bool:
        """Is it so full that producers have to wait? Known from the first use on."""
        return self.producer().blocked

    # Sending.

    async def send(
        self,
        body: Body,
        *,
        key: str | None = None,
        priority: int = 4,
        ttl: float | None = None,
        delay: float | None = None,
        at: datetime | None = None,
        cron: str | None = None,
        properties: Mapping[str, Value] | None = None,
        correlation_id: str | None = None,
        reply_to: str | Destination | None = None,
        type: str | None = None,  # noqa: A002 - the word of the message model
        dedup: str | None = None,
        persistent: bool = True,
        confirm: Literal["durable", "memory"] = "durable",
        timeout: float | None = None,
        on_blocked: OnBlocked = "wait",
    ) -> Receipt:
        """Send one message; the receipt comes when it is on stable storage.

        `ttl` and `delay` are seconds; `at` is a time and `cron` a schedule (`0 9 * * 1-5`, `@every 10s`) in place of
        `delay`. Messages with the same `key` are consumed one after another. A message with a `dedup` id that was
        used before is stored once. With `persistent=False` or `confirm="memory"` the receipt comes as soon as the
        server has the message in memory, where a crash of the server may lose it. After `timeout` RequestTimeout is
        raised; the message may still be stored.
        """
        given = (
            *(key, priority, ttl, delay, at, cron, properties, correlation_id, reply_to, type, dedup, persistent),
            *(confirm, timeout),
        )
        if isinstance(body, bytes) and len(body) <= SMALL_BYTES and given == _NOTHING_GIVEN and self.tracing is None:
            ready = self.ready()
            if ready is not None:
                receipt: asyncio.Future[Receipt] = self.courier.loop.create_future()
                ready.add(body, PLAIN, receipt)
                return await receipt
        options = {
            "key": key,
            "priority": priority,
            "ttl": ttl,
            "delay": delay,
            "at": at,
            "cron": cron,
            "properties": properties,
            "correlation_id": correlation_id,
            "reply_to": reply_to,
            "type": type,
            "dedup": dedup,
            "persistent": persistent,
            "confirm": confirm,
        }
        deadline_s = inf if timeout is None else self.courier.loop.time() + timeout
        if self.tracing is None:
            return await self._send(body, options, deadline_s, on_blocked, None)
        size = len(body) if isinstance(body, bytes) else -1
        with self.tracing.sending("send", self.name, size, properties) as spanned:
            told = await self._send(body, options, deadline_s, on_blocked, spanned)
            spanned.stored(told)
            return told

    async def _send(
        self, body: Body, options: dict[str, Any], deadline_s: float, on_blocked: OnBlocked, spanned: Spanned | None
    ) -> Receipt:
        if is_stream(body):
            like, _ = self.content(b"", options)
            if spanned is not None:
                like = spanned.content(like, 0)
            return await send_large(self, Source(body), like, deadline_s, on_blocked)
        like, data = self.content(body, options)
        if spanned is not None:
            like = spanned.content(like, len(data))
            if not isinstance(body, bytes):
                spanned.span.set_attribute("messaging.message.body.size", len(data))
        if not like.fits(len(data)):
            return await send_large(self, Source(data), like, deadline_s, on_blocked)
        if self.session.is_transacted:
            self.session.current().send(self.producer(), data, like)
            return Receipt("", 0, None, self.name)
        self._producer = producer = await self.room(deadline_s, on_blocked)
        future: asyncio.Future[Receipt] = self.courier.loop.create_future()
        producer.add(data, like, future)
        return await self._limited(future, deadline_s)

    async def send_many(
        self,
        bodies: Iterable[bytes | str | dict[str, Any] | list[Any]],
        *,
        timeout: float | None = None,
        on_blocked: OnBlocked = "wait",
        **options: Any,
    ) -> list[Receipt]:
        """Send many; returns when all are durable, with their receipts in order. The options are those of `send`."""
        deadline_s = inf if timeout is None else self.courier.loop.time() + timeout
        everything = [self.content(body, options) for body in bodies]
        if self.tracing is None or not everything:
            return await self._send_many(everything, deadline_s, on_blocked)
        with self.tracing.sending("send", self.name, -1, options.get("properties"), len(everything)) as spanned:
            largest = max(len(data) for _, data in everything)
            marked: dict[Content, Content] = {}  # most of them are alike, and stay so
            for at, (like, data) in enumerate(everything):
                same = marked.get(like)
                if same is None:
                    same = marked[like] = spanned.content(like, largest)
                everything[at] = same, data
            return await self._send_many(everything, deadline_s, on_blocked)

    async def _send_many(
        self, everything: list[tuple[Content, bytes]], deadline_s: float, on_blocked: OnBlocked
    ) -> list[Receipt]:
        if any(not like.fits(len(data)) for like, data in everything):
            raise LocalProtocolError("A very large message is sent with `send`.")
        if self.session.is_transacted:
            for like, data in everything:
                self.session.current().send(self.producer(), data, like)
            return [Receipt("", 0, None, self.name) for _ in everything]
        if not everything:
            return []
        future: asyncio.Future[list[Receipt]] = self.courier.loop.create_future()
        ticket = Gatherer(future, len(everything))
        sent = 0
        try:
            while sent < len(everything):
                producer = await self.room(deadline_s, on_blocked)
                for like, data in everything[sent : sent + TURN]:
                    producer.add(data, like, ticket)
                    sent += 1
                    if not producer.part.has_room or producer.error is not None:
                        break
        except Exception as error:
            for _ in range(len(everything) - sent):
                ticket.set_exception(error)
        return await self._limited(future, deadline_s)

    def sender(
        self, window: int = 512, *, on_receipt: Callable[[Receipt], object] | None = None, **options: Any
    ) -> Sender:
        """Send with up to `window` messages under way; the fast way for many. The options are those of `send`."""
        if self.session.is_transacted:
            raise LocalProtocolError("In a transaction sending waits for nothing: use `send`.")
        return Sender(self, window=window, on_receipt=on_receipt, options=options)

    def try_send(self, body: bytes | str | dict[str, Any] | list[Any], **options: Any) -> bool:
        """Send without waiting for anything; False if the destination is blocked or the window is full."""
        like, data = self.content(body, options)
        producer = self.producer()
        if producer.blocked or not producer.part.has_room or not like.fits(len(data)):
            return False
        if self.tracing is not None:
            with self.tracing.sending("send", self.name, len(data), options.get("properties")) as spanned:
                like = spanned.content(like, len(data))
        producer.add(data, like, None)
        return True

    async def flush(self) -> None:
        """Wait until everything sent so far is confirmed or refused."""
        producer = self.producer()
        while not producer.is_idle and producer.error is None:
            await self.courier.changed()

    # Schedules.

    async def schedules(self) -> list[Facts]:
        """Messages that wait for their time: order number, due time, cron expression."""
        found: list[Facts] = (await self.courier.ask("schedules", {"destination": self.name}))["schedules"]
        return found

    async def cancel(self, order: int) -> None:
        """Let a schedule be forgotten."""
        await self.courier.ask("cancel", {"destination": self.name, "order": order})

    # Inside.

    def content(self, body: object, options: Mapping[str, Any]) -> tuple[Content, bytes]:
        """The body as bytes, and everything else about the message."""
        data, kind = encode_body(body)
        if not options or all(value is None or _DEFAULTS.get(name) == value for name, value in options.items()):
            return (PLAIN if not kind else _TEXT if kind == "text" else content(kind)), data
        given = dict(options)
        at: datetime | None = given.pop("at", None)
        reply_to = given.pop("reply_to", None)
        persistent, confirm = given.pop("persistent", True), given.pop("confirm", "durable")
        if confirm not in ("durable", "memory"):
            raise BadParameter(f"`confirm` is 'durable' or 'memory', and not {confirm!r}.")
        return (
            content(
                kind,
                at_ms=None if at is None else ms_of(at),
                reply_to=reply_to.name if isinstance(reply_to, Destination) else reply_to,
                volatile=not persistent or confirm == "memory",
                **given,
            ),
            data,
        )

    def producer(self) -> Producer:
        return self.session.machine.producer(
            self.name, self.kind, create=self._create, parameters=self._parameters if self._create else {}
        )

    def ready(self) -> Producer | None:
        """The way in, if it was used before and nothing stands in it."""
        producer = self._producer
        if (
            producer is not None
            and producer.error is None
            and not producer.blocked
            and producer.kind == self.kind
            and producer.part.has_room
        ):
            return producer
        return None

    async def room(self, deadline_s: float, on_blocked: OnBlocked) -> Producer:
        """The way in, when there is room in the window and the destination takes messages."""
        while True:
            producer = self.producer()
            if producer.part.error is not None:
                raise producer.part.error
            if producer.blocked and on_blocked == "raise":
                raise blocked(self.name)
            if not producer.blocked and producer.part.has_room:
                return producer
            await self.courier.changed(deadline_s)
            if producer.error is not None:
                raise producer.error

    async def _limited(self, future: asyncio.Future[T], deadline_s: float) -> T:
        if deadline_s == inf:
            return await future
        return await limited(future, max(deadline_s - self.courier.loop.time(), 0))

    def _consumer(
        self,
        fields: Facts,
        ack: AckMode,
        prefetch: int = PREFETCH,
        prefetch_bytes: int = PREFETCH_BYTES,
        follow: bool = True,
    ) -> Consumer:
        if self._create:
            fields |= {"create": True, "parameters": self._parameters}
        mode: AckMode = "transacted" if self.session.is_transacted and follow else ack
        fields = {"kind": self.kind} | {name: value for name, value in fields.items() if value is not None}
        return Consumer(
            self.session,
            self.name,
            fields,
            ack=mode,
            prefetch=prefetch,
            prefetch_bytes=prefetch_bytes,
            follow=follow,
        )

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"


class Queue(Destination):
    """Each message goes to one consumer."""

    kind = "queue"

    def consume(
        self,
        selector: str | None = None,
        *,
        prefetch: int = PREFETCH,
        prefetch_bytes: int = PREFETCH_BYTES,
        ack: AckMode | None = None,
        exclusive: bool = False,
    ) -> Consumer:
        """Receive: `async for message in queue.consume()`, or `async with queue.consume() as consumer`.

        `prefetch` is how many messages the server sends ahead; 1 means one at a time.
        """
        fields: Facts = {"selector": selector, "exclusive": exclusive or None}
        return self._consumer(fields, ack or self.session.ack, prefetch, prefetch_bytes)

    def browse(self, selector: str | None = None) -> Consumer:
        """Look at what is there without taking it; ends with the last message there was."""
        return self._consumer({"selector": selector, "browse": True}, "individual", follow=False)

    def replay(
        self, start: Start = "first", *, selector: str | None = None, follow: bool = False, prefetch: int = PREFETCH
    ) -> Consumer:
        """Read again what the queue still has, consumed or not; ends with the last message unless it is to `follow`."""
        fields: Facts = {"selector": selector, "replay": start_of(start)}
        return self._consumer(fields, "individual", prefetch, follow=follow)


class Topic(Destination):
    """Each message goes to every subscription."""

    kind = "topic"

    def subscribe(
        self,
        durable: str | None = None,
        *,
        shared: bool = False,
        selector: str | None = None,
        no_local: bool = False,
        start: Start = "new",
        prefetch: int = PREFETCH,
        prefetch_bytes: int = PREFETCH_BYTES,
        ack: AckMode | None = None,
    ) -> Consumer:
        """Receive what is sent from now on, or from `start`. The topic's name may be a pattern here.

        A `durable` subscription has a name, collects messages while nobody is attached, and ends with `unsubscribe`;
        it belongs to this program's type. Several consumers may be attached to it if it is `shared`.
        """
        fields: Facts = {
            "durable": durable,
            "shared": shared or None,
            "selector": selector,
            "no_local": no_local or None,
            "start": start_of(start),
        }
        made = self._consumer(fields, ack or self.session.ack, prefetch, prefetch_bytes)
        if is_pattern(self.name):
            made._fields.pop("create", None)
        return made

    consume = subscribe

    def browse(self, selector: str | None = None) -> Consumer:
        """Look at what the topic still has."""
        return self._consumer({"selector": selector, "browse": True}, "individual", follow=False)

    def replay(
        self, start: Start = "first", *, selector: str | None = None, follow: bool = False, prefetch: int = PREFETCH
    ) -> Consumer:
        """Read again what the topic still has."""
        fields: Facts = {"selector": selector, "replay": start_of(start)}
        return self._consumer(fields, "individual", prefetch, follow=follow)

    async def unsubscribe(self, name: str) -> None:
        """End a durable subscription; what it had collected is dropped."""
        future, told = self.courier.reply()
        machine = self.session.machine
        if is_pattern(self.name):
            machine.ask_everywhere("unsubscribe", {"name": name}, told)
        else:
            machine.ask_at(self.name, Command("unsubscribe", {"name": name}, told))
        await future


_NOTHING_GIVEN = (None, 4, *(None,) * 9, True, "durable", None)
"""What `send` is told about a message about which nothing is said."""
_DEFAULTS = {"priority": 4, "persistent": True, "confirm": "durable"}


def start_of(start: Start) -> str | int | dict[str, int]:
    if isinstance(start, datetime):
        return {"ms": ms_of(start)}
    if isinstance(start, int) or start in ("new", "first"):
        return start
    raise BadParameter(f"`start` is 'new', 'first', an order number or a datetime, and not {start!r}.")


def ms_of(moment: datetime) -> int:
    """Milliseconds since 1970; a time without a zone is local time."""
    return round(moment.astimezone(UTC).timestamp() * 1000)

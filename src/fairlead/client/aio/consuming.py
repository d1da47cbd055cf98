"""Receiving from a queue or topic: by loop, by call, in batches, or by listener.

::

    async for message in queue.consume():
        async with message.process():
            ...

Acknowledgement is the consumer's mode: `individual` (each message by itself), `auto` (when the loop comes for the next
one, the call returns or the listener has finished), `client` (`session.acknowledge()`), `dups-ok` (lazily, in bulk), or
`transacted` (by the session's commit).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Iterable
from contextlib import asynccontextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias

from fairlead.client.aio.delivery import DONE, Delivery, Done
from fairlead.client.aio.listening import CLOSE_S, Listening
from fairlead.client.aio.waiting import expire
from fairlead.client.durable.commands import moot
from fairlead.client.durable.consumer import DurableConsumer
from fairlead.client.durable.pattern import PatternConsumer
from fairlead.errors import BadParameter, LocalProtocolError, RequestTimeout
from fairlead.wire.durable import RETURN

if TYPE_CHECKING:
    from fairlead.client.aio.sessions import Session
    from fairlead.client.aio.tracing import Tracing
    from fairlead.client.durable.commands import Facts
    from fairlead.wire.entry_codec import Delivered

__all__ = ["AckMode", "Consumer", "is_pattern"]

AckMode: TypeAlias = Literal["individual", "auto", "client", "dups-ok", "transacted"]
ACK_MODES = ("individual", "auto", "client", "dups-ok", "transacted")
TRACKED = ("individual", "auto", "client")

LAZY_MAX = 64
CHUNK_MAX = 128


class Consumer(Listening):
    """Opened when it is entered, iterated, or first asked for a message."""

    def __init__(
        self,
        session: Session,
        destination: str,
        fields: Facts,
        *,
        ack: AckMode,
        prefetch: int,
        prefetch_bytes: int,
        follow: bool = True,
    ) -> None:
        if ack not in ACK_MODES:
            raise BadParameter(f"The mode of acknowledgement is one of {', '.join(ACK_MODES)}, and not {ack!r}.")
        if not 1 <= prefetch <= 1 << 20 or not 1 <= prefetch_bytes <= 1 << 40:
            raise BadParameter("`prefetch` and `prefetch_bytes` are at least 1.")
        self.session = session
        self.destination = destination
        self.ack: AckMode = ack
        self.prefetch = prefetch
        self._fields = fields
        self._prefetch_bytes = prefetch_bytes
        self._follow = follow
        self._loop = session.courier.loop
        self.tracing: Tracing | None = session.courier.tracing
        self.is_inner = False  # what it receives is for the library, which makes the spans itself
        self._machine: DurableConsumer | PatternConsumer | None = None
        self._waiters: list[asyncio.Future[None]] = []
        self.acknowledge: Callable[[Delivered, int], None] = _nothing
        self._handed: list[Delivery] = []  # to the application; those settled meanwhile are weeded out now and then
        self._handed_max = 2 * prefetch
        self._rest: list[Delivery] = []  # taken for a loop, and not yet seen by it; the last is the next
        self.ahead: Collection[Delivery] = self._rest  # the same; the loop may be in another thread
        self._lazy: list[tuple[Delivered, int]] = []
        self._paused = False
        self._closing = False
        self._closed = False

    @property
    def machine(self) -> DurableConsumer | PatternConsumer:
        if self._machine is None:
            raise LocalProtocolError("The consumer is not open.")
        return self._machine

    @property
    def is_started(self) -> bool:
        return self._machine is not None

    @property
    def chunk(self) -> int:
        """How many a loop takes from the buffer in one go; one, where what is taken counts as seen."""
        return max(1, min(self.prefetch // 2, CHUNK_MAX)) if self.ack in ("individual", "auto") else 1

    @property
    def stale(self) -> int:
        """Settlements that came too late."""
        return 0 if self._machine is None else self._machine.stale

    @property
    def closed(self) -> bool:
        return self._closed

    # Its life.

    async def start(self, timeout: float | None = None) -> Self:
        """Open it at the server; Refused and its like are raised here."""
        if self._machine is None:
            if self._closed:
                raise LocalProtocolError("The consumer is closed.")
            self._machine = machine = self._made()
            machine.held = self._held
            if self.ack == "client":
                self.acknowledge = self._acknowledge_session
            elif self.ack != "transacted" and not machine.looks:
                self.acknowledge = machine.acknowledge
            self.session.consumers.add(self)
            if isinstance(machine, PatternConsumer):
                self.session.machine.add_pattern(machine)
            else:
                self.session.machine.add_consumer(machine)
        machine = self._machine
        deadline_s = None if timeout is None else self._loop.time() + timeout
        while not machine.is_open and machine.error is None and not machine.is_over:
            await self._wait_once(deadline_s)
        if machine.error is not None and not machine.is_open:
            self._forget()
            raise machine.error
        return self

    def _made(self) -> DurableConsumer | PatternConsumer:
        session, answered = self.session.machine, self.ack != "dups-ok"
        if self._fields.get("kind") == "topic" and is_pattern(self.destination):
            return PatternConsumer(
                session, self.destination, self._fields, prefetch=self.prefetch, prefetch_bytes=self._prefetch_bytes,
                answered=answered, wake=self._wake,
            )  # fmt: skip
        one_by_one = self.ack in ("individual", "auto") and self._fields.get("kind") != "topic"
        return DurableConsumer(
            session.home, self.destination, self._fields, prefetch=self.prefetch, prefetch_bytes=self._prefetch_bytes,
            answered=answered, one_by_one=one_by_one, wake=self._wake,
        )  # fmt: skip

    async def close(self) -> None:
        """Give back what was not seen, and end it; what was acknowledged is said first."""
        if self._closed or self._closing:
            return
        self._closing = True
        machine = self._machine
        if self._listener is not None and self._listener is not asyncio.current_task():
            await self._stop_listening(self._listener)
        self._flush_lazy()
        self._put_back()
        if machine is not None and machine.error is None:
            try:
                async with asyncio.timeout(CLOSE_S):
                    await self._end(machine)
            except TimeoutError:
                machine.end(moot)  # else the server would go on delivering to it, as long as the session lasts
            machine.over()
        self._forget()

    async def _end(self, machine: DurableConsumer | PatternConsumer) -> None:
        courier = self.session.courier
        if machine.handle and not machine.is_over:
            if not machine.is_out_of_credit:
                stopped, told = courier.reply()
                machine.flow(True, told)
                await asyncio.gather(stopped, return_exceptions=True)  # now everything that was sent has come
            machine.release_unseen()
            for message in self.take_handed():
                machine.settle(message._delivered, RETURN, 0, message._epoch)
            machine.flush()
            while not machine.is_settled and machine.handle:
                await courier.changed()
        ended, told = courier.reply()
        machine.end(told)
        await asyncio.gather(ended, return_exceptions=True)

    def _forget(self) -> None:
        self._closed = True
        self.session.consumers.discard(self)
        self._wake()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    # Receiving.

    async def receive(self, timeout: float | None = None) -> Delivery | None:
        """The next message; None when none comes in `timeout` seconds, or none will come any more."""
        if self._machine is None:
            await self.start()
        started_ns = 0 if self.tracing is None else time.time_ns()
        found = self._take(1) if self._has_some() else None
        if not found:
            try:
                found = await self._receive(1, timeout)
            except RequestTimeout:
                return None
        if not found:
            return None
        if started_ns:
            self._received_in_span(found, started_ns)
        message = found[0]
        if self.ack == "auto":
            message.ack()
        return message

    def receive_nowait(self) -> Delivery | None:
        """The next message if one is here."""
        found = self._take(1) if self._machine is not None and self._has_some() else []
        if not found:
            return None
        if self.ack == "auto":
            found[0].ack()
        return found[0]

    async def receive_many(self, limit: int = 100, timeout: float | None = None) -> list[Delivery]:
        """Up to `limit` messages, at least one; none when none comes in time."""
        if self._machine is None:
            await self.start()
        started_ns = 0 if self.tracing is None else time.time_ns()
        try:
            found = await self._receive(limit, timeout)
        except RequestTimeout:
            return []
        if started_ns and found:
            self._received_in_span(found, started_ns)
        if self.ack == "auto":
            for message in found:
                message.ack()
        return found

    async def take_batch(self, limit: int) -> list[Delivery]:
        """What is there, at least one, none at the end; whoever asks acknowledges, also in auto mode."""
        if self._machine is None:
            await self.start()
        return await self._receive(limit, None)

    def comes_again(self, message: Delivery) -> bool:
        """Was its line lost? Whoever has not shown it to the application yet lets it be: it comes again, marked."""
        return self.machine.has_lost(message._epoch)

    def return_unseen(self, messages: list[Delivery]) -> None:
        """What a batch had, and the application did not look at."""
        self._rest += reversed(messages)
        self._put_back()

    async def batches(self, limit: int = 1000) -> AsyncIterator[list[Delivery]]:
        """Whatever is there, as a list, again and again; in auto mode acknowledged when the next is asked for."""
        while found := await self.take_batch(limit):
            yield found
            if self.ack == "auto":
                self.ack_many(found)

    async def __aiter__(self) -> AsyncGenerator[Delivery, None]:
        ours = self._machine is None  # nobody else will close it
        if ours:
            await self.start()
        machine, auto = self.machine, self.ack == "auto"
        acknowledge = machine.acknowledge
        chunk, rest = self.chunk, self._rest
        try:
            while True:
                rest += await self._receive(chunk, None)
                if not rest:
                    return
                rest.reverse()
                while rest:
                    if rest[-1]._epoch != machine.epoch and machine.has_lost(rest[-1]._epoch):
                        self._put_back()
                        break
                    message = rest.pop()
                    yield message
                    if auto and not message._settled:
                        message._settled = True
                        acknowledge(message._delivered, message._epoch)
                    if self._paused:
                        self._put_back()
        finally:
            self._put_back()
            if ours:
                await self.close()

    def pause(self) -> asyncio.Future[Any]:
        """No more messages until `resume`; awaited, it returns when the server has stopped sending."""
        self._paused = True
        return self._flow(True)

    def resume(self) -> asyncio.Future[Any]:
        self._paused = False
        self._wake()
        return self._flow(False)

    def _flow(self, stop: bool) -> asyncio.Future[Any]:
        future, told = self.session.courier.reply()
        if self._machine is None:
            told({}, None)
        else:
            self._machine.flow(stop, told)
        return future

    # Settling.

    def ack_many(self, messages: Iterable[Delivery], confirm: bool = False) -> Done | asyncio.Future[None]:
        """Acknowledge many at once."""
        last: Delivery | None = None
        if self.tracing is not None:
            messages = [message for message in messages if not message._settled]
        for message in messages:
            if not message._settled:
                message._settled = True
                self.acknowledge(message._delivered, message._epoch)
                last = message
        if isinstance(messages, list) and messages and self.tracing is not None:
            return self.settled_in_span("ack", messages, confirm)
        return self.told(last._delivered, last._epoch) if confirm and last is not None else DONE

    @asynccontextmanager
    async def process_many(self, messages: Collection[Delivery], delay: float = 0) -> AsyncIterator[None]:
        """Work on several at once: acknowledged when the block ends well, all given back when it raises.

        With tracing it is one span, which names the span that made each of them.
        """
        with nullcontext() if self.tracing is None else self.tracing.processing_many(messages, self.destination):
            try:
                yield
            except BaseException:
                for message in messages:
                    message.retry(delay)
                raise
            self.ack_many(messages)

    def settled_in_span(self, name: str, messages: list[Delivery], confirm: bool) -> Done | asyncio.Future[None]:
        """The span of a settlement, and what to await: with `confirm` both end when it is safe."""
        spanned = None
        if self.tracing is not None and not self.is_inner:
            spanned = self.tracing.settling(name, self.destination, messages)
        if not confirm:
            if spanned is not None:
                spanned.end()
            return DONE
        future = self.told(messages[-1]._delivered, messages[-1]._epoch)
        if spanned is not None:
            future.add_done_callback(spanned.settled)
        return future

    def _received_in_span(self, messages: list[Delivery], started_ns: int) -> None:
        if self.tracing is not None and not self.is_inner:
            self.tracing.received(messages, self.destination, started_ns)

    def _acknowledge_session(self, delivered: Delivered, epoch: int) -> None:
        """In client mode one acknowledgement is for everything the session handed out so far (CLU-20)."""
        self.machine.acknowledge(delivered, epoch)
        self.session.acknowledge()

    def acknowledged_through(self, delivered: Delivered, epoch: int) -> None:
        if not self._handed:
            self.acknowledge(delivered, epoch)
        for message in self._handed:
            if not message._settled or message._delivered is delivered:
                message._settled = True
                self.machine.acknowledge(message._delivered, message._epoch)
            if message._delivered is delivered:
                break

    def settled(self, delivered: Delivered, action: int, delay_ms: int, epoch: int) -> None:
        if self.ack == "transacted":
            raise LocalProtocolError("In a transaction messages are settled by its commit or rollback.")
        if not self.machine.looks:
            self.machine.settle(delivered, action, delay_ms, epoch)

    def told(self, delivered: Delivered, epoch: int) -> asyncio.Future[None]:
        """Done when what was said about it is safe."""
        future: asyncio.Future[None] = self._loop.create_future()
        self.machine.ask_settled(delivered, epoch, future)
        return future

    def take_handed(self) -> list[Delivery]:
        """What was handed out and is not settled; it counts as settled now."""
        handed = [message for message in self._handed if not message._settled]
        self._handed = []
        for message in handed:
            message._settled = True
        return handed

    # Inside.

    def _held(self) -> list[int]:
        unseen = set(map(id, (*self.ahead, self._next)))
        handed = [one.order for one in self._handed if not one._settled and id(one) not in unseen]
        return [*handed, *(one.order for one, _ in self._lazy)]

    def _has_some(self) -> bool:
        return bool(self.machine.buffer) and not self._paused and not self.session.stopped

    def _take(self, limit: int) -> list[Delivery]:
        machine = self.machine
        delivered = machine.take(limit)
        if not delivered:
            return []
        epoch = machine.epoch
        if self.ack == "transacted":
            self.session.current().took(machine.source, delivered)
        elif self.ack == "dups-ok":
            self._take_lazily(delivered, epoch)
        found = [Delivery(one, self, epoch) for one in delivered]
        if self.ack in TRACKED and not machine.looks:
            self._handed += found
            if len(self._handed) > self._handed_max:
                self._handed = [message for message in self._handed if not message._settled]
                self._handed_max = 2 * max(len(self._handed), self.prefetch)
        return found

    def _take_lazily(self, delivered: list[Delivered], epoch: int) -> None:
        """Acknowledged some time after the application has come back for more."""
        if len(self._lazy) >= LAZY_MAX:
            self._flush_lazy()
        self._lazy += [(one, epoch) for one in delivered]

    def _flush_lazy(self) -> None:
        lazy, self._lazy = self._lazy, []
        if lazy and self._machine is not None:
            for one, epoch in lazy:
                self._machine.acknowledge(one, epoch)

    def _put_back(self) -> None:
        """What was taken for a loop, and was not seen, waits with the others again."""
        if self._rest and self._machine is not None:
            unseen = set(map(id, self._rest))
            self._handed = [message for message in self._handed if id(message) not in unseen]
            if not self.comes_again(self._rest[0]):
                epoch = self._rest[0]._epoch
                self._machine.put_back([message._delivered for message in reversed(self._rest)], epoch)
            self._rest.clear()

    async def _receive(self, limit: int, timeout: float | None) -> list[Delivery]:
        """At least one message; none at an orderly end; RequestTimeout, or why nothing more can come."""
        machine = self.machine
        deadline_s = None if timeout is None else self._loop.time() + timeout
        while True:
            if self._has_some():
                found = self._take(limit)
                if found:
                    return found
            machine.asked()
            if self._lazy:
                self._flush_lazy()
            if machine.error is not None:
                raise machine.error
            if machine.is_over or self._closed or (machine.caught_up and not self._follow and not machine.buffer):
                return []
            await self._wait_once(deadline_s)

    async def _wait_once(self, deadline_s: float | None) -> None:
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiters.append(waiter)
        timer = None if deadline_s is None else self._loop.call_at(deadline_s, expire, waiter)
        try:
            await waiter
        finally:
            if timer is not None:
                timer.cancel()
            if waiter in self._waiters:
                self._waiters.remove(waiter)

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def __repr__(self) -> str:
        return f"<Consumer of {self.destination!r}, {self.ack}>"


def is_pattern(name: str) -> bool:
    """Does it stand for several topics?"""
    return any(sign in name for sign in "*>?") or name.startswith(("glob:", "regex:"))


def _nothing(delivered: Delivered, epoch: int) -> None:
    """The acknowledgement of what is only looked at, or belongs to a transaction."""

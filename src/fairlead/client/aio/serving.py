"""Answering requests: with a handler (`Responder`) or from a loop (`RequestQueue`).

A plain handler is called where the request arrives, without a task; what it returns is the response. A
coroutine gets a task; a generator, plain or asynchronous, gives several responses (each goes out when the
next is known, since the last must be marked). What a handler raises becomes an error response.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from fairlead.client.aio.mailbox import Mailbox
from fairlead.client.aio.waiting import agreed
from fairlead.errors import Cancelled, ConnectionLost, FairleadError, LocalProtocolError
from fairlead.message import Message
from fairlead.wire.headers import application_pairs, encode_headers
from fairlead.wire.trace_context import TraceContext

if TYPE_CHECKING:
    from fairlead.client.aio.carrier import Carrier
    from fairlead.client.aio.spanned import Spanned
    from fairlead.client.aio.tracing import Tracing

__all__ = ["Handler", "Registration", "Request", "RequestQueue", "Responder", "as_bytes"]

logger = logging.getLogger("fairlead.client")

HANDLER_FAILED = "handler-failed"


def as_bytes(body: object) -> bytes:
    """A body as bytes; text is UTF-8."""
    if isinstance(body, bytes):
        return body
    if isinstance(body, str):
        return body.encode()
    if isinstance(body, (bytearray, memoryview)):
        return bytes(body)
    raise TypeError(f"a body is bytes or str, not {type(body).__name__}")


class Request:
    """A request that arrived, and how to answer it."""

    __slots__ = ("_carrier", "_epoch", "answered", "message", "spanned")

    def __init__(self, carrier: Carrier, message: Message) -> None:
        self.message = message
        self.answered = False
        self.spanned: Spanned | None = None
        self._carrier = carrier
        self._epoch = carrier.epoch

    @property
    def topic(self) -> str:
        return self.message.topic

    @property
    def body(self) -> bytes:
        return self.message.body

    @property
    def headers(self) -> dict[str, bytes]:
        return self.message.headers

    @property
    def sender(self) -> int:
        return self.message.sender

    @property
    def user(self) -> str | None:
        return self.message.user

    @property
    def mode(self) -> str:
        return self.message.mode

    @property
    def trace(self) -> TraceContext | None:
        """The trace it belongs to, as the requester said (docs/tracing.md)."""
        return self.message.trace

    def span_facts(self) -> tuple[str, dict[str, Any]]:
        """For spans about it: its destination and their attributes."""
        return self.message.span_facts()

    async def reply(
        self, body: bytes | str = b"", *, last: bool = True, headers: Mapping[str, bytes | str] | None = None
    ) -> None:
        """Answer; with `last=False` more answers follow."""
        if self._carrier.brake:
            await self._carrier.room()
        self._say(as_bytes(body), encode_headers(application_pairs(headers)) if headers else b"", last=last)

    async def fail(self, text: str, *, code: str = HANDLER_FAILED) -> None:
        """Answer that it cannot be done; the requester gets an exception with this code."""
        self._say(text.encode()[:4096], encode_headers([("error", code)]), last=True)

    def _say(self, body: bytes, headers: bytes, *, last: bool) -> None:
        if self.answered:
            raise LocalProtocolError("The request has been answered to the end already.")
        if self._epoch != self._carrier.epoch:
            raise ConnectionLost("The connection the request came by is gone.")
        self._carrier.session.respond(self.message.correlation, body, headers, last=last)
        self.answered = last
        self._carrier.pushed()


Handler: TypeAlias = Callable[[Request], Any]


class Registration(ABC):
    """Something that is served; `close` ends it. Usable as `async with`."""

    def __init__(self, carrier: Carrier, topic: str) -> None:
        self.topic = topic
        self._owner = carrier
        self._number = 0
        self._closed = False

    async def start(self) -> None:
        """Register, and wait until the server has agreed."""
        if self._number or self._closed:
            return
        await self._owner.room()
        answer, wait = agreed(self._owner)
        self._number = self._register(answer)
        try:
            await wait
        except BaseException:
            self._closed = True
            raise

    async def close(self) -> None:
        """Unregister; what arrives before the server has agreed is still served."""
        if not self._number or self._closed or self._owner.ended is not None:
            return
        self._closed = True
        answer, wait = agreed(self._owner)
        self._owner.session.unregister(self._number, self, answer)
        await wait

    @abstractmethod
    def deliver(self, run: list[Message]) -> None:
        """Requests that arrived."""

    def fail(self, error: Exception) -> None:
        self._closed = True

    def _register(self, answer: Callable[[Exception | None], None]) -> int:
        return self._owner.session.register(self.topic, answer, requests=self)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()


class Responder(Registration):
    """Requests go to a handler."""

    def __init__(self, carrier: Carrier, topic: str, handler: Handler) -> None:
        super().__init__(carrier, topic)
        self._handler = handler

    def deliver(self, run: list[Message]) -> None:
        carrier, handler = self._owner, self._handler
        if carrier.tracing is not None:
            self._deliver_in_spans(run, carrier.tracing)
            return
        for message in run:
            request = Request(carrier, message)
            try:
                result = handler(request)
                if type(result) is bytes:
                    carrier.session.respond(message.correlation, result)
                else:
                    self._settle(request, result)
            except Exception as error:
                self._failed(request, error)

    def _deliver_in_spans(self, run: list[Message], tracing: Tracing) -> None:
        """Each with a span that is the current one for the handler, and for the task it may become."""
        for message in run:
            request = Request(self._owner, message)
            spanned = request.spanned = tracing.serving(request)
            with tracing.use(spanned.span):
                try:
                    self._settle(request, self._handler(request))
                except Exception as error:
                    self._failed(request, error)
            if request.answered:
                spanned.end()

    def _settle(self, request: Request, result: object) -> None:
        if inspect.iscoroutine(result):
            self._spawn(request, result)
        elif inspect.isawaitable(result):
            self._spawn(request, _wait_for(result))
        elif isinstance(result, AsyncIterator):
            self._spawn(request, self._say_parts(request, result))
        elif isinstance(result, Iterator):
            before: bytes | None = None
            for part in result:
                if before is not None:
                    request._say(before, b"", last=False)
                before = as_bytes(part)
            request._say(before or b"", b"", last=True)
        elif result is not None:
            request._say(as_bytes(result), b"", last=True)
        elif not request.answered:
            request._say(b"", b"", last=True)

    def _spawn(self, request: Request, work: Coroutine[Any, Any, object]) -> None:
        """A task, until it is done, or the requester gives up, or the connection is lost."""
        carrier, correlation = self._owner, request.message.correlation
        task = carrier.spawn(work)
        stop = carrier.session.serving[correlation] = task.cancel

        def done(task: asyncio.Task[object]) -> None:
            # After a loss the same correlation may belong to another request.
            if carrier.session.serving.get(correlation) is stop:
                del carrier.session.serving[correlation]
            if not task.cancelled():
                try:
                    self._settle(request, task.result())
                except Exception as error:
                    self._failed(request, error)
            if request.spanned is not None and request.spanned.span.is_recording():
                request.spanned.end(Cancelled("The requester gave up, or is gone.") if task.cancelled() else None)
            carrier.consumed()

        task.add_done_callback(done)

    async def _say_parts(self, request: Request, parts: AsyncIterator[object]) -> None:
        before: bytes | None = None
        async for part in parts:
            if before is not None:
                await request.reply(before, last=False)
            before = as_bytes(part)
        await request.reply(before or b"")

    def _failed(self, request: Request, error: Exception) -> None:
        code = error.code if isinstance(error, FairleadError) else HANDLER_FAILED
        logger.warning("The handler of %r failed: %r", self.topic, error, exc_info=error)
        if request.spanned is not None:
            request.spanned.failed(error)
        try:
            request._say(
                f"{type(error).__name__}: {error}".encode()[:4096], encode_headers([("error", code)]), last=True
            )
        except FairleadError as second:
            logger.debug("And the requester cannot be told: %s", second)


async def _wait_for(work: Awaitable[object]) -> object:
    return await work


class RequestQueue(Registration, Mailbox[Request]):
    """Requests wait until somebody takes them."""

    def __init__(self, carrier: Carrier, topic: str) -> None:
        Registration.__init__(self, carrier, topic)
        Mailbox.__init__(self, carrier)

    async def start(self) -> None:
        self._enlist()
        await Registration.start(self)

    def deliver(self, run: list[Message]) -> None:
        self.put([Request(self._owner, message) for message in run])

    def fail(self, error: Exception) -> None:
        self._closed = True
        Mailbox.fail(self, error)

    async def close(self) -> None:
        """Unregister; requests nobody took are answered with an error, so that nobody waits for them."""
        await Registration.close(self)
        self.end()
        while self.queue:
            request = self.queue.popleft()
            try:
                await request.fail("The receiver is closing.", code="receiver-lost")
            except FairleadError:
                pass

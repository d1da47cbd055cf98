"""Serving without an event loop: handlers run on a pool of threads, so that they may block and ask others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any, Self, TypeAlias

from fairlead.client.aio.serving import Handler, Registration, RequestQueue
from fairlead.client.aio.serving import Request as AioRequest
from fairlead.client.aio.talks import Acceptor, Conversation
from fairlead.client.sync.runner import Runner
from fairlead.client.sync.subscription import Queue
from fairlead.message import Message
from fairlead.wire.trace_context import TraceContext

__all__ = ["Registered", "Request", "Requests", "SyncHandler", "Talk", "Talks", "on_threads"]


class Request:
    """A request that arrived, and how to answer it."""

    def __init__(self, runner: Runner, inner: AioRequest) -> None:
        self._runner = runner
        self._inner = inner
        self.message = inner.message

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
    def trace(self) -> TraceContext | None:
        return self.message.trace

    def span_facts(self) -> tuple[str, dict[str, Any]]:
        return self.message.span_facts()

    def reply(
        self, body: bytes | str = b"", *, last: bool = True, headers: Mapping[str, bytes | str] | None = None
    ) -> None:
        """Answer; with `last=False` more answers follow."""
        self._runner.run(self._inner.reply(body, last=last, headers=headers))

    def fail(self, text: str) -> None:
        """Answer that it cannot be done."""
        self._runner.run(self._inner.fail(text))


SyncHandler: TypeAlias = Callable[[Request], Any]


def on_threads(runner: Runner, pool: ThreadPoolExecutor, handler: SyncHandler) -> Handler:
    """A handler for the asynchronous face that calls `handler` on a thread; generators are read to their end there."""

    def work(request: AioRequest) -> Any:
        result = handler(Request(runner, request))
        return list(result) if isinstance(result, Iterator) else result

    async def call(request: AioRequest) -> Any:
        context = copy_context()  # with the span of the request, if there is one
        result = await runner.loop.run_in_executor(pool, context.run, work, request)
        return iter(result) if isinstance(result, list) else result

    return call


class Registered:
    """Something that is served; `close` ends it."""

    def __init__(self, runner: Runner, inner: Registration) -> None:
        self._runner = runner
        self._inner = inner

    def close(self) -> None:
        self._runner.run(self._inner.close())

    def __enter__(self) -> Self:
        self._runner.run(self._inner.start())
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class Requests(Registered):
    """Requests from a loop: `for request in requests: request.reply(…)`."""

    def __init__(self, runner: Runner, inner: RequestQueue) -> None:
        super().__init__(runner, inner)
        self._queue = Queue(runner, inner)

    def __iter__(self) -> Iterator[Request]:
        return (Request(self._runner, request) for request in self._queue)

    def next(self, timeout: float | None = None) -> Request:
        return Request(self._runner, self._queue.next(timeout))


class Talk:
    """One side of a conversation. Leaving `with` ends it for both."""

    def __init__(self, runner: Runner, inner: Conversation) -> None:
        self._runner = runner
        self._inner = inner

    def send(self, body: bytes | str, *, last: bool = False) -> None:
        self._runner.run(self._inner.send(body, last=last))

    def receive(self, timeout: float | None = None) -> Message:
        return self._runner.run(self._inner.receive(timeout))

    def __iter__(self) -> Iterator[Message]:
        return iter(Queue(self._runner, self._inner))

    def close(self) -> None:
        self._runner.run(self._inner.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class Talks(Registered):
    """Conversations others begin with us."""

    def __init__(self, runner: Runner, inner: Acceptor) -> None:
        super().__init__(runner, inner)
        self._queue = Queue(runner, inner)

    def __iter__(self) -> Iterator[Talk]:
        return (Talk(self._runner, talk) for talk in self._queue)

    def next(self, timeout: float | None = None) -> Talk:
        return Talk(self._runner, self._queue.next(timeout))

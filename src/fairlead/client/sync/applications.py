"""Applications without an event loop: what came for one, handlers on threads, and the pool."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, contextmanager
from contextvars import copy_context
from typing import Any, Self

from fairlead.client.aio.app_inbox import AppHandler
from fairlead.client.aio.app_inbox import AppInbox as AioInbox
from fairlead.client.aio.app_inbox import AppService as AioService
from fairlead.client.aio.app_message import AppMessage as AioMessage
from fairlead.client.aio.connection import Connection as AioConnection
from fairlead.client.aio.placing import SYNC
from fairlead.client.aio.pooling import Pool as AioPool
from fairlead.client.durable.content import Value
from fairlead.client.durable.receipt import Receipt
from fairlead.client.sync.runner import Runner
from fairlead.wire.trace_context import TraceContext

__all__ = ["AppInbox", "AppMessage", "AppService", "Pool", "PooledConnection", "app_on_threads"]


class AppMessage:
    """A message from another application; see `fairlead.AppMessage` for what everything means."""

    def __init__(self, runner: Runner, inner: AioMessage) -> None:
        self._runner = runner
        self._inner = inner

    @property
    def body(self) -> bytes:
        return self._inner.body

    def read(self) -> bytes:
        return self._runner.run(self._inner.read())

    def text(self) -> str:
        return self._inner.text()

    def data(self) -> Any:
        return self._inner.data()

    @property
    def headers(self) -> Mapping[str, Value]:
        return self._inner.headers

    @property
    def trace(self) -> TraceContext | None:
        return self._inner.trace

    def span_facts(self) -> tuple[str, dict[str, Any]]:
        return self._inner.span_facts()

    @property
    def sealed(self) -> bool:
        return self._inner.sealed

    @property
    def to(self) -> str:
        return self._inner.to

    @property
    def sender(self) -> str:
        return self._inner.sender

    @property
    def label(self) -> str:
        return self._inner.label

    @property
    def id(self) -> str:
        return self._inner.id

    @property
    def correlation(self) -> str:
        return self._inner.correlation

    @property
    def wants_answer(self) -> bool:
        return self._inner.wants_answer

    @property
    def redelivered(self) -> bool:
        return self._inner.redelivered

    def ack(self, confirm: bool = False) -> None:
        async def work() -> None:
            await self._inner.ack(confirm)

        self._runner.run(work())

    def retry(self, delay: float = 0) -> None:
        self._runner.call(lambda: self._inner.retry(delay))

    def reject(self) -> None:
        self._runner.call(self._inner.reject)

    def answer(self, body: Any, *, headers: Mapping[str, Value] | None = None) -> Receipt | None:
        return self._runner.run(self._inner.answer(body, headers=headers))

    def fail(self, text: str) -> None:
        self._runner.run(self._inner.fail(text))

    def __repr__(self) -> str:
        return repr(self._inner)


class AppInbox:
    """Open inside `with`."""

    def __init__(self, runner: Runner, inner: AioInbox) -> None:
        self._runner = runner
        self._inner = inner

    def __enter__(self) -> Self:
        self._runner.run(self._inner.__aenter__())
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        self._runner.run(self._inner.close())

    def receive(self, timeout: float | None = None) -> AppMessage | None:
        """The next message; None when none comes in `timeout` seconds."""
        found = self._runner.run(self._inner.receive(timeout))
        return None if found is None else AppMessage(self._runner, found)

    def __iter__(self) -> Iterator[AppMessage]:
        while (message := self.receive()) is not None:
            yield message


class AppService:
    """An application that is served; `close` ends it."""

    def __init__(self, runner: Runner, inner: AioService) -> None:
        self._runner = runner
        self._inner = inner

    def close(self) -> None:
        self._runner.run(self._inner.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def app_on_threads(runner: Runner, pool: ThreadPoolExecutor, handler: Callable[[AppMessage], Any]) -> AppHandler:
    """A handler for the asynchronous face that calls `handler` on a thread, where it may block."""

    async def call(message: AioMessage) -> Any:
        context = copy_context()  # with the span of the message, if there is one
        return await runner.loop.run_in_executor(pool, context.run, handler, AppMessage(runner, message))

    return call


class PooledConnection:
    """A connection of a pool, for as long as its block lasts."""

    def __init__(self, runner: Runner, inner: AioConnection) -> None:
        self._runner = runner
        self._inner = inner

    @property
    def broker(self) -> str:
        return self._inner.broker

    @property
    def label(self) -> str:
        return self._inner.label

    def call(self, to: str, body: Any = b"", *, timeout: float | None = 30, **options: Any) -> AppMessage:
        work = self._inner._applications.call(to, body, timeout=timeout, **options)
        return AppMessage(self._runner, self._runner.run(work))

    def send_to(self, to: str, body: Any, **options: Any) -> Receipt:
        return self._runner.run(self._inner._applications.send(to, body, **options))


class Pool:
    """See `fairlead.Pool`; may be used by several threads."""

    def __init__(self, url: str | Sequence[str], name: str | None = None, **options: Any) -> None:
        self._runner = Runner()
        try:
            self._inner = AioPool(url, name, scope=SYNC, **options)
            self._runner.run(self._inner.open())
        except BaseException:
            self._runner.stop()
            raise

    def close(self) -> None:
        self._runner.end(self._inner.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @property
    def size(self) -> int:
        return self._inner.size

    def facts(self) -> dict[str, int]:
        return self._runner.call(self._inner.facts)

    @contextmanager
    def connection(self, wait_s: float | None = -1.0) -> Iterator[PooledConnection]:
        """One that nobody else uses, for as long as the block lasts."""
        stack = AsyncExitStack()
        inner = self._runner.run(stack.enter_async_context(self._inner.connection(wait_s)))
        try:
            yield PooledConnection(self._runner, inner)
        finally:
            self._runner.run(stack.aclose())

    def call(self, to: str, body: Any = b"", *, timeout: float | None = 30, **options: Any) -> AppMessage:
        return AppMessage(self._runner, self._runner.run(self._inner.call(to, body, timeout=timeout, **options)))

    def send_to(self, to: str, body: Any, **options: Any) -> Receipt:
        return self._runner.run(self._inner.send_to(to, body, **options))

"""Receiving without an event loop: messages come over from the loop's thread in batches, settlements go back so."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from contextvars import copy_context
from datetime import datetime
from pathlib import Path
from typing import Any, Self

from fairlead.client.aio.consuming import Consumer as AioConsumer
from fairlead.client.aio.delivery import Delivery as AioDelivery
from fairlead.client.durable.content import Value
from fairlead.client.sync.runner import Runner
from fairlead.wire.trace_context import TraceContext

__all__ = ["Consumer", "Delivery"]


class Delivery:
    """A message from a queue or topic; see `fairlead.Delivery` for what everything means."""

    __slots__ = ("_inner", "_runner")

    def __init__(self, runner: Runner, inner: AioDelivery) -> None:
        self._runner = runner
        self._inner = inner

    @property
    def body(self) -> bytes:
        return self._inner.body

    def text(self) -> str:
        return self._inner.text()

    def data(self) -> Any:
        return self._inner.data()

    @property
    def body_kind(self) -> str:
        return self._inner.body_kind

    @property
    def id(self) -> str:
        return self._inner.id

    @property
    def order(self) -> int:
        return self._inner.order

    @property
    def destination(self) -> str:
        return self._inner.destination

    @property
    def key(self) -> str | None:
        return self._inner.key

    @property
    def priority(self) -> int:
        return self._inner.priority

    @property
    def properties(self) -> Mapping[str, Value]:
        return self._inner.properties

    @property
    def correlation_id(self) -> str | None:
        return self._inner.correlation_id

    @property
    def reply_to(self) -> str | None:
        return self._inner.reply_to

    @property
    def type(self) -> str | None:
        return self._inner.type

    @property
    def user(self) -> str | None:
        return self._inner.user

    @property
    def timestamp(self) -> datetime:
        return self._inner.timestamp

    @property
    def arrival(self) -> datetime:
        return self._inner.arrival

    @property
    def expiration(self) -> datetime | None:
        return self._inner.expiration

    @property
    def delivery_time(self) -> datetime:
        return self._inner.delivery_time

    @property
    def persistent(self) -> bool:
        return self._inner.persistent

    @property
    def redelivered(self) -> bool:
        return self._inner.redelivered

    @property
    def delivery_count(self) -> int:
        return self._inner.delivery_count

    @property
    def dead(self) -> Mapping[str, Value]:
        return self._inner.dead

    @property
    def trace(self) -> TraceContext | None:
        return self._inner.trace

    def span_facts(self) -> tuple[str, dict[str, Any]]:
        return self._inner.span_facts()

    @property
    def is_large(self) -> bool:
        return self._inner.is_large

    @property
    def size(self) -> int:
        return self._inner.size

    def stream(self) -> Iterator[bytes]:
        """The body piece by piece."""
        pieces = self._inner.stream()
        while piece := self._runner.run(pieces.piece()):
            yield piece

    def read(self, size: int = -1) -> bytes:
        return self._runner.run(self._inner.read(size))

    def save(self, path: str | Path) -> int:
        return self._runner.run(self._inner.save(path))

    def ack(self, confirm: bool = False) -> None:
        self._settle(self._inner.ack, confirm)

    def ack_through(self, confirm: bool = False) -> None:
        self._settle(self._inner.ack_through, confirm)

    def retry(self, delay: float = 0, confirm: bool = False) -> None:
        self._settle(lambda sure: self._inner.retry(delay, sure), confirm)

    def reject(self, confirm: bool = False) -> None:
        self._settle(self._inner.reject, confirm)

    def _settle(self, action: Callable[[bool], Any], confirm: bool) -> None:
        if confirm:
            self._runner.run(_awaited(lambda: action(True)))
        elif self._inner._consumer.tracing is not None:
            context = copy_context()  # what is said together is done in the context of the first, and this has its own
            self._runner.soon(lambda: context.run(action, False))
        else:
            self._runner.soon(lambda: action(False))

    @contextmanager
    def process(self, delay: float = 0) -> Iterator[Delivery]:
        """Work on it: acknowledged when the block ends well, given back when it raises."""
        tracing = self._inner._consumer.tracing
        is_traced = tracing is not None and not hasattr(self._inner, "_in_span")
        with tracing.processing(self._inner) if tracing is not None and is_traced else nullcontext():
            try:
                yield self
            except BaseException:
                self.retry(delay)
                raise
            self.ack()

    def __repr__(self) -> str:
        return repr(self._inner)


class Consumer:
    """Opened when it is entered, iterated, or first asked for a message."""

    def __init__(self, runner: Runner, inner: AioConsumer) -> None:
        self._runner = runner
        self._inner = inner

    def start(self) -> Self:
        self._runner.run(self._inner.start())
        return self

    def close(self) -> None:
        self._runner.run(self._inner.close())

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.close()

    def receive(self, timeout: float | None = None) -> Delivery | None:
        """The next message; None when none comes in time."""
        return self._of(self._runner.run(self._inner.receive(timeout)))

    def receive_nowait(self) -> Delivery | None:
        return self._of(self._runner.call(self._inner.receive_nowait))

    def receive_many(self, limit: int = 100, timeout: float | None = None) -> list[Delivery]:
        return [Delivery(self._runner, one) for one in self._runner.run(self._inner.receive_many(limit, timeout))]

    def batches(self, limit: int = 1000) -> Iterator[list[Delivery]]:
        while batch := self._runner.run(self._inner.take_batch(limit)):
            yield [Delivery(self._runner, one) for one in batch]
            if self._inner.ack == "auto":
                self._runner.soon(lambda done=batch: self._inner.ack_many(done))  # type: ignore[misc]

    def __iter__(self) -> Iterator[Delivery]:
        """One after another; in auto mode each is acknowledged when the next is asked for."""
        ours = not self._inner.is_started
        auto = self._inner.ack == "auto"
        taken: deque[AioDelivery] = deque()
        self._inner.ahead = taken
        try:
            while True:
                taken.extend(self._runner.run(self._inner.take_batch(self._inner.chunk)))
                if not taken:
                    return
                while taken:
                    if self._inner.comes_again(taken[0]):
                        self._return_unseen(taken)
                        break
                    message = Delivery(self._runner, taken.popleft())
                    yield message
                    if auto:
                        message.ack()
        finally:
            self._return_unseen(taken)
            if ours:
                self.close()

    def _return_unseen(self, taken: deque[AioDelivery]) -> None:
        if taken:
            rest = list(taken)
            taken.clear()
            self._runner.call(lambda: self._inner.return_unseen(rest))

    def listen(self, callback: Callable[[Delivery], Any]) -> None:
        """Call `callback(message)` for each message, on a thread; one at a time within the session."""
        loop = self._runner.loop

        async def call(inner: AioDelivery) -> None:
            context = copy_context()  # with the span of working on it
            await loop.run_in_executor(None, context.run, callback, Delivery(self._runner, inner))

        self._runner.call(lambda: self._inner.listen(call))

    def pause(self) -> None:
        self._runner.run(_awaited(self._inner.pause))

    def resume(self) -> None:
        self._runner.run(_awaited(self._inner.resume))

    def ack_many(self, messages: Iterable[Delivery], confirm: bool = False) -> None:
        inner = [message._inner for message in messages]
        self._runner.run(_awaited(lambda: self._inner.ack_many(inner, confirm)))

    @contextmanager
    def process_many(self, messages: Collection[Delivery], delay: float = 0) -> Iterator[None]:
        """Work on several at once: acknowledged when the block ends well, all given back when it raises."""
        tracing, inner = self._inner.tracing, [message._inner for message in messages]
        with nullcontext() if tracing is None else tracing.processing_many(inner, self._inner.destination):
            try:
                yield
            except BaseException:
                for message in messages:
                    message.retry(delay)
                raise
            self.ack_many(messages)

    def _of(self, inner: AioDelivery | None) -> Delivery | None:
        return None if inner is None else Delivery(self._runner, inner)


async def _awaited(action: Callable[[], Any]) -> Any:
    return await action()

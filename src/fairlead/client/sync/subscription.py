"""Things to iterate over without an event loop: batches come over from the loop's thread, messages from here."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Generic, Self, TypeVar

from fairlead.client.aio.asking import FanOut
from fairlead.client.aio.mailbox import Mailbox
from fairlead.client.aio.subscription import Subscription as AioSubscription
from fairlead.client.sync.runner import Runner
from fairlead.errors import ConnectionLost
from fairlead.message import Message

__all__ = ["FanOut", "Queue", "Replies", "Subscription"]

T = TypeVar("T")


class Queue(Generic[T]):
    """A mailbox on the other thread, taken over batch by batch."""

    def __init__(self, runner: Runner, inner: Mailbox[T]) -> None:
        self._runner = runner
        self._inner = inner
        self._taken: deque[T] = deque()

    def __iter__(self) -> Iterator[T]:
        taken = self._taken
        while True:
            while taken:
                yield taken.popleft()
            batch = self._runner.run(self._batch(None))
            if not batch:
                return
            taken.extend(batch)

    def batches(self) -> Iterator[list[T]]:
        while batch := list(self._taken) or self._runner.run(self._batch(None)):
            self._taken.clear()
            yield batch

    def next(self, timeout: float | None = None) -> T:
        """The next one; RequestTimeout when none comes in time."""
        if not self._taken:
            batch = self._runner.run(self._batch(timeout))
            if not batch:
                raise ConnectionLost("It is closed: nothing more will come.")
            self._taken.extend(batch)
        return self._taken.popleft()

    async def _batch(self, timeout: float | None) -> list[T]:
        return await self._inner.take(timeout)


class Subscription(Queue[Message]):
    """Messages of the topics a pattern stands for."""

    _inner: AioSubscription

    @property
    def pattern(self) -> str:
        return self._inner.pattern

    @property
    def interruptions(self) -> int:
        """How often the connection was lost: after each, messages may be missing."""
        return self._inner.interruptions

    def start(self) -> None:
        self._runner.run(self._inner.start())

    def close(self) -> None:
        self._taken.clear()
        self._runner.run(self._inner.close())

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class Replies(Queue[Message]):
    """Responses of everybody who was asked; see the asynchronous `FanOut`."""

    _inner: FanOut

    @property
    def asked(self) -> int | None:
        return self._inner.asked

    @property
    def answered(self) -> int:
        return self._inner.answered

    @property
    def lost(self) -> int:
        return self._inner.lost

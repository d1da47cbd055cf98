"""A stream for programs without an event loop: runs come over from the loop's thread, messages are handed out here.

The position is that of what was handed out here; see the asynchronous `Stream` for everything else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Generic, Self, TypeVar, cast

from fairlead.client.aio.feed_tray import Tray
from fairlead.client.aio.feeding import BATCH
from fairlead.client.aio.feeding import Stream as AioStream
from fairlead.client.sync.runner import Runner
from fairlead.feeds.arbitration.standing import State
from fairlead.feeds.events import Event
from fairlead.feeds.records import Place
from fairlead.feeds.schema import Schema

if TYPE_CHECKING:
    from fairlead.feeds.blocks import StreamMessage

__all__ = ["Stream"]

Item = TypeVar("Item")


class Stream(Generic[Item]):
    """Begins when it is entered, iterated over or asked for a batch. One thread takes from it, and `on_event` is
    called on that one; any thread may close it."""

    def __init__(
        self, runner: Runner, inner: AioStream[Item], *, events: bool, on_event: Callable[[Event], object] | None
    ) -> None:
        self._runner = runner
        self._inner = inner
        self._with_events = events
        self._on_event = on_event
        self._tray = Tray(inner.position)
        self._is_closed = False

    @property
    def name(self) -> str:
        return self._inner.name

    @property
    def client(self) -> str:
        return self._inner.client

    @property
    def state(self) -> State:
        return self._inner.state

    @property
    def position(self) -> dict[str, Place]:
        """What this program was given last, by source: keep it, and go on from it with `start=`."""
        return self._tray.position

    @property
    def schema(self) -> Schema | None:
        return self._inner.schema

    @property
    def counters(self) -> dict[str, int]:
        found = self._runner.call(lambda: self._inner.counters)
        return {**found, "waiting": found["waiting"] + self._tray.messages}

    @property
    def line(self) -> str:
        return self._inner.line

    @property
    def epoch(self) -> int:
        return self._inner.epoch

    @property
    def closed(self) -> bool:
        return self._inner.closed

    def start(self) -> None:
        """Be introduced to adapters; raises why not."""
        self._runner.run(self._inner.start())

    def close(self) -> None:
        """Have no more of it; what waits is not handed out."""
        self._is_closed = True
        self._runner.run(self._inner.aclose())

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[Item]:
        tray = self._tray
        while True:
            for message in tray.rest:
                tray.last = message
                yield message
                if self._is_closed:
                    return
            if not self._refill(None):
                return
            event = self._next()
            if event is not None and self._with_events:
                yield cast(Item, event)

    def batch(self, max: int = BATCH, timeout: float | None = None) -> list[Item]:  # noqa: A002
        """What is there, at least one and at most `max`; empty at the end. RequestTimeout if nothing comes in time."""
        tray = self._tray
        found: list[StreamMessage | Event] = list(tray.take(max))
        while len(found) < max:
            if not tray and (found or not self._refill(timeout)):
                break
            event = self._next()
            if event is None:
                found += tray.take(max - len(found))
            elif self._with_events:
                found.append(event)
        return cast(list[Item], found)

    def next(self, timeout: float | None = None) -> Item | None:
        """The next one; None at the end."""
        found = self.batch(1, timeout)
        return found[0] if found else None

    def _refill(self, timeout: float | None) -> bool:
        if self._is_closed:
            return False
        if not self._tray:
            self._tray.put(self._runner.run(self._inner.entries(timeout)), 0)
        return bool(self._tray)

    def _next(self) -> Event | None:
        event = self._tray.next()
        if event is not None and self._on_event is not None:
            self._on_event(event)
        return event

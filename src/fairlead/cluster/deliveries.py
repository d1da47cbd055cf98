"""Who was given what of late, for whoever asks about one message; the journal does not know it.

A delivery is kept as the heads of its chunks, as they went out: one look at a frame, however many messages are in it.
What is kept is bounded, and gone with the process.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from fairlead.wire.durable import CHUNK

if TYPE_CHECKING:
    from fairlead.cluster.parties import Consumer
    from fairlead.cluster.port import Bytes

CHUNKS_MAX: Final = 16_384

Taker: TypeAlias = tuple[int, int, bytes, str, str, str]
"""Who gets a frame: destination, cursor, session, user, client, and how (see `Delivered`)."""


def taker_of(consumer: Consumer, client: str) -> Taker:
    """Plain values, and not the consumer itself: it would keep its destination alive, with everything in it."""
    how = "browsed" if consumer.browse else "replayed" if consumer.replay else "delivered"
    session = consumer.session
    return consumer.destination.number, consumer.cursor, session.id, session.user, client, how


class Delivered(NamedTuple):
    """One message went to one consumer."""

    ms: int
    count: int  # type: ignore[assignment]  # a tuple has a method of this name
    """Which delivery of it this was."""
    cursor: int
    session: str
    user: str
    client: str
    how: str
    """`delivered`, or `browsed` or `replayed` by one who only looks."""


class Deliveries:
    """The frames of the last so many chunks."""

    def __init__(self, chunks_max: int = CHUNKS_MAX) -> None:
        self._chunks_max = chunks_max
        self._frames: deque[tuple[int, Taker, Sequence[Bytes]]] = deque()
        self._chunks = 0
        self.since_ms = 0
        """Everything after this time is known."""

    def add(self, now_ms: int, taker: Taker, pieces: Sequence[Bytes]) -> None:
        """A frame: heads and entries, by turns."""
        heads = pieces[::2]
        self._frames.append((now_ms, taker, heads))
        self._chunks += len(heads)
        if self._chunks > self._chunks_max:
            self._trim()

    def _trim(self) -> None:
        while self._chunks > self._chunks_max and len(self._frames) > 1:
            self.since_ms, _, old = self._frames.popleft()
            self._chunks -= len(old)

    def of(self, destination: int, order: int) -> list[Delivered]:
        """All that is known of one message, oldest first."""
        found = []
        for ms, (number, cursor, session, user, client, how), heads in self._frames:
            if number != destination:
                continue
            for head in heads:
                low, count, deliveries, *_ = CHUNK.unpack(head)
                if low <= order < low + count:
                    found.append(Delivered(ms, deliveries, cursor, session.hex(), user, client, how))
        return found

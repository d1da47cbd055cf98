"""Who looks on, and what waits for each of them: never more than the newest of each kind, and a bounded run of events.

So whoever does not read costs no more than whoever does, and misses what is told again anyway. Events of the log carry
an id that grows with their time, also from one console process to the next: a page that was cut off names the last one
it has seen.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final, NamedTuple

from fairlead.console.problems import Denied

TOPICS: Final = ("overview", "destinations", "connections", "event", "history")
REMEMBERED: Final = 500
WAITING_MAX: Final = 500  # events for one page


class Told(NamedTuple):
    """One event of the stream."""

    topic: str
    data: bytes
    id: str = ""


class Listener:
    """One page that looks on."""

    def __init__(self, topics: frozenset[str], *, admin: bool) -> None:
        self.topics = topics
        self.admin = admin
        self.missed = 0  # events that were not read in time
        self._newest: dict[str, Told] = {}
        self._events: deque[Told] = deque()

    def offer(self, told: Told) -> bool:
        """True: something waits that did not before."""
        if told.topic not in self.topics:
            return False
        was_empty = not self._newest and not self._events
        if told.topic == "event":
            if len(self._events) >= WAITING_MAX:
                self._events.popleft()
                self.missed += 1
            self._events.append(told)
        else:
            self._newest[told.topic] = told
        return was_empty

    def take(self) -> list[Told]:
        """Everything that waits."""
        found = [*self._events, *self._newest.values()]
        self._newest, self._events = {}, deque()
        return found


class Hub:
    """All of them, and the events that are remembered."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.listeners: set[Listener] = set()
        self._events: deque[tuple[tuple[int, int], Told]] = deque(maxlen=REMEMBERED)
        self._last = (0, 0)

    @property
    def wanted(self) -> frozenset[str]:
        """What anybody looks at just now."""
        return frozenset().union(*(one.topics for one in self.listeners)) if self.listeners else frozenset()

    def join(self, topics: Iterable[str], *, admin: bool, last_id: str = "") -> Listener:
        if len(self.listeners) >= self.most:
            raise Denied(503, f"{self.most} pages look on already; close one of them.", code="server-full", retry_s=30)
        listener = Listener(frozenset(topics), admin=admin)
        if (last := read_id(last_id)) is not None:
            for number, told in self._events:
                if number > last:
                    listener.offer(told)
        self.listeners.add(listener)
        return listener

    def leave(self, listener: Listener) -> None:
        self.listeners.discard(listener)

    def tell(self, topic: str, data: bytes) -> list[Listener]:
        """Whom to wake."""
        told = Told(topic, data)
        return [one for one in self.listeners if one.offer(told)]

    def tell_event(self, ms: int, data: bytes) -> list[Listener]:
        """The same for an event of the log; remembered for those who come back."""
        last_ms, count = self._last
        self._last = (ms, 0) if ms > last_ms else (last_ms, count + 1)
        told = Told("event", data, f"{self._last[0]}.{self._last[1]}")
        self._events.append((self._last, told))
        return [one for one in self.listeners if one.offer(told)]


def topics_of(text: str) -> list[str]:
    """Those that are named, with commas between them; all if none are."""
    found = list(filter(None, (part.strip() for part in text.split(",")))) or list(TOPICS)
    for topic in found:
        if topic not in TOPICS:
            raise Denied(
                422, f"There is no topic {topic[:40]!r}; choose from {', '.join(TOPICS)}.", code="bad-parameter"
            )
    return found


def read_id(text: str) -> tuple[int, int] | None:
    ms, _, count = text.partition(".")
    if not (
        ms.isascii() and ms.isdigit() and len(ms) <= 15 and count.isascii() and count.isdigit() and len(count) <= 9
    ):
        return None
    return int(ms), int(count)


def encoded(told: Told) -> bytes:
    """As server-sent events have it; JSON has no line ends of its own."""
    head = b"event: %s\n" % told.topic.encode()
    if told.id:
        head += b"id: %s\n" % told.id.encode()
    return head + b"data: " + told.data + b"\n\n"

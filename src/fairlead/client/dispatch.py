"""Which of a client's subscriptions want a message: the server sends it once, however many match.

The answer is remembered per topic, so that a run of messages costs one look-up.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from fairlead.message import Message
from fairlead.topics import PatternIndex
from fairlead.wire.kinds import TOPIC_SEPARATOR

__all__ = ["Dispatch", "Entry", "Sink"]

REMEMBERED_MAX = 10_000


class Sink(Protocol):
    """Who takes the messages of a subscription or registration."""

    def deliver(self, run: list[Message]) -> None: ...

    def fail(self, error: Exception) -> None: ...


class Entry(NamedTuple):
    """One subscription."""

    pattern: str
    no_local: bool
    sink: Sink


class Dispatch:
    """The table of subscriptions, by the number that names each on the wire."""

    def __init__(self) -> None:
        self.entries: dict[int, Entry] = {}
        self._index: PatternIndex[int] = PatternIndex()
        self._remembered: dict[str, tuple[list[Sink], list[Sink]]] = {}

    def add(self, number: int, entry: Entry) -> None:
        self._index.add(entry.pattern, number)
        self.entries[number] = entry
        self._remembered.clear()

    def remove(self, number: int) -> Entry | None:
        entry = self.entries.pop(number, None)
        if entry is not None:
            self._index.remove(entry.pattern, number)
            self._remembered.clear()
        return entry

    def deliver(self, run: list[Message], uid: int) -> None:
        """Hand out a run of broadcasts with one topic; those of `uid` itself are not for `no_local` sinks."""
        topic = run[0].topic_text
        found = self._remembered.get(topic)
        if found is None:
            found = self._find(topic)
        for sink in found[0]:
            sink.deliver(run)
        if found[1]:
            others = [message for message in run if message.sender != uid]
            if others:
                for sink in found[1]:
                    sink.deliver(others)

    def _find(self, topic_text: str) -> tuple[list[Sink], list[Sink]]:
        numbers: set[int] = set()
        for topic in topic_text.split(TOPIC_SEPARATOR):
            numbers |= self._index.match(topic)
        entries = [self.entries[number] for number in sorted(numbers)]
        found = (
            [entry.sink for entry in entries if not entry.no_local],
            [entry.sink for entry in entries if entry.no_local],
        )
        if len(self._remembered) >= REMEMBERED_MAX:
            self._remembered.clear()
        self._remembered[topic_text] = found
        return found

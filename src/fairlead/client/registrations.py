"""What a client serves: one REGISTER per topic on the wire, and behind it requests, conversations, or both.

The topic "" stands for what is addressed to the client itself, by uid or name; it is not registered.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from fairlead.client.dispatch import Sink
from fairlead.errors import LocalProtocolError
from fairlead.message import Message

__all__ = ["Registered", "Registrations", "TalkSink"]

TOPIC_HEADER = "topic"
"""With NAMED the frame's topic is a client's name, so the topic meant travels in this header."""


class TalkSink(Protocol):
    """One side of a conversation."""

    def deliver(self, run: list[Message]) -> None: ...

    def fail(self, error: Exception) -> None: ...


@dataclass(slots=True)
class Registered:
    """A topic and who takes what arrives for it."""

    topic: str
    number: int
    requests: Sink | None = None
    talks: Sink | None = None


class Registrations:
    """By topic and by number."""

    def __init__(self) -> None:
        self.by_topic: dict[str, Registered] = {}
        self.by_number: dict[int, Registered] = {}

    def add(self, topic: str, number: int, *, requests: Sink | None, talks: Sink | None) -> Registered:
        """The entry for `topic`, new (its number is `number`) or joined."""
        entry = self.by_topic.get(topic)
        if entry is None:
            entry = self.by_topic[topic] = self.by_number[number] = Registered(topic, number)
        if (requests and entry.requests) or (talks and entry.talks):
            raise LocalProtocolError(f"This connection serves {topic!r} already.")
        entry.requests = requests or entry.requests
        entry.talks = talks or entry.talks
        return entry

    def remove(self, number: int) -> None:
        entry = self.by_number.pop(number, None)
        if entry is not None:
            del self.by_topic[entry.topic]

    def find(self, message: Message) -> Registered | None:
        """Who is meant: the topic, else the topic in the header, else the client itself."""
        topic = message.topic
        if topic and (entry := self.by_topic.get(topic)):
            return entry
        named = message.headers.get(TOPIC_HEADER)
        if named is not None and (entry := self.by_topic.get(named.decode(errors="replace"))):
            return entry
        return self.by_topic.get("")

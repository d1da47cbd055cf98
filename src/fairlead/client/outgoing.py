"""What an application says to the server, as frames, and the tables of what it said.

Everything gathers in `out`; the edge writes it. Numbers name subscriptions and registrations, correlations
name requests and conversations; the tables say who is to hear of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from fairlead.client.dispatch import Dispatch, Entry, Sink
from fairlead.client.link import Link, control
from fairlead.client.pending import Pending, PendingTable
from fairlead.client.registrations import Registrations, TalkSink
from fairlead.errors import BodyTooLarge, Cancelled
from fairlead.wire import kinds
from fairlead.wire.codec import encode_frame, encode_message, encode_publishes
from fairlead.wire.headers import encode_headers
from fairlead.wire.kinds import FLAG_LAST, FLAG_NO_LOCAL

__all__ = ["SERVER_MADE", "Answer", "Outgoing", "subscribe_frame"]

Answer: TypeAlias = Callable[[Exception | None], None]
"""Told once: None when the server agreed (or the wish is moot), else why not."""

SERVER_MADE = 1 << 63
"""Correlations made by the server have this bit, ours do not: both sides of conversations arrive as CONVERSE."""

SMALL_BYTES = 65_536

COMMAND_FIRST = 1 << 30
"""Commands of the durable road are numbered from here to twice that, so that no answer is taken for that of a
subscription, or for that of a question the server has of its own."""


class Outgoing:
    """The saying half of a session."""

    def __init__(self) -> None:
        self.link: Link | None = None
        self.holding = False
        self.out: list[bytes] = []
        self.out_bytes = 0
        self.dispatch = Dispatch()
        self.registrations = Registrations()
        self.requests = PendingTable()
        self.talks: dict[int, TalkSink] = {}
        self._answers: dict[int, Answer] = {}
        self._ending: set[int] = set()  # numbers that are being unsubscribed or unregistered
        self._pings: dict[int, Answer] = {}
        self._number = 0
        self._command = COMMAND_FIRST
        self._correlation = 0

    def send(self, frame: bytes) -> None:
        self.out.append(frame)
        self.out_bytes += len(frame)

    def next_command(self) -> int:
        """A number for a COMMAND, which ties its answer to it."""
        self._command = COMMAND_FIRST + (self._command + 1) % COMMAND_FIRST
        return self._command

    def take_out(self) -> list[bytes]:
        """The frames to write on the current link now."""
        if self.holding or self.link is None:
            return []
        out, self.out, self.out_bytes = self.out, [], 0
        return out

    def subscribe(self, pattern: str, sink: Sink, answer: Answer, *, no_local: bool = False) -> int:
        number = self._next_number()
        self.dispatch.add(number, Entry(pattern, no_local, sink))
        self._answers[number] = answer
        if self.link is not None:
            self.send(subscribe_frame(number, pattern, no_local=no_local))
        return number

    def unsubscribe(self, number: int, answer: Answer) -> None:
        self.dispatch.remove(number)
        self._end_number(kinds.KIND_UNSUBSCRIBE, number, answer)

    def register(self, topic: str, answer: Answer, *, requests: Sink | None = None, talks: Sink | None = None) -> int:
        """Serve requests, conversations, or both; the topic "" is what is addressed to this client itself."""
        number = self._next_number()
        entry = self.registrations.add(topic, number, requests=requests, talks=talks)
        if entry.number != number or not topic:
            answer(None)
            return entry.number
        self._answers[number] = answer
        if self.link is not None:
            self.send(control(kinds.KIND_REGISTER, number=number, topic=topic.encode()))
        return number

    def unregister(self, number: int, sink: Sink, answer: Answer) -> None:
        """What still arrives before the server agreed is served."""
        entry = self.registrations.by_number.get(number)
        if entry is None or sink not in (entry.requests, entry.talks):
            answer(None)
        elif entry.requests is not None and entry.talks is not None:
            entry.requests, entry.talks = (None, entry.talks) if entry.requests is sink else (entry.requests, None)
            answer(None)
        elif entry.topic:
            self._end_number(kinds.KIND_UNREGISTER, number, answer)
        else:
            self.registrations.remove(number)
            answer(None)

    def publish(self, topic: bytes, headers: bytes, body: bytes) -> None:
        self.message(kinds.KIND_PUBLISH, 0, 0, 0, 0, topic, headers, body)

    def publish_many(self, topic: bytes, headers: bytes, bodies: list[bytes]) -> None:
        for body in bodies:
            self._check_size(body)
        self.send(
            encode_publishes(topic, headers, bodies, self.link.fragment if self.link else kinds.FRAGMENT_BYTES_MAX)
        )

    def message(
        self,
        kind: int,
        flags: int,
        number: int,
        correlation: int,
        peer: int,
        topic: bytes,
        headers: bytes,
        body: bytes,
    ) -> None:
        """A message of any kind, in fragments when it must be."""
        if len(body) < SMALL_BYTES:
            frame = encode_frame(kind, flags, number, correlation, peer, topic, headers, body)
        else:
            self._check_size(body)
            frame = encode_message(kind, flags, number, correlation, peer, topic, headers, body, self._fragment())
        self.out.append(frame)
        self.out_bytes += len(frame)

    def request(
        self, pending: Pending, kind: int, flags: int, peer: int, topic: bytes, headers: bytes, body: bytes
    ) -> int:
        """Ask; the correlation chosen is for `give_up`. (`requests.next_s` may have become earlier.)"""
        self._correlation = correlation = self._correlation + 1
        self.message(kind, flags, 0, correlation, peer, topic, headers, body)
        self.requests.add(correlation, pending)
        return correlation

    def give_up(self, correlation: int) -> None:
        """Nobody waits for it any more."""
        if self.requests.open.pop(correlation, None) is not None:
            self.cancel(correlation)

    def cancel(self, correlation: int) -> None:
        self.send(control(kinds.KIND_CANCEL, correlation=correlation))

    def respond(self, correlation: int, body: bytes, headers: bytes = b"", *, last: bool = True) -> None:
        self.message(kinds.KIND_RESPONSE, FLAG_LAST if last else 0, 0, correlation, 0, b"", headers, body)

    def respond_error(self, correlation: int, code: str, text: str) -> None:
        """A response too, since it was a receiver that failed, not the server."""
        self.respond(correlation, text.encode()[:4096], encode_headers([("error", code)]))

    def open_talk(self, talk: TalkSink) -> int:
        self._correlation += 1
        self.talks[self._correlation] = talk
        return self._correlation

    def cancel_talk(self, correlation: int) -> None:
        if self.talks.pop(correlation, None) is not None and not correlation & SERVER_MADE:
            self.send(control(kinds.KIND_CANCEL, correlation=correlation))

    def send_to(self, flags: int, peer: int, name: bytes, headers: bytes, body: bytes) -> None:
        self._correlation += 1  # so that we are told when there is nobody
        self.message(kinds.KIND_SEND, flags, 0, self._correlation, peer, name, headers, body)

    def ping(self, answer: Answer) -> None:
        self._correlation += 1
        self._pings[self._correlation] = answer
        self.send(control(kinds.KIND_PING, correlation=self._correlation))

    def _end_number(self, kind: int, number: int, answer: Answer) -> None:
        if before := self._answers.pop(number, None):
            before(Cancelled("It was given up before the server answered."))
        if self.link is None:
            self.registrations.remove(number)
            answer(None)
            return
        self._ending.add(number)
        self._answers[number] = answer
        self.send(control(kind, number=number))

    def _next_number(self) -> int:
        self._number = self._number % 0xFFFFFFFF + 1
        return self._number

    def _fragment(self) -> int:
        return self.link.fragment if self.link is not None else kinds.FRAGMENT_BYTES_MAX

    def _check_size(self, body: bytes) -> None:
        limit = self.link.confirm.body_max if self.link is not None else None
        if limit is not None and len(body) > limit:
            raise BodyTooLarge(
                f"The body has {len(body)} bytes; this server takes {limit}.", size=len(body), limit=limit
            )


def subscribe_frame(number: int, pattern: str, *, no_local: bool) -> bytes:
    return control(kinds.KIND_SUBSCRIBE, number=number, topic=pattern.encode(), flags=FLAG_NO_LOCAL if no_local else 0)

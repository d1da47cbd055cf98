"""Requests, conversations and fan-out requests on their way over a link: who waits on one side for the other.

A bridge is a receiver on the side where somebody asks and a requester on the side where somebody answers. Loss of
either side ends what was between them: the requester is told, the receiver is relieved.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from fairlead.client.outgoing import SERVER_MADE
from fairlead.errors import FairleadError
from fairlead.message import Message
from fairlead.sites.marks import kept
from fairlead.sites.session import LinkSession
from fairlead.wire import kinds
from fairlead.wire.headers import encode_headers
from fairlead.wire.kinds import FLAG_LAST

ASKED, LAST, LOST = ":asked", ":last", ":lost"
"""In responses of a link to a fan-out request: how many it stands for; one of them has ended; one was lost."""

Said = Callable[[], None]


def code_of(error: Exception) -> str:
    return error.code if isinstance(error, FairleadError) and error.code else "receiver-lost"


class Relay:
    """One request: responses of the far side are passed on to the near one."""

    deadline_s = inf  # the requester has its own, and cancels

    def __init__(self, near: LinkSession, rid: int, said: Said) -> None:
        self._near = near
        self._rid = rid
        self._said = said

    def on_message(self, message: Message) -> bool:
        is_last = bool(message.flags & FLAG_LAST)
        if is_last:
            self._near.serving.pop(self._rid, None)
        self._near.respond(self._rid, message.body, encode_headers(kept(message)), last=is_last)
        self._said()
        return is_last

    def on_asked(self, count: int) -> bool:
        return False

    def on_receiver_lost(self) -> bool:
        return False

    def fail(self, error: Exception) -> None:
        if self._near.serving.pop(self._rid, None) is not None:
            self._near.respond_error(self._rid, code_of(error), str(error))
            self._said()

    def on_timeout(self) -> None:
        """There is no deadline here."""


class FanRelay:
    """A fan-out request that goes on over one or more links. The requester hears how many were asked in all."""

    def __init__(self, near: LinkSession, rid: int, links: int, said: Said) -> None:
        self._near = near
        self._rid = rid
        self._said = said
        self._unknown = links  # that have not said how many they asked
        self._asked = 0
        self._ended = 0
        self._early: list[tuple[Message | None, str]] = []

    def branch(self) -> Branch:
        return Branch(self)

    def asked(self, count: int) -> None:
        """One of the links has asked so many."""
        self._unknown -= 1
        self._asked += count
        if not self._unknown:
            self._say(b"", [(ASKED, str(self._asked))], is_last=not self._asked)
            early, self._early = self._early, []
            for message, what in early:
                self.take(message, what)

    def take(self, message: Message | None, what: str) -> None:
        """A response (`what` is "", or LAST if it is a receiver's last), or the loss of a receiver (LOST)."""
        if self._unknown:
            self._early.append((message, what))
            return
        pairs = [] if message is None else kept(message)
        known = {key: value for key, value in pairs if key in (ASKED, LAST, LOST)}
        if ASKED in known:
            self._asked += _count(known[ASKED]) - 1
        elif what or LAST in known or LOST in known:
            self._ended += 1
        pairs = [pair for pair in pairs if pair[0] != LAST]
        if what == LOST:
            pairs.append((LOST, b""))
        elif (what == LAST or LAST in known) and not (ASKED in known or LOST in known):
            pairs.append((LAST, b""))
        is_last = self._ended >= self._asked
        self._say(b"" if message is None else message.body, pairs, is_last=is_last)

    def _say(self, body: bytes, pairs: list[tuple[str, bytes | str]], *, is_last: bool) -> None:
        if self._rid not in self._near.serving:
            return  # over, or given up
        if is_last:
            del self._near.serving[self._rid]
            pairs = [pair for pair in pairs if pair[0] != LAST]
        self._near.respond(self._rid, body, encode_headers(pairs), last=is_last)
        self._said()


def _count(value: bytes | str) -> int:
    text = value.decode(errors="replace") if isinstance(value, bytes) else value
    return int(text) if text.isdecimal() and len(text) < 10 else 1


class Branch:
    """The part of a fan-out request that goes over one link."""

    deadline_s = inf

    def __init__(self, whole: FanRelay) -> None:
        self._whole = whole
        self._asked: int | None = None
        self._ended = 0

    def on_asked(self, count: int) -> bool:
        self._asked = count
        self._whole.asked(count)
        return self._is_over()

    def on_message(self, message: Message) -> bool:
        is_last = bool(message.flags & FLAG_LAST)
        self._ended += is_last
        self._whole.take(message, LAST if is_last else "")
        return self._is_over()

    def on_receiver_lost(self) -> bool:
        self._ended += 1
        self._whole.take(None, LOST)
        return self._is_over()

    def _is_over(self) -> bool:
        return self._asked is not None and self._ended >= self._asked

    def fail(self, error: Exception) -> None:
        """Nobody was there, or the link is lost with everybody who had not answered."""
        if self._asked is None:
            self._asked = 0
            self._whole.asked(0)
        while not self._is_over():
            self.on_receiver_lost()

    def on_timeout(self) -> None:
        """There is no deadline here."""


class TalkEnd:
    """One side of a conversation: what it hears is said on the other."""

    def __init__(self, session: LinkSession, correlation: int, said: Said) -> None:
        self.session = session
        self.correlation = correlation
        self.said = said
        self.other: TalkEnd

    def deliver(self, run: list[Message]) -> None:
        for message in run:
            self.other.say(message.flags & FLAG_LAST, message.number, encode_headers(kept(message)), message.body)

    def say(self, last: int, number: int, headers: bytes, body: bytes) -> None:
        self.session.message(kinds.KIND_CONVERSE, last, number, self.correlation, 0, b"", headers, body)
        if last:
            self.session.talks.pop(self.correlation, None)
        self.said()

    def fail(self, error: Exception) -> None:
        """Our side is gone: the other hears it as its end."""
        other = self.other
        if other.correlation & SERVER_MADE:
            if other.session.talks.pop(other.correlation, None) is not None:
                code = error.code if isinstance(error, FairleadError) and error.code else "conversation-lost"
                other.say(FLAG_LAST, 0, encode_headers([("error", code)]), str(error).encode()[:4096])
        else:
            other.session.cancel_talk(other.correlation)
            other.said()

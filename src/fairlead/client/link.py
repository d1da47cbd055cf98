"""One connection to the server as the protocol sees it: how far its handshake is, its credit, its keep-alive.

::

    GREETING ──CONFIRM──► CONFIRMED ──WELCOME──► LIVE ──MOVED──► DONE
                                  └─(resumed)──► WAITING ──MOVED──► LIVE
"""

from __future__ import annotations

import enum

from msgspec import UNSET

from fairlead.client.target import Address
from fairlead.errors import ConnectionLost, FairleadError, RemoteProtocolError
from fairlead.message import Message
from fairlead.wire.codec import Parser, encode_frame
from fairlead.wire.credit import ReceiverCredit
from fairlead.wire.handshake import Confirm, Connect, Welcome, decode, encode
from fairlead.wire.kinds import (
    FRAGMENT_BYTES_MAX,
    HEADER_BYTES_MAX,
    KIND_CONFIRM,
    KIND_CONNECT,
    KIND_CREDIT,
    KIND_MOVED,
    KIND_PING,
    KIND_WELCOME,
    PREFACE,
)

__all__ = ["Link", "Phase", "control"]


class Phase(enum.Enum):
    GREETING = "greeting"
    CONFIRMED = "confirmed"
    WAITING = "waiting"
    LIVE = "live"
    DONE = "done"


TRANSITIONS = {
    (Phase.GREETING, KIND_CONFIRM): Phase.CONFIRMED,
    (Phase.CONFIRMED, KIND_WELCOME): Phase.LIVE,  # WAITING when it is resumed
    (Phase.WAITING, KIND_MOVED): Phase.LIVE,
    (Phase.LIVE, KIND_MOVED): Phase.DONE,
}


def control(kind: int, *, number: int = 0, correlation: int = 0, flags: int = 0, topic: bytes = b"") -> bytes:
    """A frame without headers and body."""
    return encode_frame(kind, flags, number, correlation, 0, topic, b"", b"")


class Link:
    """State of one connection; what it wants written gathers in `out`."""

    def __init__(self, hello: Connect, now_s: float) -> None:
        self.phase = Phase.GREETING
        self.is_resuming = hello.resume is not UNSET
        self.parser = Parser()
        self.credit = ReceiverCredit(hello.credit)
        self.confirm = Confirm(uid=0)
        self.welcome = Welcome(uid=0)
        self.reason: FairleadError | None = None  # what the server said before it closed
        self.elsewhere: list[Address] = []  # where the server said it is better to connect
        self.stash: list[list[Message]] = []  # what came before its predecessor was read to the end
        # CONNECT goes right behind the preface: one round trip less.
        self.out: list[bytes] = [
            PREFACE,
            encode_frame(KIND_CONNECT, 0, 0, 0, 0, b"", b"", encode(hello)),
        ]
        self._heard_s = now_s
        self._pinged_s: float | None = None
        self._keep_alive_s = hello.keep_alive_s

    def on_handshake(self, message: Message) -> None:
        """CONFIRM, WELCOME or MOVED; RemoteProtocolError when it is not its turn."""
        following = TRANSITIONS.get((self.phase, message.kind))
        if following is None:
            raise RemoteProtocolError(f"A frame of kind {message.kind:#04x} came while {self.phase.value}.")
        if message.kind == KIND_CONFIRM:
            self.confirm = decode(Confirm, message.body)
        elif message.kind == KIND_WELCOME:
            self.welcome = decode(Welcome, message.body)
            self._keep_alive_s = self.welcome.keep_alive_s
            if self.welcome.resumed:
                following = Phase.WAITING
        self.phase = following

    @property
    def fragment(self) -> int:
        """The longest body of one frame this server takes."""
        return max(min(FRAGMENT_BYTES_MAX, self.confirm.frame_max - HEADER_BYTES_MAX), 512)

    def heard(self, now_s: float) -> None:
        self._heard_s = now_s
        self._pinged_s = None

    def on_tick(self, now_s: float) -> None:
        """After a silence ask; after twice that, raise ConnectionLost. A keep-alive of 0 never does."""
        silent_s = now_s - self._heard_s
        if not self._keep_alive_s or silent_s < self._keep_alive_s:
            return
        if silent_s >= 2 * self._keep_alive_s and self._pinged_s is not None:
            raise ConnectionLost(f"Nothing was heard from the server for {silent_s:.0f} s.", code="keep-alive-timeout")
        if self._pinged_s is None:
            self._pinged_s = now_s
            self.out.append(control(KIND_PING))

    @property
    def tick_s(self) -> float:
        """How often `on_tick` wants to be called."""
        return max(self._keep_alive_s / 4, 0.01) if self._keep_alive_s else 60.0

    def give_back(self, held: int, *, waiting: bool) -> None:
        """Grant the server what was consumed meanwhile."""
        grant = self.credit.give_back(held, waiting=waiting)
        if grant:
            self.out.append(control(KIND_CREDIT, number=grant))

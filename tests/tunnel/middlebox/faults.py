"""What a box in the middle can do to an exchange. Faults are switched on and off while it runs; chance has a seed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from enum import Enum, auto
from random import Random

from fairlead.tunnel.packets import HEADER_BYTES, Packet, split

ALL = frozenset({"connect", "push", "pull", "stream", ""})
SIZE_FIELD = range(4, 8)


class Act(Enum):
    DROP_REQUEST = auto()  # never passed on; the connection is closed
    DROP_ANSWER = auto()  # passed on, but the answer is thrown away and the connection closed
    REPLAY = auto()  # passed on twice; the second answer is thrown away
    DELAY = auto()  # passed on `seconds` later, so that others overtake it
    CUT = auto()  # closed when the answer takes longer than `seconds`
    CAP_REQUEST = auto()  # 413 for bodies above `size`
    CAP_ANSWER = auto()  # a 502 page in place of answers above `size`
    ERROR_PAGE = auto()  # 502 with a page for people
    CACHE = auto()  # an old answer for the same request, unless one of the two said no-store
    FLIP = auto()  # one bit of every `every`th packet
    SWALLOW = auto()  # taken in silence, never answered
    NO_KEEP_ALIVE = auto()
    BUFFER = auto()  # whole answers only
    CLOSE_IDLE = auto()  # closed after the answer although that promised keep-alive
    NO_UPGRADE = auto()  # WebSocket refused with a page
    CUT_UPGRADED = auto()  # WebSocket cut after `size` bytes in both directions together


@dataclass(eq=False)
class Fault:
    """`share` of the requests of these `kinds`, or each `every`th, at most `times` of them."""

    act: Act
    kinds: Collection[str] = ALL
    share: float = 1.0
    every: int = 0
    times: int | None = None
    seconds: float = 0.0
    size: int = 0
    matched: int = 0
    done: int = 0

    def strikes(self, kind: str, chance: Random) -> bool:
        if kind not in self.kinds or (self.times is not None and self.done >= self.times):
            return False
        self.matched += 1
        if self.every:
            hit = self.matched % self.every == 0
        else:
            hit = self.share >= 1.0 or chance.random() < self.share
        self.done += hit
        return hit


class Faults:
    """The switchboard: one thread switches, the box's thread asks."""

    def __init__(self, seed: int) -> None:
        self.chance = Random(seed)
        self.active: list[Fault] = []
        self.lock = threading.Lock()

    def add(self, act: Act, kinds: Collection[str] = ALL, **more: float | None) -> Fault:
        fault = Fault(act, kinds, **more)  # type: ignore[arg-type]
        with self.lock:
            self.active.append(fault)
        return fault

    def remove(self, *faults: Fault) -> None:
        with self.lock:
            self.active = [one for one in self.active if one not in faults]

    def clear(self) -> None:
        with self.lock:
            self.active = []

    def find(self, act: Act, kind: str) -> Fault | None:
        """The first of that kind which strikes now."""
        with self.lock:
            return next((one for one in self.active if one.act is act and one.strikes(kind, self.chance)), None)

    def has(self, act: Act, kind: str) -> bool:
        with self.lock:
            return any(one.act is act and kind in one.kinds for one in self.active)

    def flipped(self, body: bytes, kind: str) -> bytes:
        """The body with single bits flipped in the packets that were chosen."""
        with self.lock:
            flips = [one for one in self.active if one.act is Act.FLIP and kind in one.kinds]
            if not flips:
                return body
            changed, at = bytearray(body), 0
            for packet in split(body).packets:
                if any(one.strikes(kind, self.chance) for one in flips):
                    flip(changed, at, packet, self.chance)
                at += len(packet.raw)
            return bytes(changed)


def flip(body: bytearray, at: int, packet: Packet, chance: Random) -> None:
    """The size field is left alone, since it is the only delimiter (TUN-13); version 1 has no checksum at all."""
    offset = chance.choice([n for n in range(len(packet.raw)) if n not in SIZE_FIELD])
    assert packet.version == 2
    assert len(packet.raw) >= HEADER_BYTES[2]
    body[at + offset] ^= 1 << chance.randrange(8)


@dataclass
class Exchange:
    """One request and what became of it."""

    number: int
    kind: str
    method: str
    target: str
    request_headers: list[tuple[str, str]]
    request_body: bytes
    client_connection: int
    gateway_connection: int = 0
    status: int = 0
    answer_headers: list[tuple[str, str]] = field(default_factory=list)
    answer_body: bytes = b""
    began_s: float = 0.0
    ended_s: float = 0.0
    fate: str = ""
    """`passed`, or what was done to it."""

    @property
    def pushed(self) -> list[Packet]:
        return split(self.request_body).packets

    @property
    def pulled(self) -> list[Packet]:
        return split(self.answer_body).packets


class Capture:
    """All exchanges in the order they began; bodies are kept up to `bytes_max`, then only their heads."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes_kept = 0
        self.exchanges: list[Exchange] = []

    def keep(self, body: bytes) -> bytes:
        if self.bytes_kept + len(body) > self.bytes_max:
            return b""
        self.bytes_kept += len(body)
        return body

    def of(self, *kinds: str, where: Callable[[Exchange], bool] = lambda _: True) -> list[Exchange]:
        return [one for one in list(self.exchanges) if (not kinds or one.kind in kinds) and where(one)]

    def packets(self, direction: str) -> list[Packet]:
        """`up`: all that was pushed; `down`: all that was pulled; damaged ones are not among them."""
        if direction == "up":
            return [packet for one in self.of("connect", "push") for packet in one.pushed]
        return [packet for one in self.of("connect", "pull") for packet in one.pulled]

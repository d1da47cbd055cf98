"""The books of a run: what was sent and confirmed, what came, what was acknowledged; and what must never be seen.

Every message carries its source (a producer) and its number there. The books are kept by the harness, which is never
killed, so whatever a client was told counts: a confirm, an acknowledgement that was confirmed, a commit.
"""

from __future__ import annotations

import hashlib
import struct
from array import array
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

STAMP: Final = struct.Struct("<4sIIQQQ")  # check, source, number, sent ms, not before ms, not after ms
LATE_MS: Final = 1000  # a message may sit in the client's hands for a moment
EARLY_MS: Final = 2
FAULTS_MAX: Final = 50

# State of a send.
UNSENT, PENDING, CONFIRMED, FAILED = range(4)
# State of a message as one reader knows it.
UNSEEN, SEEN, ASKED, SAFE = range(4)


def write_body(source: int, number: int, sent_ms: int, *, due_ms: int = 0, expires_ms: int = 0, fill: int = 0) -> bytes:
    rest = STAMP.pack(b"", source, number, sent_ms, due_ms, expires_ms)[4:] + bytes([number & 255]) * fill
    return hashlib.blake2s(rest, digest_size=4).digest() + rest


@dataclass(frozen=True, slots=True)
class Stamp:
    source: int
    number: int
    sent_ms: int
    due_ms: int
    expires_ms: int


def read_body(body: bytes) -> Stamp | None:
    """What was written; None if it is not what was written."""
    if len(body) < STAMP.size or hashlib.blake2s(body[4:], digest_size=4).digest() != body[:4]:
        return None
    return Stamp(*STAMP.unpack_from(body)[1:])


@dataclass
class Faults:
    """Everything that must not happen and did."""

    found: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def add(self, what: str, detail: str) -> None:
        self.counts[what] += 1
        if len(self.found) < FAULTS_MAX:
            self.found.append(f"{what}: {detail}")

    def __bool__(self) -> bool:
        return bool(self.counts)


class Ledger:
    """One destination: the sends of its sources, and a `Reading` for each of its readers (a queue has one)."""

    def __init__(self, name: str, faults: Faults) -> None:
        self.name = name
        self.faults = faults
        self.readings: dict[str, Reading] = {}
        self._sends: dict[int, bytearray] = {}
        self._orders: dict[int, int] = {}  # source -> order number of its last confirmed send

    def reading(self, reader: str = "") -> Reading:
        return self.readings.setdefault(reader, Reading(self, reader))

    def send(self, source: int) -> int:
        """A new send begins: its number."""
        sends = self._sends.setdefault(source, bytearray())
        sends.append(PENDING)
        return len(sends) - 1

    def confirmed(self, source: int, number: int, order: int | None) -> None:
        """`order` is not known of a send that turned out to be stored when the session was resumed."""
        self._sends[source][number] = CONFIRMED
        if order is None:
            return
        before = self._orders.get(source, -1)
        if order <= before:
            self.faults.add("receipts out of order", f"{self.name} source {source}: {order} after {before}")
        self._orders[source] = order

    def failed(self, source: int, number: int) -> None:
        """The client was told that it did not come about: it may have, or not."""
        self._sends[source][number] = FAILED

    def state(self, source: int, number: int) -> int:
        sends = self._sends.get(source, b"")
        return sends[number] if number < len(sends) else UNSENT

    def count(self, state: int) -> int:
        return sum(sends.count(state) for sends in self._sends.values())

    def confirmed_sends(self) -> Iterator[tuple[int, int]]:
        for source, sends in self._sends.items():
            for number, state in enumerate(sends):
                if state == CONFIRMED:
                    yield source, number


class Reading:
    """What one queue, or one subscription, gave out. Several consumers may share it."""

    def __init__(self, ledger: Ledger, reader: str, *, wants: int = 1) -> None:
        self.ledger = ledger
        self.reader = reader
        self.wants = wants  # every so manieth number of a source: what its selector lets through
        self.optional: set[tuple[int, int]] = set()  # may be missing: had a short life
        self.redelivered = 0
        self._states: dict[int, bytearray] = {}
        self._orders: dict[int, array[int]] = {}
        self._firsts: dict[int, array[int]] = {}  # when it was first seen, twice that in ms; odd: it was marked
        self._last: dict[tuple[str, int], int] = {}  # (consumer or key, source) -> last number seen for the first time

    def __repr__(self) -> str:
        return f"{self.ledger.name}{f' as {self.reader}' if self.reader else ''}"

    def came(
        self, body: bytes, *, order: int, redelivered: bool, lane: str, now_ms: int, arrival_ms: int = 0
    ) -> Stamp | None:
        """A message reached the application. `lane`: within it, first deliveries of a source are in order.

        Its life counts from its arrival at the server, which may be long after it was sent.
        """
        faults, stamp = self.ledger.faults, read_body(body)
        if stamp is None:
            faults.add("changed on the way", f"{self!r} order {order}: {body[:40]!r}")
            return None
        source, number = stamp.source, stamp.number
        where = f"{self!r} source {source} number {number} order {order}"
        if self.ledger.state(source, number) == UNSENT:
            faults.add("never sent", where)
            return None
        if stamp.due_ms and now_ms < stamp.due_ms - EARLY_MS:
            faults.add("too early", f"{where}: by {stamp.due_ms - now_ms} ms")
        expires_ms = stamp.expires_ms and max(stamp.expires_ms, stamp.expires_ms - stamp.sent_ms + arrival_ms)
        if expires_ms and now_ms > expires_ms + LATE_MS:
            faults.add("expired", f"{where}: {now_ms - expires_ms} ms ago")
        states, orders = self._room(source, number)
        match states[number]:
            case state if state != UNSEEN and orders[number] != order:
                faults.add("stored twice", f"{where}, and as {orders[number]}")
            case state if state == SAFE:
                faults.add("came back after its acknowledgement", f"{where}, {self._before(source, number, now_ms)}")
            case state if state != UNSEEN and not redelivered and self._firsts[source][number] % 2:
                # Another consumer had the repeat before this one, whose line is being lost, came to the first delivery.
                self._firsts[source][number] -= 1
            case state if state != UNSEEN and not redelivered:
                faults.add("delivered again without the mark", f"{where}, {self._before(source, number, now_ms)}")
        if states[number] == UNSEEN:
            states[number], orders[number] = SEEN, order
            self._firsts[source][number] = 2 * now_ms + redelivered
        self.redelivered += redelivered
        if not redelivered:
            if self._last.get((lane, source), -1) >= number:
                faults.add("out of order", f"{where} after {self._last[lane, source]} in {lane}")
            self._last[lane, source] = number
        return stamp

    def _before(self, source: int, number: int, now_ms: int) -> str:
        first = self._firsts[source][number]
        return f"first seen {now_ms - first // 2} ms ago{' as a repeat' if first % 2 else ''}"

    def asked(self, stamp: Stamp) -> None:
        """An acknowledgement was handed over, and nobody waited for it: it may come again."""
        states, _ = self._room(stamp.source, stamp.number)
        states[stamp.number] = max(states[stamp.number], ASKED)

    def safe(self, stamp: Stamp) -> None:
        """An acknowledgement was confirmed: it never comes again."""
        self._room(stamp.source, stamp.number)[0][stamp.number] = SAFE

    def missing(self) -> list[tuple[int, int]]:
        """Confirmed, wanted, and not seen yet."""
        return [
            (source, number)
            for source, number in self.ledger.confirmed_sends()
            if number % self.wants == 0
            and (source, number) not in self.optional
            and self._room(source, number)[0][number] == UNSEEN
        ]

    def has_seen(self, stamp: Stamp) -> bool:
        return self._room(stamp.source, stamp.number)[0][stamp.number] != UNSEEN

    def is_done(self, source: int, number: int) -> bool:
        """Was it acknowledged?"""
        return self._room(source, number)[0][number] in (ASKED, SAFE)

    def is_safe(self, stamp: Stamp) -> bool:
        return self._room(stamp.source, stamp.number)[0][stamp.number] == SAFE

    def seen(self) -> int:
        return sum(len(states) - states.count(UNSEEN) for states in self._states.values())

    def _room(self, source: int, number: int) -> tuple[bytearray, array[int]]:
        states = self._states.setdefault(source, bytearray())
        orders = self._orders.setdefault(source, array("Q"))
        firsts = self._firsts.setdefault(source, array("Q"))
        if number >= len(states):
            more = number + 1 - len(states)
            states.extend(bytes(more))
            orders.extend([0] * more)
            firsts.extend([0] * more)
        return states, orders


class Bank:
    """Coins that move between queues in transactions: there are always as many, each in one place only."""

    OPEN, COMMITTING, COMMITTED, ROLLED_BACK, UNKNOWN = range(5)

    def __init__(self, coins: int, faults: Faults) -> None:
        self.coins = coins
        self.faults = faults
        self.transactions = bytearray()  # state of each, by the number its messages carry
        self.hops = [0] * coins  # moves known to be committed
        self.maybe = [0] * coins  # moves of which nobody knows
        self.history: list[deque[str]] = [deque(maxlen=6) for _ in range(coins)]  # the last moves of each, in words

    def begin(self) -> int:
        self.transactions.append(self.OPEN)
        return len(self.transactions) - 1

    def set(self, transaction: int, state: int) -> None:
        self.transactions[transaction] = state

    def word(self, transaction: int) -> str:
        return ("open", "committing", "committed", "rolled back", "unknown")[self.transactions[transaction]]

    def saw(self, transaction: int, where: str) -> None:
        """A message sent in this transaction is visible; 0 is how the coins came in."""
        state = self.transactions[transaction]
        if state == self.OPEN:
            self.faults.add("visible before its commit", f"{where}: transaction {transaction}")
        elif state == self.ROLLED_BACK:
            self.faults.add("visible though rolled back", f"{where}: transaction {transaction}")

    def balance(self, found: dict[int, list[tuple[str, int]]]) -> None:
        """`found`: coin -> (queue, hops) of each place it was seen in, when nothing moves."""
        for coin in range(self.coins):
            places = found.get(coin, [])
            if len(places) != 1:
                said = "; ".join(self.history[coin])
                self.faults.add("coin lost" if not places else "coin doubled", f"coin {coin}: {places}, {said}")
                continue
            hops = places[0][1]
            if not self.hops[coin] <= hops <= self.hops[coin] + self.maybe[coin]:
                self.faults.add(
                    "transaction torn",
                    f"coin {coin} moved {hops} times, {self.hops[coin]}+{self.maybe[coin]} known; "
                    + "; ".join(self.history[coin]),
                )

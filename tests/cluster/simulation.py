"""A destination under random work and crashes, with books that know what must and what may be there afterwards.

The books hold four promises: what was confirmed is there until it is settled; what was settled and confirmed never
comes again; nothing is there twice; what comes again says so. Order per producer and one holder per key are watched on
the way.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from fairlead.cluster.parties import Consumer, Producer, Session
from fairlead.wire.durable import STORED_AGAIN, STORED_NEW
from fairlead.wire.entry_codec import Delivered

from .rig import Rig, text

PRODUCERS = 2


class Simulation:
    """`seed` decides everything; each step is one method."""

    def __init__(self, kind: str, seed: int = 0) -> None:
        self.rng = Random(seed)
        self.kind = kind
        self.rig = Rig()
        self.rig.make("_DMQ")
        target = self.rig.make("d", "topic" if kind == "topic" else "queue", delivery_limit=0)
        self.cursor = 0
        if kind == "topic":
            self.cursor, _ = target.subscribe(name="s", client="c", selector="", shared=True, start="new")
            self.rig.run()
        self.sessions = [self.rig.session() for _ in range(PRODUCERS)]
        self.producers = [self.rig.producer(target, session) for session in self.sessions]
        self.unconfirmed: list[list[tuple[int, int, bytes]]] = [[] for _ in range(PRODUCERS)]  # send, number, entry
        self.numbers = [0] * PRODUCERS
        self.sends = [0] * PRODUCERS
        self.confirmed: set[int] = set()
        self.acknowledging: dict[int, set[int]] = {}  # tag -> numbers
        self.maybe_gone: set[int] = set()  # an acknowledgement was sent
        self.gone: set[int] = set()  # … and confirmed
        self.counts: dict[int, int] = {}  # returns that were confirmed
        self.returning: dict[int, list[int]] = {}
        self.seen: set[int] = set()  # by an application
        self.ever: set[int] = set()  # delivered to anybody
        self.consumers: list[Consumer] = []
        self.held: dict[int, dict[int, Delivered]] = {}  # consumer -> order -> message
        self.tag = 0
        self.transactions: dict[int, tuple[list[int], list[int]]] = {}  # number -> sent, taken
        self.transaction = 0
        self.owners: dict[int, Session] = {}
        self.checkpoint: tuple[int, dict[str, Any]] | None = None
        self.crashes = 0

    @property
    def target(self) -> Any:
        return self.rig.destinations["d"]

    STEPS = (
        "send", "send", "attach", "receive", "receive", "acknowledge", "acknowledge", "give_back", "release", "lose",
        "turn", "sync", "flush", "settle_in_transaction", "commit", "roll_back", "time", "snapshot", "crash", "repeat",
    )  # fmt: skip

    def run(self, steps: int) -> None:
        for _ in range(steps):
            getattr(self, self.rng.choice(self.STEPS))()
        self.finish()

    # ------------------------------------------------------------------ producers

    def send(self) -> None:
        who = self.rng.randrange(PRODUCERS)
        entries = []
        for _ in range(self.rng.randrange(1, 6)):
            number = who * 1_000_000 + self.numbers[who]
            self.numbers[who] += 1
            self.sends[who] += 1
            key = self.rng.choice((b"", b"", b"a", b"b")) if self.kind == "keys" else b""
            priority = self.rng.choice((4, 4, 6)) if self.kind == "priorities" else 4
            entry = text(number, key=key, priority=priority)
            entries.append((self.sends[who], number, entry))
        self.unconfirmed[who] += entries
        self._store(who, entries)

    def repeat(self) -> None:
        """A client that heard nothing sends everything again."""
        who = self.rng.randrange(PRODUCERS)
        if self.unconfirmed[who]:
            self._store(who, self.unconfirmed[who])

    def _store(self, who: int, entries: list[tuple[int, int, bytes]]) -> None:
        whole = b"".join(entry for _, _, entry in entries)
        first = entries[0][0]
        self.target.on_store(self.producers[who], first, 0, self.rig.now_ms, first, memoryview(whole), 0)
        self._listen()

    # ------------------------------------------------------------------ consumers

    def attach(self) -> None:
        if len(self.consumers) < 3:
            consumer = self.rig.consumer(self.target, self.rng.randrange(1, 8), cursor=self.cursor)
            self.consumers.append(consumer)
            self.held[consumer.handle] = {}

    def _somebody(self) -> Consumer | None:
        return self.rng.choice(self.consumers) if self.consumers else None

    def receive(self) -> None:
        consumer = self._somebody()
        if consumer is not None:
            self.target.on_want(consumer, self.rng.randrange(1, 5), 0)
            self.turn()

    def _mine(self, consumer: Consumer) -> list[Delivered]:
        """Some of what it holds: the lowest, as the library would have it."""
        held = self.held[consumer.handle]
        orders = sorted(held)[: self.rng.randrange(1, 4)]
        return [held.pop(order) for order in orders]

    def acknowledge(self) -> None:
        consumer = self._somebody()
        if consumer is not None and (messages := self._mine(consumer)):
            self.tag += 1
            numbers = {int(message.body) for message in messages}
            self.acknowledging[self.tag] = numbers
            self.maybe_gone |= numbers
            self.rig.ack(consumer, messages, tag=self.tag, run=False)
            self._listen()

    def give_back(self) -> None:
        consumer = self._somebody()
        if consumer is not None and (messages := self._mine(consumer)):
            same = self._later_of_their_keys(consumer, messages)
            self._release(consumer, same)
            self.tag += 1
            self.returning[self.tag] = [int(message.body) for message in messages]
            self.rig.retry(consumer, messages, tag=self.tag, delay=self.rng.choice((0, 0, 500)), run=False)
            self._listen()

    def release(self) -> None:
        consumer = self._somebody()
        if consumer is not None and (messages := self._mine(consumer)):
            messages += self._later_of_their_keys(consumer, messages)
            self._release(consumer, messages)

    def _release(self, consumer: Consumer, messages: list[Delivered]) -> None:
        """The application never saw these: they need not say that they come again."""
        self.seen -= {int(message.body) for message in messages}
        self.rig.release(consumer, messages, run=False)

    def _later_of_their_keys(self, consumer: Consumer, messages: list[Delivered]) -> list[Delivered]:
        keys = {message.key for message in messages if message.key}
        held = self.held[consumer.handle]
        return [held.pop(order) for order in sorted(held) if held[order].key in keys]

    def lose(self) -> None:
        consumer = self._somebody()
        if consumer is not None:
            self._listen()
            self.consumers.remove(consumer)
            del self.held[consumer.handle]
            for number in [n for n, (_, taken) in self.transactions.items() if n and taken]:
                if self.rng.random() < 0.5:
                    self._abort(number)
            self.target.lost(consumer)

    # ------------------------------------------------------------------ transactions

    def settle_in_transaction(self) -> None:
        consumer = self._somebody()
        if consumer is None or not (messages := self._mine(consumer)):
            return
        self.transaction += 1
        session = consumer.session
        self.rig.ack(consumer, messages, transaction=self.transaction, run=False)
        self.transactions[self.transaction] = ([], [int(message.body) for message in messages])
        self.owners[self.transaction] = session

    def _session_of(self, number: int) -> Session:
        return self.owners[number]

    def commit(self) -> None:
        if self.transactions:
            number = self.rng.choice(sorted(self.transactions))
            _, taken = self.transactions.pop(number)
            assert self.rig.commit(self._session_of(number), number, self.target, run=False) is None
            self.maybe_gone |= set(taken)
            index = len(self.rig.log)
            self.rig.after(index, lambda: self.gone.update(taken))

    def roll_back(self) -> None:
        if self.transactions:
            self._abort(self.rng.choice(sorted(self.transactions)))

    def _abort(self, number: int) -> None:
        del self.transactions[number]
        self.target.abort(self._session_of(number), number)

    # ------------------------------------------------------------------ the world

    def turn(self) -> None:
        self.rig.turn()
        self._listen()

    def flush(self) -> None:
        self.rig.flush()
        self._listen()

    def sync(self) -> None:
        """Some of what is written becomes safe."""
        self.rig.sync(self.rng.randint(self.rig.safe, len(self.rig.log)))
        self._listen()

    def time(self) -> None:
        self.rig.now_ms += self.rng.randrange(1000)
        self.target.on_tick(self.rig.now_ms)

    def snapshot(self) -> None:
        self.checkpoint = self.rig.snapshots()

    def crash(self) -> None:
        """Everything that was not safe is forgotten; clients come back and repeat what was not confirmed."""
        self._listen()
        self.crashes += 1
        use = self.checkpoint if self.rng.random() < 0.7 else None
        if self.checkpoint is not None and self.checkpoint[0] > self.rig.safe:
            use = self.checkpoint = None  # it was never finished
        self.rig = self.rig.crash(use)
        self.consumers, self.held, self.transactions = [], {}, {}
        self.acknowledging, self.returning = {}, {}
        self.sessions = [self.rig.session(session.id) for session in self.sessions]
        self.producers = [self.rig.producer(self.target, session) for session in self.sessions]
        for who in range(PRODUCERS):
            if self.unconfirmed[who]:
                self._store(who, self.unconfirmed[who])

    def _listen(self) -> None:
        """What clients were told since."""
        rig = self.rig
        for handle, first, count, status, _ in rig.receipts:
            assert status in (STORED_NEW, STORED_AGAIN)
            who = next((at for at, one in enumerate(self.producers) if one.handle == handle), None)
            if who is not None:
                told = [one for one in self.unconfirmed[who] if first <= one[0] < first + count]
                self.confirmed |= {number for _, number, _ in told}
                self.unconfirmed[who] = [one for one in self.unconfirmed[who] if one not in told]
        rig.receipts.clear()
        for _, tag, stale in rig.answers:
            assert not stale
            self.gone |= self.acknowledging.pop(tag, set())
            for number in self.returning.pop(tag, []):
                self.counts[number] = self.counts.get(number, 0) + 1
        rig.answers.clear()
        for consumer in self.consumers:
            for message in rig.take(consumer):
                self._delivered(consumer, message)

    def _delivered(self, consumer: Consumer, message: Delivered) -> None:
        number = int(message.body)
        assert number not in self.gone, f"{number} was settled and comes again"
        holders = [handle for handle, held in self.held.items() if message.order in held]
        assert not holders, f"{number} is with {holders} already"
        assert message.redelivered or number not in self.seen, f"{number} comes again and does not say so"
        least = self.counts.get(number, 0) + 1
        assert message.delivery_count >= least, f"{number} came {least} times, says {message.delivery_count}"
        if message.key:
            for handle, held in self.held.items():
                assert handle == consumer.handle or all(one.key != message.key for one in held.values()), "two holders"
        if number not in self.ever and self.kind in ("queue", "topic"):
            before = [int(one.body) for one in self.held[consumer.handle].values() if one.delivery_count == 1]
            mine = [one for one in before if one // 1_000_000 == number // 1_000_000]
            assert not mine or max(mine) < number, "a producer's order is lost"
        self.seen.add(number)
        self.ever.add(number)
        self.held[consumer.handle][message.order] = message

    def finish(self) -> None:
        """Everything settles down; then the books have to agree with what is there."""
        if self.rng.random() < 0.5:
            self.crash()
        for number in list(self.transactions):
            self._abort(number)
        self._listen()
        for who in range(PRODUCERS):
            if self.unconfirmed[who]:
                self._store(who, self.unconfirmed[who])
        for consumer in self.consumers:
            self.target.lost(consumer)
        self.consumers, self.held = [], {}
        self.rig.run()
        self._listen()
        assert not any(self.unconfirmed), "a send is never confirmed"
        last = self.rig.consumer(self.target, 100_000, cursor=self.cursor)
        self.consumers, self.held = [last], {last.handle: {}}
        self.rig.wait(2000)
        self._listen()
        there = [int(message.body) for message in self.held[last.handle].values()]
        assert len(there) == len(set(there)), "something is there twice"
        assert set(there) >= self.confirmed - self.maybe_gone, f"lost: {self.confirmed - self.maybe_gone - set(there)}"
        assert not set(there) & self.gone
        assert set(there) <= self.confirmed
        self.rig.ack(last, list(self.held[last.handle].values()))
        facts = self.target.facts()
        assert (facts["depth"], facts["bytes"], facts["locked"], facts["ready"]) == (0, 0, 0, 0), facts


def caught(kind: str, seeds: range, steps: int, plant: Callable[[Simulation], None] | None = None) -> int | None:
    """The first seed with which the books do not agree."""
    for seed in seeds:
        simulation = Simulation(kind, seed)
        if plant is not None:
            plant(simulation)
        try:
            simulation.run(steps)
        except AssertionError:
            return seed
    return None


__all__ = ["Producer", "Simulation", "caught"]

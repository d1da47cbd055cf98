"""Consumers and cursors of a queue under random work and crashes, against books that know who has what."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from fairlead.cluster import gathering, reserving
from fairlead.cluster.destination import Destination
from fairlead.cluster.parties import Consumer, Line
from fairlead.cluster.reservations import Reservation
from fairlead.errors import FairleadError
from fairlead.wire.entry_codec import Delivered

from .rig import Rig, texts


def orders(spans: list[tuple[int, int]]) -> list[int]:
    return [order for low, high in spans for order in range(low, high)]


class Books(RuleBasedStateMachine):
    """Consumers, cursors, time and crashes in any order: nothing is lost, or with two at a time, and positions stay."""

    def __init__(self) -> None:
        super().__init__()
        self.rig = Rig()
        self.rig.make("_DMQ")
        self.rig.make("q", delivery_limit=0)
        self.number = 0
        self.consumers: dict[int, Consumer] = {}
        self.held: dict[int, dict[int, Delivered]] = {}
        self.entries: dict[int, tuple[bytes, int]] = {}  # order -> key, priority
        self.safe_sends = 0  # messages before this order number are confirmed
        self.maybe_gone: set[int] = set()
        self.gone: set[int] = set()
        self.places: dict[str, dict[int, int]] = {}  # cursor -> position -> order, as readers were told
        self.told: dict[str, tuple[int, int]] = {}  # cursor -> at, reserved, as its reader was told
        self.checkpoint: tuple[int, Any] | None = None
        self.producer = self.rig.producer(self.home)

    @property
    def home(self) -> Destination:
        return self.rig.destinations["q"]

    # producers

    @rule(count=st.integers(1, 5), key=st.sampled_from((b"", b"", b"a", b"b")), priority=st.sampled_from((4, 4, 4, 6)))
    def send(self, count: int, key: bytes, priority: int) -> None:
        first = self.home.next
        self.rig.send(self.producer, texts(range(count), key=key, priority=priority), run=False)
        self.entries.update(dict.fromkeys(range(first, first + count), (key, priority)))

        def confirmed() -> None:
            self.safe_sends = max(self.safe_sends, first + count)

        self.rig.after(len(self.rig.log), confirmed)

    # consumers

    @precondition(lambda self: len(self.consumers) < 3)
    @rule(messages=st.integers(1, 6))
    def attach(self, messages: int) -> None:
        consumer = self.rig.consumer(self.home, messages)
        self.consumers[consumer.handle], self.held[consumer.handle] = consumer, {}

    @precondition(lambda self: self.consumers)
    @rule(data=st.data(), messages=st.integers(1, 4))
    def want(self, data: st.DataObject, messages: int) -> None:
        self.home.on_want(self._one(data), messages, 0)

    @precondition(lambda self: any(self.held.values()))
    @rule(data=st.data(), count=st.integers(1, 3), what=st.sampled_from(("ack", "ack", "retry", "later", "release")))
    def settle(self, data: st.DataObject, count: int, what: str) -> None:
        consumer = self._one(data)
        held = self.held[consumer.handle]
        messages = [held.pop(order) for order in sorted(held)[:count]]
        if what == "ack":
            numbers = {message.order for message in messages}
            self.maybe_gone |= numbers
            self.rig.ack(consumer, messages, run=False)
            self.rig.after(len(self.rig.log), lambda: self.gone.update(numbers))
            return
        keys = {message.key for message in messages if message.key}
        later = [held.pop(order) for order in sorted(held) if held[order].key in keys]
        if what == "release":
            self.rig.release(consumer, messages + later, run=False)
        else:
            self.rig.release(consumer, later, run=False)
            self.rig.retry(consumer, messages, delay=500 if what == "later" else 0, run=False)

    @precondition(lambda self: self.consumers)
    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        consumer = self._one(data)
        del self.consumers[consumer.handle], self.held[consumer.handle]
        self.home.lost(consumer)

    def _one(self, data: st.DataObject) -> Consumer:
        return self.consumers[data.draw(st.sampled_from(sorted(self.consumers)))]

    # readers

    @rule(name=st.sampled_from("xy"), messages=st.integers(0, 6), back=st.integers(0, 3))
    def reserve(self, name: str, messages: int, back: int) -> None:
        """Asks from some way back, and is told when it is safe."""
        one = reserving.make(self.home, name)
        start = max(one.at, one.reserved - back)

        def done(end: int | FairleadError) -> None:
            assert isinstance(end, int)
            found = dict(enumerate(orders(one.spans(start, end)), start))
            self.rig.after(one.index, lambda: self._was_told(name, one, found, end))

        gathering.ask(self.home, gathering.Asked(Line(0, 0, 0), one, start, messages, 0, done))
        self.turn()

    def _was_told(self, name: str, one: Reservation, found: dict[int, int], end: int) -> None:
        if self.home.ledger is None or self.home.ledger.by_name.get(name) is not one:
            return  # released meanwhile
        known = self.places.setdefault(name, {})
        for position, order in found.items():
            assert known.setdefault(position, order) == order, "a position names another message"
        at, reserved = self.told.get(name, (one.at, one.at))
        self.told[name] = (at, max(reserved, end))

    @precondition(lambda self: self.told)
    @rule(data=st.data(), share=st.integers(0, 4))
    def commit(self, data: st.DataObject, share: int) -> None:
        name = data.draw(st.sampled_from(sorted(self.told)))
        at, reserved = self.told[name]
        end = at + (reserved - at) * share // 4
        one = reserving.find(self.home, name)
        numbers = {self.places[name][position] for position in range(one.at, end)}
        self.maybe_gone |= numbers
        reserving.commit(self.home, one, end)

        def told() -> None:
            self.gone.update(numbers)
            if name in self.told:
                self.told[name] = (max(end, self.told[name][0]), self.told[name][1])

        self.rig.after(one.index, told)

    @precondition(lambda self: self.told)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.told)))
        reserving.release(self.home, reserving.find(self.home, name))
        self.rig.run()
        self._forget(name)

    def _forget(self, name: str) -> None:
        del self.told[name], self.places[name]

    # the world

    @rule()
    def turn(self) -> None:
        self.rig.turn()

    @rule()
    def flush(self) -> None:
        self.rig.flush()

    @rule(data=st.data())
    def sync(self, data: st.DataObject) -> None:
        self.rig.sync(data.draw(st.integers(self.rig.safe, len(self.rig.log))))

    @rule(ms=st.integers(1, 1000))
    def time(self, ms: int) -> None:
        self.rig.now_ms += ms
        self.home.on_tick(self.rig.now_ms)

    @rule()
    def snapshot(self) -> None:
        self.checkpoint = self.rig.snapshots()

    @rule()
    def compact(self) -> None:
        self.home.compact(self.home.first, self.home.visible)

    @rule(use=st.booleans())
    def crash(self, use: bool) -> None:
        self._listen()
        if self.checkpoint is not None and self.checkpoint[0] > self.rig.safe:
            self.checkpoint = None
        self.rig = self.rig.crash(self.checkpoint if use else None)
        self.consumers, self.held = {}, {}
        self.producer = self.rig.producer(self.home)
        self.entries = {order: facts for order, facts in self.entries.items() if order < self.home.next}
        for name, (at, reserved) in list(self.told.items()):
            one = reserving.find(self.home, name)
            assert one.at >= at
            assert one.reserved >= reserved
            self.told[name] = (one.at, reserved)
        names = list(self.home.ledger.by_name) if self.home.ledger is not None else []
        for name in names:
            one = reserving.find(self.home, name)
            known = self.places.setdefault(name, {})
            for position, order in enumerate(orders(one.spans(one.at, one.reserved)), one.at):
                assert known.setdefault(position, order) == order, "a position names another message after the crash"
            self.told[name] = (one.at, one.reserved)

    # what must be so

    @invariant()
    def nobody_has_what_another_has(self) -> None:
        self._listen()
        cursor = self.home.cursors[0]
        ready = {order for ranges in cursor.ready.values() for low, high in ranges for order in range(low, high)}
        holders: dict[int, object] = {}
        keys: dict[bytes, object] = {}
        ledger = self.home.ledger
        everybody: list[tuple[object, list[int]]] = [(share, orders(list(share.locked))) for share in cursor.shares]
        for one in ledger.by_name.values() if ledger is not None else ():
            mine = orders(one.spans(one.at, one.reserved))
            assert sorted(mine) == orders(list(one.share.locked))
            everybody.append((one, mine))
            for key, priority in set(map(self.entries.__getitem__, mine)):
                same = [order for order in mine if self.entries[order] == (key, priority)]
                assert not key or same == sorted(same), "the order of a key is lost"
        for who, held in everybody:
            for order in held:
                assert order not in ready, f"{order} is with {who} and ready"
                assert holders.setdefault(order, who) is who, f"{order} is with two"
                assert not cursor.is_settled(order)
                key, _ = self.entries[order]
                if key:
                    assert keys.setdefault(key, who) is who, f"key {key!r} is with two"

    def _listen(self) -> None:
        for handle, consumer in self.consumers.items():
            for message in self.rig.take(consumer):
                assert message.order not in self.gone, f"{message.order} was settled and comes again"
                assert all(message.order not in known for known in self.held.values())
                self.held[handle][message.order] = message

    def teardown(self) -> None:
        """Everybody goes; what is left has to be there, once."""
        self.rig.run()
        self._listen()
        for consumer in self.consumers.values():
            self.home.lost(consumer)
        self.consumers, self.held = {}, {}
        for name in list(self.home.ledger.by_name) if self.home.ledger is not None else ():
            reserving.release(self.home, reserving.find(self.home, name))
        self.rig.wait(2000)
        last = self.rig.consumer(self.home, 100_000)
        self.rig.run()
        there = [message.order for message in self.rig.take(last)]
        assert len(there) == len(set(there))
        assert set(there) >= set(range(1, self.safe_sends)) - self.maybe_gone, "something is lost"
        assert not set(there) & self.gone
        self.rig.settle(last, there)
        facts = self.home.facts()
        assert (facts["depth"], facts["bytes"], facts["locked"], facts["ready"]) == (0, 0, 0, 0), facts


TestBooks = Books.TestCase
TestBooks.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)

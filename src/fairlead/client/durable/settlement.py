"""What becomes of delivered messages: gathered, said in ranges, kept until the server has said it is safe.

Settlements that were not answered when a line was lost are said again on the next one. What comes back as stale was not
this consumer's any more: whoever asked for an answer is told, the others are counted (CLU-126).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple, Protocol

from fairlead.errors import Stale
from fairlead.wire.codec import encode_frame
from fairlead.wire.durable import ACKNOWLEDGE, FLAG_PATIENT, KIND_SETTLE, RANGE, SETTLE_ITEM

if TYPE_CHECKING:
    from fairlead.client.durable.consumer import DurableConsumer

__all__ = ["Settlements", "Told", "ranges"]

ITEMS_MAX = 32_768
"""Of one SETTLE frame: 24 bytes each."""


class Told(Protocol):
    """Whoever waits until a settlement is safe."""

    def done(self) -> bool: ...

    def set_result(self, result: None, /) -> object: ...

    def set_exception(self, exception: Exception, /) -> object: ...


class Item(NamedTuple):
    """Part of a SETTLE."""

    first: int
    beyond: int
    action: int = ACKNOWLEDGE
    delay_ms: int = 0


class Said(NamedTuple):
    """A SETTLE that waits for its answer."""

    items: list[Item]
    told: list[tuple[int, Told]]


def ranges(orders: Iterable[int]) -> list[Item]:
    """Acknowledgements of these messages, neighbours together."""
    items: list[Item] = []
    first = beyond = -1
    for order in orders:
        if order == beyond:
            beyond += 1
            continue
        if first >= 0:
            items.append(Item(first, beyond))
        first, beyond = order, order + 1
    if first >= 0:
        items.append(Item(first, beyond))
    return items


def _last_words(items: list[Item], superseded: set[int]) -> list[Item]:
    """Without what was said of messages that have come again since, and were settled again or are in use."""
    if all(item.action == ACKNOWLEDGE for item in items):
        return items
    kept: list[Item] = []
    for item in reversed(items):
        orders = [order for order in range(item.first, item.beyond) if order not in superseded]
        superseded.update(orders)
        kept += reversed([part._replace(action=item.action, delay_ms=item.delay_ms) for part in ranges(orders)])
    kept.reverse()
    return kept


class Settlements:
    """Of one way to one destination: a handle of a consumer. In dups-ok mode nothing is answered."""

    def __init__(self, consumer: DurableConsumer, *, answered: bool) -> None:
        self._consumer = consumer
        self._answered = answered
        self.handle = 0
        self.acknowledged: list[int] = []
        self._items: list[Item] = []
        self._told: list[tuple[int, Told]] = []
        self._said: dict[int, Said] = {}
        self._tag = 0
        self.stale = 0

    @property
    def is_idle(self) -> bool:
        return not (self.acknowledged or self._items or self._said)

    def unsaid(self) -> list[int]:
        """Messages about which something is still to be said."""
        return [*self.acknowledged, *(order for item in self._items for order in range(item.first, item.beyond))]

    def settle(self, first: int, beyond: int, action: int, delay_ms: int = 0) -> None:
        """Anything but a single acknowledgement, in the order it is said."""
        self._items.append(Item(first, beyond, action, delay_ms))
        self._consumer.touch()

    def ask(self, order: int, told: Told) -> None:
        """Tell when the settlement of this message, which was or will be said in this turn, is safe."""
        self._told.append((order, told))
        self._consumer.touch()

    def flush(self) -> None:
        if not self.handle:
            return
        items = self._gather()
        if not items and not self._told:
            return
        told, self._told = self._told, []
        for at in range(0, max(len(items), 1), ITEMS_MAX):
            part = items[at : at + ITEMS_MAX]
            self._say(part, told if at + ITEMS_MAX >= len(items) else [], 0)

    def in_transaction(self, transaction: int, items: list[Item]) -> None:
        """These belong to a transaction: its commit or rollback settles them."""
        if self.handle:
            for at in range(0, len(items), ITEMS_MAX):
                self._frame(items[at : at + ITEMS_MAX], transaction, 0, 0)

    def on_settled(self, tag: int, body: bytes) -> None:
        said = self._said.pop(tag, None)
        if said is None:
            return
        stale = list(RANGE.iter_unpack(body)) if body else []
        waiting = len(said.told)
        for order, told in said.told:
            if told.done():
                continue
            if any(first <= order < beyond for first, beyond in stale):
                waiting -= 1
                self._consumer.comes_back(order)
                told.set_exception(Stale(f"Message {order} is no longer this consumer's; it may come again."))
            else:
                told.set_result(None)
        if stale:
            self.stale += sum(beyond - first for first, beyond in stale)
            self._consumer.part.road.stale += max(0, len(stale) - (len(said.told) - waiting))
        self._consumer.part.road.changed()

    def on_lost(self, held: Iterable[int]) -> set[int]:
        """Take back what was not answered; the orders of what was acknowledged, for when they come again.

        `held`: what the application has. If it gave that back before, the server knew, or it had not come again.
        """
        self.handle = 0
        unanswered, self._said = self._said, {}
        items: list[Item] = []
        told: list[tuple[int, Told]] = []
        for said in unanswered.values():
            items += said.items
            told += said.told
        self._items = _last_words(items + self._items, {*held, *self.acknowledged})
        self._told = told + self._told
        orders = set(self.acknowledged)
        for item in self._items:
            if item.action == ACKNOWLEDGE:
                orders.update(range(item.first, item.beyond))
        return orders

    def fail(self, error: Exception) -> None:
        everything = [*self._told, *(pair for said in self._said.values() for pair in said.told)]
        self._told, self._said, self.acknowledged, self._items = [], {}, [], []
        for _, told in everything:
            if not told.done():
                told.set_exception(error)

    def _gather(self) -> list[Item]:
        items, self._items = self._items, []
        if self.acknowledged:
            orders, self.acknowledged = self.acknowledged, []
            found = ranges(orders)
            if len(found) > 1:
                found = ranges(sorted(orders))
            items += found
        return items

    def _say(self, items: list[Item], told: list[tuple[int, Told]], transaction: int) -> None:
        tag = 0
        if self._answered or told:
            self._tag = tag = self._tag + 1
            self._said[tag] = Said(items, told)
        self._frame(items, transaction, tag, 0 if told else FLAG_PATIENT)

    def _frame(self, items: list[Item], transaction: int, tag: int, flags: int) -> None:
        pack = SETTLE_ITEM.pack
        body = pack(*items[0]) if len(items) == 1 else b"".join([pack(*item) for item in items])
        self._consumer.part.road.send(encode_frame(KIND_SETTLE, flags, self.handle, transaction, tag, b"", b"", body))

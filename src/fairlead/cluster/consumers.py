"""Who consumes from a destination: consumers, browsers and replays come and go, cursors with them.

A queue has one cursor for all. On a topic each durable subscription has one, which stays, and each other consumer its
own, which ends with it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from fairlead import selector as selectors
from fairlead.cluster import records, settling, views
from fairlead.cluster.cursor import Cursor, Share
from fairlead.cluster.ranges import Ranges
from fairlead.errors import BadParameter, DuplicateSubscription

if TYPE_CHECKING:
    from fairlead.cluster.destination import Destination
    from fairlead.cluster.parties import Consumer


def attach(home: Destination, consumer: Consumer, start: Any = "new") -> None:
    """A consumer, browser or replay begins. On a topic `cursor` 0 gives it a cursor of its own."""
    consumer.selector = selectors.compile(consumer.selector_text)
    if consumer.browse or consumer.replay:
        at = start_of(home, start if consumer.replay else "first")
        home.views[consumer] = views.View(consumer, at, home.visible if consumer.browse else None)
        home.port.ready(home)
        return
    if home.kind == "topic" and not consumer.cursor:
        consumer.cursor = _own_cursor(home, consumer, start)
    cursor = home.cursors.get(consumer.cursor)
    if cursor is None:
        raise BadParameter(f"{home.name!r} has no subscription {consumer.cursor}.")
    if cursor.number and cursor.durable and cursor.shares and not cursor.shared:
        raise DuplicateSubscription(f"The durable subscription {cursor.name!r} has a consumer already.")
    if home.kind == "topic":
        consumer.selector = None  # the cursor has it
    share = _resumed(home, cursor, consumer) or Share(consumer)
    share.consumer = consumer
    share.window = max(consumer.messages, 1)
    consumer.held = share.locked.total
    cursor.shares.append(share)
    home.port.ready(home)


def _resumed(home: Destination, cursor: Cursor, consumer: Consumer) -> Share | None:
    """What the same consumer held before its session was lost, if that was not given up yet (CLU-126)."""
    waiting = cursor.held.get(consumer.session.id)
    if not waiting:
        return None
    holds = Ranges(consumer.holds or ())
    if consumer.own:
        share = next((one for one in waiting if one.consumer.own == consumer.own), None)
    else:  # it does not say which one it was: whoever held most of what it has
        share = max(waiting, key=lambda one: sum(holds.count(low, high) for low, high in one.locked))
    if share is None:
        return None
    waiting.remove(share)
    if not waiting:
        del cursor.held[consumer.session.id]
    if consumer.holds is not None:  # what was still on its way, or in a buffer, nobody has: it comes again
        lost = [part for low, high in share.locked for part in holds.gaps(low, high)]
        for low, high in lost:
            share.locked.remove(low, high)
        settling.returned(home, cursor, share, lost)
    return share


def _own_cursor(home: Destination, consumer: Consumer, start: Any) -> int:
    at = start_of(home, start)
    cursor = add_cursor(
        home,
        Cursor(
            home.next_cursor,
            at,
            home.priorities,
            durable=False,
            selector=consumer.selector,
            filtered_from=home.next,
        ),
    )
    return cursor.number


def start_of(home: Destination, start: Any) -> int:
    """The order number a start means: "new", "first", a number, or {"ms": time}."""
    if start in ("new", None):
        return home.next
    if start == "first":
        return home.first
    if isinstance(start, int) and not isinstance(start, bool):
        return min(max(start, home.first), home.next)
    if isinstance(start, dict) and isinstance(start.get("ms"), int):
        return min(max(home.index.at_time(start["ms"]), home.first), home.next)
    raise BadParameter(f"A start is 'new', 'first', an order number or {{'ms': time}}, not {start!r:.60}.")


def add_cursor(home: Destination, cursor: Cursor) -> Cursor:
    home.cursors[cursor.number] = cursor
    home.next_cursor = max(home.next_cursor, cursor.number + 1)
    if cursor.selector is not None:
        home.selective += 1
    _fill(home, cursor)
    if cursor.floor < home.low:
        home.bytes += settling.bytes_of(home, cursor.floor, home.low)
        home.low = cursor.floor
    return cursor


def _fill(home: Destination, cursor: Cursor) -> None:
    """Everything that is there and stands in nobody's way becomes ready."""
    spans = cursor.unsettled(cursor.floor, home.visible)
    if home.parameters.last_value:
        newest = home.last_values.orders
        for low, high in newest.gaps(cursor.floor, home.visible):
            cursor.settle(low, high)
        spans = [part for low, high in spans for part in newest.intersect(low, high)]
    for low, high in spans:
        apart = [one for one in (*home.clock.later, *cursor.delayed, *cursor.aside) if low <= one < high]
        cursor.come_back(without(low, high, apart) if apart else [(low, high)])


def leave(home: Destination, consumer: Consumer, hold_ms: int) -> None:
    if home.views.pop(consumer, None) is not None:
        return
    cursor = home.cursors.get(consumer.cursor)
    share = cursor.share_of(consumer) if cursor is not None else None
    if cursor is None or share is None:
        return
    cursor.shares.remove(share)
    consumer.held = consumer.messages = 0  # nothing more goes to it
    if not cursor.durable:
        remove_cursor(home, cursor)
    elif hold_ms and share.locked:
        share.held_until_ms = home.port.now_ms + hold_ms
        cursor.held.setdefault(consumer.session.id, []).append(share)
        home.port.wake_at(home, share.held_until_ms)
    else:
        give_up(home, cursor, share)
    home.port.ready(home)


def give_up(home: Destination, cursor: Cursor, share: Share) -> None:
    ranges = list(share.locked)
    share.locked.clear()
    settling.returned(home, cursor, share, ranges)
    cursor.unkeyed |= bool(share.keys and cursor.taken)  # what is prepared holds its keys for whoever comes
    cursor.come_back(cursor.groups.leave(share))


def remove_cursor(home: Destination, cursor: Cursor) -> None:
    del home.cursors[cursor.number]
    if cursor.selector is not None:
        home.selective -= 1
    home.trim_due = True
    home.port.ready(home)


def want(home: Destination, consumer: Consumer, messages: int, bytes_: int) -> None:
    """More credit (CLU-111)."""
    consumer.messages += messages
    consumer.bytes += bytes_
    cursor = home.cursors.get(consumer.cursor)
    if cursor is not None and consumer not in home.views:
        share = cursor.share_of(consumer)
        if share is not None:
            share.window = max(share.window, consumer.messages)
            if cursor.has_parked:
                cursor.come_back(cursor.groups.room(share))
    home.port.ready(home)


def subscribe(
    home: Destination,
    *,
    name: str,
    client: str,
    selector: str,
    shared: bool,
    start: Any,
    pattern: str = "",
    opened_ms: int = 0,
) -> tuple[int, int]:
    """A durable subscription: its cursor, and the index of its record (CLU-17). `opened_ms`: it is a named cursor."""
    facts: dict[str, Any] = {
        "number": home.number,
        "cursor": home.next_cursor,
        "name": name,
        "client": client,
        "selector": selector,
        "shared": shared,
        "start": start_of(home, start),
        "pattern": pattern,
    }
    if opened_ms:
        facts["opened_ms"] = opened_ms
    selectors.compile(selector)
    index, _ = home.port.append(records.SUBSCRIBE, msgspec.json.encode(facts))
    home.last_index = index
    subscribed(home, facts)
    return home.next_cursor - 1, index


def subscribed(home: Destination, facts: dict[str, Any]) -> None:
    add_cursor(
        home,
        Cursor(
            facts["cursor"],
            facts["start"],
            home.priorities,
            durable=True,
            name=facts["name"],
            client=facts["client"],
            selector=selectors.compile(facts["selector"]),
            shared=facts["shared"],
            pattern=facts["pattern"],
            filtered_from=home.next,
            opened_ms=facts.get("opened_ms", 0),
        ),
    )


def unsubscribe(home: Destination, cursor: int) -> int:
    """A durable subscription ends: the index of the record that says so."""
    index, _ = home.port.append(records.UNSUBSCRIBE, msgspec.json.encode({"number": home.number, "cursor": cursor}))
    home.last_index = index
    if cursor in home.cursors and cursor:
        remove_cursor(home, home.cursors[cursor])
    return index


def without(low: int, high: int, orders: Iterable[int]) -> list[tuple[int, int]]:
    """A range without some single ones."""
    found = []
    for order in sorted(orders):
        if low < order:
            found.append((low, order))
        low = order + 1
    if low < high:
        found.append((low, high))
    return found

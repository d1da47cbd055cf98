"""Looking without taking: browsers see what is there now, replays read again what is kept and go on with what comes.

Neither locks nor settles anything, nor raises a count. A browser is told `caught-up` at the end of what there was when
it came.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fairlead.cluster import care, dispatch, stored
from fairlead.cluster.select import selects
from fairlead.wire.durable import ENTRY_CRON

if TYPE_CHECKING:
    from fairlead.cluster.destination import Destination
    from fairlead.cluster.parties import Consumer
    from fairlead.cluster.port import Bytes

RUNS_PER_TURN: Final = 64


class View:
    """How far one browser or replay has come."""

    __slots__ = ("at", "consumer", "end", "told")

    def __init__(self, consumer: Consumer, start: int, end: int | None) -> None:
        self.consumer = consumer
        self.at = start
        self.end = end  # None: it goes on
        self.told = False  # that it has caught up


def run(home: Destination, view: View) -> bool:
    """Show what there is credit for. True: there is more to do."""
    consumer = view.consumer
    out: list[Bytes] = []
    size, left = 0, RUNS_PER_TURN
    more = True
    try:
        while (
            left and more and consumer.messages > 0 and consumer.bytes > 0 and not (consumer.paused or consumer.stalled)
        ):
            left -= 1
            more = _run(home, view, out)
            size = sum(map(len, out))
            if size > dispatch.FRAME_BYTES:
                home.port.deliver(consumer, out)
                out = []
    except dispatch.Waits:
        more = False
    if out:
        home.port.deliver(consumer, out)
    if view.at >= (home.visible if view.end is None else view.end) and not view.told:
        view.told = True
        home.port.notice(consumer.session, event="caught-up", consumer=consumer.handle)
    return more and not left


def _run(home: Destination, view: View, out: list[Bytes]) -> bool:
    consumer = view.consumer
    end = min(home.visible, home.visible if view.end is None else view.end)
    view.at = max(view.at, home.first)
    if view.at >= end:
        return False
    found = care.readable(home, view.at, end, consumer.browse)
    if found is None:
        view.at = end
        return False
    low, high = found
    entry = home.index.find(low)
    if entry is None:
        view.at = low + 1
        return True
    high = min(high, entry.base + entry.count, low + min(consumer.messages, dispatch.LOOK_MAX))
    one = dispatch.read(home, entry)
    for first, beyond in _selected(home, view, one, entry.base, low, high):
        head, cut = dispatch.chunk(one, entry, first, beyond, max(home.deliveries(first), 1))
        out += (head, cut)
        consumer.messages -= beyond - first
        consumer.bytes -= len(cut)
        view.at = beyond
        if consumer.bytes <= 0:
            return True
    view.at = high
    return True


def _selected(
    home: Destination, view: View, one: stored.Stored, base: int, low: int, high: int
) -> list[tuple[int, int]]:
    selector = view.consumer.selector
    if selector is None and not one.head.flags & ENTRY_CRON and not home.clock.later:
        return [(low, high)]
    return [
        (base + position, base + position + 1)
        for position, entry in enumerate(one.entries(low - base, high - low), low - base)
        if not entry.flags & ENTRY_CRON
        and base + position not in home.clock.later
        and (selector is None or selects(selector, entry, one, position, 1))
    ]

"""Which messages of a destination a bulk reader may see, as ranges of order numbers for compiled code.

Only what somebody still needs, or what is kept on purpose, is sure to be on disk. What was consumed out of its order
and is not kept may be there or not: it is never shown.
"""

from __future__ import annotations

from array import array
from itertools import chain
from typing import TYPE_CHECKING, Final, NamedTuple

from fairlead.cluster.ranges import Ranges
from fairlead.cluster.retention import retains

if TYPE_CHECKING:
    from fairlead.cluster.destination import Destination

WINDOW: Final = 2048  # order numbers looked at where subscriptions have to be put together
PAIRS_MAX: Final = 2048

Spans = list[tuple[int, int]]


class Bounds(NamedTuple):
    """Of what can be read of a destination."""

    first: int  # the oldest
    next: int  # one beyond the newest that is safe
    low: int  # the oldest nobody has settled


def bounds(home: Destination) -> Bounds:
    low = home.cursors[0].floor if home.kind == "queue" else home.low
    beyond = home.visible
    return Bounds(min(home.first, beyond), beyond, max(min(home.first, beyond), min(low, beyond)))


def readable(home: Destination, first: int, beyond: int, *, waiting: bool, most: int) -> tuple[array[int], int]:
    """Pairs, rising: what of these order numbers is there; `waiting`: and is not consumed. Nothing delayed.

    No more than `most` messages and a bounded number of pairs; the second number says how far that reaches.
    """
    first, end = max(first, home.first), min(beyond, home.visible)
    if first >= end:
        return array("Q"), beyond
    spans, end = _present(home, first, end, waiting, most)
    if home.clock.later:
        spans = _without_later(home, spans)
    return array("Q", [bound for span in spans for bound in span]), end


def _present(home: Destination, first: int, beyond: int, waiting: bool, most: int) -> tuple[Spans, int]:
    keeps = retains(home.parameters)
    if keeps and not waiting:
        end = min(beyond, first + most)
        return [(first, end)], end
    if home.kind == "queue" and (waiting or not home.parameters.last_value):
        cursor = home.cursors[0]
        return _gaps(cursor.settled, max(first, cursor.floor), beyond, most)
    if waiting:
        first = max(first, home.low)
    end = min(beyond, first + min(most, WINDOW))
    if first >= end:
        return [], beyond
    if keeps or any(not cursor.settled and cursor.floor <= first for cursor in home.cursors.values()):
        return [(first, end)], end
    found = Ranges()
    for cursor in home.cursors.values():
        for low, high in cursor.unsettled(first, end):
            found.add(low, high)
    if home.parameters.last_value and not waiting:
        for low, high in home.last_values.orders.intersect(first, end):
            found.add(low, high)
    return list(found), end


def _gaps(settled: Ranges, at: int, beyond: int, most: int) -> tuple[Spans, int]:
    """What is not settled, from here on; a long stretch that is costs no more than a short one."""
    found: Spans = []
    for low, high in chain(settled.since(at), [(beyond, beyond)]):
        if at < low:
            found.append((at, min(low, beyond, at + most)))
            most -= found[-1][1] - at
            if most <= 0:
                return found, found[-1][1]
        at = max(at, high)
        if at >= beyond:
            break
        if len(found) >= PAIRS_MAX:
            return found, at
    return found, beyond


def _without_later(home: Destination, spans: Spans) -> Spans:
    later = home.clock.later
    if sum(high - low for low, high in spans) < len(later):
        hidden = Ranges((order, order + 1) for low, high in spans for order in range(low, high) if order in later)
    else:
        hidden = Ranges((order, order + 1) for order in later)
    return [part for span in spans for part in hidden.gaps(*span)]


def deliveries(home: Destination, ranges: array[int]) -> array[int]:
    """Pairs, rising: of these messages, the order number and how often it was delivered, where it was."""
    pairs = array("Q")
    if home.kind != "queue":
        return pairs
    cursor = home.cursors[0]
    for low, high in zip(ranges[::2], ranges[1::2], strict=True):
        again = min(max(cursor.again_below, low), high)  # after a restart: below it one is assumed
        if not cursor.counts:
            assumed = array("Q", bytes(16 * (again - low)))
            assumed[0::2] = array("Q", range(low, again))
            assumed[1::2] = array("Q", [1]) * (again - low)
            pairs += assumed
        elif low < again or len(cursor.counts) > high - low:
            pairs.extend(n for order in range(low, high) if (many := cursor.count(order)) for n in (order, many))
        else:
            some = sorted(order for order, many in cursor.counts.items() if many and low <= order < high)
            pairs.extend(n for order in some for n in (order, cursor.counts[order]))
    return pairs

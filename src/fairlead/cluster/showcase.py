"""Figures of destinations for those who look again and again: a bounded number by name, all others as one.

Who watches rates needs numbers that never fall. So a name once shown stays until its destination is deleted, and what
a destination had counted while it was among the others stays there when it moves out or ends. Places are given to
those through which most has gone; temporary destinations come and go and are always among the others. Where there are
very many, they are gone through in slices, so that nobody waits for a look.
"""

from __future__ import annotations

import heapq
from collections.abc import Container, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from fairlead.cluster.books import Books

if TYPE_CHECKING:
    from fairlead.cluster.destination import Destination


SLICE: Final = 1000
"""Of the others, gone through at a time: about four milliseconds."""


class Showcase:
    """Of one message manager."""

    def __init__(self) -> None:
        self.gone = Books()  # of destinations that were deleted
        self._named: dict[int, Destination] = {}
        self._left = Books()  # counted among the others by destinations that are not there any more
        self._seen_below = 0  # numbers below were there at the last look

    def forget(self, home: Destination) -> None:
        """It is deleted."""
        self.gone.add(home.books)
        if self._named.pop(home.number, None) is None:
            self._left.add(home.books, stored(home))

    def look(
        self, homes: Mapping[int, Destination], temporary: Container[int], count: int
    ) -> Iterator[dict[str, Any] | None]:
        """Up to `count` of them by name, and the sums of the rest; None comes before it, once for every slice."""
        room = count - len(self._named)
        if room > 0:
            fresh = [one for number, one in homes.items() if number not in self._named and number not in temporary]
            if len(fresh) > room:
                fresh = heapq.nlargest(room, fresh, key=stored)
            for one in fresh:
                if one.number < self._seen_below:
                    self._left.add(one.books, stored(one))
                self._named[one.number] = one
        self._seen_below = max(homes, default=self._seen_below) + 1
        named = sorted(self._named.values(), key=lambda one: one.name)
        rest = [one for number, one in homes.items() if number not in self._named]
        known = {"destinations": [figures(one) for one in named], "total": len(homes)}
        books = Books()
        books.add(self._left)
        depth = bytes_ = consumers = blocked = 0
        oldest = 0
        for at, one in enumerate(rest, 1):
            if at % SLICE == 0:
                yield None
            books.add(one.books, stored(one))
            waiting = one.depth
            if waiting:
                depth += waiting
                bytes_ += one.bytes
                since = oldest_ms(one)
                oldest = min(oldest or since, since) if since else oldest
            consumers += consumers_of(one)
            blocked += one.blocked
        other = {
            "count": len(rest),
            "depth": depth,
            "bytes": bytes_,
            "consumers": consumers,
            "blocked": blocked,
            "oldest_ms": oldest,
            **books.facts(),
        }
        yield known | {"other": other}


def figures(home: Destination) -> dict[str, Any]:
    """What changes from moment to moment, in a few numbers."""
    return {
        "name": home.name,
        "kind": home.kind,
        "depth": home.depth,
        "bytes": home.bytes,
        "consumers": consumers_of(home),
        "blocked": int(home.blocked),
        "paused": int(home.parameters.paused),
        "oldest_ms": oldest_ms(home),
        **totals(home),
    }


def totals(home: Destination) -> dict[str, int]:
    return home.books.facts() | {"stored": stored(home)}


def stored(home: Destination) -> int:
    """Messages stored here since it was made; order numbers are given without gaps."""
    return home.next - 1


def consumers_of(home: Destination) -> int:
    return sum(len(cursor.shares) for cursor in home.cursors.values()) + len(home.views)


def oldest_ms(home: Destination) -> int:
    """When the oldest message that waits arrived; 0: none waits."""
    order = home.cursors[0].floor if home.kind == "queue" else home.low
    if order >= home.next:
        return 0
    entry = home.index.find(order) or next(iter(home.index.following(order)), None)
    return entry.arrival_ms if entry is not None else 0

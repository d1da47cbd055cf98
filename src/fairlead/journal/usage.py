"""Which messages lie in which segment, and so which segments nobody needs any more.

Kept as ranges of order numbers per destination and segment, since the messages of a destination lie behind one
another. Messages move twice: those of a transaction get their order numbers by a later record, and compaction
copies them, after which the old place no longer counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from fairlead.journal.facts import WAITING, Describer, Facts
from fairlead.journal.layout import segment_of
from fairlead.journal.ranges import Ranges

IsLive = Callable[[int, int, int], bool]
"""Is any message of this destination, from the first order number to before the last, still needed?"""


class Row(NamedTuple):
    """Messages in a record, as a sidecar tells of them."""

    kind: int
    index: int  # type: ignore[assignment]  # a tuple has a method of this name
    place: int  # of the first byte of what the facts mean
    facts: Facts


class Usage:
    """Told of records in the order of their indexes."""

    def __init__(self, describe: Describer) -> None:
        self._moved = describe.moved
        self._segments: dict[int, dict[int, Ranges]] = {}
        self._waiting: dict[int, Row] = {}  # by index: messages without order numbers

    def note(self, row: Row) -> Row | None:
        """Take a row in; the row as it counts (an earlier record's place with the order numbers it has now)."""
        facts = row.facts
        if facts.source == WAITING:
            self._waiting[row.index] = row
            return row
        if facts.source:
            source = self._waiting.pop(facts.source, None)
            if source is None:
                return None
            known = source.facts
            facts = known._replace(base=facts.base, count=facts.count, arrival_ms=facts.arrival_ms, source=0)
            row = row._replace(place=source.place, facts=facts)
        segment = segment_of(row.place)
        if row.kind in self._moved:
            for number, held in self._segments.items():
                if number < segment and facts.destination in held:
                    held[facts.destination].remove(facts.base, facts.base + facts.count)
        self._add(segment, facts)
        return row

    def ordered(self, facts: Facts) -> None:
        """`note` for messages that lie in an earlier record and have order numbers now: there are many at once."""
        source = self._waiting.pop(facts.source, None)
        if source is not None:
            self._add(segment_of(source.place), facts)

    def _add(self, segment: int, facts: Facts) -> None:
        held = self._segments.get(segment)
        if held is None:
            held = self._segments[segment] = {}
        ranges = held.get(facts.destination)
        if ranges is None:
            ranges = held[facts.destination] = Ranges()
        ranges.add(facts.base, facts.base + facts.count)

    def forget(self, segment: int) -> None:
        """The segment is gone."""
        self._segments.pop(segment, None)
        gone = [index for index, row in self._waiting.items() if segment_of(row.place) == segment]
        for index in gone:
            del self._waiting[index]

    def held(self, segment: int) -> Iterator[tuple[int, int, int]]:
        """(destination, first order number, one beyond) of all messages whose place is in the segment."""
        for destination, ranges in self._segments.get(segment, {}).items():
            for first, beyond in ranges:
                yield destination, first, beyond

    def is_needed(self, segment: int, is_live: IsLive) -> bool:
        return any(is_live(*held) for held in self.held(segment))

"""Finding one's place in the active's numbering, and checking it with each heartbeat (STR-19).

The backup asks which number a record of its own has; the active also names its newest one by itself. If numbers differ
although no administrative record accounts for it, the backup moves all of its own, under a new incarnation.
"""

from __future__ import annotations

from typing import Literal

from fairlead.feeds.adapter.numbering import Numbering
from fairlead.feeds.adapter.synchronising import Synchroniser
from fairlead.feeds.records import Place
from fairlead.feeds.words import Anchor, AskAnchor, Beat, Source

__all__ = ["AnchorDesk", "Anchoring"]

MERGED_CHECKS = 10  # differences of one direction in a row, in a stream merged from several sources


class AnchorDesk:
    """The active's side: answers as soon as it has processed what it is asked about."""

    def __init__(self, numbering: Numbering) -> None:
        self._numbering = numbering
        self._asked: dict[str, AskAnchor] = {}

    def ask(self, peer: str, word: AskAnchor) -> None:
        self._asked[peer] = word  # only the newest question matters

    def forget(self, peer: str) -> None:
        self._asked.pop(peer, None)

    def due(self) -> list[tuple[str, str, Place, int]]:
        """(peer, source, place, number) of what can be answered now."""
        numbering, due = self._numbering, []
        for peer, word in list(self._asked.items()):
            place = Place(*word.place)
            position = numbering.positions.get(word.source)
            if position is not None and position[:2] >= place[:2]:
                del self._asked[peer]
                due.append((peer, word.source, place, numbering.retained.number_of(word.source, place)))
        return due

    def newest(self) -> tuple[str, Place, int]:
        """What a check is made of; number 0 before the first message."""
        source, place = self._numbering.newest
        return source, place, self._numbering.source_number


class Anchoring:
    """The backup's side. `is_merged`: sources interleave differently, so numbers may differ a little for a moment."""

    def __init__(self, numbering: Numbering, synchroniser: Synchroniser, *, is_merged: bool) -> None:
        self._numbering = numbering
        self._synchroniser = synchroniser
        self._is_merged = is_merged
        self._waiting: Anchor | None = None
        self._differences: list[int] = []
        self._beat: Beat | None = None  # the newest heartbeat, as long as we have no record of our own
        self._is_provisional = False  # we had none when we found our place
        self._asks: Literal["now", "later", "no"] = "no"

    def begin(self) -> None:
        """A link has come up."""
        self._waiting = self._beat = None
        self._differences.clear()
        self._is_provisional = False
        self._synchroniser.begin()
        self._asks = "now"

    def question(self, *, again: bool = False) -> AskAnchor | None:
        """About our newest record; `again`: also if the former answer was that the active does not know it."""
        if self._synchroniser.is_anchored or not self._numbering.positions:
            return None
        if self._asks == "no" or (self._asks == "later" and not again):
            return None
        source, place = self._numbering.newest
        self._asks = "no"
        return AskAnchor(source=source, place=place)

    def heard(self, word: Anchor) -> None:
        if word.number == 0:
            self._asks = "later"
        elif self._waiting is None or not self._synchroniser.is_anchored or self._waiting.source != word.source:
            self._waiting = word  # if the source has begun afresh, we may never get to where the old one ended

    def beat(self, word: Beat) -> tuple[int, int] | None:
        """Without a record of our own, and with a source that rests, our next number is the active's next one.

        This holds until our first record, which is asked about like any other.
        """
        if self._numbering.positions or self._synchroniser.is_anchored:
            return None
        former, self._beat = self._beat, word
        if former is None or (former.last, former.positions) != (word.last, word.positions):
            return None
        self._is_provisional = True
        return self._numbering.last + 1, word.last + 1

    def resolve(self, sources: dict[str, Source]) -> tuple[int, int] | None:
        """If all numbers have to move: our number of a record, and the active's. None: it is well, or not known yet."""
        numbering, synchroniser, word = self._numbering, self._synchroniser, self._waiting
        if self._is_provisional and numbering.positions:
            synchroniser.is_anchored = self._is_provisional = False
            self._asks = "now"
        if word is None:
            return None
        source, place = _ours(word, sources, numbering.positions)
        position = numbering.positions.get(source)
        if position is not None and position[:2] < place[:2]:
            return None  # until we are there
        self._waiting = None
        number = 0 if position is None else numbering.retained.number_of(source, place)
        if number == 0:
            self._asks = "later"
            return None
        if not synchroniser.is_anchored or self._has_drifted(word.number - synchroniser.there(number)):
            self._differences.clear()
            return number, word.number
        return None

    def _has_drifted(self, difference: int) -> bool:
        if not self._is_merged:
            return difference != 0
        self._differences.append(difference)
        del self._differences[:-MERGED_CHECKS]
        if len(self._differences) < MERGED_CHECKS:
            return False
        return all(one > 0 for one in self._differences) or all(one < 0 for one in self._differences)


def _ours(word: Anchor, sources: dict[str, Source], positions: dict[str, Place]) -> tuple[str, Place]:
    """The place in our own source; an equivalent line counts with an offset (STR-44)."""
    place = Place(*word.place)
    if word.source in positions:
        return word.source, place
    for source in sources.values():
        for relation in source.relations:
            if relation.kind == "equivalent" and relation.of == word.source and source.id in positions:
                return source.id, place._replace(sequence=place.sequence - relation.offset)
    return word.source, place

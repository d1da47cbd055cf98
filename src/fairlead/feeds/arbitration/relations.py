"""How the source streams of a stream relate to each other (STR-44): rows 4 to 7 of table 5.1 ask here.

Equivalent sources go by one name, that of the one all others refer to, and by its sequences.
"""

from __future__ import annotations

from collections.abc import Iterable

from fairlead.feeds.blocks import SEQUENCE_MAX
from fairlead.feeds.records import Place
from fairlead.feeds.words import Placed, Source

__all__ = ["Relations"]

CHAIN_MAX = 64
SOURCES_MAX = 4096  # the newest ones are known
OFFSET_MAX = 1 << 62


class Relations:
    def __init__(self, sources: Iterable[Source] = ()) -> None:
        self._sources: dict[str, Source] = {}
        self._roots: dict[str, tuple[str, int]] = {}
        self.learn(sources)

    def learn(self, sources: Iterable[Source]) -> None:
        """What is known of a source now replaces what was known; sources not named stay known."""
        self._sources.update((source.id, source) for source in sources)
        for name in list(self._sources)[:-SOURCES_MAX]:
            del self._sources[name]
        self._roots.clear()

    def knows(self, source: str) -> bool:
        return source in self._sources

    def has(self, source: Source) -> bool:
        """Is there nothing to learn from this?"""
        return self._sources.get(source.id) == source

    def root(self, source: str) -> tuple[str, int]:
        """The name it goes by, and what to add to its sequences."""
        if found := self._roots.get(source):
            return found
        name, offset, seen = source, 0, {source}
        for _ in range(CHAIN_MAX):
            step = self._equivalent(name)
            if step is None or step[0] in seen or abs(offset + step[1]) > OFFSET_MAX:
                break
            name, offset = step[0], offset + step[1]
            seen.add(name)
        self._roots[source] = name, offset
        return name, offset

    def _equivalent(self, source: str) -> tuple[str, int] | None:
        for relation in self._sources[source].relations if source in self._sources else ():
            if relation.kind == "equivalent":
                return relation.of, relation.offset
        return None

    def predecessor(self, root: str) -> tuple[str, int] | None:
        """Of a source that began afresh: the one before, and the first sequence."""
        for source, offset in self.names(root):
            for relation in self._sources[source].relations if source in self._sources else ():
                if relation.kind == "successor":
                    return self.root(relation.of)[0], relation.start + offset
        return None

    def are_siblings(self, root: str, other: str) -> bool:
        """Are both merged into one stream? Either may say so; those that succeed each other count as one."""
        mine, theirs = self._line_of(root), self._line_of(other)
        return any(
            (a in mine and b in theirs) or (a in theirs and b in mine)
            for source in self._sources.values()
            for relation in source.relations
            if relation.kind == "sibling"
            for a, b in [(self.root(source.id)[0], self.root(relation.of)[0])]
        )

    def _line_of(self, root: str) -> set[str]:
        found = {root}
        while (before := self.predecessor(root)) and before[0] not in found and len(found) < CHAIN_MAX:
            root = before[0]
            found.add(root)
        return found

    def names(self, root: str) -> list[tuple[str, int]]:
        """All sources that go by this name, with what to add to their sequences."""
        found = [(root, 0)]
        for source in self._sources:
            name, offset = self.root(source)
            if name == root and source != root:
                found.append((source, offset))
        return found

    def spread(self, positions: dict[str, Place]) -> dict[str, Placed]:
        """Positions for an adapter, which may know a source by another of its names."""
        return {
            name: (min(max(place.sequence - offset, 0), SEQUENCE_MAX), place.part, place.parts)
            for root, place in positions.items()
            for name, offset in self.names(root)
        }

"""The chart of all servers, and which way a message goes on it.

Every bridge has the same chart, so they agree without asking: a broadcast travels along the tree of shortest ways from
the server where it was published, and each server has one place in that tree. So it arrives once, whatever the links
look like: cycles, several hubs. Where several ways are equally short, the highest of a hash over origin, topic and
candidate wins; thus hubs share the topics, and when one is lost another has its part.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator

from fairlead.errors import FairleadError
from fairlead.sites.adverts import Advert
from fairlead.topics import PatternIndex
from fairlead.wire.kinds import TOPIC_SEPARATOR

WAYS_MAX = 16_384
SUBSCRIBED, SERVED, NAMED = "subscribed", "served", "named"

Way = frozenset[tuple[str, str]]


class Chart:
    """All adverts, and what follows from them."""

    def __init__(self) -> None:
        self.adverts: dict[str, Advert] = {}
        self._clear()

    def _clear(self) -> None:
        self._neighbours: dict[bool, dict[str, list[str]]] = {}
        self._distances: dict[tuple[str, bool], dict[str, int]] = {}
        self._ways: dict[tuple[str, str, bool], Way] = {}
        self._index: PatternIndex[str] | None = None

    def take(self, advert: Advert) -> bool:
        """Keep it if it is news."""
        if not advert.says_more_than(self.adverts.get(advert.server)):
            return False
        self.adverts[advert.server] = advert
        self._clear()
        return True

    def forget_unreachable(self, at: str) -> None:
        """Servers no way leads to any more; a server that comes back is advertised anew."""
        reached = self.distances(at, held=True)
        lost = [server for server in self.adverts if server not in reached]
        for server in lost:
            del self.adverts[server]
        if lost:
            self._clear()

    # -- ways

    def neighbours(self, *, held: bool) -> dict[str, list[str]]:
        """Servers with a link between them: both ends say so. `held`: also lost ones for which broadcasts are kept."""
        found = self._neighbours.get(held)
        if found is None:
            found = self._neighbours[held] = {server: [] for server in self.adverts}
            for child in self.adverts.values():
                for parent in dict.fromkeys([*child.parents, *(child.held if held else ())]):
                    other = self.adverts.get(parent)
                    if other is None or parent == child.server:
                        continue
                    kept = held and parent in child.held
                    if (child.server in other.links or kept) and parent not in found[child.server]:
                        found[child.server].append(parent)
                        found[parent].append(child.server)
        return found

    def distances(self, start: str, *, held: bool) -> dict[str, int]:
        """How many links away each server is that can be reached."""
        found = self._distances.get((start, held))
        if found is None:
            neighbours = self.neighbours(held=held)
            found, edge = {start: 0}, [start]
            while edge:
                edge = [other for server in edge for other in neighbours.get(server, ()) if other not in found]
                depth = max(found.values()) + 1
                found.update(dict.fromkeys(edge, depth))
                edge = list(dict.fromkeys(edge))
            self._distances[start, held] = found
        return found

    def beyond(self, here: str, there: str, *, held: bool) -> Iterator[Advert]:
        """Servers to which the link from `here` to `there` is on a shortest way."""
        from_here, from_there = self.distances(here, held=held), self.distances(there, held=held)
        for server, distance in from_there.items():
            if from_here.get(server) == distance + 1 and server in self.adverts:
                yield self.adverts[server]

    def way(self, origin: str, topic_text: str, *, requests: bool = False) -> Way:
        """The links (from, to) that a message of this origin and topic goes by: to whoever wants it, once.

        `requests`: to those who have receivers of the topic, else to those who have subscribers of it.
        """
        key = (origin, topic_text, requests)
        found = self._ways.get(key)
        if found is None:
            if len(self._ways) >= WAYS_MAX:
                self._ways.clear()
            found = self._ways[key] = frozenset(self._find_way(origin, topic_text, requests))
        return found

    def _find_way(self, origin: str, topic_text: str, requests: bool) -> Iterator[tuple[str, str]]:
        held = not requests
        distances, neighbours = self.distances(origin, held=held), self.neighbours(held=held)
        wanting = self._receivers(topic_text) if requests else self._subscribers(topic_text)
        done: set[str] = {origin}
        for server in sorted(wanting):
            at = server
            while at not in done and at in distances:
                done.add(at)
                nearer = [other for other in neighbours[at] if distances.get(other) == distances[at] - 1]
                before = max(nearer, key=lambda other: (weight(origin, topic_text, other), other))
                yield before, at
                at = before

    def _subscribers(self, topic_text: str) -> set[str]:
        if self._index is None:
            self._index = PatternIndex()
            for advert in self.adverts.values():
                for pattern in dict.fromkeys(advert.subscribed):
                    try:
                        self._index.add(pattern, advert.server)
                    except FairleadError:
                        pass  # of a newer server, or nonsense: nobody can be meant by it here
        found: set[str] = set()
        for topic in topic_text.split(TOPIC_SEPARATOR):
            found |= self._index.match(topic)
        return found

    def _receivers(self, topic: str) -> set[str]:
        return {advert.server for advert in self.adverts.values() if advert.served.get(topic, 0) > 0}

    # -- what to ask a server for

    def wanted(self, here: str, there: str, what: str) -> set[str]:
        """What has to be asked for at `here`, so that it can be taken over the link to `there`."""
        found: set[str] = set()
        for advert in self.beyond(here, there, held=what == SUBSCRIBED):
            found.update(getattr(advert, what))
        return found

    def nearest(self, here: str, choices: Iterable[str], what: str, key: str) -> list[str]:
        """Those of the neighbours beyond which somebody serves the topic or has the name; the most of them first."""
        counts: dict[str, int] = {}
        for there in choices:
            for advert in self.beyond(here, there, held=False):
                served = advert.served.get(key, 0) if what == SERVED else int(key in advert.named)
                counts[there] = counts.get(there, 0) + served
        return sorted((there for there, count in counts.items() if count), key=lambda there: (-counts[there], there))


def weight(origin: str, topic_text: str, candidate: str) -> int:
    """A number that is the same at every bridge, and spreads topics over candidates."""
    text = f"{origin}\0{topic_text}\0{candidate}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")

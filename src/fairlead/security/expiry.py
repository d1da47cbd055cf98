"""When logins end: who is asked to renew in time, and who is cut off because nothing came of it.

A move to another connection loses nothing (docs/protocol.md, section 7), so that is what a client is asked for; the new
connection comes with a fresh token. Times are seconds since 1970, as in tokens and certificates.
"""

from __future__ import annotations

import heapq
from typing import Final, Literal, NamedTuple

__all__ = ["Due", "Expiry"]

ASK_S: Final = 60.0  # before the end
ASK_SHARE: Final = 0.7  # of a short life, which is over before that
SHORTEST_S: Final = 1.0  # what has less is not asked
STRAYS_MAX: Final = 64  # entries of connections that are gone, beyond as many as there are others

What = Literal["renew", "end"]


class Due(NamedTuple):
    """Something to do about the connection with this place and uid."""

    place: int
    uid: int
    what: What
    left_s: float = 0.0


class Expiry:
    """The logins of all connections that end."""

    def __init__(self) -> None:
        self._ends: dict[int, tuple[int, float]] = {}  # uid and end, by place
        self._heap: list[tuple[float, What, int, int]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, place: int, uid: int, expires_s: float | None, now_s: float) -> None:
        """A connection has logged in, until then."""
        if expires_s is None:
            return
        self._ends[place] = uid, expires_s
        left_s = expires_s - now_s
        heapq.heappush(self._heap, (expires_s, "end", place, uid))
        if left_s > SHORTEST_S:
            heapq.heappush(self._heap, (now_s + max(ASK_SHARE * left_s, left_s - ASK_S), "renew", place, uid))

    def forget(self, place: int) -> None:
        """That connection is gone."""
        if self._ends.pop(place, None) and len(self._heap) > 4 * len(self._ends) + STRAYS_MAX:
            self._heap = [one for one in self._heap if self._is_there(one[2], one[3])]
            heapq.heapify(self._heap)

    def due(self, now_s: float) -> list[Due]:
        """What has to be done now, the earliest first."""
        found = []
        while self._heap and self._heap[0][0] <= now_s:
            _, what, place, uid = heapq.heappop(self._heap)
            if self._is_there(place, uid):
                found.append(Due(place, uid, what, max(0.0, self._ends[place][1] - now_s)))
        return found

    def _is_there(self, place: int, uid: int) -> bool:
        return place in self._ends and self._ends[place][0] == uid

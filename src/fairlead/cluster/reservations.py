"""Who has reserved which messages of a queue: the ledger of its cursors (docs/durable.md, section 7).

A cursor numbers what it reserves: positions, without gaps, that name the same messages until they are committed. Of
neighbours only the first is noted, so a million messages reserved in order are one run. Of grouping keys the last
position is known: a key is free when everything before and at it is committed (CLU-28).
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from fairlead.cluster.cursor import Share
    from fairlead.cluster.gathering import Asked

PARTS_MAX: Final = 1 << 18
"""Runs and keys of one cursor: what it may have reserved and not committed, where that is in pieces."""
EVERY: Final = 1 << 62
CURSORS_MAX: Final = 1000
"""Of one queue."""


class Reservation:
    """One cursor of a queue: positions `at` to `reserved`. Its share holds the locks, and never takes a delivery."""

    __slots__ = ("_lows", "_starts", "at", "index", "keys", "made_ms", "name", "reserved", "share", "used_ms")

    def __init__(self, name: str, at: int, share: Share, now_ms: int) -> None:
        self.name = name
        self.at = at  # everything before is committed
        self.reserved = at  # one beyond the last position given
        self.share = share
        self.made_ms = self.used_ms = now_ms
        self.index = 0  # of its newest record
        self.keys: dict[bytes, int] = {}  # grouping key -> its last position; rising
        self._starts = array("Q")  # of each run: its first position
        self._lows = array("Q")  # … and the order number there

    def __len__(self) -> int:
        """How many messages."""
        return self.reserved - self.at

    @property
    def runs(self) -> int:
        """In how many pieces they lie."""
        return len(self._starts)

    @property
    def is_crowded(self) -> bool:
        """Is it in so many pieces that something has to be committed first?"""
        return len(self._starts) + len(self.keys) >= PARTS_MAX

    def add(self, low: int, high: int) -> None:
        """These order numbers get the next positions."""
        if not self._starts or self._lows[-1] + self.reserved - self._starts[-1] != low:
            self._starts.append(self.reserved)
            self._lows.append(low)
        self.reserved += high - low

    def hold(self, key: bytes, position: int) -> None:
        """The key has a message at this position, and none beyond it."""
        self.keys.pop(key, None)
        self.keys[key] = position

    def spans(self, first: int, beyond: int, most: int = EVERY) -> list[tuple[int, int]]:
        """The order numbers at these positions, as ranges (at most so many), in the order of the positions."""
        first, beyond = max(first, self.at), min(beyond, self.reserved)
        found: list[tuple[int, int]] = []
        at = bisect_right(self._starts, first) - 1
        while first < beyond and len(found) < most:
            end = self._starts[at + 1] if at + 1 < len(self._starts) else self.reserved
            end = min(end, beyond)
            low = self._lows[at] + first - self._starts[at]
            found.append((low, low + end - first))
            first = end
            at += 1
        return found

    def commit(self, end: int) -> tuple[list[tuple[int, int]], list[bytes]]:
        """Everything before this position is done with: the order numbers, and the keys that are free."""
        spans = self.spans(self.at, end)
        self.at = min(max(self.at, end), self.reserved)
        gone = bisect_right(self._starts, self.at) - 1
        if self.at >= self.reserved:
            del self._starts[:], self._lows[:]
        elif gone >= 0:
            del self._starts[:gone], self._lows[:gone]
            self._lows[0] += self.at - self._starts[0]
            self._starts[0] = self.at
        free: list[bytes] = []
        for key, last in self.keys.items():
            if last >= self.at:
                break
            free.append(key)
        for key in free:
            del self.keys[key]
        return spans, free

    # ------------------------------------------------------------------ checkpoints

    def snapshot(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "at": self.at,
            "reserved": self.reserved,
            "made_ms": self.made_ms,
            "used_ms": self.used_ms,
            "starts": self._starts.tolist(),
            "lows": self._lows.tolist(),
            "keys": list(self.keys.items()),
        }

    @classmethod
    def restored(cls, state: dict[str, Any], share: Share) -> Reservation:
        made = cls(state["name"], state["at"], share, state["made_ms"])
        made.reserved, made.used_ms = state["reserved"], state["used_ms"]
        made._starts, made._lows = array("Q", state["starts"]), array("Q", state["lows"])
        made.keys = dict(state["keys"])
        return made


class Ledger:
    """The cursors of one queue, and who waits for a reservation."""

    __slots__ = ("asked", "by_name", "past")

    def __init__(self) -> None:
        self.by_name: dict[str, Reservation] = {}
        self.past = 0  # positions before were given by cursors that are released: none of them names anything again
        self.asked: list[Asked] = []

    def drop(self, name: str) -> None:
        """It is released."""
        self.past = max(self.past, self.by_name.pop(name).reserved)

    def snapshot(self) -> dict[str, Any]:
        return {"past": self.past, "cursors": [one.snapshot() for one in self.by_name.values()]}

    def restore(self, past: int, cursors: Iterable[Reservation]) -> None:
        self.past = past
        self.by_name = {one.name: one for one in cursors}

"""Grouping keys: messages of one key go to one consumer at a time, in order, while all others go on (CLU-28).

A key belongs to the share that got its last message and stays with it until that consumer leaves, or has no room
while it holds nothing of the key. What cannot go to its owner now is parked, and comes back when the owner has room,
has settled all of the key, or is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from typing import TYPE_CHECKING, Final

from fairlead.cluster.ranges import Ranges

if TYPE_CHECKING:
    from fairlead.cluster.cursor import Share

STICKY_MAX: Final = 65_536
"""Keys that stay with a consumer although it holds none of their messages."""


class Groups:
    """The keys of one cursor."""

    __slots__ = ("_blocked", "_blockers", "_holding", "_owners", "parked")

    def __init__(self) -> None:
        self.parked: dict[bytes, Ranges] = {}
        self._owners: dict[bytes, Share] = {}
        self._holding: dict[bytes, int] = {}  # messages of the key its owner holds
        self._blockers: dict[int, bytes] = {}  # a returned message that waits for its delay -> its key
        self._blocked: dict[bytes, Ranges] = {}

    @property
    def is_in_use(self) -> bool:
        """Is anything parked or blocked?"""
        return bool(self.parked or self._blockers)

    def choose(self, key: bytes, order: int, share: Share, can_take: Callable[[Share], bool]) -> Share | None:
        """Who gets this message of the key, `share` being the one whose turn it is. None: nobody now; it is parked."""
        before = self.parked.get(key)
        waiting = self._blocked.get(key)
        first = min((ranges.first() or 0 for ranges in (before, waiting) if ranges), default=order)
        if first >= order:
            owner = self._owners.get(key)
            if owner is share:
                return share
            if owner is None or not (self._holding.get(key) or can_take(owner)):
                return share
            if can_take(owner):
                return owner
        if before is None:
            before = self.parked[key] = Ranges()
        before.add(order, order + 1)
        return None

    def take(self, key: bytes, order: int, share: Share) -> None:
        """The message was handed to this share."""
        share.keys[order] = key
        self._holding[key] = self._holding.get(key, 0) + 1
        self._owners.pop(key, None)  # so that the newest stand last
        self._owners[key] = share
        if len(self._owners) > STICKY_MAX and len(self._holding) < STICKY_MAX // 2:
            for idle in [one for one in self._owners if one not in self._holding][: STICKY_MAX // 4]:
                del self._owners[idle]

    def give(self, share: Share, low: int, high: int) -> list[tuple[int, int]]:
        """The share no longer holds these; what of its keys nobody holds any more is no longer parked, and returned."""
        if not share.keys:
            return []
        if len(share.keys) < high - low:
            orders = [order for order in share.keys if low <= order < high]
        else:
            orders = [order for order in range(low, high) if order in share.keys]
        freed: list[tuple[int, int]] = []
        for order in orders:
            key = share.keys.pop(order)
            left = self._holding[key] - 1
            if left:
                self._holding[key] = left
            else:
                del self._holding[key]
                freed += self._unpark(key)
        return freed

    def hold(self, key: bytes, share: Share) -> None:
        """A named cursor has messages of the key, however many."""
        self._owners.pop(key, None)
        self._owners[key] = share
        self._holding[key] = 1

    def free(self, key: bytes, share: Share) -> list[tuple[int, int]]:
        """… and has none any more: what was parked comes back."""
        if self._owners.get(key) is not share:
            return []
        del self._owners[key], self._holding[key]
        return self._unpark(key)

    def are_free(self, keys: Set[bytes], share: Share) -> bool:
        """Is nothing of these keys parked or blocked, or with another share?"""
        return (
            keys.isdisjoint(self.parked)
            and keys.isdisjoint(self._blocked)
            and all(self._owners.get(key) is share for key in keys & self._holding.keys())
        )

    def is_held(self, key: bytes) -> bool:
        """Has its owner messages of it?"""
        return key in self._holding

    def room(self, share: Share, messages: int | None = None) -> list[tuple[int, int]]:
        """The share has room again: so many of its parked messages, lowest first, come back."""
        freed: list[tuple[int, int]] = []
        room = share.consumer.messages if messages is None else messages
        for key in [one for one in self.parked if self._owners.get(one) is share] if self.parked else ():
            if room <= 0:
                break
            parked = self.parked[key]
            if key in self._blocked:
                continue
            for low, high in parked.pop_first(room):
                room -= high - low
                freed.append((low, high))
            if not parked:
                del self.parked[key]
        return freed

    def leave(self, share: Share) -> list[tuple[int, int]]:
        """The consumer is gone and holds nothing any more: its keys are anybody's."""
        freed: list[tuple[int, int]] = []
        if share.keys:  # acknowledged in a transaction that is still open
            freed += self.give(share, min(share.keys), max(share.keys) + 1)
        for key in [one for one, owner in self._owners.items() if owner is share]:
            del self._owners[key]
            freed += self._unpark(key)
        return freed

    # ------------------------------------------------------------------ a returned message blocks its own key

    def block(self, key: bytes, order: int) -> None:
        """A message of the key came back and waits: later ones of the key wait with it."""
        self._blockers[order] = key
        self._blocked.setdefault(key, Ranges()).add(order, order + 1)

    def unblock(self, order: int) -> list[tuple[int, int]]:
        key = self._blockers.pop(order, None)
        if key is None:
            return []
        waiting = self._blocked[key]
        waiting.remove(order, order + 1)
        if not waiting:
            del self._blocked[key]
        return self._unpark(key)

    def forget(self, low: int, high: int) -> list[tuple[int, int]]:
        """These messages are settled; what was parked behind them comes back."""
        for key in list(self.parked):
            parked = self.parked[key]
            parked.remove(low, high)
            if not parked:
                del self.parked[key]
        freed: list[tuple[int, int]] = []
        for order in [one for one in self._blockers if low <= one < high]:
            freed += self.unblock(order)
        return freed

    def is_parked(self, order: int) -> bool:
        return any(order in parked for parked in self.parked.values())

    def _unpark(self, key: bytes) -> list[tuple[int, int]]:
        parked = self.parked.pop(key, None)
        return list(parked) if parked else []

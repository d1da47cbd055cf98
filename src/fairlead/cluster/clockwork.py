"""The times of a destination: which messages wait for theirs, which records expire when, which schedules fall due.

It only remembers; what is done then is in ticking.py. Expiry is kept by record, with the earliest of its messages. A
schedule keeps its entry here and in checkpoints, so the message that brought it is settled at once. Times are calendar
times, which bridge a restart (CLU-23, CLU-27).
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Any, Final

import msgspec

EXPIRED_PER_TICK: Final = 512
"""Records looked through for expired messages before others get their turn."""


class Schedule(msgspec.Struct):
    """A message that is made again and again."""

    order: int
    cron: str
    due_ms: int
    entry: bytes
    sent_ms: int
    id_first: bytes


class Clockwork:
    """The times of one destination."""

    __slots__ = ("_expiries", "_fires", "_later", "later", "schedules")

    def __init__(self) -> None:
        self.later: dict[int, int] = {}  # order -> due; not visible to anybody before
        self._later: list[tuple[int, int]] = []
        self._expiries: list[tuple[int, int]] = []  # when, the last message of the record
        self.schedules: dict[int, Schedule] = {}
        self._fires: list[tuple[int, int]] = []

    def withhold(self, order: int, due: int) -> None:
        self.later[order] = due
        heappush(self._later, (due, order))

    def expire_at(self, ms: int, order: int) -> None:
        """Look through the record then whose last message this is."""
        heappush(self._expiries, (ms, order))

    def schedule(self, one: Schedule) -> None:
        self.schedules[one.order] = one
        heappush(self._fires, (one.due_ms, one.order))

    def cancel(self, order: int) -> bool:
        return self.schedules.pop(order, None) is not None

    def refire(self, order: int, due: int) -> None:
        """A schedule fell due: the next time, or never again."""
        one = self.schedules.get(order)
        if one is None:
            return
        if due:
            one.due_ms = due
            heappush(self._fires, (due, order))
        else:
            del self.schedules[order]

    def next_ms(self) -> int:
        """When something is to be done next; 0: nothing is."""
        return min((heap[0][0] for heap in (self._later, self._expiries, self._fires) if heap), default=0)

    def due(self, now_ms: int) -> list[int]:
        """Withheld messages that become available now."""
        found: list[int] = []
        while self._later and self._later[0][0] <= now_ms:
            due, order = heappop(self._later)
            if self.later.get(order) == due:
                del self.later[order]
                found.append(order)
        return found

    def expiring(self, now_ms: int) -> list[int]:
        """Messages whose records have to be looked through now."""
        found: list[int] = []
        while self._expiries and self._expiries[0][0] <= now_ms and len(found) < EXPIRED_PER_TICK:
            found.append(heappop(self._expiries)[1])
        return found

    def firing(self, now_ms: int) -> list[Schedule]:
        found: list[Schedule] = []
        while self._fires and self._fires[0][0] <= now_ms:
            due, order = heappop(self._fires)
            one = self.schedules.get(order)
            if one is not None and one.due_ms == due:
                found.append(one)
        return found

    def take(self, low: int, high: int) -> None:
        """These are no longer withheld, whatever their time."""
        for one in [one for one in self.later if low <= one < high] if self.later else ():
            del self.later[one]

    def drop_below(self, order: int) -> None:
        """Nothing below is there any more."""
        for one in [one for one in self.later if one < order] if self.later else ():
            del self.later[one]
        if len(self._expiries) > 1024 and sum(one < order for _, one in self._expiries) * 2 > len(self._expiries):
            self._expiries = [pair for pair in self._expiries if pair[1] >= order]
            heapify(self._expiries)

    def prune(self) -> None:
        """Forget times at which nothing happens any more: for whoever follows and never asks what is due."""
        while self._later and self.later.get(self._later[0][1]) != self._later[0][0]:
            heappop(self._later)
        while self._fires:
            due, order = self._fires[0]
            one = self.schedules.get(order)
            if one is not None and one.due_ms == due:
                break
            heappop(self._fires)

    def snapshot(self) -> dict[str, Any]:
        return {
            "later": list(self.later.items()),
            "expiries": self._expiries.copy(),
            "schedules": [msgspec.to_builtins(one, builtin_types=(bytes,)) for one in self.schedules.values()],
        }

    def restore(self, state: dict[str, Any]) -> None:
        for order, due in state["later"]:
            self.withhold(order, due)
        self._expiries = [(ms, order) for ms, order in state["expiries"]]
        heapify(self._expiries)
        for one in state["schedules"]:
            self.schedule(msgspec.convert(one, Schedule))

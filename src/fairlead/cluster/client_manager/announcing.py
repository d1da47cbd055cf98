"""Announcements of the groups, passed on to the managers of this node with numbers of our own (CLU-173, CLU-174).

A group hears `announced` when every manager that was linked has said so, or is gone: from then on publishes to these
names come to it.
"""

from __future__ import annotations

from collections.abc import Callable


class Announcing:
    """Who has still to answer which announcement."""

    def __init__(self) -> None:
        self.number = 0
        self._open: dict[int, tuple[set[int], Callable[[], None]]] = {}

    def begin(self, managers: set[int], then: Callable[[], None]) -> int:
        """The number under which these managers are told; `then` is called when all of them know."""
        self.number += 1
        if managers:
            self._open[self.number] = (managers, then)
        else:
            then()
        return self.number

    def acknowledged(self, manager: int, number: int) -> None:
        """It knows everything up to this number."""
        for one in [one for one in self._open if one <= number]:
            waiting, then = self._open[one]
            waiting.discard(manager)
            if not waiting:
                del self._open[one]
                then()

    def lost(self, manager: int) -> None:
        self.acknowledged(manager, self.number)

    def __len__(self) -> int:
        return len(self._open)

"""Which group has a destination: asked once per connection, and again when the answer turned out to be wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from fairlead.client.durable.commands import Command, Facts
from fairlead.errors import FairleadError, NoDestination

if TYPE_CHECKING:
    from fairlead.client.durable.road import Road

__all__ = ["Places", "Then", "is_misplaced"]

Then: TypeAlias = Callable[[str, Exception | None], None]
"""Told the name of the group, or why it cannot be known."""

WRONG_GROUP = "wrong-group"
PLACES_MAX = 100_000


class Places:
    """Names of destinations and of their groups."""

    def __init__(self, road: Road) -> None:
        self._road = road
        self._known: dict[str, str] = {}
        self._asked: dict[str, list[Then]] = {}

    def get(self, destination: str) -> str | None:
        return self._known.get(destination)

    def learn(self, destination: str, group: str) -> None:
        if len(self._known) >= PLACES_MAX:
            self._known.clear()
        self._known[destination] = group

    def forget(self, destination: str) -> None:
        self._known.pop(destination, None)

    def locate(self, destination: str, then: Then) -> None:
        """At once if it is known; questions about one name are asked once."""
        known = self._known.get(destination)
        if known is not None:
            then(known, None)
            return
        waiting = self._asked.setdefault(destination, [])
        waiting.append(then)
        if len(waiting) > 1:
            return

        def told(facts: Facts, error: Exception | None) -> None:
            group = str(facts.get("group") or "")
            if error is None:
                self._road.learn(facts)
                self.learn(destination, group)
            for each in self._asked.pop(destination, ()):
                each(group, error)

        self._road.ask(Command("locate", {"destination": destination}, told))


def is_misplaced(error: Exception) -> bool:
    """Does it say that the destination is not where we asked?"""
    return isinstance(error, NoDestination) or (isinstance(error, FairleadError) and error.code == WRONG_GROUP)

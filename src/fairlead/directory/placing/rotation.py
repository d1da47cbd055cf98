"""Whose turn it is: round robin over names, which a new list of them does not start again (DIR-44, DIR-46).

A cursor remembers the name used last and the order it stood in: if that name has left, its successor is next.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Literal, NamedTuple

__all__ = ["CURSORS_MAX", "Cursor", "Cursors", "Start"]

Start = Literal["first", "random"]
CURSORS_MAX: Final = 10_000


class Cursor(NamedTuple):
    last: str
    order: tuple[str, ...]


def turns(order: Sequence[str], cursor: Cursor | None) -> list[str]:
    """All names once, the next one first."""
    names = list(order)
    at = _next_at(names, cursor) if cursor is not None else 0
    return names[at:] + names[:at]


def _next_at(names: list[str], cursor: Cursor) -> int:
    if cursor.last in names:
        return (names.index(cursor.last) + 1) % len(names)
    if cursor.last in cursor.order:
        at = cursor.order.index(cursor.last)
        for successor in cursor.order[at + 1 :] + cursor.order[:at]:
            if successor in names:
                return names.index(successor)
    return 0


class Cursors:
    """One place for each (application, cluster). `random` gives a number from 0 to 1, below 1."""

    def __init__(self, random: Callable[[], float]) -> None:
        self._random = random
        self._places: dict[tuple[str, str], Cursor] = {}

    def turns(self, app: str, cluster: str, order: tuple[str, ...], start: Start = "first") -> list[str]:
        """All names once, in the order in which to take them."""
        cursor = self._places.get((app, cluster))
        if cursor is None and start == "random" and order:
            cursor = Cursor(order[int(self._random() * len(order)) % len(order)], order)
        return turns(order, cursor)

    def used(self, app: str, cluster: str, name: str, order: tuple[str, ...]) -> None:
        """This one's turn was taken."""
        key = (app, cluster)
        if key not in self._places and len(self._places) >= CURSORS_MAX:
            del self._places[next(iter(self._places))]
        self._places[key] = Cursor(name, order)

    def facts(self) -> list[dict[str, str]]:
        return [
            {"application": app, "cluster": cluster, "last": cursor.last}
            for (app, cluster), cursor in self._places.items()
        ]

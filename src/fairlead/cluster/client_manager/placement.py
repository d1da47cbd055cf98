"""Where a destination that does not exist yet is to be made: the same answer on every client manager (CLU-87).

By its pins, else by the group whose hash together with the name is highest: a group more takes its share from all
others and moves nothing between them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from hashlib import sha256
from typing import Final

OF_GROUP: Final = ("_LOG.", "_DMQ.")  # begin the names of what each further group keeps for itself


@dataclass(frozen=True, slots=True)
class Group:
    """A group as the configuration names it."""

    name: str
    pins: tuple[str, ...] = ()


class Placement:
    """Over the configured list, in its order."""

    def __init__(self, groups: Sequence[Group]) -> None:
        self.groups = tuple(groups)
        self.index = {group.name: number for number, group in enumerate(groups)}
        self._exact = {pin: number for number, group in enumerate(groups) for pin in group.pins}
        self._patterns = [
            (pin, number)
            for number, group in enumerate(groups)
            for pin in group.pins
            if any(sign in pin for sign in "*?")
        ]

    def of(self, name: str) -> int:
        """The index of the group in which a destination of this name would be made."""
        if name.startswith("_"):
            for stem in OF_GROUP:
                if name.startswith(stem):
                    return self.index.get(name.removeprefix(stem), 0)
            return 0
        pinned = self._exact.get(name)
        if pinned is not None:
            return pinned
        for pattern, number in self._patterns:
            if fnmatchcase(name, pattern):
                return number
        return max(range(len(self.groups)), key=lambda number: weight(name, self.groups[number].name))


def weight(name: str, group: str) -> bytes:
    return sha256(f"{name}\0{group}".encode(errors="surrogateescape")).digest()

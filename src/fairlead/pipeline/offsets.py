"""Which messages the next batch of a query is made of: arithmetic on order numbers.

An offset is plain JSON, a number for each destination: the first one that was not read yet. A queue that is consumed
has `{"cursor": name, "at": n}` instead, a place in the cursor's ledger. Under `.ids` (no destination can be called so)
it is kept which destination was meant, for one that was deleted and made again counts from the beginning.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from fairlead.errors import ConfigError

__all__ = ["Known", "Loss", "Offsets", "Range", "losses", "mended", "pack", "ranges", "shares"]

IDS = ".ids"
SLICE_ROWS_MIN = 1_000
"""A task costs Spark some milliseconds; less than this is not worth one of its own unless somebody asks for it."""


class Known(Protocol):
    """What the server says about one destination (`BulkConnection.positions`)."""

    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def id(self) -> str: ...
    @property
    def first(self) -> int: ...
    @property
    def next(self) -> int: ...


@dataclass
class Offsets:
    """How far each destination was read."""

    at: dict[str, int] = field(default_factory=dict)
    cursors: dict[str, str] = field(default_factory=dict)
    ids: dict[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, value: Mapping[str, Any]) -> Offsets:
        """Of the JSON in a checkpoint; ConfigError if that was written by something else."""
        found = cls()
        for name, place in value.items():
            match place:
                case dict() if name == IDS:
                    found.ids = {str(key): str(id_) for key, id_ in place.items()}
                case {"cursor": str() as cursor, "at": int() as at}:
                    found.at[name], found.cursors[name] = at, cursor
                case int() if not isinstance(place, bool):
                    found.at[name] = place
                case _:
                    raise ConfigError(f"The checkpoint's offset of {name!r} is not one of Fairlead's: {place!r}.")
        return found

    def as_json(self) -> dict[str, Any]:
        """Sorted, for Spark compares offsets as text."""
        found: dict[str, Any] = {
            name: {"cursor": self.cursors[name], "at": at} if name in self.cursors else at
            for name, at in sorted(self.at.items())
        }
        if ids := {name: self.ids[name] for name in sorted(self.at) if name in self.ids}:
            found[IDS] = ids
        return found

    def copy(self) -> Offsets:
        return Offsets(dict(self.at), dict(self.cursors), dict(self.ids))

    def note(self, known: Known, at: int, cursor: str = "") -> None:
        """This destination is read up to here."""
        self.at[known.name] = at
        self.ids[known.name] = known.id
        if cursor:
            self.cursors[known.name] = cursor
        else:
            self.cursors.pop(known.name, None)

    def forget(self, name: str) -> None:
        self.at.pop(name, None)
        self.ids.pop(name, None)
        self.cursors.pop(name, None)


class Loss(NamedTuple):
    """Messages a query was still to read and cannot."""

    name: str
    first: int
    beyond: int | None  # None: nobody knows how many there were
    why: str

    def __str__(self) -> str:
        until = "on" if self.beyond is None else f"to {self.beyond - 1}"
        return f"{self.name}: messages from {self.first} {until} are lost, {self.why}"


def losses(start: Offsets, known: Mapping[str, Known]) -> list[Loss]:
    """What the query was promised by its offsets and is not there any more."""
    found = []
    for name, at in start.at.items():
        there = known.get(name)
        if there is None:
            found.append(Loss(name, at, None, "for it was deleted"))
        elif start.ids.get(name, there.id) != there.id:
            found.append(Loss(name, at, None, "for it was deleted and made again"))
        elif name in start.cursors:
            pass  # a ledger keeps what it numbered
        elif at < there.first:
            found.append(Loss(name, at, there.first, "for they were let go before they were read"))
        elif at > there.next:
            found.append(Loss(name, there.next, at, "for its store is older than the checkpoint"))
    return found


def mended(start: Offsets, known: Mapping[str, Known]) -> Offsets:
    """The same place as far as it still exists. What was deleted is left out, what was let go is jumped over."""
    found = start.copy()
    for loss in losses(start, known):
        there = known.get(loss.name)
        if there is None or loss.beyond is None:
            found.forget(loss.name)  # one that was made again is a new one
        else:
            found.at[loss.name] = min(max(loss.first, there.first), there.next)
    return found


def shares(wanted: Mapping[str, int], limit: int, turn: int) -> dict[str, int]:
    """Share a limit between destinations: nobody gets more than it wants or, unless others want less, than its part.

    Where there is not one for each, `turn` says who is first, so that all come round.
    """
    names = [name for name in sorted(wanted) if wanted[name] > 0]
    if not limit:
        return {name: wanted[name] for name in names}
    if limit < len(names):
        turned = names[turn % len(names) :] + names[: turn % len(names)]
        return dict.fromkeys(turned[:limit], 1)
    found = {}
    for place, name in enumerate(sorted(names, key=lambda name: wanted[name])):
        found[name] = min(wanted[name], limit // (len(names) - place))
        limit -= found[name]
    return found


class Range(NamedTuple):
    """A run of messages of one destination: order numbers, or places in a cursor's ledger."""

    destination: str
    first: int
    beyond: int
    cursor: str = ""
    waiting: bool = False
    jump: bool = False

    @property
    def rows(self) -> int:
        return max(0, self.beyond - self.first)


def ranges(start: Offsets, end: Offsets, *, jump: bool = False) -> list[Range]:
    """What lies between two offsets.

    A destination that `start` does not mention, or that was made again since, is read from the next batch on: only
    then is there a number from which on nothing may be missing.
    """
    return [
        Range(name, start.at[name], beyond, end.cursors.get(name, ""), jump=jump)
        for name, beyond in end.at.items()
        if name in start.at and start.ids.get(name) == end.ids.get(name) and beyond > start.at[name]
    ]


def pack(whole: Iterable[Range], slices: int, rows_min: int = SLICE_ROWS_MIN) -> list[list[Range]]:
    """Cut ranges into about `slices` lots of equal size; small destinations share one, large ones have several."""
    whole = [one for one in whole if one.rows]
    each = max(rows_min, -(-sum(one.rows for one in whole) // slices), 1)
    lots: list[list[Range]] = []
    room = 0
    for one in whole:
        first = one.first
        while first < one.beyond:
            if room <= 0:
                lots.append([])
                room = each
            beyond = min(one.beyond, first + room)
            lots[-1].append(one._replace(first=first, beyond=beyond))
            room -= beyond - first
            first = beyond
    return lots

"""What a program may want to know about its stream, and may ignore (STR-27).

Events stand between messages, where they happened. Ranges are source sequences, both ends included.
"""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct

from fairlead.feeds.records import Place

__all__ = [
    "AdminLost",
    "BackupAgain",
    "Discontinuity",
    "Divergence",
    "Down",
    "Event",
    "FailedOver",
    "Fresh",
    "GapFilled",
    "GapOpened",
    "Lost",
    "NoBackup",
    "Resumed",
    "Revoked",
    "SnapshotBegun",
    "SnapshotEnded",
    "Stale",
    "Succeeded",
]


class FailedOver(Struct, frozen=True, kw_only=True):
    """Messages come from `new` from here on. `local`: by the client's own decision, the group's roles are as before."""

    old: str
    new: str
    why: str
    epoch: int
    local: bool


class NoBackup(Struct, frozen=True, kw_only=True):
    """Only one adapter can be reached: if it fails, the stream stops."""

    why: str


class BackupAgain(Struct, frozen=True, kw_only=True):
    adapter: str


class Stale(Struct, frozen=True, kw_only=True):
    """What comes now is old or nothing comes, though the line lives: the adapter is behind, or lost its source."""

    why: str


class Fresh(Struct, frozen=True):
    """The end of Stale."""


class Down(Struct, frozen=True, kw_only=True):
    """No adapter can be reached. The position is kept, and all are tried again and again."""

    why: str


class Resumed(Struct, frozen=True, kw_only=True):
    """The end of Down."""

    adapter: str


class GapOpened(Struct, frozen=True, kw_only=True):
    """These are missing for now. With `gaps="mark"` messages go on; with `gaps="hold"` they wait."""

    source: str
    first: int
    last: int


class GapFilled(Struct, frozen=True, kw_only=True):
    source: str
    first: int
    last: int


class Lost(Struct, frozen=True, kw_only=True):
    """These will not come (STR-52).

    Of the first one, parts before `first_part` were delivered; of the last one, those after `last_part` (0: none) come.
    """

    source: str
    first: int
    last: int
    first_part: int = 1
    last_part: int = 0
    why: str = ""


class Discontinuity(Struct, frozen=True, kw_only=True):
    """From here on messages come from a source of which nobody knows how it relates to those before (STR-48)."""

    source: str
    sequence: int


class Succeeded(Struct, frozen=True, kw_only=True):
    """The source `old` has ended and begun afresh as `new`, at the sequence `start` (STR-46)."""

    old: str
    new: str
    start: int


class Divergence(Struct, frozen=True, kw_only=True):
    """A dropped repeat was not what had been delivered at its place: the adapters do not convert alike (STR-50)."""

    source: str
    sequence: int
    part: int
    adapter: str


class AdminLost(Struct, frozen=True, kw_only=True):
    """An administrative message that nobody has any more."""

    id: str


class SnapshotBegun(Struct, frozen=True, kw_only=True):
    """The messages up to SnapshotEnded are the state at these positions, by key; forget what you had."""

    positions: dict[str, Place]


class SnapshotEnded(Struct, frozen=True, kw_only=True):
    """From here on what follows the positions."""

    positions: dict[str, Place]


class Revoked(Struct, frozen=True, kw_only=True):
    """The right to the stream is gone; nothing follows."""

    why: str


Event: TypeAlias = (
    FailedOver
    | NoBackup
    | BackupAgain
    | Stale
    | Fresh
    | Down
    | Resumed
    | GapOpened
    | GapFilled
    | Lost
    | Discontinuity
    | Succeeded
    | Divergence
    | AdminLost
    | SnapshotBegun
    | SnapshotEnded
    | Revoked
)

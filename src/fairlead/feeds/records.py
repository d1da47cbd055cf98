"""What a stream is made of: records, each with its identity (docs/feeds.md, section 2)."""

from __future__ import annotations

from typing import Final, NamedTuple

__all__ = ["ADMIN", "ADMIN_VOID", "KINDS", "MESSAGE", "PART_MAX", "SOURCE_GAP", "START", "VOID", "Place", "Record"]

MESSAGE: Final = 1  # made from a source message
ADMIN: Final = 2  # made by the adapter itself; the body is a `words.Admin`
VOID: Final = 3  # stands for a source message that could not be converted: it has a place, and nothing to deliver
ADMIN_VOID: Final = 4  # stands for an administrative message that could not be synchronised; the body is its id
SOURCE_GAP: Final = 5  # the adapter never got these: source sequences `previous` + 1 … `sequence`
KINDS: Final = frozenset({MESSAGE, ADMIN, VOID, ADMIN_VOID, SOURCE_GAP})
PART_MAX: Final = 65_535


class Place(NamedTuple):
    """Where something is in a source stream: the position of a client, or of one record."""

    sequence: int
    part: int = 1  # from 1
    parts: int = 1

    @property
    def is_whole(self) -> bool:
        """Was this the final part of its source message?"""
        return self.part >= self.parts

    @property
    def reach(self) -> tuple[int, int]:
        """What is compared: a place behind a whole source message is behind all of its parts, however many it had.

        Behind a source gap nobody knows how many: the place then says 1 of 1.
        """
        return self.sequence, PART_MAX if self.part >= self.parts else self.part


START: Final = Place(0, 1, 1)
"""Before the first message of a source; sources count from 1."""


class Record(NamedTuple):
    """One record, as machines look at it when they have to look at one at a time."""

    number: int  # message sequence: place in the adapter's output stream
    kind: int
    source: str  # source stream id
    sequence: int  # source sequence; of an ADMIN or ADMIN_VOID: of the source message before it
    part: int
    parts: int
    previous: int  # source sequence of the preceding source message that gave output (or a VOID); 0: none
    body: bytes
    checksum: int = 0  # crc32 of the body

    @property
    def place(self) -> Place:
        return Place(self.sequence, self.part, self.parts)

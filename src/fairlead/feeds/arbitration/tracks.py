"""One source stream as a client follows it: the position, and what is held behind a gap (STR-24, STR-51)."""

from __future__ import annotations

from bisect import insort

from fairlead.feeds.arbitration.recent import Recent
from fairlead.feeds.blocks import Block
from fairlead.feeds.records import ADMIN, ADMIN_VOID, SOURCE_GAP, START, Place
from fairlead.feeds.words import Placed

__all__ = ["Gap", "Piece", "Track", "is_passed", "just_before", "moved"]

KNOWN, NOTICE, SNAPSHOT, PREDECESSOR = "", "notice", "snapshot", "predecessor"


def moved(placed: Placed, offset: int) -> Place:
    """A place of an equivalent source, by the sequences of the one it goes by."""
    return Place(placed[0] + offset, placed[1], placed[2])


def is_passed(place: Place, position: Place) -> bool:
    """Is the place at or before the position?"""
    return place.reach <= position.reach


def just_before(block: Block, i: int, offset: int) -> Place:
    """The position of which record `i` would be the direct successor."""
    record = block.record(i)
    sequence = record.sequence + offset
    if record.kind in (ADMIN, ADMIN_VOID):
        return Place(sequence, record.part, record.parts)
    if record.part > 1 and record.kind != SOURCE_GAP:
        return Place(sequence, record.part - 1, record.parts)
    return Place(max(record.previous + offset, 0) if record.previous else 0)


class Piece:
    """Records of a block that wait; `key` orders them within their source, administrative ones after their place."""

    __slots__ = ("adapter", "block", "end", "i", "offset")

    def __init__(self, block: Block, i: int, end: int, offset: int, adapter: str) -> None:
        self.block, self.i, self.end, self.offset, self.adapter = block, i, end, offset, adapter

    @property
    def key(self) -> tuple[int, int, bool]:
        sequence, part, _parts = self.block.place(self.i)
        return sequence + self.offset, part, self.block.kind(self.i) in (ADMIN, ADMIN_VOID)

    @property
    def first_position(self) -> Place:
        """The position of which this would be the direct continuation."""
        return just_before(self.block, self.i, self.offset)

    @property
    def missing_to(self) -> Place:
        """Up to which place, itself included, things are missing before this can be judged."""
        record = self.block.record(self.i)
        if record.kind == SOURCE_GAP:
            return Place(record.sequence + self.offset)
        return just_before(self.block, self.i, self.offset)

    @property
    def ask_to(self) -> int:
        """How far to ask: to the next message itself, for its previous link at another adapter may say more."""
        for i in range(self.i, self.end):
            if self.block.kind(i) not in (ADMIN, ADMIN_VOID, SOURCE_GAP):
                return self.block.place(i).sequence + self.offset
        return self.block.place(self.i).sequence + self.offset


class Gap:
    """Messages that are missing before those held. `last` and `first` are source sequences."""

    def __init__(self, first: int, first_part: int, last: int, now_s: float) -> None:
        self.first, self.first_part, self.last = first, first_part, last
        self.since_s = now_s
        self.question = 0  # the Fill that is under way
        self.asked = ""  # of whom
        self.asked_to = 0
        self.asked_s = 0.0
        self.empty_by = ""  # who has all there is up to `empty_to`, and sent nothing of it
        self.empty_to = 0
        self.refused: dict[str, int] = {}  # who does not have it, and how far they were asked
        self.later_s: dict[str, float] = {}  # who may not have it yet, and when to ask again


class Track:
    """`late`: it follows a hole that messages have already passed (`gaps="mark"`), up to `limit`."""

    def __init__(self, source: str, position: Place, *, limit: Place | None = None, ask_to: int = 0) -> None:
        self.id = source
        self.position = position
        self.start = position  # what is before does not concern this client
        self.wait = KNOWN
        self.wait_until_s = 0.0
        self.limit = limit
        self.gap: Gap | None = None
        self.held: list[tuple[tuple[int, int, bool], int, Piece]] = []
        self.held_messages = 0
        self.is_cut = False  # more came than may be held, and must be asked for again
        self.is_over = False  # another source has succeeded it
        self.late: list[Track] = []
        self.end: Place | None = None  # how far it reached, when another source has succeeded it
        self.recent = Recent()
        self._ask_to = ask_to
        self._arrivals = 0
        self._with_admins: list[Piece] = []

    @property
    def is_late(self) -> bool:
        return self.limit is not None

    @property
    def is_settled(self) -> bool:
        return not (self.gap or self.held or self.wait)

    def set_position(self, position: Place) -> None:
        self.position = self.start = position
        self.wait = KNOWN

    def hold(self, piece: Piece, messages_max: int) -> None:
        """Keep it in its order. What is beyond the bound goes from the far end, and can be had again."""
        self._arrivals += 1
        insort(self.held, (piece.key, self._arrivals, piece))
        self.held_messages += piece.end - piece.i
        if piece.block.mask & 1 << ADMIN:
            self._with_admins.append(piece)
        while self.held_messages > messages_max and len(self.held) > 1:
            self.unhold(len(self.held) - 1)
            self.is_cut = True

    def unhold(self, index: int) -> Piece:
        piece = self.held.pop(index)[2]
        self.held_messages -= piece.end - piece.i
        if piece in self._with_admins:
            self._with_admins.remove(piece)
        return piece

    @property
    def next_admin(self) -> Place | None:
        """The first place not yet passed at which an administrative message is held."""
        places = [
            moved(piece.block.place(i), piece.offset)
            for piece in self._with_admins
            for i in range(piece.i, piece.end)
            if piece.block.kind(i) == ADMIN
        ]
        ahead = [place for place in places if place.reach >= self.position.reach]
        return min(ahead, key=lambda place: place.reach, default=None)

    def missing(self) -> tuple[int, int, Place]:
        """What is missing next: first sequence, first part of it, and the last place."""
        to = self.held[0][2].missing_to if self.held else self.limit or self.end or START
        position = self.position
        if not position.is_whole:
            if to[:2] <= position[:2]:  # the rest of its parts, whatever the next link says
                to = Place(position.sequence, position.parts, position.parts)
            return position.sequence, position.part + 1, to
        first = position.sequence + 1
        if self.held and to.part >= 1 and not to.is_whole:
            piece = self.held[0][2]
            previous = piece.block.record(piece.i).previous
            if not previous or previous + piece.offset <= position.sequence:
                first = to.sequence  # only its first parts are missing
        return first, 1, to

    @property
    def ask_to(self) -> int:
        """The source sequence up to which a Fill should reach."""
        found = 0
        for _key, _arrival, piece in self.held[:2]:
            found = piece.ask_to
            if piece.block.kind(piece.i) not in (ADMIN, ADMIN_VOID, SOURCE_GAP):
                break
        return max(found, self._ask_to, self.end.sequence if self.end else 0)

    @property
    def lacks_end(self) -> bool:
        return self.end is not None and not is_passed(self.end, self.position)
